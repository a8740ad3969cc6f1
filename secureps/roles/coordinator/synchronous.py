"""Groups whose rule has rounds: who is invited to the next one, and when it closes.

What must not live here: the steps of a version (`roles.coordinator.commit`), groups without rounds
(`roles.coordinator.asynchronous`), rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from secureps.errors import InternalError, TooFew
from secureps.messages.coordinator_records import (
    MemberDeclined,
    RoundExtended,
    RoundGivenUp,
    RoundOpened,
)
from secureps.messages.orders import Invite, SealAgain
from secureps.messages.submission import Receipt
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
from secureps.roles.coordinator import (
    commit,
    evaluation,
    example_bounds,
    opening,
    recovery,
    termination,
)
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import GOES_ON, Transaction
from secureps.wording import named


def open_round(turn: Transaction, group: GroupState) -> Wait:
    recovery.end_if_hopeless(turn, group)
    if group.resigned:
        return GOES_ON
    out, retired = _left_out(turn, group), frozenset(turn.federation.retired)
    live = turn.takers(group.name) - out
    invited, reason = _admitted(turn, group, live)
    if invited or retired:
        spent = termination.exhausted(turn, termination.next_version(turn))
        invited, reason = _admitted(turn, group, live - spent)
        if stopped := (live & spent) | retired:
            why = (
                "take part no more"
                if turn.plan.section.privacy is None
                else "their budget is spent"
            )
            reason = f"{why}: {named(sorted(stopped))}; {reason}"
        if not invited and not _admitted(turn, group, turn.clients - out - spent - retired)[0]:
            termination.end(turn, termination.budget_spent(turn, group, spent, retired))
    if group.sitting_out and not invited:
        _end_if_none_may_come(turn, group, turn.clients - out - retired)
    if not invited:
        return Wait(None, turn.federation.ending or termination.too_few(turn, group) or reason)
    if lacking := opening.short(turn):
        return Wait(None, lacking)
    held = evaluation.hold_back(turn, group) or example_bounds.hold_back(turn, group)
    if held is not None:
        return held
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    _invite(turn, group, invited, reason)
    return GOES_ON


def _left_out(turn: Transaction, group: GroupState) -> frozenset[str]:
    """Whom nobody waits for: out of the run, or in a sum of this version that was opened."""
    return group.sitting_out | turn.federation.isolated.keys()


def _end_if_none_may_come(turn: Transaction, group: GroupState, able: frozenset[str]) -> None:
    if not _admitted(turn, group, able)[0]:
        out = named(sorted(group.sitting_out))
        termination.end(
            turn,
            f"too few clients are left for version {group.version + 1} of {group.name}: {out} sit "
            "out until the next version",
            TooFew,
        )


def open_evaluation(turn: Transaction, group: GroupState) -> Wait:
    """Asks members to evaluate the version that the model is at, if it is due."""
    evaluation.skip_lost(turn, group)
    at = evaluation.due(turn)
    if group.phase is not Phase.WAITING or not at:
        return GOES_ON
    live = turn.live - termination.exhausted(turn, (group,)) - _left_out(turn, group)
    invited, reason = _admitted(turn, group, live)
    if not invited:
        return evaluation.await_members(turn, group, at, reason)
    if (held := example_bounds.hold_back(turn, group)) is not None:
        return held
    _invite(turn, group, invited, f"{len(invited)} members are asked to evaluate version {at}")
    return GOES_ON


def _invite(turn: Transaction, group: GroupState, invited: tuple[str, ...], reason: str) -> None:
    turn.write(RoundOpened(group.name, group.round + 1, group.version, invited, reason))
    for member in invited:
        turn.order(member, make_invite(turn, group, member))


def declined(turn: Transaction, group: GroupState, client: str, reason: str) -> None:
    """A member takes no part in the open round; too few for any cohort end it at once."""
    turn.write(MemberDeclined(group.name, group.round, client, reason))
    if not group.streaming:
        end_if_too_few(turn, group, client, reason)


def end_if_too_few(turn: Transaction, group: GroupState, client: str, reason: str) -> None:
    least = turn.plan.bounds(group.name).minimum
    if len(group.invited) < least:
        _give_up(
            turn,
            group,
            f"given up: {len(group.invited)} members take part, the minimum cohort is {least} "
            f"({client}: {reason})",
        )


def _give_up(turn: Transaction, group: GroupState, reason: str) -> None:
    ids = tuple(group.receipts)
    turn.write(RoundGivenUp(group.name, group.round, reason))
    turn.tell_fates(ids)
    turn.discard(ids)


def _admitted(
    turn: Transaction, group: GroupState, members: frozenset[str]
) -> tuple[tuple[str, ...], str]:
    """Whom the rule admits if these are live, and why not the first of those that it does not."""
    if recovery.chooses(turn, group):
        chosen = recovery.choice(turn, group, members)
        return tuple(sorted(chosen.clients)), chosen.reason
    rule, out = turn.plan.rule(group.name), len(_left_out(turn, group))
    state = group.round_state(members, out)
    answers: dict[str, Admission] = {}
    for member in sorted(members):
        answers[member] = rule.admit(turn.now, member, state)
        if holds_everybody(answers[member]):
            break
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    reasons = [a.reason for a in answers.values() if not isinstance(a, Admit)]
    return invited, (reasons or ["no member is live"])[0]


def make_invite(turn: Transaction, group: GroupState, member: str) -> Invite | SealAgain:
    """To train, from the committed version; or to send once more what a burnt cohort had of it."""
    seconds = turn.plan.group(group.name).rule.deadline
    evaluates, number = evaluation.asked(turn, group, member), turn.federation.incarnation
    invite = Invite(
        number,
        group.name,
        group.round,
        group.version,
        seconds,
        evaluates,
        most_examples=group.most_examples,
    )
    if recovery.sends_again(turn, group, member):
        return recovery.make_order(turn, group, member, invite)
    return invite


def decide(turn: Transaction, group: GroupState) -> Wait:
    receipts, waiting = opening.examined(turn, group)
    decision = decided(turn, group, alike(receipts))
    if waiting and not isinstance(decision, Close | Wait):  # they are here, and count in time
        decision = Wait(opening.last_look(turn, group), "the deadline is over")
    match decision:
        case Close(members, reason):
            commit.close(turn, group, members, reason)
            return GOES_ON
        case Extend(until, reason):
            turn.write(RoundExtended(group.name, group.round, group.extensions + 1, reason))
            return Wait(until, reason)
        case Drop(_, reason):
            _give_up(turn, group, reason)
            return turn.again
        case Wait(until, reason):
            return Wait(until, f"{reason}; {waiting}" if waiting else reason)
        case PassOver():
            raise InternalError(f"the rule of {group.name} has rounds, and passes over nobody")


def alike(receipts: Collection[Receipt]) -> Collection[Receipt]:
    """The most that trained beside the same models of the groups that move with theirs.

    One group may be a version ahead while another still waits for members: holders open no sum of
    those who trained before and after.
    """
    counts = Counter(receipt.beside for receipt in receipts)
    if len(counts) < 2:
        return receipts
    ((most, _),) = counts.most_common(1)
    return tuple(receipt for receipt in receipts if receipt.beside == most)


def decided(turn: Transaction, group: GroupState, receipts: Collection[Receipt]) -> Decision:
    """What becomes of the open round; asked anew if anything changed, or the time has come."""

    def ask() -> Decision:
        arrivals = tuple(Arrival(r.id, r.version) for r in receipts)
        if recovery.chooses(turn, group):
            return recovery.decide(turn, group, arrivals)
        return turn.plan.rule(group.name).decide(turn.now, arrivals, group.round_state(turn.live))

    def holds(decision: Decision) -> bool:
        until = decision.until if isinstance(decision, Wait) else None
        return until is None or turn.now < until

    arrived = (group.inbox.changes, opening.kept(turn, group))
    opened = (group.round, group.version, group.invited, group.opened_at, group.extensions)
    basis = (arrived, opened, group.suspicion, turn.live)
    return turn.memo.of(("round", group.name), basis, ask, holds)
