"""What a client lets out: by the plan's budget, by its own, and by what its own one means.

A budget of one's own means that nothing leaves that no epsilon covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.evaluation import EVALUATION
from secureps.messages.submission import Receipt
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.policy.spending import Fact, adjacency, after, fact, spent
from secureps.privacy.ledger import OWN_DELTA, Ledger
from secureps.roles.member.tasks import Aim, Contributed
from secureps.wording import size


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one client under one plan; `budget` is its own epsilon, None for none.

    `evaluates`: its records may judge a model.
    """

    plan: Plan
    client: str
    budget: float | None
    evaluates: bool = True

    def lowered(self, budget: float) -> Budget:
        """The same, if this is no less than its own already."""
        return replace(self, budget=budget if self.budget is None else min(budget, self.budget))

    def objection(self) -> str:
        """Why nothing is trained under this plan; empty if it may be."""
        if self.budget is None:
            return ""
        text = ""
        if self.plan.section.privacy is None:
            text = "the plan trains without privacy"
        elif self.plan.noisy_shards:
            text = "the plan leaves the noise to the aggregator"
        if not text:
            return ""
        return (
            f"{text}, and this client has a budget of its own: nothing was trained; ask for a plan "
            "with [privacy], or leave --budget out"
        )

    def evaluation_objection(self) -> str:
        """Why no metrics of held-out records are sent under this plan; empty if they may be."""
        if not self.evaluates:
            return "this site's records judge no model (evaluation = false): no evaluation is sent"
        if self.budget is None:
            return ""
        covered = self.plan.clients_evaluate and self.plan.mechanism(
            EVALUATION, self.plan.metrics_count
        )
        if covered and not self.plan.noisy_shards:
            return ""
        return (
            "no epsilon of the plan covers held-out records against everybody, and this client has "
            "a budget of its own: it sends no evaluation"
        )

    def planned(self, layout: Layout, aims: tuple[Aim, ...]) -> list[Fact]:
        """What these will spend; the same update again is free."""
        facts = [
            fact(
                self.plan,
                self.client,
                aim.group,
                layout.group(aim.group).sent,
                aim.version,
                aim.step,
            )
            for aim in aims
        ]
        return [each for each in facts if each is not None]

    def tells(self, ledger: Ledger, came: Contributed, sent: Sequence[Receipt]) -> str:
        """What a version took of the data holder, for its own terminal.

        `ledger` has what was `sent` in this run; `came` says what the training was, and what all
        runs came to.
        """
        versions = sorted({receipt.version + 1 for receipt in sent})
        named = f"version {versions[0]}" + (f" to {versions[-1]}" if versions[1:] else "")
        if came.evaluated:
            named = f"evaluates version {came.evaluated}"
        parts = [came.told, f"{size(sum(receipt.size for receipt in sent))} to send"]
        privacy = self.plan.section.privacy
        if any(receipt.unsafe for receipt in sent):
            parts.append(NO_PRIVACY)
        elif privacy is not None:
            epsilon = spent(self.plan, ledger.tally(self.client))
            parts.append(f"epsilon {epsilon:.3f} of {privacy.budget:g} in this run")
            parts += [came.standing] if came.standing else []
            parts[-1] += f" ({adjacency(self.plan)})"
        return f"{named}: {', '.join(parts)}"

    def excess(self, ledger: Ledger, facts: list[Fact]) -> str:
        """Why these facts may not be spent; empty if they may, or are spent already."""
        privacy = self.plan.section.privacy
        if privacy is None or not any(ledger.new(each) for each in facts):
            return ""
        limits = [(privacy.budget, 1.0)]
        if self.budget is not None:
            limits.append((self.budget, OWN_DELTA))
        for budget, most_delta in limits:
            epsilon = after(self.plan, ledger, self.client, facts, most_delta)
            if epsilon > budget:
                of = f"the budget is {budget:g} ({adjacency(self.plan)})"
                return f"would bring epsilon to {epsilon:.2f}, {of}"
        return ""
