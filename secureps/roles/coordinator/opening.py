"""Committees of key holders: which one updates are sealed for, and how its answers open a cohort.

A cohort has one committee, because a client seals one base version for one committee only. Later
base versions are sealed for the holders that the CA named last. Any t shares of a cohort give a sum
of keys; the shards say whether it opens.

Any t - 1 holders may lie about their shares. So subsets of answers are tried one after another, and
a holder that is off the polynomial of the others is named. A sum of keys that is too large is not
tried. If no subset opens the cohort, it is burnt: its privacy is charged, and none of its
submissions is ever part of another cohort.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopePublicKey
from secureps.crypto.sharing import (
    KEY_BOUND,
    Committee,
    Vector,
    Verdict,
    interpolate,
    judge,
    key_sum,
    parse_vector,
)
from secureps.errors import WrongVersion
from secureps.messages.encoding import file_digest
from secureps.messages.orders import KeyCommittee, SealFor
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Receipt, SubmissionId
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def committee_at(tx: Transaction, group: str, version: int) -> KeyCommittee:
    """Returns the holders that updates of a group from this version are sealed for."""
    known = tx.federation.committees
    return next((c for c in reversed(known) if c.begins(group) <= version), known[0])


def holders_of(tx: Transaction, committee: bytes | None) -> tuple[str, ...]:
    """Returns the holders of the committee with this digest; empty for None."""
    known = tx.federation.committees
    return next((c.holders for c in known if c.committee == committee), ())


def other_holders(tx: Transaction, group: GroupState) -> str:
    """Says which holders the newest version is sealed for, if they are not the roster's."""
    known, version = tx.federation.committees, max(0, group.version)
    if not known or group.phase is Phase.DONE:
        return ""
    due, newest = committee_at(tx, group.name, version), known[-1]
    text = f"version {version} is sealed for {named(due.holders, len(due.holders))}"
    if due.committee != newest.committee:
        begins, names = newest.begins(group.name), named(newest.holders, len(newest.holders))
        return f"{text}, and from version {begins} on for {names}"
    return text if set(due.holders) != set(tx.holders) else ""


def is_able(tx: Transaction, committee: KeyCommittee) -> bool:
    """True if enough of a committee are on the roster; holders that were taken off do not open."""
    return sum(holder in tx.holders for holder in committee.holders) >= tx.plan.threshold


def periods(tx: Transaction, group: str) -> Callable[[int], int] | None:
    """Returns a map from base version to period; only updates of one period can be summed.

    A period has one support and one committee. None: all versions are one period.
    """
    every = tx.plan.group(group).support_every
    later = {each.committee: each.begins(group) for each in tx.federation.committees[1:]}
    begins = later.values()
    if every is None and not begins:
        return None
    return lambda version: (version // every if every else 0) + sum(b <= version for b in begins)


def check_committee(tx: Transaction, receipt: Receipt) -> None:
    """WrongVersion unless a receipt is for the committee that its base version is sealed for."""
    due = committee_at(tx, receipt.id.group, receipt.version)
    if receipt.committee != due.committee:
        raise WrongVersion(
            f"{receipt.id} is sealed for other key holders than {named(due.holders)}, for whom "
            f"version {receipt.version} is: wait for the next version"
        )


def form_committee(tx: Transaction) -> None:
    """Has the next versions sealed for the roster's holders, if they are new.

    The earlier holders go on while the roster has fewer holders than the plan, or lacks a key.
    """
    known, roster, pinned = tx.federation.committees, tx.settings.roster, tx.federation.pinned
    shared = tx.plan.has_committee and pinned is not None
    if tx.plan.opening is Opening.HOLDER and pinned and pinned.run.holders != roster.committee:
        text = "the key that all updates are encrypted for is no longer on the roster"
        tx.step.say(f"{text}: nobody can open them, begin a new run from the last model")
    if not shared or (known and known[-1].committee == roster.committee):
        return
    members = roster.holders()
    names = tuple(certificate.name for certificate in members)
    if any(earlier.committee == roster.committee for earlier in known):
        text = f"{named(names)} opened earlier versions of this run, and others since"
        tx.step.say(f"{text}: a holder that was replaced does not come back")
        return
    if known and len(names) != tx.plan.holders:
        text = f"the roster has {len(names)} key holders, and the plan {tx.plan.holders}"
        tx.step.say(f"{text}: those that there were go on")
        return
    found = {file_digest(EnvelopePublicKey(key).to_bytes()): key for key in tx.settings.keys}
    if known and (lacking := [c.name for c in members if c.cipher_key_digest not in found]):
        text = f"the kit lacks the cipher key of {named(lacking)}: copy all of public/"
        tx.step.say(f"{text}; the key holders before go on")
        return
    groups = tx.federation.groups.values() if known else ()
    since = tuple(GroupVersion(group.name, group.version + 1) for group in groups)
    digests = (certificate.cipher_key_digest for certificate in members)
    before = known[-1] if known else None
    made = tuple(found[digest] for digest in digests if digest in found)
    formed = KeyCommittee(roster.committee, names, made, since)
    tx.write(formed)
    tx.tell_clients(make_seal_for(tx, formed))
    if before is not None:
        gone, come = set(before.holders) - set(names), set(names) - set(before.holders)
        text = f"{named(sorted(come or names))} in place of {named(sorted(gone or names))}"
        tx.step.say(f"the next versions are sealed for other key holders: {text}")


def used_committees(tx: Transaction) -> tuple[KeyCommittee, ...]:
    """Returns the committees that submissions are sealed for, now or from the next versions on."""
    known, groups = tx.federation.committees, tx.federation.groups.values()
    if len(known) <= 1:
        return tuple(known)
    sealed = {receipt.committee for group in groups for receipt in group.receipts.values()}
    due = [committee_at(tx, group.name, max(0, group.version)) for group in groups]
    return tuple(c for c in known if c in due or c == known[-1] or c.committee in sealed)


def make_seal_for(tx: Transaction, committee: KeyCommittee) -> SealFor:
    newest = tx.federation.keys.newest
    keys = tuple(newest[holder] for holder in committee.holders if holder in newest)
    return SealFor(tx.federation.incarnation, committee, keys)


def why_too_few(tx: Transaction, group: GroupState) -> str:
    """Returns why no round may open, if too few holders are here; empty if enough are."""
    if not tx.plan.has_committee:
        return ""
    due = committee_at(tx, group.name, group.version).holders
    here = [holder for holder in due if holder in tx.watchers]
    if len(here) >= tx.plan.threshold:
        return ""
    return f"waits for key holders: {describe_missing(tx, due, here)}"


# --- examination ------------------------------------------------------------------


def visible_submissions(tx: Transaction, group: GroupState) -> tuple[Collection[SubmissionId], str]:
    """Returns the submissions that the rule may see, and what the others wait for."""
    open_receipts, held = group.open_receipts, held_back(tx, group)
    shown: Collection[SubmissionId] = open_receipts.ready
    if held:
        shown = tuple(id for id in shown if id not in held)
    count = len(open_receipts.receipts) - len(shown)
    if not count:
        return shown, ""
    updates = f"{count} update{'s' * (count > 1)}"
    due = committee_at(tx, group.name, group.version).holders
    said = describe_missing(tx, due, open_receipts.examiners_of_all(held))
    return shown, f"{updates} came, to be examined by key holders: {said}"


def held_back(tx: Transaction, group: GroupState) -> frozenset[SubmissionId]:
    """Returns submissions that enough holders found in order, but that the rule may not see yet.

    If a client's envelope had a flaw before, every holder that is here examines the client's
    submissions first, while there is time. A submission that too few holders can open is held back
    until more can.
    """
    opened = group.open_receipts
    stuck = frozenset(id for id in unopenable(tx, group) if id in opened.ready)
    if not group.suspicion.flawed or last_look(tx, group) is None:
        return stuck
    ids = (id for client in group.suspicion.flawed for id in opened.clients.get(client, ()))
    shown = (opened.receipts[id] for id in ids if id in opened.ready)
    return stuck.union(
        receipt.id
        for receipt in shown
        if not opened.answered(receipt.id)
        >= tx.watchers.intersection(holders_of(tx, receipt.committee))
    )


def remaining_holders(tx: Transaction, group: GroupState, id: SubmissionId) -> frozenset[str]:
    """Returns the roster's holders that a submission is sealed for; all, if it is not known."""
    receipt = group.open_receipts.receipts.get(id)
    if receipt is None:
        return frozenset(tx.holders)
    return frozenset(holders_of(tx, receipt.committee)) & frozenset(tx.holders)


def unopenable(tx: Transaction, group: GroupState) -> frozenset[SubmissionId]:
    """Returns submissions in which so many holders found flaws that fewer than t can open them."""
    doubted, t = group.open_receipts.doubted.items(), tx.plan.threshold
    return frozenset(id for id, by in doubted if len(remaining_holders(tx, group, id) - by) < t)


def last_look(tx: Transaction, group: GroupState) -> float | None:
    """Returns until when all holders examine flawed clients' submissions; None: that is over."""
    assert group.opened_at is not None
    _, until = tx.deadlines(group, group.opened_at)
    return until if tx.now < until else None


def is_examined_first(group: GroupState, client: str) -> bool:
    """True if holders examine a client's submissions as soon as they come.

    Otherwise (`PinnedRun.examined`) holders examine them while they open the cohort, except for a
    client in whose envelope a holder found a flaw (`held_back`).
    """
    return group.open_receipts.enough > 0 or client in group.suspicion.flawed


def unexamined(tx: Transaction, group: GroupState, holder: str) -> tuple[Receipt, ...]:
    answered = group.open_receipts.answered
    return tuple(
        receipt
        for receipt in group.receipts.values()
        if is_examined_first(group, receipt.id.client)
        and holder not in answered(receipt.id)
        and holder in holders_of(tx, receipt.committee)
    )


def describe_missing(tx: Transaction, holders: Collection[str], answered: Collection[str]) -> str:
    """Says which of these holders have not answered, and how many suffice."""
    absent = [holder for holder in holders if holder not in answered]
    verb = "has" if len(absent) == 1 else "have"
    suffice = f"{tx.plan.threshold} of {len(holders)} suffice"
    return f"{', '.join(absent) or 'nobody'} {verb} not answered; {suffice}"


# --- opening ----------------------------------------------------------------------


def asked_holders(tx: Transaction, group: GroupState) -> tuple[str, ...]:
    if not tx.plan.has_committee:
        return tx.holders
    return holders_of(tx, group.closed_cohort.cohort.committee)


def silent_holders(tx: Transaction, group: GroupState) -> tuple[str, ...]:
    """Returns holders that have neither given nor refused a share of the cohort."""
    making = group.closed_cohort
    answered = making.shares.keys() | making.refusals.keys()
    return tuple(holder for holder in asked_holders(tx, group) if holder not in answered)


def candidates(tx: Transaction, group: GroupState) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Yields untried sums of keys (int32, little-endian) and the holders whose shares give them."""
    committee, answers = _answers(tx, group)
    found: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}
    for subset in itertools.combinations(sorted(answers), committee.threshold):
        names = tuple(committee.holders[k] for k in subset)
        found[names] = _sum(tx, group, committee, {k: answers[k] for k in subset})
    failed = {found[names].tobytes() for names in group.closed_cohort.failed}
    for names, total in found.items():
        if total.tobytes() not in failed and _is_plausible(total, group):
            yield total.astype("<i4").tobytes(), names


def _sum(
    tx: Transaction, group: GroupState, committee: Committee, answers: Mapping[int, Vector]
) -> npt.NDArray[np.int64]:
    length = tx.plan.key_length(tx.layout.group(group.name))
    members = group.closed_cohort.cohort.members
    corrections = (parse_vector(group.receipts[m.id].correction or b"", length) for m in members)
    return key_sum(committee, answers, corrections, [member.weight for member in members])


def _is_plausible(found: npt.NDArray[np.int64], group: GroupState) -> bool:
    """True if |S| <= 41 sum w_i, which is necessary and not sufficient."""
    return bool(np.abs(found).max() <= KEY_BOUND * group.closed_cohort.cohort.weight)


def _answers(tx: Transaction, group: GroupState) -> tuple[Committee, dict[int, Vector]]:
    """Returns the committee, and by index of its holder each share of the cohort's sum of keys."""
    length = tx.plan.key_length(tx.layout.group(group.name))
    committee, shares = tx.plan.committee(asked_holders(tx, group)), group.closed_cohort.shares
    index = committee.holders.index
    return committee, {index(h): parse_vector(share, length) for h, share in shares.items()}


def judge_answers(tx: Transaction, group: GroupState) -> Verdict:
    """Finds holders whose answers are off the polynomial of the others."""
    return judge(*_answers(tx, group))


def liars(tx: Transaction, group: GroupState) -> tuple[tuple[str, ...], str]:
    """Returns the holders that lied about an opened cohort, and the proof in words."""
    committee, answers = _answers(tx, group)
    by = group.closed_cohort.opened_by
    right = {k: a for k, a in answers.items() if committee.holders[k] in by}
    verdict = judge(committee, answers, interpolate(committee, right))
    return tuple(committee.holders[k] for k in sorted(verdict.liars)), verdict.reason
