"""Clients begin with different blocks, and none is left out."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from secureps.roles.member.tasks import in_own_order
from secureps.run.party_names import client_names


def test_every_block_has_its_turn_in_the_same_circle() -> None:
    for client in client_names(5):
        order = in_own_order(client, range(8))
        assert sorted(order) == list(range(8))
        assert all((after - before) % 8 == 1 for before, after in pairwise(order))
        assert order == in_own_order(client, range(8))
    assert in_own_order("client-00", []) == []
    assert in_own_order("client-00", [7]) == [7]


def test_clients_do_not_all_begin_at_the_same_shard() -> None:
    first = Counter(in_own_order(client, range(8))[0] for client in client_names(64))
    assert len(first) == 8
    assert max(first.values()) <= 3 * 64 / 8
