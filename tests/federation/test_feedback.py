"""What a client keeps of its updates is a function of those that were included, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.trainer import FitConfig, FitResult
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages import coordinator_records
from secureps.messages.encoding import payload_digest
from secureps.messages.member_records import Sealed, SubmissionSettled
from secureps.messages.outcome import Outcome
from secureps.messages.submission import Receipt
from secureps.policy.block_codes import block_code
from secureps.policy.plan import Plan
from secureps.policy.scales import moved
from secureps.privacy.mechanism import clip_l2
from secureps.roles.coordinator.group import Phase
from secureps.roles.member.tasks import kept_key
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.cheats import journalled, spoils, until
from tests.kits.federations import Tensors, Walker, finished, killed_at, small_plan
from tests.kits.privacy_kit import scales

SEED = UnsafeSeed(3)
GROUP = {"codec": [{"name": "support", "one_in": 3}, "rotate"], "feedback": True} | {
    "clip": 1.0,
    "range": 0.25,
    "bits": 4,
    "most_examples": 32,
}


class Recorded(Walker):
    """Remembers what it trained from, and what came of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.trained: dict[int, tuple[Tensors, Tensors]] = {}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        before = {name: each.copy() for name, each in parameters.items()}
        result = super().fit(parameters, config)
        (version,) = config.versions.values()
        self.trained[version] = (before, result.parameters)
        return result


def federation(folder: Path, plan: Plan, count: int = 6) -> Simulation:
    trainers = {name: Recorded(i) for i, name in enumerate(client_names(count))}
    return Simulation(plan, Cast(trainers, SEED), folder)


def plan_for(cipher: str = "plain", versions: int = 4, **rule: Any) -> Plan:
    return small_plan(cipher, versions=versions, group=[GROUP | {"rule": {"quorum": 6} | rule}])


STAGES = ({"name": "support", "one_in": 3}, "rotate", {"name": "round", "length": "mean_norm"})


def outcomes(simulation: Simulation, client: str) -> list[tuple[Receipt, str]]:
    """The fates of a client's updates, in the order in which it heard of them."""
    records = [record for _, record in simulation._stores[client].journal.replay()]
    sealed = {each.receipt.id: each.receipt for each in records if isinstance(each, Sealed)}
    fates = (each for each in records if isinstance(each, SubmissionSettled))
    return [(sealed[each.id], each.outcome) for each in fates if sealed[each.id].update]


def recomputed(simulation: Simulation, client: str) -> tuple[Receipt, NDArray[np.float32]]:
    """The last update that was included, and what it left over: from the page's formula alone."""
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    plan = simulation.plan
    trainer = simulation._cast.trainers[client]
    assert isinstance(trainer, Recorded)
    layout = plan.layout(pinned.run.schema).group("all")
    grid, code = plan.grid("all", layout.sent), plan.weights("all")
    share = code.weigh(10 + trainer._number, 32) / code.most
    mechanism, mover = plan.mechanism("all", layout.sent), moved(plan, "all", layout.sent)
    told, scale = scales(simulation), np.float32(1)
    rest, last = np.zeros(layout.size, np.float32), None
    counted = set()
    for receipt, outcome in outcomes(simulation, client):
        # who was away when a version was made hears at once that it is durable
        if outcome not in (Outcome.INCLUDED, Outcome.DURABLE) or receipt.id in counted:
            continue
        counted.add(receipt.id)
        last, (before, after) = receipt, trainer.trained[receipt.version]
        start = layout.flatten(before)
        delta = layout.flatten(after) - start
        delta += rest
        rest, norm = clip_l2(delta, 1.0)
        if mover is not None:
            scale = start[-1] = np.float32(told[receipt.version])
            rest /= scale
            rest[-1] = (min(norm, 1.0) / float(scale) / 2 - 1) * grid.range
        words, noiseless = SEED.derive("round", client, "all", receipt.version, 0), None
        blocks = range(layout.blocks)
        bases = [start[slice(*layout.span(k))].astype("<f4").tobytes() for k in blocks]
        codes = [
            block_code(plan, layout, k, receipt.version, payload_digest(bases[k])) for k in blocks
        ]
        if mechanism is not None:
            parts = [codes[k].encode(rest[slice(*layout.span(k))]) for k in blocks]
            encoded, _ = clip_l2(np.concatenate(parts).astype(np.float32), 1.0)
            noiseless = mechanism.rounded(encoded, words.words)
        for block in range(layout.blocks):
            here = slice(*layout.span(block))
            own = codes[block]
            if mechanism is not None:
                assert noiseless is not None
                sums = noiseless[slice(*layout.sent_span(block))]
                rest[here] -= own.decode(sums * mechanism.calibration.step)
                continue
            sent = grid.encode(own.encode(rest[here]) * share, words.words(own.sent))
            rest[here] -= own.decode((sent - grid.most) * (grid.step / share))
        if mover is not None:
            rest *= scale
            rest[-1] = 0
    assert last is not None
    return last, rest


def assert_kept(simulation: Simulation, client: str) -> None:
    last, rest = recomputed(simulation, client)
    spool, key = simulation._stores[client].spool, kept_key("all", last.update)
    assert [each for each in spool.keys("kept/") if each != key] == []
    assert spool.get(key)[32:] == rest.astype("<f4").tobytes()
    assert 0 < np.linalg.norm(rest) < 1.5


def test_what_is_kept_is_what_the_formula_says(tmp_path: Path) -> None:
    simulation = federation(tmp_path, plan_for())
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


def test_it_is_in_the_models_units_where_the_range_moves(tmp_path: Path) -> None:
    group = {key: value for key, value in GROUP.items() if key != "range"}
    own = small_plan(group=[group | {"codec": STAGES, "rule": {"quorum": 6}}])
    simulation = federation(tmp_path, own)
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


@pytest.mark.parametrize("party", ["client-02", "coordinator"])
def test_it_is_the_same_whoever_is_killed_and_whenever(party: str, tmp_path: Path) -> None:
    for moment in range(40, 520, 60):
        simulation = federation(tmp_path / str(moment), plan_for(versions=3))
        killed_at(simulation, party, moment)
        assert_kept(simulation, "client-02")


def test_under_client_level_privacy_what_is_kept_has_no_noise_in_it(tmp_path: Path) -> None:
    """Recomputed without the noise's words: noise that was published is never taken back."""
    own = {"codec": GROUP["codec"], "feedback": True, "clip": 1.0, "bits": 16}
    rule = {"quorum": 6, "deadline": 10.0, "extensions": 0}
    group = own | {"weighting": "uniform", "rule": rule}
    privacy = {"unit": "client", "placement": "local", "noise_multiplier": 1.0, "delta": 1e-5}
    simulation = federation(
        tmp_path, small_plan(versions=3, group=[group], privacy=privacy | {"budget": 1e6})
    )
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


def test_a_dropped_update_leaves_what_was_kept_before_it(tmp_path: Path) -> None:
    """Rounds close without a client that was killed, which comes back and goes on."""
    plan, dropped = plan_for(quorum=5, deadline=0.5, start=6), 0
    for moment in range(60, 700, 40):
        simulation = federation(tmp_path / str(moment), plan)
        killed_at(simulation, "client-02", moment)
        fates = [outcome for _, outcome in outcomes(simulation, "client-02")]
        dropped += Outcome.DROPPED in fates[:-1] and fates[-1] == Outcome.INCLUDED
        if Outcome.INCLUDED in fates:
            assert_kept(simulation, "client-02")
    assert dropped


def test_an_update_that_is_sealed_anew_leaves_the_same(tmp_path: Path) -> None:
    """After a burnt cohort the same integers are sent once more, and count once."""
    plan = plan_for("rlwe", quorum=8, minimum=3, deadline=10.0, extensions=1)
    simulation = federation(tmp_path, plan, 8)
    until(simulation, Phase.COLLECTING)
    spoils(simulation, "client-07", times=99)
    simulation.run()
    assert journalled(simulation, coordinator_records.CohortBurnt)
    for client in client_names(7):
        assert_kept(simulation, client)


def test_a_client_that_lost_what_it_kept_goes_on_without_it(tmp_path: Path) -> None:
    simulation = federation(tmp_path, plan_for())
    simulation.run(lambda: simulation.versions() == {"all": 2})
    spool = simulation._stores["client-02"].spool
    for key in spool.keys("kept/"):
        spool.put(key, b"damaged")
    simulation.run(lambda: finished(simulation))
    assert simulation.versions() == {"all": 4}
