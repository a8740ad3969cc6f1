"""Sorts the tensors of a model into groups, and gives each its place in flattened values.

A layout depends only on a schema and a plan, so every party computes the same one, and parties can
compare its digest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed, NotFinite, PlanRefused, WrongShape
from secureps.messages.encoding import canonical, digest
from secureps.messages.run import Schema, TensorSpec
from secureps.wording import nearest

if TYPE_CHECKING:  # a status is read without pydantic
    from secureps.config.plan import PlanSection, SparseSection

MOST_VALUES = 1 << 36
"""The most values in a tensor."""

MOST_SLOTS = 1 << 22
"""The most integers in a block, because an interrupted update restarts at a block."""

MOST_BLOCKS = 1 << 14
"""The most blocks in a group, because a receipt names each of them in one message. Blocks are
counted before anything is allocated: a malicious schema of a few bytes can ask for billions."""

SCALE = TensorSpec("secureps:scale", (), "float32")
"""Stands for the scale, the last value of a group whose clip (`privacy.client_level`) or range
(`codec.grid`) moves. It is no tensor of the model, and the name is reserved."""


@dataclass(frozen=True)
class GroupLayout:
    """The tensors of a group in schema order, one after another, cut into blocks.

    Args:
        tensors: SCALE after them, if the group has a scale.
        block_values: values of a block; the last block may have fewer.
        rows: the group has rows [first, last) of every tensor; None for all rows.
        one_in: one of `one_in` values of a block is sent (`codec.chain`); None: all are.
        cipher_slots: the number of integers in a block to which the cipher is fitted, the same in
            all groups; None if the plan sets the block size.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    size: int
    block_values: int
    rows: tuple[int, int] | None = None
    one_in: int | None = None
    cipher_slots: int | None = None

    @property
    def full(self) -> int:
        return -(-self.block_values // (self.one_in or 1))

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block_values)

    def span(self, block: int) -> tuple[int, int]:
        """(start, stop) of a block in the flattened values; Malformed if there is no such block."""
        if not 0 <= block < self.blocks:
            raise Malformed(
                f"group {self.name!r} has blocks 0 to {self.blocks - 1}, and no block {block}"
            )
        start = block * self.block_values
        return start, min(start + self.block_values, self.size)

    def slots(self, block: int) -> int:
        """The number of integers in a sealed block, one for each value that is sent."""
        start, stop = self.span(block)
        apart = self.apart(block)
        return -(-(stop - start - apart) // (self.one_in or 1)) + apart

    def sent_span(self, block: int) -> tuple[int, int]:
        """(start, stop) of a block in the values of an update that are sent."""
        start = block * self.full
        return start, start + self.slots(block)

    @property
    def sent(self) -> int:
        return self.sent_span(self.blocks - 1)[1]

    @property
    def scaled(self) -> bool:
        return self.tensors[-1:] == (SCALE,)

    def apart(self, block: int) -> int:
        """Number of values at a block's end that no codec may change: 1 for a scale, else 0."""
        return int(self.scaled and block == self.blocks - 1)

    def parts(self) -> Iterator[tuple[str, slice]]:
        """Each tensor's name and its slice of the group's values; in a row-block, of its rows."""
        start = 0
        for spec in self.tensors:
            yield spec.name, slice(start, start := start + math.prod(_shape(spec, self.rows)))

    def flatten(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Copies the group's values into a vector, float32 (size,); a scale is 1, as in version 0.

        Raises WrongShape if a tensor is missing, or has another shape or dtype than its spec;
        NotFinite for a NaN, an infinity, or a value too large for float32.
        """
        flat = np.empty(self.size, dtype=np.float32)
        for (name, part), (_, view) in zip(self.parts(), self.views(tensors), strict=True):
            with np.errstate(over="ignore"):
                flat[part] = view
            _demand_finite(flat[part], name)
        return flat

    def refuse_inexact(self, tensors: Mapping[str, Any], constants: Container[str] = ()) -> None:
        """Raises WrongShape for numbers that float32, in which a group is sent, would change.

        This concerns integers, such as ids, counters and offsets, and constant float64; trained
        values are rounded to the steps of a grid anyway.
        """
        exact = tuple(
            spec
            for spec in self.tensors
            if np.dtype(spec.dtype).kind in "iu"
            or (spec.dtype == "float64" and spec.name in constants)
        )
        for spec, view in replace(self, tensors=exact).views(tensors):
            with np.errstate(over="ignore", invalid="ignore"):
                other = view.astype(np.float32).astype(view.dtype) != view
            if other.any():
                raise WrongShape(
                    f"tensor {spec.name!r} ({spec.dtype}) has the value {view[other][0]}, which "
                    "float32 cannot hold: it would become another number on its way; list it as "
                    "frozen in the plan, if all clients have the same, or as local"
                )

    def views(self, tensors: Mapping[str, Any]) -> Iterator[tuple[TensorSpec, NDArray[Any]]]:
        """Yields the group's tensors in order, flattened, as views if they are contiguous.

        Raises WrongShape as `flatten`.
        """
        for spec in self.tensors:
            if spec == SCALE:
                yield spec, np.ones(1, np.float32)
                continue
            if spec.name not in tensors:
                raise WrongShape(f"tensor {spec.name!r} of group {self.name!r} is missing")
            tensor = np.asarray(tensors[spec.name])
            if tensor.shape != spec.shape or tensor.dtype.name != spec.dtype:
                raise WrongShape(
                    f"tensor {spec.name!r} is {tensor.dtype.name}{list(tensor.shape)}, but the "
                    f"run's layout has {spec.dtype}{list(spec.shape)}"
                )
            yield spec, (tensor if self.rows is None else tensor[slice(*self.rows)]).reshape(-1)

    def unflatten(self, *values: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Makes new arrays of the group's tensors, in a row-block of their rows, without a scale.

        Integers are rounded half to even and kept within their dtype's range; a boolean is true
        above 0.5. `values` are float32 (size,), or its parts in order. Raises WrongShape for
        another shape, NotFinite if a value is not finite, or becomes infinite in its tensor's
        dtype.
        """
        found = [n for part in values for n in part.shape]
        if len(found) != len(values) or sum(found) != self.size:
            raise WrongShape(f"group {self.name!r} has {self.size} values, not shape {found}")
        flat = np.concatenate(values)
        tensors: dict[str, NDArray[Any]] = {}
        for spec, (name, part) in zip(self.tensors, self.parts(), strict=True):
            _demand_finite(flat[part], name)
            if spec != SCALE:
                tensors[name] = cast(flat[part], spec).reshape(_shape(spec, self.rows))
        return tensors


@dataclass(frozen=True)
class Layout:
    """All groups of a model, and the tensors that are not sent.

    Args:
        local: tensors that each client keeps for itself.
        evaluation: the group of evaluations, which is one block and no part of the model.
        frozen: tensors that are the same at all parties.
        tied: further names of tensors. This and `frozen` are None if there are none, because an
            empty tuple would change the layout's digest.
    """

    groups: tuple[GroupLayout, ...]
    local: tuple[TensorSpec, ...]
    block_size: int | None
    evaluation: GroupLayout | None = None
    frozen: tuple[TensorSpec, ...] | None = None
    tied: tuple[TensorSpec, ...] | None = None

    @classmethod
    def build(
        cls,
        schema: Schema,
        plan: PlanSection,
        element: Callable[[int], int],
        trailing: GroupLayout | None = None,
    ) -> Layout:
        """Sorts the tensors of a schema into the groups of a plan.

        Groups are tried in order, after the patterns of `local` and `frozen`; patterns are those of
        `fnmatch`, case-sensitive. `element` is as in `cut`, `trailing` the group of evaluations.

        Raises:
            PlanRefused: a tensor fits no group, a pattern of `local` or `frozen` fits no tensor, a
                tensor fits both, a group gets no values, a name occurs twice or is reserved, a
                dtype does not convert to float32, a tied name has no tensor of its shape and type,
                or the plan gives a sparse tensor another number of rows.
        """
        tied = _find_ties(schema)
        for spec in schema.tensors:
            if min(spec.shape, default=1) < 0 or math.prod(spec.shape) > MOST_VALUES:
                raise PlanRefused(f"tensor {spec.name!r} has an impossible shape {spec.shape}")
            if spec.name == SCALE.name:
                raise PlanRefused(f"a tensor's name is {spec.name!r}, which is reserved: rename it")
        _refuse_repeats("group", [group.name for group in plan.group])
        _refuse_repeats("tensor", [spec.name for spec in schema.tensors])
        schema = schema.untied
        members: dict[str, list[TensorSpec]] = {group.name: [] for group in plan.group}
        kept, frozen = (_match_staying(key, getattr(plan, key), schema, tied) for key in STAYING)
        both = {*kept} & {*frozen}
        stay = {*kept, *frozen}
        for spec in schema.tensors:
            if spec in both:
                raise PlanRefused(
                    f"tensor {spec.name!r} is both local and frozen: local, if each client has its "
                    "own; frozen, if all have the same"
                )
            if spec in stay:
                continue
            _refuse_dtype(spec)
            for group in plan.group:
                if fnmatchcase(spec.name, group.pattern):
                    members[group.name].append(spec)
                    break
            else:
                raise PlanRefused(
                    f"tensor {spec.name!r} matches no group's pattern: add a group for it, or "
                    "list it as local"
                )
        if frozen and not any(members.values()):
            raise PlanRefused("frozen: nothing is left to train: name fewer tensors")
        if not any(math.prod(spec.shape) for specs in members.values() for spec in specs):
            raise PlanRefused(
                "there is nothing to train together: the model has no values, or all are local"
            )
        built: list[GroupLayout] = []
        for group in plan.group:
            name, specs = group.name, members[group.name]
            size = sum(math.prod(spec.shape) for spec in specs)
            if size == 0:
                raise PlanRefused(f"group {name!r} has no tensors: its pattern leaves it none")
            if group.sparse is not None:
                rows = _row_blocks(name, group.sparse, tuple(specs))
                built += (replace(each, one_in=group.one_in) for each in rows)
                continue
            if group.scaled:
                specs, size = [*specs, SCALE], size + 1
            built.append(GroupLayout(name, tuple(specs), size, size, None, group.one_in))
        if trailing is None:
            built = cut(plan, built, element)
        else:
            trailing, *built = cut(plan, [trailing, *built], element, trailing.name)
        for made in built:
            if made.blocks > MOST_BLOCKS:
                raise PlanRefused(
                    f"group {made.name!r} would have {made.blocks} blocks, and may have "
                    f"{MOST_BLOCKS}: choose a larger block_size"
                )
        whole = tuple(built)
        return cls(whole, kept, plan.block_size, trailing, frozen or None, tied or None)

    @property
    def all_groups(self) -> tuple[GroupLayout, ...]:
        """The group of evaluations, if there is one, then the model's groups."""
        return self.groups if self.evaluation is None else (self.evaluation, *self.groups)

    @property
    def staying(self) -> tuple[TensorSpec, ...]:
        return *self.local, *(self.frozen or ())

    def assemble(
        self, values: Callable[[GroupLayout], Sequence[NDArray[np.float32]]]
    ) -> dict[str, NDArray[Any]]:
        """Makes the model's tensors from the groups' values, without local and frozen ones.

        A tied tensor has one array under all its names. `values` returns a group's values, float32
        (size,), in parts. Raises as `GroupLayout.unflatten`.
        """
        parts: dict[str, list[NDArray[Any]]] = {}
        for group in self.groups:
            for name, part in group.unflatten(*values(group)).items():
                parts.setdefault(name, []).append(part)
        made = {n: each[0] if len(each) == 1 else np.concatenate(each) for n, each in parts.items()}
        return made | {name: made[own] for name, own in self.ties.items() if own in made}

    @property
    def ties(self) -> dict[str, str]:
        """Further names of tensors; each maps to the name that its group uses."""
        return {spec.name: spec.same_as for spec in self.tied or ()}

    def group(self, name: str) -> GroupLayout:
        found = self._by_name.get(name)
        if found is None:
            raise Malformed(f"there is no group {name!r} in this run")
        return found

    @cached_property
    def _by_name(self) -> dict[str, GroupLayout]:
        """A sparse table has thousands of groups, and each pull asks for one."""
        return {group.name: group for group in self.all_groups}

    @cached_property
    def digest(self) -> bytes:
        """32 bytes (BLAKE2b-256) over the whole layout."""
        return digest("secureps-layout", canonical(self))


def _find_ties(schema: Schema) -> tuple[TensorSpec, ...]:
    """The further names of tensors; PlanRefused if a name has no tensor of its shape and type."""
    known = {spec.name: spec for spec in schema.untied.tensors}
    tied = tuple(spec for spec in schema.tensors if spec.same_as)
    for spec in tied:
        own = known.get(spec.same_as)
        dtype = spec.dtype.partition("@")[0]
        if own is None or (own.shape, own.of_values("").dtype) != (spec.shape, dtype):
            raise PlanRefused(
                f"tensor {spec.name!r} is tied to {spec.same_as!r}, and the model has no such "
                f"tensor of {dtype}{list(spec.shape)}"
            )
    return tied


STAYING = ("local", "frozen")
"""The plan's keys for tensors that are not sent."""


def _match_staying(
    key: str, patterns: Sequence[str], schema: Schema, tied: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """The tensors that a key names; PlanRefused if a pattern fits none, or only further names."""
    found = set[TensorSpec]()
    for pattern in patterns:
        fits = [spec for spec in (*schema.tensors, *tied) if fnmatchcase(spec.name, pattern)]
        if not fits:
            hint = nearest(pattern, [spec.name for spec in schema.tensors])
            raise PlanRefused(f"{key}: no tensor matches {pattern!r}; {hint}")
        if all(spec.same_as for spec in fits):
            raise PlanRefused(
                f"{key}: {fits[0].name} is another name of {fits[0].same_as} (tied weights): name "
                "that one"
            )
        found.update(fits)
    return tuple(spec for spec in schema.tensors if spec in found)


def cut(
    plan: PlanSection,
    groups: Sequence[GroupLayout],
    element: Callable[[int], int],
    trailing: str = "",
) -> list[GroupLayout]:
    """Cuts groups into blocks of the plan's `block_size`, or else one block for each shard.

    If blocks would have more than MOST_SLOTS integers, each shard gets several, of about one size.
    Row-blocks and the group of evaluations are single blocks. Blocks are whole elements of the
    cipher, except a group's last.

    Args:
        groups: each one block.
        element: (integers in a block) -> how many of them a cipher for such blocks seals as one.
        trailing: the name of the group of evaluations; empty if there is none.
    """
    if plan.block_size is not None:
        return [replace(g, block_values=plan.block_size) for g in groups]
    shards = [1 if g.rows or g.name == trailing else plan.shards for g in groups]
    shares = (-(-g.size // (own * (g.one_in or 1))) for g, own in zip(groups, shards, strict=True))
    fitted = min(max(shares), MOST_SLOTS)
    whole = element(fitted)
    most = MOST_SLOTS // whole * whole
    made = []
    for group, own in zip(groups, shards, strict=True):
        one_in = group.one_in or 1
        blocks = own * -(-group.size // (own * most))
        sent = -(-group.size // (blocks * one_in))
        slots = -(-sent // whole) * whole
        made.append(replace(group, block_values=slots * one_in, cipher_slots=fitted))
    return made


def _row_blocks(
    name: str, sparse: SparseSection, specs: tuple[TensorSpec, ...]
) -> Iterator[GroupLayout]:
    """Cuts tensors into row-blocks; PlanRefused if a tensor has another number of rows."""
    for spec in specs:
        if spec.shape[:1] != (sparse.rows,):
            raise PlanRefused(
                f"group {name!r}: sparse.rows = {sparse.rows}, but tensor {spec.name!r} has the "
                f"shape {list(spec.shape)}"
            )
    for k, own in enumerate(sparse.names(name)):
        rows = (k * sparse.block, min((k + 1) * sparse.block, sparse.rows))
        size = sum(math.prod(_shape(spec, rows)) for spec in specs)
        yield GroupLayout(own, specs, size, size, rows)


def _shape(spec: TensorSpec, rows: tuple[int, int] | None) -> tuple[int, ...]:
    return spec.shape if rows is None else (rows[1] - rows[0], *spec.shape[1:])


def _refuse_repeats(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise PlanRefused(f"{kind} {name!r} is there {count} times")


def _refuse_dtype(spec: TensorSpec) -> None:
    try:
        known = np.dtype(spec.dtype)
    except TypeError:
        known = None
    if known is None or known.kind not in "fiub" or known.name != spec.dtype:
        raise PlanRefused(
            f"tensor {spec.name!r} has dtype {spec.dtype!r}, which cannot be carried as float32: "
            "list it as local"
        )


def _demand_finite(values: NDArray[Any], name: str) -> None:
    if not np.isfinite(values).all():
        raise NotFinite(f"tensor {name!r} has a value that is not a finite float32")


def cast(part: NDArray[np.float32], spec: TensorSpec) -> NDArray[Any]:
    """Converts values to a tensor's dtype, float32 without a copy; NotFinite if one overflows."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return part > 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        top = float(info.max)
        if top > info.max:  # 2^63 - 1 is no float64; its cast would overflow
            top = math.nextafter(top, 0.0)
        return np.clip(np.rint(part.astype(np.float64)), float(info.min), top).astype(dtype)
    with np.errstate(over="ignore"):
        made = part.astype(dtype, copy=False)
    if dtype.itemsize < part.itemsize and not np.isfinite(made).all():
        raise NotFinite(f"tensor {spec.name!r} has a value that is too large for {spec.dtype}")
    return made
