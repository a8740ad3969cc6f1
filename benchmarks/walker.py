"""A data holder's script whose training costs next to nothing: what is left is the server's way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.crowd import SHAPE
from secureps.client.runner import run_client
from tests.kits.federations import Walker


def make(settings: Mapping[str, Any]) -> Walker:
    return Walker(int(settings["partition"]), SHAPE)


if __name__ == "__main__":
    run_client(make)
