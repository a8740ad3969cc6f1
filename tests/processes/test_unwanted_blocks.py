"""Blocks that a shard does not want are refused by their headers, before anything of them comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from secureps.errors import ClientError, UnknownParty, Unsigned
from secureps.messages.requests import PutBlock, Stored
from secureps.messages.submission import FOUNDING
from tests.kits.federations import small_plan
from tests.kits.one_process import OBSERVER, PATIENCE, OneProcess
from tests.kits.thief import Thief

VICTIM = "client-00"

Thieves = Callable[[str], Thief]


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    plan = small_plan("rlwe-2-of-3", versions=100_000)
    with OneProcess(plan, tmp_path_factory.mktemp("unwanted"), clients=4) as made:
        made.makes(1)
        yield made


@pytest.fixture
def thief_of(around: OneProcess) -> Iterator[Thieves]:
    with ExitStack() as made:

        def make(name: str) -> Thief:
            thief = Thief(around, name)
            made.callback(thief.close)
            return thief

        yield make


@pytest.fixture
def client(around: OneProcess, thief_of: Thieves) -> Thief:
    return thief_of(around.clients[-1])


UNWANTED: dict[str, dict[str, Any]] = {
    "their block": {"author": VICTIM},
    "a block of another length": {"length": 1},
    "a founding block": {"purpose": FOUNDING},
    "a block of another run": {"run": bytes(32)},
    "a block of another group": {"group": "other"},
    "a block beyond the last": {"block": 1 << 20},
    "a far sequence": {"sequence": 2**63 - 1},
}


@pytest.mark.parametrize("what", UNWANTED)
def test_a_block_that_is_not_wanted_is_refused_by_its_header(what: str, client: Thief) -> None:
    with pytest.raises(ClientError):
        client.announce(dataclasses.replace(client.block(**UNWANTED[what]), payload=b""))


def test_a_block_that_nobody_signed_is_refused_by_its_header(client: Thief) -> None:
    header = dataclasses.replace(client.block().header, signature=bytes(64))
    with pytest.raises(Unsigned):
        client.announce(PutBlock(header))


def test_keys_whose_blocks_nobody_wants_take_no_room_together(
    around: OneProcess, thief_of: Thieves, client: Thief
) -> None:
    """The observer's and a holder's announce as many blocks as they may, and send nothing."""
    observer, holder = thief_of(OBSERVER), thief_of(around.holders[0])
    with ThreadPoolExecutor(32) as pool:
        announced = [
            pool.submit(thief.announce, PutBlock(thief.block(sequence=number).header))
            for number in range(16)
            for thief in (observer, holder)
        ]
        for each in announced:
            assert isinstance(each.exception(PATIENCE), UnknownParty)
    assert client.ask(client.owner(), message := client.block(sequence=50)) == Stored(
        message.header.digest
    )
