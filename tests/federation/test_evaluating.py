"""Rules: sums are exact, evaluations are encrypted means; best version and early stop follow."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors import safe_open

import secureps as ps
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import (
    ConfigError,
    Conflict,
    Malformed,
    NotFinite,
    PlanRefused,
    Refused,
    ScriptFailed,
    SecurepsError,
    TermsRefused,
    UnknownParty,
    WrongRun,
    WrongVersion,
)
from secureps.messages.evaluation import EVALUATION, Evaluated, Metric, evaluated_bytes
from secureps.messages.requests import Decline, Noted, Prepared
from secureps.policy.checks.evaluation import Said, count_examples, from_vector, to_vector
from secureps.policy.explain.explanation import rule_words
from secureps.policy.explain.visibility import across_versions, sights
from secureps.policy.plan import Plan
from secureps.policy.spending import make_fact
from secureps.roles.machine import Answer
from secureps.roles.member.member import Member
from secureps.roles.member.terms import Terms
from secureps.run.export import export
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.service.shard.worker import ShardWorker
from secureps.store.checkpoint import checkpoint_directories
from tests.kits.disk_federation import DiskFederation
from tests.kits.evaluations import (
    FINE,
    METRICS,
    MOST_HELD_OUT,
    Examiner,
    evaluated_plan,
    examined,
    judged,
    metrics_of,
)
from tests.kits.federations import (
    CIPHERS,
    OF_RECORDS,
    Tensors,
    events_of,
    finished,
    killed_at,
    pinned_of,
    same,
    unharmed,
)
from tests.kits.privacy_kit import PRIVACY, facts_of

SCORES = {1: 0.2, 2: 0.5, 3: 0.9, 4: 0.4, 5: 0.3, 6: 0.3, 7: 0.2, 8: 0.1}
"""What every client says of the n-th model that it is shown."""


class Scripted(Examiner):
    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        super().evaluate(parameters)
        return EvaluateResult(1.0, 10, {"accuracy": SCORES[len(self.shown)]})


def cast(kind: type[Examiner] = Scripted, count: int = 6) -> dict[str, Examiner]:
    return {name: kind(i) for i, name in enumerate(client_names(count))}


class Played(NamedTuple):
    """A run of five versions of which six clients judged three, all of its models, and reasons."""

    simulation: Simulation
    cast: dict[str, Examiner]
    folder: Path
    published: dict[int, Tensors]
    reasons: set[str]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    trainers, folder = cast(Examiner), tmp_path_factory.mktemp("played")
    simulation = examined(evaluated_plan(), folder, trainers=trainers)
    found = Played(simulation, trainers, folder, {}, set())

    def over() -> bool:
        version = simulation.versions()["all"]
        if version >= 0 and version not in found.published:
            found.published[version] = simulation.model()
        if (group := simulation.coordinator.federation.groups.get(EVALUATION)) is not None:
            found.reasons.add(group.reason)
        return finished(simulation)

    simulation.run(over)
    return found


BEST = {"best": {"metric": "accuracy", "goal": "max"}}
MINIMUM = {"quorum": 5, "minimum": 5, "deadline": 10.0, "extensions": 0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"evaluation": {"every": 9}}, "none is the 9th"),
        ({"evaluation": {"best": {"metric": "f1", "goal": "max"}}}, "'f1' is none of the metrics"),
        ({"evaluation": {"stop": {"patience": 2}}}, r"add \[evaluation.best\]"),
        ({"evaluation": {**BEST, "stop": {}}}, "a patience, a target, or both"),
        ({"evaluation": {**BEST, "stop": {"target": 99.0}}}, "99 is never reached: .* is within"),
        ({"evaluation": {"evaluator": "x", "rule": {"quorum": 5}}}, "remove them or the evaluator"),
        ({"evaluation": {"rule": {"quorum": 3}}}, "evaluation: the quorum 3 is below"),
        ({"evaluation": {"rule": {"quorum": 9, "most": 9}}}, "capacity"),
        ({"group": [{"name": "evaluation", "rule": {"quorum": 6}}]}, "that name is the metrics'"),
        ({"group": [{"outcome": "sum", "rule": {"quorum": 6}}]}, "no model to evaluate.*leave"),
    ],
)
def test_unsound_evaluations_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        evaluated_plan(**changes)


@pytest.mark.parametrize("metrics", [{}, {"m": 0.0}, {"m": math.inf}, {"m": -1.0}])
def test_metrics_have_finite_positive_magnitudes(metrics: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.metrics"):
        evaluated_plan(evaluation={"metrics": metrics})


@pytest.mark.parametrize(
    ("versions", "every", "expected"),
    [(5, 2, (2, 4, 5)), (4, 2, (2, 4)), (3, 3, (3,)), (3, 1, (1, 2, 3)), (7, 4, (4, 7))],
)
def test_every_k_th_version_and_the_last(
    versions: int, every: int, expected: tuple[int, ...]
) -> None:
    found = evaluated_plan(every=every, versions=versions).schedule
    assert tuple(each for each in range(-1, versions + 9) if each in found) == expected
    counts = [sum(each <= newest for each in expected) for newest in range(versions + 9)]
    assert [found.count(newest) for newest in range(versions + 9)] == counts


def test_metrics_are_clipped_to_their_magnitudes_and_come_back_in_their_units() -> None:
    section = evaluated_plan().section.evaluation
    assert section is not None
    vector = to_vector(section, Said(9, {"loss": 3.0, "accuracy": -7.0, "other": math.nan}))
    assert vector.tolist() == [-1.0, 0.75]  # accuracy, loss of at most 4
    told = from_vector(section, (0.5, 0.75), Fraction(1))
    assert told == (Metric("accuracy", 0.5), Metric("loss", 3.0))
    with pytest.raises(Malformed, match="no metric 'accuracy'"):
        to_vector(section, Said(9, {"loss": 1.0}))
    with pytest.raises(NotFinite, match="metric 'loss' is nan"):
        to_vector(section, Said(9, {"loss": math.nan, "accuracy": 0.5}))
    for bad in ((0.5,), (0.5, math.nan), (math.inf, 0.0)):
        with pytest.raises(Malformed, match="2 finite values"):
            from_vector(section, bad, Fraction(1))


def test_a_shard_says_no_other_metrics_than_its_block_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So shards that hold the block, and are compared by its digest, say the same."""

    make = ShardWorker._keep_version

    def lies(worker: ShardWorker, *given: Any) -> Prepared:
        ready = make(worker, *given)
        return replace(ready, total=tuple(value + 1e-6 for value in ready.total))

    monkeypatch.setattr(ShardWorker, "_keep_version", lies)
    with pytest.raises(Refused, match="its total is not the block that it made"):
        examined(evaluated_plan(), tmp_path).run()


@pytest.mark.slow
def test_the_best_version_is_exported_after_later_checkpoints(tmp_path: Path) -> None:
    plan = evaluated_plan(every=1, versions=8, checkpoint_every=8, evaluation=BEST)
    simulation = examined(plan, tmp_path, trainers=cast())
    kept: list[Tensors] = []

    def over() -> bool:
        if simulation.versions() == {"all": 3} and not kept:
            kept.append(simulation.model())
        return bool(simulation.coordinator.federation.finished)

    simulation.run(over)
    stay = sorted(int(each.name) for each in checkpoint_directories(tmp_path / "checkpoints"))
    last = simulation.coordinator.federation.checkpoints[-1].number
    assert stay == [0, 3, last - 2, last - 1, last], "the first, the best, and keep = 3"
    best = export(tmp_path, tmp_path / "best.safetensors", the_best=True)
    assert best.versions == {"all": 3}
    assert same(best.tensors, kept[0])
    with safe_open(tmp_path / "best.safetensors", framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["version.all"] == "3"
    assert float(metadata["metric.accuracy"]) == metrics_of(simulation)[3]["accuracy"]
    newest = export(tmp_path, tmp_path / "newest.safetensors")
    assert newest.versions == {"all": 8}
    assert newest.evaluated is not None
    assert newest.evaluated.version == 8


def test_the_best_is_refused_where_nothing_says_what_it_is(played: Played) -> None:
    with pytest.raises(ConfigError, match=r"add \[evaluation.best\]"):
        export(played.folder, played.folder / "best.safetensors", the_best=True)


def budgeted(simulation: Simulation, names: tuple[str, ...], budget: float = 100.0) -> None:
    """Gives clients a budget of their own, as `--budget` does."""
    for name in names:
        machine = simulation.parties[name].machine
        assert isinstance(machine, Member)
        machine._settings = replace(machine._settings, terms=Terms(budget))
        simulation._ledgers[name].lower(budget)


def test_too_few_who_evaluate_hold_nobody_up(tmp_path: Path) -> None:
    simulation = examined(evaluated_plan(**OF_RECORDS), tmp_path)
    budgeted(simulation, ("client-02", "client-04"))
    simulation.run()
    federation = simulation.coordinator.federation
    assert simulation.versions() == {"all": 5}
    assert federation.included["client-02"] == 5, "it trains on"
    assert federation.finished == "all 5 versions are made"
    assert federation.trail.results == {}
    assert sorted(federation.trail.skipped) == [2, 4, 5]
    assert (
        "4 members of the round are left, and a cohort needs 5: sends no evaluation; its own log"
        in federation.trail.skipped[5]
    )
    assert simulation.loop.now() < 5.0


JUDGE = "client-06"


def designated(folder: Path, **changes: Any) -> Simulation:
    plan = evaluated_plan(
        evaluation={"evaluator": JUDGE, **changes.pop("evaluation", {})}, **changes
    )
    return examined(plan, folder, trainers=cast(Examiner, 7))


@pytest.mark.slow
def test_a_designated_evaluator_judges_and_does_not_train(tmp_path: Path) -> None:
    simulation = designated(tmp_path)
    simulation.run()
    federation = simulation.coordinator.federation
    assert list(metrics_of(simulation)) == [2, 4, 5]
    assert {result.by for result in federation.trail.newest} == {JUDGE}
    assert {result.examples for result in federation.trail.newest} == {9}
    assert all(id.client != JUDGE for id in federation.fates)
    assert EVALUATION not in federation.groups
    assert same(simulation.model(), unharmed(versions=5)[0])


def test_an_evaluator_that_is_gone_holds_nobody_up_for_long(tmp_path: Path) -> None:
    simulation = designated(tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    simulation.kill(JUDGE)
    simulation.run(lambda: bool(simulation.coordinator.federation.finished))
    state = simulation.coordinator.federation.trail
    assert sorted(state.skipped) == [2, 4, 5]
    assert JUDGE in state.skipped[2]
    assert simulation.loop.now() < 60.0


def test_an_early_stop_by_a_designated_evaluator(tmp_path: Path) -> None:
    simulation = designated(tmp_path, every=1, evaluation={**BEST, "stop": {"target": 0.0}})
    simulation.run()
    assert simulation.versions() == {"all": 1}
    assert simulation.coordinator.federation.finished.startswith("version 1 reached the target")
    assert export(tmp_path, tmp_path / "best.safetensors", the_best=True).versions == {"all": 1}


METRICS_SAID = (Metric("accuracy", 0.5), Metric("loss", 0.25))


def waiting(folder: Path) -> tuple[Simulation, Evaluated]:
    """A run that waits for its evaluator, which is dead, and what that would have said."""
    simulation = designated(folder)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    simulation.kill(JUDGE)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    run = pinned_of(simulation).run.id
    model = tuple(group.digest for group in simulation.coordinator.federation.model_groups)
    return simulation, Evaluated(run, JUDGE, 2, model, METRICS_SAID, 7)


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, Evaluated]:
    return waiting(tmp_path_factory.mktemp("waits"))


def signed(simulation: Simulation, message: Evaluated, by: str = JUDGE) -> Evaluated:
    identity = simulation._kit.identities[by]
    return replace(message, signature=identity.sign(*evaluated_bytes(message)))


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"run": bytes(32)}, WrongRun, "another run"),
        ({"version": 1}, WrongVersion, "version 2 is to be evaluated now"),
        ({"version": 4}, WrongVersion, "not version 4"),
        ({"model": (bytes(32),)}, WrongVersion, "as you have it"),
        ({"model": ()}, WrongVersion, "as you have it"),
        ({"metrics": ()}, Malformed, "accuracy, loss"),
        ({"metrics": (Metric("accuracy", 0.5),)}, Malformed, "accuracy, loss"),
        ({"metrics": (Metric("loss", 0.5), Metric("accuracy", 0.5))}, Malformed, "in this order"),
        ({"metrics": (Metric("accuracy", math.nan), Metric("loss", 0.5))}, NotFinite, "is nan"),
        ({"metrics": (Metric("accuracy", 1.0), Metric("loss", math.inf))}, NotFinite, "is inf"),
        ({"examples": 0}, Malformed, "at least 1"),
    ],
)
def test_bad_evaluations_are_refused_and_change_nothing(
    changes: dict[str, Any],
    error: type[SecurepsError],
    reason: str,
    waits: tuple[Simulation, Evaluated],
) -> None:
    simulation, good = waits
    try:
        bad = signed(simulation, replace(good, **changes))
    except ValueError:  # NaN has no canonical form, so nobody can sign it
        bad = replace(signed(simulation, good), **changes)
    with pytest.raises(error, match=reason):
        simulation.coordinator.handle(simulation.loop.now(), JUDGE, bad)
    assert simulation.coordinator.federation.trail.results == {}


def test_an_evaluation_is_taken_once_and_by_its_signer_alone(tmp_path: Path) -> None:
    simulation, good = waiting(tmp_path)
    now, coordinator = simulation.loop.now(), simulation.coordinator
    with pytest.raises(SecurepsError):
        coordinator.handle(now, JUDGE, good)  # unsigned
    with pytest.raises(SecurepsError):
        coordinator.handle(now, JUDGE, signed(simulation, good, "client-00"))
    with pytest.raises(UnknownParty, match="speaks as"):
        coordinator.handle(now, "client-00", signed(simulation, good))
    other = signed(simulation, replace(good, party="client-00"), "client-00")
    with pytest.raises(UnknownParty, match="not the evaluator"):
        coordinator.handle(now, "client-00", other)
    for _ in range(2):  # replayed
        step = coordinator.handle(now, JUDGE, signed(simulation, good))
        assert Answer(Noted()) in step.effects
    assert list(coordinator.federation.trail.results) == [2]
    changed = replace(good, metrics=(Metric("accuracy", 0.6), Metric("loss", 0.25)))
    with pytest.raises(Conflict, match="evaluated already, to other values"):
        coordinator.handle(now, JUDGE, signed(simulation, changed))


@pytest.mark.parametrize("version", [0, 1])
def test_an_evaluation_before_there_is_a_version_is_refused(tmp_path: Path, version: int) -> None:
    """It ended the coordinator: groups without a version have no digest to compare with."""
    simulation = designated(tmp_path)
    federation = simulation.coordinator.federation
    simulation.run(lambda: JUDGE in federation.members)
    early = Evaluated(pinned_of(simulation).run.id, JUDGE, version, (), METRICS_SAID, 7)
    with pytest.raises(WrongVersion, match="none is to be evaluated now"):
        simulation.coordinator.handle(0.0, JUDGE, signed(simulation, early))


def test_without_an_evaluator_in_the_plan_nobody_is_one(tmp_path: Path) -> None:
    simulation = examined(evaluated_plan(), tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    message = Evaluated(bytes(32), "client-00", 2, (), (), 1)
    with pytest.raises(UnknownParty, match="not the evaluator that the plan names"):
        simulation.coordinator.handle(0.0, "client-00", message)


def test_every_metric_is_there_in_the_report_of_a_run(played: Played) -> None:
    from secureps.run.report.version_metrics import Line, Metrics

    simulation = played.simulation
    told: dict[int, Line] = {}
    metrics = Metrics(lambda line: told.update({line.version: line}), False)
    for version in range(6):
        metrics.publish("all", version, float(version), math.inf)
    metrics.add_evaluations(simulation.coordinator.federation.trail.newest, ["all"])
    metrics.settle()
    for version, values in metrics_of(simulation).items():
        expected = {f"federated_{name}": value for name, value in values.items()}
        assert expected.items() <= told[version].record().items()
        assert expected.items() <= told[version].scalars().items()
    assert "federated_loss" not in told[1].record()
    assert METRICS.keys() == {"accuracy", "loss"}
    assert np.isfinite(list(metrics_of(simulation)[5].values())).all()


class Silent(Examiner):
    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, 10, {"speed": 1.0})


class Undefined(Examiner):
    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(math.nan, 10, {"accuracy": 1.0})


def fails(error: Exception) -> type[Examiner]:
    """A kind of examiner that raises an error of ours."""

    def evaluate(self: Examiner, parameters: Tensors) -> EvaluateResult:
        raise error

    return type("Fails", (Examiner,), {"evaluate": evaluate})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Silent, "what evaluate returned: there is no metric 'accuracy'"),
        (Undefined, "metric 'loss' is nan"),
        (type("Raises", (Examiner,), {"evaluate": lambda self, p: 1 / 0}), "ZeroDivisionError"),
        (fails(ConfigError("no file of held-out records")), "no file of held-out records"),
    ],
)
def test_a_script_that_cannot_evaluate_is_told_so_once_and_trains_on(
    kind: type[Examiner], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator hears that it sends none, and not why."""
    caplog.set_level(logging.INFO, logger="secureps")
    trainers = cast(Examiner) | {"client-03": kind(3)}
    simulation = examined(evaluated_plan(evaluation={"rule": MINIMUM}), tmp_path, trainers=trainers)
    simulation.run()
    federation = simulation.coordinator.federation
    assert simulation.versions() == {"all": 5}
    assert list(metrics_of(simulation)) == [2, 4, 5]
    assert sum(id.client == "client-03" for id in federation.fates) == 5
    lines = [each.getMessage() for each in caplog.records]
    told = [line for line in lines if reason in line]
    assert len(told) == 1
    assert told[0].startswith("client-03: sends no evaluation: ")
    assert "client-03 takes no part: sends no evaluation" in caplog.text
    own = [line for line in lines if line.startswith("client-01: evaluates version ")]
    assert [line.split()[3] for line in own] == ["2:", "4:", "5:"], "its data holder hears of each"
    assert "evaluation: version" not in caplog.text, "no other numbers of evaluations are told"


def test_an_evaluator_whose_script_fails_holds_nobody_up(tmp_path: Path) -> None:
    plan = evaluated_plan(evaluation={"evaluator": JUDGE})
    trainers = cast(Examiner, 7) | {JUDGE: Silent(6)}
    simulation = examined(plan, tmp_path, trainers=trainers)
    simulation.run()
    assert simulation.versions() == {"all": 5}
    skipped = simulation.coordinator.federation.trail.skipped
    why = f"{JUDGE}: sends no evaluation; its own log says why"
    assert skipped == dict.fromkeys((2, 4, 5), why)
    assert simulation.loop.now() < 5.0, "a round waited for who had declined"


def test_an_evaluator_declines_what_it_is_to_judge_now_and_nothing_else(tmp_path: Path) -> None:
    simulation, _ = waiting(tmp_path)
    coordinator = simulation.coordinator
    for version in (1, 3, 4):
        coordinator.handle(0.0, JUDGE, Decline(JUDGE, EVALUATION, version, "no"))
    assert coordinator.federation.trail.skipped == {}
    with pytest.raises(Malformed, match="no group is called"):
        coordinator.handle(0.0, "client-00", Decline("client-00", EVALUATION, 2, "no"))
    coordinator.handle(0.0, JUDGE, Decline(JUDGE, EVALUATION, 2, "no"))
    assert coordinator.federation.trail.skipped == {2: f"{JUDGE}: no"}


def test_evaluating_changes_no_bit_of_the_model(played: Played) -> None:
    assert same(played.published[5], unharmed(versions=5)[0])


def test_every_client_is_shown_exactly_the_versions_that_are_evaluated(played: Played) -> None:
    assert {"version 2 is evaluated", "version 4 is evaluated"} <= played.reasons
    for examiner in played.cast.values():
        shown = [{n: v for n, v in s.items() if n != "body.count"} for s in examiner.shown]
        assert len(shown) == 3
        assert all(same(s, played.published[v]) for s, v in zip(shown, (2, 4, 5), strict=True))


def test_a_metric_is_the_weighted_mean_of_integers_computed_here(played: Played) -> None:
    """Rounded by the same words, added up in Python's integers, divided once."""
    most, names = (1 << 15) - 1, sorted(METRICS)
    for version, (base, at) in enumerate([(0, 2), (1, 4), (2, 5)]):
        sums, examples = [0] * len(names), 0
        for number, (name, examiner) in enumerate(played.cast.items()):
            result = judged(number, examiner.shown[version])
            assert result.loss is not None
            values = {"loss": result.loss, **result.metrics}
            share = result.examples / MOST_HELD_OUT
            words = UnsafeSeed(3).derive("round", name, EVALUATION, base, 0).words(len(names))
            for i, metric in enumerate(names):
                scaled = np.float64(np.float32(values[metric] / METRICS[metric]))
                exact = scaled * share * most
                low = int(np.floor(exact))
                sums[i] += low + int(int(words[i]) < (exact - low) * 2**32)
            examples += result.examples
        totals = [float(np.float32(s * (1.0 / most))) for s in sums]
        told = metrics_of(played.simulation)[at]
        assert [told[name] for name in names] == [
            total / (examples / MOST_HELD_OUT) * METRICS[name]
            for total, name in zip(totals, names, strict=True)
        ]


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
    return evaluated_plan(evaluation={"reports": REPORTS}, group=FINE)


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
    assert set(plan.metric_noise) == {*METRICS, "query.ages.mean", "query.ages.old", "train.loss"}
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


CLIENTS = 5
COUNTS = {"name": "counts", "outcome": "sum", "pattern": "count.*", "bits": 16}
MODEL = {"name": "all", "clip": 3.0, "range": 1.0}
NOISE: dict[str, Any] = {"privacy": PRIVACY | {"placement": "distributed"}}
RULE = {"quorum": CLIENTS, "minimum": CLIENTS, "deadline": 10.0}


def sum_plan(cipher: str = "plain", model: bool = True, **changes: Any) -> Plan:
    """Three versions of a sum of five clients, with a model of two tensors or alone."""
    groups = [{**COUNTS, "rule": RULE, **changes.pop("group", {})}]
    data = {
        "name": "sums",
        "versions": 3,
        "shards": 2,
        "cipher": {**CIPHERS[cipher], "capacity": 8},
        "group": [*groups, *([{**MODEL, "rule": RULE}] if model else [])],
    }
    return Plan(parse(PlanSection, data | changes, "test"))


def addend(number: int, version: int) -> Tensors:
    """What a client adds at a version: the bounds of 16 bits among it."""
    most = (1 << 15) - 1
    return {
        "count.ages": np.array([number, -number * version, most], np.int64),
        "count.sex": np.array([[float(version + 1), -most]], np.float32),
    }


def added(version: int) -> Tensors:
    whole = [addend(number, version) for number in range(CLIENTS)]
    return {name: sum((each[name] for each in whole), 0 * whole[0][name]) for name in whole[0]}


class Counter:
    """A trainer that counts, and moves a model if there is one; it notes the totals it is given."""

    def __init__(self, number: int, model: bool = True) -> None:
        self.number, self.model, self.given = number, model, dict[int, Tensors]()

    def parameters(self, seed: int) -> ps.Parameters:
        body = {"body": np.ones(40, np.float32)} if self.model else {}
        return {name: 0 * array for name, array in addend(0, 0).items()} | body

    def examples(self) -> int:
        return 7

    def fit(self, parameters: ps.Parameters, config: FitConfig) -> FitResult:
        version = config.versions["counts"]
        self.given[version] = {n: a.copy() for n, a in parameters.items() if n != "body"}
        body = {n: a - np.float32(0.1) for n, a in parameters.items() if n == "body"}
        return FitResult(self.adds(version) | body, 7, {}, 1)

    def adds(self, version: int) -> Tensors:
        return addend(self.number, version)

    def evaluate(self, parameters: ps.Parameters) -> ps.EvaluateResult:
        raise AssertionError("nothing is evaluated")


def counters(model: bool = True) -> dict[str, Counter]:
    return {name: Counter(i, model) for i, name in enumerate(client_names(CLIENTS))}


def counting(plan: Plan, folder: Path, trainers: dict[str, Counter] | None = None) -> Simulation:
    cast: dict[str, ps.Trainer] = {**(trainers or counters())}
    return Simulation(plan, Cast(cast, UnsafeSeed(3)), folder)


def totals_of(simulation: Simulation) -> Tensors:
    return {n: a for n, a in simulation.model().items() if n.startswith("count.")}


@pytest.mark.parametrize("cipher", ["plain", "rlwe", "bfv"])
def test_a_total_is_what_python_adds_up(cipher: str, tmp_path: Path) -> None:
    """Beside a model, in the shapes and dtypes of the tensors, and given to the next training."""
    trainers = counters()
    simulation = counting(sum_plan(cipher), tmp_path, trainers)
    simulation.run()
    assert same(totals_of(simulation), added(2))
    assert simulation.model()["body"].max() < 1
    given = trainers["client-00"].given
    assert [bool(total["count.ages"].any()) for total in given.values()] == [False, True, True]
    assert all(same(given[version], added(version - 1)) for version in (1, 2))


def test_a_sum_needs_no_model_and_may_come_out_the_same_again(tmp_path: Path) -> None:
    plan = sum_plan(model=False, group={"pattern": "*"})
    trainers = counters(model=False)
    simulation = counting(plan, tmp_path, trainers)
    for trainer in trainers.values():
        trainer.adds = lambda version: addend(1, 1)  # type: ignore[method-assign]
    simulation.run()
    assert simulation.versions() == {"counts": 3}
    five = {name: CLIENTS * array for name, array in addend(1, 1).items()}
    assert same(simulation.model(), five)


def test_a_kill_changes_no_total(tmp_path: Path) -> None:
    plan, wanted = sum_plan("rlwe"), added(2)
    events = events_of(counting(plan, tmp_path / "whole"))
    for k, party in enumerate(("coordinator", "shard-0", "client-01", "holder-1"), 1):
        simulation = counting(plan, tmp_path / party)
        killed_at(simulation, party, k * events // 5)
        assert same(totals_of(simulation), wanted), party


def test_a_client_ends_without_the_last_totals_where_no_shard_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After its lease, so that a server that is gone holds up nobody."""
    plan = sum_plan()
    simulation = counting(plan, tmp_path)
    simulation.run(lambda: finished(simulation))
    for shard in ("shard-0", "shard-1"):
        simulation.kill(shard)
    began, clients = simulation.loop.now(), [simulation.parties[n] for n in counters()]
    with caplog.at_level(logging.INFO, "secureps"):
        simulation.run(lambda: all(each.halted.done() for each in clients))
    assert simulation.loop.now() - began >= plan.section.lease
    assert "client-00: the last version could not be pulled from the shards" in caplog.messages
    assert clients[0].halted.result().reason == "all 3 versions are made"
    assert clients[0].halted.result().error is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "tensor 'count.sex' has the value 0.5, and the plan sums whole numbers from"),
        (32768.0, r"has the value 32768, .* from -32,767 to 32,767 \(group counts: bits = 16\)"),
    ],
)
def test_what_does_not_fit_an_exact_sum_is_never_sent(
    value: float, text: str, tmp_path: Path
) -> None:
    trainers = counters()
    simulation = counting(sum_plan(), tmp_path, trainers)
    other = {**addend(2, 0), "count.sex": np.full((1, 2), value, np.float32)}
    trainers["client-02"].adds = lambda version: other  # type: ignore[method-assign]
    simulation.run(lambda: "client-02" in simulation.left)
    with pytest.raises(ScriptFailed, match=text):
        raise simulation.left["client-02"]


def test_a_fault_in_take_totals_is_the_script_s(tmp_path: Path) -> None:
    def take_totals(parameters: ps.Parameters) -> None:
        raise KeyError("ages")

    trainers = counters()
    trainers["client-02"].take_totals = take_totals  # type: ignore[attr-defined]
    simulation = counting(sum_plan(), tmp_path, trainers)
    simulation.run(lambda: "client-02" in simulation.left)
    with pytest.raises(ScriptFailed, match="take_totals raised KeyError: 'ages'"):
        raise simulation.left["client-02"]


def test_noise_covers_a_sum_under_client_level_privacy(tmp_path: Path) -> None:
    """The total has the noise of any sum, and the ledger charges it as any."""
    plan = sum_plan("rlwe", model=False, group={"pattern": "*", "clip": 1e5}, **NOISE)
    simulation = counting(plan, tmp_path, counters(model=False))
    simulation.run()
    off = simulation.model()["count.ages"] - added(2)["count.ages"]
    assert off.any()
    assert np.abs(off).max() < 12e5  # some deviations of the smallest cohort's noise
    ledger = simulation.coordinator.federation.ledger
    assert [ledger.count(name) for name in client_names(CLIENTS)] == [3] * CLIENTS


def test_a_client_adds_no_more_than_its_clip_under_privacy(tmp_path: Path) -> None:
    """However large its tensors are: noise of the clip covers nothing larger."""
    trainers, wide = counters(model=False), np.ones(10_000, np.float32)
    for trainer in trainers.values():
        trainer.parameters = lambda seed: {"count": 0 * wide}  # type: ignore[method-assign]
        trainer.adds = lambda version: {"count": wide}  # type: ignore[method-assign]
    group = {"pattern": "*", "clip": 1.0}
    simulation = counting(sum_plan("rlwe", model=False, group=group, **NOISE), tmp_path, trainers)
    simulation.run()
    assert 0 < simulation.model()["count"].mean() < 0.2  # clipped 0.05, and 5 otherwise


@pytest.mark.parametrize(
    ("group", "changes", "text"),
    [
        ({"feedback": True}, {}, "feedback: it is for updates of a model"),
        ({"range": 2.0}, {}, "range: it is for updates of a model"),
        ({"optimizer": {"name": "adam"}}, {}, "optimizer: it is for updates of a model"),
        ({"most_examples": 9}, {}, 'weighting: in a sum all count alike: take "uniform"'),
        ({"rule": {"name": "async"}}, {}, 'rule: in a sum each client counts once, and under "as'),
        ({"versions": 2}, {}, "group counts: a sum in a plan with a model keeps pace with"),
        ({"rule": RULE | {"deadline": 9.0}}, {}, "group counts: a sum in a plan with a mod"),
        ({"bits": 23}, {}, "bits: 8 clients that add up to 4,194,303 each reach a total of 33,5"),
        ({}, OF_RECORDS, "under record-level privacy"),
    ],
)
def test_a_sum_that_could_not_be_exact_or_private_is_refused(
    group: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanRefused, match=text):
        sum_plan(group=group, **changes)


@pytest.mark.parametrize(
    ("dtype", "privacy"),
    [("bool", {}), ("uint8", {}), ("int16", {}), ("float16", {}), ("u4", NOISE)],
)
def test_a_tensor_that_cannot_hold_its_total_is_refused(
    dtype: str, privacy: dict[str, Any], tmp_path: Path
) -> None:
    """Five times 200 would be 255 in uint8, and five times True would be True."""
    trainers = counters(model=False)
    for trainer in trainers.values():
        start = {"count.ages": np.zeros(3, dtype)}
        trainer.parameters = lambda seed, start=start: start  # type: ignore[method-assign,misc]
        trainer.adds = lambda version: {  # type: ignore[method-assign]
            "count.ages": np.ones(3, dtype)
        }
    group = {"pattern": "*"} | ({"clip": 1e5} if privacy else {})
    plan = sum_plan("rlwe", model=False, group=group, **privacy)
    text = f"group counts: tensor 'count.ages' is {np.dtype(dtype)}, which cannot hold every total"
    with pytest.raises(PlanRefused, match=text):
        counting(plan, tmp_path, trainers).run()


def test_check_says_that_totals_are_exact_and_what_two_of_them_tell() -> None:
    plan = sum_plan(model=False, group={"pattern": "*"})
    assert rule_words(plan)[0].rule.startswith("the exact total of rounds of up to 8 members")
    (said,) = across_versions(plan)
    assert said.startswith("counts: two totals of one question, of cohorts that differ by one")
    assert len(across_versions(sum_plan())) == 2


def test_totals_of_all_clients_are_not_said_to_be_subtracted() -> None:
    """As far as the plan knows: a roster may have more clients than `[federation]` counts."""
    for clients, begins in ((CLIENTS, "each total is of all"), (CLIENTS + 1, "two totals of one")):
        section = {"script": "count.py", "clients": clients}
        plan = sum_plan(model=False, group={"pattern": "*"}, federation=section)
        (said,) = across_versions(plan)
        assert said.startswith(f"counts: {begins}")


def test_check_of_a_sum_speaks_of_no_model() -> None:
    plan = sum_plan("rlwe", model=False, group={"pattern": "*"})
    seen = {sight.role: sight for sight in sights(plan)}
    assert seen["client"].sees == "its own records, published totals"
    assert "model" not in seen["shard"].sees
    both = {sight.role: sight for sight in sights(sum_plan())}
    assert both["client"].sees == "its own records, published models and totals"
    assert "the model" in both["shard"].sees


def test_a_plan_without_sums_keeps_its_text() -> None:
    """Run ids and digests of before stay as they were."""
    model = Plan(parse(PlanSection, {"name": "p", "versions": 1, "group": [{"rule": RULE}]}, ""))
    assert "outcome" not in model.text
    assert '"outcome":"sum"' in sum_plan().text


@pytest.mark.slow
def test_a_session_pushes_sums_and_reads_the_last_totals(tmp_path: Path) -> None:
    plan = sum_plan(model=False, group={"pattern": "*"})
    last, seen = CLIENTS - 1, []
    with DiskFederation(plan, tmp_path, CLIENTS, lambda i: Counter(i, model=False)) as federation:
        session = ps.join(
            federation.directory,
            plan,
            server=federation.server,
            name=f"client-{last:02d}",
            state=federation.folder / "last",
            initial=Counter(last, model=False).parameters,
            examples=7,
            unsafe_seed=3,
            insecure_for_tests=True,
        )
        with session:
            assert session.totals == {}
            for model in session:
                seen.append({name: array.copy() for name, array in session.totals.items()})
                with pytest.raises(ScriptFailed, match=r"sums count\.ages, count\.sex, and"):
                    session.push_sum({})
                sealed = session.push_sum(addend(last, model.version))
                assert len(sealed) == 1
    assert session.finished == "all 3 versions are made"
    assert [int(each["count.ages"][2]) for each in seen] == [0, *[CLIENTS * 32767] * 2]
    assert all(same(seen[version], added(version - 1)) for version in (1, 2))
    assert same(dict(session.totals), added(2))
