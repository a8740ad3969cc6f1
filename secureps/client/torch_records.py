"""Records of a torch `Dataset` or `DataLoader`, fetched to the same bits by however many processes.

The trainer chooses which records a step takes. Before one of them is fetched, the generators that
augmentation draws from are seeded from the fit's key, the step and the record's number. So what is
fetched depends neither on the number of workers, nor on their timing, nor on other records.

Under record-level privacy each record is collated alone, so that a `collate_fn` cannot mix records,
and one that cannot be fetched adds nothing: an error would tell everybody about it. Augmentation
keeps the guarantee, because a record's draws are independent of all other records: whatever was
drawn, the sum without a record (or without a person, where the plan protects persons) differs by at
most the clip.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import data

from secureps.client.private_sum import Measure
from secureps.client.torch_sgd import (
    Task,
    kept_generators,
    map_inputs,
    noise_generators,
    seed_generators,
    seed_of,
)
from secureps.client.trainer import Array
from secureps.errors import ScriptFailed
from secureps.tracebacks import describe_error, find_place
from secureps.wording import one_line

Records = tuple[Tensor | Array, Tensor | Array] | data.Dataset[Any] | data.DataLoader[Any]
"""Inputs and targets in memory, whose first dimension counts records; or a source of them."""

IN_MEMORY = (tuple, list, np.ndarray, Tensor, Mapping, str, type(None))
"""Types that are no Dataset, although they have items."""

OPTIONS = ["num_workers", "multiprocessing_context", "worker_init_fn", "persistent_workers"]
OPTIONS += ["prefetch_factor", "timeout", "pin_memory"]
"""Options that are taken over from a DataLoader."""

LISTED = 1000
"""The longest list, tuple or dict in which transforms of a Dataset are looked for."""

DIGESTED = 256
"""Records that are in memory at a time while all are digested."""

Seeds = Sequence[tuple[int, int]]
"""Records to fetch: the seed of each, and its number."""


def read_records(given: Records, name: str, loss: Measure, device: torch.device) -> Task:
    """Takes the records of one argument of a trainer; ScriptFailed if they cannot be trained on."""
    loader = given if isinstance(given, data.DataLoader) else None
    items: Any = given if loader is None else loader.dataset
    collate = data.default_collate if loader is None else loader.collate_fn
    if isinstance(items, data.IterableDataset):
        raise ScriptFailed(
            f"{name} is an IterableDataset, whose records have no numbers: they can neither be "
            "sampled nor be fetched again after a restart; give __getitem__ and __len__"
        )
    if loader is not None:
        _refuse_sampling(loader, name)
    if type(items) is data.TensorDataset and collate is data.default_collate:
        given = cast(Any, items.tensors)
    if isinstance(given, IN_MEMORY) or not hasattr(items, "__getitem__"):
        return Task(*_to_tensors(given, name), loss, device)
    kind = type(items).__name__
    try:
        count = len(items)
    except Exception as error:
        raise ScriptFailed(f"{name}: len() of {kind} raised {describe_error(error)}") from error
    if not count:
        raise ScriptFailed(f"{name}: the {kind} is empty; need at least 1 record")
    fetch, order = _Fetch(items, collate, name), _Order()
    x, y = fetch.try_first()
    fetch.like = map_inputs(x, lambda each: each[:0]), y[:0]
    options = {} if loader is None else {each: getattr(loader, each) for each in OPTIONS}
    fetching = data.DataLoader[Any](
        cast(Any, fetch), batch_size=None, sampler=order, generator=torch.Generator(), **options
    )
    most = None if loader is None else loader.batch_size
    return Fetched(*fetch.like, loss, device, most=most, count=count, order=order, loader=fetching)


def _refuse_sampling(loader: data.DataLoader[Any], name: str) -> None:
    """Refuses a loader whose choice of records would be lost, because the trainer draws its own."""
    sampler, batches = loader.sampler, loader.batch_sampler
    if batches is None:
        raise ScriptFailed(f"{name}: batch_size=None: an item must be one record, not a batch")
    whole = type(sampler) is data.SequentialSampler
    if type(sampler) is data.RandomSampler:
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    if not whole or type(batches) is not data.BatchSampler:
        raise ScriptFailed(
            f"{name}: the trainer draws records itself, and cannot keep to the DataLoader's "
            f"{type(batches if whole else sampler).__name__}: leave it out; for some of the "
            "records give torch.utils.data.Subset(dataset, indices)"
        )


class _Order:
    """A DataLoader's sampler: batches to fetch, and whether their records are collated apart."""

    batches: Iterator[tuple[bool, Seeds]] = iter(())

    def __iter__(self) -> Iterator[tuple[bool, Seeds]]:
        return self.batches


@dataclass(frozen=True, eq=False, kw_only=True)
class Fetched(Task):
    """Records that a Dataset makes; `x` and `y` have no rows. Draws derive from `key`."""

    count: int
    order: _Order
    loader: data.DataLoader[Any]
    key: bytes = b""

    def __len__(self) -> int:
        return self.count

    def seeded(self, key: bytes) -> Task:
        return replace(self, key=key)

    def draw(
        self, indices: Iterable[NDArray[np.int64]], apart: bool = False
    ) -> Iterator[tuple[Task, NDArray[np.int64]]]:
        self.order.batches = (
            (apart, [(seed_of(self.key, f"record {step} {own}"), own) for own in index.tolist()])
            for step, index in enumerate(indices)
        )
        self.loader.generator.manual_seed(seed_of(self.key, "workers"))
        with kept_generators():
            batches = iter(self.loader)
        for step in itertools.count():
            with kept_generators():
                fetched = next(batches, None)
            if fetched is None:
                return
            numbers, x, y, failed = fetched
            if failed and not apart:
                raise ScriptFailed(failed[0])
            rows = np.array(numbers, np.int64)
            owners = None if self.persons is None else self.persons[rows]
            sample = Task(x, y, self.loss, self.device, owners, numbers=rows)
            if apart:
                # A changed record may differ under these draws alone, and not in `digest`. With
                # the same noise, two updates would then show it. Nor may two steps of equal
                # samples, such as empty ones, add the same noise.
                own = hashlib.blake2b(b"%d " % step, key=self.key, digest_size=32)
                own.update(sample.digest)
                noise = noise_generators(own.digest(), self.device)
                sample = replace(sample, failed=failed, noise=noise)
            yield sample, np.arange(len(y))

    @cached_property
    def digest(self) -> bytes:
        """A digest of all records, with draws of an empty key."""
        made = hashlib.blake2b(b"%d" % self.count, digest_size=32, person=b"secureps-fetched")
        parts = np.split(np.arange(self.count), range(DIGESTED, self.count, DIGESTED))
        for sample, _ in self.seeded(b"").draw(parts, apart=True):
            made.update(sample.digest)
        return made.digest()


def _kinds_of(pair: Iterable[Any]) -> list[Any]:
    """Lists the types and shapes that joined records must share; None for a dict of inputs."""
    return [
        (each.dtype, each.shape[1:], each.layout, each.device) if isinstance(each, Tensor) else None
        for each in pair
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Computes as a DataLoader's workers do: torch's sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(eq=False)
class _Fetch:
    """A Dataset of batches, whose draws follow from seeds; `like` has the shapes of records.

    It returns why records failed, because an error that a worker raises arrives as another one.
    """

    items: Any
    collate: Callable[[list[Any]], Any]
    name: str
    like: tuple[Any, Tensor] | None = None

    def __getitem__(self, asked: tuple[bool, Seeds]) -> tuple[list[int], Any, Any, list[str]]:
        apart, seeds = asked
        numbers, parts, failed = list[int](), list[Any](), list[str]()
        like = self.like or ()
        for each in [[own] for own in seeds] if apart else [seeds]:
            try:
                pair = self._join(each)
                if apart and _kinds_of(pair) != _kinds_of(like):
                    raise ScriptFailed(f"{self.name}[{each[0][1]}] is not shaped like record 0")
                parts.append(pair)
                numbers += [number for _, number in each]
            except ScriptFailed as error:
                failed.append(str(error))
        if not apart:
            return (numbers, *(parts[0] if parts else like), failed)
        x, y = (torch.cat(each) for each in zip(like, *parts, strict=True))
        return numbers, x, y, failed

    def try_first(self) -> tuple[Any, Tensor]:
        """Fetches the first record; ScriptFailed if it cannot be, or is another one each time."""
        pairs = list[tuple[Any, Tensor]]()
        with kept_generators():
            for seed in (0, 1, 2):
                pairs.append(self._join([(seed, 0)]))
                with suppress(ScriptFailed):  # another one comes between, which must change nothing
                    self._join([(seed, len(self.items) - 1)])
                pairs.append(self._join([(seed, 0)]))
        told = [Task(*each, torch.mean, torch.device("cpu")).digest for each in pairs]
        if told[::2] != told[1::2]:
            raise ScriptFailed(
                f"{self.name}: record 0 is another one each time that it is fetched; a training "
                "must repeat bit for bit, so let augmentation draw from the global generators of "
                "Python, NumPy or torch, which are seeded for each record, and let neither the "
                "Dataset nor a collate_fn keep anything of other records"
            )
        return pairs[0]

    def _join(self, seeds: Seeds) -> tuple[Any, Tensor]:
        with _one_thread():
            values = [self._fetch(*each) for each in seeds]
            try:
                return self._to_pair(self.collate(values), len(values))
            except ScriptFailed:
                raise
            except Exception as error:
                raise ScriptFailed(
                    f"{self.name}: record {seeds[0][1]} and {len(seeds) - 1} more cannot be "
                    f"collated: {describe_error(error)}; give a DataLoader with a collate_fn for "
                    "them"
                ) from error

    def _fetch(self, seed: int, number: int) -> Any:
        seed_generators(seed)
        try:
            for at, each in enumerate(self._own_generators):
                each.set_random_state(seed=(seed + at) & 0xFFFFFFFF)
            return self.items[number]
        except Exception as error:
            told = f"{describe_error(error)} ({find_place(error)})"
            raise ScriptFailed(f"{self.name}[{number}] raised {told}") from error

    @cached_property
    def _own_generators(self) -> list[Any]:
        """Finds objects of the Dataset that draw from generators of their own, as MONAI's do.

        It calls no code of theirs, and leaves out long lists, which are of records.
        """
        found, waiting, known = list[Any](), [self.items], set[int]()
        while waiting:
            each = waiting.pop()
            if id(each) in known or isinstance(each, type | ModuleType):
                continue
            known.add(id(each))
            if hasattr(type(each), "set_random_state"):
                found.append(each)
                continue
            own: Any = each if isinstance(each, list | tuple | dict) else _attributes_of(each)
            if len(own) <= LISTED:
                waiting.extend(own.values() if isinstance(own, dict) else own)
        return found

    def _to_pair(self, made: Any, count: int) -> tuple[Any, Tensor]:
        if isinstance(made, Mapping):
            target = "labels" if "labels" in made else "label"
            inputs = {str(each): made[each] for each in made if each != target}
            # one input goes to the model as it is, whatever the model calls it
            x = next(iter(inputs.values())) if len(inputs) == 1 else inputs
            made = (x, made[target]) if inputs and target in made else made
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ScriptFailed(
                f"{self.name}: a record is a {type(made).__name__}, and must be a pair of inputs "
                "and target, or a dict of inputs and 'labels' or 'label'; a DataLoader's "
                "collate_fn can make it one"
            )
        x = map_inputs(made[0], lambda each: self._to_rows(each, count))
        return x, self._to_rows(made[1], count)

    def _to_rows(self, given: Any, count: int) -> Tensor:
        if isinstance(given, np.ndarray):
            given = torch.from_numpy(np.ascontiguousarray(given))
        shape = tuple(getattr(given, "shape", ()))
        if not isinstance(given, Tensor) or shape[:1] != (count,):
            raise ScriptFailed(
                f"{self.name}: {count} records are collated to a {type(given).__name__} {shape}: "
                "make it a tensor with a row for each, by the Dataset or a DataLoader's collate_fn"
            )
        return given.detach().as_subclass(Tensor)


def _attributes_of(given: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(given, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


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
