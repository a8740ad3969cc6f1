"""Safety: sums are compared with what is usual, so an attacker below the clip is found."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secureps.client.trainer import FitConfig, FitResult
from secureps.client.update import Integers
from secureps.errors import ConfigError, PlanRefused
from secureps.messages import coordinator_records as records
from secureps.messages.encoding import digest
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.policy.cohorts.suspicion import MEMORY, Suspicion
from secureps.policy.plan import Plan
from secureps.roles.coordinator.commit import _judge_length
from secureps.roles.coordinator.recovery import AS_LONG, isolate
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from tests.kits.cheats import (
    clients_of,
    cohorts,
    holders_allow_all,
    journalled,
    poisons,
    spoils,
)
from tests.kits.federations import (
    Tensors,
    Walker,
    killed_at,
    same,
    small_federation,
    small_plan,
)
from tests.kits.privacy_kit import PRIVACY

CLIENTS, MINIMUM, POISONER, CLIP = 12, 3, "client-05", 30.0
ROUNDS = {"quorum": CLIENTS, "minimum": MINIMUM, "deadline": 10.0, "extensions": 1}
GROWS = 6


def plan_for(cipher: str = "plain", rule: Any = ROUNDS, versions: int = 12, **more: Any) -> Plan:
    own = {"clip": CLIP, "bound": "3x median", "rule": rule} | more.pop("group", {})
    return small_plan(cipher, versions=versions, capacity=64, group=[own], **more)


class Steady(Walker):
    """All move by steps of their own and a common one; from version `GROWS` on ten times as far."""

    grows = False

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        (version,) = config.versions.values()
        far = 10.0 if self.grows and version >= GROWS else 1.0
        own, common = (np.random.default_rng(seed) for seed in (config.seed + self._number, 1))
        moved: Tensors = {}
        for name, value in parameters.items():
            step = own.standard_normal(value.shape) + common.standard_normal(value.shape)
            moved[name] = value + np.asarray(0.1 * far * step).astype(value.dtype)
        return FitResult(moved, 10, {}, 1)


class Grown(Steady):
    grows = True


def federation(folder: Path, plan: Plan, kind: Any = Steady, clients: int = CLIENTS) -> Simulation:
    return small_federation(plan, folder, clients=clients, kind=kind)


def flip_to(clips: float) -> Callable[[Integers, int], Integers]:
    """Turns each of the model's four blocks round; together they are as long as so many clips."""

    def change(made: Integers, most: int) -> Integers:
        own = made.astype(np.float64) - most
        long = np.rint(-own * clips / 2 * most / np.linalg.norm(own))
        return np.clip(long, -most, most) + most

    return change


def grew(simulation: Simulation) -> int:
    return len(journalled(simulation, records.LengthsGrew))


def isolated(simulation: Simulation) -> dict[str, str]:
    return simulation.coordinator.federation.isolated


BUFFERED = {"name": "buffered", "buffer": 10, "minimum": 3, "deadline": 10.0, "power": 0.0}
NOISE = PRIVACY | {"placement": "local"}
MODES: dict[str, dict[str, Any]] = {
    "in rounds": {"cipher": "rlwe"},
    "without rounds": {"cipher": "rlwe", "rule": BUFFERED},
    "a codec": {
        "group": {
            "bits": 12,
            "codec": [{"name": "support", "one_in": 2}, {"name": "rotate"}, {"name": "round"}],
            "feedback": True,
        }
    },
    "a moving range": {
        "group": {
            "bits": 12,
            "codec": [{"name": "rotate"}, {"name": "round", "length": "mean_norm"}],
        }
    },
    "noise by each client": {"privacy": NOISE, "group": {"clip": 2.0}},
    "noise by the shards": {
        "privacy": NOISE | {"placement": "aggregator"},
        "group": {"clip": 2.0},
    },
    "a clip that moves": {"privacy": NOISE, "group": {"clip": 2.0, "adaptive": {"quantile": 0.5}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_honest_clients_find_out_what_is_usual_once_and_go_on(mode: str, tmp_path: Path) -> None:
    simulation = federation(tmp_path, plan_for(**MODES[mode]))
    simulation.run()
    assert simulation.versions() == {"all": 12}
    assert not isolated(simulation)
    noisy = "privacy" in MODES[mode]
    assert grew(simulation) <= 1 if noisy else grew(simulation) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in rounds", "without rounds"])
@pytest.mark.parametrize("clips", [CLIENTS - 1.5, 2.8])
def test_who_stays_below_the_clip_is_found_from_the_first_version_on(
    clips: float, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2.8 clips no cohort is proof: that is 40 times as long as others' updates."""
    poisons(monkeypatch, POISONER, flip_to(clips))
    simulation = federation(tmp_path, plan_for(**MODES[mode], versions=400))
    simulation.run(lambda: bool(isolated(simulation)))
    assert set(isolated(simulation)) == {POISONER}
    told = "its updates are more than 3 times as long as others'" in isolated(simulation)[POISONER]
    assert told == (clips == 2.8)
    burnt = {record.number for record in journalled(simulation, records.CohortBurnt)}
    made = [cohort for cohort in cohorts(simulation) if cohort.number not in burnt]
    assert not any(POISONER in clients_of(cohort) for cohort in made)


@pytest.mark.slow
def test_who_always_spoils_does_not_end_the_run_before_a_length_is_usual(tmp_path: Path) -> None:
    """Its sets never open, and every other one is longer than nothing."""
    rule = ROUNDS | {"quorum": 8}
    simulation = federation(tmp_path, plan_for("rlwe", rule, versions=3), clients=8)
    spoils(simulation, POISONER, 99)
    simulation.run()
    assert simulation.versions() == {"all": 3}
    assert isolated(simulation).keys() <= {POISONER}


@pytest.mark.parametrize("clips", [0, CLIENTS - 1.5])
def test_updates_that_grow_tenfold_go_on_and_only_a_poisoner_is_left_out(
    clips: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if clips:
        poisons(monkeypatch, POISONER, flip_to(clips))
    simulation = federation(tmp_path, plan_for(versions=20), Grown)
    simulation.run()
    assert simulation.versions() == {"all": 20}
    assert set(isolated(simulation)) == ({POISONER} if clips else set())
    first, second = journalled(simulation, records.LengthsGrew)
    assert 5 < second.length[0] / first.length[0] < 15
    assert "so nobody is suspected for it" in second.reason


def test_who_is_always_just_within_what_is_usual_moves_it_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not found: what it can do is what the threat model says."""
    simulation = federation(tmp_path, plan_for(versions=24))
    group = simulation.coordinator.federation.groups["all"]

    def boil(made: Integers, most: int) -> Integers:
        usual = median(each for each, _ in group.lengths) if group.lengths else 0.1
        return flip_to(CLIENTS * 1.9 * usual / CLIP)(made, most)

    poisons(monkeypatch, POISONER, boil)
    simulation.run()
    made = [record.length[0] for record in journalled(simulation, records.VersionCommitted)[1:]]
    assert len(made) == 24
    assert not isolated(simulation)
    assert all(later < 3.1 * sooner for sooner, later in zip(made, made[7:], strict=False))
    assert len(group.lengths) == MEMORY


def test_no_length_is_told_where_the_shards_own_noise_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same updates may be summed again, with other noise and for the same charge."""
    poisons(monkeypatch, POISONER, flip_to(3.3))
    simulation = federation(tmp_path, plan_for(**MODES["noise by the shards"]))
    simulation.run(lambda: bool(journalled(simulation, records.CohortBurnt)))
    (burnt,) = journalled(simulation, records.CohortBurnt)
    assert burnt.reason.startswith("its sum is too long, and ")


@pytest.mark.parametrize("squares", [(9.0, 1.0), (1.0, 9.0)])
def test_of_two_copies_of_a_block_the_longer_counts(squares: tuple[float, float]) -> None:
    """Otherwise a shard that lies about its copy could hide a sum that is too long."""
    plan, names = plan_for(), client_names(4)
    (layout,) = plan.lay_out_sizes({"all": 30})
    members = tuple(Member(SubmissionId(name, "all", 0), 1, 0, 0, examples=1) for name in names)
    coming = {f"shard-{k}": SimpleNamespace(squares=(each,)) for k, each in enumerate(squares)}
    owners = dict.fromkeys(coming, (0,))
    group: Any = SimpleNamespace(
        name="all", times=3.0, coming=coming, cohort=Cohort("all", 0, 1, 0, members),
        lengths=((0.2, 4.0),) * MEMORY,
    )  # fmt: skip
    federation = SimpleNamespace(owners=lambda name: owners)
    layouts = SimpleNamespace(group=lambda name: layout)
    tx: Any = SimpleNamespace(plan=plan, layout=layouts, federation=federation)
    length, why, proven = _judge_length(tx, group)
    assert length == pytest.approx((3 / 4, 4.0))
    assert why.startswith("its sum is 3 long, and 3 times what is usual is 2.4")
    assert not proven


def test_a_length_after_growth_is_usual_at_once_and_for_as_long_as_any(tmp_path: Path) -> None:
    """A single length beside older ones, or before few newer ones, would be outvoted."""
    simulation = federation(tmp_path, plan_for())
    simulation.run(lambda: bool(grew(simulation)))
    (record,) = journalled(simulation, records.LengthsGrew)
    group = simulation.coordinator.federation.groups["all"]
    assert group.lengths == (record.length,) * MEMORY
    assert not group.suspicion.long


def test_only_two_are_left_out_for_their_length_until_an_operator_takes_one_back() -> None:
    """An offender that makes its own sets short could have one honest client after another out."""
    sets = frozenset(frozenset({"a", name}) for name in "bcd")
    long = Suspicion(likely=sets, suspect_sets=frozenset({frozenset("a")}))
    proven = replace(long, evidence=sets, likely=frozenset())
    told, other = f"its updates are more than 3 {AS_LONG}", "by the operator"

    def left_out(state: Suspicion, *reasons: str) -> list[str]:
        written: list[records.ClientIsolated] = []
        known = SimpleNamespace(isolated=dict(enumerate(reasons)))
        plan = SimpleNamespace(divides_cohorts=True, of=lambda name: "")
        group: Any = SimpleNamespace(name="all", times=3.0, suspicion=state)
        tx: Any = SimpleNamespace(federation=known, plan=plan, write=written.append)
        isolate(tx, group)
        return [record.reason for record in written]

    (reason,) = left_out(long, told, other, other)
    assert reason.endswith(told)
    assert not left_out(long, told, told)
    (reason,) = left_out(proven, told, told)
    assert AS_LONG not in reason


@pytest.mark.slow
@pytest.mark.parametrize("moment", [150, 900, 2500])
def test_a_killed_coordinator_knows_what_is_usual_and_the_cipher_changes_no_bit(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(what: str, *parts: bytes) -> bytes:  # the same sets in every run
        return digest(what, *parts[what == "secureps-buckets" :])

    monkeypatch.setattr("secureps.policy.cohorts.suspicion.digest", draw)
    poisons(monkeypatch, POISONER, flip_to(2.8))
    plain = federation(tmp_path / "plain", plan_for(), Grown)
    plain.run()
    killed = federation(tmp_path / "killed", plan_for("rlwe"), Grown)
    killed_at(killed, "coordinator", moment)
    assert same(plain.model(), killed.model())
    known = [each.coordinator.federation.groups["all"].lengths for each in (plain, killed)]
    assert known[0] == known[1]
    holders_allow_all(killed, MINIMUM)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rule": ROUNDS | {"quorum": 5}}, "set rule.start to 6 or more, or lower rule.minimum"),
        ({"rule": BUFFERED | {"buffer": 5}, "cipher": "rlwe"}, "set rule.buffer to 6 or more"),
        ({"rule": BUFFERED}, 'take cipher "rlwe", or "plain" with rounds'),
        ({"cipher": "bfv"}, 'take cipher "rlwe", or "plain" with rounds'),
        ({"group": {"bound": "1.9x median"}}, "bound"),
    ],
)
def test_a_plan_whose_cohorts_cannot_be_divided_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises((PlanRefused, ConfigError), match=text):
        plan_for(**changes)


def test_a_cohort_that_is_too_small_to_be_divided_is_tried_again_with_more(tmp_path: Path) -> None:
    """Eight of twelve are away; a cohort of four would be allowed, and not two sets of it."""
    simulation = federation(tmp_path, plan_for(versions=3))
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version == 1)
    away = client_names(CLIENTS)[:8]
    for name in away:
        simulation.kill(name)
        simulation.loop.call_later(300.0, partial(simulation.start, name))
    simulation.run()
    reasons = [record.reason for record in journalled(simulation, records.RoundGivenUp)]
    assert any('bound = "3x median" needs 6: two sets of the minimum' in text for text in reasons)
    assert simulation.versions() == {"all": 3}
