"""A node's metric of its training counts by no more than the magnitude that was agreed on."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.flower.trainer import AppTrainer, ModelForm

NOBODY: Any = None


@pytest.mark.parametrize(("value", "told"), [(9.0, 1.0), (-9.0, -1.0), (-1.0, -0.5)])
def test_a_metric_beyond_its_magnitude_is_cut_to_it(value: float, told: float) -> None:
    trainer = AppTrainer(ModelForm(NOBODY, metrics={"loss": 2.0}), NOBODY, NOBODY)
    assert trainer._told({"loss": value}).tolist() == [told]
