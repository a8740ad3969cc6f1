"""A device that makes other bits than the host is found out before it makes an update."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from secureps.device import bits
from tests.kits.torch_device import DEVICE


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    bits.difference.cache_clear()
    yield
    bits.difference.cache_clear()


def test_the_device_has_the_hosts_bits() -> None:
    assert bits.difference(DEVICE) == ""


def test_what_divides_by_an_inverse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does on CUDA where it divides by a number of the host's."""

    class Inverse:
        def __init__(self, value: float) -> None:
            self._by = torch.tensor(1 / value, dtype=torch.float32)

        def __rtruediv__(self, other: torch.Tensor) -> torch.Tensor:
            return other * self._by

    monkeypatch.setattr(bits, "divisor", lambda value, like, dtype: Inverse(value))
    monkeypatch.setattr(torch.Tensor, "__truediv__", lambda self, other: NotImplemented)
    assert bits.difference(DEVICE) == "quotients"


@pytest.mark.parametrize(
    ("text", "told"), [("no float64 here\nand more", "no float64 here"), ("", "TypeError")]
)
def test_a_device_without_float64_says_so(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails without a word does not make the same bits."""

    def refuse(*given: object) -> None:
        raise TypeError(text)

    monkeypatch.setattr(bits, "clip_factor", refuse)
    assert bits.difference(DEVICE) == told


def test_memory_that_does_not_suffice_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(bits, "clip_factor", full)
    with pytest.raises(torch.OutOfMemoryError):
        bits.difference(DEVICE)
    monkeypatch.undo()
    assert bits.difference(DEVICE) == ""
