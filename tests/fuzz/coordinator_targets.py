"""What whoever holds the coordinator's own key says: to the coordinator, and to its standby."""

import shutil
from pathlib import Path
from typing import Any, TypeVar

from secureps.errors import Malformed, SecurepsError
from secureps.messages.acts import Act, Deed
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.encoding import payload_digest
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import CopyPart, Follow, Noted, Rows, TakeOver
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.reign import Standby
from secureps.roles.machine import Answer, Step
from secureps.service.environment import Environment
from secureps.service.lead import Lead
from secureps.service.loop import VirtualLoop
from secureps.store.backup import CopyParts
from secureps.store.journal import MemoryJournal
from secureps.wire.msgpack import decode, encode
from tests.fuzz.target import Target
from tests.kits.executor_kit import DictWorker, Line, Puppet
from tests.kits.roles_kit import ROSTER, collecting

T = TypeVar("T")
NUMBER = b"n" * 16
ROWS = 3
FOUNDED = collecting("bfv")


def targets(folder: Path) -> list[Target]:
    acts = [Act(deed, "", "because") for deed in (Deed.PAUSE, Deed.CHECKPOINT)]
    acts += [Act(Deed.LEAVE_OUT, "c1", "because")]
    follows = [Follow(NUMBER, seq, b"") for seq in range(ROWS + 1)]
    whole = b"the whole of a copy"
    parts = [Rows((), CopyPart(payload_digest(whole), len(whole), 0, whole[:9]))]

    def kept(data: bytes) -> bytes:
        """A first part; a whole copy has to be a journal, which `store_targets` have."""
        said = _of(Rows, data)
        shutil.rmtree(folder / "copy", ignore_errors=True)
        if said.part is None:
            raise Malformed("no part")
        CopyParts(folder).keep(said.part)
        return encode(said)

    return [
        Target("act", ("roles.coordinator.coordinator:do_act",), _encoded(acts), _act, cost=100),
        Target("follow", ("service.lead:Lead._hear_standby",), _encoded(follows), _follow, cost=5),
        Target(
            "take-over",
            ("roles.coordinator.reign:Standby._take_over",),
            _encoded([TakeOver()]),
            _take_over,
            cost=5,
        ),
        Target("copy-part", ("store.backup:CopyParts.keep",), _encoded(parts), kept, cost=5),
    ]


def _encoded(messages: list[Any]) -> tuple[bytes, ...]:
    return tuple(map(encode, messages))


def _of(kind: type[T], data: bytes) -> T:
    said = decode(data)
    if not isinstance(said, kind):
        raise Malformed(f"no {kind.__name__}")
    return said


def _act(data: bytes) -> bytes:
    act = _of(Act, data)
    step = collecting().give(COORDINATOR, act)
    assert step.effects[-1] == Answer(Noted())
    return encode(act)


def _follow(data: bytes) -> bytes:
    said, loop = _of(Follow, data), VirtualLoop()
    journal = MemoryJournal([(0.0, Incarnated(number)) for number in range(1, ROWS + 1)])
    machine = Puppet(lambda sender, event: Step())
    lead = Lead(machine, journal, Environment(Line(), loop, lambda: 1.0), DictWorker())
    lead.start()
    answer = lead.request(COORDINATOR, said)
    loop.run(answer.done)
    if isinstance(error := answer.exception(), SecurepsError):
        raise error
    assert isinstance(answer.result(), Rows)
    return encode(said)


def _take_over(data: bytes) -> bytes:
    said = _of(TakeOver, data)
    standby = Standby(FOUNDED.plan, ROSTER, NUMBER, 2, b"")
    for record in (Incarnated(1), StandbyFollows(NUMBER), FOUNDED.federation.pinned):
        assert record is not None
        standby.apply(0.0, record)
    standby.resume(0.0)
    step = standby.handle(0.0, COORDINATOR, said)
    assert step.records == [Incarnated(REIGN, NUMBER)]
    assert step.effects[0] == Answer(Noted())
    return encode(said)
