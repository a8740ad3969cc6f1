"""Randomness that everybody may know: refused without a word for it, and marked for all."""

import math
import stat
from pathlib import Path

import pytest

from secureps.crypto.sampling import SecretSeed
from secureps.errors import ConfigError
from secureps.messages import requests
from secureps.store.keyring import choose_seed
from tests.kits.command import INSECURE, typed
from tests.kits.roles_kit import World, answers, make_plan

PRIVACY = {"noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}
RULE = {"quorum": 3, "minimum": 2, "most": 4}
AWAY = ("10.0.0.7:9000", "example.org:9000", "127.0.0.1.example.org:9000", "0.0.0.0:9000")
HERE = ("127.0.0.1:9000", "localhost:9000", "[::1]:9000")


@pytest.mark.parametrize("server", HERE)
def test_a_seed_for_all_to_know_needs_a_word_also_on_loopback(server: str, tmp_path: Path) -> None:
    """A tunnel's end is on loopback too, and so is the coordinator of a shard beside it."""
    with pytest.raises(ConfigError, match="--insecure-for-tests") as caught:
        choose_seed(tmp_path, 5, server, False)
    assert "in Python insecure_for_tests=True, in a server's file insecure_for_tests = true" in str(
        caught.value
    )
    assert not choose_seed(tmp_path, 5, server, True).private
    assert not (tmp_path / "seed").exists()


@pytest.mark.parametrize("server", AWAY)
def test_nor_does_the_word_help_elsewhere(server: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is for loopback alone"):
        choose_seed(tmp_path, 5, server, True)


def test_a_secret_seed_is_kept_over_restarts(tmp_path: Path) -> None:
    """Training again after a crash repeats the same noise; another party's is another one's."""
    first, again = (choose_seed(tmp_path / "state", None, "far:1", False) for _ in range(2))
    assert isinstance(first, SecretSeed)
    assert first.derive("x").words(8).tolist() == again.derive("x").words(8).tolist()
    other = choose_seed(tmp_path / "other", None, "far:1", False)
    assert first.derive("x").words(8).tolist() != other.derive("x").words(8).tolist()
    assert stat.S_IMODE((tmp_path / "state" / "seed").stat().st_mode) == 0o600


def test_up_asks_for_the_word() -> None:
    assert INSECURE in typed("up", "plan.toml", "--unsafe-seed", "5", status=1).err


@pytest.mark.parametrize(("placement", "marked"), [("aggregator", True), ("local", False)])
def test_what_shards_add_from_such_a_seed_protects_nobody(placement: str, marked: bool) -> None:
    """Where the plan leaves noise to them: in status and epsilon, and after restarts."""
    plan = make_plan(
        "bfv",
        privacy={**PRIVACY, "unit": "client", "placement": placement},
        group=[{"weighting": "uniform", "clip": 1.0, "rule": RULE}],
    )
    world = World(plan)
    world.give("shard-a", requests.Register("shard-a", "shard-a:1", 1.0, 0, unsafe=True))
    world.start()
    again = World(plan, journal=tuple(world.journal))
    again.servers(2)  # whatever it says later, sums were protected by nothing
    for each in (world, again):
        assert each.federation.unsafe == ({"shard-a"} if marked else set())
        assert {each.federation.is_unprotected(name) for name in each.clients} == {marked}
        (status,) = answers(each.give("c0", requests.AskStatus()))
        assert {member.unsafe for member in status.members} == {marked}
        assert {math.isinf(member.epsilon) for member in status.members} == {marked}
