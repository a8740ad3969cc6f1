"""What a model is made of: names, shapes and types of its tensors, without their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from secureps.messages.encoding import canonical, digest

TRAIN_METRICS = "secureps.train"
"""The tensor of training metrics' means inside Flower's engine, each a part of its magnitude."""

WRAPPED = "module."
"""How names begin in the state of a model that torch's DataParallel wraps."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: `dtype` is numpy's name, such as "float32" or "int64".

    Of a frozen tensor, which all parties have alike, "=" and the digest of its values follow; of
    one that is tied, "@" and the name of the tensor that it is another name of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def values(self) -> str:
        """The digest of a frozen tensor's values; empty of any other, or where it is not told."""
        return "" if self.same_as else self.dtype.partition("=")[2]

    @property
    def same_as(self) -> str:
        """The tensor that this is another name of (tied weights); empty of any other."""
        return self.dtype.partition("@")[2]

    def of_values(self, values: str) -> TensorSpec:
        """The same tensor with this digest of its values; without, if it is empty."""
        if self.same_as:
            return self
        plain = self.dtype.partition("=")[0]
        return replace(self, dtype=f"{plain}={values}" if values else plain)


@dataclass(frozen=True, slots=True)
class Schema:
    """All tensors of a model, sorted by name."""

    tensors: tuple[TensorSpec, ...]

    @property
    def digest(self) -> bytes:
        """32 bytes; two parties train the same model iff these agree."""
        return _digest(self)

    @property
    def ties(self) -> dict[str, str]:
        """The further names of tensors, by the name that each stands for (tied weights)."""
        return {spec.name: spec.same_as for spec in self.tensors if spec.same_as}

    @property
    def untied(self) -> Schema:
        """The same model, each of its tensors once: what travels, and what parties compare."""
        if not self.ties:
            return self
        return Schema(tuple(spec for spec in self.tensors if not spec.same_as))

    @property
    def told(self) -> frozenset[str]:
        """The tensors whose values' digest it tells."""
        return frozenset(spec.name for spec in self.tensors if spec.values)

    def telling(self, values: Mapping[str, str]) -> Schema:
        """The same model with the digests of these tensors' values, and of no others."""
        return Schema(tuple(spec.of_values(values.get(spec.name, "")) for spec in self.tensors))

    def difference(self, theirs: Schema) -> str:
        """In words, the first thing in which another schema differs from this one, the run's."""
        ours = {spec.name: spec for spec in self.untied.tensors}
        others = {spec.name: spec for spec in theirs.untied.tensors}
        if {name.removeprefix(WRAPPED) for name in ours} == {*others} != {*ours}:
            return (
                f"the run's names begin with {WRAPPED!r}, as those of a DataParallel do: save the "
                "state of the model inside it (model.module.state_dict()), and begin from that"
            )
        for name, first in theirs.ties.items():
            if name in ours:
                return (
                    f"{name} is another name of {first} (tied weights), and the run has two "
                    f"tensors: begin from a file without {name}"
                )
        for name in [*ours, *others]:
            if name not in others:
                return f"{name} is missing"
            if name not in ours:
                return f"{name} is not in the run's model"
            if ours[name] == others[name]:
                continue
            if ours[name].of_values("") == others[name].of_values(""):
                return (
                    f"{name} is frozen, and has other values than the run's: make it from the "
                    "file, or the seed, that the other clients have"
                )
            own, run = others[name].of_values(""), ours[name].of_values("")
            return (
                f"{name} is {own.dtype}{list(own.shape)}, the run's is {run.dtype}{list(run.shape)}"
            )
        return "the order of tensors differs"


@lru_cache(maxsize=16)
def _digest(schema: Schema) -> bytes:
    return digest("secureps-schema", canonical(schema))
