"""Turns failures of the data holder's own code into one line that says what raised, and where.

The traceback is for the author of the code, and goes to the log at DEBUG (`secureps join
--verbose`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secureps.errors import ClientError, ScriptFailed, SecurepsError
from secureps.extras import from_extras
from secureps.tracebacks import told, where

log = logging.getLogger("secureps")

_listeners: list[Callable[[str], None]] = []


def entering(listener: Callable[[str], None]) -> None:
    """Adds a listener for each function of the data holder, before the call (it may hang)."""
    _listeners.append(listener)


def leaving(listener: Callable[[str], None]) -> None:
    """Removes a listener."""
    _listeners.remove(listener)


def told_of(what: str) -> None:
    """Tells all listeners which function is called next."""
    for listener in _listeners:
        listener(what)


@contextmanager
def blamed(what: str, whose: str = "") -> Iterator[None]:
    """Turns errors of the data holder's code, or of checks of its results, into ScriptFailed.

    Other SecurepsErrors than ClientError pass, because they say whose fault they are. SystemExit
    does not pass, because it would end a thread. `whose` names the client to listeners.
    """
    told_of(f"{whose}'s {what}" if whose else what)
    try:
        with from_extras():
            yield
    except ClientError as error:
        raise ScriptFailed(f"{what}: {error}; nothing was sent: mend the script") from error
    except SecurepsError:
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", what, exc_info=error)
        raise ScriptFailed(
            f"{what} raised {told(error)} ({where(error)}); mend the script or its settings"
        ) from error
