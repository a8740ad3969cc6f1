"""Privacy: a plan that a site's policy refuses is neither trained nor sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.client.worker import Site
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import BudgetSpent, TermsRefused, exit_status
from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import BudgetCharged
from secureps.policy.plan import Plan
from secureps.roles.member.terms import NO_REASON, Terms
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.service.executor import Executor
from secureps.store.budget import HOUR, BudgetLedger
from tests.kits.federations import OF_RECORDS, Walker, finished, small_plan, status_of
from tests.kits.streams import BUFFERED, stream_plan

OWN = "client-02"


def plan_of(cipher: str = "plain", **changes: Any) -> Plan:
    rule = {"quorum": 4, "minimum": 4, "deadline": 100.0}
    return small_plan(cipher, rule, lease=300.0, **changes)


class Sites(Simulation):
    """Six walkers, some of them at sites with a policy, or with a ledger by the virtual clock."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        terms: Mapping[str, Terms] | None = None,
        ledgers: Mapping[str, Path] | None = None,
    ) -> None:
        self._own, self._paths = terms or {}, ledgers or {}
        trainers = {name: Walker(i) for i, name in enumerate(client_names(6))}
        super().__init__(plan, Cast(trainers, UnsafeSeed(3)), folder)

    def _make(self, name: str) -> Executor:
        common, self._terms = self._terms, self._own.get(name, self._terms)
        try:
            return super()._make(name)
        finally:
            self._terms = common

    def _site(self, name: str, folder: Path) -> Site:
        site, own = super()._site(name, folder), self._terms
        if (path := self._paths.get(name)) is None:
            return site
        limits = (own.budget, own.updates_per_hour)
        return replace(site, ledger=BudgetLedger(path, *limits, lambda: 1e9 + self.loop.now()))

    def played(self) -> Sites:
        self.run(lambda: finished(self))
        return self

    def trained(self, name: str) -> int:
        trainer = self._cast.trainers[name]
        assert isinstance(trainer, Walker)
        return trainer.fits

    def state(self, name: str) -> str:
        """As `secureps status` shows it; empty before it joined."""
        return next((each.state for each in status_of(self).members if each.name == name), "")


REFUSED: dict[str, tuple[Plan, Terms, str]] = {
    "minimum": (
        plan_of(),
        Terms(minimum=5),
        "minimum: by the plan 4 members of all may be a cohort, and this site wants 5 or more",
    ),
    "threshold": (
        plan_of("rlwe"),
        Terms(threshold=4),
        "threshold: by the plan 3 of 4 key holders open a sum together, and this party insists on",
    ),
    "budget": (plan_of(), Terms(budget=8.0), "budget: the plan trains without privacy"),
    "plans": (
        plan_of(),
        Terms(plans=("ab" * 32,)),
        f"plans: the plan's digest is {plan_of().digest}, and none of the 1 that this site allows",
    ),
}


@pytest.mark.parametrize(
    ("key", "reveal"),
    [*((key, "values") for key in REFUSED), ("minimum", "nothing"), ("minimum", "keys")],
)
def test_a_client_of_a_site_that_refuses_the_plan_takes_no_part(
    key: str, reveal: Any, tmp_path: Path
) -> None:
    plan, terms, text = REFUSED[key]
    own = Terms(
        terms.budget, terms.threshold, "", terms.minimum, terms.plans, True, None, reveal=reveal
    )
    sites = Sites(tmp_path, plan, {OWN: own}).played()
    federation = sites.coordinator.federation
    assert federation.finished == "all 4 versions are made"
    assert sites.loop.now() < 50.0, "a round waited for who had refused"
    assert sites.trained(OWN) == 0
    assert not [id for id in federation.fates if id.client == OWN]
    halt = sites.parties[OWN].halted.result()
    assert halt.error is TermsRefused
    assert exit_status(halt.error(halt.reason)) == 78
    assert halt.reason.startswith(text)
    heard = {"nothing": NO_REASON, "keys": f"{NO_REASON}: {key}", "values": halt.reason}[reveal]
    assert federation.why_gone == {OWN: heard}
    assert sites.state(OWN) == f"stopped: {heard}"


def test_a_plan_that_keeps_to_every_key_is_trained(tmp_path: Path) -> None:
    plan = plan_of("rlwe", **OF_RECORDS)
    own = Terms(50.0, 3, "", 4, ("00" * 32, plan.digest), False, 5)
    ledgers = {OWN: tmp_path / "own.db"}
    sites = Sites(tmp_path, plan, {OWN: own}, ledgers).played()
    assert sites.coordinator.federation.included[OWN] == 4
    assert sites.coordinator.federation.why_gone == {}


def test_a_founder_that_refuses_is_replaced(tmp_path: Path) -> None:
    """It was chosen as soon as it joined: the others do not wait for its model."""
    sites = Sites(tmp_path, plan_of())
    sites.run(lambda: bool(sites.coordinator.federation.founder))
    first = sites.coordinator.federation.founder
    refusing = {first: Terms(minimum=5)}
    sites = Sites(tmp_path / "again", plan_of(), refusing).played()
    federation = sites.coordinator.federation
    assert federation.finished == "all 4 versions are made"
    assert federation.founder != first
    assert sites.loop.now() < 50.0
    assert sites.trained(first) == 0


def test_a_policy_that_becomes_stricter_holds_after_a_restart(tmp_path: Path) -> None:
    terms = {OWN: Terms(minimum=4)}
    sites = Sites(tmp_path, plan_of(), terms)
    sites.run(lambda: sites.versions() == {"all": 1})
    sites.kill(OWN)
    before = sites.trained(OWN)
    terms[OWN] = Terms(minimum=5)
    sites.start(OWN)
    sites.played()
    assert sites.trained(OWN) == before
    assert sites.coordinator.federation.retired == {OWN}
    assert sites.parties[OWN].halted.result().error is TermsRefused


def test_records_that_judge_no_model_are_never_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walker raises where it is to evaluate: whoever may is left out, and the run goes on."""
    evaluation = {"every": 2, "metrics": {"loss": 10.0}}
    terms = {f"client-0{i}": Terms(evaluation=False) for i in range(6)}
    sites = Sites(tmp_path, plan_of(evaluation=evaluation), terms)
    asked = []
    for name, trainer in sites._cast.trainers.items():
        monkeypatch.setattr(trainer, "evaluate", lambda *_, own=name: asked.append(own))
    federation = sites.played().coordinator.federation
    assert asked == []
    assert federation.finished == "all 4 versions are made"
    assert sites.loop.now() < 50.0
    assert sorted(federation.trail.skipped) == [2, 4]
    assert not [id for id in federation.fates if id.group == EVALUATION]


def test_the_only_evaluator_refuses_where_its_site_evaluates_nothing(tmp_path: Path) -> None:
    evaluation = {"every": 2, "metrics": {"loss": 10.0}, "evaluator": OWN}
    terms = {OWN: Terms(evaluation=False)}
    sites = Sites(tmp_path, plan_of(evaluation=evaluation), terms).played()
    halt = sites.parties[OWN].halted.result()
    assert halt.reason.startswith(f"evaluation: the plan has {OWN} evaluate each version")
    assert sites.versions() == {"all": 4}


def test_two_runs_in_sequence_use_up_what_a_site_allows(tmp_path: Path) -> None:
    """The second run ends early for this client, and a third trains nothing with it."""
    plan, ledgers = plan_of(**OF_RECORDS), {OWN: tmp_path / "own.db"}
    Sites(tmp_path / "one", plan, {}, ledgers).played()
    (one,) = BudgetLedger(ledgers[OWN]).spent()
    terms = {OWN: Terms(budget=one.epsilon * 1.2)}
    for folder, left in (("two", (1, 3)), ("three", (0, 0))):
        sites = Sites(tmp_path / folder, plan, terms, ledgers).played()
        assert left[0] <= sites.trained(OWN) <= left[1]
        federation = sites.coordinator.federation
        assert federation.finished == "all 4 versions are made"
        assert federation.retired == {OWN}
        assert sites.parties[OWN].halted.result().error is BudgetSpent
        assert sites.loop.now() < 50.0


def most_in_an_hour(ledger: Path) -> int:
    charged = [
        (at, row) for at, row in BudgetLedger(ledger).rows() if isinstance(row, BudgetCharged)
    ]
    begun = [at for at, row in charged if not (row.charge or row.release)]
    return max(sum(0 <= at - first < HOUR for at in begun) for first in begun)


@pytest.mark.parametrize("plan", [plan_of(), stream_plan("plain", BUFFERED, versions=4)])
def test_a_client_that_rests_holds_nobody_up(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms, ledgers = {OWN: Terms(updates_per_hour=2)}, {OWN: tmp_path / "own.db"}
    said = []
    monkeypatch.setattr("secureps.service.executor.tell", lambda *words, **_: said.append(words))
    sites = Sites(tmp_path, plan, terms, ledgers).played()
    federation = sites.coordinator.federation
    assert federation.finished == "all 4 versions are made"
    assert sites.trained(OWN) == 2
    (told,) = [words[-1] for words in said if "have begun within an hour" in str(words)]
    assert told.endswith("the next one may begin in 60.0 min")
    assert federation.retired == set(), "it comes back"
    assert sites.state(OWN) == f"rests: {NO_REASON}: updates_per_hour"
    assert sites.loop.now() < 50.0


@pytest.mark.parametrize("plan", [plan_of(versions=5), stream_plan("plain", BUFFERED, versions=5)])
def test_a_federation_whose_sites_all_rest_goes_on_afterwards(plan: Plan, tmp_path: Path) -> None:
    names = [f"client-0{i}" for i in range(6)]
    terms = {name: Terms(updates_per_hour=2) for name in names}
    ledgers = {name: tmp_path / f"{name}.db" for name in names}
    sites = Sites(tmp_path, plan, terms, ledgers).played()
    assert sites.coordinator.federation.finished == "all 5 versions are made"
    assert 1 * HOUR < sites.loop.now() < 3 * HOUR
    assert [most_in_an_hour(path) for path in ledgers.values()] == [2] * 6


def test_a_kill_and_another_run_change_nothing_about_the_rate(tmp_path: Path) -> None:
    terms, ledgers = {OWN: Terms(updates_per_hour=3)}, {OWN: tmp_path / "own.db"}
    sites = Sites(tmp_path / "one", plan_of(versions=2), terms, ledgers).played()
    assert sites.trained(OWN) == 2
    sites = Sites(tmp_path / "two", plan_of(versions=4), terms, ledgers)
    sites.run(lambda: sites.state(OWN).startswith("rests"))
    assert sites.trained(OWN) == 1
    sites.kill(OWN)
    sites.start(OWN)
    sites.played()
    assert sites.trained(OWN) == 1
    assert most_in_an_hour(ledgers[OWN]) == 3


@pytest.mark.slow
def test_runs_without_privacy_and_with_it_are_in_one_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What left without privacy no budget takes back: its data holder hears it, and goes on."""
    ledgers = {OWN: tmp_path / "own.db"}
    ledger = BudgetLedger(ledgers[OWN])
    Sites(tmp_path / "exact", plan_of(), {}, ledgers).played()
    ((_, facts, exact),) = [(run.run, run.facts, run.exact) for run in ledger.spent()]
    assert (facts, exact) == (0, 4)
    with caplog.at_level("INFO"):
        own = {OWN: Terms(budget=1e5)}
        Sites(tmp_path / "private", plan_of(**OF_RECORDS), own, ledgers).played()
    assert [(run.facts, run.exact) for run in ledger.spent()] == [(0, 4), (4, 0)]
    notes = [line for line in caplog.messages if "which no epsilon bounds" in line]
    assert notes == [
        f"{OWN}: {ledger.path} has at most 4 updates with no privacy on record, which no epsilon "
        "bounds: the budget of 100000 bounds what is spent besides"
    ], "once, and nobody else"
