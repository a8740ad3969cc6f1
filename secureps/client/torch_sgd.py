"""SGD on a PyTorch model, and DP-SGD with the noise of Opacus.

DP-SGD is algorithm 1 of Abadi et al. 2016; `private_sum` clips records' gradients and adds them up.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils._pytree import tree_leaves

from secureps.client.private_sum import (
    Measure,
    TensorGuard,
    make_records,
    private_sum,
    refuse_model,
    zero_sums,
)
from secureps.client.trainer import SEED_BITS, RecordPrivacy, Setting
from secureps.config.sections import Table, parse
from secureps.errors import ConfigError, NotFinite, ScriptFailed
from secureps.wording import one_line

log = logging.getLogger("secureps")

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""(parameters, and by name what the plan sets of lr, momentum, weight_decay) -> an optimizer."""

MakeSchedule = Callable[[Any, int], Any]
"""(optimizer, number of steps) -> a schedule of `torch.optim.lr_scheduler`."""

TRIED = 2
"""Number of made-up records a model is tried on; `squeeze()` would drop a dimension of 1."""


@dataclass(frozen=True, eq=False)
class Task:
    """The data of one training: x and y by record, the loss, the device.

    Args:
        x: a tensor, or tensors by the names of arguments of the model's `forward`.
        persons: the person of each record, numbered from 0 without gaps, if the plan protects them.
        most: how many records are evaluated at a time.
        numbers: the records' numbers in their Dataset; None if a record's number is its row.
        failed, noise: for a private step: why records were not fetched, and the noise to add.
    """

    x: Any
    y: Tensor
    loss: Measure
    device: torch.device
    persons: NDArray[np.int64] | None = None
    most: int | None = field(default=None, kw_only=True)
    numbers: NDArray[np.int64] | None = field(default=None, kw_only=True)
    failed: Sequence[str] = field(default=(), kw_only=True)
    noise: Sequence[torch.Generator] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.y)

    def seeded(self, key: bytes) -> Task:
        """Returns the same task, whose augmentation draws from `key`."""
        return self

    def draw(
        self, indices: Iterable[NDArray[np.int64]], apart: bool = False
    ) -> Iterator[tuple[Task, NDArray[np.int64]]]:
        """Yields, for each step's numbers of records, a task in memory and their rows in it.

        `apart`: each record must follow from itself alone; one that cannot be fetched is left out.
        """
        return ((self, each) for each in indices)

    def batch(self, index: NDArray[np.int64]) -> tuple[Any, Tensor]:
        chosen = torch.from_numpy(index)
        x = map_inputs(self.x, lambda each: each[chosen].to(self.device))
        return x, self.y[chosen].to(self.device)

    @cached_property
    def digest(self) -> bytes:
        """A digest of the records, to derive noise from.

        Else a client that lost its state, removed a record and repeated a version would add the
        same noise again, and the difference of the two updates would show the record.
        """
        made = hashlib.blake2b(digest_size=32, person=b"secureps-data")
        owners = [] if self.persons is None else [torch.from_numpy(self.persons)]
        for each in (*tree_leaves((self.x, self.y)), *owners):
            made.update(repr((each.dtype, tuple(each.shape))).encode())
            if each.numel():  # torch views no empty array of NumPy as bytes
                made.update(each.contiguous().cpu().view(torch.uint8).numpy().data)
        return made.digest()


def map_inputs(x: Any, made: Callable[[Tensor], Tensor]) -> Any:
    return {name: made(each) for name, each in x.items()} if isinstance(x, Mapping) else made(x)


def call_model(module: nn.Module, x: Any) -> Any:
    return module(**x) if isinstance(x, Mapping) else module(x)


def bad_records(name: str, task: Task, index: NDArray[np.int64]) -> str:
    """Says which of these records have NaN or infinity; empty if none has."""
    numbers = index if task.numbers is None else task.numbers
    chosen = torch.from_numpy(index if task.numbers is None else np.arange(len(numbers)))
    values = tree_leaves((task.x, task.y))
    finite = [torch.isfinite(each[chosen]).reshape(len(chosen), -1) for each in values]
    bad = numbers[~torch.cat(finite, dim=1).all(dim=1).cpu().numpy()]
    if not len(bad):
        return ""
    more = f", and {len(bad) - 1} more like it" if len(bad) > 1 else ""
    return (
        f"record {bad[0]} of {name} has NaN or infinity{more}: mend such records, or leave them out"
    )


def demand_finite(loss: Tensor, step: int, task: Task, index: NDArray[np.int64]) -> Tensor:
    """Returns the loss of a step (from 1), or raises NotFinite with the records to look at."""
    if bool(torch.isfinite(loss.detach()).all()):
        return loss
    whose = "its" if task.numbers is None or len(task) >= len(index) else "this process's"
    found = bad_records("train", task, index)
    raise NotFinite(
        f"training loss of step {step} is {float(loss.detach().mean())}: "
        f"{found or f'{whose} records are finite, so lower lr, or scale the inputs'}"
    )


def descend_privately(
    module: nn.Module,
    sgd: torch.optim.Optimizer,
    privacy: RecordPrivacy,
    task: Task,
    steps: int,
    generators: tuple[np.random.Generator, Sequence[torch.Generator]],
) -> None:
    """Takes private steps, each on its own Poisson sample of the records, or of all persons'.

    If a sample is empty, the step adds noise alone. How many records added nothing, because their
    loss or gradient is not finite, is logged here but not sent, because no noise covers it.
    `generators` are one for the samples, and several whose noise is added up.

    PlanRefused if the loss mixes records, or the model does not work for one record alone or
    changes tensors that would be sent without noise.
    """
    rng, noise = generators
    refuse_model(module)
    kept = TensorGuard(module)
    made = tuple(each.to(task.device) for each in make_records(task.x, task.y))
    gradients = private_sum(module, task.loss, (made[0], made[1]), privacy.max_grad_norm)
    kept.refuse_changes()
    owners = np.arange(len(task)) if task.persons is None else task.persons
    order = np.argsort(owners, kind="stable")  # one person's records after another's
    units = int(owners.max()) + 1
    optimizer = _make_noisy(sgd, privacy, units, noise)
    reasons = list[str]()
    chosen = (rng.random(units) < privacy.sample_rate for _ in range(steps))
    for sample, index in task.draw((order[each[owners[order]]] for each in chosen), apart=True):
        optimizer.zero_grad()
        sums = zero_sums(optimizer.params)
        gradients.add(sample.batch, index, sums, sample.persons)
        gradients.left_out += len(sample.failed)
        reasons.extend(sample.failed[:1])
        kept.refuse_changes()  # at every step, because a later step may undo a change
        for each in optimizer.params:
            each.grad = sums[each].to(each.dtype)
        if sample.noise is not None:
            optimizer.noise = sample.noise
        optimizer.step()
        kept.accept_step()
    if gradients.left_out:
        log.warning(
            "record privacy: in %d steps %d records that were drawn counted as nothing, because "
            "their loss or gradient is not finite, or the model fails for them: look for NaN, "
            "infinities, huge values and labels out of range%s; this line stays here",
            steps,
            gradients.left_out,
            f" ({reasons[0]})" if reasons else "",
        )


def _make_noisy(
    sgd: torch.optim.Optimizer,
    privacy: RecordPrivacy,
    held: int,
    noise: Sequence[torch.Generator],
) -> Any:
    """Makes an Opacus optimizer whose noise is a sum of independent Gaussians.

    Each has a generator of its own, so an attacker who wants to subtract the noise has to find all
    of their seeds.
    """
    from opacus.optimizers import DPOptimizerFastGradientClipping

    class NoiseSumOptimizer(DPOptimizerFastGradientClipping):  # type: ignore[misc]
        def add_noise(self) -> None:
            for generator in self.noise:
                self.generator = generator
                super().add_noise()
                for each in self.params:
                    each.summed_grad = each.grad

    made = NoiseSumOptimizer(
        sgd,
        noise_multiplier=privacy.noise_multiplier / math.sqrt(len(noise)),
        max_grad_norm=privacy.max_grad_norm,
        expected_batch_size=privacy.expected_batch(held),
    )
    made.noise = noise
    return made


def number_persons(persons: ArrayLike, records: int) -> NDArray[np.int64]:
    """Numbers the persons of records from 0 on, in the order of their ids.

    Raises ScriptFailed unless each record has an id, an integer or a text. A missing one (NaN,
    None, -1 of pandas' codes, an empty text) would make one person of all without an id, and each
    of them could change the sum by up to two clips.
    """
    ids = np.asarray(persons, None if hasattr(persons, "dtype") else object)  # NaN is no text "nan"
    if ids.dtype == object:  # of a list, or of a column of pandas
        kinds = set(map(type, ids.flat))
        texts, integers = (all(issubclass(k, of) for k in kinds) for of in (str, (int, np.integer)))
        if texts or (integers and bool not in kinds):
            ids = np.array(ids.tolist())
    if ids.shape != (records,) or ids.dtype.kind not in "iuU":
        raise ScriptFailed(
            f"persons: {ids.dtype} of shape {ids.shape}; must be an integer or a text for each of "
            f"the {records} records of train (gaps make integers floats, and texts objects)"
        )
    missing = np.flatnonzero(ids == ("" if ids.dtype.kind == "U" else -1))
    if len(missing):
        raise ScriptFailed(
            f"persons: record {missing[0]} has no person ({ids[missing[0]]!r:.20}), nor have "
            f"{len(missing) - 1} others: give each record its person, or leave it out"
        )
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def refuse_compiled(module: nn.Module) -> None:
    """Raises ScriptFailed if torch.compile has compiled a model, as a whole or in part.

    Its choice of kernels may depend on earlier computations, and on a GPU on timing, so a killed
    client might not repeat its bits.
    """
    for name, layer in module.named_modules():
        # `torch.compile(layer)` wraps the layer; `layer.compile()` does not
        if hasattr(layer, "_orig_mod") or layer._compiled_call_impl is not None:
            own = f"layer {name.replace('_orig_mod.', '')!r}" if name else "the model"
            raise ScriptFailed(
                f"{own} is compiled, and TorchTrainer trains no compiled model: its bits need not "
                "repeat after a restart; leave out torch.compile"
            )


def refuse_records(module: nn.Module, loss: Measure, held: Mapping[str, Task]) -> dict[str, str]:
    """Refuses targets whose types or shapes cross entropy cannot take (ScriptFailed).

    Model and loss are tried on made-up records, so that a refusal tells nothing about a real
    record. Returns, by argument, why targets are out of range: under record-level privacy the
    caller must not end the client for that, which would tell everybody about a record.
    """
    found = dict[str, str]()
    if (ignored := _ignored_class(loss)) is None:
        return found
    for name, task in held.items():
        outputs = _try_model(module, task.x)
        targets = torch.zeros((TRIED, *task.y.shape[1:]), dtype=task.y.dtype)
        try:
            if targets.is_floating_point() and targets.ndim == 1:
                raise ValueError("numbers would pass for the probabilities of one record's classes")
            if outputs is not None:
                functional.cross_entropy(outputs, targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ScriptFailed(
                f"{name}: the loss, cross_entropy, fails for targets that are {task.y.dtype} of "
                f"shape {tuple(task.y.shape)}: {one_line(error, lines=1)}; it wants a class, "
                "int64, for each row of scores; to learn numbers, or from an output that is no "
                "tensor, give TorchTrainer a loss, such as loss=torch.nn.functional.mse_loss"
            ) from None
        if outputs is not None and (reason := _out_of_range(task.y, outputs.shape[1], ignored)):
            found[name] = f"{name}: {reason}"
    return found


def _out_of_range(y: Tensor, classes: int, ignored: int) -> str | None:
    wrong = y[((y < 0) | (y >= classes)) & (y != ignored)]
    if y.is_floating_point() or not len(wrong):
        return None
    return (
        f"target {int(wrong[0])} is no class of the model, whose {classes} outputs are classes 0 "
        f"to {classes - 1} ({len(wrong)} of {y.numel()} targets are out of range)"
    )


def _ignored_class(loss: Measure) -> int | None:
    """The class that torch's cross entropy ignores; None if the loss is another one."""
    if type(loss) is nn.CrossEntropyLoss:
        return loss.ignore_index
    given: dict[str, Any] = {}
    while isinstance(loss, partial):
        given = {**loss.keywords, **given}
        loss = loss.func
    return given.get("ignore_index", -100) if loss is functional.cross_entropy else None


def _try_model(module: nn.Module, like: Any) -> Any:
    """Returns the model's outputs for made-up records; None if it fails."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = map_inputs(like, lambda each: make_records(each, each, TRIED)[0])
            return call_model(module.eval(), made)
    except Exception:  # a model may raise anything; training will report it
        return None


@contextmanager
def shapes_agree() -> Iterator[None]:
    """Turns torch's warning that outputs [n, 1] and targets [n] differ in shape into an error.

    A loss would broadcast them to [n, n], and every record would be compared with all targets.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        yield


class LocalSgd(Table):
    """The settings of local training that `FitConfig.settings` may name, and their defaults.

    `local_steps` above 0 overrides `local_epochs`. Under `RecordPrivacy` an epoch has
    1 / sample_rate steps, a public number, and `batch_size` is refused.
    """

    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    batch_size: int = Field(default=32, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, settings: Mapping[str, Setting], privacy: RecordPrivacy | None) -> LocalSgd:
        """Reads `settings`; ConfigError for an unknown name, a wrong type or range."""
        if privacy is not None and "batch_size" in settings:
            raise ConfigError(
                "training: batch_size: under record privacy the sample rate decides; remove it"
            )
        return parse(cls, settings, "training")

    def steps(self, records: int, privacy: RecordPrivacy | None) -> int:
        """The optimizer steps of one fit; under privacy they do not depend on `records`."""
        if self.local_steps:
            return self.local_steps
        if privacy is not None:
            return self.local_epochs * math.ceil(1 / privacy.sample_rate)
        return self.local_epochs * math.ceil(records / self.batch_size)

    def optimizer(
        self, make: MakeOptimizer, schedule: MakeSchedule | None, module: nn.Module, steps: int
    ) -> tuple[torch.optim.Optimizer, Any]:
        """Makes an optimizer, and its schedule if there is one.

        SGD gets all of these settings, another optimizer those that the plan sets. ConfigError if
        it does not take them; ScriptFailed if it cannot train the model by calls of `step()`.
        """
        parameters = [each for each in module.parameters() if each.requires_grad]
        names = {"lr", "momentum", "weight_decay"}
        given = self.model_dump(include=names, exclude_unset=make is not SGD)
        try:
            inspect.signature(make).bind(parameters, **given)
        except TypeError as error:
            raise ConfigError(
                f"training: the optimizer: {error}; it gets the parameters, and lr, momentum and "
                "weight_decay where the plan's [training] sets them"
            ) from None
        made = make(parameters, **given)
        groups = getattr(made, "param_groups", ())
        trained = {id(each) for group in groups for each in group["params"]}
        if trained != {id(each) for each in parameters}:
            raise ScriptFailed("the optimizer must train the parameters that it is given, and all")
        _demand_plain_step(made)  # a schedule wraps it
        if schedule is None:
            return made, None
        rates = schedule(made, steps)
        _demand_plain_step(rates)
        return made, rates


def _demand_plain_step(made: Any) -> None:
    try:
        inspect.signature(made.step).bind()
    except TypeError as error:
        raise ScriptFailed(
            f"{type(made).__name__}.step: {error}; TorchTrainer calls step(), so it takes neither "
            "LBFGS nor ReduceLROnPlateau"
        ) from None


# --- randomness ---------------------------------------------------------------------


_GLOBAL_GENERATORS = threading.RLock()


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restores Python's, NumPy's and torch's global generators of the host on exit.

    Because they are global, threads take turns.
    """
    with _GLOBAL_GENERATORS, torch.random.fork_rng([]):
        states = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def seed_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's global generators of the host with 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    # torch.manual_seed would also seed devices that are not restored
    torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generators with 63 bits, for an app's code.

    Restores their state on exit, except on CUDA devices that the app is the first to use.
    """
    begun: Callable[[], bool] = torch.cuda.is_initialized
    used = range(torch.cuda.device_count()) if begun() else ()
    with _GLOBAL_GENERATORS, torch.random.fork_rng(used):
        torch.manual_seed(seed)
        yield


def derive(key: bytes, purpose: str, size: int = 32) -> int:
    """Derives an integer of `size` bytes from `key` for one purpose."""
    digest = hashlib.blake2b(key, digest_size=size, key=purpose.encode(), person=b"secureps-rng")
    return int.from_bytes(digest.digest(), "big")


def seed_of(key: bytes, purpose: str) -> int:
    return derive(key, purpose, 8) >> (64 - SEED_BITS)


def noise_generators(key: bytes, device: torch.device) -> tuple[torch.Generator, ...]:
    """Makes generators of `device` whose Gaussians together depend on every bit of `key`.

    On the CPU one is enough. torch uses only the low 32 bits of a seed (mt19937), and an attacker
    could try them all, so its state is filled from SHAKE-256 instead: 24 bytes of header, then 624
    words of 32 bits in 8 bytes each. On other devices a generator takes nothing but a seed.
    """
    if device.type != "cpu":
        return tuple(torch.Generator(device=device).manual_seed(seed) for seed in noise_seeds(key))
    generator = torch.Generator(device=device)
    generator.manual_seed(seed_of(key, "noise"))
    state = generator.get_state().numpy().copy()
    stream = hashlib.shake_256(b"secureps-noise" + key).digest(4 * 624)
    state[24 : 24 + 8 * 624] = np.frombuffer(stream, "<u4").astype("<u8").view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return (generator,)


def noise_seeds(key: bytes) -> tuple[int, ...]:
    """Derives four seeds of 64 bits; the noise is the sum of their Gaussians.

    The best attack by somebody who knows the noise is a meet in the middle, two seeds against the
    other two, which takes 2^128 of work and memory.
    """
    wide = derive(key, "noise")
    return tuple(wide >> shift & (1 << 64) - 1 for shift in (0, 64, 128, 192))
