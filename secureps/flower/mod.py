"""`secureps_mod`: seals what a ClientApp's training answers.

    app = ClientApp(mods=[secureps_mod])

It comes first of an app's mods, and answers only train messages of `SecureFedAvg`: any other train
message would be answered in the clear. Messages to evaluate and queries pass, unless the node's
site keeps them from the app.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message

from secureps.client.runner import LOCAL, put_together
from secureps.client.site_policy import SitePolicy
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
from secureps.flower.post import FORM, ModelForm, outermost, refusal
from secureps.flower.trainer import AppTrainer
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

APP_FAILED = "the app's own code failed; the node's log says where"
"""Replaces the app's words, which may quote records and so stay at the node."""
NODE_FAILED = "the node failed (our own fault); its log says how"


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
        return APP_FAILED
    if isinstance(error, InternalError):  # its words may quote what the app answered
        return NODE_FAILED
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
    policy = policy_of(settings.site)
    tells = policy.terms.evaluation
    trainer = AppTrainer(form, message, lambda asked: call_next(asked, context), tells)
    with durability.simulated(settings.simulated):
        batch, ended = play_as_client(settings, policy, parcel, trainer)
    return post.Parcel({"ended": ended} if ended else {"wave": 1}, batch)


def play_as_client(
    settings: NodeSettings, policy: SitePolicy, parcel: post.Parcel, trainer: AppTrainer
) -> tuple[bytes, str]:
    """Takes the servers' batch as the client of a node's kit, and answers it as `play_wave` does.

    Everything that outlives a wave lies in the node's state folder, nothing in Flower's context.
    Raises KitError or ConfigError if the kit cannot be used, or is for another host.
    """
    kit, name = load_public(settings.kit), settings.name
    demand_host(kit.roster, settings.kit)
    identity = load_private(settings.kit, name, roster=kit.roster)
    own(settings.state)
    terms, records = policy.terms, policy.records
    ledger = policy.ledger_of(None) or default_ledger(settings.kit, name)
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
    # No digests of values: no plan in Flower's engine freezes a tensor.
    member = MemberSettings(name, kit.roster, trainer.schema, terms, records=records)
    # The party opens no connection, because Flower carries its messages.
    party = Party(name, identity, PLAINTEXT, kit.roster, settings.state, settings.kit)

    def make(stores: Stores, around: Environment) -> Executor:
        return put_together(member, site, stores, around)

    return play_wave(party, parcel.batch, parcel.payloads, make)


def _seed_of(settings: NodeSettings) -> Seed:
    if settings.unsafe_seed is None:
        return own_seed(settings.state / "seed")
    tell(settings.name, "Note", NO_PRIVACY)
    return UnsafeSeed(settings.unsafe_seed)


def one_line(error: SecurepsError) -> str:
    """An error for the server's operator."""
    return " ".join(f"{error} ({error.fault} fault)".split())
