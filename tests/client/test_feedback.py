"""What an update did not carry comes back whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secureps.client.update import add_kept, keep, load_kept
from secureps.roles.member.tasks import Aim, kept_key
from secureps.store.spool import DiskSpool, MemorySpool
from tests.kits.sealed_blocks import parts_of

NAME = bytes(range(16))
AIM = Aim("all", 3, 4, carried=NAME)


def test_what_was_kept_is_added_bit_for_bit(tmp_path: Path) -> None:
    rest = np.array([0.1, -2.0, 1e-45, 3e38], np.float32)
    keep(DiskSpool(tmp_path), "all", NAME, rest)
    delta = np.array([1.0, 1.0, 0.0, 0.0], np.float32)
    both = add_kept(parts_of(delta), load_kept("c0", DiskSpool(tmp_path), AIM, 4))
    assert np.array_equal(np.concatenate([both(0, 1), both(1, 4)]), delta + rest)


def test_before_any_update_was_included_there_is_nothing_to_add() -> None:
    delta = parts_of(np.ones(4, np.float32))
    kept = load_kept("c0", MemorySpool(), Aim("all", 0, 0), 4)
    assert add_kept(delta, kept) is delta


@pytest.mark.parametrize("damage", ["gone", "short", "flipped", "longer"])
def test_what_is_damaged_is_left_out_and_said(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="secureps")
    spool = MemorySpool()
    keep(spool, "all", NAME, np.full(5 if damage == "longer" else 4, 0.5, np.float32))
    key = kept_key("all", NAME)
    data = spool.get(key)
    if damage == "gone":
        spool.delete(key)
    elif damage == "short":
        spool.put(key, data[:20])
    elif damage == "flipped":
        spool.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    assert load_kept("c0", spool, AIM, 4) is None
    assert "did not carry is gone from the state folder" in caplog.text
