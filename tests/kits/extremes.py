"""Values far from where they were, and runs of which every machine's steps are remembered."""

import copyreg
import dataclasses
import functools
import itertools
import math
import pickle  # of machines that this process has made
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from secureps.crypto.identity import Identity, PublicIdentity
from secureps.errors import SecurepsError
from secureps.messages.encoding import canonical, field_types, from_plain, to_plain
from secureps.messages.evaluation import Evaluated, evaluated_bytes
from secureps.messages.submission import BlockHeader, Receipt, signing_bytes
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.machine import WORKER, Answer, Answered, Call, Order, Step
from secureps.roles.member.member import Member
from secureps.roles.permissions import MESSAGES
from secureps.roles.shard.shard import Shard
from secureps.wire.msgpack import decode, encode
from tests.kits.unset import empty, unset

copyreg.pickle(
    PublicIdentity, lambda known: (PublicIdentity, (known.key,))
)  # not what OpenSSL made

EXTREMES: dict[type, tuple[Any, ...]] = {
    int: (-(2**63), -1, 0, 1, 2**31, 2**63 - 1),
    float: (-1e308, 5e-324, 1e308),
    str: ("", "c1", "x" * 20_000, "\x00\n\u2028"),
    bytes: (b"", bytes(32), b"\xff" * 64, bytes(20_000)),
    bool: (False, True),
}
UNSENDABLE: dict[type, tuple[Any, ...]] = {
    int: (2**63, 2**64, -(2**63) - 1),
    float: (math.nan, math.inf, -math.inf),
    str: ("\ud800",),
    bytes: (),
    bool: (),
}
MANY = 300


def extremes(
    value: Any, hint: Any, leaves: dict[type, tuple[Any, ...]] = EXTREMES
) -> Iterator[Any]:
    """A value of this type with one of its fields at a time far from where it was."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        (inner, *_) = typing.get_args(hint)
        first = value[0] if value else empty(inner)
        if leaves is EXTREMES:
            yield ()
            yield (first,) * 3
            yield (first,) * MANY
            if value[1:]:
                yield value[::-1]
        yield from ((other, *value[1:]) for other in extremes(first, inner, leaves))
    elif origin is not None:
        (inner, *others) = (each for each in typing.get_args(hint) if each is not type(None))
        if leaves is EXTREMES and not others:
            yield None
        yield from extremes(empty(inner) if value is None else value, inner, leaves)
    elif dataclasses.is_dataclass(hint):
        for name, inner in field_types(typing.cast(type, hint)).items():
            for other in extremes(getattr(value, name), inner, leaves):
                yield dataclasses.replace(value, **{name: other})
    else:
        yield from leaves[hint]


def sendable(event: Any) -> Iterator[Any]:
    """The extremes of a message that cross the wire at all."""
    for other in extremes(event, type(event)):
        with suppress(SecurepsError):
            encode(other)
            yield other


def demand_sent(message: Any) -> None:
    """A message that a machine sends arrives as it is."""
    try:
        sent = encode(message)
    except SecurepsError as error:
        raise AssertionError(f"cannot be sent: {error}: {str(message)[:300]}") from None
    if decode(sent) != message:
        raise AssertionError(f"arrives as another: {str(message)[:300]}")


def demand_kept(step: Step) -> None:
    """What a step journals is read again as it is, and what it sends arrives."""
    for record in step.records:
        canonical(record)
        if from_plain(type(record), to_plain(record)) != record:
            raise AssertionError(f"is read as another: {str(record)[:300]}")
    for effect in step.effects:
        message = getattr(effect, "message", None)
        if isinstance(effect, Answer | Order | Call) and not isinstance(message, SecurepsError):
            demand_sent(message)


def signed_anew(message: Any, identities: dict[str, Identity]) -> Any:
    """The same in which whoever is named has signed what is said in that name, if known here."""
    if isinstance(message, tuple):
        return tuple(signed_anew(item, identities) for item in message)
    if not dataclasses.is_dataclass(message) or isinstance(message, type):
        return message
    inner = {name: signed_anew(getattr(message, name), identities) for name in _nested(message)}
    made = dataclasses.replace(message, **inner)
    if isinstance(made, Receipt | BlockHeader | Evaluated):
        author = made.id.client if isinstance(made, Receipt) else _author(made)
        if author in identities:
            said = evaluated_bytes(made) if isinstance(made, Evaluated) else signing_bytes(made)
            return dataclasses.replace(made, signature=identities[author].sign(*said))
    return made


def _author(made: BlockHeader | Evaluated) -> str:
    return made.author if isinstance(made, BlockHeader) else made.party


def _nested(message: Any) -> list[str]:
    values = ((field.name, getattr(message, field.name)) for field in dataclasses.fields(message))
    return [name for name, value in values if isinstance(value, tuple) or _is_record(value)]


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


MACHINES: tuple[type, ...] = (Coordinator, Shard, BfvHolder, CommitteeHolder, Member)


@dataclasses.dataclass(eq=False)
class Life:
    """What one machine heard, in order; `first` is the machine before that, pickled."""

    kind: type
    first: bytes
    heard: list[tuple[float, str, Any]] = dataclasses.field(default_factory=list)
    records: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Moment:
    """A machine before it heard something of a kind for the first time in a run."""

    life: Life
    at: int
    written: int
    before: bytes

    @property
    def now(self) -> float:
        return self.life.heard[self.at][0]

    @property
    def sender(self) -> str:
        return self.life.heard[self.at][1]

    @property
    def event(self) -> Any:
        return self.life.heard[self.at][2]

    def machine(self) -> Any:
        return pickle.loads(self.before)  # noqa: S301

    def later(self, count: int) -> list[tuple[float, str, Any]]:
        """What it was told from then on, but for answers: it may not have asked."""
        told = (each for each in self.life.heard[self.at :] if type(each[2]) in MESSAGES)
        return list(itertools.islice(told, count))

    def restarted(self, since: list[Any]) -> Any:
        """A machine made from the journal up to then, and from what was written since."""
        return read_again(pickle.loads(self._restarted), since)  # noqa: S301

    @functools.cached_property
    def _restarted(self) -> bytes:
        """One made from the journal up to then, pickled: it is wanted thousands of times."""
        first = pickle.loads(self.life.first)  # noqa: S301
        return pickle.dumps(read_again(first, self.life.records[: self.written]))


def read_again(machine: Any, records: list[Any]) -> Any:
    """The machine, once it has these records as its journal gives them back."""
    for record in records:
        machine.apply(0.0, from_plain(type(record), to_plain(record)))
    return machine


class Watch:
    """Remembers what machines hear, while its patches are in place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.moments: dict[tuple[type, type, type], Moment] = {}
        """By machine, by what it heard, and by the request which that answers (or NoneType)."""
        self._lives: dict[int, Life] = {}
        self._kept: list[Any] = []
        for kind in MACHINES:
            patch.setattr(kind, "resume", self._resuming(kind))
            patch.setattr(kind, "handle", self._handling(kind))

    def _resuming(self, kind: Any) -> Any:
        resume = kind.resume

        def resumed(machine: Any, now: float) -> Step:
            step: Step
            if id(machine) in self._lives:  # it greets again
                step = resume(machine, now)
                return step
            self._kept.append(machine)  # no other may have its id
            life = self._lives[id(machine)] = Life(kind, pickle.dumps(machine))
            step = resume(machine, now)
            life.records += step.records
            return step

        return resumed

    def _handling(self, kind: Any) -> Any:
        handle = kind.handle

        def handled(machine: Any, now: float, sender: str, event: Any) -> Step:
            life = self._lives[id(machine)]
            asked = type(event.request) if isinstance(event, Answered) else type(None)
            key = (kind, type(event), asked)
            if key not in self.moments and sender != WORKER:
                before = pickle.dumps(machine)
                self.moments[key] = Moment(life, len(life.heard), len(life.records), before)
            life.heard.append((now, sender, event))
            step: Step = handle(machine, now, sender, event)
            life.records += step.records
            return step

        return handled

    @property
    def lives(self) -> list[Life]:
        return list(self._lives.values())


def heard_of_each_class(lives: list[Life]) -> dict[type, Any]:
    """One record of every class that was heard, by itself or inside another."""
    found: dict[type, Any] = {}

    def look(value: Any) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        elif dataclasses.is_dataclass(value):
            found.setdefault(type(value), value)
            for field in dataclasses.fields(value):
                look(getattr(value, field.name))

    for life in lives:
        for _, _, event in life.heard:
            look(event)
    return found


def example(kind: type, known: dict[type, Any], who: str) -> Any:
    """A message of this class as it could be said in a run of which these records are known."""
    if kind in known:
        made = known[kind]
    else:
        made = unset(kind)
        for name, hint in field_types(kind).items():
            if hint in known:
                made = dataclasses.replace(made, **{name: known[hint]})
            elif name == "group":
                made = dataclasses.replace(made, group="all")
    names = {name: who for name in ("party", "client", "holder", "shard") if hasattr(made, name)}
    return dataclasses.replace(made, **names)
