"""`FlowerTrainer`: an unmodified Flower client app as a data holder's `Trainer`.

The app is driven in this process, with messages as Flower's server would send them; nothing
of Flower listens or dials. What must not live here: finding an app (`client.flower_app`), and
rounds, clipping and encryption, which are the same for every trainer.

An app draws from the global generators of random, NumPy and torch, so these are seeded for
every call from `FitConfig.seed`, and put back: a client that was killed repeats its bits. An
app that draws from the operating system instead still trains, but repeats nothing.
"""

from __future__ import annotations

import hashlib
import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common import Code

from secureps.client.flower_app import FlowerApp
from secureps.client.flower_records import FlowerModel, States
from secureps.client.flower_server import RUN, first_message, message
from secureps.client.flower_settings import NODE, Settings
from secureps.client.generators import seeded
from secureps.client.trainer import SEED_BITS, Array, EvaluateResult, FitConfig, FitResult, Setting
from secureps.errors import ConfigError, NotFinite, PlanRefused, SecurepsError, WrongShape

LOCAL_WORK = ("local_steps", "local_epochs")
"""Settings of `[training]` that say how much work a version is."""

NO_RECORD_PRIVACY = (
    "the plan's record privacy is a promise about every training step, and a Flower app takes "
    "steps of its own: use a plan without [privacy], or give model and records to a "
    "TorchTrainer, whose steps are DP-SGD, as clients/digits_torch.py does"
)


class FlowerTrainer:
    """A `Trainer` that drives an app.

    Args:
        app: what was found.
        settings: see `flower_settings.Settings`.
        state: where `context.state` survives; None for memory.

    Raises:
        ConfigError: a setting of the wrong type.
    """

    def __init__(self, app: FlowerApp, settings: Mapping[str, Setting], state: Path | None) -> None:
        self._app = app
        self._settings = Settings.of(app.config, settings)
        self._states = States(state)
        self._start: tuple[int, Start] | None = None

    # --- Trainer ------------------------------------------------------------------

    def parameters(self, seed: int) -> dict[str, Array]:
        """From `initial`, else the client's get_parameters, else what its ServerApp would send.

        Raises:
            ConfigError: none of the three has a model; says how to give one.
        """
        if not 0 <= seed < 1 << SEED_BITS:
            raise ConfigError(f"a training seed has {SEED_BITS} bits, unsigned")
        if self._start is None or self._start[0] != seed:
            self._start = seed, self._started(seed)
        tensors = self._start[1].model.tensors
        return {name: array.copy() for name, array in tensors.items()}

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """One train message; its config is the plan's `[training]` and server-round.

        With less than all of the work, `local_steps` or `local_epochs` of `[training]` are fewer,
        and `work` is the part.

        Where the ServerApp was asked for the model, what it tells clients in its first round
        comes before that. The metrics that are plain finite numbers are in the result and go
        no further. Nobody counts an app's steps: they are 0.

        Raises:
            PlanRefused: under record privacy.
            ConfigError: the app failed, or answers what cannot be used.
            WrongShape, NotFinite: see `FlowerModel`.
        """
        if config.privacy is not None:
            raise PlanRefused(NO_RECORD_PRIVACY)
        start, versions = self._known(), config.versions.values()
        told = {**_lighter(config), "server-round": max(versions, default=0) + 1}
        content = start.content("fitins" if self._app.legacy else "", parameters, told)
        at = sum(versions)  # grows with every group's version
        context = self._context(self._states.before(at))
        reply = self._ask(start.train, content, context, _bound(config.seed, parameters))
        result = self._fitted(reply, start.model)
        self._states.keep(at, context.state)
        return result

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """One evaluate message. What it does to `context.state` is forgotten.

        Raises:
            ConfigError: the app has no evaluate function, or answers what cannot be used.
        """
        result = self._evaluate(parameters)
        if result is None:
            raise ConfigError(f"{self._app.where}: the app has no evaluate function")
        return result

    def evaluates(self) -> bool:
        """Whether the app can; asks it to, with its initial model."""
        return self._evaluate(self.parameters(0)) is not None

    # --- the initial model --------------------------------------------------------

    def _known(self) -> Start:
        if self._start is None:
            self.parameters(0)
        assert self._start is not None
        return self._start[1]

    def _started(self, seed: int) -> Start:
        if self._settings.initial is not None:
            return Start(FlowerModel.of_file(self._settings.model()))
        if self._app.legacy:
            content = RecordDict({"getparametersins.config": ConfigRecord()})
            reply = self._ask("get_parameters", content, self._context(RecordDict()), seed)
            status = self._status(reply, "getparametersres")
            if status is Code.OK:
                record = reply.array_records["getparametersres.parameters"]
                return Start(FlowerModel.of_record(record))
            if status is not Code.GET_PARAMETERS_NOT_IMPLEMENTED:
                raise ConfigError(f"{self._app.where}: get_parameters was not OK: {status.name}")
        return self._served(seed)

    def _served(self, seed: int) -> Start:
        try:
            with seeded(seed):
                server = self._app.server()
            with seeded(seed):  # again: torch, if it was imported only now
                first = None if server is None else first_message(server, self._settings.run)
        except Exception as error:
            raise ConfigError(self._no_model(f"its ServerApp failed: {_told(error)}")) from error
        if first is None:
            raise ConfigError(self._no_model("no ServerApp is there that has one"))
        records = list(first.content.array_records.values())
        if len(records) != 1:
            raise ConfigError(self._no_model(f"its ServerApp sends {len(records)} ArrayRecords"))
        model, action = FlowerModel.of_record(records[0]), first.metadata.message_type
        if self._app.legacy:
            return Start(model)
        if not self._app.has(action):
            raise ConfigError(
                f"{self._app.where}: its ServerApp asks for {action}, which its ClientApp lacks"
            )
        return Start(model, action, first.content)

    def _no_model(self, why: str) -> str:
        return (
            f"{self._app.where}: no initial model: the client has no get_parameters, and {why}; "
            "give every holder the same safetensors file by --set initial=FILE, and the plan "
            "too: initial"
        )

    # --- messages -----------------------------------------------------------------

    def _context(self, state: RecordDict) -> Context:
        node, run = dict(self._settings.node), dict(self._settings.run)
        return Context(RUN, 1 + int(node.get(NODE["partition"], 0)), node, state, run)

    def _ask(self, kind: str, content: RecordDict, context: Context, seed: int) -> RecordDict:
        """The content of the app's answer."""
        where = f"{self._app.where}: {kind} failed"
        try:
            with seeded(seed):
                reply = self._app.client(message(content, kind, context.node_id), context)
        except SecurepsError:
            raise
        except Exception as error:
            raise ConfigError(f"{where}: {_told(error)}") from error
        if reply.has_error():
            raise ConfigError(f"{where}: {' '.join(str(reply.error.reason).split())}")
        return reply.content

    def _status(self, reply: RecordDict, name: str) -> Code:
        try:
            return Code(reply.config_records[f"{name}.status"]["code"])
        except (KeyError, ValueError):
            raise ConfigError(f"{self._app.where}: an answer without a status") from None

    def _fitted(self, reply: RecordDict, model: FlowerModel) -> FitResult:
        where = f"{self._app.where}: fit"
        if self._app.legacy:
            status = self._status(reply, "fitres")
            if status is not Code.OK:
                text = str(reply.config_records["fitres.status"].get("message"))
                raise ConfigError(f"{where} was not OK: {status.name}: {text}")
            arrays = reply.array_records["fitres.parameters"]
            numbers: dict[str, Any] = dict(reply.config_records["fitres.metrics"])
            count: Any = reply.metric_records["fitres.num_examples"]["num_examples"]
        else:
            if len(reply.array_records) != 1:
                n = len(reply.array_records)
                raise WrongShape(f"{where} returned {n} ArrayRecords; one of them is the model")
            (arrays,) = reply.array_records.values()
            numbers = _numbers(reply)
            count = numbers.pop("num-examples", None)
        tensors = model.read(arrays)
        return FitResult(tensors, _examples(count, where), _finite(numbers), steps=0)

    def _evaluate(self, parameters: dict[str, Array]) -> EvaluateResult | None:
        """None if the app has no function for it."""
        legacy, start = self._app.legacy, self._known()
        content = start.content("evaluateins" if legacy else "", parameters, {})
        if not legacy and not self._app.has("evaluate"):
            return None
        reply = self._ask("evaluate", content, self._context(self._states.newest()), 0)
        where = f"{self._app.where}: evaluate"
        if legacy:
            status = self._status(reply, "evaluateres")
            if status is Code.EVALUATE_NOT_IMPLEMENTED:
                return None
            if status is not Code.OK:
                raise ConfigError(f"{where} was not OK: {status.name}")
            count: Any = reply.metric_records["evaluateres.num_examples"]["num_examples"]
            loss: Any = reply.metric_records["evaluateres.loss"]["loss"]
            numbers: dict[str, Any] = dict(reply.config_records["evaluateres.metrics"])
        else:
            numbers = _numbers(reply)
            count = numbers.pop("num-examples", None)
            names = [name for name in numbers if "loss" in name.lower()]
            if "loss" not in numbers and len(names) != 1:
                raise ConfigError(f"{where} returned {len(names)} losses; call one of them 'loss'")
            loss = numbers.pop("loss" if "loss" in numbers else names[0])
        if not isinstance(loss, int | float) or not math.isfinite(loss):
            raise NotFinite(f"{where}: the loss is {loss}")
        return EvaluateResult(float(loss), _examples(count, where), _finite(numbers))


@dataclass(frozen=True, eq=False)
class Start:
    """The initial model, and what a ServerApp said with it (None: it was not asked)."""

    model: FlowerModel
    train: str = "train"
    said: RecordDict | None = None

    def content(
        self, legacy: str, tensors: Mapping[str, Array], config: Mapping[str, Setting]
    ) -> RecordDict:
        """A message's; `legacy` is what the records' names begin with in the older API.

        Raises:
            WrongShape: the tensors are not this model's.
        """
        arrays = self.model.record(tensors)
        if legacy:
            settings = ConfigRecord(dict(config))
            return RecordDict({f"{legacy}.parameters": arrays, f"{legacy}.config": settings})
        said = RecordDict() if self.said is None else self.said
        array_name = next(iter(said.array_records), "arrays")
        config_name = next(iter(said.config_records), "config")
        before = dict(said.config_records.get(config_name, {}))
        settings = ConfigRecord({**before, **config})
        return RecordDict({**said, array_name: arrays, config_name: settings})


def _lighter(config: FitConfig) -> dict[str, Setting]:
    """The plan's settings, for the part of the work that is to be done."""
    told = dict(config.settings)
    if config.work == 1:
        return told
    for name in LOCAL_WORK:
        count = told.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            told[name] = config.part(count)
    return {**told, "work": config.work}


def _bound(seed: int, parameters: Mapping[str, Array]) -> int:
    """63 bits of BLAKE2b over a seed and the model that is trained.

    An app's own noise (LocalDpMod) comes of it too: who has a version trained again from
    another model must not be able to subtract one answer from the other, and with it the noise.
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=8, person=b"secureps-flower")
    for name, array in sorted(parameters.items()):
        header = repr((name, str(array.dtype), array.shape)).encode()
        digest.update(len(header).to_bytes(8, "big") + header + array.tobytes())
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)


def _told(error: Exception) -> str:
    """What went wrong in the app, and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    at = (own or frames)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    hint = ""
    if isinstance(error, KeyError) and error.args[:1] and error.args[0] in NODE.values():
        hint = "; it is set by --set partition=0 --set partitions=6"
    return f"{text} ({Path(at.filename).name}, line {at.lineno}){hint}"


def _numbers(reply: RecordDict) -> dict[str, Any]:
    """The metrics of a reply, whatever their records are called."""
    records: Iterable[Any] = reply.metric_records.values()
    return {name: value for record in records for name, value in record.items()}


def _examples(count: Any, where: str) -> int:
    if not isinstance(count, int | float) or count != int(count) or count < 1:
        raise ConfigError(f"{where}: num-examples must be a whole number above 0, got {count}")
    return int(count)


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are plain finite numbers."""
    numbers = {n: v for n, v in metrics.items() if isinstance(v, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
