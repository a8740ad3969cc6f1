"""Whoever has a key of any role, before real servers: each message is refused, and they go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from secureps.crypto.identity import ROLES
from secureps.errors import Malformed, SecurepsError, UnknownParty
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR
from secureps.roles import permissions
from secureps.wire import protobuf
from tests.kits.federations import small_plan
from tests.kits.one_process import OBSERVER, OneProcess, ended
from tests.kits.unset import unset

PATIENCE = 10.0
"""Seconds; a machine that is busy with other tests takes one."""
GROUP = {"clip": 3.0, "range": 1.0, "most_examples": 32}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 60.0}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    plan = small_plan("rlwe-2-of-3", versions=100_000, group=[GROUP | {"rule": RULE}])
    with OneProcess(plan, tmp_path_factory.mktemp("keys"), clients=4) as made:
        made.makes(2)
        yield made


@pytest.fixture(autouse=True)
def goes_on(federation: OneProcess) -> Iterator[None]:
    """Whatever was said: nobody has ended, and versions are made."""
    yield
    federation.makes(1)


def key_of(federation: OneProcess, role: str) -> str:
    """A name of this role; of clients the one that does not take part."""
    names = {"client": federation.clients[-1], "holder": federation.holders[0]}
    names |= {"shard": federation.shards[1], "observer": OBSERVER, "coordinator": COORDINATOR}
    return names[role]


KINDS = sorted((protobuf.KINDS[name] for name in protobuf._BODY), key=lambda kind: kind.__name__)
PAYLOADS = (requests.GetBlock, requests.GetSum, requests.PutBlock)
AT_ONCE = 12


def test_every_message_is_there() -> None:
    assert set(KINDS) >= permissions.MESSAGES


@pytest.mark.parametrize("role", ROLES)
def test_every_message_of_every_role_is_answered(federation: OneProcess, role: str) -> None:
    """By both kinds of servers, to all messages that there are; what is not the role's, by no."""
    transport = federation.transport(key_of(federation, role))
    try:
        for to in (COORDINATOR, federation.shards[0]):
            table = permissions.TO_COORDINATOR if to == COORDINATOR else permissions.TO_SHARD
            for batch in (KINDS[at : at + AT_ONCE] for at in range(0, len(KINDS), AT_ONCE)):
                asked = [transport.call(to, unset(kind)) for kind in batch]
                for kind, error in zip(batch, ended(asked, PATIENCE), strict=True):
                    assert error is None or isinstance(error, SecurepsError), (kind, error)
                    if to == COORDINATOR and kind in PAYLOADS:
                        assert "is another kind of server" in str(error)
                    elif kind not in table[role]:  # type: ignore[index]
                        assert isinstance(error, UnknownParty | Malformed), (kind, error)
    finally:
        transport.close()


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__module__ == orders.__name__])
def test_twelve_orders_at_once_are_refused_at_once(federation: OneProcess, kind: type) -> None:
    """They were never answered once, and held as many threads."""
    transport = federation.transport(key_of(federation, "client"))
    try:
        for to in (COORDINATOR, federation.shards[0]):
            asked = [transport.call(to, unset(kind)) for _ in range(AT_ONCE)]
            for error in ended(asked, PATIENCE):
                assert isinstance(error, UnknownParty)
    finally:
        transport.close()
