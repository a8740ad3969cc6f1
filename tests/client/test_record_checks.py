"""What DP-SGD refuses of a model, before a record could get past its clip or past the noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secureps.client.record_checks import refuse_model
from secureps.errors import PlanRefused
from tests.client.test_torch import PRIVACY, trainer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trained_weights_in_which_noise_is_lost_are_refused(dtype: torch.dtype) -> None:
    """Of 600 records the sum is rounded to whole numbers: noise of 1 hardly shows."""
    model = nn.Sequential(nn.Linear(6, 4).to(dtype), nn.Linear(4, 3))
    with pytest.raises(PlanRefused, match=r"'0.weight' is b?float16, in which noise is lost"):
        refuse_model(model)
    with pytest.raises(PlanRefused, match="float32"):
        trainer(lambda: nn.Linear(6, 3).to(dtype)).refuse_settings({}, PRIVACY)
    model[0].requires_grad_(False)
    refuse_model(model)


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_a_table_that_changes_or_mixes_by_what_is_looked_up_is_refused(setting: Any) -> None:
    model = nn.Sequential(nn.Embedding(9, 3, **setting), nn.Linear(3, 3))
    with pytest.raises(PlanRefused, match=rf"layer '0' \(Embedding\) .* {next(iter(setting))}"):
        refuse_model(model)
