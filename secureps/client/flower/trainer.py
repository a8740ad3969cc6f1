"""`FlowerTrainer` runs an unmodified Flower client app as a `Trainer`.

The app runs in this process, on messages like those of Flower's server; Flower opens no connection.
`FlowerModel` converts a model to and from Flower's `ArrayRecord`; `States` keeps `context.state` on
disk.

For every call the global generators of random, NumPy and torch are seeded from `FitConfig.seed`,
and restored afterwards, so that a killed client repeats its bits. An app that draws from the
operating system does not repeat them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    DEFAULT_TTL,
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.common import Code

from secureps.client.flower.app import NODE, FlowerApp, Settings
from secureps.client.initial_model import ServerAppRecords, read_served
from secureps.client.trainer import (
    LOOK,
    SEED_BITS,
    EvaluateResult,
    FitConfig,
    FitResult,
    Setting,
    find_mismatch,
    number,
    to_whole_number,
)
from secureps.client.trainer import Array as NumpyArray
from secureps.errors import (
    ConfigError,
    DamagedStore,
    NotFinite,
    PlanRefused,
    ScriptFailed,
    SecurepsError,
    WrongShape,
)
from secureps.files.objects import initial_path
from secureps.messages.encoding import file_digest, payload_digest
from secureps.policy.tensor_kinds import Kind
from secureps.store.checkpoint import read_state, write_state
from secureps.tracebacks import describe_error, find_place

log = logging.getLogger("secureps")

RUN = 1
"""The run id that an app sees, which means nothing here."""

FITTED = "secureps.fitted"
"""The record of `context.state` with the metrics of the last training; apps never see it."""

ROUND, EXAMPLES = "secureps.round", "secureps.examples"
"""Further keys of that record: the version trained for, and the number of examples."""

LOCAL_WORK = ("local_steps", "local_epochs")
"""Settings of `[training]` that give the amount of work for a version."""

STATISTICS = ("running_mean", "running_var")
"""Names of a BatchNorm's running statistics."""

NO_RECORD_PRIVACY = (
    "the plan's record privacy is a promise about every training step, and a Flower app takes "
    "steps of its own: use a plan without [privacy], or give model and records to a "
    "TorchTrainer, whose steps are DP-SGD, as clients/digits_torch.py does"
)


class FlowerTrainer:
    """A `Trainer` that runs a Flower app; ConfigError for a setting of the wrong type.

    Its `state` folder keeps `context.state` (None: in memory). Its node id follows from `name`.
    """

    def __init__(
        self, app: FlowerApp, settings: Mapping[str, Setting], state: Path | None, name: str = ""
    ) -> None:
        self._app = app
        self._settings = Settings.of(app.config, settings)
        self._states = States(state)
        self._name = name
        self._served, self._digest, self._ties = ServerAppRecords(), "", dict[str, str]()
        self._initial: tuple[int, FlowerModel] | None = None
        """The seed of the initial model, and the model."""
        self._told = set[str]()

    # --- Trainer ------------------------------------------------------------------

    def parameters(self, seed: int) -> Tensors:
        """Version 0, of the file `initial` or the client's get_parameters; else ConfigError."""
        if self._initial is None or self._initial[0] != seed:
            self._initial = seed, self._make_initial(seed)
        return {name: array.copy() for name, array in self._initial[1].tensors.items()}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        """Sends the app one train message; its config is the plan's `[training]` and server-round.

        They override the ServerApp's settings for that round. Under partial work `local_steps` and
        `local_epochs` are reduced, and `work` is the part. The app's metrics leave this client only
        as the next report "train". Its steps are not counted (0). PlanRefused under record privacy.
        """
        if config.privacy is not None:
            raise PlanRefused(NO_RECORD_PRIVACY)
        versions = config.versions.values()
        number = max(versions, default=0) + 1
        content = self._content("fitins", parameters, reduce_work(config), number)
        at = sum(versions)  # grows with every group's version
        state = self._states.load_before(at)
        state.pop(FITTED, None)
        context = self._context(state)
        kind, seed = self._app.action("train") or "train", bind_seed(config.seed, parameters)
        reply = self._ask(kind, content, context, seed)
        result = self._read_fit(reply, parameters)
        if result.metrics:
            context.state[FITTED] = MetricRecord(
                {**result.metrics, ROUND: number, EXAMPLES: result.examples}
            )
        self._states.keep(at, context.state)
        return result

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        """Sends one evaluate message without a version; changes to `context.state` are dropped."""
        return self.evaluate_at(parameters, None)

    def evaluate_at(
        self, parameters: Tensors, versions: Mapping[str, int] | None
    ) -> EvaluateResult:
        """Evaluates a published version; changes to `context.state` are kept for the next fit."""
        result = self._evaluate(parameters, versions)
        if result is None:
            raise ConfigError(f"{self._app.where}: the app has no evaluate function")
        return result

    def report_at(
        self, parameters: Tensors, versions: Mapping[str, int], message: str
    ) -> EvaluateResult | None:
        """Makes the app's report on a version; ConfigError if it has no function for `message`.

        "train" reports the metrics of its training for this version, and is None if it did not take
        part. Any other message is sent to the app, with the model and no settings. Only numbers of
        its answer count, and changes to `context.state` are dropped.
        """
        number = max(versions.values(), default=0)
        state = self._states.load_before(sum(versions.values()), True)
        fitted = state.pop(FITTED, MetricRecord())
        if message == "train":
            told = {n: float(v) for n, v in fitted.items() if isinstance(v, int | float)}
            if told.pop(ROUND, None) != number:
                return None
            return EvaluateResult(None, int(told.pop(EXAMPLES)), told)
        if self._app.legacy or not self._app.has(message):
            raise ConfigError(f"{self._app.where}: the app has no function for {message}")
        content = self._content("evaluateins", parameters, {}, number)
        reply = self._ask(message, content, self._context(state), 0)
        said, count, key = self._read_metrics(reply, "")
        if count is None and message.startswith("query"):
            count = 1  # Flower's own analytics apps give no number; their nodes count alike
        examples = to_whole_number(f"{self._app.where}: {message}: {key}", count)
        return EvaluateResult(None, examples, self._numbers(message, said))

    def kinds(self) -> dict[str, Kind]:
        return statistics_in(self.model)

    def tied(self) -> Mapping[str, str]:
        _ = self.model  # loading it finds its ties
        return self._ties

    def initial_digest(self) -> str:
        _ = self.model
        return self._digest

    @property
    def model(self) -> FlowerModel:
        """The initial model, in the app's order."""
        if self._initial is None:
            self.parameters(0)
        assert self._initial is not None
        return self._initial[1]

    def evaluates(self) -> bool:
        """Tells whether the app can evaluate, by having it evaluate its initial model."""
        return self._evaluate(self.parameters(0), None) is not None

    # --- the initial model --------------------------------------------------------

    def _make_initial(self, seed: int) -> FlowerModel:
        if self._settings.initial is not None:
            try:
                path = initial_path(self._settings.initial)
            except DamagedStore as error:
                raise ConfigError(f"initial: {error}") from None
            tensors, ties, served = read_served(path)
            names = () if served is None else served.names
            model = FlowerModel.of_file(tensors, names)
            if self._app.legacy and not names and not model.nameless and len(tensors) > 1:
                raise ConfigError(
                    f"initial: {path}: this app's arrays have an order and no names: call its "
                    f"{len(tensors)} tensors arr_0, arr_1, ... in that order, in place of "
                    f"{next(iter(tensors))} and so on"
                )
            self._served, self._ties = served or ServerAppRecords(), dict(ties)
            self._digest = file_digest(path.read_bytes()).hex()
        else:
            model = self._own_model(seed)
        model.refuse_unsummable(self._app.where)
        return model

    def _own_model(self, seed: int) -> FlowerModel:
        if not self._app.legacy:
            raise ConfigError(self._no_model("a ClientApp of messages has none"))
        content = RecordDict({"getparametersins.config": ConfigRecord()})
        reply = self._ask("get_parameters", content, self._context(RecordDict()), seed)
        status = self._status(reply, "getparametersres")
        if status is Code.GET_PARAMETERS_NOT_IMPLEMENTED:
            raise ConfigError(self._no_model("the client has no get_parameters"))
        if status is not Code.OK:
            raise ScriptFailed(f"{self._app.where}: get_parameters was not OK: {status.name}")
        return FlowerModel.of_record(reply.array_records["getparametersres.parameters"])

    def _no_model(self, why: str) -> str:
        return (
            f"{self._app.where}: no initial model: {why}; the plan's author makes one, by "
            "`secureps flower PLAN` of the app's ServerApp, or as a safetensors file, and gives it "
            "to every holder, as the setting initial, and in the plan: initial"
        )

    # --- messages -----------------------------------------------------------------

    def _context(self, state: RecordDict) -> Context:
        node, run = dict(self._settings.node), {**self._settings.run, **self._served.run}
        return Context(RUN, self._node_id(), node, state, run)

    def _node_id(self) -> int:
        """Makes an id that differs between clients, from the name or else the partition."""
        if not self._name:
            return 1 + int(self._settings.node.get(NODE["partition"], 0))
        name = hashlib.blake2b(self._name.encode(), digest_size=8, person=b"secureps-node").digest()
        return int.from_bytes(name, "big") >> 1 or 1

    def _content(
        self, legacy: str, parameters: Tensors, config: Mapping[str, Setting], at: int
    ) -> RecordDict:
        """Makes a message's content; `legacy` prefixes records' names in the older API.

        `config` overrides the ServerApp's settings for round `at`.
        """
        arrays, served = self.model.record(parameters), self._served
        said = from_plain({}, served.records_at(legacy == "evaluateins", at))
        before = dict(said.config_records.get(served.config, {}))
        settings = ConfigRecord({**before, **config, "server-round": at})
        if self._app.legacy:
            return RecordDict({f"{legacy}.parameters": arrays, f"{legacy}.config": settings})
        return RecordDict({**said, served.arrays: arrays, served.config: settings})

    def _ask(self, kind: str, content: RecordDict, context: Context, seed: int) -> RecordDict:
        failed = f"{self._app.where}: {kind} failed"
        try:
            with seeded(seed):
                reply = self._app.client(message(content, kind, context.node_id), context)
        except SecurepsError:
            raise
        except Exception as error:
            text = f"{failed}: {describe_error(error)} ({find_place(error)})"
            if isinstance(error, KeyError) and error.args and error.args[0] in NODE.values():
                hint = "the settings partition and partitions say it, such as 0 and 6"
                raise ConfigError(f"{text}; {hint}") from error
            raise ScriptFailed(text) from error
        if reply.has_error():
            raise ScriptFailed(f"{failed}: {' '.join(str(reply.error.reason).split())}")
        return reply.content

    # --- answers ------------------------------------------------------------------

    def _status(self, reply: RecordDict, name: str) -> Code:
        try:
            return Code(reply.config_records[f"{name}.status"]["code"])
        except (KeyError, ValueError):
            raise ScriptFailed(f"{self._app.where}: its answer has no status") from None

    def _read_metrics(self, reply: RecordDict, legacy: str) -> tuple[dict[str, Any], Any, str]:
        """Reads an answer's metrics, its number of examples, and the name of that number."""
        if self._app.legacy:
            number = reply.metric_records[f"{legacy}.num_examples"]["num_examples"]
            return dict(reply.config_records[f"{legacy}.metrics"]), number, "num-examples"
        records: list[Any] = [*reply.config_records.values(), *reply.metric_records.values()]
        said = {name: value for record in records for name, value in record.items()}
        key = self._served.weighted_by
        return said, said.pop(key, None), key

    def _read_fit(self, reply: RecordDict, given: Tensors) -> FitResult:
        where = f"{self._app.where}: fit"
        if self._app.legacy:
            status = self._status(reply, "fitres")
            if status is not Code.OK:
                text = str(reply.config_records["fitres.status"].get("message"))
                raise ScriptFailed(f"{where} was not OK: {status.name}: {text}")
        if (n := len(reply.array_records)) != 1:
            raise WrongShape(f"{where} returned {n} ArrayRecords; one of them is the model")
        (arrays,) = reply.array_records.values()
        said, count, key = self._read_metrics(reply, "fitres")
        tensors = self.model.read(arrays, given)
        examples = to_whole_number(f"{where}: {key}", count)
        return FitResult(tensors, examples, self._numbers("fit", said), steps=0)

    def _evaluate(
        self, parameters: Tensors, versions: Mapping[str, int] | None
    ) -> EvaluateResult | None:
        kind = self._app.action("evaluate") or "evaluate"
        if not self._app.legacy and not self._app.has(kind):
            return None
        known = (versions or {}).values()
        at, number = sum(known), max(known, default=0)
        content = self._content("evaluateins", parameters, {}, number)
        state = (
            self._states.load_newest() if versions is None else self._states.load_before(at, True)
        )
        state.pop(FITTED, None)
        context = self._context(state)
        reply = self._ask(kind, content, context, 0)
        result = self._read_evaluation(reply)
        if result is not None and versions is not None:
            self._states.keep(at, context.state, evaluated=True)
        return result

    def _read_evaluation(self, reply: RecordDict) -> EvaluateResult | None:
        where = f"{self._app.where}: evaluate"
        if self._app.legacy:
            status = self._status(reply, "evaluateres")
            if status is Code.EVALUATE_NOT_IMPLEMENTED:
                return None
            if status is not Code.OK:
                raise ScriptFailed(f"{where} was not OK: {status.name}")
        said, count, key = self._read_metrics(reply, "evaluateres")
        if self._app.legacy:
            loss: Any = reply.metric_records["evaluateres.loss"]["loss"]
        else:
            losses = [name for name in said if "loss" in name.lower()]
            name = "loss" if "loss" in said else losses[0] if len(losses) == 1 else ""
            loss = said.get(name)
            said.pop("loss", None)
        found = number(loss)
        if found is not None and not math.isfinite(found):
            raise NotFinite(f"{where}: the loss is {loss}: look at the held-out records")
        return EvaluateResult(
            found, to_whole_number(f"{where}: {key}", count), self._numbers("evaluate", said)
        )

    def _numbers(self, what: str, given: Mapping[str, Any]) -> dict[str, float]:
        """Keeps the finite numbers among metrics; logs the names of the others once."""
        found = dict(_flatten(given))
        numbers = {name: number(value) for name, value in found.items()}
        metrics = {n: v for n, v in numbers.items() if v is not None and math.isfinite(v)}
        others = sorted((found.keys() - metrics.keys()) - self._told)
        if others:
            self._told.update(others)
            said = f"{what} returned {', '.join(others)}"
            log.warning("%s: %s: not sent, because not a finite number", self._app.where, said)
        return metrics


def message(content: RecordDict, message_type: str, node: int = 1) -> Message:
    """Makes a message to a client, like Flower's server."""
    return new_message(
        content, Metadata(RUN, "", 0, node, "", "", time.time(), DEFAULT_TTL, message_type)
    )


def new_message(content: RecordDict, metadata: Metadata) -> Message:
    """Makes a message with metadata, which the constructor's signature does not show."""
    found: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    return found


def statistics_in(model: FlowerModel) -> dict[str, Kind]:
    return {name: "statistics" for name in model.tensors if name.endswith(STATISTICS)}


def reduce_work(config: FitConfig) -> dict[str, Setting]:
    """Reduces steps and epochs in the plan's settings to this training's part of the work."""
    told = dict(config.settings)
    if config.work == 1:
        return told
    for name in LOCAL_WORK:
        count = told.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            told[name] = config.part(count)
    return {**told, "work": config.work}


def bind_seed(seed: int, parameters: Mapping[str, NumpyArray]) -> int:
    """Derives 63 bits from a seed and the model that is trained, by BLAKE2b.

    An app's own noise (LocalDpMod) comes from them. Else a malicious server could have a version
    trained from two models, and the same noise would cancel in the difference.
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=8, person=b"secureps-flower")
    for name, array in sorted(parameters.items()):
        header = repr((name, str(array.dtype), array.shape)).encode()
        digest.update(len(header).to_bytes(8, "big") + header)
        digest.update(payload_digest(single_bytes(array)))
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)


def _flatten(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values; a list becomes metrics per-class.0, per-class.1, ..."""
    for name, value in said.items():
        if isinstance(value, list):
            yield from ((f"{name}.{i}", each) for i, each in enumerate(value))
        else:
            yield name, value


_TURNS = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators with 63 bits, and restores them on exit; threads take turns.

    torch is seeded only if the app has imported it.
    """
    with _TURNS, ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(np.random.SeedSequence(seed).generate_state(8))
        if "torch" in sys.modules:
            from secureps.client.torch_sgd import seeded as torch_seeded

            stack.enter_context(torch_seeded(seed))
        yield


# --- records -----------------------------------------------------------------------


Tensors = dict[str, NumpyArray]

KEPT = 3
"""Versions kept in `States`: the last, and two more if a restarted run goes back."""

KINDS = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}
"""Flower's records, by their names in the files of `States`."""

_EMPTY = "_empty"
"""Flower's placeholder in a record of no arrays."""


@dataclass(frozen=True, eq=False)
class FlowerModel:
    """A model in the app's own order.

    If the app's arrays are `nameless`, Flower calls them "0", "1", ..., and we call them arr_0, ...
    """

    tensors: Tensors
    nameless: bool

    @classmethod
    def of_record(cls, record: ArrayRecord) -> FlowerModel:
        """Reads a record of the app; WrongShape unless it has arrays, all of NumPy."""
        arrays = {name: array for name, array in record.items() if name != _EMPTY}
        if not arrays:
            raise WrongShape("the app's model has no arrays")
        nameless = list(arrays) == [str(i) for i in range(len(arrays))]
        return cls({_our_name(n, nameless): _numpy(n, a) for n, a in arrays.items()}, nameless)

    @classmethod
    def of_file(cls, tensors: Mapping[str, NumpyArray], names: Sequence[str] = ()) -> FlowerModel:
        """Orders a file's tensors by `names`, else by numbers arr_0, ..., else as in the file."""
        numbered = [_our_name(str(i), True) for i in range(len(tensors))]
        found = numbered if set(tensors) == set(numbered) else tensors
        order = list(names or found)
        return cls({name: tensors[name] for name in order}, order == numbered)

    def record(self, tensors: Mapping[str, NumpyArray]) -> ArrayRecord:
        """Makes the record of a state of this model, with copied arrays; else WrongShape."""
        reason = find_mismatch(tensors, self.shapes)
        if reason is not None:
            raise WrongShape(f"not a state of this app's model: {reason}")
        names = {name: str(i) if self.nameless else name for i, name in enumerate(self.tensors)}
        return ArrayRecord({theirs: Array(np.asarray(tensors[n])) for n, theirs in names.items()})

    def read(self, record: ArrayRecord, given: Mapping[str, NumpyArray]) -> Tensors:
        """Reads the model that the app trained from `given`, in this model's order.

        Floating-point numbers of another width are cast back. If there are any, integers and
        booleans stay as given: BatchNorm counts steps in them, and in an update's norm they would
        leave the weights no room under the clip. Raises WrongShape for another model, NotFinite for
        a value that is not finite after the cast.
        """
        found = FlowerModel.of_record(record).tensors
        reason = find_mismatch(found, self.shapes)
        if reason is not None:
            raise WrongShape(f"the app's fit returned another model: {reason}")
        trained = {name: _cast_like(self.tensors[name], found[name], name) for name in self.tensors}
        real = {name for name, each in trained.items() if each.dtype.kind == "f"}
        return {n: given[n].copy() if real and n not in real else trained[n] for n in trained}

    def refuse_unsummable(self, where: str) -> None:
        """Raises ConfigError for a model without numbers to average, such as serialized trees."""
        if any(
            a.size and a.dtype.kind in "fiu" and a.dtype != np.uint8 for a in self.tensors.values()
        ):
            return
        listed = ", ".join(
            f"{name} ({array.dtype}, {array.size} values)"
            for name, array in list(self.tensors.items())[:3]
        )
        raise ConfigError(
            f"{where}: its model has no numbers to average: {listed}. What is "
            "serialized into bytes, as XGBoost's trees or a pickle, cannot be added up under "
            "encryption: send the model's numbers as arrays, or train such models with Flower alone"
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.tensors.items()}


def _our_name(name: str, nameless: bool) -> str:
    return f"arr_{name}" if nameless else name


def single_bytes(values: NumpyArray) -> memoryview:
    """The bytes of an array in C order; a copy only if it has another order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _numpy(name: str, array: Array) -> NumpyArray:
    try:
        found: NumpyArray = array.numpy()
    except (TypeError, ValueError):
        raise WrongShape(
            f"array {name!r} of the app's model is serialized as {array.stype!r}; only arrays of "
            "numbers that NumPy reads (numpy.ndarray) can be averaged"
        ) from None
    return found


def _cast_like(wanted: NumpyArray, found: NumpyArray, name: str) -> NumpyArray:
    if found.dtype != wanted.dtype and not found.dtype.kind == wanted.dtype.kind == "f":
        raise WrongShape(
            f"the app's fit returned another model: tensor {name!r} is {found.dtype}, the "
            f"model's is {wanted.dtype}"
        )
    with np.errstate(over="ignore"):
        cast = found.astype(wanted.dtype, copy=False)
    if not np.isfinite(cast).all():
        raise NotFinite(f"local training made tensor {name!r} NaN or infinite: {LOOK}")
    return cast


def _place(version: int, evaluated: bool) -> str:
    """Names the state after a version's fit or evaluation; names ascend."""
    return f"state-{version:012d}{'-evaluated' * evaluated}"


def _version(place: str) -> int:
    return int(place.split("-")[1])


class States:
    """Keeps `context.state` by version, in a folder or in memory.

    A fit at version n starts from the newest state up to n, and writes n + 1, so a killed client
    repeats it from the same state. The evaluation of version n comes before that fit.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, tuple[Tensors, str]] = {}

    def load_before(self, version: int, evaluates: bool = False) -> RecordDict:
        """Loads the state that a fit or evaluation starts from; DamagedStore if it is damaged."""
        newest = _place(version, not evaluates)
        return self._load([known for known in self._places() if known <= newest])

    def load_newest(self) -> RecordDict:
        return self._load(self._places())

    def keep(self, version: int, state: RecordDict, evaluated: bool = False) -> None:
        """Keeps the state after a fit or evaluation at `version`; a fit drops later states."""
        if not state and not self._places():
            return
        place = _place(version, True) if evaluated else _place(version + 1, False)
        arrays, text = to_plain(state)
        if self._folder is None:
            self._memory[place] = arrays, text
        else:
            write_state(self._file(place), arrays, {"state": text})
        known = self._places()
        later = {other for other in known if other > place and not evaluated}
        versions = sorted({_version(other) for other in known if other not in later})[-KEPT:]
        for other in known:
            if other in later or _version(other) < versions[0]:
                self._drop(other)

    def _places(self) -> list[str]:
        if self._folder is None:
            return sorted(self._memory)
        return sorted(path.stem for path in self._folder.glob("state-*.safetensors"))

    def _load(self, places: list[str]) -> RecordDict:
        if not places:
            return RecordDict()
        if self._folder is None:
            return from_plain(*self._memory[places[-1]])
        arrays, metadata = read_state(self._file(places[-1]))
        try:
            return from_plain(arrays, metadata["state"])
        except (KeyError, ValueError, TypeError) as error:
            raise DamagedStore(f"{self._file(places[-1])}: not a state: {error}") from None

    def _drop(self, place: str) -> None:
        if self._folder is None:
            del self._memory[place]
        else:
            self._file(place).unlink()

    def _file(self, place: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{place}.safetensors"


def to_plain(state: RecordDict) -> tuple[Tensors, str]:
    """Splits a state into its arrays' bytes, as tensors, and JSON of the rest."""
    arrays: Tensors = {}
    records: list[tuple[str, str, dict[str, Any]]] = []
    for name, record in state.items():
        items: dict[str, Any] = {}
        for key, value in record.items():
            if isinstance(value, Array):
                tensor = str(len(arrays))
                arrays[tensor] = np.frombuffer(value.data, dtype=np.uint8)
                items[key] = (tensor, value.dtype, value.shape, value.stype)
            else:
                items[key] = _scalars(value)
        kind = next(kind for kind, record_type in KINDS.items() if isinstance(record, record_type))
        records.append((name, kind, items))
    return arrays, json.dumps(records)


def from_plain(arrays: Mapping[str, NumpyArray], text: str) -> RecordDict:
    """Joins what `to_plain` split; KeyError, ValueError or TypeError for anything else."""
    state = RecordDict()
    for name, kind, items in json.loads(text):
        if kind == "arrays":
            values: dict[str, Any] = {
                key: Array(dtype, tuple(shape), stype, arrays[tensor].tobytes())
                for key, (tensor, dtype, shape, stype) in items.items()
            }
        else:
            values = {key: _from_scalars(value) for key, value in items.items()}
        state[name] = KINDS[kind](values)
    return state


def _scalars(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_scalars(each) for each in value] if isinstance(value, list) else value


def _from_scalars(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return [_from_scalars(each) for each in value] if isinstance(value, list) else value
