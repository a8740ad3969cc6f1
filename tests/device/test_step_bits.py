"""A device that makes other bits of a step than the host is found out before it steps a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from secureps.device import step_bits, stepping
from secureps.device.stepping import LIBRARY, DeviceStep
from tests.kits.torch_device import DEVICE


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    step_bits.difference.cache_clear()
    yield
    step_bits.difference.cache_clear()


def test_the_device_has_the_hosts_bits() -> None:
    assert step_bits.difference(DEVICE) == ""


def test_what_divides_by_an_inverse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first optimizer that divides is adam."""
    wrong = replace(LIBRARY, quotient=lambda vector, by: vector * (1 / by))
    monkeypatch.setattr(DeviceStep, "library", wrong)
    assert step_bits.difference(DEVICE) == "adam"


def test_a_root_that_is_not_rounded_right_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(LIBRARY, root=lambda vector: torch.pow(vector, 0.49999))
    monkeypatch.setattr(DeviceStep, "library", wrong)
    assert step_bits.difference(DEVICE) == "adam"


def test_means_that_lose_bits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stepping.weighted_mean
    monkeypatch.setattr(stepping, "weighted_mean", lambda *given: right(*given) * (1 + 2.0**-22))
    assert step_bits.difference(DEVICE) == "means"


def test_what_a_device_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError("no float64 here\nand more")

    monkeypatch.setattr(stepping, "weighted_mean", refuse)
    assert step_bits.difference(DEVICE) == "no float64 here"


def test_memory_that_does_not_suffice_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(stepping, "weighted_mean", full)
    with pytest.raises(torch.OutOfMemoryError):
        step_bits.difference(DEVICE)
