"""What a model is made of: names, shapes and types of its tensors, without their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from secureps.messages.encoding import canonical, digest


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: `dtype` is numpy's name, such as "float32" or "int64"."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Schema:
    """All tensors of a model, sorted by name."""

    tensors: tuple[TensorSpec, ...]

    @property
    def digest(self) -> bytes:
        """32 bytes; two parties train the same model iff these agree."""
        return _digest(self)

    def difference(self, theirs: Schema) -> str:
        """In words, the first thing in which another schema differs from this one, the run's."""
        ours = {spec.name: spec for spec in self.tensors}
        others = {spec.name: spec for spec in theirs.tensors}
        for name in [*ours, *others]:
            if name not in others:
                return f"{name} is missing"
            if name not in ours:
                return f"{name} is not in the run's model"
            if ours[name] != others[name]:
                return (
                    f"{name} is {others[name].dtype}{list(others[name].shape)}, the run's is "
                    f"{ours[name].dtype}{list(ours[name].shape)}"
                )
        return "the order of tensors differs"


@lru_cache(maxsize=16)
def _digest(schema: Schema) -> bytes:
    """Asked for again and again."""
    return digest("secureps-schema", canonical(schema))
