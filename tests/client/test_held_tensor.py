"""A trained model stays where it was trained, and is an array of its own to whoever asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secureps.client import torch as torch_trainer
from secureps.client.initial_model import schema_of
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import Array, FitConfig, FitResult, HeldTensor, fit_of
from secureps.errors import ScriptFailed
from tests.client.test_torch import CONFIG, PRIVATE, mlp, records, same, trainer


def test_it_is_the_array_of_its_values() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    held = HeldTensor(tensor)
    made = np.asarray(held)
    assert np.array_equal(made, tensor.numpy())
    assert (made.shape, made.dtype) == (held.shape, held.dtype)
    assert np.asarray(held, np.float64).dtype == np.float64
    made[0] = 9
    assert float(tensor[0, 0]) == 0
    assert schema_of({"a": held}) == schema_of({"a": tensor.numpy()})


class Counting(nn.Module):
    """Has tensors of every kind: one that trains, one in bfloat16, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.rough = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x) + self.rough.float()
        return made


def test_where_updates_are_made_on_a_device_a_trained_model_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same values, but for what NumPy does not know, or the host has anyway."""
    holder = trainer(Counting)
    start = holder.parameters(1)
    here = holder.fit_held(start, CONFIG).parameters
    assert not any(isinstance(each, HeldTensor) for each in here.values())
    monkeypatch.setattr(torch_trainer, "HELD_ON", {"cpu"})
    there = holder.fit_held(start, CONFIG).parameters
    held = [name for name, each in there.items() if isinstance(each, HeldTensor)]
    assert held == ["inner.weight", "inner.bias"]
    assert same({name: np.asarray(each) for name, each in there.items()}, here)
    assert same(holder.fit(start, CONFIG).parameters, here)


def test_rows_that_are_left_out_come_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trainer, "HELD_ON", {"cpu"})
    rows = {"0.weight": np.array([1, 3])}
    holder = TorchTrainer(mlp, records(40), records(20, 1), device="cpu", touches=rows)
    start = holder.parameters(1)
    found = holder.fit_held(start, CONFIG).parameters
    assert isinstance(found["0.weight"], np.ndarray)
    assert isinstance(found["0.bias"], HeldTensor)
    assert np.array_equal(found["0.weight"][[0, 2]], start["0.weight"][[0, 2]])


def test_who_has_a_fit_of_its_own_is_asked_for_that() -> None:
    class Own(TorchTrainer):
        def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
            raise AssertionError("asked")

    own = Own(mlp, records(40), records(20, 1), device="cpu")
    assert fit_of(own) == own.fit
    assert fit_of(trainer()).__name__ == "fit_held"


@pytest.mark.parametrize("asked", ["fit", "private fit", "evaluate"])
def test_a_device_without_memory_is_named(asked: str) -> None:
    """What a training goes on with on another device has other bits: nothing does by itself."""

    class Full(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0")

    holder = trainer(Full)
    start = holder.parameters(1)
    config = PRIVATE if asked == "private fit" else CONFIG
    with pytest.raises(ScriptFailed) as caught:
        holder.evaluate(start) if asked == "evaluate" else holder.fit(start, config)
    size = "the sample rate" if asked == "private fit" else "batch_size"
    assert str(caught.value) == (
        f"cpu has no memory left (CUDA out of memory. Tried to allocate 2 GiB.): lower {size}, "
        "let fewer clients share it, or take device=cpu"
    )
