"""Records of a torch `Dataset` or `DataLoader`, fetched to the same bits by however many processes.

Which records a step takes is the trainer's choice; this module only fetches them. Before a record
is fetched, all generators that its augmentation may draw from are seeded from the fit's key, the
step and the record's number. So what is fetched depends neither on the number of workers, nor on
their timing, nor on other records of the step.

Under record-level privacy a record adds what follows from the record alone. The `collate_fn` gets
one record at a time, so that it cannot mix records. Augmentation keeps the guarantee: with draws
that are independent of all other records, a step is DP-SGD on records that are drawn anew, and the
sum changes by at most the clip if one of them is left out, whatever was drawn. A record that cannot
be fetched adds nothing, because an error would tell everybody about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from secureps.client.private_sum import Measure
from secureps.client.torch_random import (
    kept_generators,
    noise_generators,
    seed_generators,
    seed_of,
)
from secureps.client.torch_sgd import Task, log, map_inputs
from secureps.client.trainer import Array
from secureps.errors import ScriptFailed
from secureps.tracebacks import describe_error, find_place
from secureps.wording import one_line

Records = tuple[Tensor | Array, Tensor | Array] | Dataset[Any] | DataLoader[Any]
"""Inputs and targets in memory, whose first dimension counts records; or what fetches them."""

PAIRS = (tuple, list, np.ndarray, Tensor, Mapping, str, bytes)
"""Types of train and held_out that have items, and are no Dataset."""

TARGETS = ("labels", "label")
"""The names of targets in a dict, as datasets of Hugging Face and MONAI have them."""

REPEATS = 3
"""How many times the first record is fetched twice, to see that its draws repeat."""

DIGESTED = 256
"""Records that are in memory at a time while all are digested."""

OPTIONS = (
    "num_workers",
    "multiprocessing_context",
    "worker_init_fn",
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "pin_memory",
)
"""What is taken from a DataLoader, beside its Dataset and its `collate_fn`."""


class Failed(str):
    """Why a record or a batch could not be fetched; a worker returns it in its place."""

    __slots__ = ()


def read_records(given: Records, name: str, loss: Measure, device: torch.device) -> Task:
    """Takes the records of one argument of a trainer; ScriptFailed if they cannot be trained on."""
    loader = given if isinstance(given, DataLoader) else None
    items: Any = given if loader is None else loader.dataset
    if loader is not None:
        _refuse_sampling(loader, name)
    collate: Any = default_collate if loader is None else loader.collate_fn
    if type(items) is TensorDataset and len(items.tensors) == 2 and collate is default_collate:
        given, items = items.tensors, None
    if isinstance(items, IterableDataset):
        raise ScriptFailed(
            f"{name} is an IterableDataset, whose records have no numbers: they can neither be "
            "sampled as the plan says, nor be fetched again after a restart; give a Dataset with "
            "__getitem__ and __len__"
        )
    if items is None or isinstance(items, PAIRS) or not hasattr(items, "__getitem__"):
        return Task(*_to_tensors(given, name), loss, device)
    return Fetched.of(items, collate, loader, (name, loss, device))


def _refuse_sampling(loader: DataLoader[Any], name: str) -> None:
    """Refuses a loader whose choice of records would be lost, because the trainer draws its own."""
    if isinstance(loader.dataset, IterableDataset):
        return
    if loader.batch_sampler is None:
        raise ScriptFailed(
            f"{name}: with batch_size=None an item of the Dataset is a batch, and a trainer draws "
            "records: let an item be one record"
        )
    sampler = loader.sampler
    every = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    if not every or type(loader.batch_sampler) is not BatchSampler:
        own = sampler if every is False else loader.batch_sampler
        raise ScriptFailed(
            f"{name}: the trainer draws records itself, so it cannot keep to the DataLoader's "
            f"{type(own).__name__}: leave that out; to train on some of the records, give "
            "torch.utils.data.Subset(dataset, indices)"
        )


@dataclass(frozen=True, eq=False)
class Fetched(Task):
    """Records that a Dataset makes, one by one. `x` and `y` have their types and shapes, no rows.

    Args:
        count: how many records the Dataset said it has, when the trainer was made.
        key: what the draws of augmentation derive from.
    """

    count: int = field(kw_only=True)
    items: _Seeded = field(kw_only=True)
    collate: _Collate = field(kw_only=True)
    options: Mapping[str, Any] = field(kw_only=True)
    loaders: dict[bool, DataLoader[Any]] = field(kw_only=True)
    key: bytes = field(default=b"", kw_only=True)

    @classmethod
    def of(
        cls,
        given: Any,
        collate: Callable[[list[Any]], Any],
        loader: DataLoader[Any] | None,
        of: tuple[str, Measure, torch.device],
    ) -> Fetched:
        name, loss, device = of
        kind = type(given).__name__
        try:
            count = len(given)
        except Exception as error:
            raise ScriptFailed(
                f"{name}: len() of the {kind} raised {describe_error(error)}; a Dataset needs "
                "__len__ and __getitem__"
            ) from error
        if not count:
            raise ScriptFailed(f"{name}: the {kind} is empty; need at least 1 record")
        items = _Seeded(given, name)
        with kept_generators():
            seen = [
                _demand(_Collate(collate, name)([items[seed, 0]]))
                for seed in range(REPEATS)
                for _ in range(2)
            ]
        told = [Task(x, y, loss, device).digest() for _, x, y, _ in seen]
        if told[::2] != told[1::2]:
            raise ScriptFailed(
                f"{name}: record 0 is another one each time that it is fetched, although Python's, "
                "NumPy's and torch's global generators are seeded: let its augmentation draw from "
                "these, because a client that starts again must repeat its training bit for bit"
            )
        _, x, y, _ = seen[0]
        like = map_inputs(x, lambda each: each[:0]), y[:0]
        options = {} if loader is None else {each: getattr(loader, each) for each in OPTIONS}
        return cls(
            *like,
            loss,
            device,
            most=None if loader is None else loader.batch_size,
            count=count,
            items=items,
            collate=_Collate(collate, name, like),
            options=options,
            loaders={},
        )

    def __len__(self) -> int:
        return self.count

    def seeded(self, key: bytes) -> Task:
        return replace(self, key=key)

    def draw(
        self, indices: Iterable[NDArray[np.int64]], apart: bool = False
    ) -> Iterator[tuple[Task, NDArray[np.int64]]]:
        if apart not in self.loaders:
            self.loaders[apart] = DataLoader(
                self.items,  # type: ignore[arg-type]
                batch_sampler=_Order(),
                collate_fn=replace(self.collate, apart=apart),
                generator=torch.Generator(),
                **self.options,
            )
        loader = self.loaders[apart]
        order: Any = loader.batch_sampler
        order.batches = self._seed(indices)
        loader.generator.manual_seed(seed_of(self.key, "workers"))
        with kept_generators():
            batches = iter(loader)
        told = False
        while True:
            with kept_generators():
                fetched = next(batches, None)
            if fetched is None:
                return
            numbers, x, y, failed = _demand(fetched)
            if failed and not told:
                log.warning(
                    "record privacy: %s; it counts as nothing, and this stays here", failed[0]
                )
            told = told or bool(failed)
            sample = Task(x, y, self.loss, self.device, numbers=numbers, failed=len(failed))
            if apart:
                # The same records under other draws, or a changed one that is drawn here only,
                # must not be trained on with the same noise again.
                own = hashlib.blake2b(sample.digest(), key=self.key, digest_size=32).digest()
                sample = replace(sample, noise=noise_generators(own, self.device))
            yield sample, np.arange(len(y))

    def _seed(self, indices: Iterable[NDArray[np.int64]]) -> Iterator[list[tuple[int, int]]]:
        for step, index in enumerate(indices):
            yield [(seed_of(self.key, f"record {step} {own}"), own) for own in index.tolist()]

    def digest(self) -> bytes:
        """Digests all records, under the draws of an empty key."""
        made = hashlib.blake2b(repr(self.count).encode(), digest_size=32, person=b"secureps-data")
        parts = np.split(np.arange(self.count), range(DIGESTED, self.count, DIGESTED))
        for sample, _ in replace(self, key=b"").draw(parts, apart=True):
            made.update(sample.digest())
        return made.digest()


class _Order:
    """What a DataLoader fetches: batches of the seeds and numbers of records."""

    batches: Iterator[list[tuple[int, int]]] = iter(())

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.batches


@dataclass(frozen=True, eq=False)
class _Seeded:
    """A Dataset whose records follow from their seeds."""

    given: Any
    name: str

    def __getitem__(self, at: tuple[int, int]) -> tuple[int, int, Any]:
        seed, number = at
        try:
            seed_generators(seed)
            for own, each in enumerate(self._randomizable):
                each.set_random_state(seed=(seed + own) & 0xFFFFFFFF)
            return seed, number, self.given[number]
        except Exception as error:
            said = f"{self.name}[{number}] raised {describe_error(error)} ({find_place(error)})"
            return seed, number, Failed(said)

    @cached_property
    def _randomizable(self) -> list[Any]:
        """Objects of the Dataset that draw from a generator of their own, as MONAI's do."""
        found, waiting, known = list[Any](), [self.given], set[int]()
        while waiting:
            each = waiting.pop()
            if id(each) in known:
                continue
            known.add(id(each))
            if hasattr(each, "set_random_state"):
                found.append(each)
            elif isinstance(each, list | tuple):
                waiting.extend(each)
            else:
                waiting.extend(getattr(each, "__dict__", {}).values())
        return found


Batch = tuple[NDArray[np.int64], Any, Tensor, Sequence[str]]
"""Numbers of records, their inputs and targets, and why others could not be fetched."""


@dataclass(frozen=True, eq=False)
class _Collate:
    """Makes a batch of items; `apart`: each by itself, then those that are shaped like `like`."""

    own: Callable[[list[Any]], Any]
    name: str
    like: tuple[Any, Tensor] | None = None
    apart: bool = False

    def __call__(self, items: Sequence[tuple[int, int, Any]]) -> Batch | Failed:
        if not self.apart or self.like is None:
            return self._join(items)
        numbers, parts, failed = list[int](), [self.like], list[str]()
        for each in items:
            alone = self._join([each])
            if isinstance(alone, Failed):
                failed.append(alone)
                continue
            if (unlike := _find_unlike(alone[1:3], self.like)) is not None:
                failed.append(f"{self.name}[{each[1]}] is {unlike}")
                continue
            numbers.append(each[1])
            parts.append(alone[1:3])
        x, y = (torch.cat(each) for each in zip(*parts, strict=True))
        return np.array(numbers, np.int64), x, y, failed

    def _join(self, items: Sequence[tuple[int, int, Any]]) -> Batch | Failed:
        numbers = np.array([number for _, number, _ in items], np.int64)
        values = [value for _, _, value in items]
        if failed := [each for each in values if isinstance(each, Failed)]:
            return failed[0]
        seed_generators(items[0][0] + 1)  # a collate_fn may mask, or mix, at random
        try:
            made = self.own(values)
        except Exception as error:
            own = "record" if len(items) == 1 else f"{len(items)} records from"
            return Failed(
                f"{self.name}: {own} {numbers[0]} cannot be collated: {describe_error(error)}; let "
                "all records have one shape, or give a DataLoader with a collate_fn"
            )
        try:
            return numbers, *_to_pair(made, len(items)), ()
        except ValueError as error:
            return Failed(f"{self.name}: {error}")


def _demand(fetched: Batch | Failed) -> Batch:
    if isinstance(fetched, Failed):
        raise ScriptFailed(fetched)
    return fetched


def _to_pair(made: Any, count: int) -> tuple[Any, Tensor]:
    """Takes inputs and targets from a collated batch; ValueError if it has none."""
    if isinstance(made, Mapping):
        own = [each for each in TARGETS if each in made]
        if not own or len(made) == 1:
            raise ValueError(
                f"a record is a dict of {', '.join(map(str, made)) or 'nothing'}: it needs inputs, "
                f"and its targets as {' or '.join(map(repr, TARGETS))}"
            )
        inputs = {each: made[each] for each in made if each != own[0]}
        made = (inputs, made[own[0]])
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise ValueError(
            f"a record is a {type(made).__name__}, and must be a pair of inputs and target, or a "
            "dict: a collate_fn of a DataLoader can make it one"
        )
    x, y = made
    if isinstance(x, Mapping):
        named = {str(each): _to_rows(f"input {each!r}", x[each], count) for each in x}
        # one input goes to the model as it is, whatever the model calls it
        return next(iter(named.values())) if len(named) == 1 else named, _to_rows(
            "target", y, count
        )
    return _to_rows("input", x, count), _to_rows("target", y, count)


def _to_rows(what: str, given: Any, count: int) -> Tensor:
    if not isinstance(given, Tensor | np.ndarray):
        raise ValueError(
            f"{what} is a {type(given).__name__} when it is collated, and must be a tensor: let "
            "the Dataset, or a collate_fn of a DataLoader, make it one"
        )
    made = given.as_subclass(Tensor) if isinstance(given, Tensor) else torch.from_numpy(given)
    if made.ndim == 0 or len(made) != count:
        raise ValueError(f"collating {count} records gave {what}s of shape {tuple(made.shape)}")
    return made.detach()


def _find_unlike(made: tuple[Any, Tensor], like: tuple[Any, Tensor]) -> str | None:
    """Says how a record differs in type or shape from the first one; None if it does not."""
    for each, first in zip(made, like, strict=True):
        if each.dtype != first.dtype or each.shape[1:] != first.shape[1:]:
            own, other = (f"{str(e.dtype)[6:]} {tuple(e.shape[1:])}" for e in (each, first))
            return f"{own}, and the first record {other}: give all of them one shape"
    return None


def _to_tensors(given: Any, name: str) -> tuple[Tensor, Tensor]:
    pair = tuple(given) if isinstance(given, Iterable) else ()
    if len(pair) != 2:
        raise ScriptFailed(
            f"{name} is a {type(given).__name__} of {len(pair)}, and must be a pair of arrays or "
            "tensors, inputs and targets, or a Dataset, or a DataLoader"
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
