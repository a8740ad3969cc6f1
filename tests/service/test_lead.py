"""A coordinator acts only on records that its standby has."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Busy, Conflict, Refused, SecurepsError
from secureps.messages.coordinator_records import ShardLeft, StandbyFollows
from secureps.messages.encoding import payload_digest
from secureps.messages.records import Dated, Incarnated
from secureps.messages.requests import CopyPart, Follow, Heartbeat, JournalRow, Noted, Reply, Rows
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.reign import Standby
from secureps.roles.machine import WORKER, Answer, Answered, Call, Fold, Halt, Step, Work
from secureps.service import lead as module
from secureps.service.environment import Environment
from secureps.service.lead import ALONE, AWAY, PAUSE, Lead, StandbyWorker
from secureps.service.loop import VirtualLoop
from secureps.store.backup import CopyParts
from secureps.store.journal import DatedJournal, MemoryJournal, SqliteJournal
from secureps.store.journal_rows import START, Mark
from tests.kits.executor_kit import DictWorker, Line, Puppet
from tests.kits.roles_kit import ROSTER, make_plan

ONE, TWO = b"1" * 16, b"2" * 16
SAID = Heartbeat("c0")


class Folding(Puppet):
    """A machine whose journal may be compacted."""

    def make_fold(self) -> Fold:
        return Fold((), None)

    def unfold(self, fold: Fold) -> None:
        raise AssertionError


class Reader(Folding):
    """A machine that takes any fold."""

    def unfold(self, fold: Fold) -> None:
        pass


class Compacting(MemoryJournal):
    """A journal that is compacted as often as possible; records after how many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted: list[int] = []

    @property
    def is_due(self) -> bool:
        return True

    @property
    def fold_mark(self) -> Mark:
        return Mark(self.compacted[-1], b"") if self.compacted else START

    def compact(self, fold: Fold) -> None:
        self.compacted.append(len(self.rows))


class Scene:
    """A coordinator whose machine answers every request with a record."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.loop = VirtualLoop()
        self.machine = Folding(self._react)
        self.journal = MemoryJournal() if journal is None else journal
        around = Environment(Line(), self.loop, lambda: 1.0)
        self.lead = Lead(self.machine, self.journal, around, DictWorker())
        self.lead.start()
        self.play()

    def _react(self, sender: str, event: Any) -> Step:
        if isinstance(event, StandbyFollows):
            return Step([Incarnated(100)])
        if event == SAID:
            return Step([Incarnated(len(self.journal.rows) + 1)], [Answer(Noted())])
        return Step(effects=[Answer(Noted())])

    def play(self, seconds: float = 0.0) -> None:
        until = self.loop.now() + seconds
        self.loop.call_later(seconds, lambda: None)
        self.loop.run(lambda: self.loop.now() >= until and not self._due())

    def _due(self) -> bool:
        return bool(self.loop._heap) and self.loop._heap[0][0] <= self.loop.now()

    def say(self, message: Any = SAID, sender: str = "c0") -> Future[Reply]:
        answer = self.lead.request(sender, message)
        self.play()
        return answer

    def follow(self, seq: int, standby: bytes = ONE) -> Future[Reply]:
        return self.say(Follow(standby, seq, b""), COORDINATOR)


def rows_of(answer: Future[Reply]) -> tuple[JournalRow, ...]:
    reply = answer.result(0)
    assert isinstance(reply, Rows)
    return reply.rows


def error_of(answer: Future[Reply]) -> SecurepsError:
    error = answer.exception(0)
    assert isinstance(error, SecurepsError)
    return error


@pytest.fixture(name="scene")
def caught_up() -> Scene:
    """A standby gets all rows, so that the coordinator waits for it."""
    scene = Scene()
    scene.say()
    first = scene.follow(0)
    assert [row.kind for row in rows_of(first)] == ["Incarnated"]
    then = scene.follow(1)
    assert [row.kind for row in rows_of(then)] == ["Incarnated"], "of what it was told: caught up"
    assert (scene.machine.heard[-1]) == ("(worker)", StandbyFollows(ONE))
    return scene


def test_nobody_waits_for_a_standby_that_has_not_caught_up() -> None:
    scene = Scene()
    assert scene.say().done()
    scene.follow(0)
    assert scene.say().done()


def test_an_answer_waits_until_the_standby_has_its_record(scene: Scene) -> None:
    asks = scene.follow(2)
    said = scene.say()
    assert not said.done()
    assert len(rows_of(asks)) == 1
    scene.follow(3)
    assert said.result(0) == Noted()


def test_what_waits_is_acted_on_in_its_order(scene: Scene) -> None:
    first, second = scene.say(), scene.say(Heartbeat("other"))
    assert not second.done(), "without a record, and it may rest on one that is not there yet"
    scene.follow(2)
    assert not first.done()
    scene.follow(3)
    assert first.done()
    assert second.done()


def test_a_standby_hears_that_there_is_nothing_new(scene: Scene) -> None:
    asks = scene.follow(2)
    assert not asks.done()
    scene.play(PAUSE)
    assert rows_of(asks) == ()


def test_one_that_is_away_is_not_waited_for(scene: Scene) -> None:
    scene.follow(2)
    scene.play(AWAY - 0.1)
    said = scene.say()
    assert not scene.lead.halted.done()
    scene.play(0.2)
    assert scene.lead.halted.result(0) == Halt(ALONE)
    assert not said.done()
    scene.lead.stop()
    assert said.exception(0) is not None, "nothing of it was acknowledged"


def test_one_that_asks_again_and_again_is_not_away(scene: Scene) -> None:
    for _ in range(4):
        scene.follow(2)
        scene.play(AWAY - 0.5)
    assert not scene.lead.halted.done()


def test_another_standby_is_refused_while_one_follows(scene: Scene) -> None:
    error = error_of(scene.follow(2, TWO))
    assert isinstance(error, Busy)
    assert "another standby follows this coordinator" in str(error)


@pytest.mark.parametrize("seq", [-1, 99])
def test_a_journal_that_is_no_beginning_of_this_one(seq: int) -> None:
    scene = Scene()
    scene.say()
    error = error_of(scene.follow(seq))
    assert isinstance(error, Conflict)
    assert str(error).startswith(
        "this standby's journal has rows that the coordinator's does not have: "
    )


def test_nobody_else_reads_the_journal() -> None:
    scene = Scene()
    assert scene.say(Follow(ONE, 0, b""), "c0").result(0) == Noted()
    assert scene.machine.heard[-1] == ("c0", Follow(ONE, 0, b""))


def test_whoever_must_end_waits_for_nobody(scene: Scene) -> None:
    said = scene.say()
    scene.machine._react = lambda sender, event: Step(effects=[Halt("over")])
    scene.say(Heartbeat("c1"))
    assert scene.lead.halted.result(0) == Halt("over")
    assert not said.done()


def test_no_row_goes_that_a_standby_which_is_heard_lacks() -> None:
    journal = Compacting()
    scene = Scene(journal)
    scene.say()
    scene.say()
    assert journal.compacted[-2:] == [1, 2], "of nobody's concern"
    scene.follow(0)
    scene.say()
    assert journal.compacted[-1] == 2, "with the next fold, row 2 would be gone"
    scene.follow(2)
    scene.say()
    assert journal.compacted[-1] == len(journal.rows)


def test_a_standby_that_went_away_keeps_no_row() -> None:
    journal = Compacting()
    scene = Scene(journal)
    scene.say()
    scene.follow(0)
    scene.play(AWAY)
    scene.say()
    assert journal.compacted[-1] == len(journal.rows) == 2


class Gone(MemoryJournal):
    """A journal whose first row is compacted."""

    copies, first = 0, 1

    def read_after(self, mark: Mark, most: int) -> tuple[JournalRow, ...]:
        if mark.seq < self.first:
            raise Refused("rows up to 1 are compacted")
        return super().read_after(mark, most)

    def serialize(self) -> bytes:
        self.copies += 1
        return bytes([self.copies]) * 10


def part_of(answer: Future[Reply]) -> CopyPart:
    reply = answer.result(0)
    assert isinstance(reply, Rows)
    assert reply.rows == ()
    assert reply.part is not None
    return reply.part


def test_where_rows_are_gone_a_copy_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 4)
    journal = Gone()
    scene = Scene(journal)
    scene.say()
    came, have, digest = [], 0, b""
    for _ in range(3):
        part = part_of(scene.say(Follow(ONE, 0, b"", digest, have), COORDINATOR))
        came.append((part.offset, part.part))
        have, digest = part.offset + len(part.part), part.digest
    assert came == [(0, b"\1" * 4), (4, b"\1" * 4), (8, b"\1" * 2)]
    assert (part.size, digest, journal.copies) == (10, payload_digest(b"\1" * 10), 1)
    part = part_of(scene.say(Follow(ONE, 0, b"", b"another", 8), COORDINATOR))
    assert (part.offset, journal.copies) == (0, 2), "of one that is not there any more: a new one"
    for have in (-1, 10, 1 << 60):
        assert part_of(scene.say(Follow(ONE, 0, b"", part.digest, have), COORDINATOR)).offset == 0
    scene.follow(1)
    assert scene.lead._copy is None


def begins(scene: Scene) -> CopyPart:
    return part_of(scene.say(Follow(ONE, 0, b""), COORDINATOR))


def test_who_asks_again_is_sent_the_copy_that_is_there() -> None:
    """A new copy would take as long again, and the standby might never get one."""
    journal = Gone()
    scene = Scene(journal)
    scene.say()
    assert [begins(scene).part for _ in range(2)] == [b"\1" * 10] * 2
    assert journal.copies == 1


def test_a_copy_goes_with_the_standby_that_it_is_for() -> None:
    scene = Scene(Gone())
    scene.say()
    begins(scene)
    scene.play(AWAY - 1)
    begins(scene)
    scene.play(AWAY - 1)
    assert scene.lead._copy is not None, "it asked again"
    scene.play(1)
    assert scene.lead._copy is None


def test_that_a_shard_has_left_is_confirmed_once_a_standby_has_it(scene: Scene) -> None:
    scene.machine._react = lambda sender, event: Step([ShardLeft("shard-a", "away")])
    scene.say()
    heard = len(scene.machine.heard)
    scene.follow(2)
    assert len(scene.machine.heard) == heard, "it lacks it"
    scene.follow(3)
    assert scene.machine.heard[heard:] == [("(worker)", StandbyFollows(ONE))]


def test_a_standby_asks_for_what_follows_the_rows_of_its_journal(tmp_path: Path) -> None:
    """Also after rows that no machine applies, after a compaction, and after a restart."""
    first = MemoryJournal()
    for number in range(1, 7):
        first.append(0.0, [Dated(1.7e9, COORDINATOR, COORDINATOR), Incarnated(number)])
    for rows in ((1, 3, 2), (4, 2)):
        file = SqliteJournal(tmp_path / "journal.db", least=1)
        journal = DatedJournal(file, COORDINATOR, COORDINATOR, lambda: 1.8e9)
        machine = Standby(make_plan("plain"), ROSTER, ONE, journal.mark.seq, journal.mark.chain)
        worker = StandbyWorker(journal, Reader(lambda *_: Step()), CopyParts(tmp_path))
        step = machine.resume(0.0)
        for count in rows:
            ask = Follow(ONE, journal.mark.seq, journal.mark.chain)
            assert step.effects == [Call(COORDINATOR, ask)]
            new = Rows(first.read_after(journal.mark, 0)[:count])
            taken = machine.handle(1.0, COORDINATOR, Answered(ask, new))
            assert taken.effects == [Work(new)]
            step = machine.handle(2.0, WORKER, worker.work(new))
        assert file.fold is not None, "it was compacted meanwhile"
        assert step.effects == [
            Call(COORDINATOR, Follow(ONE, journal.mark.seq, journal.mark.chain))
        ]
        journal.close()
    assert journal.mark == first.mark
