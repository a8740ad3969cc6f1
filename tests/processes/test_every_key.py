"""Hostile input: every message in every role by every method is answered as the table says."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from secureps.crypto.identity import ROLES, Role
from secureps.errors import Malformed, SecurepsError, UnknownParty, Unreachable, Unsigned
from secureps.messages import requests
from secureps.messages.run import COORDINATOR
from secureps.roles import permissions
from secureps.wire import msgpack
from secureps.wire.grpc import framing, servers
from secureps.wire.grpc.framing import PLAINTEXT
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import small_plan
from tests.kits.hostile_peer import HostilePeer
from tests.kits.one_process import OBSERVER, OneProcess, Slow, Watch
from tests.kits.permissions_page import SERVED
from tests.kits.permissions_page import method as method_of
from tests.kits.transport_kit import EchoServer, authenticate
from tests.kits.unset import unset

GROUP = {"clip": 3.0, "range": 1.0, "most_examples": 32}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 60.0}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    plan = small_plan("rlwe-2-of-3", versions=100_000, group=[GROUP | {"rule": RULE}])
    with DiskFederation(plan, tmp_path_factory.mktemp("keys"), 4, Slow) as made:
        made.makes(2)
        yield made


@pytest.fixture(scope="module")
def watch(federation: OneProcess) -> Iterator[Watch]:
    with closing(Watch(federation, 6)) as made:
        yield made


@pytest.fixture(autouse=True)
def goes_on(watch: Watch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever was said: nobody has ended, and versions are made."""
    yield
    watch.tried(request.node.name)


def key_of(federation: OneProcess, role: Role) -> str:
    names = {"client": federation.clients[-1], "holder": federation.holders[0]}
    names |= {"shard": federation.shards[1], "observer": OBSERVER, "coordinator": COORDINATOR}
    return names[role]


KINDS = sorted(msgpack.SENT.values(), key=lambda kind: kind.__name__)


def test_every_message_is_there() -> None:
    assert set(KINDS) >= permissions.MESSAGES


def refusal(peer: HostilePeer, to: str, method: str, message: Any) -> SecurepsError | None:
    """What a message is refused with that is sent by a method; None if it is answered."""
    envelope = msgpack.encode(message)
    sent = framing.frame_head(envelope, 0) if method == framing.PUT else envelope
    try:
        peer.raw(to, method, [sent], envelope)
    except SecurepsError as error:
        return error
    return None


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("to", SERVED)
def test_the_table_is_what_servers_do(federation: OneProcess, role: Role, to: str) -> None:
    """Every message by every method, in every role: looked at where it says so, and only there."""
    table = permissions.TO_COORDINATOR if to == COORDINATOR else permissions.TO_SHARD
    name = key_of(federation, role)
    own_key, link = federation.kit.identities[name], federation.link(name)
    with closing(HostilePeer(name, own_key, federation.addresses, link)) as peer:
        for method in SERVED[to]:
            short = method.rpartition("/")[2]
            for kind in KINDS:
                heard = kind in table[role]
                if heard and kind is requests.Subscribe and name != federation.clients[-1]:
                    continue  # it runs, and would lose its stream; that it has one is the yes
                error = refusal(peer, to, method, unset(kind))
                text, own = str(error), method_of(kind) == short
                assert not isinstance(error, Unreachable | Unsigned), (kind, error)
                if not own:
                    assert isinstance(error, Malformed), (method, kind, error)
                    assert " takes " in text or "has a method of its own" in text, (kind, text)
                else:
                    # A Put is judged by the question whether its block is wanted.
                    asked = requests.AskBlock if kind is requests.PutBlock else kind
                    refused = f"sends no {asked.__name__} to" in text
                    assert refused == (not heard), (kind, text)
                    assert heard or isinstance(error, UnknownParty), (kind, text)


def test_servers_have_these_methods_and_that_of_health(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method more has to be in the table above, too."""
    made: set[str] = set()
    real = grpc.method_handlers_generic_handler

    def handler(service: str, methods: dict[str, Any]) -> Any:
        made.update(f"/{service}/{method}" for method in methods)
        return real(service, methods)

    monkeypatch.setattr(grpc, "method_handlers_generic_handler", handler)
    endpoint = EchoServer()
    for server in (
        CoordinatorServer(PLAINTEXT, endpoint, "127.0.0.1:0", authenticate),
        ShardServer(PLAINTEXT, "shard-0", endpoint, "127.0.0.1:0", authenticate, 1 << 20, 1 << 10),
    ):
        server.start()
        server.stop(0)
    assert made == {f"/{servers.SERVICE}/Check"}.union(*SERVED.values())
