"""Secrecy: who must collude, as `check` says, is found by trying all ways."""

import itertools

import pytest

from secureps.crypto.sharing import Committee
from secureps.policy.explain.visibility import (
    Sight,
    advised_threshold,
    collusion,
    count_withstood,
    sights,
)
from secureps.policy.plan import Plan
from tests.kits.committee_plans import committee_plan
from tests.kits.explained import explain
from tests.kits.privacy_kit import private_plan as of_clients
from tests.kits.roles_kit import make_plan, private_plan
from tests.kits.streams import SSP, stream_plan

JUDGED = {"every": 1, "metrics": {"loss": 1.0}}


def role(plan: Plan, name: str) -> Sight:
    (found,) = (sight for sight in sights(plan) if sight.role.startswith(name))
    return found


def learns(t: int, n: int, corrupt: int) -> bool:
    """Tells whether a malicious aggregator with so many corrupt holders can open one update.

    It either has t of them; or it shows cohort A to some honest holders and cohort B, which differs
    in one client, to the others, and each honest holder answers once. All splits are tried.
    """
    if corrupt >= t:
        return True
    honest = range(n - corrupt)
    return any(
        shown.count("A") + corrupt >= t and shown.count("B") + corrupt >= t
        for shown in itertools.product("AB", repeat=len(honest))
    )


@pytest.mark.parametrize(
    ("t", "n"), [(t, n) for n in range(1, 9) for t in range(n // 2 + 1, n + 1)]
)
def test_the_bound_is_exact(t: int, n: int) -> None:
    most = count_withstood(t, n)
    assert most >= 0
    assert not learns(t, n, most)
    assert learns(t, n, most + 1)


def test_an_advised_threshold_withstands_as_many_as_may_be_away() -> None:
    """A smaller threshold would withstand fewer holders than may be away."""
    known = {n: advised_threshold(n) for n in range(1, 13)}
    assert [(n - t, count_withstood(t, n)) for n, t in known.items()] == [
        *((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 3)),
        *((2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (3, 5)),
    ]
    for n, t in known.items():
        Committee(tuple(f"{k:02d}" for k in range(n)), t)  # its seeds are few enough
        assert count_withstood(t - 1, n) < n - (t - 1)


def test_a_key_holder_of_a_committee_sees_no_update_in_any_form() -> None:
    one, all_ = role(make_plan("bfv"), "key holder"), role(committee_plan(), "key holder")
    assert "every opened sum" in one.sees
    assert "sum" not in all_.sees
    for hidden in ("ciphertexts", "updates", "sums", "models"):
        assert hidden in all_.never
    assert "seeds" in all_.sees
    assert all_.role == "key holder, each of 4"
    assert "sums of one-time keys" in role(committee_plan(), "coordinator").sees
    assert "one-time" not in role(make_plan("bfv"), "coordinator").sees


@pytest.mark.parametrize(
    ("holders", "threshold", "said"),
    [
        (4, 3, ("any 3 of the 4 key holders", "together with any 2 key holders")),
        (3, 2, ("any 2 of the 3 key holders", "together with any one key holder")),
        (5, 4, ("any 4 of the 5 key holders", "together with any 3 key holders")),
        (3, 3, ("together with all key holders, who are 3",)),
        (1, 1, ("together with all key holders, who are 1",)),
    ],
)
def test_who_must_collude(holders: int, threshold: int, said: tuple[str, ...]) -> None:
    found = [who for who in collusion(committee_plan(holders, threshold)) if "key holder" in who]
    about_holders = [who for who in found if "issued" not in who]
    assert len(about_holders) == len(said)
    assert all(words in who for words, who in zip(said, about_holders))
    assert f"kept those of {threshold} key holders" in found[-1]


def test_a_shard_alone_is_enough_under_bfv_and_not_with_a_committee() -> None:
    assert any("malicious shard alone" in who for who in collusion(make_plan("bfv")))
    assert not any("shard alone" in who for who in collusion(committee_plan()))


def test_every_role_but_a_client_sees_by_how_many_examples_each_counts() -> None:
    """Unless all count alike, also in evaluations."""
    alike = [{"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}]
    judged = {"every": 1, "metrics": {"loss": 1.0}}
    for changes, public in (
        ({}, 3),
        ({"group": alike}, 0),
        ({"group": alike, "evaluation": judged}, 3),
    ):
        seen = [sight.sees for sight in sights(make_plan("bfv", **changes))]
        assert sum("by how many examples each client counts" in each for each in seen) == public


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (make_plan(), "updates"),
        (make_plan(evaluation=JUDGED), "updates and of metrics"),
        (private_plan(evaluation=JUDGED), "metrics"),
        (private_plan(), ""),
        (of_clients("local", evaluation=JUDGED), ""),
    ],
)
def test_what_almost_equal_models_tell_is_said_where_no_noise_bounds_it(
    plan: Plan, what: str
) -> None:
    said = [each for each in explain(plan, {"all": 60}).remarks if "but for rounding" in each]
    assert len(said) == bool(what)
    assert not what or f"subtracts the sums of {what}, and has" in said[0]


@pytest.mark.parametrize(("plan", "steps"), [(make_plan(), 0), (stream_plan("plain", SSP), 3)])
def test_that_steps_of_a_version_come_of_one_model_is_said(plan: Plan, steps: int) -> None:
    said = [each for each in explain(plan, {"all": 60}).remarks if "come of one model" in each]
    assert [each.partition(" updates")[0] for each in said] == [f"up to {steps}"] * bool(steps)
