"""A coordinator is lost for good, and its standby takes over: the model is the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.errors import Fenced, NotReady, Refused, UnknownParty, Unreachable
from secureps.messages.coordinator_records import Received, StandbyFollows
from secureps.messages.following import Follow, TakeOver
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import AskStatus, Register, Retire, Status
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.roles.coordinator import reign
from secureps.roles.coordinator.checkpoint import CheckpointState
from secureps.roles.coordinator.reign import STALE, SUPERSEDED
from secureps.roles.coordinator.standby import BEGINS, REACHED, SILENT, Standby
from secureps.roles.machine import Halt
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.service.lead import AWAY
from secureps.store import compaction
from secureps.store.copy_parts import begin, has_copy
from secureps.store.journal import MemoryJournal, SqliteJournal
from tests.kits.federations import finished, same, small_federation, small_plan, unharmed


def followed(folder: Path, cipher: str = "rlwe", slow: float = 0.01) -> Simulation:
    """A federation whose coordinator has a standby."""
    conditions = Conditions(standby=True, delay=lambda sender, to, message: slow)
    return small_federation(small_plan(cipher), folder, conditions)


def follows(simulation: Simulation) -> bool:
    machine = simulation.parties[STANDBY].machine
    return isinstance(machine, Standby) and machine.follows


def reached(simulation: Simulation, version: int) -> Callable[[], bool]:
    return lambda: follows(simulation) and simulation.versions() == {"all": version}


def rows(simulation: Simulation, place: str) -> list[object]:
    journal = simulation._stores[place].journal
    assert isinstance(journal, MemoryJournal)
    return [record for _, record in journal.rows]


def order(simulation: Simulation) -> None:
    """An operator's command, heard by the standby alone."""
    answer = simulation.parties[STANDBY].request(COORDINATOR, TakeOver())
    simulation.run(answer.done)
    answer.result()


def ends(simulation: Simulation) -> None:
    """Plays to the end of the run, under whoever rules then."""
    until = simulation.loop.now() + 600
    simulation.run(lambda: finished(simulation) or simulation.loop.now() > until)
    assert finished(simulation), simulation.reasons()


def refusal(simulation: Simulation, place: str) -> str:
    """Plays until a coordinator, or standby, ends, and clears it away: why it did."""
    party = simulation.parties[place]
    with pytest.raises(Refused):
        simulation.run(party.halted.done)
    halt = party.halted.result()
    assert halt.error is Fenced
    simulation.kill(place)
    return halt.reason


def test_a_standby_changes_nothing(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])
    assert simulation.ruler == COORDINATOR
    copy, own = rows(simulation, STANDBY), rows(simulation, COORDINATOR)
    assert copy == own[: len(copy)]
    assert any(isinstance(record, StandbyFollows) and record.standby for record in copy)


@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
@pytest.mark.parametrize("version", [0, 2])
def test_it_takes_over_by_itself_from_one_that_is_lost(
    version: int, cipher: str, tmp_path: Path
) -> None:
    simulation = followed(tmp_path, cipher)
    simulation.run(reached(simulation, version))
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert simulation.coordinator.federation.incarnation // REIGN == 1
    assert same(simulation.model(), unharmed("plain")[0])


def test_it_takes_over_by_command_and_the_other_one_ends(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    order(simulation)
    assert refusal(simulation, COORDINATOR) == SUPERSEDED
    ends(simulation)
    assert simulation.ruler == STANDBY
    assert same(simulation.model(), unharmed("plain")[0])


def test_what_was_acknowledged_is_there_after_a_takeover(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    journal = rows(simulation, COORDINATOR)
    simulation.run(lambda: isinstance(rows(simulation, COORDINATOR)[-1], Received))
    said = {row.receipt.id for row in journal if isinstance(row, Received)}
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    copy = rows(simulation, STANDBY)
    assert said <= {row.receipt.id for row in copy if isinstance(row, Received)}


def test_one_that_comes_back_changes_nothing_and_ends(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    simulation.start(COORDINATOR)
    assert refusal(simulation, COORDINATOR) == SUPERSEDED
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_the_coordinator_goes_on_without_a_standby_that_is_away(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill(STANDBY)
    lost = simulation.loop.now()
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])
    starts = [r.number for r in rows(simulation, COORDINATOR) if isinstance(r, Incarnated)]
    assert starts == [1, 2]
    assert simulation.loop.now() >= lost + AWAY - 1.0


def test_one_that_was_away_takes_over_by_no_means(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill(STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    simulation.kill(COORDINATOR)
    simulation.start(STANDBY)
    assert refusal(simulation, STANDBY) == STALE
    assert STALE.startswith("the coordinator went on without this standby, and has what this one ")
    simulation.start(COORDINATOR)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def newest(simulation: Simulation) -> CheckpointState:
    return simulation.coordinator.federation.checkpoints[-1]


def test_a_shard_whose_disk_is_lost_does_not_help_it_either(tmp_path: Path) -> None:
    """It would say that it obeyed nobody, where it obeyed the one that went on alone."""
    simulation = followed(tmp_path, "plain")
    simulation.run(reached(simulation, 1))
    simulation.kill(STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    simulation.run(lambda: newest(simulation).complete and newest(simulation).version_of("all") > 1)
    for place in (COORDINATOR, "shard-0", "shard-1"):
        simulation.kill(place)
    simulation.lose("shard-0")
    simulation.start("shard-0")
    simulation.start(STANDBY)
    later(simulation, 60)
    assert simulation.ruler == COORDINATOR, "nobody has taken over"
    simulation.start("shard-1")
    assert refusal(simulation, STANDBY) == STALE
    simulation.lose(STANDBY)
    simulation.start(COORDINATOR)
    simulation.start(STANDBY)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_one_that_lacks_something_is_commanded_in_vain(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(lambda: not follows(simulation) and STANDBY in simulation.parties)
    with pytest.raises(Refused, match="does not have all"):
        order(simulation)


def test_who_looks_for_the_coordinator_at_its_standby_is_sent_on(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 0))
    answer = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(answer.done)
    with pytest.raises(Unreachable, match="a standby is here: the coordinator rules elsewhere"):
        answer.result()
    for sender in ("client-00", "shard-0", "holder-0"):
        for message in (TakeOver(), Follow(b"", 0, b"")):
            answer = simulation.parties[STANDBY].request(sender, message)
            simulation.run(answer.done)
            with pytest.raises(UnknownParty):
                answer.result()


def test_a_coordinator_that_rules_takes_nothing_over(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 0))
    answer = simulation.parties[COORDINATOR].request(COORDINATOR, TakeOver())
    simulation.run(answer.done)
    with pytest.raises(Refused, match="it rules already"):
        answer.result()


def later(simulation: Simulation, seconds: float) -> None:
    """Plays on for a while."""
    until = simulation.loop.now() + seconds
    simulation.run(lambda: simulation.loop.now() > until)


def left(simulation: Simulation, place: str) -> None:
    """A client's request, which only a coordinator that rules acknowledges."""
    answer = simulation.parties[place].request("client-00", Retire("client-00"))
    simulation.run(answer.done)
    answer.result()


def test_nothing_is_acknowledged_before_a_shard_obeys(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill("shard-0")
    simulation.kill("shard-1")
    order(simulation)
    refusal(simulation, COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY and bool(simulation.coordinator.servers))
    versions = simulation.versions()
    later(simulation, 30)
    with pytest.raises(NotReady, match="waits for a shard to obey it, for another one could rule"):
        left(simulation, STANDBY)
    answer = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(answer.done)
    status = answer.result()
    assert isinstance(status, Status)
    (group,) = status.groups
    assert group.reason.startswith("waits for a shard to obey it, for another one could rule; ")
    assert simulation.versions() == versions
    for shard in ("shard-0", "shard-1"):
        simulation.start(shard)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_it_rules_with_the_shards_that_it_reaches(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill("shard-1")
    simulation.kill(COORDINATOR)
    silent = simulation.loop.now()
    simulation.run(lambda: simulation.ruler == STANDBY)
    assert simulation.loop.now() >= silent + REACHED - 1.0, "it waits for the other one for a while"
    later(simulation, 10)
    assert not reign.waits(simulation.coordinator._tx(simulation.loop.now()))
    assert simulation.versions()["all"] <= 1, "a version needs every block"
    simulation.start("shard-1")
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_a_shard_that_is_lost_with_the_coordinator_leaves_under_the_next_one(
    tmp_path: Path,
) -> None:
    conditions = Conditions(standby=True, delay=lambda *_: 0.01)
    plan = small_plan("rlwe", replicas=2, shards_wait=5.0)
    simulation = small_federation(plan, tmp_path, conditions)
    simulation.run(reached(simulation, 1))
    for place in ("shard-1", COORDINATOR):
        simulation.kill(place)
        simulation.lose(place)
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert set(simulation.coordinator.federation.moving.left) == {"shard-1"}
    assert same(simulation.model(), unharmed("plain")[0])


def test_who_stands_alone_waits_for_every_shard_and_who_is_followed_for_none(
    tmp_path: Path,
) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill("shard-1")
    simulation.kill(STANDBY)
    later(simulation, 30)
    with pytest.raises(NotReady, match="waits for shard-1 to obey it"):
        left(simulation, COORDINATOR)
    simulation.start(STANDBY)
    simulation.run(lambda: bool(simulation.coordinator.federation.reigns.follower))
    left(simulation, COORDINATOR)


def test_a_start_that_never_ruled_keeps_nobody_from_ruling(tmp_path: Path) -> None:
    """The coordinator began alone, and holders and one shard obeyed it, but the other was away."""
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill("shard-0")
    simulation.kill(STANDBY)
    later(simulation, 20)
    for place in (COORDINATOR, "shard-1"):
        simulation.kill(place)
    for place in ("shard-0", STANDBY):
        simulation.start(place)
    simulation.run(lambda: simulation.ruler == STANDBY)
    later(simulation, 10)
    simulation.start("shard-1")
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_too_few_holders_are_enough_for_nobody(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    for holder in ("holder-0", "holder-1", COORDINATOR):
        simulation.kill(holder)
    before = simulation.loop.now()
    simulation.run(lambda: simulation.loop.now() > before + 60)
    assert simulation.ruler == COORDINATOR, "it takes over by itself with a threshold of them"
    simulation.start("holder-1")
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_the_lost_one_follows_the_new_one_and_takes_over_again(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])
    numbers = [r.number for r in rows(simulation, STANDBY) if isinstance(r, Incarnated)]
    assert [number - REIGN for number in numbers[-3:]] == [0, 1, 2]


def test_a_lying_holder_ends_no_coordinator(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    lie = Register("holder-0", "", 1.0, 5 * REIGN, run_of(simulation))
    answer = simulation.parties[COORDINATOR].request("holder-0", lie)
    simulation.run(answer.done)
    with pytest.raises(NotReady, match="holder-0 obeys another coordinator, or lies"):
        answer.result()
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_a_lying_holder_ends_no_standby(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    lie = Register("holder-0", "", 1.0, 5 * REIGN, run_of(simulation))
    simulation.kill(COORDINATOR)
    lost = simulation.loop.now()
    simulation.run(lambda: simulation.loop.now() > lost + SILENT + 0.5)
    answer = simulation.parties[STANDBY].request("holder-0", lie)
    simulation.run(answer.done)
    assert isinstance(answer.exception(), Unreachable)
    ends(simulation)
    assert simulation.ruler == STANDBY
    assert same(simulation.model(), unharmed("plain")[0])


def run_of(simulation: Simulation) -> bytes:
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    return pinned.run.id


def test_a_standby_with_another_plan_ends(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    plan, simulation.plan = simulation.plan, small_plan("rlwe", versions=5)
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    simulation.plan = plan
    party = simulation.parties[STANDBY]
    with pytest.raises(Refused, match="the coordinator's plan differs in versions from this"):
        simulation.run(party.halted.done)


def test_one_that_has_not_caught_up_does_not_take_over_by_itself(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    simulation.run(reached(simulation, 1))
    simulation.kill(STANDBY)
    simulation.lose(STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    simulation.start(STANDBY)
    simulation.run(lambda: bool(rows(simulation, STANDBY)))
    simulation.kill(COORDINATOR)
    assert not follows(simulation)
    before = simulation.loop.now()
    simulation.run(lambda: simulation.loop.now() > before + 60)
    assert simulation.ruler == COORDINATOR
    simulation.start(COORDINATOR)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


@pytest.mark.parametrize("restarted", [False, True])
def test_both_compact_their_journals_and_the_end_is_the_same(
    restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = unharmed("plain")[0]
    monkeypatch.setattr(SqliteJournal, "due", property(lambda journal: journal._grown > 3_000))
    journals: dict[str, SqliteJournal] = {}

    def journal(name: str) -> SqliteJournal:
        (tmp_path / "journals").mkdir(exist_ok=True)
        journals[name] = SqliteJournal(tmp_path / "journals" / f"{name}.db")
        return journals[name]

    conditions = Conditions(standby=True, delay=lambda *_: 0.01, journal=journal)
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    simulation.run(reached(simulation, 1))
    if restarted:
        simulation.kill(STANDBY)
        simulation.start(STANDBY)
    simulation.run(reached(simulation, 2))
    one, two = journals[COORDINATOR], journals[STANDBY]
    for each in (one, two):
        assert compaction.gone(each._path, each._base).seq > 10
    assert two.fold is not None
    assert len(two.fold.records) == 1, "its run"
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert same(simulation.model(), expected)
    simulation.close()


def test_one_that_begins_late_is_sent_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are compacted by then; it comes in parts, and the coordinator goes on."""
    expected = unharmed("plain")[0]
    monkeypatch.setattr(SqliteJournal, "due", property(lambda journal: journal._grown > 3_000))
    monkeypatch.setattr("secureps.service.lead.ROWS", 10_000)
    journals: dict[str, SqliteJournal] = {}

    def journal(name: str) -> SqliteJournal:
        (tmp_path / name).mkdir(exist_ok=True)
        journals[name] = SqliteJournal(tmp_path / name / "journal.db")
        return journals[name]

    late = frozenset({STANDBY})
    conditions = Conditions(standby=True, delay=lambda *_: 0.01, journal=journal, late=late)
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    one = journals[COORDINATOR]
    assert compaction.gone(one._path, one._base).seq > 10
    simulation.start(STANDBY)
    party = simulation.parties[STANDBY]
    simulation.run(party.halted.done)
    assert party.halted.result() == Halt(BEGINS)
    assert has_copy(tmp_path / STANDBY)
    simulation.kill(STANDBY)
    simulation._stores.pop(STANDBY).journal.close()
    assert begin(tmp_path / STANDBY, tmp_path) > 10
    simulation.start(STANDBY)
    simulation.run(lambda: follows(simulation))
    two = journals[STANDBY]
    assert two.fold is not None
    assert two.mark == one.mark or one.after(two.mark, 1 << 20), "bit for bit its beginning"
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert same(simulation.model(), expected)
    simulation.close()


def test_a_shard_that_left_the_run_is_not_waited_for(tmp_path: Path) -> None:
    conditions = Conditions(standby=True, delay=lambda *_: 0.01)
    plan = small_plan("rlwe", shards=3, replicas=2, shards_wait=5.0)
    simulation = small_federation(plan, tmp_path, conditions)
    simulation.run(reached(simulation, 1))
    simulation.kill("shard-1")
    simulation.lose("shard-1")
    simulation.run(
        lambda: bool(simulation.coordinator.federation.moving.left) and follows(simulation)
    )
    number = len(rows(simulation, COORDINATOR))
    simulation.run(lambda: len(rows(simulation, STANDBY)) >= number)
    simulation.kill(COORDINATOR)
    simulation.run(lambda: simulation.ruler == STANDBY)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])
