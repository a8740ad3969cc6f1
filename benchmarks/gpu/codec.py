"""An update made where its model was trained, and its integers; the same on one core beside it.

"update" is the difference to what was published, its norm, clip and digest; "integers" what is
sealed of it, as it comes to the host. Its values are those of a model that is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.timing import Memory, Sizes, fastest, one_core, row, timed
from benchmarks.report import Row
from secureps.client.trainer import HeldTensor
from secureps.client.update import Trained, Update, UpdateIntegers
from secureps.client.worker import make_update
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.block_deltas import block_codes
from secureps.policy.plan import Plan
from secureps.roles.member.tasks import Aim

CODECS: Mapping[str, Mapping[str, Any]] = {
    "16 bits": {},
    "a quarter, rotated, 4 bits": {
        "group": {"bits": 4, "codec": [{"name": "support", "one_in": 4}, "rotate"]}
    },
}
"""Of plans: what is changed of one group, and of the plan."""
AIM = Aim("all", 1, 1)
SEED = UnsafeSeed(1)


def plan_of(codec: Mapping[str, Any]) -> Plan:
    group = {"clip": 1.0, "rule": {"quorum": 3, "minimum": 2}} | dict(codec.get("group", {}))
    data = {"name": "gpu", "versions": 10, "group": [group]}
    data |= {name: each for name, each in codec.items() if name != "group"}
    return Plan(parse(PlanSection, data, "benchmark"))


def made_of(plan: Plan, tensors: Mapping[str, Any]) -> Trained:
    """What an update is made of: trained tensors, and zeros that were published."""
    specs = (TensorSpec(name, tuple(each.shape), "float32") for name, each in tensors.items())
    layout = plan.layout(Schema(tuple(sorted(specs, key=lambda spec: spec.name)))).group("all")
    blocks = [
        np.zeros(last - first, "f4") for first, last in map(layout.span, range(layout.blocks))
    ]
    return Trained("bench", plan, layout, blocks, tensors)


def integers(made: Trained, update: Update) -> bytes:
    """Makes the integers of all blocks; returns their digest."""
    plan, layout = made.plan, made.layout
    codes = block_codes(plan, layout, AIM.version, [bytes(32)] * layout.blocks)
    maker = UpdateIntegers("bench", plan, layout, AIM, SEED.derive)
    return maker.make(codes, update, 1, 1.0)[0]


Seconds = tuple[float, float]
"""By the device's events, and by the clock."""


def taken(device: torch.device, made: Trained, tries: int) -> tuple[Seconds, Seconds, Update]:
    """The fastest making of an update and of its integers, after one that is not counted."""
    best = [(float("inf"), float("inf"))] * 2
    for turn in range(tries + 1):
        found = list[Update]()
        first = timed(device, lambda: found.append(make_update(made)))  # noqa: B023
        update = found[0]
        second = timed(device, lambda: integers(made, update))  # noqa: B023
        if turn:
            best = [min(pair) for pair in zip(best, (first, second), strict=True)]
    return best[0], best[1], update


def codecs(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Rows of every codec and size; one core's where it is no larger than `sizes.core`."""
    for values in sizes.updates:
        drawn = torch.randn(values, generator=torch.Generator().manual_seed(1)) * 0.01
        tensors = {"weight": HeldTensor(drawn.to(device))}
        for name, codec in CODECS.items():
            made, core = made_of(plan_of(codec), tensors), ((0.0, 0.0), (0.0, 0.0))
            if values <= sizes.core:
                own = replace(made, model={"weight": drawn.numpy()})
                with one_core():
                    core = taken(torch.device("cpu"), own, 1)[:2]
            first, second, update = taken(device, made, sizes.tries)
            where = "" if update.device is not None else "; made on the host"
            for step, own_seconds, of_core in (
                ("update", first, core[0]),
                ("integers", second, core[1]),
            ):
                yield row(f"{step}, {name}{where}", values, *own_seconds, of_core[1])


def transfers(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Copies of float32 values to the device and back, from pinned memory."""
    values = sizes.core
    own = torch.ones(values, pin_memory=device.type == "cuda")
    there, other = torch.empty(values, device=device), torch.empty(values)
    with one_core():
        core = fastest(partial(other.copy_, own), sizes.tries)
    for step, to, source in (("copy there", there, own), ("copy back", own, there)):
        copies = partial(to.copy_, source, non_blocking=True)
        _, *tries = (timed(device, copies) for _ in range(1 + sizes.tries))
        yield row(step, values, *min(tries, key=itemgetter(1)), core)


def memory_of(device: torch.device, tensors: Mapping[str, HeldTensor]) -> tuple[int, int]:
    """Bytes of a trained model, and the most that making its update took beyond twice as many.

    The integers are of the codec that works on most values of a block at a time.
    """
    model = sum(each.tensor.numel() * each.tensor.element_size() for each in tensors.values())
    made, memory = made_of(plan_of(CODECS["a quarter, rotated, 4 bits"]), tensors), Memory(device)
    others = memory.again() - model  # a trained model and what is kept beside it, if anything is
    integers(made, make_update(made))
    if device.type != "cuda":
        return model, 0  # nobody counts
    return model, memory.peak - max(others, 0) - 2 * model


def memories(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """What the largest update took on the device."""
    values = sizes.updates[-1]
    tensors = {"weight": HeldTensor(torch.randn(values, device=device) * 0.01)}
    model, beyond = memory_of(device, tensors)
    yield memory_row("values alone", model, 0, beyond)


def memory_row(model: str, size: int, training: int, beyond: int) -> Row:
    """A row, of bytes."""
    return {
        "model": model,
        "model, MB": size / 1e6,
        "training, MB": training / 1e6,
        "update beyond two models, MB": beyond / 1e6,
        "in models": beyond / size,
    }
