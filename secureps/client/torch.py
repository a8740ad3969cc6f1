"""`TorchTrainer`: local training, or DP-SGD, on a PyTorch model.

All randomness comes from `FitConfig.seed`, in separate streams: the order of batches (or Poisson
sampling), gradient noise, layers such as dropout, augmentation. The streams also depend on the
settings and the model that a fit starts from (of a tensor in `touches`, on those rows). So a
malicious server that has two models trained under one version cannot remove the noise by a
subtraction. Python's, NumPy's and torch's global generators are restored after each fit; because
they are global, fits in one process take turns.

An optimizer and its state are made anew for each fit: a client that was killed starts again from
the version that it pulled, which does not have that state, and must send the same bits.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from secureps.client import torch_ranks as ranks
from secureps.client import torch_sgd
from secureps.client.private_sum import Measure, is_whole, refuse_model
from secureps.client.torch_records import Records, read_records
from secureps.client.torch_sgd import (
    derive,
    kept_generators,
    noise_generators,
    seed_generators,
    seed_of,
)
from secureps.client.trainer import (
    SECRET_BYTES,
    Array,
    EvaluateResult,
    FitConfig,
    FitResult,
    RecordPrivacy,
    Setting,
    count_persons,
    find_mismatch,
)
from secureps.errors import ConfigError, NotFinite, PlanRefused, ScriptFailed, WrongShape
from secureps.policy.tensor_kinds import Kind
from secureps.wording import one_line

EVALUATION_BATCH = 1024

log = logging.getLogger("secureps")


def name_device(device: torch.device) -> str:
    """Names a device with its model: "cuda:0 (NVIDIA H200)"; empty for the processor."""
    if device.type == "cuda":
        here = torch.cuda.current_device() if device.index is None else device.index
        return f"cuda:{here} ({torch.cuda.get_device_name(here)})"
    return "" if device.type == "cpu" else str(device)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of records whose largest output [n, classes] is their class [n]."""
    return (outputs.argmax(dim=1) == targets).double().mean()


class TorchTrainer:
    """A `Trainer` of a PyTorch model on tensors held in memory.

    A tensor that the model has under several names (tied weights) is sent once, and `fit` and
    `evaluate` have it under all of them. Entries of `state_dict` that are no tensors stay as the
    constructor makes them, and are not sent. `fit` does not change buffers of integers and booleans
    (the counter of a BatchNorm, tables of indices), so they add nothing to an update or its norm.

    If the model has a BatchNorm, a last batch of a single record gets a second record again. A
    BatchNorm's running statistics are averaged like all tensors; a variance below 0 counts as 0.
    Under client-level privacy, whose noise would ruin them, the plan must keep them `local`.
    Record-level privacy refuses BatchNorm, which mixes records.

    Args:
        model: makes a new model with random weights. It is called for every use; it and the model's
            `forward` must take randomness from the global generators of torch, NumPy and Python
            only. Or a model, which is copied for every use: `parameters` gives its own weights,
            whatever the seed. Several processes can hold one model together if it has a method
            `shards()`, which returns its parts, such as its blocks; tensors are gathered one part
            at a time.
        train: (inputs, targets) to train on, arrays or tensors; the first dimension of both counts
            records, at least one. Or a map-style Dataset of such pairs, or of dicts whose targets
            are `labels` or `label`: if there are several inputs, `forward` gets them by name. Or a
            DataLoader of a Dataset: its workers and its `collate_fn` are used, and not its batch
            size, `shuffle` and `drop_last`. What a Dataset draws at random must come from those
            global generators. A pair is faster.
        held_out: likewise, to evaluate on, none of the records in `train`; as many at a time as a
            DataLoader's batch has.
        loss: (outputs, targets) -> a scalar, a mean over the records (a sum would be scaled
            wrongly): a function, or a module without parameters. `outputs` is what the model
            returns, which may be a dict. Under record-level privacy the model and the loss see one
            record at a time: the first dimension of every layer's input and output counts records,
            of which there is one, and `forward` keeps nothing from one call to the next.
        metrics: further measures for `evaluate`, by name, like `loss` but of all held-out records
            at once, on the CPU; they need a model whose output is one tensor. Default: `accuracy`
            if outputs are scores of classes, [records, classes, ...], and targets are classes.
        device: "auto" (CUDA when there is one) or a name that torch knows. Bits repeat with the
            same device, torch and number of threads; CUDA 10.2 and later need
            CUBLAS_WORKSPACE_CONFIG=:4096:8 for that, and torch stops without it.
        touches: int64 rows by name of tensor, ascending: the rows that these records touch
            (`Trainer` says who sees that). `fit` does not change the other rows of these tensors,
            whatever the weight decay.
        optimizer: (parameters, lr=..., momentum=..., weight_decay=...) -> a torch.optim optimizer,
            such as `torch.optim.AdamW` or a lambda of (parameters, lr). It gets those of the three
            that the plan sets, and must take each of them. Record-level privacy takes SGD alone.
        schedule: (optimizer, steps of the fit) -> a schedule of its learning rate, which takes a
            step after each of the optimizer. Not under record-level privacy.
        persons: the person of each record of `train`, integers or texts, for plans with `unit =
            "person"`; the same id in two records means one person, and no two persons share one.

    Raises:
        ScriptFailed: there are no records, or not as many inputs as targets; a Dataset fails for
            its first record, gives another one each time, or has no numbered records
            (`IterableDataset`); a DataLoader draws only some records; cross entropy's targets are
            no classes of the model; `touches` has rows that do not ascend, or that the model does
            not have; `persons` names nobody for a record; or the model is compiled
            (`torch.compile`), which every method refuses.
        ConfigError: there is no such device.

    Examples:
        >>> from torch import nn
        >>> x, y = np.zeros((8, 4), np.float32), np.zeros(8, np.int64)
        >>> trainer = ps.TorchTrainer(lambda: nn.Linear(4, 2), (x, y), (x, y), device="cpu")
        >>> sorted(trainer.parameters(seed=1))
        ['bias', 'weight']
    """

    def __init__(
        self,
        model: Callable[[], nn.Module] | nn.Module,
        train: Records,
        held_out: Records,
        loss: Measure = functional.cross_entropy,
        metrics: Mapping[str, Measure] | None = None,
        device: str = "auto",
        touches: Mapping[str, NDArray[np.int64]] | None = None,
        optimizer: torch_sgd.MakeOptimizer = torch.optim.SGD,
        schedule: torch_sgd.MakeSchedule | None = None,
        persons: ArrayLike | None = None,
    ) -> None:
        if isinstance(model, nn.Module):
            model = partial(copy.deepcopy, copy.deepcopy(model))  # its owner may train it
        self._model = model
        self._device = _find_device(device)
        self._loss = _place_loss(loss, self._device)
        self._train = read_records(train, "train", self._loss, self._device)
        if persons is not None:
            own = torch_sgd.number_persons(persons, len(self._train))
            self._train = replace(self._train, persons=own)
        self._held_out = read_records(held_out, "held_out", self._loss, self._device)
        self._metrics: dict[str, Measure] | None = None if metrics is None else dict(metrics)
        self._optimizer, self._schedule = optimizer, schedule
        self._has_told = False
        self._ranks = ranks.Ranks()
        self._touches = {
            name: _demand_ascending(name, rows) for name, rows in (touches or {}).items()
        }
        with self._reproducible(b"", "load"):
            # torch loads more of itself, for a second: now, not in the first round
            module = self._make_model()
            if reason := _find_lacking(tensors_of(module), self._touches):
                raise ScriptFailed(f"touches: the model's {reason}")
            held = {"train": self._train, "held_out": self._held_out}
            self._no_classes = torch_sgd.refuse_records(module, loss, held)
        if "held_out" in self._no_classes:  # no privacy covers these records
            raise ScriptFailed(self._no_classes["held_out"])
        self._tied_names = _ties(module)
        self._has_shards = ranks.shards_of(module) is not None

    def _make_model(self) -> nn.Module:
        module = self._model()
        torch_sgd.refuse_compiled(module)
        return module

    def parameters(self, seed: int) -> dict[str, Array]:
        """The state dict of a fresh model, buffers included; a pure function of `seed` (63 bits).

        Each tensor is a NumPy array of its shape and dtype; bfloat16 becomes float32. ScriptFailed
        if the model is compiled.
        """
        with self._reproducible(seed.to_bytes(8, "big"), "parameters"):
            module = self._make_model()
        state, ties = tensors_of(module), _ties(module)
        made = {name: _to_array(each) for name, each in state.items() if name not in ties}
        return {name: made[ties.get(name, name)] for name in state}

    def refuse_settings(
        self, settings: Mapping[str, Setting], privacy: RecordPrivacy | None
    ) -> None:
        """Refuses settings that `fit` does not take, so that they are found before a run begins.

        Raises ConfigError for a setting, PlanRefused for a trainer that cannot train under this
        privacy, ScriptFailed for an unfit optimizer or schedule and, without privacy, for a target
        that is no class of the model.
        """
        local = torch_sgd.LocalSgd.of(settings, privacy)
        self._refuse(privacy)
        with self._reproducible(b"", "load"):
            module = self._make_model().train()
            if privacy is not None:
                refuse_model(module)
            steps = local.steps(len(self._train), privacy)
            local.optimizer(self._optimizer, self._schedule, module, steps)

    def _refuse(self, privacy: RecordPrivacy | None) -> None:
        if privacy is None:
            if "train" in self._no_classes:  # under privacy they add nothing instead
                raise ScriptFailed(self._no_classes["train"])
            return
        if self._touches:
            raise PlanRefused(
                f"record privacy: which rows of {next(iter(self._touches))!r} a client sends "
                "tells what its records touch, and no noise covers that; train the whole table"
            )
        if self._optimizer is not torch.optim.SGD or self._schedule is not None:
            raise PlanRefused(
                "record privacy: steps are those of SGD at the plan's lr, from which `secureps "
                "check` says how much noise an update has; leave out optimizer and schedule"
            )
        if isinstance(self._train.x, Mapping):
            raise PlanRefused(
                f"record privacy: the model takes one tensor, and train has {len(self._train.x)} "
                f"inputs ({', '.join(self._train.x)}); let a collate_fn join them"
            )

    def kinds(self) -> dict[str, Kind]:
        """The kind of each tensor; running means and variances are "statistics"."""
        with self._reproducible(b"", "load"):
            return find_kinds(self._make_model())

    def tied(self) -> dict[str, str]:
        """The further names of the model's tied tensors, each with the name that it stands for."""
        return dict(self._tied_names)

    def touches(self) -> dict[str, NDArray[np.int64]]:
        """The rows that the constructor was given: int64 by name of tensor, ascending; copies."""
        return {name: rows.copy() for name, rows in self._touches.items()}

    def examples(self) -> int:
        """The number of training records."""
        return len(self._train)

    def persons(self) -> int:
        """The number of persons whose records these are; 0 if it was not given `persons`."""
        return 0 if self._train.persons is None else int(self._train.persons.max()) + 1

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """Trains from `parameters` on the training records; a pure function, to the last bit.

        Without privacy it makes shuffled passes over the records. With `config.privacy` every step
        draws its own Poisson sample, which may be empty (then the step adds noise alone), and
        divides by the public expected batch size (`RecordPrivacy.expected_batch`), because the true
        size is private. Under the unit "person" it draws persons, each with all records. The noise
        is floating-point Gaussian (for its weakness see Mironov 2012).

        Args:
            parameters: every tensor by name, as `parameters` gives them.
            config: its `settings` may have `lr`, `momentum`, `weight_decay`, `batch_size`,
                `local_epochs` and `local_steps` (`client.torch_sgd.LocalSgd`).
        Returns:
            the trained model. Its metrics have `loss`, the mean over the steps; under privacy none.
        Raises:
            ConfigError: an unknown setting, or a value of the wrong type or out of range.
            PlanRefused: the model cannot be trained under this privacy; or there are `touches`
                under privacy, because the choice of rows tells about records; or several processes
                train together under privacy.
            WrongShape: `parameters` are not this model's.
            NotFinite: the loss or a tensor became NaN or infinite.
            ScriptFailed: the device has no memory left, the model is compiled, or the plan protects
                persons and nobody said whose the records are.
        """
        if config.privacy is not None and config.privacy.unit == "person":
            count_persons(self)  # refuses a trainer that was not told of persons
        self._refuse(config.privacy)
        local = torch_sgd.LocalSgd.of(config.settings, config.privacy)
        records = len(self._train)
        steps = config.part(local.steps(records, config.privacy))
        ties = self._tied_names
        once = {name: each for name, each in parameters.items() if name not in ties}
        digest = b"" if config.privacy is None else self._train.digest
        key = fit_key(self._select_touched(once), config, local, digest)
        own = ranks.Order(key, local, steps)
        with self._ranks.together(own, once, config.privacy):
            state, metrics = self._train_model(once, own, config.privacy)
        for name, each in state.items():
            if not bool(torch.isfinite(each).all()):
                raise NotFinite(
                    f"step {steps} of {steps} made tensor {name!r} NaN or infinite; lower lr, or "
                    "scale the inputs"
                )
        result = {name: _to_array(each) for name, each in state.items() if name not in ties}
        for name, rows in self._touches.items():
            trained = result[name][rows]
            result[name][...] = parameters[name]
            result[name][rows] = trained
        whole = {name: result[ties.get(name, name)] for name in state}
        return FitResult(whole, records, metrics, steps)

    def follow(self) -> str | None:
        """Trains what the client's process orders, until it is dismissed; returns why it ended.

        Returns None at once if this process is the client's.
        """
        if not ranks.is_group() or ranks.is_client():
            return None
        with ranks.failing_together():
            while (heard := ranks.receive_order()) is not None:
                with suppress(NotFinite):  # all processes meet it; the client's reports it
                    if heard[1] == ranks.EVALUATION:
                        self._evaluate(heard[0])
                    else:
                        self._train_model(*heard, None)
        return ranks.DISMISSED

    def dismiss(self) -> None:
        """Ends the processes that follow this one, if there are any."""
        self._ranks.dismiss()

    def _tell_device(self) -> None:
        """Logs, once, where this process trains, if that is not the processor."""
        if not self._has_told and (where := name_device(self._device)):
            log.info("trains on %s", where)
        self._has_told = True

    def _train_model(
        self,
        parameters: Mapping[str, Array],
        order: ranks.Order,
        privacy: RecordPrivacy | None,
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Returns trained tensors, with unchanged integers, and the metrics of the training."""
        key, local = order.key, order.local
        self._tell_device()
        with self._reproducible(key, "layers", "the sample rate" if privacy else "batch_size"):
            module = self._load(parameters).train()
            kept = {n: each.clone() for n, each in tensors_of(module).items() if is_whole(each)}
            made = local.optimizer(self._optimizer, self._schedule, module, order.steps)
            optimizer, rates = made
            rng = np.random.Generator(np.random.PCG64(derive(key, "order")))
            task = self._train.seeded(key)
            if privacy is None or privacy.unit == "record":
                task = replace(task, persons=None)
            metrics: dict[str, float] = {}
            if privacy is None:
                least = 2 if any(isinstance(each, _BatchNorm) for each in module.modules()) else 1
                size = (local.batch_size, least)
                batches = _shuffle_batches(rng, len(task), size, order.steps)
                metrics["loss"] = ranks.descend(module, optimizer, task, batches, rates)
            else:
                drawn = rng, noise_generators(key, self._device)
                torch_sgd.descend_privately(module, optimizer, privacy, task, order.steps, drawn)
            with torch.no_grad():
                state = {name: each.detach() for name, each in tensors_of(module).items()}
                for name, each in kept.items():
                    state[name].copy_(each)
            return ranks.state_of(module, state), metrics

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """Evaluates a model on the held-out records; changes nothing.

        Raises:
            WrongShape: `parameters` are not this model's.
            NotFinite: the loss or a tensor is NaN or infinite.
            ScriptFailed: metrics need one tensor, and the model's output is another; or another
                process of this client has failed.
        """
        self._ranks.demand_whole()
        if not (ranks.is_group() and self._has_shards):
            return self._evaluate(parameters)
        with self._ranks.together(ranks.EVALUATION, parameters, None):
            return self._evaluate(parameters)

    def _evaluate(self, parameters: Mapping[str, Array]) -> EvaluateResult:
        total, outputs, targets = 0.0, list[Tensor](), list[Tensor]()
        measures, count = self._metrics, len(self._held_out)
        most = min(self._held_out.most or EVALUATION_BATCH, EVALUATION_BATCH)
        parts = np.split(np.arange(count), range(most, count, most))
        with self._reproducible(b"", "evaluate"), torch.no_grad():
            module = self._load(parameters).eval()
            for task, index in self._held_out.draw(parts):
                x, y = task.batch(index)
                output = torch_sgd.call_model(module, x)
                loss = float(self._loss(output, y))
                if not math.isfinite(loss):
                    found = torch_sgd.bad_records("held_out", task, index)
                    text = "its records are finite, so the model that was pulled is not usable"
                    raise NotFinite(f"evaluation loss is {loss}: {found or text}")
                total += loss * len(y)
                if measures is None:
                    measures = {"accuracy": accuracy} if _classifies(output, y) else {}
                if measures and not isinstance(output, Tensor):
                    kind = type(output).__name__
                    raise ScriptFailed(f"metrics take one tensor, and the model gives a {kind}")
                if measures:
                    outputs.append(output.cpu())
                    targets.append(y.cpu())
        given = (measures or {}).items()
        metrics = {
            name: float(measure(torch.cat(outputs), torch.cat(targets))) for name, measure in given
        }
        return EvaluateResult(total / count, count, metrics)

    def _select_touched(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Reduces a model to what training depends on: of tensors in `touches` only these rows."""
        reason = _find_lacking(parameters, self._touches)
        if reason is not None:
            raise WrongShape(f"not a state of this trainer's model: {reason}")
        rows = {name: np.asarray(parameters[name])[own] for name, own in self._touches.items()}
        return {**parameters, **rows}

    def _load(self, parameters: Mapping[str, Array]) -> nn.Module:
        module = self._make_model()
        ties, state = _ties(module), tensors_of(module)
        own = {name: each for name, each in state.items() if name not in ties}
        load_tensors(own, {name: each for name, each in parameters.items() if name not in ties})
        return ranks.place(module, self._device)

    @contextmanager
    def _reproducible(self, key: bytes, purpose: str, size: str = "batch_size") -> Iterator[None]:
        """Seeds global generators and makes kernels deterministic; restores both on exit."""
        cuda = self._device.type == "cuda"
        forked = torch.random.fork_rng([self._device] if cuda else [])
        with kept_generators(), torch_sgd.shapes_agree(), forked:
            seed_generators(seed_of(key, purpose))
            if cuda:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(seed_of(key, purpose))
            before = torch.get_deterministic_debug_mode()
            # use_deterministic_algorithms would also import torch.compile's backend: 1.4 s of CPU
            torch.set_deterministic_debug_mode("error")
            try:
                yield
            except torch.OutOfMemoryError as error:
                said = one_line(error, lines=1).partition(" GPU ")[0]  # the rest says who holds it
                raise ScriptFailed(
                    f"{self._device} has no memory left ({said}): lower "
                    f"{size}, let fewer clients share it, or take device=cpu"
                ) from error
            finally:
                torch.set_deterministic_debug_mode(before)


def _shuffle_batches(
    rng: np.random.Generator, records: int, size: tuple[int, int], steps: int
) -> Iterator[NDArray[np.int64]]:
    """Yields `steps` batches of shuffled passes; `size` has the most and the least records."""
    order = rng.permutation(records)
    start, (most, least) = 0, size
    for _ in range(steps):
        if start >= records:
            order, start = rng.permutation(records), 0
        short = max(0, min(least, most) - (records - start))
        yield order[max(0, start - short) : start + most]
        start += most


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state, not copied; leaves out entries that are no tensors."""
    state = module.state_dict(keep_vars=True)
    return {name: each for name, each in state.items() if isinstance(each, Tensor)}


def find_kinds(module: nn.Module) -> dict[str, Kind]:
    statistics = {
        f"{name}.{own}" if name else own
        for name, layer in module.named_modules()
        for own in ("running_mean", "running_var")
        if isinstance(getattr(layer, own, None), Tensor)
    }
    found: dict[str, Kind] = {}
    for name, each in tensors_of(module).items():
        fixed: Kind = "trained" if each.requires_grad else "constant"
        found[name] = "statistics" if name in statistics else fixed
    return found


def load_tensors(own: Mapping[str, Tensor], parameters: Mapping[str, Array]) -> None:
    """Copies a pulled model into a model's tensors; WrongShape or NotFinite if it cannot be."""
    shapes = {name: tuple(each.shape) for name, each in own.items()}
    if (reason := find_mismatch(parameters, shapes)) is not None:
        raise WrongShape(f"not a state of this trainer's model: {reason}")
    with torch.no_grad():
        for name, each in own.items():
            array = np.asarray(parameters[name])
            if not np.isfinite(array).all():
                raise NotFinite(f"tensor {name!r} of the model that was pulled is not finite")
            if is_whole(each) and array.dtype.kind == "f":
                array = np.rint(array)
            each.copy_(torch.from_numpy(np.array(array)))
            if name.rpartition(".")[2] == "running_var":
                # rounding, or a server's momentum, may make a small mean variance negative
                each.clamp_(min=0)


def _ties(module: nn.Module) -> dict[str, str]:
    first = dict[int, str]()
    state = tensors_of(module)
    names = {name: first.setdefault(id(each), name) for name, each in state.items()}
    return {name: own for name, own in names.items() if name != own}


def _classifies(outputs: Any, targets: Tensor) -> bool:
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not is_whole(targets):
        return False
    return targets.shape == outputs.shape[:1] + outputs.shape[2:]


def _to_array(tensor: Tensor) -> Array:
    """Copies a tensor to the host; bfloat16, which NumPy lacks, becomes float32."""
    dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    order = torch.contiguous_format
    return tensor.detach().to("cpu", dtype, copy=True, memory_format=order).numpy()


def _place_loss(loss: Measure, device: torch.device) -> Measure:
    if not isinstance(loss, nn.Module):
        return loss
    if any(each.requires_grad for each in loss.parameters()):
        raise ScriptFailed("the loss has parameters, which nobody trains: let the model have them")
    return copy.deepcopy(loss).to(device)


def _demand_ascending(name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    own = np.array(rows, np.int64)
    if own.ndim != 1 or (own < 0).any() or (np.diff(own) <= 0).any():
        raise ScriptFailed(f"touches: the rows of {name!r} must ascend from 0 or more, none twice")
    return own


def _find_lacking(
    tensors: Mapping[str, Array | Tensor], touches: Mapping[str, NDArray[np.int64]]
) -> str | None:
    for name, rows in touches.items():
        height = tuple(tensors[name].shape)[:1] if name in tensors else ()
        if not height or (rows >= height[0]).any():
            return f"tensor {name!r} is missing, or has no row {rows.max(initial=0)}"
    return None


def _find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"no usable device {name!r}: {one_line(error, lines=1)}") from None


def fit_key(
    parameters: Mapping[str, Array], config: FitConfig, local: torch_sgd.LocalSgd, records: bytes
) -> bytes:
    """Makes a fit's key: BLAKE2b-256 of seed, secret, records and what the server chose."""
    digest = hashlib.blake2b(digest_size=32, person=b"secureps-fit")
    versions = sorted((name, int(version)) for name, version in config.versions.items())
    privacy = config.privacy and [value and float(value) for value in astuple(config.privacy)[:5]]
    tensors = {name: np.ascontiguousarray(parameters[name]) for name in sorted(parameters)}
    schema = [(name, str(array.dtype), array.shape) for name, array in tensors.items()]
    unit = config.privacy.unit if config.privacy else "record"
    asked = (config.seed, versions, local, privacy, schema, records)
    header = repr(asked if unit == "record" else (*asked, unit)).encode()
    digest.update(config.secret.ljust(SECRET_BYTES, b"\0"))
    digest.update(len(header).to_bytes(8, "big") + header)
    for array in tensors.values():
        digest.update(array.tobytes())
    return digest.digest()
