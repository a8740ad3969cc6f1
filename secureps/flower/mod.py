"""`secureps_mod`: seals what a ClientApp's training answers.

    app = ClientApp(mods=[secureps_mod])

It comes first of an app's mods, and answers train messages of `SecureFedAvg` alone: any other would
have the app answer in the clear. Messages to evaluate and queries pass as they are, but for those
that the node's site keeps from the app.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message

from secureps.errors import (
    ConfigError,
    InternalError,
    ScriptFailed,
    SecurepsError,
    TermsRefused,
)
from secureps.flower import post
from secureps.flower.names import answer, outermost, refusal
from secureps.flower.node import Node
from secureps.flower.node_settings import HOLDER, SITE, NodeSettings, objection, policy_of
from secureps.flower.trainer import FORM, AppTrainer, ModelForm
from secureps.service.malloc import keep_whole
from secureps.service.wave_socket import asked
from secureps.store import durability
from secureps.wire.waves.batch import MOST_BYTES

log = logging.getLogger("secureps")

APP = "the app's own code failed; the node's log says where"
"""Its words may quote records: they go no further than the node."""
OURS = "the node failed (our own fault); its log says how"


def secureps_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answers a train message with a sealed update, made of what the app answers to it.

    What goes wrong is told to the server in the answer, in one line; nothing of the app's is.
    """
    if message.metadata.message_type.partition(".")[0] != "train":
        if HOLDER in context.node_config:
            return refusal(message, "the node of a key holder has no data, and evaluates nothing")
        try:
            _allowed(message, context)
        except SecurepsError as error:
            return refusal(message, _told(error))
        return call_next(message, context)
    try:
        _allowed(message, context)
        parcel = _sealed(message, context, call_next)
    except SecurepsError as error:
        parcel = post.Parcel({"error": _told(error)})
    except Exception as error:  # Flower would send its words
        log.exception("the node failed")
        parcel = post.Parcel({"error": f"{type(error).__name__}: the node's log says where"})
    return answer(message, post.packed(parcel))


def _allowed(message: Message, context: Context) -> None:
    """Refuses a message that the policy of a node's site keeps from the app."""
    site = context.node_config.get(SITE)
    if site is None:
        return
    own, heard = objection(message.metadata.message_type, policy_of(Path(str(site))).terms)
    if own:
        raise TermsRefused(own, heard)


def _told(error: SecurepsError) -> str:
    """Logs an error here; what the server hears of it."""
    log.error("%s", one_line(error))
    if isinstance(error, ScriptFailed):
        return APP
    if isinstance(error, InternalError):  # its words may quote what the app answered
        return OURS
    return error.revealed if isinstance(error, TermsRefused) else one_line(error)


def _sealed(
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
        told = Node(settings).wave(parcel.batch, parcel.payloads, trainer)
    said = {"ended": told.ended} if told.ended else {"wave": 1}
    return post.Parcel(said, told.batch)


def one_line(error: SecurepsError) -> str:
    """An error as its server's operator reads it."""
    return " ".join(f"{error} ({error.fault} fault)".split())
