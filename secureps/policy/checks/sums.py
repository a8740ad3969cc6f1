"""Sum groups: what their plan may say, and what becomes of what clients send.

A cohort of a group with `outcome = "sum"` is summed and opened as any other. Its total is the next
version of the group's tensors: no optimizer steps, and nothing is divided. A client sends the
tensors that its trainer returns, not how they differ from the version before.

Without noise every total is exact. A client's value is a whole number of `bits` bits with its sign,
which is a grid of step 1, and a plan whose largest total would not be a whole float32 is refused.
Under client-level privacy `clip` bounds the L2 norm of all that a client sends, and a total has the
noise of any other sum; the same ledger charges it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.codec.grid import Grid, levels
from secureps.config.plan import GroupSection, RecordPrivacySection, SyncSection
from secureps.errors import Malformed, PlanRefused
from secureps.model.layout import GroupLayout
from secureps.policy.checks.privacy import Privacy
from secureps.policy.rules.rule import Bounds

WHOLE = 1 << 24
"""Every whole number of at most this magnitude is a float32."""

_OF_MODELS = ("adaptive", "codec", "feedback", "pull_bits", "range", "sparse", "optimizer")
"""Keys that say how updates of a model travel and step it."""


def refuse_sum(section: GroupSection, own: Bounds, privacy: Privacy) -> None:
    """PlanRefused for a sum group that could not be exact, or that no epsilon would cover."""
    if section.outcome != "sum":
        return
    for key in _OF_MODELS:
        if getattr(section, key) != GroupSection.model_fields[key].default:
            raise PlanRefused(
                f'{key}: it is for updates of a model, and outcome = "sum" adds whole numbers: '
                "remove it"
            )
    if isinstance(privacy, RecordPrivacySection):
        raise PlanRefused(
            'outcome = "sum": under record-level privacy nothing is told of a client\'s records '
            'but by noisy steps: take unit = "client", or a plan of its own for the sum'
        )
    if section.weighting != "uniform":
        raise PlanRefused('weighting: in a sum all count alike: take "uniform"')
    if not isinstance(section.rule, SyncSection):
        raise PlanRefused(
            f'rule: in a sum each client counts once, and under "{section.rule.name}" it may count '
            'more or less: take "sync"'
        )
    most = whole_grid(section).most
    if privacy is None and own.most * most > WHOLE:
        raise PlanRefused(
            f"bits: {own.most} clients that add up to {most:,} each reach a total of "
            f"{own.most * most:,}, and totals are exact up to {WHOLE:,}: lower bits, rule.most or "
            "cipher.capacity"
        )


def refuse_narrow(layout: GroupLayout, exact: bool) -> None:
    """PlanRefused for a tensor whose dtype would change its totals, as 255 is the most of uint8.

    Noise may make a total negative.
    """
    for spec in layout.tensors:
        dtype = np.dtype(spec.dtype)
        if dtype.itemsize < 4 or dtype.kind not in ("fiu" if exact else "fi"):
            raise PlanRefused(
                f"group {layout.name}: tensor {spec.name!r} is {dtype}, which cannot hold every "
                'total: outcome = "sum" takes int32, int64, float32 or float64'
            )


def whole_grid(section: GroupSection) -> Grid:
    """The grid of an exact sum: its step is 1."""
    return Grid(section.bits, float(levels(section.bits) // 2))


def check_addends(section: GroupSection, layout: GroupLayout, values: NDArray[np.float32]) -> None:
    """Checks what a client adds to an exact sum.

    Args:
        values: float32 (layout.size,), finite.
    Raises:
        Malformed: one is not a whole number, or is beyond the plan's bits.
    """
    most = whole_grid(section).most
    wrong = (values != np.rint(values)) | (np.abs(values) > most)
    if wrong.any():
        at = int(wrong.argmax())
        name = next(name for name, part in layout.parts() if at < part.stop)
        raise Malformed(
            f"tensor {name!r} has the value {values[at]:g}, and the plan sums whole numbers from "
            f"{-most:,} to {most:,} (group {section.name}: bits = {section.bits})"
        )
