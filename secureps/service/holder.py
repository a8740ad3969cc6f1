"""The workers of key holders, which use the secret keys: to derive key shares, or to open sums.

A committee's holder keeps seeds and shares in memory; only the sum of a cohort's shares leaves it.
"""

from __future__ import annotations

import dataclasses
import time

from secureps.crypto import envelope
from secureps.crypto.cipher import Opener
from secureps.crypto.identity import Identity
from secureps.crypto.secret import Secret
from secureps.crypto.sharing import HolderShare, answer, vector_bytes
from secureps.errors import ClientError, InternalError, Malformed, Refused
from secureps.messages.encoding import payload_digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.orders import EraseKeys, Examine, Open
from secureps.messages.requests import Examined, Figure, GetSum, KeyShare, Request, Telemetry
from secureps.messages.run import Task
from secureps.messages.submission import (
    OPENED,
    BlockHeader,
    Receipt,
    enveloped_part,
    opening_digest,
    sharing_id,
    signing_bytes,
)
from secureps.roles.holder.bfv import BfvHolder, OpenSum, received_key
from secureps.roles.holder.committee import AnnounceKey, CommitteeHolder
from secureps.roles.machine import Done, Prune
from secureps.service.environment import Worker
from secureps.store.envelope_keys import EnvelopeKeys
from secureps.store.spool import Spool


class CommitteeWorker(Worker):
    """The worker of a committee's holder; `keys` never leave this process.

    It takes no payloads: a holder that had a ciphertext too could open it.
    """

    def __init__(self, machine: CommitteeHolder, identity: Identity, keys: EnvelopeKeys) -> None:
        self._machine = machine
        self._name = machine.name
        self._identity = identity
        self._keys = keys

    def work(self, task: Task) -> Done | None:
        match task:
            case Examine():
                return Done(task, self._examine(task.receipt))
            case Open():
                return self._open(task)
            case AnnounceKey(number, least):
                return Done(task, self._announce(number, least))
            case EraseKeys():
                self._own_keys.erase(task.below)
                return None
        raise InternalError(f"a holder's worker does not know a {type(task).__name__}")

    @property
    def _own_keys(self) -> EnvelopeKeys:
        return self._keys.for_run(self._machine.pinned.run.id)

    def _announce(self, number: int, least: int) -> EnvelopeKeyAnnounced:
        """Makes a key, durable before a client seals for it; a number gets only one key."""
        run, keys = self._machine.pinned.run.id, self._own_keys
        known = self._machine.known.keys.announced
        again = known is not None and known.number == number
        key = known.key if known is not None and again else keys.make(number).public.key
        least = min(number, max(least, keys.oldest))  # another run may have erased the kit's key
        bare = EnvelopeKeyAnnounced(run, self._name, number, key, least)
        signature = self._identity.sign(*announcement_bytes(bare))
        return dataclasses.replace(bare, signature=signature)

    def _examine(self, receipt: Receipt) -> Examined | None:
        """Checks this holder's envelope of a receipt; None if the envelope's key is erased.

        That is not reported, because its client is not at fault.
        """
        flaw = ""
        try:
            self._share(receipt)
        except ClientError as error:
            flaw = str(error)
        except Refused:
            return None
        return Examined(self._name, receipt.id, flaw, receipt.digest)

    def _open(self, task: Open) -> Done:
        """Answers for a cohort with a share, or with all flaws in its envelopes and a refusal.

        If envelopes are not examined in advance, this is the only report of a flaw.
        """
        try:
            return self._derive(task)
        except (ClientError, Refused) as error:
            found = [self._examine(receipt) for receipt in task.receipts]
            flaws = (each for each in found if each is not None and each.flaw)
            return Done(task, (*flaws, self._machine.refusal(task, error)))

    def _derive(self, task: Open) -> Done:
        """Derives this holder's answer for one cohort (`crypto.sharing.answer`).

        Raises Malformed or Oversized, naming the member, if an envelope does not open, and Refused
        if an envelope's key is erased.
        """
        began, cohort, pinned = time.perf_counter(), task.cohort, self._machine.pinned
        length = pinned.plan.key_length(pinned.layout.group(cohort.group))
        shares = [self._member_share(receipt) for receipt in task.receipts]
        weights = [member.weight for member in cohort.members]
        about = opening_digest(pinned.run.id, cohort, (each.digest for each in task.receipts))
        share = vector_bytes(answer(shares, weights, about, length))
        figures = (Figure("opening_seconds", time.perf_counter() - began),)
        report = Telemetry(self._name, cohort.group, cohort.version, figures)
        made = KeyShare(self._name, cohort.group, cohort.number, share, about)
        return Done(task, made, report)

    def _member_share(self, receipt: Receipt) -> HolderShare:
        try:
            return self._share(receipt)
        except (ClientError, Refused) as error:
            raise type(error)(f"{receipt.id}: {error}") from None

    def _share(self, receipt: Receipt) -> HolderShare:
        """Opens this holder's envelope of a receipt, and checks it against the commitments."""
        committee = self._machine.committee(receipt.committee)
        index = committee.holders.index(self._name)
        if len(receipt.envelopes) != len(committee.holders):
            raise Malformed(f"{len(receipt.envelopes)} envelopes for {len(committee.holders)}")
        if len(receipt.keys) != len(committee.holders):
            raise Malformed(f"{len(receipt.keys)} numbers of keys for {len(committee.holders)}")
        number, newest = receipt.keys[index], self._machine.known.keys.number
        if not 0 <= number <= newest:
            raise Malformed(f"it is sealed for key {number}, and the newest is {newest}")
        key = self._own_keys.get(number)
        if key is None:
            raise Refused(f"it is sealed for key {number}, which is erased")
        sealed, bound = receipt.envelopes[index], enveloped_part(receipt, self._name)
        seeds = envelope.open(key, sealed, bound, committee.seed_bytes)
        found = HolderShare(committee, index, sharing_id(receipt.run, receipt.id), seeds)
        # Inconsistent shares of one client's key would keep its whole cohort from being opened.
        found.check(receipt.commitments)
        return found


class BfvWorker(Worker):
    """The worker of the holder of a bfv key; `secret` never leaves this process."""

    def __init__(
        self, machine: BfvHolder, identity: Identity, secret: Secret, spool: Spool
    ) -> None:
        self._machine = machine
        self._identity = identity
        self._name = machine.name
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
        return self._spool.get(key)

    def work(self, task: Task) -> Done | None:
        match task:
            case OpenSum():
                return self._open(task)
            case Prune(keys):
                for key in keys:
                    self._spool.delete(key)
                return None
        raise InternalError(f"a holder's worker does not know a {type(task).__name__}")

    def _open(self, task: OpenSum) -> Done:
        began, cohort = time.perf_counter(), task.cohort
        total = self._spool.get(task.key)
        layout = self._machine.pinned.layout.group(cohort.group)
        sums = self._load_opener(cohort.group).open(task.block, total, layout.slots(task.block))
        self._spool.delete(task.key)
        payload = sums.astype("<i8").tobytes()
        header = BlockHeader(
            run=self._machine.pinned.run.id,
            author=self._name,
            purpose=OPENED,
            group=cohort.group,
            sequence=cohort.number,
            block=task.block,
            length=len(payload),
            digest=payload_digest(payload),
        )
        signature = self._identity.sign(*signing_bytes(header))
        header = dataclasses.replace(header, signature=signature)
        self._spool.put(header.key, payload)
        figures = (Figure("opening_seconds", time.perf_counter() - began),)
        return Done(task, header, Telemetry(self._name, cohort.group, cohort.version, figures))

    def _load_opener(self, group: str) -> Opener:
        if self._opener is None:
            pinned = self._machine.pinned
            kind = pinned.plan.cipher_of(pinned.layout.group(group))
            self._opener = kind.opener(pinned.place(group), self._secret)
        return self._opener
