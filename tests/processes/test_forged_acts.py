"""An operator's acts, said by whoever has another key or has listened: real servers do none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from secureps.errors import UnknownParty, Unsigned
from secureps.messages.acts import Act
from secureps.messages.requests import Noted, Status
from secureps.messages.run import COORDINATOR
from secureps.wire.grpc import framing
from secureps.wire.grpc.authentication import REQUEST_DOMAIN, sign_request
from secureps.wire.msgpack import decode, encode
from tests.kits.federations import small_plan
from tests.kits.one_process import OBSERVER, PATIENCE, OneProcess

FORGED = (
    Act("pause"),
    Act("add-shard", "shard-1"),
    Act("drain-shard", "shard-0"),
    Act("remove-shard", "shard-0"),
)


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    group = {"clip": 3.0, "range": 1.0, "most_examples": 32}
    rule = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 60.0}
    plan = small_plan("bfv", versions=100_000, group=[group | {"rule": rule}])
    with OneProcess(plan, tmp_path_factory.mktemp("acts"), clients=4) as made:
        made.makes(1)
        yield made


@pytest.fixture(autouse=True)
def nothing_moves(around: OneProcess) -> Iterator[None]:
    before: Status = around.status()
    yield
    around.makes(1)
    after = around.status()
    assert (after.paused, after.move, after.holdings) == ("", None, before.holdings)


@pytest.mark.parametrize("name", ["client-00", "holder-0", "shard-1", OBSERVER])
def test_nobody_elses_key_is_good_for_an_act(name: str, around: OneProcess) -> None:
    transport = around.transport(name)
    try:
        for act in FORGED:
            with pytest.raises(UnknownParty, match="sends no Act to the coordinator"):
                transport.call(COORDINATOR, act).result(PATIENCE)
    finally:
        transport.close()


def test_an_act_in_the_coordinator_s_name_is_signed_by_its_key(around: OneProcess) -> None:
    transport = around.transport(COORDINATOR, key="client-00")
    try:
        for act in FORGED:
            with pytest.raises(Unsigned):
                transport.call(COORDINATOR, act).result(PATIENCE)
    finally:
        transport.close()


def test_a_signature_for_one_act_is_worth_nothing_for_another(around: OneProcess) -> None:
    own, address = around.kit.identities[COORDINATOR], around.addresses[COORDINATOR]
    envelope, method = encode(Act("checkpoint")), framing.COORDINATOR_TELL
    sign = lambda said: own.sign(REQUEST_DOMAIN, said)  # noqa: E731
    metadata = sign_request(COORDINATOR, COORDINATOR, sign, method, b"", envelope)
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method)
        assert decode(call(envelope, metadata=metadata, timeout=PATIENCE)) == Noted()
        with pytest.raises(grpc.RpcError) as error:
            call(encode(FORGED[2]), metadata=metadata, timeout=PATIENCE)
        assert isinstance(framing.error_of(error.value, COORDINATOR), Unsigned)
