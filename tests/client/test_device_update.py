"""An update that is made where its model was trained has the bits of one that is made on the host.

Tensors are the CPU's: no test of this project runs on a GPU, and `device.bits` tries each before it
is relied on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.client import device_update
from secureps.client.held_tensor import HeldTensor
from secureps.client.trained_update import trained_update
from secureps.client.update import Update
from secureps.client.worker import ClientWorker
from secureps.crypto.sampling import UnsafeSeed
from secureps.device import bits
from secureps.errors import NotFinite
from secureps.messages.schema import Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind
from secureps.roles.member.tasks import Aim
from tests.client.test_worker import worker
from tests.kits.roles_kit import SCHEMA, make_plan
from tests.kits.sealed_blocks import whole

Tensors = dict[str, Any]
Model = tuple[list[NDArray[np.float32]], Tensors]

AIM = Aim("all", 3, 4)
RULE = {"quorum": 3, "minimum": 2}
STEPS: dict[str, Any] = {"weighting": "uniform"}
PRIVACY = {
    "unit": "client",
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "budget": 500.0,
    "placement": "local",
}


def plan_of(group: Mapping[str, Any], privacy: Mapping[str, Any] | None = None) -> Plan:
    changes: dict[str, Any] = {} if privacy is None else {"privacy": PRIVACY | dict(privacy)}
    return make_plan(group=[{"rule": RULE} | dict(group)], **changes)


def model(layout: GroupLayout, seed: int, size: float = 0.1) -> Model:
    """What was published, block by block, and what a training left of it."""
    rng = np.random.default_rng(seed)
    flat = rng.standard_normal(layout.size).astype(np.float32)
    if layout.scaled:
        flat[-1] = 0.75
    blocks = [flat[slice(*layout.span(block))].copy() for block in range(layout.blocks)]
    for block in blocks:
        block.flags.writeable = False
    tensors = layout.unflatten(flat)
    for each in tensors.values():
        each += (rng.standard_normal(each.shape) * size).astype(np.float32)
    return blocks, tensors


def held(tensors: Tensors) -> Tensors:
    return {name: HeldTensor(torch.from_numpy(each.copy())) for name, each in tensors.items()}


def both(
    plan: Plan,
    layout: GroupLayout,
    made: Model,
    kept: NDArray[np.float32] | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[Update, Update]:
    """On the host, and where its tensors lie."""
    scale = 0.75 if layout.scaled else None
    here, there = (
        trained_update("c0", plan, layout, (made[0], tensors), kept, scale, kinds or {})
        for tensors in (made[1], held(made[1]))
    )
    assert here.device is None
    assert there.device is not None
    assert there.whole().tobytes() == here.whole().tobytes()
    assert dataclasses.replace(there, part=here.part, device=None) == here
    return here, there


def integers(own: ClientWorker, update: Update, weight: int) -> NDArray[np.integer[Any]]:
    layout = own._layout().group("all")
    base = [bytes(32)] * layout.blocks
    return whole(layout, own._on_grid(AIM, 0, update, weight, base))


CODECS = st.sampled_from(
    [[], ["rotate"], [{"name": "support", "one_in": 3}], [{"name": "support", "one_in": 4}, "rotate"]]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codec=CODECS,
    bits=st.integers(3, 20),
    clip=st.sampled_from([0.05, 0.8, 50.0]),
    feedback=st.booleans(),
    follows=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_codec_has_the_same_bits(
    codec: list[Any],
    bits: int,
    clip: float,
    feedback: bool,
    follows: bool,
    seed: int,
    tmp_path: Path,
) -> None:
    """With a range of its own, or one that follows the mean norm; with feedback, what is kept too."""
    group: dict[str, Any] = {"clip": clip, "bits": bits, "codec": codec}
    if feedback and codec:
        group["feedback"] = True
    if follows and "rotate" in codec:
        group["codec"] = [*codec, {"name": "round", "length": "mean_norm"}]
    plan = plan_of(group)
    own, most = worker(plan, tmp_path, UnsafeSeed(seed)), plan.weights("all").most
    layout = own._layout().group("all")
    kept = np.random.default_rng(seed + 1).standard_normal(layout.size).astype(np.float32)
    kept[-1] = 0
    here, there = both(plan, layout, model(layout, seed), kept if feedback else None)
    weight = max(1, most // (1 + seed % 3))
    assert np.array_equal(integers(own, there, weight), integers(own, here, weight))
    assert there.whole().tobytes() == here.whole().tobytes(), "what is kept for the next one"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codec=CODECS,
    placement=st.sampled_from(["local", "distributed", "aggregator"]),
    adaptive=st.booleans(),
    feedback=st.booleans(),
    size=st.sampled_from([0.01, 1.0]),
    seed=st.integers(0, 99),
)
def test_noise_has_the_same_bits(
    codec: list[Any],
    placement: str,
    adaptive: bool,
    feedback: bool,
    size: float,
    seed: int,
    tmp_path: Path,
) -> None:
    group: dict[str, Any] = STEPS | {"clip": 1.0, "bits": 20, "codec": codec}
    privacy: dict[str, Any] = {"placement": placement}
    if placement == "distributed":
        privacy["honest"] = 3
    if adaptive and not codec:
        group["adaptive_clip"] = {"quantile": 0.5}
    if feedback and codec:
        group["feedback"] = True
    plan = plan_of(group, privacy)
    own, most = worker(plan, tmp_path, UnsafeSeed(seed)), plan.weights("all").most
    layout = own._layout().group("all")
    here, there = both(plan, layout, model(layout, seed, size))
    assert np.array_equal(integers(own, there, most), integers(own, here, most))
    assert there.whole().tobytes() == here.whole().tobytes()
