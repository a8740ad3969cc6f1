"""Checks of sum groups, and of the values that clients add to them.

A cohort of a group with `outcome = "sum"` is summed and opened like any other. Its total is the
next version of the group's tensors: no optimizer steps, and nothing is divided. A client sends the
tensors that its trainer returns, not their differences from the version before.

Without noise every total is exact: clients send whole numbers of `bits` bits including the sign,
and a plan is refused if its largest total would not be exact in float32. Under client-level privacy
`clip` bounds the L2 norm of a client's tensors; noise and charges are those of any other sum.
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
"""Keys that only make sense for updates of a model."""


def refuse_sum(section: GroupSection, own: Bounds, privacy: Privacy) -> None:
    """Refuses a sum group that could not be exact, or that no epsilon would cover (PlanRefused)."""
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
    """Refuses a tensor whose dtype cannot hold every total, such as uint8 (PlanRefused).

    With noise a total may be negative, so unsigned types are refused too.
    """
    for spec in layout.tensors:
        dtype = np.dtype(spec.dtype)
        if dtype.itemsize < 4 or dtype.kind not in ("fiu" if exact else "fi"):
            raise PlanRefused(
                f"group {layout.name}: tensor {spec.name!r} is {dtype}, which cannot hold every "
                'total: outcome = "sum" takes int32, int64, float32 or float64'
            )


def whole_grid(section: GroupSection) -> Grid:
    return Grid(section.bits, float(levels(section.bits) // 2))


def check_addends(section: GroupSection, layout: GroupLayout, values: NDArray[np.float32]) -> None:
    """Checks that a client's addends are whole and within the plan's bits (Malformed)."""
    most = whole_grid(section).most
    wrong = (values != np.rint(values)) | (np.abs(values) > most)
    if wrong.any():
        at = int(wrong.argmax())
        name = next(name for name, part in layout.parts() if at < part.stop)
        raise Malformed(
            f"tensor {name!r} has the value {values[at]:g}, and the plan sums whole numbers from "
            f"{-most:,} to {most:,} (group {section.name}: bits = {section.bits})"
        )
