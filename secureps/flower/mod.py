"""`secureps_mod`: seals what a ClientApp's training answers.

    app = ClientApp(mods=[secureps_mod])

It comes first of an app's mods, and answers only train messages of `SecureFedAvg`: any other train
message would be answered in the clear. Messages to evaluate and queries pass, unless the node's
site keeps them from the app.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Message

from secureps.client.runner import LOCAL, put_together
from secureps.client.worker import Site
from secureps.crypto.sampling import NO_PRIVACY, Seed, UnsafeSeed
from secureps.errors import (
    ConfigError,
    InternalError,
    ScriptFailed,
    SecurepsError,
    TermsRefused,
)
from secureps.flower import post
from secureps.flower.node_settings import HOLDER, SITE, NodeSettings, objection, policy_of
from secureps.flower.post import outermost, refusal
from secureps.flower.trainer import FORM, AppTrainer, ModelForm
from secureps.roles.member.settings import MemberSettings
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.service.malloc import keep_whole
from secureps.service.one_wave import asked, play_wave
from secureps.service.process import Party
from secureps.store import durability
from secureps.store.atomic_file import own
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import demand_host, load_private, load_public, own_seed
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.waves.batch import MOST_BYTES

log = logging.getLogger("secureps")

APP = "the app's own code failed; the node's log says where"
"""Replaces the app's words, which may quote records and so stay at the node."""
OURS = "the node failed (our own fault); its log says how"


def secureps_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answers a train message with a sealed update, made of what the app answers to it.

    Any error is told to the server in the answer, in one line; the app's own words are not.

    Args:
        message: of Flower's server.
        context: of the node; its node_config has the node's settings (docs/flower.md).
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
        parcel = _seal(message, context, call_next)
    except SecurepsError as error:
        parcel = post.Parcel({"error": _report(error)})
    except Exception as error:  # Flower would send its words
        log.exception("the node failed")
        parcel = post.Parcel({"error": f"{type(error).__name__}: the node's log says where"})
    return Message(post.packed(parcel), reply_to=message)


def _refuse_forbidden(message: Message, context: Context) -> None:
    site = context.node_config.get(SITE)
    if site is None:
        return
    own, heard = objection(message.metadata.message_type, policy_of(Path(str(site))).terms)
    if own:
        raise TermsRefused(own, heard)


def _report(error: SecurepsError) -> str:
    """Logs an error here; returns what the server may hear of it."""
    log.error("%s", one_line(error))
    if isinstance(error, ScriptFailed):
        return APP
    if isinstance(error, InternalError):  # its words may quote what the app answered
        return OURS
    return error.revealed if isinstance(error, TermsRefused) else one_line(error)


def _seal(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> post.Parcel:
    frame = inspect.currentframe()
    if not outermost(frame):
        raise ConfigError(
            "secureps_mod is not the first of the app's mods: another one would see, and could "
            "change, what only it may; put it first, mods=[secureps_mod, ...]"
        )
    if not post.marked(message.content):
        raise ConfigError(
            "a train message without secureps: the app would answer in the clear. Start its "
            "ServerApp with SecureFedAvg, or leave secureps_mod out"
        )
    parcel = post.unpacked(message.content, MOST_BYTES)
    if holder := context.node_config.get(HOLDER):
        # The key holder is a process of its own, and this app reads nothing of it.
        return post.Parcel({"wave": 1}, asked(Path(str(holder)), parcel.batch))
    settings = NodeSettings.of(dict(context.node_config), parcel.said)
    if settings.simulated:  # this process plays the waves of many nodes
        keep_whole()
    form = ModelForm.of_text(str(parcel.said.get(FORM, "")))
    tells = policy_of(settings.site).terms.evaluation
    trainer = AppTrainer(form, message, lambda asked: call_next(asked, context), tells)
    with durability.simulated(settings.simulated):
        batch, ended = Node(settings).wave(parcel.batch, parcel.payloads, trainer)
    return post.Parcel({"ended": ended} if ended else {"wave": 1}, batch)


class Node:
    """A client of `secureps join` in waves, by its node's kit.

    Everything that outlives a wave lies in the node's state folder, nothing in Flower's context.
    Raises KitError or ConfigError if its kit or its site's file cannot be used, or is for another
    host.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._kit = load_public(settings.kit)
        demand_host(self._kit.roster, settings.kit)
        identity = load_private(settings.kit, settings.name, roster=self._kit.roster)
        folders = settings.state, settings.kit
        # The party opens no connection, because Flower carries its messages.
        self._party = Party(settings.name, identity, PLAINTEXT, self._kit.roster, *folders)
        self._policy = policy_of(settings.site)
        own(settings.state)
        self._seed = self._own_seed()

    def wave(
        self, data: bytes, payloads: Mapping[bytes, bytes], trainer: AppTrainer
    ) -> tuple[bytes, str]:
        """Takes one batch of the servers' messages, and answers it as `play_wave` does."""
        settings, policy = self._settings, self._policy
        ledger = policy.ledger_of(None) or default_ledger(settings.kit, settings.name)
        site = Site(
            settings.name,
            trainer,
            self._party.identity,
            self._seed,
            self._kit.holder_keys,
            settings.state / LOCAL,
            records=policy.records,
            ledger=BudgetLedger(ledger, policy.terms.budget, policy.terms.updates_per_hour),
        )
        # No digests of values: no plan in Flower's engine freezes a tensor.
        terms, records = policy.terms, policy.records
        member = MemberSettings(
            settings.name, self._kit.roster, trainer.schema, terms, records=records
        )

        def make(stores: Stores, around: Environment) -> Executor:
            return put_together(member, site, stores, around)

        return play_wave(self._party, data, payloads, make)

    def _own_seed(self) -> Seed:
        if self._settings.unsafe_seed is None:
            return own_seed(self._settings.state / "seed")
        tell(self._settings.name, "Note", NO_PRIVACY)
        return UnsafeSeed(self._settings.unsafe_seed)


def one_line(error: SecurepsError) -> str:
    """An error for the server's operator."""
    return " ".join(f"{error} ({error.fault} fault)".split())
