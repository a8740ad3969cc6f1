"""Clients pull differences between versions: the same bits everywhere, whatever goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.client.worker import ClientWorker
from secureps.messages.requests import Payload, Telemetry
from secureps.policy.plan import Plan
from secureps.roles.member.tasks import Contribute
from secureps.run.simulate.simulation import Conditions
from secureps.run.up.folder import client_names
from tests.kits.federations import finished, small_federation, small_plan
from tests.kits.thin_group import FED_BACK, RULE

GROUPS: dict[str, dict[str, Any]] = {
    "every value": {"range": 1.0, "clip": 3.0},
    "a part": FED_BACK,
}


def plan(kind: str = "a part", rule: dict[str, Any] = RULE, **more: Any) -> Plan:
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
    small_federation(plan(kind=kind), tmp_path, Conditions(traffic.note)).run()
    for client in client_names(6):
        first, rest = traffic.down[client][:4], traffic.down[client][4:]
        assert sorted(first) == sorted([*(3 * [4 * whole[0]]), 4 * whole[1]])
        assert sorted(rest) == sorted(3 * [*(3 * [delta[0]]), delta[1]])
    assert traffic.told[-6:] == [3 * delta[0] + delta[1]] * 6, "and so they say"


def test_who_skips_versions_pulls_their_differences_one_after_another(tmp_path: Path) -> None:
    """A client trains while others make several versions."""
    rule, traffic = {"quorum": 5, "deadline": 10.0, "extensions": 1}, Traffic()
    own = plan(rule=rule, versions=12, checkpoint_every=4)

    def cost(who: str, task: object) -> float:
        return 35.0 if who == "client-05" and isinstance(task, Contribute) else 0.0

    simulation = small_federation(own, tmp_path, Conditions(traffic.note), cost=cost)
    simulation.run(lambda: finished(simulation))
    lengths = set(traffic.down["client-05"])
    assert lengths & {2 * 9, 3 * 9, 4 * 9}, "several differences in one payload"


def test_a_client_keeps_no_more_than_it_needs(tmp_path: Path) -> None:
    """The blocks that differences are from, until the new ones are there."""
    simulation = small_federation(plan(), tmp_path)
    most = 0

    def over() -> bool:
        nonlocal most
        worker = simulation.parties["client-00"].worker
        assert isinstance(worker, ClientWorker)
        most = max(most, len(worker.pulled))
        return finished(simulation)

    simulation.run(over)
    assert most == 2 * 4
