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
