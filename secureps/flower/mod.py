"""`secureps_mod`: seals the updates that a ClientApp trains.

    app = ClientApp(mods=[secureps_mod])

It must be the first of an app's mods. It refuses train messages that are not from `SecureFedAvg`,
which the app would answer in the clear. Evaluate messages and queries pass, unless the policy of
the node's site forbids them.

A node's operator gives its kit, name and state folder:

    --node-config 'secureps-kit="/srv/kit" secureps-name="north"'

In Flower's simulation the run names the kit that it made for all nodes, and a node's name follows
from its `partition-id`. If the operator gives any setting, the run's are ignored.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from secureps.client.flower.trainer import (
    bind_seed,
    new_message,
    reduce_work,
    seeded,
    statistics_in,
)
from secureps.client.initial_model import schema_of
from secureps.client.runner import LOCAL, assemble_member
from secureps.client.site_policy import NO_POLICY, SitePolicy, read_site
from secureps.client.trainer import Array, EvaluateResult, FitConfig, FitResult, to_whole_number
from secureps.client.worker import Site
from secureps.crypto.sampling import NO_PRIVACY, Seed, UnsafeSeed
from secureps.errors import (
    ConfigError,
    InternalError,
    Malformed,
    ScriptFailed,
    SecurepsError,
    TermsRefused,
    WrongShape,
)
from secureps.flower import post
from secureps.flower.post import (
    FORM,
    OURS,
    TOLD_KIT,
    TOLD_SEED,
    ModelForm,
    Said,
    is_outermost,
    refusal,
)
from secureps.messages.run import TRAIN_METRICS, Schema
from secureps.policy.tensor_kinds import Kind
from secureps.roles.member.terms import MemberSettings, Terms
from secureps.run.up.folder import client_names
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.service.malloc import WHOLE, keep_pieces
from secureps.service.one_wave import ask_party, play_wave
from secureps.service.process import Party
from secureps.store import durability
from secureps.store.atomic_file import secure_folder
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import default_state, demand_host, load_private, load_public, load_seed
from secureps.wire.grpc.framing import PLAINTEXT
from secureps.wire.waves.batch import MOST_BYTES
from secureps.wording import one_line, suggest

log = logging.getLogger("secureps")

APP_FAILED = "the app's own code failed; the node's log says where"
"""Replaces the app's own error text, which may quote records and must stay at the node."""
NODE_FAILED = "the node failed (our own fault); its log says how"


def secureps_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answers a train message with a sealed update.

    The answer to an error has one line for the server, without the app's own words.

    Args:
        message: the message of Flower's server.
        context: the node's context; its node_config has the node's settings (docs/flower.md).
        call_next: the app, and any mods after this one.
    """
    if message.metadata.message_type.partition(".")[0] != "train":
        if HOLDER in context.node_config:
            return refusal(message, "the node of a key holder has no data, and evaluates nothing")
        try:
            _refuse_forbidden(message, context)
        except SecurepsError as error:
            return refusal(message, _report(error))
        return call_next(message, context)
    try:
        _refuse_forbidden(message, context)
        said, batch = _seal(message, context, call_next)
    except SecurepsError as error:
        said, batch = {"error": _report(error)}, b""
    except Exception as error:  # else Flower would send its text, which may quote records
        log.exception("the node failed")
        said, batch = {"error": f"{type(error).__name__}: the node's log says where"}, b""
    return Message(post.pack(said, batch), reply_to=message)


def _refuse_forbidden(message: Message, context: Context) -> None:
    if (site := context.node_config.get(SITE)) is not None:
        refuse_kind(message.metadata.message_type, read_policy(Path(str(site))).terms)


def _report(error: SecurepsError) -> str:
    """Logs an error here; returns what the server may know of it."""
    text = f"{one_line(error)} ({error.fault} fault)"
    log.error("%s", text)
    if isinstance(error, ScriptFailed):
        return APP_FAILED
    if isinstance(error, InternalError):  # its words may quote what the app answered
        return NODE_FAILED
    return error.revealed if isinstance(error, TermsRefused) else text


def _seal(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> tuple[Said, bytes]:
    frame = inspect.currentframe()
    if not is_outermost(frame):
        raise ConfigError(
            "secureps_mod is not the first of the app's mods: another one would see, and could "
            "change, what only it may; put it first, mods=[secureps_mod, ...]"
        )
    if not post.is_ours(message.content):
        raise ConfigError(
            "a train message without secureps: the app would answer in the clear. Start its "
            "ServerApp with SecureFedAvg, or leave secureps_mod out"
        )
    told, batch, payloads = post.read_wave(message.content, MOST_BYTES)
    if holder := context.node_config.get(HOLDER):
        # Pass the batch on to the key holder, which is a process of its own.
        return {"wave": 1}, ask_party(Path(str(holder)), batch)
    settings = NodeSettings.of(dict(context.node_config), told)
    if settings.simulated:  # this process plays the waves of many nodes
        keep_pieces(WHOLE)
    form = ModelForm.from_json(str(told.get(FORM, "")))
    policy = read_policy(settings.site)
    tells = policy.terms.evaluation
    trainer = AppTrainer(form, message, lambda asked: call_next(asked, context), tells)
    with durability.skip_waits(settings.simulated):
        answer, ended = play_as_client(settings, policy, trainer, batch, payloads)
    return {"ended": ended} if ended else {"wave": 1}, answer


def play_as_client(
    settings: NodeSettings,
    policy: SitePolicy,
    trainer: AppTrainer,
    batch: bytes,
    payloads: Mapping[bytes, bytes],
) -> tuple[bytes, str]:
    """Runs the client of a node's kit on the servers' batch; returns the same as `play_wave`.

    All that outlives a wave is in the node's state folder, and nothing in Flower's context. Raises
    KitError or ConfigError if the kit cannot be used, or is for another host.
    """
    kit, name = load_public(settings.kit), settings.name
    demand_host(kit.roster, settings.kit)
    identity = load_private(settings.kit, name, roster=kit.roster)
    secure_folder(settings.state)
    terms, records = policy.terms, policy.records
    ledger = policy.choose_ledger(None) or default_ledger(settings.kit, name)
    site = Site(
        name,
        trainer,
        identity,
        _seed_of(settings),
        kit.holder_keys,
        settings.state / LOCAL,
        records=records,
        ledger=BudgetLedger(ledger, terms.budget, terms.updates_per_hour),
    )
    # Digests of values are left out, because no plan in Flower's engine freezes a tensor.
    member = MemberSettings(name, kit.roster, trainer.schema, terms, records=records)
    # The party opens no connection, because Flower carries its messages.
    party = Party(name, identity, PLAINTEXT, kit.roster, settings.state, settings.kit)

    def make(stores: Stores, around: Environment) -> Executor:
        return assemble_member(member, site, stores, around)

    return play_wave(party, batch, payloads, make)


def _seed_of(settings: NodeSettings) -> Seed:
    if settings.unsafe_seed is None:
        return load_seed(settings.state / "seed")
    tell(settings.name, "Note", NO_PRIVACY)
    return UnsafeSeed(settings.unsafe_seed)


# --- node settings -----------------------------------------------------------------

KIT, NAME, STATE = "secureps-kit", "secureps-name", "secureps-state"
SITE, UNSAFE, HOLDER = "secureps-site", "secureps-unsafe-seed", "secureps-holder"
KNOWN = (KIT, NAME, STATE, SITE, UNSAFE, HOLDER)

PREFIX = "secureps-"

PARTITION, PARTITIONS = "partition-id", "num-partitions"


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node; an `unsafe_seed` makes its updates repeatable, for tests.

    Its `state` folder has journal, outbox and seed; without a `site` file everything is allowed.
    """

    kit: Path
    name: str
    state: Path
    site: Path | None = None
    unsafe_seed: int | None = None
    simulated: bool = False

    @classmethod
    def of(cls, config: Mapping[str, object], told: Mapping[str, str | int]) -> NodeSettings:
        """Reads the node's own configuration, or a simulation's; else ConfigError."""
        own = {key: value for key, value in config.items() if key.startswith(PREFIX)}
        if unknown := own.keys() - set(KNOWN):
            name = min(unknown)
            raise ConfigError(f"--node-config: {name!r} is not known; {suggest(name, KNOWN)}")
        if own:
            return cls._of_operator(own)
        partition, count = config.get(PARTITION), config.get(PARTITIONS)
        kit = told.get(TOLD_KIT)
        if not isinstance(kit, str) or not isinstance(partition, int) or not isinstance(count, int):
            raise ConfigError(
                "this node has no start-up kit: start its SuperNode with "
                f"""--node-config '{KIT}="/path/of/kit" {NAME}="its name on the roster"'"""
            )
        name, seed = client_names(count)[partition], told.get(TOLD_SEED)
        state = default_state(Path(kit), name)
        own_seed = seed if isinstance(seed, int) else None
        return cls(Path(kit), name, state, None, own_seed, simulated=True)

    @classmethod
    def _of_operator(cls, own: Mapping[str, object]) -> NodeSettings:
        for key in (KIT, NAME):
            if not own.get(key):
                raise ConfigError(f"--node-config: {key} is missing")
        kit, name = Path(str(own[KIT])), str(own[NAME])
        state = Path(str(own[STATE])) if STATE in own else default_state(kit, name)
        site, seed = own.get(SITE), own.get(UNSAFE)
        if seed is not None and not isinstance(seed, int):
            raise ConfigError(f"--node-config: {UNSAFE}: it is a number, got {seed!r:.80}")
        return cls(kit, name, state, None if site is None else Path(str(site)), seed)


def read_policy(site: Path | None) -> SitePolicy:
    """Reads a site's limits; ConfigError for a wrong file, or a key that cannot work here."""
    if site is None:
        return NO_POLICY
    policy = read_site(site)
    for key, said in (("network", not policy.network), ("scripts", policy.scripts is not None)):
        if said:
            raise ConfigError(
                f"{site}: {key}: inside Flower's engine the run ships the app, and its SuperNode "
                "runs it: leave the key out, or take part by secureps join"
            )
    return policy


def refuse_kind(kind: str, terms: Terms) -> None:
    """Raises TermsRefused for a type of messages that a site forbids."""
    action, _, name = kind.partition(".")
    if action == "evaluate" and not terms.evaluation:
        text = "evaluation = false: no record of this site judges a model"
        raise TermsRefused(text, terms.revealed(["evaluation"], text))
    if (name or action == "query") and (text := terms.of([kind])):
        raise TermsRefused(text, terms.revealed(["messages"], text))


# --- trainer -----------------------------------------------------------------------


OLD_RECORD = ("fitins.parameters",)
OLD_KIND = (
    "the ClientApp is of Flower's old kind (client_fn), which hears other messages: write it with "
    "@app.train()"
)

Ask = Callable[[Message], Message]


class AppTrainer:
    """A `Trainer` that asks a ClientApp.

    Args:
        message: the wave's message; the app gets its records, without ours.
        ask: calls the app, and any mods after ours.
        tells: whether the node's site lets training metrics out.
    """

    def __init__(self, form: ModelForm, message: Message, ask: Ask, tells: bool = True) -> None:
        self._form, self._message, self._ask, self._tells = form, message, ask, tells

    @property
    def schema(self) -> Schema:
        return schema_of(self._form.tensors)

    def parameters(self, seed: int) -> dict[str, Array]:
        """Makes zeros in the form of the model, because the ServerApp has version 0."""
        return {name: array.copy() for name, array in self._form.tensors.items()}

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """Sends the app one train message; the plan's settings override its ServerApp's.

        Raises TermsRefused if the strategy asks for metrics and the site lets none out, and
        ScriptFailed, whose text stays at the node, if the app failed or its answer is unusable.
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
        settings = {**before, **reduce_work(config), "server-round": number}
        records[form.config] = ConfigRecord(settings)
        records[form.arrays] = form.model.record(parameters)
        asked = new_message(records, self._message.metadata)
        with seeded(bind_seed(config.seed, parameters)):
            reply = self._ask(asked)
        if reply.has_error():
            raise WrongShape(f"the app answered with an error: {reply.error.reason}")
        result = self._read_fit(reply.content, parameters)
        if form.metrics:
            result.parameters[TRAIN_METRICS] = self._scale_metrics(result.metrics)
        return result

    def _scale_metrics(self, metrics: Mapping[str, float]) -> Array:
        """Divides each metric that the strategy asks for by its largest magnitude.

        Raises Malformed if one is missing: else a sum could have the metric of a single node.
        """
        told = np.zeros(len(self._form.metrics), np.float32)
        for k, (name, most) in enumerate(self._form.metrics.items()):
            value = metrics.get(name, math.nan)
            if not math.isfinite(value):
                raise Malformed(f"train_metrics: {name} is {value}, and must be a finite number")
            if abs(value) > most:
                log.warning(
                    "train_metrics: %s is %s, more than the largest magnitude of %s: cut to it",
                    name,
                    value,
                    most,
                )
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
        examples = to_whole_number(f"the app's train: {self._form.weighted_by}", count)
        numbers = {n: float(v) for n, v in metrics.items() if isinstance(v, int | float)}
        return FitResult(tensors, examples, numbers, steps=0)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        raise InternalError("inside Flower's engine its own messages evaluate")

    def kinds(self) -> dict[str, Kind]:
        return statistics_in(self._form.model)
