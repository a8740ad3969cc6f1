"""An update that is made where its model was trained has the bits of one that is made on the host.

Tensors are the CPU's, or those of SECUREPS_TEST_DEVICE.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from secureps.client import device_update
from secureps.client import torch as torch_trainer
from secureps.client.trainer import FitResult, HeldTensor
from secureps.client.update import Trained, Update
from secureps.client.worker import ClientWorker, make_update
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import NotFinite
from secureps.messages.encoding import payload_digest
from secureps.messages.run import GroupVersion, Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.mechanism import PIECE
from secureps.roles.member.tasks import Aim, Contribute, block_key, kept_key
from tests.client.test_torch import records, trainer
from tests.client.test_worker import worker
from tests.kits.federations import ends, small_federation, small_plan
from tests.kits.privacy_kit import PRIVACY
from tests.kits.roles_kit import SCHEMA, make_plan
from tests.kits.sealed_blocks import drawn, finish_sealing
from tests.kits.torch_device import DEVICE
from tests.kits.torch_device import there as on_device

Tensors = dict[str, Any]
Model = tuple[list[NDArray[np.float32]], Tensors]

AIM = Aim("all", 3, 4)
RULE = {"quorum": 3, "minimum": 2}
STEPS: dict[str, Any] = {"weighting": "uniform"}
CIPHER = "bfv"
"""Of plans alone: nothing is sealed here."""


def plan_of(group: Mapping[str, Any], privacy: Mapping[str, Any] | None = None) -> Plan:
    changes: dict[str, Any] = (
        {} if privacy is None else {"privacy": PRIVACY | {"placement": "local"} | dict(privacy)}
    )
    return make_plan(
        CIPHER if changes else "plain", group=[{"rule": RULE} | dict(group)], **changes
    )


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
    for name, each in tensors.items():
        moved = rng.standard_normal(each.shape) * size
        tensors[name] = np.array(each + moved.astype(np.float32), each.dtype)
    return blocks, tensors


def held(tensors: Tensors) -> Tensors:
    return {name: HeldTensor(on_device(each)) for name, each in tensors.items()}


def updated(
    plan: Plan,
    layout: GroupLayout,
    blocks: list[NDArray[np.float32]],
    tensors: Tensors,
    **more: Any,
) -> Update:
    return make_update(Trained("c0", plan, layout, blocks, tensors, **more))


def both(
    plan: Plan, layout: GroupLayout, made: Model, kept: NDArray[np.float32] | None = None
) -> tuple[Update, Update]:
    more = {"kept": kept, "scale": 0.75 if layout.scaled else None}
    here, there = (
        updated(plan, layout, made[0], tensors, **more) for tensors in (made[1], held(made[1]))
    )
    assert here.device is None
    assert there.device is not None
    assert there.to_array().tobytes() == here.to_array().tobytes()
    assert dataclasses.replace(there, part=here.part, device=None) == here
    return here, there


def integers(own: ClientWorker, update: Update, examples: int = 1) -> NDArray[np.integer[Any]]:
    base = (bytes(32),) * own._layout().group("all").blocks
    return drawn(own, AIM, update, examples, base)


CODECS = st.sampled_from(
    [
        [],
        ["rotate"],
        [{"name": "support", "one_in": 3}],
        [{"name": "support", "one_in": 4}, "rotate"],
    ]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    """With a range of its own, or one that follows the mean norm; what feedback keeps, too."""
    group: dict[str, Any] = {"clip": clip, "bits": bits, "codec": codec}
    if feedback and codec:
        group["feedback"] = True
    if follows and "rotate" in codec:
        group["codec"] = [*codec, {"name": "round", "length": "mean_norm"}]
    plan = plan_of(group)
    own = worker(plan, tmp_path, UnsafeSeed(seed))
    layout = own._layout().group("all")
    kept = np.random.default_rng(seed + 1).standard_normal(layout.size).astype(np.float32)
    kept[-1] = 0
    here, there = both(plan, layout, model(layout, seed), kept if feedback else None)
    examples = 32 // (1 + seed % 3)
    made = integers(own, there, examples)
    assert np.array_equal(made, integers(own, here, examples))
    assert there.to_array().tobytes() == here.to_array().tobytes(), "what is kept for the next one"


def test_an_update_under_client_level_privacy_is_the_hosts() -> None:
    plan = plan_of(STEPS | {"clip": 1.0, "bits": 20}, {})
    layout = plan.layout(SCHEMA).group("all")
    blocks, tensors = model(layout, 1)
    made, here = (updated(plan, layout, blocks, each) for each in (held(tensors), tensors))
    assert made.device is None
    assert made.to_array().tobytes() == here.to_array().tobytes()


MANY = 2 * PIECE + 77
LARGE = Schema(
    (
        TensorSpec("count", (), "int64"),
        TensorSpec("mean", (PIECE - 9,), "float32"),
        TensorSpec("scalar", (), "float32"),
        TensorSpec("table", (10, 3), "float64"),
        TensorSpec("weight", (MANY,), "float32"),
    )
)
MEAN: dict[str, Kind] = {"mean": "statistics"}


def test_what_is_no_float32_or_lies_on_another_device_is_subtracted_on_the_host() -> None:
    """A published value counts as the trainer saw it, in its tensor's type."""
    names = "half", "other", "single"
    types = dict(zip(names, ("float16", "float64", "float32"), strict=True))
    schema = Schema(tuple(TensorSpec(name, (40, 5), types[name]) for name in names))
    plan = make_plan(group=[{"rule": RULE, "clip": 1e5}])
    layout = plan.layout(schema).group("all")
    blocks, tensors = model(layout, 3)
    there = held(tensors)
    other, meta = there["other"].tensor, torch.device("meta")
    parts = {"shape": other.shape, "dtype": other.dtype, "detach": lambda: other}
    there["other"] = HeldTensor(SimpleNamespace(device=meta, **parts))
    there = {name: there[name] for name in ("single", "half", "other")}
    made, here = (updated(plan, layout, blocks, each) for each in (there, tensors))
    assert made.device is not None
    assert made.to_array().tobytes() == here.to_array().tobytes()


@pytest.mark.parametrize("clip", [0.5, 1e5])
def test_tensors_of_every_kind_and_of_many_pieces(
    clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics are not clipped; what lies on the host anyway is subtracted there."""
    monkeypatch.setattr(device_update, "TOGETHER", PIECE)
    plan = make_plan(block_size=50_000, group=[{"rule": RULE, "clip": clip}])
    layout = plan.layout(LARGE).group("all")
    blocks, tensors = model(layout, 5)
    here = updated(plan, layout, blocks, tensors, kinds=MEAN)
    mixed = held(tensors) | {"count": tensors["count"]}
    there = updated(plan, layout, blocks, mixed, kinds=MEAN)
    assert there.to_array().tobytes() == here.to_array().tobytes()
    assert dataclasses.replace(there, part=here.part, device=None) == here


def test_an_update_is_few_operations() -> None:
    """Each is launched by itself, which takes a GPU longer than the arithmetic of small ones."""
    schema = Schema((TensorSpec("weight", (1_000_000,), "float32"),))
    plan = make_plan(block_size=1_000_000, group=[{"rule": RULE, "clip": 0.5}])
    layout = plan.layout(schema).group("all")
    blocks, tensors = model(layout, 1)
    made = Trained("c0", plan, layout, blocks, held(tensors))
    assert device_update.first_difference(DEVICE) == ""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert make_update(made).device is not None
    assert 0 < sum(each.count for each in seen.key_averages()) < 1000


def test_row_blocks_of_a_table() -> None:
    sparse = {"rows": 10, "block": 4}
    group = {"rule": RULE, "pattern": "table", "name": "t", "sparse": sparse}
    plan = make_plan(block_size=50_000, group=[group, {"rule": RULE, "name": "rest"}])
    schema = Schema((LARGE.tensors[3], TensorSpec("weight", (6,), "float32")))
    rng = np.random.default_rng(1)
    tensors = {"table": rng.standard_normal((10, 3))}
    for layout in plan.layout(schema).groups[:3]:
        published = [rng.standard_normal(layout.size).astype(np.float32)]
        made = [updated(plan, layout, published, each) for each in (tensors, held(tensors))]
        assert made[0].to_array().tobytes() == made[1].to_array().tobytes()


@pytest.mark.parametrize("kinds", [{}, {"bias": "statistics"}], ids=["all", "statistics"])
def test_a_value_that_is_no_number_is_refused(kinds: dict[str, Kind]) -> None:
    plan = plan_of({})
    layout = plan.layout(SCHEMA).group("all")
    blocks, tensors = model(layout, 1)
    tensors["weight"][2, 3] = np.inf
    with pytest.raises(NotFinite):
        updated(plan, layout, blocks, held(tensors), kinds=kinds)


def full_after(calls: int, action: Callable[..., Any]) -> Callable[..., Any]:
    """An action for which a device has no memory left after so many calls."""
    left = iter(range(calls))

    def limited(*given: Any) -> Any:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return action(*given)

    return limited


OTHER_BITS = "makes other bits than the host (rounding): updates are made on the host"
NO_ROOM = "has no memory left for the update: this update is made on the host, with the same bits"


@pytest.mark.parametrize(
    ("part", "instead", "told"),
    [
        ("first_difference", lambda device: "rounding", OTHER_BITS),
        ("first_difference", full_after(0, print), NO_ROOM),
        ("clip_factor", full_after(0, print), NO_ROOM),
        ("shrink", full_after(0, print), NO_ROOM),
    ],
)
def test_an_update_that_a_device_cannot_make_is_made_on_the_host(
    part: str,
    instead: Any,
    told: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    plan = plan_of({"clip": 0.1})
    layout = plan.layout(SCHEMA).group("all")
    blocks, tensors = model(layout, 1)
    monkeypatch.setattr(device_update, part, instead)
    made, here = (updated(plan, layout, blocks, each) for each in (held(tensors), tensors))
    assert made.device is None
    assert made.to_array().tobytes() == here.to_array().tobytes()
    assert caplog.messages[0] == f"c0: {DEVICE} {told}"


def drafted(
    own: ClientWorker, blocks: list[NDArray[np.float32]], tensors: Tensors
) -> tuple[bytes, bytes]:
    """The integers of a training's update, and what is kept for the next one."""
    digests = tuple(payload_digest(block.tobytes()) for block in blocks)
    own.pulled = {block_key(each): block for each, block in zip(digests, blocks, strict=True)}
    task = Contribute((GroupVersion("all", AIM.version),), digests, (AIM,))
    made = own._draft_update(AIM, FitResult(tensors, 1, {}, 1), task, {})
    assert made.rest is not None
    made.rest()
    kept = own._outbox.get(kept_key("all", made.receipt.update))
    return finish_sealing(own._layout().group("all"), made.blocks).tobytes(), kept


@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("part", ["round_to_grid", "decode"])
def test_without_memory_for_a_block_the_update_is_the_hosts(
    part: str, calls: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever of the four blocks it is; under feedback what is left of each is the same."""
    plan = plan_of({"clip": 0.1, "bits": 5, "codec": ["rotate"], "feedback": True})
    made_on_a_full_device(plan, part, calls, tmp_path, caplog)


def made_on_a_full_device(
    plan: Plan, part: str, calls: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An update on a device whose memory is full after so many calls is that of the host."""
    caplog.set_level(logging.INFO, logger="secureps")
    own = worker(plan, folder, UnsafeSeed(2))
    blocks, tensors = model(own._layout().group("all"), 1)
    here = drafted(own, blocks, tensors)
    assert device_update.first_difference(DEVICE) == ""
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_update, part, full_after(calls, getattr(device_update, part)))
        assert drafted(own, blocks, held(tensors)) == here
    told = [line for line in caplog.messages if "clip 0.1" not in line]
    assert told == [f"c0: {DEVICE} {NO_ROOM}"]


def test_clients_of_a_federation_make_their_updates_where_they_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, own = list[Update | None](), device_update.device_update

    def noted(*given: Any) -> Update | None:
        made.append(own(*given))
        return made[-1]

    monkeypatch.setattr(device_update, "device_update", noted)
    monkeypatch.setattr(torch_trainer, "HELD_ON", {"cpu"})
    plan = small_plan(versions=1, local=[], clients=3, training={"lr": 0.1, "local_steps": 3})
    trainers = [trainer(train=records(20 + k, k)) for k in range(3)]
    ends(small_federation(plan, tmp_path, clients=3, kind=trainers.__getitem__))
    assert len(made) == 3
    assert None not in made
