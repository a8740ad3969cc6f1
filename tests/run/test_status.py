"""Whom `secureps status` asks, what a journal alone tells, and that looking changes nothing."""

import dataclasses
import io
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, DamagedStore, KitError, OperatorError, Unreachable
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import AskRun, AskStatus, Heartbeat, Status
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.pinned_run import PinnedRun
from secureps.run.journal_status import journal_status
from secureps.run.report.status_tables import show, show_json
from secureps.run.status import EVERY, find, look, watch
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import ORIGIN, RunFolder, claim_folder
from secureps.run.up.runs import REPORTING, STOPPED
from secureps.service.executor import replay
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import find_observer, load_public
from tests.kits.audited import begin, play
from tests.kits.command import typed
from tests.kits.dashboards import ended_up
from tests.kits.roles_kit import collecting
from tests.kits.stage import Stage
from tests.run.report.test_status_tables import STATUS

OVER = dataclasses.replace(STATUS, finished="all 3 versions are made")
PLAIN = CipherParameters("plain", 8, 14)


def console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    told = io.StringIO()
    return Console(file=told, width=200, force_terminal=terminal), told


class Asked:
    def __init__(self, *answers: Status | Exception) -> None:
        self._answers = iter(answers)

    def __call__(self) -> Status:
        answer = next(self._answers, KeyboardInterrupt())
        if isinstance(answer, Status):
            return answer
        raise answer


GONE = Unreachable("nobody is there")


def test_a_watch_goes_on_without_an_answer_and_ends_with_the_run() -> None:
    pauses: list[float] = []
    screen, told = console()
    watch(Asked(STATUS, GONE, STATUS, OVER), show_json, screen, pause=pauses.append)
    first, lost, again, last = told.getvalue().splitlines()
    assert first == again
    assert json.loads(last)["finished"] == "all 3 versions are made"
    assert lost.startswith("no answer since ")
    assert lost.endswith(": nobody is there; this goes on asking, Ctrl-C ends it")
    assert pauses == [EVERY] * 3


def test_a_watch_ends_where_no_answer_will_come() -> None:
    why = iter(["", STOPPED])
    screen, told = console()
    watch(Asked(GONE, GONE), show, screen, lambda: next(why), lambda _: None)
    assert told.getvalue().splitlines()[-1] == STOPPED


def test_on_a_terminal_the_last_tables_stay_while_nobody_answers() -> None:
    screen, told = console(terminal=True)
    with pytest.raises(KeyboardInterrupt):
        watch(Asked(STATUS, GONE), show, screen, pause=lambda _: None)
    last = told.getvalue().split("\x1b[2J")[-1]
    assert "client-00" in last
    assert "no answer since" in last


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    origin = {"plan": "plan.toml", "directory": ".", "unsafe_seed": None, "began": 0.0}
    (tmp_path / ORIGIN).write_text(json.dumps(origin))
    made.report.mkdir()
    return made


def told_of(folder: RunFolder, as_json: bool = False) -> str:
    screen, told = console()
    look(find(folder.root, None, None, None), as_json, True, screen)
    return told.getvalue()


def test_a_run_that_is_over_says_so_without_a_coordinator(folder: RunFolder) -> None:
    folder.summary.write_text(json.dumps({"finished": "all 3 versions are made", "versions": {}}))
    expected = f"this run is over: all 3 versions are made; its model is {folder.model}\n"
    assert told_of(folder) == expected
    over = {"finished": "all 3 versions are made", "stopped": ""}
    assert json.loads(told_of(folder, as_json=True)) == over


def test_of_a_run_that_ended_its_journal_tells_how_it_ended(tmp_path: Path) -> None:
    play(begin(tmp_path / "run"))
    up = ended_up(tmp_path / "run", tmp_path / "up")
    said = " ".join(typed("status", str(up)).out.split())
    assert said.startswith("this run is over: all 3 versions are made; its model is ")
    assert "epsilon (delta 1e-05) is of one client's updates" in said
    assert said.count(" ended ") == 3
    for word in ("away", "gone", "live", "awaited", "not known"):
        assert word not in said, "nobody plays it: of no party there is more to say"
    told = json.loads(typed("status", str(up), "--json").out)
    assert (told["finished"], told["stopped"]) == ("all 3 versions are made", "")
    assert all(0 < member["epsilon"] < 500 for member in told["members"])
    assert "servers" not in told
    (up / "state" / "coordinator" / "journal.db").write_bytes(b"no journal" * 1000)
    assert "its journal cannot be read: " in " ".join(typed("status", str(up)).out.split())


def test_of_a_run_that_was_stopped_its_journal_tells_how_far_it_came(tmp_path: Path) -> None:
    play(begin(tmp_path / "run"), versions=1)
    up = RunFolder(ended_up(tmp_path / "run", tmp_path / "up", versions=1))
    said = told_of(up).splitlines()
    assert said[0] == STOPPED
    assert said[1].endswith(f": {STOPPED}"), "it does not run"
    told = json.loads(told_of(up, as_json=True))
    assert (told["finished"], told["stopped"]) == ("", STOPPED)
    assert {member["state"] for member in told["members"]} == {"ended"}


def test_a_run_that_nobody_plays_is_not_over(folder: RunFolder) -> None:
    assert told_of(folder) == f"{STOPPED}\n"
    assert json.loads(told_of(folder, as_json=True)) == {"finished": "", "stopped": STOPPED}
    folder.failed.write_text("client-00 died")
    assert told_of(folder).startswith("failed: client-00 died; ")


def test_a_run_that_is_being_played_is_asked(folder: RunFolder) -> None:
    with claim_folder(folder.root):
        with pytest.raises(OperatorError, match="the coordinator is being started"):
            told_of(folder)
        folder.state("coordinator").mkdir(parents=True)
        (folder.state("coordinator") / "address").write_text("127.0.0.1:9\n")
        whom = find(folder.root, None, None, None)
        assert (whom.server, whom.kit, whom.name) == ("127.0.0.1:9", folder.kit, None)
        assert whom.why_silent() == ""


def ask_by(monkeypatch: pytest.MonkeyPatch, asked: Callable[..., Any]) -> None:
    """Has this function in place of all that a coordinator is asked."""
    monkeypatch.setattr(RunFolder, "address", lambda self, party: "127.0.0.1:9")
    monkeypatch.setattr(StatusClient, "__init__", lambda self, *given: None)
    monkeypatch.setattr(StatusClient, "close", lambda self: None)
    for name in ("status", "act"):
        monkeypatch.setattr(StatusClient, name, asked)


def test_a_run_whose_report_is_made_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its servers have ended by then, early or not: that nobody answers is no fault."""

    def away(self: StatusClient, *given: object) -> None:
        raise Unreachable("nobody listens there")

    ask_by(monkeypatch, away)
    play(begin(tmp_path / "stopped"), versions=1)
    with claim_folder(going := ended_up(tmp_path / "stopped", tmp_path / "going", versions=1)):
        assert "error: nobody listens there" in typed("status", going, status=1).err
    play(begin(tmp_path / "ended"))
    up = RunFolder(ended_up(tmp_path / "ended", tmp_path / "up"))
    up.summary.unlink()
    (up.report / "metrics.jsonl").unlink()  # a run may end before its last version
    up.over.write_text("all 3 versions are made")
    told = REPORTING.format("all 3 versions are made")
    with claim_folder(up.root):
        assert typed("status", up.root).out.startswith(f"{told}\n")
        for words in (("act", "pause"), ("shards", "drain", "shard-1")):
            said = typed(*words, up.root, status=1).err
            assert said.startswith(f"error: {up.root} has no coordinator now: {told}")


def test_a_run_that_ends_while_it_is_asked_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(begin(tmp_path / "ended"))
    up = RunFolder(ended_up(tmp_path / "ended", tmp_path / "up"))
    up.summary.unlink()

    def ends(self: StatusClient, *given: object) -> None:
        up.over.write_text("all 3 versions are made")
        raise Unreachable("nobody listens there")

    ask_by(monkeypatch, ends)
    told = REPORTING.format("all 3 versions are made")
    with claim_folder(up.root):
        assert typed("status", up.root).out.startswith(f"{told}\n")
        up.over.unlink()
        said = typed("act", "pause", up.root, status=1).err
        assert said.startswith(f"error: {up.root} has no coordinator now: {told}")
    assert typed("status", up.root).out.startswith(STOPPED), "its play was killed before the report"


def test_who_is_asked_is_said_in_one_way(folder: RunFolder, tmp_path: Path) -> None:
    for given in (
        (folder.root, "here:1", None, None),
        (None, None, None, None),
        (None, "here:1", None, None),
        (None, None, tmp_path, None),
    ):
        with pytest.raises(ConfigError, match="--server and --kit"):
            find(*given)
    with pytest.raises(ConfigError, match=r"no run of `secureps up`"):
        find(tmp_path / "nothing", None, None, None)


def test_a_kit_with_an_observers_key_needs_no_name(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    create_kit(kit, PLAIN)
    issue(kit, "client", "client-00")
    with pytest.raises(KitError, match=r"has no observer's key: name a party .* also while a run"):
        StatusClient(kit, None, "127.0.0.1:9")
    issue(kit, "observer", "ward")
    assert find_observer(kit, load_public(kit).roster) == "ward"
    StatusClient(kit, None, "127.0.0.1:9").close()
    (kit / "private" / "ward").rename(tmp_path / "ward")  # as in the kit of anybody else
    with pytest.raises(KitError, match="has no observer's key"):
        find_observer(kit, load_public(kit).roster)


@pytest.mark.parametrize(("places", "asked"), [("here:1", 1), ("here:1,there:2", 2)])
def test_where_the_coordinator_may_be_at_two_places_both_are_asked(
    places: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = tmp_path / "kit"
    create_kit(kit, PLAIN)
    issue(kit, "observer", "ward")
    said, own = list[str](), StatusClient(kit, None, places)

    def call(to: str, message: object) -> Future[object]:
        answer: Future[object] = Future()
        said.append(to)
        answer.set_exception(Unreachable("a standby is here: the coordinator rules elsewhere"))
        return answer

    monkeypatch.setattr(own._transport, "call", call)
    with pytest.raises(Unreachable):
        own.status()
    assert said == ["coordinator"] * asked
    own.close()


def test_looking_with_a_clients_key_renews_no_lease() -> None:
    machine = collecting("plain").coordinator
    machine.handle(100.0, "c0", Heartbeat("c0"))
    assert "c0" in machine.live(129.0)
    for ask in (AskStatus(), AskRun()):
        machine.handle(129.0, "c0", ask)
    assert "c0" not in machine.live(131.0)
    machine.handle(132.0, "c0", Heartbeat("c0"))
    assert "c0" in machine.live(133.0)


CLIENTS = tuple(f"client-0{i}" for i in range(3))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Status]:
    folder = begin(tmp_path_factory.mktemp("journal-status") / "run")
    stage = Stage(folder)
    stage.play()
    own = stage.simulation.coordinator.recall()
    stage.halt()
    return folder, own


def told(folder: Path, *names: str) -> Status:
    states = [folder / "state" / name for name in names or ("coordinator",)]
    status = journal_status(states, folder / "kit")
    assert status is not None
    return status


def test_a_run_that_ended_is_told_to_its_end_by_its_journal(played: tuple[Path, Status]) -> None:
    folder, own = played
    status = told(folder)
    assert status == replace(own, servers=status.servers), "but for who is there"
    assert status.finished == "all 3 versions are made"
    assert [(g.version, g.step, g.reason) for g in status.groups] == [(3, "done", status.finished)]
    assert [(m.name, m.state, m.submissions) for m in status.members] == [
        (name, "ended", 3) for name in CLIENTS
    ]
    assert all(0 < member.epsilon < 500 for member in status.members)
    assert status.adjacency.startswith("one client")
    assert status.delta == 1e-5
    assert [steps.version for steps in status.steps] == [1, 2, 3]


def test_a_compacted_journal_tells_the_same(played: tuple[Path, Status], tmp_path: Path) -> None:
    folder, own = played
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    plan, roster = load_plan(copy / "plan.toml"), load_public(copy / "kit").roster
    machine = Coordinator(PinnedRun(plan, roster, None, b""))
    path = copy / "state" / "coordinator" / "journal.db"
    writer = (COORDINATOR, "coordinator", time.time)
    with closing(DatedJournal(SqliteJournal(path), *writer)) as journal:
        assert [*replay(machine, journal)]
        journal.compact(machine.make_fold())
        machine.apply(9e6, again := Incarnated(7))
        journal.append(9e6, [again])
        journal.compact(machine.make_fold())
    status = told(copy)
    assert status == replace(own, incarnation=7, servers=status.servers), (
        "its first rows are in the archive alone"
    )


def test_while_a_run_goes_on_its_journal_does_not_say_who_is_there(tmp_path: Path) -> None:
    folder = begin(tmp_path / "run")
    play(folder, versions=1)
    status = told(folder)
    assert status.finished == ""
    assert status.groups[0].version >= 1
    assert {member.state for member in status.members} == {"not known"}
    assert not any(member.live for member in status.members)
    assert all("away" not in group.reason for group in status.groups)


def test_of_a_coordinator_and_its_standby_who_ruled_last_tells(
    played: tuple[Path, Status], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(played[0], tmp_path / "run"))
    shutil.copytree(copy / "state" / "coordinator", copy / "state" / "standby")
    with closing(SqliteJournal(copy / "state" / "standby" / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(REIGN + 1)])
    for order in (("coordinator", "standby"), ("standby", "coordinator")):
        assert told(copy, *order).incarnation == REIGN + 1


def test_without_a_run_there_is_no_status_and_damage_is_said(
    played: tuple[Path, Status], tmp_path: Path
) -> None:
    folder, _ = played
    assert journal_status([tmp_path / "nowhere"], folder / "kit") is None
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(1)])
    assert journal_status([tmp_path], folder / "kit") is None, "no run was founded"
    with pytest.raises(
        ConfigError, match=r"another party's journal, its row \d+ is a .*: give the "
    ):
        journal_status([folder / "state" / "client-00"], folder / "kit")
    (tmp_path / "journal.db").write_bytes(b"no journal" * 1000)
    with pytest.raises(DamagedStore, match=r"journal\.db"):
        journal_status([tmp_path], folder / "kit")
