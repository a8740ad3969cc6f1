"""Groups whose rule has rounds: who is invited to the next one, and when it closes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from secureps.errors import InternalError, TooFew
from secureps.messages import coordinator_records as records
from secureps.messages.submission import Receipt, SubmissionId
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Decision,
    Drop,
    Extend,
    PassOver,
    Wait,
    holds_everybody,
)
from secureps.roles.coordinator import commit, evaluation, opening, recovery, termination
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import GOES_ON, Names, Transaction
from secureps.wording import by_reason, counted, named


def open_round(tx: Transaction, group: GroupState) -> Wait:
    recovery.end_if_hopeless(tx, group)
    if group.resigned:
        return GOES_ON
    out, retired = _left_out(tx, group), frozenset(tx.federation.retired)
    live = tx.attendance(group).here
    invited, reason = _admitted(tx, group, live)
    if invited or retired:
        spent = termination.exhausted(tx, termination.next_version(tx))
        if spent:
            invited, reason = _admitted(tx, group, live - spent)
        gone = {
            "their budget is spent": (live | retired) & spent,
            "take part no more": retired - spent,
        }
        why = [f"{text}: {named(sorted(names))}" for text, names in gone.items() if names]
        reason = "; ".join([*why, reason])
        if not invited and not _admitted(tx, group, tx.clients - out - spent - retired)[0]:
            termination.end(tx, *termination.budget_spent(tx, group, spent, retired))
    if group.sitting_out and not invited:
        _end_if_none_may_come(tx, group, tx.clients - out - retired)
    if not invited:
        return Wait(None, tx.federation.ending or termination.too_few(tx, group) or reason)
    if lacking := opening.short(tx, group):
        return Wait(None, lacking)
    held = _await_unheard(tx, group, invited) or evaluation.hold_back(tx, group)
    if held is not None:
        return held
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    _invite(tx, group, invited, reason)
    return GOES_ON


def _await_unheard(tx: Transaction, group: GroupState, invited: tuple[str, ...]) -> Wait | None:
    """After a restart, waits a while for clients that may have gone before it.

    Those who are there come back within seconds; for others a round would wait to its deadline.
    """
    until = tx.sessions.began + min(tx.plan.section.lease, tx.deadline(group.name))
    unheard = tx.sessions.unheard.intersection(invited)
    if not unheard or tx.now >= until:
        return None
    return Wait(until, f"waits to hear of {named(sorted(unheard))}, since it began anew")


def _left_out(tx: Transaction, group: GroupState) -> frozenset[str]:
    """Clients that nobody waits for: out of the run, or in an opened sum of this version."""
    return group.sitting_out | tx.federation.isolated.keys()


def _end_if_none_may_come(tx: Transaction, group: GroupState, able: frozenset[str]) -> None:
    if not _admitted(tx, group, able)[0]:
        why = group.why_out(group.sitting_out)
        text = f"too few clients are left for version {group.version + 1} of {group.name}: {why}"
        termination.end(tx, text, TooFew)


def open_evaluation(tx: Transaction, group: GroupState) -> Wait:
    evaluation.skip_lost(tx, group)
    at = evaluation.due(tx)
    if group.phase is not Phase.WAITING or not at:
        return GOES_ON
    live = tx.live - termination.exhausted(tx, (group,)) - _left_out(tx, group)
    invited, reason = _admitted(tx, group, live)
    if not invited:
        return evaluation.await_members(tx, group, at, reason)
    _invite(tx, group, invited, f"{len(invited)} members are asked to evaluate version {at}")
    return GOES_ON


def _invite(tx: Transaction, group: GroupState, invited: tuple[str, ...], reason: str) -> None:
    tx.write(records.RoundOpened(group.name, group.round + 1, group.version, invited, reason))
    for member in invited:
        tx.order(member, recovery.make_invite(tx, group, member))


def declined(
    tx: Transaction, group: GroupState, client: str, reason: str, sits_out: bool = False
) -> None:
    """Notes that a member takes no part in the open round; too few for a cohort end it at once."""
    tx.write(records.MemberDeclined(group.name, group.round, client, reason, sits_out))
    if not group.streaming:
        end_if_too_few(tx, group, {})


def end_if_too_few(tx: Transaction, group: GroupState, others: Mapping[str, str]) -> None:
    """Gives up a round in which fewer are left than the least that is opened.

    Args:
        others: why members that did not decline take no part, by name.
    """
    least, left = tx.plan.bounds(group.name).minimum, len(group.invited)
    if left < least:
        why = by_reason({**group.absences, **others})
        few = f"{counted(left, 'member')} of the round {'is' if left == 1 else 'are'} left"
        give_up(tx, group, f"given up: {few}, and a cohort needs {least}: {why}")


def give_up(tx: Transaction, group: GroupState, reason: str) -> None:
    ids = group.summed
    tx.write(records.RoundGivenUp(group.name, group.round, reason))
    tx.settle(ids)


def _admitted(tx: Transaction, group: GroupState, members: Names) -> tuple[tuple[str, ...], str]:
    """The members that the rule admits if these are live, and why not the first other one."""
    if recovery.chooses(tx, group):
        chosen = recovery.choice(tx, group, frozenset(members))
        return tuple(sorted(chosen.clients)), chosen.reason
    rule, out = tx.rule(group.name), len(_left_out(tx, group))
    state = group.round_state(members, out)
    first = next((rule.admit(tx.now, member, state) for member in members), None)
    if first is not None and holds_everybody(first):
        return (), first.reason
    answers: dict[str, Admission] = {}
    for member in sorted(members):
        answers[member] = rule.admit(tx.now, member, state)
        if holds_everybody(answers[member]):
            break
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    reasons = [a.reason for a in answers.values() if not isinstance(a, Admit)]
    return invited, (reasons or ["no member is live"])[0]


def leave_out(tx: Transaction, group: GroupState) -> bool:
    """Takes clients that are left out of the run out of the open round, with what they sent.

    Returns:
        whether the round goes on.
    """
    isolated = tx.federation.isolated
    for client in sorted(c for c in isolated if c in group.invited):  # who is left out are few
        reason = isolated[client]
        tx.drop(group.name, tuple(group.open_receipts.clients.get(client, ())), reason)
        declined(tx, group, client, reason)
        if group.phase is not Phase.COLLECTING:
            return False
    return True


def decide(tx: Transaction, group: GroupState) -> Wait:
    """Asks the rule about the open round, and does what it says; returns what is waited for."""
    if not leave_out(tx, group):
        return tx.again
    ids, waiting = opening.examined(tx, group)
    decision = decided(tx, group, ids)
    if waiting and not isinstance(decision, Close | Wait):  # they are here, and count in time
        decision = Wait(opening.last_look(tx, group), "the deadline is over")
    match decision:
        case Close(members, reason):
            commit.close(tx, group, members, reason)
            return GOES_ON
        case Extend(until, reason):
            tx.write(records.RoundExtended(group.name, group.round, group.extensions + 1, reason))
            return Wait(until, reason)
        case Drop(_, reason):
            give_up(tx, group, reason)
            return tx.again
        case Wait(until, reason):
            return Wait(until, f"{reason}; {waiting}" if waiting else reason)
        case PassOver():
            raise InternalError(f"the rule of {group.name} has rounds, and passes over nobody")


def alike(receipts: Collection[Receipt]) -> Collection[Receipt]:
    """The largest set of receipts that trained beside the same models of the other groups.

    One group may be a version ahead while another still waits for members: holders open no sum of
    those who trained before and after.
    """
    counts = Counter(receipt.beside for receipt in receipts)
    if len(counts) < 2:
        return receipts
    ((most, _),) = counts.most_common(1)
    return tuple(receipt for receipt in receipts if receipt.beside == most)


def decided(tx: Transaction, group: GroupState, ids: Collection[SubmissionId]) -> Decision:
    """The rule's decision about the open round; asked anew if something changed, or in time."""

    def ask() -> Decision:
        receipts = alike([group.receipts[id] for id in ids])
        arrivals = tuple(Arrival(r.id, r.version) for r in receipts)
        if recovery.chooses(tx, group):
            return recovery.decide(tx, group, arrivals)
        return tx.rule(group.name).decide(tx.now, arrivals, group.round_state(tx.live))

    opened = (group.round, group.version, group.invited, group.opened_at, group.extensions)
    basis = (opening.kept(tx, group), opened, group.suspicion)
    changes = group.open_receipts.changes

    def holds(known: tuple[int, Decision]) -> bool:
        before, decision = known
        if not isinstance(decision, Wait):
            return before == changes
        few = len(group.receipts) < decision.arrivals
        return (before == changes or few) and early(tx, decision)

    question = ("round", group.name)
    return tx.cache.of(question, basis, lambda: (changes, ask()), holds)[1]


def early(tx: Transaction, waits: Wait) -> bool:
    return waits.until is None or tx.now < waits.until
