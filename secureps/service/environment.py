"""What a party runs in, and what it keeps: the same words for processes and simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from secureps.service.loop import Loop
from secureps.store.journal import Journal
from secureps.store.spool import Spool
from secureps.wire.transport import Transport


class Meter(Protocol):
    """Is told what an executor does, and changes none of it; returns at once, never raises.

    `asked` and `worked` come from any thread, the others from the loop.
    """

    def asked(self, message: Any, answer: Future[Any]) -> None:
        """A request came in; `answer` is done when it is answered."""

    def called(self, message: Any, answer: Future[Any]) -> None:
        """A request went out, with its payload."""

    def retried(self, to: str) -> None:
        """A call to this server failed and is tried again later."""

    def journalled(self, records: Sequence[Any]) -> None:
        """Records are durable."""

    def worked(self, task: Any, seconds: float) -> None:
        """The hands are done with a task, whatever came of it."""

    def stands(self, machine: Any, now: float) -> None:
        """Events were handled and journalled: the machine may be read now, and not later."""


class Unmetered:
    """The meter of who counts nothing: clients and simulations."""

    def asked(self, message: Any, answer: Future[Any]) -> None:
        pass

    def called(self, message: Any, answer: Future[Any]) -> None:
        pass

    def retried(self, to: str) -> None:
        pass

    def journalled(self, records: Sequence[Any]) -> None:
        pass

    def worked(self, task: Any, seconds: float) -> None:
        pass

    def stands(self, machine: Any, now: float) -> None:
        pass


@dataclass(frozen=True)
class Environment:
    """Its way to servers, its loop, the jitter (factors) of its retries, and who counts."""

    transport: Transport
    loop: Loop
    jitter: Callable[[], float]
    meter: Meter = field(default_factory=Unmetered)


@dataclass(frozen=True)
class Stores:
    """Journal, payloads, and a folder for files of its own."""

    journal: Journal
    spool: Spool
    folder: Path
