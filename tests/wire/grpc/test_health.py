"""The real servers answer a stub of grpc.health.v1 without a name and a key."""

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from tests.kits.transport_kit import PATIENCE, EchoServer, Grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


Server = CoordinatorServer | ShardServer


@pytest.fixture(params=["coordinator", "shard-0"])
def server(request: pytest.FixtureRequest, world: Grpc) -> Iterator[Server]:
    world.serve(request.param, endpoint := EchoServer())
    yield world.servers[request.param]
    assert endpoint.seen == []


def check(server: Server, service: str = "") -> int:
    with grpc.insecure_channel(at(server)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        return int(stub.Check(request, timeout=PATIENCE, wait_for_ready=True).status)


def at(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def test_it_serves_when_it_is_ready_and_not_before(server: Server) -> None:
    own = "secureps.Coordinator" if isinstance(server, CoordinatorServer) else "secureps.Shard"
    for service in ("", own):
        assert check(server, service) == NOT_SERVING
        server.set_ready(True)
        assert check(server, service) == SERVING
        server.set_ready(False)


def test_another_service_is_not_found(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(server, "secureps.Nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_is_stopping_is_never_ready_again(server: Server) -> None:
    server.set_ready(True)
    server._health.stopping = True
    server.set_ready(True)
    assert check(server) == NOT_SERVING
