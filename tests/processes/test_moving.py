"""A shard that moves is found where it is, by everybody who dials it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from secureps.messages import orders, requests
from secureps.messages.run import ShardAddress
from tests.kits.federations import same, unharmed
from tests.kits.member_kit import PLAN, Client
from tests.kits.processes import Processes
from tests.kits.roles_kit import HOLDER, SCHEMA, World, configure, make_plan, orders_of

ELSEWHERE = (ShardAddress("shard-a", "elsewhere:9", 1.0), ShardAddress("shard-b", "shard-b:1", 1.0))


def world() -> World:
    world = World(make_plan("bfv"))
    world.servers()
    world.enter("c0")
    return world


def move(world: World, to: str = "elsewhere:9") -> list[tuple[str, orders.Configure]]:
    seen = world.federation.incarnation
    step = world.give("shard-a", requests.Register("shard-a", to, 1.0, seen))
    told = {
        party: [o for o in orders_of(step, party) if isinstance(o, orders.Configure)]
        for party in ("c0", "c1", HOLDER, "shard-b")
    }
    return [(party, order) for party, given in told.items() for order in given]


def test_a_shard_that_registers_where_it_was_is_no_news() -> None:
    assert move(world(), "shard-a:1") == []


def test_who_joined_before_and_watches_after_the_move_hears_of_it() -> None:
    stage = world()
    stage.give("c1", requests.Join("c1", SCHEMA))
    move(stage)
    stage.give("c2", requests.Join("c2", SCHEMA))
    for client, told in (("c1", [ELSEWHERE]), ("c2", [])):
        step = stage.give(client, requests.Subscribe(client, ()))
        found = [o.shards for o in orders_of(step, client) if isinstance(o, orders.Configure)]
        assert found == told


def test_a_client_does_not_follow_another_run() -> None:
    client = Client().joined()
    order = replace(configure(PLAN, nonce=b"x" * 32), shards=ELSEWHERE)
    assert client.order(order).effects == []


def test_a_run_goes_on_with_a_shard_on_another_port(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", "plain") as processes, socket.socket() as taken:
        processes.pace = 0.15
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("shard-0")
        before = tmp_path / "run" / "shard-0" / "address"
        host, _, port = before.read_text().strip().rpartition(":")
        before.unlink()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))  # nobody answers there any more, nor listens
        processes.start("shard-0")
        processes.wait(processes.finished, "the end")
        assert before.read_text().strip() != f"{host}:{port}"
        assert same(processes.model()[1], unharmed()[0])
