"""Reports travel inside evaluations, and open as means weighted by examples of their own."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from secureps.client.trainer import EvaluateResult
from secureps.errors import PlanRefused, TermsRefused
from secureps.messages.evaluation import EVALUATION
from secureps.policy.checks.evaluation import Said, count_examples, from_vector, to_vector
from secureps.policy.spending import make_fact
from secureps.roles.member.terms import Terms
from secureps.run.up.folder import client_names
from tests.kits.evaluations import METRICS, Examiner, evaluated_plan, examined, judged, metrics_of
from tests.kits.federations import OF_RECORDS, Tensors
from tests.kits.privacy_kit import PRIVACY, facts_of

REPORTS = {"train": {"loss": 10.0}, "query.ages": {"mean": 120.0, "old": 1.0}}
AGES = {"mean": 30.0, "old": 0.25}


class Reporter(Examiner):
    """Tells its training's loss and its ages; client 5 has nothing to say of version 2."""

    def report_at(
        self, parameters: Tensors, versions: Mapping[str, int], message: str
    ) -> EvaluateResult | None:
        for array in parameters.values():
            array.fill(0)  # its own copy: what follows must not see it
        if message == "train":
            said = EvaluateResult(None, 40 * (1 + self.number), {"loss": 1.0 + self.number})
            return None if self.number == 5 and versions == {"all": 2} else said
        assert (message, set(versions)) == ("query.ages", {"all"})
        return EvaluateResult(None, 7, {"mean": AGES["mean"] + self.number, "old": AGES["old"]})


def reporters() -> dict[str, Reporter]:
    return {name: Reporter(i) for i, name in enumerate(client_names(6))}


def reporting() -> Any:
    return evaluated_plan(evaluation={"reports": REPORTS, "bits": 24})


def test_each_report_is_a_mean_weighted_by_its_own_examples(tmp_path: Path) -> None:
    cast = reporters()
    simulation = examined(reporting(), tmp_path, trainers=cast)
    simulation.run()
    found = metrics_of(simulation)
    assert set(found) == {2, 4, 5}
    for version in sorted(found):
        members = range(5 if version == 2 else 6)
        shown = cast["client-00"].shown[sorted(found).index(version)]
        own = [judged(i, shown) for i in members]
        held_out = sum(each.examples for each in own)
        accuracy = sum(each.metrics["accuracy"] * each.examples for each in own) / held_out
        loss = sum((each.loss or 0.0) * each.examples for each in own) / held_out
        trained = [(40 * (1 + i), 1.0 + i) for i in members]
        assert found[version] == {
            "accuracy": pytest.approx(accuracy, abs=1e-3),
            "loss": pytest.approx(loss, abs=4e-3),
            "query.ages.mean": pytest.approx(30 + max(members) / 2, abs=0.1),
            "query.ages.old": pytest.approx(0.25, abs=1e-3),
            "train.loss": pytest.approx(
                sum(n * value for n, value in trained) / sum(n for n, _ in trained), abs=1e-3
            ),
        }


def test_a_part_weighs_by_its_examples_whoever_has_more_of_another() -> None:
    section = reporting().section.evaluation
    assert section is not None
    own = Said(5, {"loss": 2.0, "accuracy": 0.5})
    ages = Said(20, AGES)
    reports = {"query.ages": ages, "train": Said(10, {"loss": 5.0})}
    vector = to_vector(section, own, reports)
    assert count_examples(own, reports) == 20
    assert section.contributed == (
        *("share of evaluation", "accuracy", "loss"),
        *("share of query.ages", "query.ages.mean", "query.ages.old"),
        *("share of train", "train.loss"),
    )
    assert vector.tolist() == [0.25, 0.125, 0.125, 1.0, 0.25, 0.25, 0.5, 0.25]
    told = {
        each.name: each.value for each in from_vector(section, tuple(vector.tolist()), Fraction(1))
    }
    assert told == {
        "accuracy": 0.5,
        "loss": 2.0,
        "query.ages.mean": 30.0,
        "query.ages.old": 0.25,
        "train.loss": 5.0,
    }
    assert list(told) == sorted(told)
    noisy = (-0.1, 0.5, 0.5, 0.01, 0.5, -0.5, -0.2, 0.5)
    bounded = {each.name: each.value for each in from_vector(section, noisy, Fraction(1))}
    assert bounded == {
        "accuracy": 0.0,
        "loss": 0.0,
        "query.ages.mean": 120.0,
        "query.ages.old": -1.0,
    }


def test_under_client_level_privacy_all_that_is_told_is_charged(tmp_path: Path) -> None:
    privacy = PRIVACY | {"placement": "local"}
    group = [{"clip": 1.0, "bits": 20, "weighting": "uniform", "rule": {"quorum": 5}}]
    plan = evaluated_plan(versions=2, evaluation={"reports": REPORTS}, privacy=privacy, group=group)
    assert plan.metrics_count == 8
    assert plan.group(EVALUATION).clip == pytest.approx(8**0.5), "no vector of theirs is longer"
    assert set(plan.metric_noise) == {
        *METRICS,
        "query.ages.mean",
        "query.ages.old",
        "train.loss",
    }
    simulation = examined(plan, tmp_path, trainers=reporters())
    simulation.run()
    facts = facts_of(simulation.coordinator.federation.ledger, "client-02")
    (charged,) = [fact for fact in facts if fact.group == EVALUATION]
    assert charged == make_fact(plan, "client-02", EVALUATION, 8, charged.version)
    assert charged != make_fact(plan, "client-02", EVALUATION, 2, charged.version), (
        "nothing of reports"
    )
    (found,) = metrics_of(simulation).values()
    most = {"accuracy": 1.0, "loss": 4.0, "query.ages.mean": 120.0, "query.ages.old": 1.0}
    assert all(abs(found[name]) <= bound for name, bound in most.items())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (OF_RECORDS, "nothing is told of the records"),
        ({"evaluation": {"reports": REPORTS, "evaluator": "x"}}, "remove the evaluator or the"),
        (
            {"evaluation": {"reports": {"train": {"m": 1.0}}, "metrics": {"train.m": 1.0}}},
            "two metrics are called train.m",
        ),
        (
            {
                "block_size": 16,
                "evaluation": {"reports": {"query": dict.fromkeys("abcdefghijklm", 1.0)}},
            },
            "17 do not",
        ),
    ],
)
def test_unsound_reports_are_refused(changes: dict[str, Any], reason: str) -> None:
    own = {"evaluation": {"reports": REPORTS}, **changes}
    with pytest.raises(PlanRefused, match=reason):
        evaluated_plan(**own)


def test_a_site_allows_messages_of_an_apps_own_by_name() -> None:
    plan = reporting()
    with pytest.raises(TermsRefused, match=r"messages: the run uses query\.ages of the app"):
        Terms().refuse(plan, "client-00")
    Terms(messages=("query.ages",)).refuse(plan, "client-00")
    Terms(evaluation=False).refuse(plan, "client-00")
    own = evaluated_plan(evaluation={"reports": {"train": {"loss": 10.0}}})
    Terms().refuse(own, "client-00")
