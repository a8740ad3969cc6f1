"""Up to how many examples members of a group count: agreed on once, before anybody is asked.

The largest number that is told by those who are there. Whoever is still counting is waited for
during one deadline, from when version 0 and as many members are there as the rule waits for. What
must not live here: what a number tells (`policy.counting`).
"""

from __future__ import annotations

from secureps.messages.coordinator_records import BoundAgreed
from secureps.policy.counting import agrees
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def hold_back(tx: Transaction, group: GroupState) -> Wait | None:
    """Why nobody is asked yet; None if there is a bound from now on, or the group has none."""
    section, federation = tx.plan.group(group.name), tx.federation
    if group.most_examples or not agrees(section):
        return None
    here, start = tx.takers(group.name), tx.plan.bounds(group.name).start
    if len(here) < start:
        text = f"{len(here)} members are here, {start} agree up to what number they count"
        return Wait(None, text)
    told = {client: federation.told[client] for client in here if federation.told.get(client)}
    counting = here - told.keys()
    enough = sorted(federation.members[client] for client in here)[start - 1]
    until = max(enough, federation.evaluations.since) + section.rule.deadline
    if counting and (tx.now < until or not told):
        late = "" if tx.now < until else ", and none has told its number"
        return Wait(
            until if tx.now < until else None,
            f"waits for {named(sorted(counting))} to count their examples{late}",
        )
    tx.write(BoundAgreed(group.name, max(told.values())))
    return None
