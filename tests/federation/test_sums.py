"""Rules: a sum group publishes exact totals under every cipher, killed or not."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secureps as ps
from secureps.client.trainer import FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import PlanRefused, ScriptFailed
from secureps.policy.explain.explanation import rule_words
from secureps.policy.explain.visibility import across_versions, sights
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import (
    CIPHERS,
    OF_RECORDS,
    Tensors,
    events_of,
    finished,
    killed_at,
    same,
)
from tests.kits.privacy_kit import PRIVACY

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
        ({"versions": 2}, {}, "group counts: a sum beside a model moves with it"),
        ({"rule": RULE | {"deadline": 9.0}}, {}, "group counts: a sum beside a model moves with"),
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
