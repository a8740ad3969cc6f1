"""`TorchTrainer`: local SGD, or DP-SGD, on a PyTorch model.

All randomness comes from `FitConfig.seed`, in separate streams: the order of batches (or Poisson
sampling), gradient noise, layers such as dropout. The streams also depend on the settings and the
model that a fit starts from (of a tensor in `touches`, on those rows). So a malicious server that
has two models trained under one version cannot remove the noise by a subtraction. torch's global
generators are restored after each fit; because they are global, fits in one process take turns.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from secureps.client import torch_ranks as ranks
from secureps.client import torch_sgd
from secureps.client.private_sum import Measure, is_whole, refuse_model
from secureps.client.trainer import (
    SECRET_BYTES,
    SEED_BITS,
    Array,
    EvaluateResult,
    FitConfig,
    FitResult,
    RecordPrivacy,
    Setting,
    find_mismatch,
)
from secureps.errors import ConfigError, NotFinite, PlanRefused, ScriptFailed, WrongShape
from secureps.policy.tensor_kinds import Kind
from secureps.wording import one_line

Records = tuple[Tensor | Array, Tensor | Array]
"""(x, y): inputs and targets; the first dimension of both counts records."""

EVALUATION_BATCH = 1024

_GLOBAL_GENERATORS = threading.RLock()


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
            `forward` must take randomness from torch's global generator only. Several processes can
            hold one model together if it has a method `shards()`, which returns its parts, such as
            its blocks; tensors are gathered one part at a time.
        train: (inputs, targets) to train on, arrays or tensors; the first dimension of both counts
            records, at least one.
        held_out: (inputs, targets) to evaluate on, at least one record, none of them in `train`.
        loss: (outputs, targets) -> a scalar, a mean over the records (a sum would be scaled
            wrongly). Under record-level privacy the model and the loss see one record at a time:
            the first dimension of every layer's input and output counts records, of which there is
            one, and `forward` keeps nothing from one call to the next.
        metrics: further measures for `evaluate`, by name, like `loss` but of all held-out records
            at once, on the CPU; they need a model whose output is one tensor. Default: `accuracy`
            if outputs are scores of classes, [records, classes, ...], and targets are classes.
        device: "auto" (CUDA when there is one) or a name that torch knows. Bits repeat with the
            same device, torch and number of threads; CUDA 10.2 and later need
            CUBLAS_WORKSPACE_CONFIG=:4096:8 for that, and torch stops without it.
        touches: int64 rows by name of tensor, ascending: the rows that these records touch
            (`Trainer` says who sees that). `fit` does not change the other rows of these tensors,
            whatever the weight decay.

    Raises:
        ScriptFailed: there are no records, or not as many inputs as targets; the model does not
            take the inputs' type; cross entropy's targets are no classes of the model; `touches`
            has rows that do not ascend, or that the model does not have; or the model is compiled
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
        model: Callable[[], nn.Module],
        train: Records,
        held_out: Records,
        loss: Measure = functional.cross_entropy,
        metrics: Mapping[str, Measure] | None = None,
        device: str = "auto",
        touches: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> None:
        self._model = model
        self._train = _to_tensors(train, "train")
        self._held_out = _to_tensors(held_out, "held_out")
        self._loss = loss
        self._metrics: dict[str, Measure] | None = None if metrics is None else dict(metrics)
        self._device = _find_device(device)
        self._digest: bytes | None = None
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

        Raises ConfigError for a setting, PlanRefused for a model that cannot be trained under this
        privacy, ScriptFailed, without privacy, for a target that is no class of the model.
        """
        torch_sgd.LocalSgd.of(settings, privacy)
        self._refuse_targets(privacy)
        if privacy is not None:
            with self._reproducible(b"", "load"):
                refuse_model(self._make_model().train())

    def _refuse_targets(self, privacy: RecordPrivacy | None) -> None:
        """Raises ScriptFailed for classes out of range; under privacy they add nothing instead."""
        if privacy is None and "train" in self._no_classes:
            raise ScriptFailed(self._no_classes["train"])

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
        return len(self._train[0])

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """Trains from `parameters` on the training records; a pure function, to the last bit.

        Plain SGD makes shuffled passes over the records. With `config.privacy` every step draws its
        own Poisson sample, which may be empty (then the step adds noise alone), and divides by the
        public expected batch size (`RecordPrivacy.expected_batch`), because the true size is
        private. The noise is floating-point Gaussian (for its weakness see Mironov 2012).

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
            ScriptFailed: the device has no memory left, or the model is compiled.
        """
        if config.privacy is not None and self._touches:
            raise PlanRefused(
                f"record privacy: which rows of {next(iter(self._touches))!r} a client sends "
                "tells what its records touch, and no noise covers that; train the whole table"
            )
        self._refuse_targets(config.privacy)
        local = torch_sgd.LocalSgd.of(config.settings, config.privacy)
        records = len(self._train[0])
        steps = config.part(local.steps(records, config.privacy))
        ties = self._tied_names
        once = {name: each for name, each in parameters.items() if name not in ties}
        key = fit_key(self._select_touched(once), config, local, self._data(config.privacy))
        own = ranks.Order(key, local, steps)
        with self._ranks.together(own, once, config.privacy):
            state, metrics = self._train_model(once, own, config.privacy)
        for name, each in state.items():
            if not bool(torch.isfinite(each).all()):
                raise NotFinite(
                    f"step {steps} of {steps} made tensor {name!r} NaN or infinite; lower lr (now "
                    f"{local.lr}), or scale the inputs"
                )
        result = {name: _to_array(each) for name, each in state.items() if name not in ties}
        for name, rows in self._touches.items():
            trained = result[name][rows]
            result[name][...] = parameters[name]
            result[name][rows] = trained
        whole = {name: result[ties.get(name, name)] for name in state}
        return FitResult(whole, records, metrics, steps)

    def codec_device(self) -> str:
        """The device of the model, if it is faster than the host at a codec's rotation; else ""."""
        return str(self._device) if self._device.type == "cuda" else ""

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
            sgd = torch.optim.SGD(
                [each for each in module.parameters() if each.requires_grad],
                lr=local.lr,
                momentum=local.momentum,
                weight_decay=local.weight_decay,
            )
            rng = np.random.Generator(np.random.PCG64(derive(key, "order")))
            task = torch_sgd.Task(*self._train, self._loss, self._device)
            metrics: dict[str, float] = {}
            if privacy is None:
                least = 2 if any(isinstance(each, _BatchNorm) for each in module.modules()) else 1
                size = (local.batch_size, least)
                batches = _shuffle_batches(rng, len(self._train[0]), size, order.steps)
                metrics["loss"] = ranks.descend(module, sgd, task, batches)
            else:
                noise = noise_generators(key, self._device)
                torch_sgd.descend_privately(module, sgd, privacy, task, order.steps, (rng, noise))
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
        x, y = self._held_out
        total, outputs, measures = 0.0, list[Tensor](), self._metrics
        with self._reproducible(b"", "evaluate"), torch.no_grad():
            module = self._load(parameters).eval()
            for start in range(0, len(x), EVALUATION_BATCH):
                part = slice(start, start + EVALUATION_BATCH)
                targets = y[part].to(self._device)
                output = module(x[part].to(self._device))
                total += float(self._loss(output, targets)) * len(targets)
                if measures is None:
                    measures = {"accuracy": accuracy} if _classifies(output, targets) else {}
                if measures and not isinstance(output, Tensor):
                    kind = type(output).__name__
                    raise ScriptFailed(f"metrics take one tensor, and the model gives a {kind}")
                if measures:
                    outputs.append(output.cpu())
        loss = total / len(x)
        if not math.isfinite(loss):
            found = torch_sgd.bad_records("held_out", x, y, np.arange(len(x)))
            text = "the held-out records are finite, so the model that was pulled is not usable"
            raise NotFinite(f"evaluation loss is {loss}: {found or text}")
        given = (measures or {}).items()
        metrics = {name: float(measure(torch.cat(outputs), y)) for name, measure in given}
        return EvaluateResult(loss, len(x), metrics)

    def _data(self, privacy: RecordPrivacy | None) -> bytes:
        """A digest of the records, to derive noise from; empty without privacy.

        Else a client that lost its state, removed a record and repeated a version would add the
        same noise again, and the difference of the two updates would show the record.
        """
        if privacy is None:
            return b""
        if self._digest is None:
            made = hashlib.blake2b(digest_size=32, person=b"secureps-data")
            for each in self._train:
                made.update(repr((each.dtype, tuple(each.shape))).encode())
                made.update(each.contiguous().cpu().view(torch.uint8).numpy().data)
            self._digest = made.digest()
        return self._digest

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
        with _GLOBAL_GENERATORS, torch_sgd.shapes_agree(), forked:
            # torch.manual_seed would also seed devices that are not restored
            torch.default_generator.manual_seed(seed_of(key, purpose))
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


def _to_tensors(records: Records, name: str) -> tuple[Tensor, Tensor]:
    pair = tuple(records)
    if len(pair) != 2:
        raise ScriptFailed(
            f"{name} is a {type(records).__name__} of {len(pair)}, and must be a pair of arrays or "
            "tensors: inputs and targets"
        )
    x, y = (
        _to_tensor(f"{name}: {what}", pair[at]) for at, what in enumerate(("inputs", "targets"))
    )
    if len(x) == 0 or len(x) != len(y):
        raise ScriptFailed(
            f"{name}: {len(x)} inputs and {len(y)} targets; need as many, at least 1"
        )
    return x, y


def _to_tensor(what: str, given: Tensor | Array) -> Tensor:
    if isinstance(given, Tensor):
        return given
    try:
        return torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        kind = getattr(given, "dtype", type(given).__name__)
        raise ScriptFailed(f"{what} are {kind}, and must be numbers: {one_line(error)}") from None


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
    privacy = config.privacy and [value and float(value) for value in astuple(config.privacy)]
    tensors = {name: np.ascontiguousarray(parameters[name]) for name in sorted(parameters)}
    schema = [(name, str(array.dtype), array.shape) for name, array in tensors.items()]
    header = repr((config.seed, versions, local, privacy, schema, records)).encode()
    digest.update(config.secret.ljust(SECRET_BYTES, b"\0"))
    digest.update(len(header).to_bytes(8, "big") + header)
    for array in tensors.values():
        digest.update(array.tobytes())
    return digest.digest()


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
