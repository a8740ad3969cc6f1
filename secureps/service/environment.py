"""The surroundings of an executor: transport, loop, meter, stores, and the worker of its role."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from secureps.errors import InternalError, Malformed
from secureps.messages.requests import PutBlock, Reply, Request
from secureps.messages.run import Task
from secureps.roles.machine import Machine, Record, TaskResult
from secureps.service.loop import Loop
from secureps.store.journal import Journal
from secureps.store.spool import Spool
from secureps.wire.transport import Transport


class Meter:
    """Observes an executor without changing what it does; this one counts nothing.

    Methods return at once and never raise. `on_request` and `on_work` are called on any thread,
    the others on the loop.
    """

    def on_request(self, message: Request, answer: Future[Reply]) -> None: ...

    def on_call(self, message: Request, answer: Future[Reply]) -> None: ...

    def on_retry(self, to: str) -> None:
        """Notes that a call to a server failed and will be repeated."""

    def on_replay(self, record: Record) -> None:
        """Notes a record that an earlier process wrote."""

    def on_records(self, records: Sequence[Record]) -> None: ...

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        """Notes that the worker finished a task, or failed and so has no result."""

    def on_state(self, machine: Machine, now: float) -> None:
        """Notes that events were handled and journalled: only now may the machine be read."""

    def on_hang(self, hangs: bool) -> None:
        """Notes that the party hangs or works again; the main thread calls this."""


class Meters(Meter):
    """Several meters that observe one executor."""

    def __init__(self, *meters: Meter) -> None:
        for name in [name for name in vars(Meter) if not name.startswith("_")]:
            setattr(self, name, partial(_tell_all, [getattr(meter, name) for meter in meters]))


def _tell_all(methods: Sequence[Callable[..., None]], *said: Any) -> None:
    for method in methods:
        method(*said)


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


class Worker(Protocol):
    """Does a role's work outside its machine; by default it accepts no payloads."""

    @abstractmethod
    def work(self, task: Task) -> TaskResult | None:
        """Does a task; returns the event for the machine, or None."""

    def take(self, request: PutBlock, payload: bytes | memoryview) -> Callable[[], None]:
        """Checks the payload of a PutBlock; returns an action that stores it durably.

        The action may run on any thread. Raises Malformed if the payload does not fit the message.
        """
        raise Malformed(f"no payload is expected with a {type(request).__name__}")

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes | None:
        """Checks and stores the payload, of this digest, that answers a request.

        Returns the digest of other bytes that it stored in its place, else None. Raises Malformed
        if the payload does not answer the request.
        """
        raise Malformed(f"no payload is expected with a {type(request).__name__}")

    def fetch(self, key: str) -> bytes | memoryview:
        """Reads the payload under a `key`; a PeerError is sent to the asking party."""
        raise InternalError(f"a {type(self).__name__} stores no payloads: there is no {key}")

    def seconds(self, task: Task) -> float:
        """Virtual seconds of a task in a simulation."""
        return 0.0
