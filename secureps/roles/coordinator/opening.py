"""What the coordinator makes of the answers of a committee's key holders.

    examination   receipts that enough holders found in order are shown to the rule
    opening       any t shares of a cohort give a sum of keys; the shards say whether it opens

Any t - 1 holders may lie about their shares: subsets of answers are tried one after another, and
who is off the polynomial of the others is named. A sum of keys that is too large is not tried
at all. If nothing opens, the cohort is burnt: it is charged, and none of its submissions is ever
part of another. Pure functions of the state; what must not live here: orders, records, shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secureps.config.plan import SyncSection
from secureps.crypto.cipher import Opening
from secureps.crypto.field import Vector, parse_vector
from secureps.crypto.sharing import KEY_BOUND, Committee, Verdict, interpolate, judge, key_sum
from secureps.crypto.suite import key_length
from secureps.messages.submission import Receipt, SubmissionId
from secureps.policy.plan import Plan
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Found:
    """A sum of keys that may open the cohort: int32 little-endian, from these holders' shares."""

    key: bytes
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Nothing will ever open this cohort; `spoilt`: whoever answered told the truth.

    One holder more than t fits with the others: only two that conspire could have made that up.
    """

    reason: str
    spoilt: bool = False


def wanted(plan: Plan) -> bool:
    """Whether a committee opens the sums of a plan."""
    return plan.opening is Opening.COMMITTEE


def short(turn: Transaction) -> str:
    """Why no round opens: too few holders are here to open anything; empty if enough are."""
    if not wanted(turn.plan):
        return ""
    here = [holder for holder in turn.holders if holder in turn.watchers]
    if len(here) >= turn.plan.threshold:
        return ""
    return f"waits for key holders: {_missing(turn, here)}"


# --- examination ------------------------------------------------------------------


def examined(turn: Transaction, group: GroupState) -> tuple[Collection[Receipt], str]:
    """The receipts that the rule may see, and what the others wait for (empty: there are none)."""
    inbox, held = group.inbox, kept(turn, group)
    shown: Collection[Receipt] = inbox.ready.values()
    if held:
        shown = tuple(receipt for receipt in shown if receipt.id not in held)
    count = len(inbox.receipts) - len(shown)
    if not count:
        return shown, ""
    updates = f"{count} update{'s' * (count > 1)}"
    missing = _missing(turn, inbox.looked_into_all(held))
    return shown, f"{updates} to be examined by key holders: {missing}"


def kept(turn: Transaction, group: GroupState) -> frozenset[SubmissionId]:
    """What enough holders found in order, and the rule may not see yet.

    Of a client in whose envelope a flaw was found, and that stayed in, every holder that is here
    looks first, while there is time.
    """
    if not group.suspicion.flawed or last_look(turn, group) is None:
        return frozenset()
    inbox, here = group.inbox, turn.watchers.intersection(turn.holders)
    ids = (id for client in group.suspicion.flawed for id in inbox.clients.get(client, ()))
    return frozenset(id for id in ids if id in inbox.ready and not inbox.answered(id) >= here)


def last_look(turn: Transaction, group: GroupState) -> float | None:
    """Until when t holders do not suffice for those who are `flawed`; None: that is over."""
    rule = turn.plan.group(group.name).rule
    assert group.opened_at is not None
    extensions = rule.extensions if isinstance(rule, SyncSection) else 0
    until = group.opened_at + rule.deadline * (1 + extensions)
    return until if turn.now < until else None


def unexamined(group: GroupState, holder: str) -> tuple[Receipt, ...]:
    """What a holder is still to look into."""
    inbox = group.inbox
    return tuple(r for r in group.receipts.values() if holder not in inbox.answered(r.id))


def _missing(turn: Transaction, answered: Collection[str]) -> str:
    absent = [holder for holder in turn.holders if holder not in answered]
    verb = "has" if len(absent) == 1 else "have"
    suffice = f"{turn.plan.threshold} of {len(turn.holders)} suffice"
    return f"{', '.join(absent) or 'nobody'} {verb} not answered; {suffice}"


# --- opening ----------------------------------------------------------------------


def silent(turn: Transaction, group: GroupState) -> tuple[str, ...]:
    """Holders that have neither given nor refused a share of the cohort."""
    making = group.closed_cohort
    return tuple(h for h in turn.holders if h not in making.shares and h not in making.refusals)


def decide(turn: Transaction, group: GroupState) -> Found | Hopeless | Wait:
    """What is next for a cohort that every shard holds.

    While fewer than t have answered, it waits. When all answers that are there are tried, those
    of silent holders have one deadline's time to come.
    """
    making, t, n = group.closed_cohort, turn.plan.threshold, len(turn.holders)
    if len(making.refusals) > n - t:
        said = "; ".join(f"{h}: {reason}" for h, reason in sorted(making.refusals.items()))
        return Hopeless(f"{len(making.refusals)} of {n} key holders refused: {said}")
    late = silent(turn, group)
    if len(making.shares) < t:
        answered = [holder for holder in turn.holders if holder not in late]
        return Wait(None, f"opens: {_missing(turn, answered)}")
    found = next(_candidates(turn, group), None)
    if found is not None:
        return found
    verdict = _judged(turn, group, None)
    until = making.answered_at + turn.plan.group(group.name).rule.deadline
    if not late or turn.now >= until:
        reason = f"no {t} of {len(making.shares)} answers open it: {verdict.reason}"
        return Hopeless(reason, spoilt=len(verdict.consistent) > t)
    names = ", ".join(late)
    return Wait(until, f"no {t} of {len(making.shares)} answers open it; waits for {names}")


def _candidates(turn: Transaction, group: GroupState) -> Iterator[Found]:
    """Sums of keys that are plausible and were not tried."""
    committee, answers = turn.plan.committee(turn.holders), _answers(turn, group)
    found: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}
    for subset in itertools.combinations(sorted(answers), committee.threshold):
        names = tuple(committee.holders[k] for k in subset)
        found[names] = _sum(turn, group, committee, {k: answers[k] for k in subset})
    failed = {found[names].tobytes() for names in group.closed_cohort.failed}
    for names, total in found.items():
        if total.tobytes() not in failed and _plausible(total, group):
            yield Found(total.astype("<i4").tobytes(), names)


def _sum(
    turn: Transaction, group: GroupState, committee: Committee, answers: Mapping[int, Vector]
) -> npt.NDArray[np.int64]:
    length = key_length(turn.plan.cipher_parameters)
    members = group.closed_cohort.cohort.members
    corrections = (parse_vector(group.receipts[m.id].correction or b"", length) for m in members)
    return key_sum(committee, answers, corrections, [member.weight for member in members])


def _plausible(found: npt.NDArray[np.int64], group: GroupState) -> bool:
    """Whether |S| <= 41 sum w_i: necessary, and not sufficient."""
    return bool(np.abs(found).max() <= KEY_BOUND * group.closed_cohort.cohort.weight)


def _answers(turn: Transaction, group: GroupState) -> dict[int, Vector]:
    """The shares that are there, by the holder's index."""
    length = key_length(turn.plan.cipher_parameters)
    indices = {holder: k for k, holder in enumerate(turn.plan.committee(turn.holders).holders)}
    shares = group.closed_cohort.shares
    return {indices[h]: parse_vector(share, length) for h, share in shares.items()}


def _judged(turn: Transaction, group: GroupState, verified: Vector | None) -> Verdict:
    return judge(turn.plan.committee(turn.holders), _answers(turn, group), verified)


def liars(turn: Transaction, group: GroupState) -> tuple[tuple[str, ...], str]:
    """Who lied about a cohort that was opened, and why that is beyond doubt; nobody: empty."""
    committee, answers = turn.plan.committee(turn.holders), _answers(turn, group)
    by = group.closed_cohort.opened_by
    right = {k: a for k, a in answers.items() if committee.holders[k] in by}
    verdict = _judged(turn, group, interpolate(committee, right))
    return tuple(committee.holders[k] for k in sorted(verdict.liars)), verdict.reason
