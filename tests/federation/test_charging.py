"""Privacy: under every rule each update is charged once.

The epsilons are computed here from their closed forms alone: Renyi divergences of Mironov 2017
and of Agarwal, Kairouz and Liu 2021 (Corollary 3.6), converted by Canonne, Kamath and Steinke
2020 (Proposition 12).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import TooFew
from secureps.messages import coordinator_records
from secureps.messages.requests import Submit
from secureps.policy.plan import Plan
from secureps.policy.spending import make_fact, plan_epsilon, total_epsilon
from secureps.privacy.accountant import SKELLAM_ORDERS, WHOLE
from secureps.roles.coordinator import termination
from secureps.roles.member.member import Member
from tests.kits.cheats import journalled, spoils
from tests.kits.privacy_kit import facts_of
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, SSP, stream, stream_plan

DELTA = 1e-6
SIGMA = 20.0
STEPS = 3
RECORD = {
    "noise_multiplier": SIGMA,
    "max_grad_norm": 1.0,
    "records": 10,
    "sample_rate": 1.0,
    "delta": DELTA,
    "budget": 100.0,
}
LOCAL = {
    "unit": "client",
    "placement": "local",
    "noise_multiplier": SIGMA,
    "delta": DELTA,
    "budget": 100.0,
}
SYNC = {"name": "sync", "quorum": 6, "start": 14}
MANY = BUFFERED | {"buffer": 10, "power": 2.0}
RULES = [SYNC, SSP, MANY, PRIORITY, ASYNC]
VALUES = 217
"""Of the walkers' model, without what stays with each of them."""


def plan_of(
    rule: dict[str, Any], privacy: dict[str, Any], cipher: str = "plain", **changes: Any
) -> Plan:
    own = {"clip": 3.0, "rule": rule, "bits": 20}
    own["weighting"] = "uniform" if "unit" in privacy else "examples"
    group = [own | changes.pop("group", {})]
    training = {"local_steps": STEPS}
    return stream_plan(cipher, rule, group=group, privacy=privacy, training=training, **changes)


def converted(renyi: Callable[[float], float], orders: Iterable[float]) -> float:
    """The least epsilon at DELTA of these divergences."""
    return min(
        renyi(a) + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1) for a in orders
    )


def gaussian(updates: int) -> float:
    """Full batches: a record moves the sum of gradients by one clip, in each of the steps."""
    return converted(lambda a: updates * STEPS * a / (2 * SIGMA**2), WHOLE)


def skellam(updates: int, l2: float, l1: float, s: float) -> float:
    def renyi(a: float) -> float:
        near = ((2 * a - 1) * l2**2 + 6 * l1) / (4 * s**4)
        return updates * (a * l2**2 / (2 * s**2) + min(near, 3 * l1 / (2 * s**2)))

    return converted(renyi, SKELLAM_ORDERS)


@pytest.mark.parametrize(
    ("rule", "privacy"), [*((rule, RECORD) for rule in RULES), (RULES[-1], LOCAL)]
)
def test_the_ledger_has_one_fact_for_each_update_that_arrived(
    rule: dict[str, Any], privacy: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(rule, privacy, versions=6)
    play = stream(plan, tmp_path, 14)
    play.run()
    replayed = play._stores["coordinator"].journal.replay()
    journal = [record for _, record in replayed]
    arrived = [r.receipt for r in journal if isinstance(r, Submit)]
    updates = Counter(r.id.client for r in arrived if r.fact is not None)
    cohorts = [r.cohort for r in journal if isinstance(r, coordinator_records.CohortClosed)]
    summed = [member.id for cohort in cohorts for member in cohort.members]
    assert len(set(summed)) == len(summed), "none is in two sums"
    mixed = any(len({m.version for m in cohort.members}) > 1 for cohort in cohorts)
    assert mixed is (rule not in (SYNC, ASYNC))
    weights = {member.weight for cohort in cohorts for member in cohort.members}
    assert (weights > {1}) is (rule is MANY)
    ledger = play.coordinator.federation.ledger
    assert updates.total() >= len(summed) > 0
    for client, number in updates.items():
        own = facts_of(ledger, client)
        assert len(own) == number
        if privacy is RECORD:
            expected = gaussian(number)
        else:
            mechanism = plan.mechanism("all", VALUES)
            assert mechanism is not None
            l2, l1, s = mechanism.l2_sensitivity, mechanism.l1_sensitivity, mechanism.stddev
            assert s / l2 == pytest.approx(SIGMA, rel=1e-6)
            expected = skellam(number, l2, l1, s)
        assert total_epsilon(plan, own) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "privacy",
    [LOCAL, LOCAL | {"placement": "aggregator"}, LOCAL | {"placement": "distributed", "honest": 4}],
    ids=lambda privacy: privacy["placement"],
)
def test_an_update_that_is_sealed_again_is_charged_once(
    privacy: dict[str, Any], tmp_path: Path
) -> None:
    """After a burnt cohort its members send the same once more: it is the same release."""
    rule = BUFFERED | {"buffer": 6, "minimum": 4, "power": 0.0, "deadline": 30.0}
    plan = plan_of(
        rule, privacy | {"noise_multiplier": 2.0}, "rlwe", versions=3, group={"bits": 14}
    )
    play = stream(plan, tmp_path, 6)
    spoils(play, "client-02", 1)
    play.run(lambda: play.versions() == {"all": 1})
    assert len(journalled(play, coordinator_records.CohortBurnt)) == 1
    arrived = [r.receipt for r in journalled(play, Submit) if r.receipt.fact is not None]
    federation = play.coordinator.federation
    assert Counter(receipt.id.client for receipt in arrived) == dict.fromkeys(federation.members, 2)
    mechanism = plan.mechanism("all", VALUES)
    assert mechanism is not None
    for client in federation.members:
        first, again = (receipt for receipt in arrived if receipt.id.client == client)
        assert (first.version, first.step) == (again.version, again.step) == (0, 0)
        assert first.blocks != again.blocks, "under another key"
        expected = (mechanism.release(client, "all", 0),)
        member = play.parties[client].machine
        assert isinstance(member, Member)
        assert facts_of(federation.ledger, client) == expected
        assert facts_of(member._ledger, client) == expected


@pytest.mark.parametrize(
    ("rule", "most"),
    [(SYNC, 5), (BUFFERED, 5), (PRIORITY, 5), (ASYNC, 5), (SSP, 7), (SSP | {"slack": 4}, 9)],
)
def test_a_run_is_planned_with_all_that_a_member_may_send(rule: dict[str, Any], most: int) -> None:
    plan = plan_of(rule, RECORD, versions=5)
    assert plan_epsilon(plan, {"all": VALUES}, 5) == pytest.approx(gaussian(most), rel=1e-9)
    assert plan_epsilon(plan, {"all": VALUES}, 1) == pytest.approx(gaussian(1), rel=1e-9)


def test_a_group_is_planned_with_versions_of_its_own() -> None:
    plan = plan_of(SYNC, RECORD, versions=5, group={"versions": 2})
    assert plan_epsilon(plan, {"all": VALUES}, 5) == pytest.approx(gaussian(2), rel=1e-9)


@pytest.mark.parametrize("privacy", [RECORD, LOCAL], ids=["record", "client"])
def test_that_few_of_many_are_summed_makes_nothing_cheaper(privacy: dict[str, Any]) -> None:
    """Who comes first is no random sample: a thousand clients cost each what six do."""

    def cost(buffer: int, capacity: int) -> float:
        rule = BUFFERED | {"buffer": buffer, "power": 0.0}
        plan = plan_of(rule, privacy, versions=5)
        sections = plan.section.cipher.model_copy(update={"capacity": capacity})
        larger = Plan(plan.section.model_copy(update={"cipher": sections}))
        return plan_epsilon(larger, {"all": VALUES}, 5)

    assert cost(5, 40) == cost(40, 1000)


def test_an_update_of_any_weight_is_covered_by_noise_of_its_own() -> None:
    """What moves the sum by w times its norm brings w times its noise."""
    faded, even = (plan_of(BUFFERED | {"power": p}, LOCAL) for p in (0.5, 0.0))
    assert (faded.bounds("all").most_weight, even.bounds("all").most_weight) == (4, 1)
    assert make_fact(faded, "me", "all", VALUES, 3) == make_fact(even, "me", "all", VALUES, 3)


def test_the_coordinator_asks_nobody_for_a_step_that_would_exceed_the_budget(
    tmp_path: Path,
) -> None:
    """Steps from one base are updates of their own: it looks ahead as each client does.

    Nor does it wait for those who may train no more, whenever holders have looked into the last.
    """
    plan = plan_of(SSP, RECORD, versions=30)
    facts = (make_fact(plan, "client-00", "all", VALUES, version) for version in range(3))
    three = total_epsilon(plan, [each for each in facts if each is not None])
    plan = plan_of(SSP, RECORD | {"budget": three + 1e-6}, "rlwe", versions=30)
    simulation = stream(plan, tmp_path, 6)
    simulation.run()
    federation = simulation.coordinator.federation
    assert "the privacy budget is spent" in federation.finished
    assert not federation.retired, "whoever was asked could pay"
    charged = Counter(charge.party for charge in federation.ledger.facts)
    assert set(charged.values()) == {3}


@pytest.mark.parametrize("rule", [SSP, SYNC | {"start": 6}], ids=lambda rule: rule["name"])
def test_a_client_stops_at_its_budget_though_a_coordinator_asks_for_more(
    rule: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains no more, says why, and has sent what it paid for: that is no error."""
    plan = plan_of(rule, RECORD, versions=30)
    facts = (make_fact(plan, "client-00", "all", VALUES, version) for version in range(3))
    three = total_epsilon(plan, [each for each in facts if each is not None])
    plan = plan_of(rule, RECORD | {"budget": three + 1e-6}, versions=30)
    monkeypatch.setattr(termination, "exhausted_clients", lambda tx, groups: frozenset())
    monkeypatch.setattr(termination, "is_unaffordable", lambda tx, client, group: False)
    simulation = stream(plan, tmp_path, 6)
    ends = [party.halted for name, party in simulation.parties.items() if name.startswith("client")]
    simulation.run(lambda: all(end.done() for end in ends))
    halts = [end.result() for end in ends]
    reason = rf"another version would bring epsilon to .*, the budget is {three + 1e-6:g} \(one"
    stopped = [bool(re.match(f"{reason} .*: this client stops", halt.reason)) for halt in halts]
    assert any(stopped)
    failed = [halt.error is TooFew for halt in halts]
    assert [not own for own in stopped] == failed, "the others hear that too few are left"
    charged = Counter(charge.party for charge in simulation.coordinator.federation.ledger.facts)
    assert max(charged.values()) == 3
