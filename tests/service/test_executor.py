"""The executor: records before effects, one transaction per batch, and errors that end a party."""

import errno
import logging
import re
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from secureps.errors import (
    Busy,
    DamagedStore,
    DiskFailed,
    InternalError,
    KitError,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    UnknownParty,
    Unreachable,
)
from secureps.messages.encoding import payload_digest
from secureps.messages.records import Incarnated
from secureps.messages.requests import GetBlock, Heartbeat, Noted, Payload, PutBlock, Subscribe
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import (
    Answer,
    Answered,
    Call,
    Defer,
    Effect,
    Failed,
    Fold,
    Halt,
    Order,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
)
from secureps.service.environment import Environment, Meter
from secureps.service.executor import (
    AGAIN_SECONDS,
    LONGEST_BACKOFF,
    NOTICES,
    Executor,
    Watchers,
    compact_if_due,
    replay,
)
from secureps.service.loop import RealLoop
from secureps.store.journal import MemoryJournal
from tests.kits.executor_kit import ORDER, TASK, DictWorker, Puppet, Recording, Stage, spoken
from tests.kits.roles_kit import CLIENTS, ROSTER, STRANGER

ASK = GetBlock(b"r" * 32, "g", 0, 0)
HEADER = BlockHeader(b"r" * 32, "a", "update", "g", 0, 0, 3, b"d" * 32)


def test_records_of_waiting_events_go_into_one_transaction_before_any_effect() -> None:
    stage = Stage()

    def react(sender: str, event: Any) -> Step:
        stage.log.append("handled")
        return Step([Incarnated(len(stage.machine.heard))], [Answer(Noted())])

    stage.machine._react = react
    answers = [stage.executor.request("a", Heartbeat("a")) for _ in range(3)]
    for answer in answers:
        answer.add_done_callback(lambda _: stage.log.append("answered"))
    stage.play()
    assert stage.log == [*["handled"] * 3, ("journal", (1, 2, 3)), *["answered"] * 3]


@pytest.mark.parametrize("error", [ZeroDivisionError, InternalError])
def test_our_own_error_ends_the_party_and_tells_nothing_of_it(error: type[Exception]) -> None:
    """The machine may have applied records that no journal has; a restart begins without them."""

    def react(sender: str, event: Any) -> Step:
        raise error("secret detail")

    stage = Stage(react)
    answer = stage.ask()
    assert isinstance(answer.exception(), InternalError)
    assert "secret" not in str(answer.exception())
    own = stage.executor.halted.exception()
    assert isinstance(own, InternalError)
    said = rf"failed at Heartbeat: {error.__name__}: secret detail \(test_executor.py:\d+ in react"
    assert re.search(said, str(own)), "its own terminal alone says what it was"


def test_nothing_is_done_when_the_journal_cannot_be_written() -> None:
    stage = Stage(lambda s, e: Step([Incarnated(1)], [Answer(Noted())]))
    executor = stage.build(Recording(stage.log, broken=True))
    answer = executor.request("a", Heartbeat("a"))
    stage.play()
    assert not answer.done()
    assert isinstance(executor.halted.exception(), OSError)


def test_what_comes_while_the_disk_is_full_is_journalled_after_what_it_refused() -> None:
    stage = Stage(lambda s, e: Step([Incarnated(int(s))]))

    class Full(Recording):
        full = True

        def append(self, at: float, records: Sequence[Any]) -> None:
            if self.full:
                self.full = False
                raise DiskFailed("full")
            super().append(at, records)

    executor = stage.build(Full(stage.log))
    executor.post("1", Tick())
    stage.loop.call_later(AGAIN_SECONDS / 2, lambda: executor.post("2", Tick()))
    stage.play()
    assert stage.log == [("journal", (1,)), ("journal", (2,))]


def test_calls_are_tried_again_until_they_are_answered_or_refused() -> None:
    stage = spoken(Call("there", Heartbeat("me")))
    begin = [0.0]
    for tried in range(3):
        stage.loop.run(lambda: len(stage.line.calls) > tried)  # noqa: B023
        begin.append(stage.loop.now())
        stage.line.calls[-1][2].set_exception(Busy("full", 0.4))
    stage.loop.run(lambda: len(stage.line.calls) > 3)
    waits = [b - a for a, b in zip(begin[1:], [*begin[2:], stage.loop.now()])]
    assert waits == pytest.approx([0.4, 0.6, 0.9])
    assert max(waits) <= LONGEST_BACKOFF
    stage.line.calls[-1][2].set_result(Noted())
    stage.play()
    assert stage.machine.heard[-1] == ("there", Answered(Heartbeat("me"), Noted()))


def test_who_was_lost_and_answers_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage(lambda s, e: Step([], [Call("there", Heartbeat("me"))] if s == "a" else []))
    for vain in (NOTICES[0] + 1, 0):
        begun = len(stage.line.calls)
        stage.executor.request("a", Heartbeat("a"))
        for tried in range(vain):
            stage.loop.run(lambda: len(stage.line.calls) > begun + tried)  # noqa: B023
            stage.line.calls[-1][2].set_exception(Unreachable("gone", 0.4))
        stage.loop.run(lambda: len(stage.line.calls) > begun + vain)  # noqa: B023
        stage.line.calls[-1][2].set_result(Noted())
        stage.play()
    told = [message for message in caplog.messages if "there" in message or "gone" in message]
    assert [message.partition(": ")[2] for message in told] == [
        "gone; still trying",
        "there answers again",
    ]


def test_a_wait_that_is_long_is_said_at_once_and_once(caplog: pytest.LogCaptureFixture) -> None:
    """A party that is new on the roster waits for a day, and its operator should know at once."""
    stage = spoken(Call("there", Heartbeat("me")))
    for tried in range(NOTICES[0]):
        stage.loop.run(lambda: len(stage.line.calls) > tried)  # noqa: B023
        text = f"{tried} hours"
        left = LONGEST_BACKOFF if tried == 0 else 60.0
        stage.line.calls[-1][2].set_exception(NotReady(text, left))
    stage.loop.run(lambda: len(stage.line.calls) > NOTICES[0])
    assert [m.partition(": ")[2] for m in caplog.messages] == ["1 hours; still trying"]


def test_a_block_is_kept_before_the_machine_hears_of_it() -> None:
    stage = Stage(lambda s, e: Step([], [Answer(Noted())]))
    good = stage.executor.request("a", PutBlock(HEADER, b"abc"))
    bad = stage.executor.request("a", PutBlock(HEADER, b"bad"))
    stage.play()
    assert good.result() == Noted()
    assert isinstance(bad.exception(), Malformed)
    assert stage.machine.heard == [("a", PutBlock(HEADER))]
    assert stage.worker.kept["kept"] == b"abc"


def test_a_known_block_is_answered_without_being_kept_again() -> None:
    stage = Stage(lambda s, e: Step([], [Answer(Noted())]))
    stage.machine.wants = False
    answer = stage.executor.request("a", PutBlock(HEADER, b"other"))
    stage.play()
    assert answer.result() == Noted()
    assert "kept" not in stage.worker.kept


@pytest.mark.parametrize(
    ("error", "told"), [(Refused("lost"), "lost"), (KeyError("k"), "a stored payload cannot be")]
)
def test_a_payload_that_cannot_be_fetched(error: Exception, told: str) -> None:
    """A PeerError of the worker is the caller's answer; any other error ends this party."""
    stage = Stage(lambda s, e: Step([], [Answer(Payload(b"d" * 32), attach="k")]))

    def fetch(key: str) -> bytes:
        raise error

    stage.worker.fetch = fetch  # type: ignore[method-assign]
    answer = stage.ask()
    assert told in str(answer.exception())
    if isinstance(error, Refused):
        assert answer.exception() is error
        assert not stage.executor.halted.done()
    else:
        assert stage.executor.halted.exception() is error


def test_a_refused_subscription_ends_the_stream_with_the_reason() -> None:
    def react(sender: str, event: Any) -> Step:
        if isinstance(event, Subscribe):
            raise UnknownParty("speak for yourself")
        return Step([], [Order("a", ORDER)])

    stage = Stage(react)
    heard: list[Any] = []
    stage.executor.subscribe("a", Subscribe("b", ()), heard.append)
    stage.play()
    stage.ask("c")
    assert [str(order) for order in heard] == ["speak for yourself"]
    assert isinstance(heard[0], UnknownParty)
    assert ("a", WatchLost()) in stage.machine.heard


@pytest.mark.parametrize("kind", [UnknownParty, KitError])
def test_who_is_refused_the_stream_of_orders_does_not_ask_again(kind: type[SecurepsError]) -> None:
    stage = spoken(Watch())
    stage.play()
    error = kind("speak for yourself")
    stage.line.lost[0](error)
    stage.play()
    assert stage.machine.heard[-1] == ("coordinator", Failed(Subscribe("me", ()), error))
    assert len(stage.line.lost) == 1


def test_work_that_fails_for_no_known_reason_ends_the_party() -> None:
    stage = spoken(Work(TASK))
    stage.worker.result = KeyError("lost")
    stage.play()
    assert isinstance(stage.executor.halted.exception(), KeyError)


def test_a_payload_without_its_digest_is_refused() -> None:
    stage = spoken(Call("there", ASK))
    stage.play()
    stage.line.calls[0][2].set_result(Payload(payload_digest(b"abc"), b"abd"))
    stage.play()
    failed = stage.machine.heard[-1][1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Malformed)
    assert "kept" not in stage.worker.kept


def test_what_answers_another_request_is_no_answer() -> None:
    """A role's machine would fail at an answer of another type."""
    stage = spoken(Call("there", ASK))
    stage.play()
    stage.line.calls[0][2].set_result(Noted())
    stage.play()
    failed = stage.machine.heard[-1][1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Malformed)
    text = "there answered GetBlock with Noted, and not with Payload: it is no secureps server of"
    assert text in str(failed.error)
    assert not stage.executor.halted.done()


def test_a_halt_is_the_end() -> None:
    stage = Stage(lambda s, e: Step([], [Halt("over"), Work(TASK)]))
    stage.ask()
    assert stage.executor.halted.result() == Halt("over")
    stage.ask()
    assert len(stage.machine.heard) == 1


def test_who_waits_for_an_answer_hears_of_a_stop() -> None:
    """This holds for requests on the loop and in the worker."""
    stage = Stage(
        lambda s, e: Step([], [Answer(Payload(b"d" * 32), attach="k")] if s == "a" else [])
    )
    fetching = stage.executor.request("a", Heartbeat("a"))
    stage.loop.run(lambda: len(stage.machine.heard) == 1)
    keeping = stage.executor.request("b", PutBlock(HEADER, b"abc"))
    fresh = stage.executor.request("b", Heartbeat("b"))
    assert not any(answer.done() for answer in (fetching, keeping, fresh))
    stage.executor.stop()
    for answer in (fetching, keeping, fresh, stage.executor.request("b", Heartbeat("b"))):
        error = answer.exception(0)
        assert isinstance(error, Unreachable)
        assert str(error) == "me is stopping"
        assert error.retry_after is not None
    stage.play()
    assert stage.executor.halted.result() == Halt("stopped")
    assert len(stage.machine.heard) == 1
    assert "kept" not in stage.worker.kept, "the dead do not write"
    stage.executor.stop()


def test_a_stop_in_the_middle_of_a_batch_keeps_what_is_journalled() -> None:
    stage = Stage(lambda s, e: Step([Incarnated(1)], [Answer(Noted())]))

    class Stopping(Recording):
        def append(self, at: float, records: Sequence[Any]) -> None:
            super().append(at, records)
            executor.stop()

    executor = stage.build(Stopping(stage.log))
    answer = executor.request("a", Heartbeat("a"))
    stage.play()
    assert stage.log == [("journal", (1,))]
    assert isinstance(answer.exception(0), Unreachable), "it asks again, and nothing is lost"
    assert executor.halted.result() == Halt("stopped")


def test_works_that_are_called_off_make_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """In a real loop one work runs and those behind it are cancelled."""
    begun, go = threading.Event(), threading.Event()
    stage = Stage()
    loop = RealLoop()

    class Slow(DictWorker):
        def fetch(self, key: str) -> bytes:
            begun.set()
            go.wait(20)
            return super().fetch(key)

    machine = Puppet(lambda s, e: Step([], [Answer(Payload(b"d" * 32), attach="k")]))
    around = Environment(stage.line, loop, lambda: 1.0)
    executor = Executor("me", machine, stage.journal, around, Slow())
    thread = threading.Thread(target=loop.run)
    thread.start()
    answers = [executor.request("a", Heartbeat("a")) for _ in range(3)]
    assert begun.wait(20)
    executor.stop()
    loop.stop()
    go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert all(isinstance(answer.exception(0), Unreachable) for answer in answers)
    assert caplog.records == []


def test_orders_reach_the_newest_watcher_alone() -> None:
    stage = Stage(lambda s, e: Step([], [Order("w", ORDER)] if s == "a" else []))
    old: list[Any] = []
    new: list[Any] = []
    cancel_old = stage.executor.subscribe("w", Subscribe("w", ()), old.append)
    stage.executor.subscribe("w", Subscribe("w", ()), new.append)
    stage.ask()
    (taken,) = old
    assert new == [ORDER]
    assert isinstance(taken, KitError)
    assert "another process with w's kit" in str(taken)
    cancel_old()
    stage.play()
    assert ("w", WatchLost()) not in stage.machine.heard


def test_a_meter_hears_of_requests_calls_records_and_works() -> None:
    effects: list[Effect] = [
        Answer(Noted()),
        Call("there", PutBlock(HEADER), attach="k"),
        Work(TASK),
    ]
    told, meter = list[tuple[Any, ...]](), Meter()
    for name in ("on_request", "on_call", "on_retry", "on_records", "on_work", "on_state"):
        setattr(meter, name, partial(lambda *said: told.append(said[:2]), name))
    stage = Stage(lambda s, e: Step([Incarnated(1)], effects) if s == "a" else Step(), meter)
    stage.executor.request("a", Heartbeat("a"))
    stage.loop.run(lambda: len(stage.line.calls) == 1)
    stage.line.calls[0][2].set_exception(Busy("full", 0.4))
    stage.play()
    put, stands = ("on_call", PutBlock(HEADER, b"abc")), ("on_state", stage.machine)
    first = [("on_request", Heartbeat("a")), ("on_records", [Incarnated(1)]), stands]
    assert told[:4] == [*first, put], "it stands after the records, before any effect"
    rest = [each for each in told[4:] if each != stands]
    assert rest[0] == ("on_retry", "there")
    assert sorted(rest[1:], key=repr) == sorted([put, ("on_work", "task")], key=repr)


def test_what_cannot_be_read_is_sent_when_the_disk_works_again() -> None:
    call = Call("there", PutBlock(HEADER), attach="k")
    stage = Stage(lambda s, e: Step([], [call] if s == "a" else []))
    right, left = stage.worker.fetch, [2]

    def fetch(key: str) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, "Input/output error", "spool/k")
        return right(key)

    stage.worker.fetch = fetch  # type: ignore[method-assign]
    stage.ask()
    assert [message for _, message, _ in stage.line.calls] == [PutBlock(HEADER, b"abc")]
    refused = "waits for its own disk: [Errno 5] Input/output error: 'spool/k'"
    assert stage.machine.troubles == [refused, ""]
    assert not stage.executor.halted.done()


def test_what_else_is_wrong_stands_beside_what_the_disk_refuses_until_it_is_taken_back() -> None:
    stage = Stage(lambda s, e: Step([], [Work(TASK)] if s == "a" else []))
    stage.executor.trouble("does not copy checkpoints: down")
    stage.play()
    assert stage.machine.troubles == ["does not copy checkpoints: down"]
    stage.worker.result = DiskFailed("full")
    stage.executor.request("a", Heartbeat("a"))
    stage.loop.run(lambda: len(stage.machine.troubles) > 1)
    both = "waits for its own disk: full; does not copy checkpoints: down"
    assert stage.machine.troubles[1] == both
    stage.executor.trouble("")
    stage.loop.run(lambda: len(stage.machine.troubles) > 2)
    assert stage.machine.troubles[2] == "waits for its own disk: full"


def test_what_is_deferred_is_answered_with_all_of_its_ticket() -> None:
    later: dict[str, Effect] = {
        "first": Defer("t"),
        "second": Defer("t"),
        "last": Answer(Noted(), ticket="t"),
    }
    stage = Stage(lambda sender, event: Step([], [later[sender]] if sender in later else []))
    first, second = (stage.executor.request(name, Heartbeat(name)) for name in ("first", "second"))
    stage.play()
    assert not first.done()
    last = stage.ask("last")
    assert first.result(0) == second.result(0) == Noted()
    with pytest.raises(Malformed, match="has no answer to a Heartbeat"):
        last.result(0)


def test_who_is_on_the_roster_no_more_hears_nothing_more() -> None:
    ended, heard = list[str](), {name: list[Any]() for name in (*CLIENTS, STRANGER)}
    watchers = Watchers(ended.append)
    for name, orders in heard.items():
        watchers.begin(name, orders.append)
    watchers.keep_to(ROSTER)
    (gone,) = heard[STRANGER]
    assert isinstance(gone, UnknownParty)
    assert ended == [STRANGER]
    assert not any(heard[name] for name in CLIENTS)


FOLD = Fold((Incarnated(1),), {"numbers": [1, 2]})


class Compacted(MemoryJournal):
    """A journal that is due when a test says so."""

    def __init__(self, fold: Fold | None = None, full: bool = False) -> None:
        super().__init__()
        self.known, self.full, self.wanted = fold, full, True
        self.rotten = False

    @property
    def fold(self) -> Fold | None:
        return self.known

    @property
    def is_due(self) -> bool:
        return self.wanted

    def compact(self, fold: Fold) -> None:
        if self.rotten:
            raise DamagedStore("journal.db: row 2 does not match its digest")
        if self.full:
            raise DiskFailed("journal.db: cannot compact: no space left")
        self.known, self.wanted = fold, False


class Counting(Puppet):
    """A machine whose state is the applied numbers."""

    def make_fold(self) -> Fold:
        return Fold((), {"numbers": [record.number for record in self.applied]})

    def unfold(self, fold: Fold) -> None:
        self.applied = [Incarnated(number) for number in fold.state["numbers"]]


def silent(sender: str, event: Any) -> Step:
    return Step()


def test_a_start_begins_with_the_fold_and_applies_the_rows_after_it() -> None:
    journal, machine = Compacted(FOLD), Counting(silent)
    journal.append(3.0, [Incarnated(3), Incarnated(4)])
    assert list(replay(machine, journal)) == [*FOLD.records, Incarnated(3), Incarnated(4)]
    assert [record.number for record in machine.applied] == [1, 2, 3, 4]


def test_a_machine_that_folds_nothing_takes_up_no_fold() -> None:
    with pytest.raises(DamagedStore, match="was compacted, and this party compacts none"):
        list(replay(Puppet(silent), Compacted(FOLD)))


def test_it_is_compacted_when_it_is_due() -> None:
    journal, machine = Compacted(), Counting(silent)
    machine.applied = [Incarnated(7)]
    compact_if_due("me", machine, journal)
    assert journal.known == Fold((), {"numbers": [7]})
    machine.applied.append(Incarnated(8))
    compact_if_due("me", machine, journal)
    assert journal.known == Fold((), {"numbers": [7]})
    journal.wanted = True
    compact_if_due("me", Puppet(silent), journal)
    assert journal.known == Fold((), {"numbers": [7]}), "another machine folds nothing"


def test_a_full_disk_is_told_of_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    journal, machine = Compacted(full=True), Counting(silent)
    with caplog.at_level(logging.WARNING):
        compact_if_due("me", machine, journal)
    assert "its journal is not compacted: journal.db: cannot compact" in caplog.text
    journal.full = False
    compact_if_due("me", machine, journal)
    assert journal.known is not None


def test_a_rotten_row_ends_the_party_and_is_no_matter_of_room() -> None:
    journal = Compacted()
    journal.rotten = True
    with pytest.raises(DamagedStore, match="row 2"):
        compact_if_due("me", Counting(silent), journal)
