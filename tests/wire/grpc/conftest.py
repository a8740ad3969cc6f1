"""Fixtures for gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.transport_kit import Grpc


@pytest.fixture
def world() -> Iterator[Grpc]:
    world = Grpc()
    yield world
    world.close()
