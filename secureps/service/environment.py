"""The environment and the stores of a party, the same for processes and simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from secureps.messages.requests import Reply, Request
from secureps.roles.machine import Machine, Record, Task, TaskResult
from secureps.service.loop import Loop
from secureps.store.journal import Journal
from secureps.store.spool import Spool
from secureps.wire.transport import Transport


class Meter:
    """Observes an executor without changing what it does; this one counts nothing.

    Methods return at once and never raise. `asked` and `worked` come from any thread, the others
    from the loop.
    """

    def asked(self, message: Request, answer: Future[Reply]) -> None:
        """A request came in; `answer` is done when it is answered."""

    def called(self, message: Request, answer: Future[Reply]) -> None:
        """A request went out, with its payload."""

    def retried(self, to: str) -> None:
        """A call to this server failed and is tried again later."""

    def replayed(self, record: Record) -> None:
        """A record of before this start was read."""

    def journalled(self, records: Sequence[Record]) -> None:
        """Records are durable."""

    def worked(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        """The worker is done with a task, or failed at it."""

    def stands(self, machine: Machine, now: float) -> None:
        """Events were handled and journalled: the machine may be read now, and not later."""

    def hangs(self, hangs: bool) -> None:
        """The party hangs (`service.hangs`), or goes on; from the main thread."""


class Meters(Meter):
    """Several meters that observe one executor."""

    def __init__(self, *meters: Meter) -> None:
        self._meters = meters

    def asked(self, message: Request, answer: Future[Reply]) -> None:
        """Tells each; so do the others."""
        for meter in self._meters:
            meter.asked(message, answer)

    def called(self, message: Request, answer: Future[Reply]) -> None:
        """As `Meter.called`."""
        for meter in self._meters:
            meter.called(message, answer)

    def retried(self, to: str) -> None:
        """As `Meter.retried`."""
        for meter in self._meters:
            meter.retried(to)

    def replayed(self, record: Record) -> None:
        """As `Meter.replayed`."""
        for meter in self._meters:
            meter.replayed(record)

    def journalled(self, records: Sequence[Record]) -> None:
        """As `Meter.journalled`."""
        for meter in self._meters:
            meter.journalled(records)

    def worked(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        """As `Meter.worked`."""
        for meter in self._meters:
            meter.worked(task, seconds, result)

    def stands(self, machine: Machine, now: float) -> None:
        """As `Meter.stands`."""
        for meter in self._meters:
            meter.stands(machine, now)

    def hangs(self, hangs: bool) -> None:
        """As `Meter.hangs`."""
        for meter in self._meters:
            meter.hangs(hangs)


@dataclass(frozen=True)
class Environment:
    """A party's transport, its loop, the jitter of its retries (factors), and its meter."""

    transport: Transport
    loop: Loop
    jitter: Callable[[], float]
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True)
class Stores:
    """A party's journal, its payloads, and a folder for its other files."""

    journal: Journal
    spool: Spool
    folder: Path
