"""A thousand clients in one process: what each of them is of its own, and what they share."""

from typing import Any

import pytest

from secureps.client.worker import ClientWorker
from secureps.config.plan import BufferedSection
from secureps.policy.rules.registry import build_rule
from secureps.policy.rules.rule import Admit, RuleState, Wait, holds_everybody
from secureps.roles.member.member import Member
from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import Walker, small_federation
from tests.kits.roles_kit import make_plan


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    rule = {"name": "buffered", "buffer": 8, "minimum": 5, "power": 0.0, "concurrency": 16}
    group = {"clip": 3.0, "range": 0.02, "most_examples": 64, "rule": rule}
    plan = make_plan(
        "plain", versions=6, block_size=256, lease=600.0, local=["*.count"], group=[group]
    )
    who: Any = {"clients": 60, "kind": lambda number: Walker(number, (40, 25))}
    folder = tmp_path_factory.mktemp("crowd")
    simulation = small_federation(plan, folder, **who, cost=lambda name, task: 5.0)
    simulation.run()
    return simulation


def members(simulation: Simulation) -> list[tuple[Member, ClientWorker]]:
    found = []
    for executor in simulation.parties.values():
        machine, worker = executor.machine, executor.worker
        if isinstance(machine, Member) and isinstance(worker, ClientWorker):
            found.append((machine, worker))
    return found


@pytest.mark.slow
def test_clients_of_a_process_share_one_copy_of_a_block(crowd: Simulation) -> None:
    copies: dict[str, set[int]] = {}
    for _, worker in members(crowd):
        for key, values in worker.pulled.items():
            assert not values.flags.writeable
            copies.setdefault(key, set()).add(id(values))
    assert len(copies) > 4
    assert all(len(ids) == 1 for ids in copies.values())
    users = sum(len(worker.pulled) for _, worker in members(crowd))
    assert users > 2 * len(copies), "nothing was shared"


def test_clients_of_a_process_share_what_follows_from_the_plan(crowd: Simulation) -> None:
    pinned = [machine.pinned for machine, _ in members(crowd)]
    assert len(pinned) == 60
    assert len({id(each.plan) for each in pinned}) == 1
    assert len({id(each.layout) for each in pinned}) == 1


def test_a_client_asks_nobody_once_it_hears_that_all_must_wait() -> None:
    rule = build_rule(BufferedSection(name="buffered", buffer=8, power=0.0, concurrency=2), 100)
    names = frozenset(f"c{k}" for k in range(9))
    busy = RuleState(version=3, live=names, invited={"c0", "c1"})
    answers = [rule.admit(0.0, name, busy) for name in sorted(names)]
    assert all(isinstance(answer, Wait) and holds_everybody(answer) for answer in answers)
    free = RuleState(version=3, live=names, invited={"c0"})
    own = rule.admit(0.0, "c0", free)
    assert isinstance(own, Wait)
    assert not holds_everybody(own), "another one may start"
    assert isinstance(rule.admit(0.0, "c1", free), Admit)
