"""What NVIDIA FLARE is given beside its own parts: an executor, a model, and marks of rounds.

One round more is played than is counted, in which the first client judges the mean that it got.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from benchmarks.peers.apps import vectors

NAME = "values"


class Same(Executor):  # type: ignore[misc]
    """A client that answers every round with the same numbers."""

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        number = int(fl_ctx.get_identity_name().rpartition("-")[2]) - 1
        at = shareable.get_header(AppConstants.CURRENT_ROUND)
        if number == 0 and at == vectors.rounds():
            vectors.conclude(np.asarray(from_shareable(shareable).data[NAME]))
        data = {NAME: vectors.update(number)}
        made = DXO(DataKind.WEIGHTS, data, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
        return made.to_shareable()


class Zeros(ModelPersistor):  # type: ignore[misc]
    """A first model of zeros; no model is kept on disk."""

    def load_model(self, fl_ctx: Any) -> Any:
        return make_model_learnable({NAME: np.zeros(vectors.values(), np.float32)}, {})

    def save_model(self, model: Any, fl_ctx: Any) -> None:
        """Does nothing."""


class Marker(FLComponent):  # type: ignore[misc]
    """Marks the rounds that count."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        at = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        if event_type == AppEventType.ROUND_DONE and at < vectors.rounds():
            vectors.mark()
