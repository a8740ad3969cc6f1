"""The base of an update: what it was trained from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """What an update was trained from: the version, and which of the client's updates of it."""

    version: int
    step: int
