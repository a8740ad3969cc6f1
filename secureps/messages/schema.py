"""What a model is made of: names, shapes and types of its tensors, without their values."""

from __future__ import annotations

from dataclasses import dataclass

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
        return digest("secureps-schema", canonical(self))

    def difference(self, other: Schema) -> str:
        """The first thing in which `other` is not this model, in words."""
        ours = {spec.name: spec for spec in self.tensors}
        theirs = {spec.name: spec for spec in other.tensors}
        for name in [*ours, *theirs]:
            if name not in theirs:
                return f"{name} is missing"
            if name not in ours:
                return f"{name} is not in the run's model"
            if ours[name] != theirs[name]:
                return (
                    f"{name} is {theirs[name].dtype}{list(theirs[name].shape)}, the run's is "
                    f"{ours[name].dtype}{list(ours[name].shape)}"
                )
        return "the order of tensors differs"
