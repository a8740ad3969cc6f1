"""`AppTrainer` has a ClientApp train inside a wave, on the train message that the app knows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from secureps.client.flower.trainer import (
    bound_seed,
    lighter,
    made,
    seeded,
    statistics_in,
)
from secureps.client.initial_model import schema_of
from secureps.client.returned import whole_number
from secureps.client.trainer import Array, EvaluateResult, FitConfig, FitResult
from secureps.errors import (
    InternalError,
    Malformed,
    ScriptFailed,
    SecurepsError,
    TermsRefused,
    WrongShape,
)
from secureps.flower.post import OURS, ModelForm
from secureps.messages.schema import TRAIN_METRICS, Schema
from secureps.policy.tensor_kinds import Kind

log = logging.getLogger("secureps")

OLD_RECORD = ("fitins.parameters",)
OLD_KIND = (
    "the ClientApp is of Flower's old kind (client_fn), which hears other messages: write it with "
    "@app.train()"
)

Ask = Callable[[Message], Message]


class AppTrainer:
    """A `Trainer` that asks a ClientApp.

    Args:
        message: of the wave; the app gets its records, without ours.
        ask: calls the app, and any mods after ours.
        tells: whether the node's site lets metrics of its training go.
    """

    def __init__(self, form: ModelForm, message: Message, ask: Ask, tells: bool = True) -> None:
        self._form, self._message, self._ask, self._tells = form, message, ask, tells

    @property
    def schema(self) -> Schema:
        return schema_of(self._form.tensors)

    def parameters(self, seed: int) -> dict[str, Array]:
        """Zeros in the form of the model: a run inside Flower is founded by its ServerApp."""
        return {name: array.copy() for name, array in self._form.tensors.items()}

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """Sends the app one train message; the plan's settings override its ServerApp's.

        Raises TermsRefused if metrics are asked for and the site lets none out, ScriptFailed if the
        app failed, or its answer cannot be used: its words, which may quote that, stay at the node.
        """
        if self._form.metrics and not self._tells:
            raise TermsRefused(
                "its site lets no metrics out (evaluation = false), and the federation asks for "
                "train_metrics: leave them out of the strategy, or this node out of the federation"
            )
        try:
            return self._train(parameters, config)
        except KeyError as error:
            if error.args != OLD_RECORD:
                raise
            raise ScriptFailed(OLD_KIND) from None
        except SecurepsError as error:
            raise ScriptFailed(f"the app's train: {error}") from error

    def _train(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        form, number = self._form, max(config.versions.values(), default=0) + 1
        parameters = {name: each for name, each in parameters.items() if name != TRAIN_METRICS}
        given = self._message.content
        records = RecordDict({name: each for name, each in given.items() if name not in OURS})
        before = dict(records.config_records.get(form.config, {}))
        settings = {**before, **lighter(config), "server-round": number}
        records[form.config] = ConfigRecord(settings)
        records[form.arrays] = form.model.record(parameters)
        asked = made(records, self._message.metadata)
        with seeded(bound_seed(config.seed, parameters)):
            reply = self._ask(asked)
        if reply.has_error():
            raise WrongShape(f"the app answered with an error: {reply.error.reason}")
        result = self._read_fit(reply.content, parameters)
        if form.metrics:
            result.parameters[TRAIN_METRICS] = self._scale_metrics(result.metrics)
        return result

    def _scale_metrics(self, metrics: Mapping[str, float]) -> Array:
        """The metrics that are asked for, each as a part of its magnitude.

        A node without one of them takes no part: else the sum may be the metric of a single node.
        """
        told = np.zeros(len(self._form.metrics), np.float32)
        for k, (name, most) in enumerate(self._form.metrics.items()):
            value = metrics.get(name, math.nan)
            if not math.isfinite(value):
                raise Malformed(f"train_metrics: {name} is {value}, and must be a finite number")
            if abs(value) > most:
                log.warning("train_metrics: %s is %s, and was to be at most %s", name, value, most)
            told[k] = min(max(value / most, -1.0), 1.0)
        return told

    def _read_fit(self, content: RecordDict, given: Mapping[str, Array]) -> FitResult:
        models: Sequence[ArrayRecord] = list(content.array_records.values())
        if len(models) != 1:
            raise WrongShape(f"the app's train returned {len(models)} ArrayRecords, and not one")
        metrics = {
            name: value
            for record in content.metric_records.values()
            for name, value in record.items()
        }
        count = metrics.pop(self._form.weighted_by, None)
        tensors = self._form.model.read(models[0], given)
        examples = whole_number(f"the app's train: {self._form.weighted_by}", count)
        numbers = {n: float(v) for n, v in metrics.items() if isinstance(v, int | float)}
        return FitResult(tensors, examples, numbers, steps=0)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        raise InternalError("inside Flower's engine its own messages evaluate")

    def kinds(self) -> dict[str, Kind]:
        return statistics_in(self._form.model)
