"""A simulated client that has a machine only once something was asked of it.

Of very many clients few train. A client that was asked for nothing keeps the few messages that it
has heard, which all others share. Its machine is made when anything else happens to it than a
published version, news of key holders or the end of the run. The machine hears those messages
again, with their times, and decides as it would have, for it is a function of its events.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from secureps.client.worker import ClientWorker
from secureps.errors import SecurepsError
from secureps.messages.orders import Finish, Published, SealFor
from secureps.messages.requests import PutBlock, Request, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import (
    Answered,
    Effect,
    Event,
    Failed,
    Halt,
    Record,
    Step,
    Sweep,
    Task,
    TaskResult,
    Tick,
    Watch,
)
from secureps.roles.member.member import Member
from secureps.roles.member.settings import MemberSettings
from secureps.service.environment import Worker
from secureps.wire.transport import Cancel, Clock, Deliver, Transport

Made = tuple[Member, ClientWorker]

MOST_HEARD = 16
"""Events that a client hears again; to whom more has happened keeps its machine. Published versions
count once for each group, for the newest stands for those before it; what it is told of key holders
does not count, for `ToldOfHolders` answers it."""


ToldOfHolders = dict[tuple[bytes, int, SealFor], tuple[int, list[Record]]]
"""The next state and the records of a client of a run, by its state and what it hears of key
holders; shared by the clients of one simulation.

For whom a client seals, and by which keys, follows from the roster, the run and what it was told of
holders before, and not from its name: where one machine has heard it, the others need none for it.
States are numbers: 0 before anything was said.
"""


class IdleClient(Worker):
    """The machine and the worker of one client.

    Args:
        make: makes both, as they are before anything has happened.
        cost: as of `ClientWorker`.
        told: shared by all clients.
    """

    def __init__(
        self,
        make: Callable[[], Made],
        cost: Callable[[object], float],
        clock: Clock,
        told: ToldOfHolders,
    ) -> None:
        self._make = make
        self._cost = cost
        self._clock = clock
        self._told = told
        self._holders: int | None = 0
        """Its state by `told`; None once anything else has happened."""
        self._coming = 0
        """Orders that its executor has and that it has not handled."""
        self._made: Made | None = None
        self._heard: list[tuple[float, str, Event | None]] | None = []
        """What happened to it, None for its start; None in its place: it keeps its machine."""
        self._wakes_at: float | None = None
        self._run = b""
        """The run's id, once it takes part."""

    @property
    def awake(self) -> bool:
        return self._made is not None

    @property
    def _asleep(self) -> bool:
        """Whether it takes part in a run, and has no machine."""
        return self._made is None and bool(self._run)

    @property
    def member(self) -> Member:
        return self._wake()[0]

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        """Applies a record: a client that has a journal already keeps its machine."""
        self.member.apply(at, record)
        self._heard = None

    def resume(self, now: float) -> Step:
        member = self.member
        self._hear(now, "", None)
        step = member.resume(now)
        self._rest(member)
        return step

    def hears(self, order: object) -> bool:
        """Notes an order that changes nothing yet, if it is such a one; others are passed on."""
        first = self._asleep and not self._coming  # nothing overtakes what came before
        if (
            first
            and isinstance(order, Published)
            and self._without_machine(self._clock.now(), order)
        ):
            return True
        self._coming += 1
        return False

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles an event, without a machine only where that would do the same."""
        if sender == COORDINATOR and not isinstance(event, Answered | Failed):
            self._coming -= 1
            if self._asleep and (short := self._without_machine(now, event)) is not None:
                return short
        member = self.member
        self._hear(now, sender, event)
        step = member.handle(now, sender, event)
        self._note(event, step)
        if not any(isinstance(effect, Watch) for effect in step.effects):
            self._rest(member)  # else once it has said what it watches
        return step

    def _without_machine(self, now: float, order: Event) -> Step | None:
        """Answers an order for which no machine is needed; None if one is."""
        if isinstance(order, Finish):
            return Step(effects=[Halt(order.reason)])
        if isinstance(order, Published) and self._counted() < MOST_HEARD:
            self._hear(now, COORDINATOR, order)
            return Step()
        if not isinstance(order, SealFor) or self._holders is None:
            return None
        known = self._told.get((self._run, self._holders, order))
        if known is None:
            return None
        self._hear(now, COORDINATOR, order)
        self._holders, records = known
        return Step(records=list(records))

    def _note(self, event: Event, step: Step) -> None:
        """Notes an answer for which other clients then need no machine."""
        state = self._holders
        if isinstance(event, SealFor) and state is not None and self._run and not step.effects:
            new = len(self._told) + 1, list(step.records)
            self._holders, _ = self._told.setdefault((self._run, state, event), new)
        elif not isinstance(event, Published | Answered | Tick):
            self._holders = None

    def inspect(self, sender: str, message: Request) -> bool:
        return self.member.inspect(sender, message)

    def troubled(self, reason: str) -> list[Effect]:
        return self.member.troubled(reason)

    def wake(self) -> float | None:
        return self._wakes_at if self._made is None else self._made[0].wake()

    def subscription(self) -> Subscribe:
        member = self.member
        said = member.subscription()
        self._rest(member)
        return said

    # --- Worker -------------------------------------------------------------------

    def work(self, task: Task) -> TaskResult | None:
        """Does a task; a client that has sealed nothing has nothing to sweep."""
        if self._made is None and isinstance(task, Sweep):
            return None
        return self._wake()[1].work(task)

    def take(self, request: PutBlock, payload: bytes | memoryview) -> Callable[[], None]:
        return self._wake()[1].take(request, payload)

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes | None:
        return self._wake()[1].keep(request, payload, digest)

    def fetch(self, key: str) -> bytes | memoryview:
        return self._wake()[1].fetch(key)

    def seconds(self, task: Task) -> float:
        return self._cost(task) if self._made is None else self._made[1].seconds(task)

    # --- how it comes and goes ----------------------------------------------------

    def _hear(self, now: float, sender: str, event: Event | None) -> None:
        """Notes an event; a version that nobody pulled is forgotten with the next one."""
        heard = self._heard
        if heard is None:
            return
        if isinstance(event, Published):
            for at, (_, _, before) in enumerate(heard):
                if isinstance(before, Published) and _supersedes(event, before, heard):
                    del heard[at]
                    break
        heard.append((now, sender, event))

    def _counted(self) -> int:
        """How many events count towards MOST_HEARD."""
        return sum(not isinstance(e, SealFor) for _, _, e in self._heard or ())

    def _rest(self, member: Member) -> None:
        """Lets the machine go, if it has nothing to do and never had."""
        if self._heard is None:
            return
        if not member.idle or self._counted() > MOST_HEARD:
            self._heard = None
            return
        self._wakes_at, self._run = member.wake(), member.pinned.run.id if member.is_pinned else b""
        self._made = None

    def _wake(self) -> Made:
        """Makes the machine, which hears again what happened; all of that is done already."""
        if self._made is None:
            self._made = member, _ = self._make()
            for now, sender, event in self._heard or ():
                with suppress(SecurepsError):  # as it was then
                    member.resume(now) if event is None else member.handle(now, sender, event)
        return self._made


def _supersedes(
    newer: Published, older: Published, heard: list[tuple[float, str, Event | None]]
) -> bool:
    """Whether nobody can tell that a client that pulled nothing has heard of an older version.

    A block that is in another version too has its place in the order of what is pulled.
    """
    if newer.group != older.group or newer.version < older.version:
        return False
    blocks = set(older.blocks)
    others = [event for _, _, event in heard if isinstance(event, Published)]
    return all(blocks.isdisjoint(each.blocks) for each in (newer, *others) if each is not older)


class Hearing:
    """A client's `Transport`, on which its executor hears only what has to be handled."""

    __slots__ = ("_client", "_way")

    def __init__(self, way: Transport, client: IdleClient) -> None:
        self._way, self._client = way, client

    def call(self, to: str, message: Request) -> Future[Any]:
        return self._way.call(to, message)

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        """Watches; the client hears each order before its executor."""

        def heard(order: object) -> None:
            if not self._client.hears(order):
                deliver(order)

        return self._way.watch(message, heard, lost)

    def locate(self, party: str, address: str) -> None:
        self._way.locate(party, address)

    def belong(self, run: bytes) -> None:
        self._way.belong(run)

    def close(self) -> None:
        self._way.close()


def alike(own: MemberSettings, known: dict[Hashable, Any]) -> MemberSettings:
    """Keeps once, in `known`, what the settings of many clients have alike."""
    values = known.setdefault(tuple(own.values.items()), own.values)
    schema, rows = known.setdefault(own.schema, own.schema), own.rows or known.setdefault("", {})
    return replace(own, schema=schema, values=values, rows=rows)
