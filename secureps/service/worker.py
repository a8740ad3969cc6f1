"""What every role's hands have in common: long work, and everything with payloads.

What must not live here: what any role does.
"""

from __future__ import annotations

from typing import Any, Protocol

from secureps.errors import Malformed


class Worker(Protocol):
    """What a role does outside its machine: long work, and everything with payloads."""

    def work(self, task: Any) -> Any:
        """Does a task; returns the event that reports its end, or None."""

    def keep(self, request: Any, payload: bytes | memoryview) -> None:
        """Checks and stores the payload that came with a PutBlock or answers a request."""

    def fetch(self, key: str) -> bytes:
        """The payload that a machine named by `key`; a PeerError is the caller's answer."""

    def seconds(self, task: Any) -> float:
        """How long a task takes in virtual time."""


def no_payload(request: Any, payload: bytes | memoryview) -> None:
    """`Worker.keep` of a role that takes no payloads."""
    raise Malformed(f"no payload is expected with a {type(request).__name__}")
