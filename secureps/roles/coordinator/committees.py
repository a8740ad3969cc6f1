"""Whom updates are sealed for: committees of key holders, one after another.

When the CA replaces a holder, base versions that are still to come are sealed for the new
committee, and those before them for the one that they were sealed for already: a client seals one
base version for one committee alone, and a cohort has one.
"""

from __future__ import annotations

from collections.abc import Callable

from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopePublicKey
from secureps.errors import WrongVersion
from secureps.messages.coordinator_records import CommitteeFormed
from secureps.messages.encoding import file_digest
from secureps.messages.orders import GroupVersion, KeyCommittee, SealFor
from secureps.messages.submission import Receipt
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say
from secureps.roles.pinned_run import PinnedRun
from secureps.wording import named


def at(tx: Transaction, group: str, version: int) -> KeyCommittee:
    """Whom updates of a group are sealed for that were trained from this version."""
    known = tx.federation.committees
    return next((c for c in reversed(known) if c.begins(group) <= version), known[0])


def holders(tx: Transaction, committee: bytes | None) -> tuple[str, ...]:
    """Who is in the committee that a receipt or a cohort names; nobody where it names none."""
    known = tx.federation.committees
    return next((c.holders for c in known if c.committee == committee), ())


def others(tx: Transaction, group: GroupState) -> str:
    """Whom the newest version is sealed for, where they are not those of the roster; else empty."""
    known, version = tx.federation.committees, max(0, group.version)
    if not known or group.phase is Phase.DONE:
        return ""
    due, newest = at(tx, group.name, version), known[-1]
    text = f"version {version} is sealed for {named(due.holders, len(due.holders))}"
    if due.committee != newest.committee:
        begins, names = newest.begins(group.name), named(newest.holders, len(newest.holders))
        return f"{text}, and from version {begins} on for {names}"
    return text if set(due.holders) != set(tx.holders) else ""


def able(tx: Transaction, committee: KeyCommittee) -> bool:
    """Whether enough of them are on the roster: who was taken off it never opens anything again."""
    return sum(holder in tx.holders for holder in committee.holders) >= tx.plan.threshold


def periods(tx: Transaction, group: str) -> Callable[[int], int] | None:
    """Which base versions of a group may stand in one cohort: those with the same number.

    None: all of them. Updates of one support and for one committee can be summed.
    """
    every = tx.plan.group(group).support_every
    later = {each.committee: each.begins(group) for each in tx.federation.committees[1:]}
    begins = later.values()
    if every is None and not begins:
        return None
    return lambda version: (version // every if every else 0) + sum(b <= version for b in begins)


def check(tx: Transaction, receipt: Receipt) -> None:
    """WrongVersion unless a receipt is for the committee that its base version is sealed for."""
    due = at(tx, receipt.id.group, receipt.version)
    if receipt.committee != due.committee:
        raise WrongVersion(
            f"{receipt.id} is sealed for other key holders than {named(due.holders)}, for whom "
            f"version {receipt.version} is: wait for the next version"
        )


def form(tx: Transaction, settings: PinnedRun) -> None:
    """The holders of a roster open what is sealed from the next versions on, if they are others.

    While they are not as many as the plan says, or a key is not here, those before them go on.
    """
    known, roster, pinned = tx.federation.committees, settings.roster, tx.federation.pinned
    shared = tx.plan.opening is Opening.COMMITTEE and pinned is not None
    if tx.plan.opening is Opening.HOLDER and pinned and pinned.run.holders != roster.committee:
        text = "the key that all updates are encrypted for is on the roster no more"
        tx.step.effects.append(
            Say(f"{text}: nobody opens any, begin a new run from the last model")
        )
    if not shared or (known and known[-1].committee == roster.committee):
        return
    members = roster.holders()
    names = tuple(certificate.name for certificate in members)
    if any(earlier.committee == roster.committee for earlier in known):
        text = f"{named(names)} opened earlier versions of this run, and others since"
        tx.step.effects.append(Say(f"{text}: a holder that was replaced does not come back"))
        return
    if known and len(names) != tx.plan.holders:
        text = f"the roster has {len(names)} key holders, and the plan {tx.plan.holders}"
        tx.step.effects.append(Say(f"{text}: those that there were go on"))
        return
    found = {file_digest(EnvelopePublicKey(key).to_bytes()): key for key in settings.keys}
    if known and (lacking := [c.name for c in members if c.cipher_key_digest not in found]):
        text = f"the kit lacks the cipher key of {named(lacking)}: copy all of public/"
        tx.step.effects.append(Say(f"{text}; the key holders before go on"))
        return
    groups = tx.federation.groups.values() if known else ()
    since = tuple(GroupVersion(group.name, group.version + 1) for group in groups)
    digests = (certificate.cipher_key_digest for certificate in members)
    before = known[-1] if known else None
    made = tuple(found[digest] for digest in digests if digest in found)
    formed = KeyCommittee(roster.committee, names, made, since)
    tx.write(CommitteeFormed(formed))
    tx.tell_clients(SealFor(tx.federation.incarnation, formed))
    if before is not None:
        gone, come = set(before.holders) - set(names), set(names) - set(before.holders)
        text = f"{named(sorted(come or names))} in place of {named(sorted(gone or names))}"
        tx.step.effects.append(Say(f"the next versions are sealed for other key holders: {text}"))


def used(tx: Transaction) -> tuple[KeyCommittee, ...]:
    """Those whom something is sealed for, or will be from the next versions on."""
    known, groups = tx.federation.committees, tx.federation.groups.values()
    sealed = {receipt.committee for group in groups for receipt in group.receipts.values()}
    due = [at(tx, group.name, max(0, group.version)) for group in groups] if known else []
    return tuple(c for c in known if c in due or c == known[-1] or c.committee in sealed)


def repeat(tx: Transaction, client: str) -> None:
    """A client hears for whom to seal, from the versions on that there are."""
    for committee in used(tx):
        tx.order(client, SealFor(tx.federation.incarnation, committee))
