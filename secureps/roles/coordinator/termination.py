"""Ends rounds without a cohort, groups, and the run.

A run ends after the plan's versions, or earlier in good order: a reason is journalled (`Ending`),
no group opens another round, open rounds finish, and the last checkpoint has all versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secureps.errors import SecurepsError, TooFew
from secureps.messages.charge import Fact
from secureps.messages.coordinator_records import (
    Ending,
    Finished,
    GroupResigned,
    MemberDeclined,
    RoundGivenUp,
)
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.orders import Finish
from secureps.messages.submission import Base
from secureps.policy.checks.evaluation import why_stop
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency, epsilon_after, make_fact
from secureps.roles.coordinator.group import SITS_OUT, GroupState, Phase
from secureps.roles.coordinator.transaction import Names, Transaction
from secureps.wording import counted, group_by_reason, named


def take_decline(
    tx: Transaction, group: GroupState, client: str, reason: str, sits_out: bool = False
) -> None:
    """Notes that a member takes no part in the open round; ends the round if too few are left."""
    tx.write(MemberDeclined(group.name, group.round, client, reason, sits_out))
    if group.rounds:
        end_if_too_few(tx, group, {})


def end_if_too_few(tx: Transaction, group: GroupState, others: Mapping[str, str]) -> None:
    """Gives up a round in which fewer members are left than a cohort needs.

    Args:
        others: why members that did not decline take no part, by name.
    """
    least, left = tx.plan.bounds(group.name).minimum, len(group.invited)
    if left < least:
        why = group_by_reason({**group.absences, **others})
        few = f"{counted(left, 'member')} of the round {'is' if left == 1 else 'are'} left"
        give_up_round(tx, group, f"given up: {few}, and a cohort needs {least}: {why}")


def give_up_round(tx: Transaction, group: GroupState, reason: str) -> None:
    ids = group.of_round
    tx.write(RoundGivenUp(group.name, group.round, reason))
    tx.settle(ids)


def leave_out(tx: Transaction, group: GroupState) -> bool:
    """Takes clients that are gone out of the round; returns whether it goes on.

    The run leaves them out, or they left it. Of a client that left, an update that is here counts,
    unless a shard has lost its blocks: nobody would send them again.
    """
    isolated, sent = tx.federation.isolated, group.open_receipts.clients
    gone = dict.fromkeys(tx.federation.retired - sent.keys(), "takes part no more") | isolated
    for client in sorted(gone.keys() & group.invited):
        tx.drop(group.name, tuple(sent.get(client, ())), gone[client])
        take_decline(tx, group, client, gone[client])
        if group.phase is not Phase.COLLECTING:
            return False
    return True


def end(tx: Transaction, reason: str, failure: type[SecurepsError] | None = None) -> None:
    """Ends the run after its open rounds; the first reason stays.

    `failure` is the run's error if its plan does not foresee this end.
    """
    if not tx.federation.ending:
        tx.write(Ending(reason, None if failure is None else failure.__name__))


def give_up(tx: Transaction, group: GroupState, reason: str) -> None:
    """Ends the run, because a group's next version cannot be made.

    If the group is a row-block, it stays as it is instead, and other groups go on.
    """
    if not tx.is_row_block(group):
        end(tx, reason, TooFew)
    elif not group.resigned and not tx.federation.ending:
        tx.write(GroupResigned(group.name, reason))


def take_evaluation(tx: Transaction, result: VersionEvaluated) -> None:
    """Journals the evaluation of a version, and ends the run if the plan stops at such a result."""
    tx.write(result)
    reason = why_stop(tx.federation.trail.newest, tx.plan.section.evaluation)
    if reason is not None and not all(tx.is_over(g) for g in tx.federation.model_groups):
        end(tx, reason)


def exhausted_clients(tx: Transaction, groups: Iterable[GroupState]) -> frozenset[str]:
    """Returns clients that the next version of each of these groups would bring above the budget.

    Each client computes this for itself too (`roles.member.member`). The coordinator uses its
    ledger of what arrived, and what the client still owes to the group that trails the model.
    """
    privacy, ahead = tx.plan.section.privacy, list(groups)
    if privacy is None:
        return frozenset()
    return frozenset(c for c in tx.clients if _next_epsilon(tx, c, ahead) > privacy.budget)


def is_unaffordable(tx: Transaction, client: str, group: GroupState) -> bool:
    """True if one more update of a group would bring a client above the plan's budget."""
    privacy = tx.plan.section.privacy
    return privacy is not None and _next_epsilon(tx, client, [group]) > privacy.budget


def end_for_few(
    tx: Transaction, group: GroupState, out: Names, spent: Names, tried: str = ""
) -> None:
    """Gives a group up for which too few clients are left, and says why the others are not.

    If only the privacy budget is spent, which the plan foresees, the run ends without an error.

    Args:
        tried: why no set of a burnt cohort makes the version, if there was such a cohort.
    """
    federation, privacy = tx.federation, tx.plan.section.privacy
    # A client need not say why it left: it may insist on privacy, or have spent its own budget.
    gone = {c: federation.why_gone.get(c) or "no reason given" for c in federation.retired}
    gone |= dict.fromkeys(federation.isolated, "left out of this run")
    if privacy is None or not spent or out:
        absent = {client: f"takes part no more: {why}" for client, why in gone.items()}
        absent |= dict.fromkeys(spent, "its budget is spent")
        absent |= {client: group.absences.get(client, SITS_OUT) for client in out}
        why = "; ".join(filter(None, (group_by_reason(absent), tried)))
        version = f"version {group.version + 1} of {group.name}"
        give_up(tx, group, f"too few clients are left for {version}: {why}")
        return
    left = {client: why for client, why in gone.items() if client not in spent}
    take = "takes" if len(left) == 1 else "take"
    others = f", and {len(left)} more {take} part no more: {group_by_reason(left)}" if left else ""
    budget = f"{privacy.budget:g} ({adjacency(tx.plan)})"
    end(
        tx,
        f"the privacy budget is spent: after version {group.version}{tx.plan.of(group.name)}, "
        f"another would bring {len(spent)} clients above epsilon {budget}{others}",
    )


def _next_epsilon(tx: Transaction, client: str, ahead: list[GroupState]) -> float:
    """Returns a client's epsilon after what it owes already, and one more version of each group."""
    own = tx.trailing
    bases = [
        (group, group.members.next_base(client, max(0, group.version)))
        for group in ahead
        if group is not own
    ]
    subject, schedule = tx.federation.trail.subject, tx.plan.schedule
    if own is not None and own.awaits(client):
        bases.append((own, schedule.base(own.version, subject)))
    if own is not None and own in ahead:
        newest = max(group.version for group in tx.federation.model_groups)
        at = tx.evaluation_due() or newest + 1
        bases += [(own, schedule.base(own.version, at))] if at in schedule else []
    ledger = tx.federation.ledger

    def count() -> float:
        facts = (_fact(tx, client, group, base) for group, base in bases)
        return epsilon_after(tx.plan, ledger, client, [each for each in facts if each is not None])

    question = ("epsilon", client, *(group.name for group, _ in bases))
    basis = (ledger.count(client), tuple(base for _, base in bases))
    return tx.remember(question, basis, count)


def _fact(tx: Transaction, client: str, group: GroupState, base: Base) -> Fact | None:
    size = tx.layout.group(group.name).sent
    return make_fact(tx.plan, client, group.name, size, base.version, base.step)


def groups_ahead(tx: Transaction, group: GroupState) -> list[GroupState]:
    """Returns the groups that go on; of those that take turns, the rest of this version's."""
    ahead = [each for each in tx.federation.model_groups if not tx.is_over(each)]
    if tx.plan.takes_turns(group.name):
        ahead = [each for each in ahead if each.version == group.version]
    scheduled = any(each.version + 1 in tx.plan.schedule for each in ahead)
    return [*ahead, tx.trailing] if scheduled and tx.trailing is not None else ahead


def _describe_all_made(plan: Plan) -> str:
    wanted = {
        section.name: section.versions or plan.section.versions for section in plan.section.group
    }
    if len(set(wanted.values())) == 1:
        count = min(wanted.values())
        return "1 version is made" if count == 1 else f"all {count} versions are made"
    each = ", ".join(f"{versions} of {name}" for name, versions in wanted.items())
    return f"all versions are made ({each})"


def _describe_end(tx: Transaction) -> str:
    short = [group for group in tx.federation.model_groups if not tx.is_made(group)]
    if not short:
        return _describe_all_made(tx.plan)
    parts = [f"of {group.name}: {group.resigned}" for group in short if group.resigned]
    if few := [group.name for group in short if not group.resigned]:
        parts.insert(0, f"of {named(few)}: too few members touch it")
    return tx.federation.ending or f"{_describe_all_made(tx.plan)}, but {'; '.join(parts)}"


def finish(tx: Transaction) -> None:
    """Ends the run when a checkpoint holds the last version of every group."""
    federation, last = tx.federation, tx.federation.last_checkpoint
    groups = federation.groups.values()
    if last is None or not last.complete or not all(tx.is_over(group) for group in groups):
        return
    if any(group.takes_updates for group in groups):  # waiting updates are not given up yet
        return
    if tx.evaluation_due() or last.results < len(federation.trail.results):
        return
    if any(last.version_of(group.name) < group.version for group in groups):
        return
    made = any(group.version > 0 for group in federation.model_groups)
    failure = federation.failure or (None if made else TooFew.__name__)
    tx.write(Finished(_describe_end(tx), failure))
    for party in sorted(tx.watchers):
        tell_finish(tx, party)


def tell_finish(tx: Transaction, party: str) -> None:
    """Tells a party that the run is finished, or that it failed."""
    federation = tx.federation
    end = Finish(federation.incarnation, federation.finished, federation.failure or None)
    tx.order(party, end)
