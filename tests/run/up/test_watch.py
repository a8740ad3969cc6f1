"""What a watched run has started, and until when."""

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secureps.errors import ConfigError, ScriptFailed
from secureps.messages.requests import (
    CohortSteps,
    Figure,
    GroupStatus,
    MemberStatus,
    Status,
    Telemetry,
)
from secureps.policy.plan import Plan
from secureps.run.report.version_metrics import Gathered, Totals
from secureps.run.script.scoring import Score
from secureps.run.up.folder import RunFolder
from secureps.run.up.up import STUCK_SECONDS, Watch, read_so_far, write_so_far
from tests.kits.federations import small_plan
from tests.kits.shoppers import BUFFERED


def looking(root: Path, plan: Plan | None = None, *names: str) -> Any:
    """A watch that has begun to look at a run of these clients."""
    watch: Any = object.__new__(Watch)
    watch._plan, watch._folder, watch._names = plan or small_plan(), RunFolder(root), names
    return watch


@pytest.mark.parametrize("room", [True, False], ids=["room", "full"])
def test_nobody_is_started_once_the_run_is_over(
    room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards end then, in order: they would be started anew, and find nobody."""
    said, goes_on = list[str](), Status(b"", 1, "", (), (), (), ())
    statuses = [goes_on, goes_on, *[replace(goes_on, finished="all 2 versions are made")] * 2]
    watch = looking(tmp_path)
    if room:  # else nothing can be written
        watch._folder.report.mkdir()
    watch._programs = SimpleNamespace(start_added=lambda *who: said.append("starts"), unsafe=False)
    watch._started = set()
    watch._supervisor = SimpleNamespace(
        expect_end=lambda: said.append("ends"), poll=tuple, running=tuple, failed={}
    )
    watch._observer = SimpleNamespace(status=lambda: statuses.pop(0))
    totals = Totals()
    totals.add([Telemetry("a", "all", 1, (Figure("bytes_up", 7.0),))])
    watch._metrics = SimpleNamespace(totals=totals, take=len, settle=tuple)
    watch._echo = SimpleNamespace(news=tuple)
    watch._progress = SimpleNamespace(
        show=lambda *view: said.append("looks"), say=lambda line, style: said.append(line)
    )
    watch._gone, watch._scored, watch._judged = {}, (None, ""), {}
    watch._told, watch._failures = set(), []
    watch._moved_at = time.monotonic()

    def notice(watch: Any, status: Status) -> None:
        watch._status = status

    monkeypatch.setattr(Watch, "_notice", notice)
    for name in ("_tell_leavers", "_judge_newest", "_facts"):
        monkeypatch.setattr(Watch, name, lambda *given: None)
    watch._began = time.monotonic()
    monkeypatch.setattr("secureps.run.up.up.ASK_EVERY", 0.0)
    summary = watch.until_over()
    assert summary.finished == "all 2 versions are made"
    assert not room or watch._folder.over.read_text() == summary.finished
    assert (summary.counted, summary.bytes_up, summary.ratio_up) == (1, 7.0, None), "of no model"
    assert said == ["looks", "starts", "looks", "starts", "looks", "ends", "looks"]


def test_before_the_founding_model_there_is_no_version(tmp_path: Path) -> None:
    watch, totals = looking(tmp_path, None, "a", "b"), Totals()
    totals.add([Telemetry("a", "all", 1, (Figure("bytes_up", 1.25e6),))])
    watch._metrics = SimpleNamespace(totals=totals)
    watch._scored = (Score("accuracy", 0.8613, 0.4, 359), "1")
    here = (MemberStatus("a", True, "waits", 1, 1, 0.0, False),)
    status = Status(b"", 1, "", (GroupStatus("all", 1, "waiting", "waits", ()),), here, (), ())
    assert watch._facts(status, 62.4) == {
        "time": "1:02",
        "version": "1 of 4",
        "held-out accuracy": "0.861",
        "bytes": "1.2 MB up, 0 B down",
        "clients": "1 of 2 are there",
    }
    founding = replace(status, groups=(GroupStatus("all", -1, "founding", "not founded", ()),))
    assert watch._facts(founding, 0.0) == {"time": "0:00", "clients": "1 of 2 are there"}


def test_a_version_that_was_made_before_a_run_was_stopped_has_its_time_by_the_journal(
    tmp_path: Path,
) -> None:
    """This process counts from the seconds that it was told of, and looks only later."""
    watch, lines = looking(tmp_path), list[Any]()
    watch._status, watch._began, watch._unprotected = None, time.monotonic() - 60.0, None
    watch._metrics = SimpleNamespace(publish=lambda *line: lines.append(line))
    watch._save = tuple
    steps = (CohortSteps("all", 0, 1, 3, 0.5, 1.0, committed=2.5),)
    groups = (GroupStatus("all", 2, "collecting", "", ()),)
    watch._notice(Status(b"", 1, "", groups, (), (), (), steps=steps))
    assert [(group, version) for group, version, *_ in lines] == [("all", n) for n in range(3)]
    assert lines[1][2] == 2.5
    assert lines[2][2] >= 60.0, "the journal's newest steps do not have it"


ROUNDS, STREAM = small_plan(), small_plan(group=[{"rule": BUFFERED | {"buffer": 2, "minimum": 2}}])
LONG = STUCK_SECONDS + 1


@pytest.mark.parametrize(
    ("plan", "here", "step", "failed", "quiet", "end"),
    [
        (ROUNDS, -1, "collecting", 1, LONG, "goes on"),  # those who are left may end the round
        (ROUNDS, -1, "waiting", 1, 0.0, "fails"),
        (ROUNDS, 0, "waiting", 1, LONG, "goes on"),
        (ROUNDS, None, "collecting", 2, 0.0, "fails"),
        (ROUNDS, None, "opening", 2, 0.0, "goes on"),
        (ROUNDS, None, "opening", 2, LONG, "fails"),
        (ROUNDS, -1, "waiting", 0, 0.0, "goes on"),
        (ROUNDS, -1, "waiting", 0, LONG, "stops"),
        (STREAM, -1, "collecting", 1, 0.0, "goes on"),
        (STREAM, -1, "collecting", 1, LONG, "fails"),
        (STREAM, -1, "collecting", 0, LONG, "goes on"),
    ],
)
def test_a_run_goes_on_while_those_who_have_not_failed_can_make_a_version(
    plan: Plan, here: int | None, step: str, failed: int, quiet: float, end: str, tmp_path: Path
) -> None:
    """`here`: how many there are beyond those whom a round waits for; None: nobody."""
    needed = min(plan.bounds(group).start for group in plan.groups)
    names = tuple(f"c{i}" for i in range(needed + 2))
    left = () if here is None else names[: needed + here]
    watch = looking(tmp_path, plan, *names)
    errors = {name: ScriptFailed(f"{name} died") for name in names[-failed:] if failed}
    watch._supervisor = SimpleNamespace(running=lambda: left, failed=errors)
    groups = [SimpleNamespace(name=group, step=step) for group in plan.groups]
    watch._status = SimpleNamespace(finished="", groups=groups)
    watch._moved_at = time.monotonic() - quiet
    gone = f"{len(names) - len(left)} of {len(names)} clients have ended"
    if end == "fails":
        said = f"^{gone}, and a round waits for {needed}: {names[-failed]} died(; so did .*)?$"
        with pytest.raises(ScriptFailed, match=said):
            watch._find_end()
    else:
        stops = f"stopped before its time: {gone} by themselves, a round waits for {needed}"
        assert watch._find_end() == (stops if end == "stops" else "")


def test_clients_that_failed_alike_are_named_together_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests = list[tuple[str, str]]()
    monkeypatch.setattr(Watch, "_let_rest", lambda watch, *said: rests.append(said))
    said, errors = list[str](), dict[str, Exception]()
    watch: Any = object.__new__(Watch)
    watch._told, watch._failures = set(), []
    watch._supervisor = SimpleNamespace(failed=errors)
    watch._progress = SimpleNamespace(say=lambda text, style: said.append(text))
    for number, what in enumerate(("a", "a", "b")):
        errors[f"c{number}"] = ScriptFailed(
            f"c{number} died: {what} at 0x{number}f; see c{number}.log"
        )
    watch._tell_failed()
    watch._tell_failed()
    told = ["c0 died: a at 0x0f; see c0.log; so did c1", "c2 died: b at 0x2f; see c2.log"]
    assert watch._failures == told
    assert sorted(rests)[1:] == [
        ("c1", "failed: died: a at 0x1f"),
        ("c2", "failed: died: b at 0x2f"),
    ]
    assert said == [f"{each}; the run goes on while it can" for each in told]


def test_a_client_that_was_left_out_is_told_once() -> None:
    said = list[str]()
    watch: Any = object.__new__(Watch)
    watch._told, watch._gone = set(), {}
    watch._progress = SimpleNamespace(say=lambda text, style: said.append(text))
    members = [
        MemberStatus(name, True, state, 0, 0, 0.0, unsafe=False)
        for name, state in (("a", "trains"), ("b", "left out"))
    ]
    for _ in range(2):
        watch._tell_leavers(Status(b"", 1, "", (), tuple(members), (), ()))
    assert said == ["b is left out of the run: the coordinator's log says why"]


def test_everything_comes_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report.mkdir()
    assert read_so_far(folder) == Gathered(), "nothing so far"
    gathered = Gathered(
        lines=(("all", 0, 0.5, None), ("all", 1, 1.5, math.inf)),
        scores=(("all", 1, {"accuracy": 0.1, "loss": 2.0}),),
        figures=(("all", 1, "client-00", 0, "bytes_up", 7.0),),
        seconds=12.25,
    )
    write_so_far(folder, gathered)
    assert read_so_far(folder) == gathered


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report.mkdir()
    (folder.report / "sofar.json").write_text('{"seconds": 1')
    with pytest.raises(ConfigError, match=r"sofar\.json: cannot be read"):
        read_so_far(folder)
