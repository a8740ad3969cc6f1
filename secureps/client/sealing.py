"""Seals a submission into the outbox: encrypts, digests and signs its blocks and its receipt.

Every payload is durable before the receipt that names it exists. A key that a committee shares is
kept in memory until nobody can ask for its update again: after a burnt cohort the same integers are
sealed anew. What must not live here: making the integers (`client.worker`),
and when anything is sent (`roles.member.member`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from secureps.crypto import envelope
from secureps.crypto.cipher import OneTimeKey, Opening, Sealer
from secureps.crypto.field import vector_bytes
from secureps.crypto.identity import Identity
from secureps.crypto.sharing import share
from secureps.crypto.suite import cipher
from secureps.errors import InternalError, KitError
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import payload_digest
from secureps.messages.submission import (
    FOUNDING,
    UPDATE,
    BlockHeader,
    Receipt,
    SubmissionId,
    ciphertext_root,
    enveloped_part,
    sharing_id,
    signing_bytes,
)
from secureps.policy.spending import Fact
from secureps.roles.member.budget import Budget
from secureps.roles.member.tasks import Aim, Contribute, Evaluate, SealedUpdate
from secureps.roles.pinned_run import Pinned
from secureps.service.parallel import in_order
from secureps.store.budget import BudgetLedger
from secureps.store.spool import Spool


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The base of a submission, and what its receipt says besides.

    Args:
        version: the base version, and digest: of its model.
        spends: the privacy that it costs, or None.
        unsafe: its randomness is no secret.
        step, magnitude, update, beside, most_examples: as in the receipt.
    """

    version: int
    digest: bytes
    spends: Fact | None
    unsafe: bool
    step: int = 0
    magnitude: int | None = None
    update: bytes = b""
    beside: bytes = b""
    most_examples: int = 0


class OutboxSealer:
    """Seals the submissions of one client.

    Args:
        identity: signs headers and receipts.
        holder_keys: the holders' public cipher keys, from the kit.
        outbox: keeps payloads until they are durable elsewhere.
        threads: that seal blocks; the integers do not depend on their number.
        ledger: charged with what an update spends, before a key of its own is made.
    """

    def __init__(
        self,
        identity: Identity,
        holder_keys: Mapping[str, bytes],
        outbox: Spool,
        threads: int = 1,
        ledger: BudgetLedger | None = None,
    ) -> None:
        self._ledger = ledger
        self._identity = identity
        self._holder_keys = holder_keys
        self._outbox = outbox
        self._threads = threads
        self._kept: dict[str, OneTimeKey] = {}

    def offer(
        self, pinned: Pinned, id: SubmissionId, values: NDArray[np.float32], unsafe: bool
    ) -> SealedUpdate:
        """Puts a founding model into the outbox, in the clear.

        Args:
            values: float32 (values of the group,).
        """
        layout = pinned.layout.group(id.group)
        spans = (layout.span(block) for block in range(layout.blocks))
        payloads = (values[first:last].astype("<f4").tobytes() for first, last in spans)
        return self._put(pinned, id, FOUNDING, payloads, Origin(-1, b"", None, unsafe))

    def seal(
        self,
        pinned: Pinned,
        id: SubmissionId,
        values: NDArray[np.int64],
        weight: int,
        origin: Origin,
    ) -> SealedUpdate:
        """Encrypts an update. Every block carries the weight, so that shards can form the mean.

        Args:
            values: int64 (values of the group,), on the grid.
        Raises:
            KitError: the kit has no key of a holder, or too many.
            BudgetSpent: over all runs more would be spent than this client allows.
        """
        # Charged before it is sealed: a kill may waste budget, but leaves no update uncharged.
        self._charge(pinned, origin.spends)
        layout, sealer = pinned.layout.group(id.group), self._sealer(pinned, id.group)
        digits = pinned.plan.weights(id.group).digits(weight)

        def sealed(block: int) -> bytes:
            slots = np.empty(layout.slots(block), np.int64)
            slots[: layout.weight_slots] = digits
            slots[layout.weight_slots :] = values[slice(*layout.span(block))]
            return sealer.seal(block, slots)

        blocks = in_order(self._threads, sealed, range(layout.blocks))
        return self._put(pinned, id, UPDATE, blocks, origin, sealer.key)

    def afford(self, pinned: Pinned, client: str, task: Contribute | Evaluate) -> None:
        """Checks that the budget over all runs covers a task, before the task is done.

        Raises:
            BudgetSpent: it does not.
        """
        privacy = pinned.plan.section.privacy
        if self._ledger is None or privacy is None:
            return
        if isinstance(task, Evaluate):
            aims: tuple[Aim, ...] = () if task.aim is None else (task.aim,)
        else:  # without aims it counts its examples: by the training of the first ones
            aims = task.aims or tuple(Aim(at.group, at.version, 0) for at in task.model)
        ahead = Budget(pinned.plan, client, None).planned(pinned.layout, aims)
        self._ledger.look(pinned.run.id, ahead, privacy.delta)

    def _charge(self, pinned: Pinned, spends: Fact | None) -> None:
        """Charges the ledger. The same update, sealed again after a kill, costs nothing more."""
        privacy = pinned.plan.section.privacy
        if self._ledger is not None and spends is not None and privacy is not None:
            self._ledger.charge(pinned.run.id, spends, privacy.delta)

    def seal_again(
        self, pinned: Pinned, receipt: Receipt, headers: Sequence[BlockHeader], sequence: int
    ) -> SealedUpdate:
        """Encrypts the integers of an update anew, under a fresh key and sequence number.

        Args:
            receipt, headers: of the update, whose key this process must still have.
            sequence: the new submission's.
        Raises:
            InternalError: the key is gone.
        """
        old = self._kept.get(headers[0].key)
        if old is None:
            raise InternalError(f"the key of {receipt.id} is not here any more")
        layout, kind = pinned.layout.group(receipt.id.group), cipher(pinned.plan.cipher_parameters)
        opener = kind.opener(pinned.place(receipt.id.group), old)
        adder, sealer = kind.adder(), self._sealer(pinned, receipt.id.group)

        def sealed(header: BlockHeader) -> bytes:
            slots = layout.slots(header.block)
            sums = adder.zero(slots)
            adder.add(sums, self._outbox.get(header.key), 1)
            return sealer.seal(header.block, opener.open(header.block, adder.total(sums), slots))

        blocks = in_order(self._threads, sealed, headers)
        origin = Origin(
            receipt.version,
            receipt.base,
            receipt.fact,
            receipt.unsafe,
            receipt.step,
            receipt.magnitude,
            receipt.update,
            receipt.beside,
            receipt.most_examples,
        )
        id = dataclasses.replace(receipt.id, sequence=sequence)
        return self._put(pinned, id, UPDATE, blocks, origin, sealer.key)

    def forget(self, keys: Iterable[str]) -> None:
        """Drops the one-time keys of payloads that were deleted, by their spool keys."""
        for key in keys:
            self._kept.pop(key, None)

    def _sealer(self, pinned: Pinned, group: str) -> Sealer:
        kind, key = cipher(pinned.plan.cipher_parameters), None
        if kind.opening is Opening.HOLDER:
            if len(self._holder_keys) != 1:
                raise KitError(f"{kind.parameters.name} needs one holder's key in the kit")
            (key,) = self._holder_keys.values()
        return kind.sealer(pinned.place(group), key)

    def _put(
        self,
        pinned: Pinned,
        id: SubmissionId,
        purpose: str,
        payloads: Iterable[bytes],
        origin: Origin,
        key: OneTimeKey | None = None,
    ) -> SealedUpdate:
        """Writes every block to the outbox, durably, and signs headers and receipt."""
        run, headers = pinned.run.id, []
        for block, payload in enumerate(payloads):
            header = BlockHeader(
                run=run,
                author=id.client,
                purpose=purpose,
                group=id.group,
                sequence=id.sequence,
                block=block,
                length=len(payload),
                digest=payload_digest(payload),
            )
            header = dataclasses.replace(header, signature=self._sign(header))
            self._outbox.put(header.key, payload)
            headers.append(header)
        spends, blocks = origin.spends, tuple(header.digest for header in headers)
        receipt = Receipt(
            run=run,
            id=id,
            purpose=purpose,
            version=origin.version,
            base=origin.digest,
            blocks=blocks,
            root=ciphertext_root(blocks),
            envelopes=(),
            commitments=(),
            size=sum(header.length for header in headers),
            charge=spends if isinstance(spends, Charge) else None,
            release=spends if isinstance(spends, Release) else None,
            unsafe=origin.unsafe,
            step=origin.step,
            magnitude=origin.magnitude,
            update=origin.update,
            beside=origin.beside,
            most_examples=origin.most_examples,
        )
        if key is not None:
            receipt = self._shared(pinned, receipt, key)
            self._kept[headers[0].key] = key
        receipt = dataclasses.replace(receipt, signature=self._sign(receipt))
        return SealedUpdate(receipt, tuple(headers))

    def _shared(self, pinned: Pinned, receipt: Receipt, key: OneTimeKey) -> Receipt:
        """Adds the shares of the one-time key to a receipt, which then lacks only its signature.

        Raises:
            PlanRefused: the kit has not as many key holders as the plan says.
        """
        committee = pinned.plan.committee(tuple(self._holder_keys))
        shared = share(sharing_id(receipt.run, receipt.id), key.coefficients(), committee)
        receipt = dataclasses.replace(
            receipt, commitments=shared.commitments, correction=vector_bytes(shared.correction)
        )
        # Bound to the receipt, so that an envelope cannot be moved to another submission.
        bound = enveloped_part(receipt)
        return dataclasses.replace(
            receipt,
            envelopes=tuple(
                envelope.seal(
                    envelope.EnvelopePublicKey(self._holder_keys[name]), shared.seeds_of(k), bound
                )
                for k, name in enumerate(committee.holders)
            ),
        )

    def _sign(self, record: BlockHeader | Receipt) -> bytes:
        return self._identity.sign(*signing_bytes(record))
