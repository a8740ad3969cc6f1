"""A walker of the slow line's model; `--set through=HERE>THERE,...` has it dial THERE for HERE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

from secureps.client.runner import run_client
from secureps.wire.grpc.client import GrpcTransport
from tests.kits.federations import Walker

SHAPE = (500, 500)
THROUGH = dict[str, str]()
"""Where to dial for an address."""


class Diverted(GrpcTransport):
    """Dials by THROUGH."""

    def locate(self, party: str, address: str) -> None:
        super().locate(party, THROUGH.get(address, address))


def make(settings: Mapping[str, Any]) -> Walker:
    for pair in filter(None, str(settings.get("through", "")).split(",")):
        here, _, there = pair.partition(">")
        THROUGH[here] = there
    return Walker(int(settings["partition"]), SHAPE)


if __name__ == "__main__":
    with mock.patch("secureps.service.process.GrpcTransport", Diverted):
        run_client(make)
