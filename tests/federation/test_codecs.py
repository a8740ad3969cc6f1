"""Exactness: updates and pulls that are made small are the same bits for everybody."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client import worker
from secureps.client.trainer import FitConfig, FitResult
from secureps.client.update import Update, clip_update
from secureps.client.worker import ClientWorker
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.requests import Payload, Telemetry
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_codes
from secureps.policy.plan import Plan
from secureps.policy.spending import plan_epsilon
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from secureps.roles.member.tasks import Contribute, kept_key
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import (
    Tensors,
    Walker,
    finished,
    layout_of,
    small_federation,
    small_plan,
)
from tests.kits.feedback_kit import Recorded, recomputed
from tests.kits.privacy_kit import facts_of, least_cipher, private_plan, scales
from tests.kits.thin_group import FED_BACK, RULE, THIN

PRIVATE = {"codec": THIN[:2], "feedback": True, "weighting": "uniform"}


def private(placement: str, cipher: str = "bfv", **group: Any) -> Plan:
    rule = {"quorum": 6, "minimum": 5, "deadline": 10.0, "extensions": 0}
    own = {"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": rule}
    return private_plan(placement, cipher, group=[own | group], block_size=64)


@pytest.mark.parametrize("placement", ["local", "distributed", "aggregator"])
def test_client_level_privacy_is_charged_for_the_integers_that_are_sent(
    placement: str, tmp_path: Path
) -> None:
    """The ledger's numbers are those of fewer values."""
    plan = private(placement, least_cipher(placement), **PRIVATE)
    simulation = small_federation(plan, tmp_path)
    simulation.run()
    layout = layout_of(simulation).group("all")
    assert (layout.size, layout.sent) == (217, 55)
    facts = facts_of(simulation.coordinator.federation.ledger, "client-02")
    mechanism = ClientMechanism(1.0, 55, 16, 1.0, placement, plan.honest("all"))  # type: ignore[arg-type]
    assert list(facts) == [mechanism.release("client-02", "all", v) for v in range(4)]


def test_a_public_support_earns_no_amplification() -> None:
    """One in four of 220 values costs what all of 55 do, and no less by a digit."""
    thin = private("local", "plain", codec=[{"name": "support", "one_in": 4}])
    whole = private("local", "plain")
    assert thin.chain("all").one_in == 4
    for versions in (1, 4):
        spent = [plan_epsilon(each, {"all": 55}, versions) for each in (thin, whole)]
        assert spent[0] == spent[1] > 0


@pytest.mark.parametrize("shape", ["one value", "alike", "along a row", "random"])
def test_no_update_is_longer_in_integers_than_its_mechanism_says(shape: str) -> None:
    """Of the clip's whole length, through support and rotation, with the worst rest there is."""
    plan = private("local", "plain", codec=["rotate"], bits=10)
    layout = GroupLayout("all", (), 217, 63)
    mechanism = plan.mechanism("all", layout.sent)
    assert mechanism is not None
    x = np.random.default_rng(1).standard_normal(layout.size)
    if shape != "random":
        x = np.zeros(layout.size)
        x[{"one value": slice(3, 4), "alike": slice(None), "along a row": slice(0, 60)}[shape]] = 1
    update, _ = clip_l2(x * 1e6, 1.0)
    code_of = block_codes(plan, layout, 0, [bytes(32)] * layout.blocks)
    spans = [slice(*layout.span(k)) for k in range(layout.blocks)]
    encoded = np.concatenate([code_of(k).encode(update[span]) for k, span in enumerate(spans)])
    assert np.linalg.norm(encoded) <= 1 + 1e-7
    whole, _ = clip_l2(encoded, 1.0)
    words = UnsafeSeed(1).derive("words").words
    for _ in range(20):
        rounded = mechanism.round_update(whole, words)
        assert int(rounded @ rounded) <= mechanism.l2_sensitivity**2
        assert np.abs(rounded).sum() <= mechanism.l1_sensitivity


GROUP = {"codec": [{"name": "support", "one_in": 3}, "rotate"], "feedback": True} | {
    "clip": 1.0,
    "range": 0.25,
    "bits": 4,
    "most_examples": 32,
}


def federation(folder: Path, plan: Plan) -> Simulation:
    return small_federation(plan, folder, kind=Recorded)


STAGES = ({"name": "support", "one_in": 3}, "rotate", {"name": "round", "length": "mean_norm"})


def assert_kept(simulation: Simulation, client: str) -> None:
    found = recomputed(simulation, client)
    assert found is not None
    last, rest = found
    spool, key = simulation._stores[client].spool, kept_key("all", last.update)
    assert [each for each in spool.keys("kept/") if each != key] == []
    assert spool.get(key)[32:] == rest.astype("<f4").tobytes()
    assert 0 < np.linalg.norm(rest) < 1.5


def test_what_is_kept_is_in_the_models_units_where_the_range_moves(tmp_path: Path) -> None:
    group = {key: value for key, value in GROUP.items() if key != "range"}
    own = small_plan(group=[group | {"codec": STAGES, "rule": {"quorum": 6}}])
    simulation = federation(tmp_path, own)
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


FOLLOWS = (*THIN[:2], {"name": "round", "length": "mean_norm"})
CLIP = 64.0


FOLLOWING = FED_BACK | {"codec": FOLLOWS, "clip": CLIP, "weighting": "uniform", "rule": RULE}


def following_plan(
    cipher: str = "plain", local: tuple[str, ...] = ("*.count",), **more: Any
) -> Plan:
    return small_plan(cipher, versions=6, local=local, group=[FOLLOWING | more])


@pytest.mark.parametrize("feedback", [True, False])
def test_the_range_follows_the_mean_norm(
    feedback: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a clip that is far too long, by a factor of at most four in a version."""
    norms = dict[float, list[float]]()

    def noted(*given: Any) -> Update:
        made = clip_update(*given)
        norms.setdefault(given[3], []).append(made.norm)
        return made

    monkeypatch.setattr(worker, "clip_update", noted)
    simulation = small_federation(following_plan(feedback=feedback), tmp_path)
    simulation.run(lambda: finished(simulation))
    found = scales(simulation)
    assert [found[version] for version in range(3)] == [1.0, 0.25, 0.0625]
    for version in range(3, 6):
        mean = np.mean(norms[found[version]])
        assert found[version + 1] == pytest.approx(mean / CLIP, rel=0.3)
        assert found[version + 1] < 0.06


class Steady(Walker):
    """Begins with zeros, and takes the same step every time."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.step = 0.1 * np.random.default_rng(number).standard_normal(200, np.float32)

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.zeros(200, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + self.step}, 10, {}, 1)


def test_a_range_that_follows_loses_less_than_one_that_stays(tmp_path: Path) -> None:
    """Where the clip is far too long; the first versions are rounded as coarsely by both."""
    mean = np.mean([Steady(number).step for number in range(6)], axis=0)
    far = []
    for length in ("clip", "mean_norm"):
        codec = ("rotate", {"name": "round", "length": length})
        own = following_plan(local=(), codec=codec, feedback=False, bits=6)
        simulation = small_federation(own, tmp_path / length, kind=Steady)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        far.append(float(np.linalg.norm(simulation.model()["body"] - 6 * mean)))
    assert far[1] < far[0] / 2


GROUPS: dict[str, dict[str, Any]] = {"every value": {"range": 1.0, "clip": 3.0}, "a part": FED_BACK}


def delta_plan(kind: str = "a part", rule: dict[str, Any] = RULE, **more: Any) -> Plan:
    group = GROUPS[kind] | {"most_examples": 32, "rule": rule, "pull_bits": 4}
    return small_plan(group=[group], **more)


class Traffic:
    """Payload bytes to every client, in the order in which they were sent."""

    def __init__(self) -> None:
        self.down: dict[str, list[int]] = {}
        self.told: list[float] = []

    def note(self, sender: str, to: str, message: Any) -> float:
        if isinstance(message, Payload):
            self.down.setdefault(to, []).append(len(message.payload))
        if isinstance(message, Telemetry):
            self.told += [f.value for f in message.figures if f.name == "bytes_down"]
        return 0.0


@pytest.mark.parametrize(
    ("kind", "whole", "delta"),
    [("every value", (64, 25), (1 + 32, 1 + 16)), ("a part", (64, 25), (1 + 8, 1 + 4))],
)
def test_what_clients_pull_after_the_first_version(
    kind: str, whole: tuple[int, int], delta: tuple[int, int], tmp_path: Path
) -> None:
    """Of three full blocks and a last one: 4 bytes for eight values, of all or of a quarter."""
    traffic = Traffic()
    small_federation(delta_plan(kind=kind), tmp_path, Conditions(traffic.note)).run()
    for client in client_names(6):
        first, rest = traffic.down[client][:4], traffic.down[client][4:]
        assert sorted(first) == sorted([*(3 * [4 * whole[0]]), 4 * whole[1]])
        assert sorted(rest) == sorted(3 * [*(3 * [delta[0]]), delta[1]])
    assert traffic.told[-6:] == [3 * delta[0] + delta[1]] * 6, "and so they say"


def test_who_skips_versions_pulls_their_differences_one_after_another(tmp_path: Path) -> None:
    """A client trains while others make several versions."""
    rule, traffic = {"quorum": 5, "deadline": 10.0, "extensions": 1}, Traffic()
    own = delta_plan(rule=rule, versions=12, checkpoint_every=4)

    def cost(who: str, task: object) -> float:
        return 35.0 if who == "client-05" and isinstance(task, Contribute) else 0.0

    simulation = small_federation(own, tmp_path, Conditions(traffic.note), cost=cost)
    simulation.run(lambda: finished(simulation))
    lengths = set(traffic.down["client-05"])
    assert lengths & {2 * 9, 3 * 9, 4 * 9}, "several differences in one payload"


def test_a_client_keeps_no_more_than_it_needs(tmp_path: Path) -> None:
    """The blocks that differences are from, until the new ones are there."""
    simulation = small_federation(delta_plan(), tmp_path)
    most = 0

    def over() -> bool:
        nonlocal most
        worker = simulation.parties["client-00"].worker
        assert isinstance(worker, ClientWorker)
        most = max(most, len(worker.pulled))
        return finished(simulation)

    simulation.run(over)
    assert most == 2 * 4
