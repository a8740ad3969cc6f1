"""Rounding to a norm and Skellam noise on a device are the host's, word for word."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.sampling import Stream, UnsafeSeed
from secureps.device import noise as device_noise
from secureps.device.noise import DeviceRounding, DeviceSkellam
from secureps.errors import InternalError
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from secureps.privacy.skellam import Skellam
from tests.kits.torch_device import DEVICE, back, there


def stream(seed: int, *labels: str) -> Stream:
    return UnsafeSeed(seed).derive("test", *labels)


@settings(max_examples=40)
@given(
    variance=st.sampled_from([2.0**-20, 0.01, 1.0, 30.0, 1e4, 1e7]),
    counts=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_noise_is_the_samplers(variance: float, counts: list[int], seed: int) -> None:
    """In however many calls it is drawn."""
    sampler = Skellam(variance)
    drawn = DeviceSkellam(sampler, stream(seed), DEVICE)
    made = np.concatenate([back(drawn.next(count)) for count in counts])
    assert np.array_equal(made, sampler.sample(sum(counts), stream(seed).words))


def test_where_a_table_does_not_decide_the_host_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is a thousand times as vague: one value in a hundred is undecided."""
    sampler = Skellam(30.0)
    exact = sampler.sample(3000, stream(1).words)
    vague = type(sampler.table)(
        sampler.table.bounds, 1 << 50, sampler.table.guide, sampler.table.shift
    )
    monkeypatch.setitem(sampler.__dict__, "table", vague)
    asked = list[int]()
    decided = Skellam.decided

    def counted(self: Skellam, more: object) -> int:
        asked.append(1)
        return decided(self, more)  # type: ignore[arg-type]

    monkeypatch.setattr(Skellam, "decided", counted)
    here = sampler.sample(3000, stream(1).words)
    often = len(asked)
    assert often > 10
    assert np.array_equal(back(DeviceSkellam(sampler, stream(1), DEVICE).next(3000)), here)
    assert len(asked) == 2 * often
    assert np.array_equal(here, exact)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    clip=st.sampled_from([0.5, 1.0, 7.0]),
    bits=st.integers(12, 20),
    seed=st.integers(0, 99),
)
def test_steps_are_the_mechanisms(sizes: list[int], clip: float, bits: int, seed: int) -> None:
    """At whichever try they are short enough."""
    total = sum(sizes)
    mechanism = ClientMechanism(clip, total, bits, 0.5, "local")
    x = np.random.default_rng(seed).standard_normal(total).astype(np.float32)
    x, _ = clip_l2(x, clip)
    starts = [0, *np.cumsum(sizes).tolist()]
    held = there(x)
    blocks = [(lambda first=first, last=last: held[first:last]) for first, last in pairwise(starts)]
    rounding = DeviceRounding(mechanism, blocks, starts, stream(seed, "round"))
    assert rounding.blocks == len(sizes)
    made = [back(z) for block in range(len(sizes)) for z in rounding.steps(block)]
    expected = mechanism.rounded(x, stream(seed, "round").words)
    assert np.array_equal(np.concatenate(made), expected)


def test_an_update_that_was_not_clipped_is_never_short_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_noise, "MOST_TRIES", 3)
    mechanism = ClientMechanism(1.0, 50, 16, 0.5, "local")
    with pytest.raises(InternalError, match="3 roundings were too long"):
        DeviceRounding(mechanism, [lambda: torch.ones(50, device=DEVICE)], [0, 50], stream(1))
