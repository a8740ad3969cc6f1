"""The world of gRPC, for its contract and for senders that are not right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.transport_kit import Grpc


@pytest.fixture
def world() -> Iterator[Grpc]:
    world = Grpc()
    yield world
    world.close()
