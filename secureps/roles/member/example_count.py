"""By which number a client counts, and up to which bound: what it tells, and what it was told.

It tells the power of two at or above its number once the plan is known, for under record-level
privacy even that must come from a public number; and takes one bound of each group, for good.
What must not live here: counting (`client.worker`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.orders import Invite, SealAgain
from secureps.messages.submission import UPDATE, Receipt
from secureps.policy.counting import agrees, check_told, public_number, told
from secureps.policy.plan import Plan


@dataclass(slots=True)
class ExampleCount:
    """Of one client under one plan.

    Args:
        client: its name; own: the number of its own settings, None for none.
        examples: how many it has, None if it has not counted.
        agreed: the bound of each group in which it takes part; sealed: those of them under which
            something was sealed.
    """

    plan: Plan
    client: str
    own: int | None
    examples: int | None
    agreed: dict[str, int] = field(default_factory=dict)
    sealed: dict[str, int] = field(default_factory=dict)

    @property
    def asked(self) -> tuple[str, ...]:
        """The groups of which a bound is agreed on; none of a designated evaluator."""
        if self.client == self.plan.evaluator:
            return ()
        return tuple(group for group in self.plan.all_groups if agrees(self.plan.group(group)))

    @property
    def told(self) -> int:
        """What it tells of its number; 0 if it does not know, or nobody asks.

        Raises as `public_number` and `told` of `policy.counting` do.
        """
        if self.client == self.plan.evaluator:
            return 0
        public = public_number(self.plan.section, self.own)
        number = public if public is not None else self.examples
        return told(number) if self.asked and number is not None else 0

    @property
    def counts(self) -> bool:
        """Whether its number is asked for, and only a training can tell it."""
        return bool(self.asked) and not self.agreed and not self.told

    def add(self, receipt: Receipt) -> None:
        """What was sealed under a bound stays under it."""
        if receipt.purpose == UPDATE and receipt.most_examples:
            self.fix({receipt.id.group: receipt.most_examples})

    def fix(self, sealed: dict[str, int]) -> None:
        """Something was sealed under these bounds."""
        self.sealed |= sealed
        self.agreed |= sealed

    def wrong(self, order: object) -> str:
        """Why an order is not followed; empty if its bound is noted, and holds from now on.

        Malformed if no client can have told that bound.
        """
        invite = order.invite if isinstance(order, SealAgain) else order
        if not isinstance(invite, Invite) or invite.version < 0 or invite.group not in self.asked:
            return ""
        group, bound = invite.group, invite.most_examples
        check_told("the coordinator", bound)
        known = self.agreed.get(group, bound)
        if bound and known == bound:
            self.agreed[group] = bound
            return ""
        return (
            f"by the coordinator members of {group} count up to {bound} examples, and before it "
            f"was {known}: another bound would let this client's update be told apart from the "
            "others'; nothing more is sent, ask the aggregator's operator"
        )
