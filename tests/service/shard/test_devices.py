"""Which device steps blocks: one that was tried, and is sooner; the processor once it fails."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secureps.config.serve import ServeSection
from secureps.device.stepping import DeviceStep
from secureps.errors import ConfigError, NotFinite
from secureps.gpu import choice
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.run import assemble
from secureps.service.shard import devices
from secureps.service.shard.devices import PROCESSOR, ChosenStep, ShardDevices, shard_devices
from secureps.service.shard.stepping import Stepping
from tests.federation import test_deltas, test_moving_range
from tests.kits.federations import Tensors, finished, same, small_federation, small_plan
from tests.kits.roles_kit import make_cohort
from tests.kits.shoppers import SYNC, sparse_plan
from tests.service.shard.test_stepping import before, cut, plan_of, sums_of

STEPS = ("mean", "decoded", "apply", "codes")


class Played(DeviceStep):
    """A device that is this processor, and is full from some call on."""

    together = 30_000

    def __init__(self, calls: int = 1 << 30, error: Exception | None = None) -> None:
        super().__init__(torch.device("cpu"))
        self.calls, self.asked = calls, list[str]()
        self.error = error or torch.OutOfMemoryError("CUDA out of memory\nand a long story")

    def __getattribute__(self, name: str) -> Any:
        if name in STEPS:
            self.asked.append(name)
            if len(self.asked) > self.calls:
                raise self.error
        return super().__getattribute__(name)


def chosen(device: Played, measured: bool = False, other: str = "") -> ChosenStep:
    return ChosenStep(lambda: (device, other), measured)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def stepped(device: ChosenStep | None, size: int = 70_000, name: str = "fedyogi") -> Any:
    """A block of sums that came in three pieces."""
    plan, cohort = plan_of(name), make_cohort()
    layout = GroupLayout("all", (), 3 * size, size)
    sums = sums_of(plan, size, 3)
    stepping = Stepping(plan, layout, cohort, before(plan, size), device=device)
    opened = list[int]()

    def opening() -> Any:
        opened.append(1)
        return cut(sums, [size // 3] * 2)

    made = stepping.step(2, opening)
    slots = {name: values.tobytes() for name, values in made.state.slots.items()}
    return made.values.tobytes(), slots, made.codes, len(opened)


def seconds(monkeypatch: pytest.MonkeyPatch, gpu: float, cpu: float) -> None:
    """What a block takes each of them."""
    fastest, turns = devices._fastest, itertools.cycle((gpu, cpu))

    def played(*given: Any) -> float:
        assert fastest(*given) > 0
        return next(turns)

    monkeypatch.setattr(devices, "_fastest", played)


def test_a_block_is_the_same_and_opened_once() -> None:
    device = Played()
    expected = stepped(None)
    assert stepped(chosen(device)) == expected
    assert device.asked == ["mean", "apply"] * 3
    assert expected[-1] == 1


@pytest.mark.parametrize("calls", range(6))
def test_a_device_that_is_full_leaves_the_block_to_the_processor(
    calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    """From the block's beginning: its sums are opened once more."""
    device = Played(calls)
    choice = chosen(device)
    made = stepped(choice)
    assert made[:-1] == stepped(None)[:-1]
    assert made[-1] == 2
    assert said(caplog) == (
        "the GPU failed (OutOfMemoryError: CUDA out of memory): the processor steps from here on"
    )
    assert stepped(choice)[-1] == 1, "and it is not asked again"
    assert len(device.asked) == calls + 1


def test_what_is_no_number_is_made_by_the_processor_and_the_device_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose NaN may have another sign."""
    device, apply = Played(), DeviceStep.apply
    step = chosen(device)

    def nothing(self: Any, optimizer: Any, mean: Any, values: Any, state: Any) -> Any:
        return apply(self, optimizer, mean + np.nan, values, state)

    monkeypatch.setattr(DeviceStep, "apply", nothing)
    made = stepped(step)
    assert made[-1] == 2
    assert made[:-1] == stepped(None)[:-1]
    monkeypatch.undo()
    assert stepped(step)[-1] == 1
    assert not caplog.records


def test_a_fault_of_the_members_is_none_of_the_device(caplog: pytest.LogCaptureFixture) -> None:
    plan, cohort, size = plan_of("sgd", range=1e38), make_cohort(), 50
    layout = GroupLayout("all", (), 3 * size, size)
    stepping = Stepping(plan, layout, cohort, before(plan, size), device=chosen(Played()))
    sums = np.zeros(size, np.int64)
    with pytest.raises(NotFinite, match="does not fit into float32"):
        stepping.step(0, lambda: iter([sums]))
    assert not caplog.records


@pytest.mark.parametrize(("gpu", "cpu", "who"), [(1e-3, 2e-3, "GPU"), (2e-3, 1e-3, "processor")])
def test_the_sooner_one_is_taken_and_said(
    gpu: float,
    cpu: float,
    who: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds(monkeypatch, gpu, cpu)
    caplog.set_level(logging.INFO, "secureps")
    device = Played()
    step = chosen(device, measured=True)
    assert not device.asked, "nothing is looked for before the first step"
    for _ in range(2):
        assert stepped(step, 1000) == stepped(None, 1000)
    measured, own = 2 * choice.TRIES, 2 * 2 if who == "GPU" else 0
    assert len(device.asked) == measured + own
    assert said(caplog) == (
        f"the {who} steps blocks of all: one took the GPU {1e3 * gpu:.3f} ms, one core of the "
        f"processor {1e3 * cpu:.3f}"
    )


def test_blocks_are_chosen_for_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, step = plan_of("sgd"), chosen(Played(), measured=True)
    seconds(monkeypatch, 1, 2)
    assert step.of(plan, "all", 5000) is not None
    seconds(monkeypatch, 2, 1)
    assert step.of(plan, "all", 50) is None
    assert step.of(plan, "all", 5000) is not None


def test_row_blocks_of_a_table_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, step, measured = sparse_plan("plain", SYNC), chosen(Played(), measured=True), list[str]()

    def fastest(by: Any, plan: Plan, group: str, size: int) -> float:
        measured.append(group)
        return len(measured)

    monkeypatch.setattr(devices, "_fastest", fastest)
    for group in plan.groups:
        assert step.of(plan, group, 50) is not None
    assert measured == 2 * ["table.0"] + 2 * ["tower"]


def test_other_bits_are_an_error_where_there_must_be_a_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"other bits of a step than the processor \(adam\)"):
        chosen(Played(), other="adam")
    device = Played()
    assert stepped(chosen(device, True, "adam"), 50) == stepped(None, 50)
    assert said(caplog) == "the processor steps: the GPU makes other bits (adam)"
    assert not device.asked


def test_a_device_that_cannot_begin_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    assert stepped(chosen(Played(0), True), 50) == stepped(None, 50)
    assert said(caplog) == "the processor steps: the GPU cannot: CUDA out of memory"


def test_one_that_is_not_there_is_an_error_or_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> Any:
        raise ConfigError("there is none: install it")

    with pytest.raises(ConfigError, match="install it"):
        ChosenStep(missing, measured=False)
    caplog.set_level(logging.INFO, "secureps")
    assert stepped(ChosenStep(missing, measured=True), 50) == stepped(None, 50)
    assert said(caplog) == "the processor steps: there is none: install it"


def test_the_word_of_a_servers_file_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    section = ServeSection(name="s0", kit="kit", state="state")
    monkeypatch.setattr(devices, "gpu_step", lambda: pytest.fail("a device was looked for"))
    assert shard_devices(section.sealing) is PROCESSOR
    monkeypatch.setattr(choice, "has_device_file", lambda: True)
    found = shard_devices("auto")
    assert found.opening is not None
    assert found.stepping is not None
    monkeypatch.setattr(devices, "gpu_step", lambda: (Played(), "adam"))
    monkeypatch.setattr(choice, "gpu_backend", lambda: None)
    with pytest.raises(ConfigError, match="other bits of a step"):
        shard_devices("gpu")


PLANS: dict[str, Callable[[], Plan]] = {
    "plain": small_plan,
    "rlwe": lambda: small_plan("rlwe"),
    "a part, pulled in four bits": test_deltas.plan,
    "pulled in four bits": lambda: test_deltas.plan(kind="every value"),
    "a part, pulled in four bits, and momentum": lambda: test_deltas.plan(
        kind="a part, and momentum"
    ),
    "a range that follows the norms": test_moving_range.plan,
}


FULL = "a part, pulled in four bits"
"""The plan of which the device is full after a while, too."""


@pytest.mark.parametrize(
    ("plan", "calls"), [*((name, 1 << 30) for name in PLANS), (FULL, 13), ("rlwe", 13)]
)
def test_a_federation_ends_in_the_same_model(
    plan: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards step on a device, or on one that is full after a while."""
    device = Played(calls)
    alone = played(PLANS[plan](), tmp_path / "alone")
    given = partial(assemble.ShardSettings, devices=ShardDevices(None, chosen(device)))
    monkeypatch.setattr(assemble, "ShardSettings", given)
    assert same(played(PLANS[plan](), tmp_path / "there"), alone)
    assert len(device.asked) > 13
    assert (calls == 13) == (len(device.asked) == 14)


def played(plan: Plan, folder: Path) -> Tensors:
    simulation = small_federation(plan, folder)
    simulation.run(lambda: finished(simulation))
    return simulation.model()
