"""What differs between Flower's versions, or has no public name there: flwr 1.41 and 1.42."""

from __future__ import annotations

import logging
from types import FrameType

from flwr.app import Error, Message, RecordDict
from flwr.client.mod import utils
from flwr.clientapp import ClientApp

log = logging.getLogger("flwr.secureps")
"""What a ServerApp says goes where Flower's own log goes."""

REFUSED = 2
"""Flower's code of an app that raises."""

_APP = ClientApp.__module__
_CHAIN = utils.__name__


def answer(message: Message, content: RecordDict) -> Message:
    """The reply to a message."""
    return Message(content, reply_to=message)


def refusal(message: Message, reason: str) -> Message:
    """The reply that says why there is none."""
    return Message(Error(code=REFUSED, reason=reason), reply_to=message)


def outermost(frame: FrameType | None) -> bool:
    """Whether the mod whose frame this is, or was called from, is the first of its app's.

    Between an app and its first mod there is one function of Flower's; before any other mod there
    is the frame of the one that called it.
    """
    while frame is not None and frame.f_globals.get("__name__") != _CHAIN:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_globals.get("__name__") == _APP
