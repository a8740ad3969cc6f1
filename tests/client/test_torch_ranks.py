"""Several processes train one client's model: all have the same one, and rank 0 is the client."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from secureps.client import runner, torch_ranks
from secureps.client.runner import Joining, join
from secureps.client.torch import TorchTrainer
from secureps.client.torch_sgd import LocalSgd
from secureps.errors import KitError, NotFinite, PlanRefused, ScriptFailed
from secureps.roles.machine import Halt
from tests.client.test_torch import PRIVATE, records, trainer
from tests.kits.nursery import ROOT
from tests.kits.ranked_client import MODELS, Ranked, digest_of, played

NOTHING = digest_of({})


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shares models on GPUs alone"
)
def test_two_processes_make_the_model_of_one(tmp_path: Path) -> None:
    """Bit for bit, where every sum is exact; elsewhere sums are of other parts.

    Of a model in shares rank 0 alone has it whole, and both evaluate it. Where one of them fails
    alone in an evaluation the other one does not wait for it, and names it.
    """
    command = [sys.executable, "-m", "tests.kits.ranked_client"]
    store = str(tmp_path / "store")
    started = [
        subprocess.Popen([*command, rank, store], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    alone = {kind: Ranked(kind) for kind in MODELS}
    made = {kind: played(each) for kind, each in alone.items()}
    said = [each.communicate(timeout=300)[0].splitlines() for each in started]
    assert [each.returncode for each in started] == [0, 0]
    leads, follows = (dict(zip(MODELS, map(json.loads, lines))) for lines in said)
    for kind, own in alone.items():
        told = {"made": made[kind], "trained": own.trained, "evaluated": 1}
        assert leads[kind] == {"reason": None, **told}
    dismissed = {"reason": torch_ranks.DISMISSED, "made": []}
    trained = {kind: own.trained for kind, own in alone.items()}
    for kind in ("whole", "fetched"):
        assert follows[kind] == {**dismissed, "trained": trained[kind], "evaluated": 0}
    gathers = [NOTHING] * len(trained["shares"])
    assert follows["shares"] == {**dismissed, "trained": gathers, "evaluated": 1}
    (first, second), (third, fourth) = ([*map(json.loads, lines[len(MODELS) :])] for lines in said)
    why, again = "MemoryError: no memory left", torch_ranks.AGAIN
    heard = "ScriptFailed: rank {} of this client's processes failed: " + why + "; " + again
    assert first == [why, f"ScriptFailed: after {why}: {again}"]
    assert third == [heard.format(0)]
    assert second == [heard.format(1), f"ScriptFailed: after {heard.format(1)}: {again}"]
    assert fourth == [why]


def test_private_steps_are_taken_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "is_group", lambda: True)
    holder = trainer()
    with pytest.raises(PlanRefused, match="start this client without torchrun"):
        holder.fit(holder.parameters(1), PRIVATE)


def test_who_is_alone_follows_nobody() -> None:
    assert not torch_ranks.is_group()
    assert trainer().follow() is None
    trainer().dismiss()


def test_nobody_is_dismissed_from_the_midst_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would not hear it; where no value was finite all are at its end."""
    told = list[object]()
    monkeypatch.setattr(torch_ranks, "is_group", lambda: True)
    monkeypatch.setattr(torch_ranks, "send_order", lambda given, parameters: told.append(given))
    monkeypatch.setattr(torch_ranks, "failing_together", nullcontext)
    order = torch_ranks.Order(bytes(32), LocalSgd(), 1)
    for error, heard in ((NotFinite, [order, None]), (ScriptFailed, [order])):
        own = torch_ranks.Ranks()

        def train(own: torch_ranks.Ranks, error: type[Exception]) -> None:
            with own.together(order, {}, None):
                own.dismiss()
                raise error("the loss became NaN")

        told.clear()
        with pytest.raises(error):
            train(own, error)
        own.dismiss()
        assert told == heard


def test_who_follows_hears_on_after_a_value_that_was_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ranks have met it, and the first one orders what follows."""
    holder = trainer()
    heard = iter([(holder.parameters(1), None)] * 2 + [None])
    monkeypatch.setattr(torch_ranks, "is_group", lambda: True)
    monkeypatch.setattr(torch_ranks, "is_client", lambda: False)
    monkeypatch.setattr(torch_ranks, "failing_together", nullcontext)
    monkeypatch.setattr(torch_ranks, "receive_order", lambda: next(heard))

    def diverges(*given: Any) -> Any:
        raise NotFinite("the loss became NaN")

    monkeypatch.setattr(holder, "_train_model", diverges)
    assert holder.follow() == torch_ranks.DISMISSED


class Following(TorchTrainer):
    reason: str | None = "dismissed"
    dismissed = 0
    gone = False

    def follow(self) -> str | None:
        return self.reason

    def dismiss(self) -> None:
        self.dismissed += 1
        if self.gone:
            raise RuntimeError("Connection closed by peer")


@pytest.fixture
def following() -> Following:
    own: Any = trainer()
    return Following(own._model, records(40), records(20, 1), device="cpu")


def test_another_rank_joins_no_run(following: Following, tmp_path: Path) -> None:
    """It needs no kit, and writes nothing."""
    joining = Joining("127.0.0.1:1", tmp_path / "kit", "c0", tmp_path / "state")
    assert join(joining, following).reason == "dismissed"
    assert list(tmp_path.iterdir()) == []
    assert following.dismissed == 0


@pytest.mark.parametrize("gone", [False, True])
def test_others_are_dismissed_however_a_run_ends(
    gone: bool, following: Following, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What ended it is told, whether or not there was still somebody to dismiss."""
    following.reason, following.gone = None, gone
    joining = Joining("127.0.0.1:1", tmp_path / "kit", "c0", tmp_path / "state")
    with pytest.raises(KitError):
        join(joining, following)
    assert following.dismissed == 1
    assert ("not dismissed: Connection closed by peer" in caplog.text) == gone


def test_of_a_run_that_went_well_a_failing_dismissal_is_told(
    following: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.reason, following.gone = None, True
    monkeypatch.setattr(runner, "_take_part", lambda *given: Halt("done"))
    joining = Joining("127.0.0.1:1", tmp_path / "kit", "c0", tmp_path / "state")
    with pytest.raises(ScriptFailed, match="dismiss raised RuntimeError"):
        join(joining, following)
