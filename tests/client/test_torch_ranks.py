"""Several processes train one client's model: all have the same one, and rank 0 is the client."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.client import torch_ranks
from secureps.client.runner import Joining, join
from secureps.client.torch import TorchTrainer
from secureps.errors import KitError, PlanRefused
from tests.client.test_torch import PRIVATE, trainer
from tests.kits.nursery import ROOT
from tests.kits.ranked_client import Ranked, played


def test_two_processes_make_the_model_of_one(tmp_path: Path) -> None:
    """Bit for bit, where every sum is exact; elsewhere sums are of other parts."""
    command = [sys.executable, "-m", "tests.kits.ranked_client"]
    store = str(tmp_path / "store")
    started = [
        subprocess.Popen([*command, rank, store], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    alone = Ranked()
    model = played(alone)
    told = [json.loads(each.communicate(timeout=300)[0].splitlines()[-1]) for each in started]
    assert [each.returncode for each in started] == [0, 0]
    assert told == [
        {"reason": None, "model": model, "trained": alone.trained},
        {"reason": torch_ranks.DISMISSED, "model": "", "trained": alone.trained},
    ]


def test_private_steps_are_taken_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "several", lambda: True)
    holder = trainer()
    with pytest.raises(PlanRefused, match="start this client without torchrun"):
        holder.fit(holder.parameters(1), replace(PRIVATE))


def test_who_is_alone_follows_nobody() -> None:
    assert not torch_ranks.several()
    assert trainer().follow() is None
    trainer().dismiss()


class Following(TorchTrainer):
    """A trainer of another rank, or of rank 0, without any processes."""

    reason: str | None = "dismissed"
    dismissed = 0

    def follow(self) -> str | None:
        return self.reason

    def dismiss(self) -> None:
        self.dismissed += 1


@pytest.fixture
def following() -> Following:
    own: Any = trainer()
    return Following(own._model, own._train, own._held_out, device="cpu")


def test_another_rank_joins_no_run(following: Following, tmp_path: Path) -> None:
    """It needs no kit, and writes nothing."""
    joining = Joining("127.0.0.1:1", tmp_path / "kit", "c0", tmp_path / "state")
    assert join(joining, following).reason == "dismissed"
    assert list(tmp_path.iterdir()) == []
    assert following.dismissed == 0


def test_others_are_dismissed_however_a_run_ends(following: Following, tmp_path: Path) -> None:
    following.reason = None
    joining = Joining("127.0.0.1:1", tmp_path / "kit", "c0", tmp_path / "state")
    with pytest.raises(KitError):
        join(joining, following)
    assert following.dismissed == 1
