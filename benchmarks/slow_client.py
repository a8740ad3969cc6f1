"""A walker of the slow line's model; `--set through=HERE>THERE,...` has it dial THERE for HERE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secureps.client.runner import run_client
from secureps.wire.grpc.client import GrpcTransport
from tests.kits.federations import Walker

SHAPE = (500, 500)


def make(settings: Mapping[str, Any]) -> Walker:
    through = dict(p.split(">") for p in str(settings.get("through", "")).split(",") if p)
    told = GrpcTransport.locate

    def locate(transport: GrpcTransport, party: str, address: str) -> None:
        told(transport, party, through.get(address, address))

    GrpcTransport.locate = locate  # type: ignore[method-assign,assignment]
    return Walker(int(settings["partition"]), SHAPE)


if __name__ == "__main__":
    run_client(make)
