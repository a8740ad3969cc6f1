"""In the clear a simulation's messages take as many bytes as they would under a cipher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secureps.client.initial_model import schema_of
from secureps.messages.requests import GetBlock, PutBlock, Submit
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Conditions
from secureps.scenario.delays import message_bytes, sealed_bytes
from tests.kits.federations import small_federation, small_plan
from tests.kits.walker import Walker


def sent(plan: Plan, folder: Path, size: Callable[[Any], int]) -> list[tuple[str, int]]:
    """What clients send with bytes, and how many, in the order of names."""
    found = list[tuple[str, int]]()

    def delay(sender: str, to: str, message: Any) -> float:
        if sender.startswith("client-") and isinstance(message, PutBlock | Submit):
            of = message.header if isinstance(message, PutBlock) else message.receipt
            found.append((f"{type(message).__name__} of {of.purpose}", size(message)))
        return 0.0

    small_federation(plan, folder, Conditions(delay=delay)).run()
    return sorted(found)


@pytest.mark.parametrize("cipher", ["rlwe", "rlwe-2-of-3", "bfv"])
def test_what_is_not_sealed_stands_for_what_would_be(cipher: str, tmp_path: Path) -> None:
    plan, clear = (small_plan(each, versions=1) for each in (cipher, "plain"))
    schema = schema_of(Walker(0).parameters(0))
    size = sealed_bytes(plan, plan.layout(schema), clear.layout(schema))
    sealed = sent(plan, tmp_path / "sealed", message_bytes)
    assert sent(clear, tmp_path / "clear", size) == sealed
    assert {what for what, _ in sealed} >= {"PutBlock of update", "PutBlock of founding"}
    assert sent(clear, tmp_path / "bare", message_bytes) != sealed
    assert size(GetBlock(b"run", "all", 0, 0)) == 0, "as small as it is"
