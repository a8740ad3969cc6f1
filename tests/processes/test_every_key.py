"""Whoever has a key of any role, before real servers under TLS: each message is answered as the
table says, and they go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from secureps.crypto.identity import ROLES, Role
from secureps.errors import Malformed, SecurepsError, UnknownParty, Unreachable, Unsigned
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR
from secureps.roles import permissions
from secureps.wire import msgpack
from secureps.wire.grpc import framing, health
from secureps.wire.grpc.authentication import REQUEST_DOMAIN, sign_request
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import small_plan
from tests.kits.one_process import OBSERVER, OneProcess, Slow, Watch, ended
from tests.kits.permissions_page import SERVED
from tests.kits.permissions_page import method as method_of
from tests.kits.transport_kit import EchoServer, authenticate
from tests.kits.unset import unset

PATIENCE = 10.0
"""Seconds; a machine that is busy with other tests takes one."""
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
    """A name of this role; of clients the one that does not take part."""
    names = {"client": federation.clients[-1], "holder": federation.holders[0]}
    names |= {"shard": federation.shards[1], "observer": OBSERVER, "coordinator": COORDINATOR}
    return names[role]


KINDS = sorted(msgpack.SENT.values(), key=lambda kind: kind.__name__)
PAYLOADS = (requests.GetBlock, requests.GetSum, requests.PutBlock)
AT_ONCE = 12


def test_every_message_is_there() -> None:
    assert set(KINDS) >= permissions.MESSAGES


class Caller:
    """Whoever has a party's keys, and says any message by any method of a server."""

    def __init__(self, around: OneProcess, name: str, to: str) -> None:
        identity = around.kit.identities[name]
        self._name, self._to = name, to
        self._sign = lambda said: identity.sign(REQUEST_DOMAIN, said)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = around.link(name).channel(to, around.addresses[to], options)

    def close(self) -> None:
        self._channel.close()

    def say(self, method: str, message: Any) -> SecurepsError | None:
        """What it is refused with; None if it is answered."""
        envelope = msgpack.encode(message)
        framed = method == framing.PUT
        sent = framing.head(envelope, 0) if framed else envelope
        metadata = sign_request(self._name, self._to, self._sign, method, b"", envelope)
        call: Any = self._channel.stream_stream(method)
        stream = call(iter([sent]), metadata=metadata, timeout=PATIENCE)
        try:
            next(stream)
            return None
        except grpc.RpcError as error:
            return framing.error_of(error, "it")
        finally:
            stream.cancel()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("to", SERVED)
def test_the_table_is_what_servers_do(federation: OneProcess, role: Role, to: str) -> None:
    """Every message by every method, in every role: looked at where it says so, and only there."""
    table = permissions.TO_COORDINATOR if to == COORDINATOR else permissions.TO_SHARD
    with closing(Caller(federation, name := key_of(federation, role), to)) as caller:
        for method in SERVED[to]:
            short = method.rpartition("/")[2]
            for kind in KINDS:
                heard = kind in table[role]
                if heard and kind is requests.Subscribe and name != federation.clients[-1]:
                    continue  # it runs, and would lose its stream; that it has one is the yes
                error = caller.say(method, unset(kind))
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
    assert made == {f"/{health.SERVICE}/Check", f"/{health.SERVICE}/Watch"}.union(*SERVED.values())


@pytest.mark.parametrize("role", ROLES)
def test_every_message_of_every_role_is_answered(federation: OneProcess, role: Role) -> None:
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
                    elif kind not in table[role]:
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
