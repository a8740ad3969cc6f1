"""The worker of a bfv key holder: takes in sums, decrypts them, and signs the results.

The secret key is used nowhere else.
"""

from __future__ import annotations

import dataclasses
import time

from secureps.crypto.cipher import Opener
from secureps.crypto.identity import Identity
from secureps.crypto.secret import Secret
from secureps.errors import InternalError, Malformed
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetSum, Request
from secureps.messages.submission import OPENED, BlockHeader, signing_bytes
from secureps.roles.holder.bfv import BfvHolder, received_key
from secureps.roles.holder.tasks import OpenSum, SumOpened
from secureps.roles.tasks import Prune, Task
from secureps.service.environment import Worker
from secureps.store.spool import Spool


class BfvWorker(Worker):
    """The worker of one key holder; `secret` never leaves this process."""

    def __init__(
        self, machine: BfvHolder, identity: Identity, name: str, secret: Secret, spool: Spool
    ) -> None:
        self._machine = machine
        self._identity = identity
        self._name = name
        self._secret = secret
        self._spool = spool
        self._opener: Opener | None = None

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> None:
        """Stores a shard's sum; Malformed if it is no ciphertext of the block's size."""
        if not isinstance(request, GetSum):
            raise Malformed(f"no payload is expected with a {type(request).__name__}")
        pinned = self._machine.pinned
        layout = pinned.layout.group(request.group)
        slots = layout.slots(request.block)
        pinned.plan.cipher_of(layout).adder().check_total(slots, payload)
        key = received_key(request.group, request.cohort, request.block)
        self._spool.put(f"{key}/{digest.hex()}", payload)

    def fetch(self, key: str) -> bytes:
        """Reads an opened sum, to send it to its shard."""
        return self._spool.get(key)

    def work(self, task: Task) -> SumOpened | None:
        """Opens a sum, or deletes payloads; see `Worker`."""
        match task:
            case OpenSum():
                return self._open(task)
            case Prune(keys):
                for key in keys:
                    self._spool.delete(key)
                return None
        raise InternalError(f"a holder's worker does not know a {type(task).__name__}")

    def _open(self, task: OpenSum) -> SumOpened:
        began = time.perf_counter()
        total = self._spool.get(task.key)
        layout = self._machine.pinned.layout.group(task.group)
        sums = self._tools(task.group).open(task.block, total, layout.slots(task.block))
        self._spool.delete(task.key)
        payload = sums.astype("<i8").tobytes()
        header = BlockHeader(
            run=self._machine.pinned.run.id,
            author=self._name,
            purpose=OPENED,
            group=task.group,
            sequence=task.cohort,
            block=task.block,
            length=len(payload),
            digest=payload_digest(payload),
        )
        signature = self._identity.sign(*signing_bytes(header))
        header = dataclasses.replace(header, signature=signature)
        self._spool.put(header.key, payload)
        return SumOpened(header, time.perf_counter() - began)

    def _tools(self, group: str) -> Opener:
        if self._opener is None:
            pinned = self._machine.pinned
            kind = pinned.plan.cipher_of(pinned.layout.group(group))
            self._opener = kind.opener(pinned.place(group), self._secret)
        return self._opener
