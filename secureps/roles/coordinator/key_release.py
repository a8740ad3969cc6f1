"""Which envelope keys of holders are still needed, and what is sealed for one that is erased.

A key is needed while a submission that can still be opened is sealed for it, or somebody was asked
for one before the next key was announced. What holders erase all the same, after a day, opens no
more: where too few of them are left, a submission is dropped as stale, and nobody is accused for
it.
"""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Malformed, NotReady, WrongVersion
from secureps.messages import coordinator_records as records
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import EraseKeys, HolderKeys
from secureps.messages.submission import Receipt
from secureps.roles.coordinator import committees, opening, recovery
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction

SETTLING = (
    EnvelopeKeyAnnounced,
    records.RoundOpened,
    records.RoundGivenUp,
    records.VersionCommitted,
    records.CohortBurnt,
    records.SubmissionsDropped,
    records.StreamEnded,
)
"""Records after which fewer keys may be needed than before."""


AT_ONCE = 64
"""Announcements of a holder that neither cohorts nor time have to account for."""

BETWEEN = 60.0
"""Seconds that account for two of them, where a key serves no shorter time."""


def announced(tx: Transaction, roster: Roster, told: EnvelopeKeyAnnounced) -> None:
    """A holder says which key is its newest, and which are erased.

    Raises:
        NotReady: it has said so more often than its keys can have served.
        Otherwise as `AnnouncedKeys.is_news`.
    """
    assert tx.federation.pinned is not None
    number = tx.federation.keys.number(told.holder)
    if not tx.federation.keys.is_news(told, tx.federation.pinned.run.id, roster):
        return
    _demand_few(tx, told.holder)
    tx.write(told)
    if told.number > number:
        tx.tell_clients(HolderKeys(tx.federation.incarnation, (told,)))
    for group in tx.federation.groups.values():
        drop_stale(tx, group)


def _demand_few(tx: Transaction, holder: str) -> None:
    """Two of each key: that it is there, and that those before are erased.

    Else a holder that says one key after another would fill the journals of all clients.
    """
    seconds = min(BETWEEN, tx.plan.section.cipher.envelope_seconds)
    cohorts = sum(group.number + 1 for group in tx.federation.groups.values())
    if tx.federation.keys.count(holder) >= AT_ONCE + 2 * (cohorts + int(tx.now / seconds)):
        text = f"{holder} has announced more keys than can have served: the next ones wait"
        raise NotReady(text, retry_after=seconds)


def known(tx: Transaction) -> tuple[HolderKeys, ...]:
    """What a client that subscribes is told: nothing while the kit's keys are the newest."""
    keys = tuple(tx.federation.keys.newest.values())
    return (HolderKeys(tx.federation.incarnation, keys),) if keys else ()


def check_numbers(tx: Transaction, receipt: Receipt) -> None:
    """Malformed if a receipt is sealed for a key that its holder has not announced."""
    for holder, number in zip(committees.holders(tx, receipt.committee), receipt.keys):
        newest = tx.federation.keys.number(holder)
        if not 0 <= number <= newest:
            raise Malformed(
                f"{receipt.id}: it is sealed for key {number} of {holder}, whose newest is {newest}"
            )


def check_unerased(tx: Transaction, receipt: Receipt) -> None:
    """WrongVersion if too few holders still have the keys that a receipt is sealed for.

    Journalled and dropped it would be asked for once more, and so on for ever.
    """
    if _stale(tx, receipt):
        raise WrongVersion(f"{receipt.id}: {_stale_text(tx)}")


def drop_stale(tx: Transaction, group: GroupState) -> None:
    """What too few holders have keys for is dropped, and asked for once more.

    Not of a cohort that is closed: its holders answer, or refuse.
    """
    if not opening.wanted(tx.plan):
        return
    stale = [r for r in group.receipts.values() if _stale(tx, r) and group.drops(r.id)]
    if not stale:
        return
    tx.drop(group.name, tuple(receipt.id for receipt in stale), _stale_text(tx))
    for client in {receipt.id.client: None for receipt in stale}:
        if not group.streaming and group.awaits(client):
            tx.order(client, recovery.make_invite(tx, group, client))


def _stale_text(tx: Transaction) -> str:
    return f"fewer than {tx.plan.threshold} key holders still have the keys that it is sealed for"


def _stale(tx: Transaction, receipt: Receipt) -> bool:
    federation = tx.federation
    able = sum(
        number >= max(federation.keys.least(holder), federation.released.get(holder, 0))
        for holder, number in zip(committees.holders(tx, receipt.committee), receipt.keys)
    )
    return bool(receipt.keys) and able < tx.plan.threshold


def release(tx: Transaction) -> None:
    """Tells holders which keys nobody needs any more, once something was settled."""
    if not any(isinstance(record, SETTLING) for record in tx.step.records):
        return
    federation = tx.federation
    for holder in tx.holders:
        released, newest = federation.released.get(holder, 0), federation.keys.number(holder)
        if released >= newest or any(group.returning for group in federation.groups.values()):
            continue
        below = min(newest, _needed(tx, holder))
        if below > released:
            tx.write(records.KeysReleased(holder, below))
            tx.order(holder, make_erase(tx, holder))


def make_erase(tx: Transaction, holder: str) -> EraseKeys:
    """Said again to a holder that subscribes."""
    return EraseKeys(tx.federation.incarnation, tx.federation.released.get(holder, 0))


def _needed(tx: Transaction, holder: str) -> int:
    groups = tx.federation.groups
    sealed = (
        number
        for group in groups.values()
        for receipt in group.receipts.values()
        for whose, number in zip(committees.holders(tx, receipt.committee), receipt.keys)
        if whose == holder
    )
    asked = (
        number
        for (whose, number), owed in tx.federation.owed.items()
        if whose == holder
        and any(groups[each.group].ask_of(each.client) == each.ask for each in owed)
    )
    return min((*sealed, *asked), default=tx.federation.keys.number(holder))
