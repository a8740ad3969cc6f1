"""A walker of the slow line's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secureps.run.own_script import run_client
from tests.kits.federations import Walker

SHAPE = (500, 500)


def make(settings: Mapping[str, Any]) -> Walker:
    return Walker(int(settings["partition"]), SHAPE)


if __name__ == "__main__":
    run_client(make)
