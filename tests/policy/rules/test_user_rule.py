"""Rules: your own rule works as documented, and a faulty one ends the run in order."""

import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from secureps.config.plan import OwnRuleSection
from secureps.config.sections import parse
from secureps.errors import PlanRefused, RuleFailed
from secureps.messages.submission import Member, SubmissionId
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import Guarded, even_out, fade, own_rule, refuse_close
from secureps.policy.rules.rule import (
    Admit,
    Arrival,
    Bounds,
    Close,
    Drop,
    Extend,
    Rule,
    RuleState,
    Wait,
)
from tests.kits.federations import same
from tests.kits.nursery import ROOT
from tests.kits.processes import Processes, plan_text
from tests.kits.streams import PRIORITY, stream, stream_plan

PAGE = (ROOT / "docs" / "rules.md").read_text()
HERE = Arrival(SubmissionId("client-00", "all", 7), version=3, at=1.0, step=2)
STATE = RuleState(5, frozenset({"client-00"}), clocks={"client-00": 3})


def fence(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


# --- the documented one -----------------------------------------------------------


def test_the_documented_rule_makes_a_model(
    modules: Callable[[str, str], None], tmp_path: Path
) -> None:
    modules("my_rules", fence("python"))
    (section,) = tomllib.loads(fence("toml"))["group"].values()
    models = []
    for cipher in ("plain", "rlwe"):
        play = stream(stream_plan(cipher, section), tmp_path / cipher, 8)
        play.run()
        assert play.versions() == {"all": 4}
        assert play.coordinator.federation.finished == "all 4 versions are made"
        models.append(play.model())
    assert same(*models)


def test_the_documented_score_chooses(modules: Callable[[str, str], None], tmp_path: Path) -> None:
    modules("my_rules", fence("python"))
    plan = stream_plan("plain", PRIORITY | {"score": "my_rules:steady"})
    play = stream(plan, tmp_path)
    play.run()
    assert play.versions() == {"all": 4}


def test_the_documented_weights_are_the_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| (\d) \| ([\d.]+) \| (\d) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for tau, half, of_half, whole, of_whole in rows:
        for power, exact, weight in ((0.5, half, of_half), (1.0, whole, of_whole)):
            assert f"{(1 + int(tau)) ** -power:.2f}" == exact
            assert fade(int(tau), power) == int(weight)
    cohorts = re.findall(r"^\| [a-z0-9, ]+ \| ([124 ]+) \| ([124 ]+) \|$", PAGE, re.MULTILINE)
    assert len(cohorts) == 3
    for before, after in cohorts:
        assert even_out([int(w) for w in before.split()], 5) == tuple(map(int, after.split()))


# --- classes that are wrong -------------------------------------------------------


BROKEN = """
class Lazy:
    def __init__(self, minimum, speed=1): pass
    def enter(self, state): return 0
class Rounds(Lazy):
    rounds = True
    def admit(self, now, member, state): pass
    def decide(self, now, arrivals, state): pass
number = 3
"""


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"name": "no_such:Rule"}, r"no_such:Rule cannot be imported \(ModuleNotFoundError: .* in"),
        ({"name": "broken:Rule"}, r"broken:Rule cannot be imported \(AttributeError"),
        ({"name": "unreadable:Rule"}, r"unreadable:Rule cannot be imported \(SyntaxError"),
        ({"name": "exploding:Rule"}, r"cannot be imported \(ZeroDivisionError: .* PYTHONPATH"),
        ({"name": "broken:number"}, "broken:number is a int, and cannot be called"),
        ({"name": "broken:Lazy"}, "makes a Lazy without admit, decide"),
        ({"name": "broken:Rounds"}, 'wants rounds: only "sync" has them'),
        ({"name": "broken:Lazy", "settings": {"haste": 1}}, "cannot be made with minimum, haste"),
    ],
)
def test_a_class_that_makes_no_rule_is_refused(
    section: dict[str, Any], reason: str, modules: Callable[[str, str], None]
) -> None:
    modules("broken", BROKEN)
    modules("unreadable", "class")
    modules("exploding", "1 / 0")
    with pytest.raises(PlanRefused, match=f"^rule: .*{reason}"):
        own_rule(parse(OwnRuleSection, section, "test"))


def test_it_is_refused_before_anything_begins(tmp_path: Path) -> None:
    plan = stream_plan("plain", {"name": "no_such:Rule"})
    with pytest.raises(PlanRefused, match=r"^rule: no_such:Rule cannot be imported"):
        stream(plan, tmp_path)


class Writes:
    """A rule that tries to change the state it is given."""

    def enter(self, state: Any) -> int:
        state.clocks.clear()
        return 0

    def admit(self, now: float, member: str, state: Any) -> Any:
        state.passed.clear()

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: Any) -> Any:
        state.moved.clear()


def test_what_it_is_shown_is_not_its_own_to_write() -> None:
    clocks, moved, passed = {"client-00": 1}, {"client-00": 1.0}, {"client-01"}
    state = replace(STATE, clocks=clocks, moved=moved, passed=passed)
    rule = Guarded("writes:Writes", Writes(), 2)
    for asked in (
        lambda: rule.enter(state),
        lambda: rule.admit(0.0, "client-00", state),
        lambda: rule.decide(0.0, (HERE,), state),
    ):
        with pytest.raises(RuleFailed, match="AttributeError"):
            asked()
    assert (clocks, moved, passed) == ({"client-00": 1}, {"client-00": 1.0}, {"client-01"})


@dataclass
class Says:
    answer: Any

    def enter(self, state: RuleState) -> Any:
        return self._said(state)

    def admit(self, now: float, member: str, state: RuleState) -> Any:
        return self._said(state)

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Any:
        return self._said(state)

    def _said(self, state: RuleState) -> Any:
        return self.answer(state) if callable(self.answer) else self.answer


def guarded(answer: Any) -> Guarded:
    return Guarded("mine:Rule", cast(Rule, Says(answer)), 10)


def member(**changes: Any) -> Member:
    return replace(Member(HERE.id, 1, version=3, step=2), **changes)


OTHER = SubmissionId("client-09", "all", 0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "decide answered None: Close, Wait or Drop is wanted"),
        (Admit("now"), "Close, Wait or Drop is wanted"),
        (Extend(9.0, "later"), "Close, Wait or Drop is wanted"),
        (Wait(None, ""), "every answer has its reason, in words"),
        (Wait(2.0, "soon"), "it is 2 s, and until is later"),
        (Wait(float("nan"), "soon"), "until is later"),
        (Wait(float("inf"), "soon"), "until is later"),
        (Wait(cast(Any, "noon"), "soon"), "until is later"),
        (Drop((), "none"), "ids are some of those that arrived"),
        (Drop((OTHER,), "none"), "ids are some of those that arrived"),
        (Close(cast(Any, [member()]), "now"), "the members of Close are a tuple"),
        (Close(cast(Any, ("client-00",)), "now"), "the id of one that arrived"),
        (Close((member(id=OTHER),), "now"), "the id of one that arrived"),
        (Close((member(version=5),), "now"), "its version and step are the arrival's"),
        (Close((member(step=0),), "now"), "its version and step are the arrival's"),
        (Close((member(weight=3),), "now"), "a weight is one of 1, 2, 4"),
        (Close((member(weight=1.0),), "now"), "a weight is one of 1, 2, 4"),
        (lambda state: 1 // 0, "decide raised ZeroDivisionError: "),
        (lambda state: state.clocks.clear(), "decide raised AttributeError: "),
    ],
)
def test_a_wrong_decision_is_told_and_not_followed(answer: Any, reason: str) -> None:
    with pytest.raises(RuleFailed, match=reason) as caught:
        guarded(answer).decide(2.0, (HERE,), STATE)
    assert str(caught.value).startswith("mine:Rule: ")
    assert "\n" not in str(caught.value)
    assert STATE.clocks == {"client-00": 3}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (True, "admit answered True: Admit, Wait or Refuse is wanted"),
        (Close((), "now"), "Admit, Wait or Refuse is wanted"),
        (Admit(cast(Any, None)), "every answer has its reason"),
        (lambda state: state.clocks["x"], "admit raised KeyError: 'x'"),
    ],
)
def test_a_wrong_admission_is_told(answer: Any, reason: str) -> None:
    with pytest.raises(RuleFailed, match=reason):
        guarded(answer).admit(2.0, "client-00", STATE)


@pytest.mark.parametrize("answer", [-1, 1.0, None, True])
def test_a_wrong_clock_is_told(answer: Any) -> None:
    with pytest.raises(RuleFailed, match="a clock is a whole number from 0 on"):
        guarded(answer).enter(STATE)


def test_right_answers_pass_and_members_are_in_order() -> None:
    later = Arrival(SubmissionId("client-01", "all", 0), 5)
    members = (Member(later.id, 1, 5), member())
    decided = guarded(Close(members, "now")).decide(2.0, (HERE, later), STATE)
    assert decided == Close((member(), Member(later.id, 1, 5)), "now")
    waits = Wait(2.5, "soon")
    assert guarded(waits).decide(2.0, (), STATE) is waits
    assert guarded(waits).admit(2.0, "client-00", STATE) is waits
    assert guarded(4).enter(STATE) == 4


def test_what_is_too_stale_is_dropped_before_it_is_asked() -> None:
    old = Guarded("mine:Rule", cast(Rule, Says(None)), 1).decide(2.0, (HERE,), STATE)
    assert isinstance(old, Drop)
    assert old.ids == (HERE.id,)


# --- in a run ---------------------------------------------------------------------


FAILING = """
from my_rules import Share
class Raises(Share):
    def decide(self, now, arrivals, state):
        if state.version == 2:
            raise RuntimeError("the\\nmoon is full")
        return super().decide(now, arrivals, state)
class Enters(Share):
    def enter(self, state):
        return -1
class Shuts(Share):
    def admit(self, now, member, state):
        return state.version < 2 and super().admit(now, member, state)
class Few(Share):
    def decide(self, now, arrivals, state):
        answer = super().decide(now, arrivals, state)
        if state.version == 2 and hasattr(answer, "members"):
            return type(answer)(answer.members[:4], "four will do")
        return answer
def score(arrival):
    return "high" if arrival.version == 2 else 1.0
"""


@pytest.mark.parametrize(
    ("rule", "made", "reason"),
    [
        ({"name": "failing:Raises"}, 2, "failing:Raises: decide raised RuntimeError: the moon is"),
        ({"name": "failing:Enters"}, 0, "failing:Enters: enter answered -1"),
        ({"name": "failing:Shuts"}, 2, "failing:Shuts: admit answered False"),
        ({"name": "failing:Few"}, 2, "it closed what may not be opened: 4 members are fewer than"),
        (PRIORITY | {"score": "failing:score"}, None, "failing:score: decide raised TypeError"),
    ],
    ids=["raises", "enters", "shuts", "few", "score"],
)
def test_a_rule_that_fails_ends_the_run_in_order(
    rule: dict[str, Any],
    made: int | None,
    reason: str,
    modules: Callable[[str, str], None],
    tmp_path: Path,
) -> None:
    modules("my_rules", fence("python"))
    modules("failing", FAILING)
    play = stream(stream_plan("rlwe", rule), tmp_path)
    play.run()
    federation = play.coordinator.federation
    assert federation.finished.startswith(f"the rule failed: {reason}")
    assert federation.failure == "RuleFailed"
    if rule["name"] == "failing:Raises":
        assert federation.finished.endswith(" full (failing.py:6 in decide)")
    if made is not None:
        assert play.versions() == {"all": made}
    assert all(fate.outcome != "burnt" for fate in federation.fates.values())
    assert not federation.groups["all"].takes_updates


def test_no_newer_update_is_summed_before_an_older_one_of_its_client() -> None:
    """Holders would open the first cohort, but then none with the older update."""
    ids = [SubmissionId(f"c{k}", "all", 4) for k in range(5)]
    older = SubmissionId("c3", "all", 2)
    members = tuple(Member(id, 1, 7) for id in ids)
    bounds = Bounds(5, 10, 1, 5, 3)
    assert refuse_close(members, set(ids), 7, bounds, sealed=True) == ""
    for sealed in (True, False):
        assert refuse_close(members, {*ids, older}, 7, bounds, sealed) == (
            "c3/all/4 is in it before an older update of its client, which is to be dropped"
        )
    first = (*members[:3], Member(older, 1, 7), members[4])
    assert refuse_close(first, {*ids, older}, 7, bounds, sealed=True) == ""


# --- who imports it ---------------------------------------------------------------


def test_a_plan_is_read_without_importing_anything() -> None:
    plan = stream_plan("rlwe", {"name": "no_such:Rule", "most": 9})
    again = Plan.from_text(plan.text)
    assert again == plan
    assert (again.bounds("all").minimum, again.bounds("all").most) == (5, 9)
    assert again.cipher_parameters == plan.cipher_parameters


IMPORTED = """
import os, sys
with open({path!r}, "a") as file:
    file.write(" ".join(sys.argv) + chr(10))
"""


def test_the_coordinators_process_alone_imports_it(tmp_path: Path) -> None:
    told, folder = tmp_path / "imported", tmp_path / "run"
    plan = plan_text('rule = "my_rules:Share"')
    with Processes(folder, "rlwe", versions=2, plan=plan) as processes:
        (folder / "my_rules.py").write_text(fence("python") + IMPORTED.format(path=str(told)))
        processes.start_all()
        processes.wait(processes.finished, "the end")
    lines = told.read_text().splitlines()
    assert len(lines) == 1
    assert "serve coordinator" in lines[0]
