"""Sees whether gRPC still does its own work in this process: a call to nobody has to end.

Threads that gRPC could not start when memory or threads were used up are missing for good, and it
says so to nobody: from there on no call ends, not even at its deadline, and nobody connects.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import grpc

NOBODY = f"unix:{os.devnull}"
"""An address of this machine at which nobody answers, whatever its network is."""

SECONDS = 5.0
"""Until a call to nobody ends at the latest; it is refused at once."""

LATE = 10.0
"""Seconds after which one has not ended that must have, also on a busy machine."""

_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class Liveness:
    """One call to nobody after another; to be asked now and then, by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._begun = 0.0

    def stalled(self) -> str:
        """Says what has not ended; empty if all is well. Begins the next call when one has ended.

        Raises:
            RuntimeError, MemoryError: there is no thread or memory for a call.
        """
        if self._call is not None and not self._call.done():
            seconds = self._clock() - self._begun
            return "" if seconds <= LATE else f"a call to nobody has not ended for {seconds:.0f} s"
        self.close()
        self._begun = self._clock()
        channel = grpc.insecure_channel(NOBODY, _OPTIONS)
        ask: Any = channel.unary_unary("/secureps/Nobody")
        try:
            self._call = ask.future(b"", timeout=SECONDS)
        except BaseException:
            _keep(channel)
            raise
        self._channel = channel
        return ""

    def close(self) -> None:
        """Ends the call; again does nothing."""
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()


def _keep(channel: grpc.Channel) -> None:
    """Keeps for ever a channel whose call found no thread.

    gRPC would wait for that call to end when it closes the channel, and it closes one that is
    collected.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
