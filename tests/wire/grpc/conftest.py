"""Fixtures for gRPC."""

from collections.abc import Iterator

import pytest

from tests.kits.transport_kit import Grpc


@pytest.fixture
def world() -> Iterator[Grpc]:
    world = Grpc()
    yield world
    world.close()
