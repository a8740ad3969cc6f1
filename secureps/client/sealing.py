"""Seals a submission into the outbox: encrypts, digests and signs its blocks and its receipt.

The receipt gives the shares of a one-time key to the holders. That key stays in memory as long as
its update may be needed again.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from secureps.client.update import Integers
from secureps.crypto import envelope
from secureps.crypto.cipher import Cipher, OneTimeKey, Opening, Piece, Sealer
from secureps.crypto.identity import Identity
from secureps.crypto.sharing import share, vector_bytes
from secureps.errors import DamagedStore, InternalError, KitError
from secureps.messages.charge import Fact
from secureps.messages.encoding import payload_digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.member_records import Sealed
from secureps.messages.orders import KeyCommittee
from secureps.messages.submission import (
    FOUNDING,
    BlockHeader,
    Receipt,
    SubmissionId,
    ciphertext_root,
    enveloped_part,
    sharing_id,
    signing_bytes,
)
from secureps.privacy.ledger import to_row
from secureps.roles.pinned_run import Pinned
from secureps.service.loop import in_order
from secureps.store.spool import Spool


def draft_receipt(
    run: bytes,
    id: SubmissionId,
    purpose: str,
    version: int,
    base: bytes,
    spends: Fact | None,
    unsafe: bool,
) -> Receipt:
    """Makes a receipt without blocks, shares and signature; `spends` is its cost in privacy."""
    none, fact = (), to_row(spends)
    return Receipt(run, id, purpose, version, base, none, b"", none, none, 0, *fact, unsafe)


class OutboxSealer:
    """Seals the submissions of one client.

    Args:
        committee: returns the key holders for an update of a group from a version.
        announced: returns the newest key of each holder that has replaced the one in the kit.
    """

    def __init__(
        self,
        identity: Identity,
        holder_keys: Mapping[str, bytes],
        committee: Callable[[str, int], KeyCommittee],
        outbox: Spool,
        threads: int = 1,
        announced: Callable[[], Mapping[str, EnvelopeKeyAnnounced]] = dict,
    ) -> None:
        self._announced = announced
        self._identity = identity
        self._holder_keys = holder_keys
        self._committee = committee
        self._outbox = outbox
        self._threads = threads
        self._kept: dict[str, tuple[OneTimeKey, KeyCommittee]] = {}
        self._put_now = list[str]()

    def offer(
        self, pinned: Pinned, id: SubmissionId, values: NDArray[np.float32], unsafe: bool
    ) -> Sealed:
        """Puts a founding model, float32 (values of the group,), in the clear into the outbox."""
        layout = pinned.layout.group(id.group)
        spans = (layout.span(block) for block in range(layout.blocks))
        little = values.astype("<f4", copy=False).data.cast("B")
        parts = (little[4 * first : 4 * last] for first, last in spans)
        blocks = enumerate(iter([partial(bytes, part)]) for part in parts)
        receipt = draft_receipt(pinned.run.id, id, FOUNDING, -1, b"", None, unsafe)
        return self._put(pinned, receipt, blocks)

    def seal(
        self, pinned: Pinned, receipt: Receipt, blocks: Iterable[tuple[int, Integers]]
    ) -> Sealed:
        """Encrypts an update's blocks in order; KitError if holders' keys in the kit do not fit."""
        sealer = self._sealer(pinned, receipt.id.group)
        made = ((block, sealer.pieces(block, values)) for block, values in blocks)
        return self._put(pinned, receipt, made, sealer.key)

    def seal_again(
        self, pinned: Pinned, receipt: Receipt, headers: Sequence[BlockHeader], sequence: int
    ) -> Sealed:
        """Encrypts the integers of an update again, under a new key and sequence number.

        The update stays sealed for the same key holders, whatever the coordinator says: if two
        committees could open one base version, it could be opened in two cohorts. Without a
        one-time key only the sequence number changes. Raises DamagedStore if a block in the outbox
        is not what was sent.
        """
        kept, group = self._kept.get(headers[0].key), receipt.id.group
        anew = dataclasses.replace(receipt, id=dataclasses.replace(receipt.id, sequence=sequence))
        if not pinned.plan.has_committee:
            same = ((h.block, iter([partial(self._read_sent, h)])) for h in headers)
            return self._put(pinned, anew, same)
        if kept is None:
            raise InternalError(f"the key of {receipt.id} is not here any more")
        old, committee = kept
        layout = pinned.layout.group(group)
        kind = self._cipher(pinned, group)
        opener = kind.opener(pinned.place(group), old)
        adder, sealer = kind.adder(), self._sealer(pinned, group)

        def sealed(header: BlockHeader) -> Iterator[Piece]:
            slots = layout.slots(header.block)
            sums = adder.zero(slots)
            adder.add(sums, self._read_sent(header), 1)
            opened = opener.open(header.block, adder.total(sums), slots)
            return sealer.pieces(header.block, opened)

        blocks = ((header.block, sealed(header)) for header in headers)
        return self._put(pinned, anew, blocks, sealer.key, committee)

    def _read_sent(self, header: BlockHeader) -> bytes:
        payload = self._outbox.get(header.key)
        if payload_digest(payload) != header.digest:  # other integers may not get this name
            raise DamagedStore(
                f"block {header.block} of {header.id} in this client's outbox is damaged, and is "
                "not sealed again: look at the disk, and start the client again"
            )
        return payload

    def drop(self, keys: Iterable[str]) -> None:
        """Deletes payloads by their keys in the outbox, and their one-time keys."""
        for key in keys:
            self._outbox.delete(key)
            self._kept.pop(key, None)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """After an error, drops the payloads that were put into the outbox inside this context."""
        self._put_now.clear()
        try:
            yield
        except Exception:
            self.drop(self._put_now)
            raise

    def _cipher(self, pinned: Pinned, group: str) -> Cipher:
        return pinned.plan.cipher_of(pinned.layout.group(group))

    def _sealer(self, pinned: Pinned, group: str) -> Sealer:
        kind, key = self._cipher(pinned, group), None
        if kind.opening is Opening.HOLDER:
            if len(self._holder_keys) != 1:
                raise KitError(f"{kind.parameters.name} needs one holder's key in the kit")
            (key,) = self._holder_keys.values()
        return kind.sealer(pinned.place(group), key)

    def _put(
        self,
        pinned: Pinned,
        receipt: Receipt,
        blocks: Iterable[tuple[int, Iterator[Piece]]],
        key: OneTimeKey | None = None,
        committee: KeyCommittee | None = None,
    ) -> Sealed:
        """Writes every block to the outbox, durably, and signs headers and receipt.

        A one-time key is shared among the `committee` (None: the current one).
        """
        id, made = receipt.id, dict[int, BlockHeader]()
        for block, pieces in blocks:
            place = (receipt.run, id.client, receipt.purpose, id.group, id.sequence, block)
            header = BlockHeader(*place, length=0, digest=b"")
            sealed = in_order(self._threads, operator.call, pieces)
            length, digest = self._outbox.keep(header.name, sealed)
            header = dataclasses.replace(header, length=length, digest=digest)
            self._put_now.append(header.key)
            made[block] = dataclasses.replace(header, signature=self._sign(header))
        headers = [made[block] for block in sorted(made)]
        digests = tuple(header.digest for header in headers)
        size = sum(header.length for header in headers)
        receipt = dataclasses.replace(
            receipt, blocks=digests, root=ciphertext_root(digests), size=size
        )
        if key is not None:
            holders = committee or self._committee(id.group, receipt.version)
            receipt = self._share_key(pinned, receipt, key, holders)
            self._kept[headers[0].key] = key, holders
        receipt = dataclasses.replace(receipt, signature=self._sign(receipt))
        return Sealed(receipt, tuple(headers))

    def _share_key(
        self, pinned: Pinned, receipt: Receipt, key: OneTimeKey, sealed_for: KeyCommittee
    ) -> Receipt:
        committee = pinned.plan.committee(sealed_for.holders)
        shared = share(sharing_id(receipt.run, receipt.id), key.coefficients(), committee)
        correction = vector_bytes(shared.correction)
        root = ciphertext_root(receipt.blocks, correction)
        announced, keys = self._announced(), dict[str, tuple[int, bytes]]()
        for name, first in zip(sealed_for.holders, sealed_for.keys, strict=True):
            newest = announced.get(name)
            keys[name] = (0, first) if newest is None else (newest.number, newest.key)
        receipt = dataclasses.replace(
            receipt,
            commitments=shared.commitments,
            correction=correction,
            root=root,
            keys=tuple(number for number, _ in keys.values()),
            committee=sealed_for.committee,
        )
        # Bind envelopes to the receipt, so that nobody can move one to another submission.
        envelopes = tuple(
            envelope.seal(
                envelope.EnvelopePublicKey(key), shared.seeds_of(k), enveloped_part(receipt, name)
            )
            for k, (name, (_, key)) in enumerate(keys.items())
        )
        return dataclasses.replace(receipt, envelopes=envelopes)

    def _sign(self, record: BlockHeader | Receipt) -> bytes:
        return self._identity.sign(*signing_bytes(record))
