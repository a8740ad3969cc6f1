"""The work that machines hand out, and the events that report its end.

The workers that do it are in `service` and `client`.
"""

from __future__ import annotations

from dataclasses import dataclass


class Task:
    """Something long or with I/O that a machine hands out."""

    __slots__ = ()


class TaskResult:
    """What came of a task: the event that reports its end."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Prune(Task):
    """Deletes these spool keys, and a group's sums and states that are older than `keep`."""

    keys: tuple[str, ...] = ()
    group: str = ""
    version: int = -1
    keep: int = -1


@dataclass(frozen=True, slots=True)
class Sweep(Task):
    """After a start: deletes payloads that no record refers to."""

    referenced: frozenset[str]
