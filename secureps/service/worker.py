"""The Protocol of a role's worker, which does long tasks and everything with payloads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from secureps.errors import InternalError, Malformed
from secureps.messages.requests import PutBlock, Request
from secureps.roles.machine import Task, TaskResult


class Worker(Protocol):
    """Does a role's work outside its machine; by default it takes and stores no payloads."""

    @abstractmethod
    def work(self, task: Task) -> TaskResult | None:
        """Does a task; returns the event that reports its end, or None."""

    def take(self, request: PutBlock, payload: bytes | memoryview) -> Callable[[], None]:
        """Checks the payload that came with a PutBlock.

        Returns:
            what stores it, durably, on any thread.

        Raises:
            Malformed: it is not what that message has to bring.
        """
        raise Malformed(f"no payload is expected with a {type(request).__name__}")

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes | None:
        """Checks and stores the payload that answers a request.

        Args:
            digest: of the payload.

        Returns:
            the digest of what it made of it, if that is kept in its place.

        Raises:
            Malformed: it is not what that message has to bring.
        """
        raise Malformed(f"no payload is expected with a {type(request).__name__}")

    def fetch(self, key: str) -> bytes | memoryview:
        """The payload that a machine named by `key`; a PeerError goes to the caller as answer."""
        raise InternalError(f"a {type(self).__name__} stores no payloads: there is no {key}")

    def seconds(self, task: Task) -> float:
        """The seconds of virtual time that a task takes."""
        return 0.0
