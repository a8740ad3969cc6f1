"""Terms that a client insists on, whatever the plan says, and the settings of its machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from secureps.config.site_files import Reveal
from secureps.crypto.roster import Roster
from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import (
    ConfigError,
    DamagedStore,
    Malformed,
    PlanRefused,
    TermsRefused,
    WrongRun,
    WrongShape,
)
from secureps.messages.charge import Fact
from secureps.messages.requests import Join, Proposal, Welcome
from secureps.messages.run import Schema, wrong_run
from secureps.messages.submission import Receipt
from secureps.model.layout import Layout
from secureps.policy.checks.sections import weak_privacy
from secureps.policy.plan import Plan, describe_public_number, different_keys, public_number
from secureps.policy.spending import adjacency, epsilon_after, make_fact, total_epsilon
from secureps.privacy.ledger import OWN_DELTA, Ledger
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.tasks import Aim, Contributed
from secureps.roles.pinned_run import Pinned, check_run, check_threshold
from secureps.wording import counted, named, size


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one client under one plan.

    Args:
        budget: its own epsilon; with one, nothing is sent that no epsilon covers. None: no limit.
        evaluates: whether its records may evaluate a model.
    """

    plan: Plan
    client: str
    budget: float | None
    evaluates: bool = True

    def objection(self) -> str:
        """Returns why this client does not train under this plan; empty if it does."""
        if self.budget is None:
            return ""
        if self.plan.section.privacy is None:
            text = "the plan trains without privacy"
        elif self.plan.noisy_shards:
            text = "the plan leaves the noise to the aggregator"
        else:
            return ""
        return (
            f"{text}, and this client has a budget of its own: nothing was trained; ask for a plan "
            "with [privacy], or leave --budget out"
        )

    def evaluation_objection(self) -> str:
        """Returns why this client sends no evaluation under this plan; empty if it does."""
        if not self.evaluates:
            return "this site's records judge no model (evaluation = false): no evaluation is sent"
        if self.budget is None:
            return ""
        plan = self.plan
        covered = plan.trailing and plan.mechanism(plan.trailing, plan.metrics_count)
        if covered and not plan.noisy_shards:
            return ""
        return (
            "no epsilon of the plan covers held-out records against everybody, and this client has "
            "a budget of its own: it sends no evaluation"
        )

    def planned(self, layout: Layout, aims: tuple[Aim, ...]) -> list[Fact]:
        """Returns the facts that these aims will spend; the same update again is free."""
        facts = [
            make_fact(
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

    def describe(self, ledger: Ledger, came: Contributed, sent: Sequence[Receipt]) -> str:
        """Says what a version cost the data holder, for its own terminal."""
        versions = sorted({receipt.version + 1 for receipt in sent})
        named = f"version {versions[0]}" + (f" to {versions[-1]}" if versions[1:] else "")
        if came.evaluated:
            named = f"evaluates version {came.evaluated}"
        parts = [came.told, f"{size(sum(receipt.size for receipt in sent))} to send"]
        privacy = self.plan.section.privacy
        if any(receipt.unsafe for receipt in sent):
            parts.append(NO_PRIVACY)
        elif privacy is not None:
            epsilon = total_epsilon(self.plan, ledger.tally(self.client))
            parts.append(f"epsilon {epsilon:.3f} of {privacy.budget:g} in this run")
            parts += [came.standing] if came.standing else []
            parts[-1] += f" ({adjacency(self.plan)})"
        return f"{named}: {', '.join(parts)}"

    def excess(self, ledger: Ledger, facts: list[Fact]) -> str:
        """Returns why these facts may not be spent; empty if they may, or are spent already."""
        privacy = self.plan.section.privacy
        if privacy is None or not any(ledger.is_new(each) for each in facts):
            return ""
        limits = [(privacy.budget, 1.0)]
        if self.budget is not None:
            limits.append((self.budget, OWN_DELTA))
        for budget, most_delta in limits:
            epsilon = epsilon_after(self.plan, ledger, self.client, facts, most_delta)
            if epsilon > budget:
                of = f"the budget is {budget:g} ({adjacency(self.plan)})"
                return f"would bring epsilon to {epsilon:.2f}, {of}"
        return ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a plan against one key of a site's policy.

    Args:
        own: the site's value, in words.
        plans: the plan's value, in words.
        objection: why the client takes no part; empty if the plan keeps to the policy.
    """

    key: str
    own: str
    plans: str
    objection: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client insists on, whatever the plan says.

    Args:
        budget: the epsilon at which it stops; a plan that trains without privacy is refused.
        threshold: how many key holders must agree to open a sum; a plan of fewer is refused.
        plan: the text of the plan that it agreed to (`Plan.text`); a run of another one is refused.
            Empty: any plan.
        minimum: the smallest cohort; a plan that closes smaller ones is refused.
        plans: digests of the plans that it takes part in (`Plan.digest`); None for any.
        evaluation: whether its records may evaluate a model.
        updates_per_hour: how many trainings may begin in an hour; None for any number.
        reveal: how much of a refusal's reason the coordinator is told.
        messages: an app's own message types that a run may use; a plan with reports of others is
            refused.

    Raises:
        ConfigError: the budget or threshold is no possible value.
    """

    budget: float | None = None
    threshold: int | None = None
    plan: str = ""
    minimum: int | None = None
    plans: tuple[str, ...] | None = None
    evaluation: bool = True
    updates_per_hour: int | None = None
    reveal: Reveal = "keys"
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise ConfigError(f"a budget is a finite epsilon above 0, got {self.budget:g}")
        if self.threshold is not None and self.threshold < 1:
            raise ConfigError(f"a threshold is 1 key holder or more, got {self.threshold}")

    def tighten(self, budget: float | None, threshold: int | None, plan: str) -> Terms:
        """Returns these terms with options of a command line; the stricter limit holds."""
        budgets = [each for each in (self.budget, budget) if each is not None]
        thresholds = [each for each in (self.threshold, threshold) if each is not None]
        return replace(
            self,
            budget=min(budgets, default=None),
            threshold=max(thresholds, default=None),
            plan=plan or self.plan,
        )

    def refuse(self, plan: Plan, client: str) -> None:
        """Raises TermsRefused if the plan does not keep to these terms, with each key and value."""
        wrong = [each for each in self.verdicts(plan, client) if each.objection]
        if wrong:
            text = "; ".join(f"{each.key}: {each.objection}" for each in wrong)
            raise TermsRefused(text, self.revealed([each.key for each in wrong], text))

    def revealed(self, keys: Sequence[str], values: str) -> str:
        """Returns what the coordinator is told of a refusal, by this client's own choice."""
        told = {"nothing": NO_REASON, "keys": f"{NO_REASON}: {', '.join(keys)}", "values": values}
        return told[self.reveal]

    @property
    def rest(self) -> str:
        """What the coordinator is told of a client that rests because of `updates_per_hour`."""
        values = f"updates_per_hour: {self.updates_per_hour} have begun within an hour"
        return self.revealed(["updates_per_hour"], values)

    def verdicts(self, plan: Plan, client: str = "") -> Iterator[Verdict]:
        if self.minimum is not None:
            yield self._of_minimum(plan, self.minimum)
        if self.threshold is not None:
            agree = f"{plan.threshold} of {plan.holders} key holders"
            objection = ""
            try:
                check_threshold(plan, self.threshold)
            except PlanRefused as error:
                objection = str(error)
            yield Verdict("threshold", str(self.threshold), agree, objection)
        if self.budget is not None:
            privacy = plan.section.privacy
            has = "no [privacy]" if privacy is None else f"{privacy.budget:g} ({privacy.unit})"
            objection = Budget(plan, client, self.budget).objection()
            yield Verdict("budget", f"{self.budget:g}", has, objection)
        if self.plans is not None:
            yield self._of_plans(plan, self.plans)
        if not self.evaluation:
            yield _of_evaluation(plan, client)
        elif asked := custom_reports(plan):
            yield Verdict("messages", ", ".join(self.messages), ", ".join(asked), self.of(asked))

    def of(self, messages: Iterable[str]) -> str:
        """Returns why a run may not use these message types of an app; empty if it may."""
        refused = [each for each in messages if each not in self.messages]
        if not refused:
            return ""
        return (
            f"the run uses {', '.join(refused)} of the app, which this site does not allow: read "
            "what the app answers, and add the name to messages of the site's policy, or ask for a "
            "plan without it"
        )

    def _of_minimum(self, plan: Plan, minimum: int) -> Verdict:
        groups = [name for name in plan.all_groups if self.evaluation or not plan.trails(name)]
        least = {name: plan.bounds(name).minimum for name in groups}
        smaller = {name: number for name, number in least.items() if number < minimum}
        objection = ""
        for name, number in list(smaller.items())[:1]:
            objection = (
                f"by the plan {number} members of {name} may be a cohort, and this site wants "
                f"{minimum} or more: ask for a plan with a minimum of {minimum} or more in each "
                "rule, or lower the site's own"
            )
        has = ", ".join(sorted({str(number) for number in least.values()}))
        return Verdict("minimum", str(minimum), has, objection)

    @staticmethod
    def _of_plans(plan: Plan, allowed: tuple[str, ...]) -> Verdict:
        objection = ""
        if plan.digest not in allowed:
            objection = (
                f"the plan's digest is {plan.digest}, and none of the {len(allowed)} that this "
                "site allows: ask for its file, see secureps check, and add the digest to plans"
            )
        return Verdict("plans", counted(len(allowed), "digest"), plan.digest, objection)


def custom_reports(plan: Plan) -> tuple[str, ...]:
    """Returns an app's own message types that a plan asks for reports with."""
    evaluation = plan.section.evaluation
    return tuple(sorted(evaluation.reports.keys() - {"train"})) if evaluation is not None else ()


def _of_evaluation(plan: Plan, client: str) -> Verdict:
    """Objects to a plan in which this client, whose site evaluates nothing, is the evaluator."""
    objection, has = "", "no evaluation"
    if plan.section.evaluation is not None:
        has = f"{plan.evaluator or 'every client'} evaluates"
    if client and plan.evaluator == client:
        objection = (
            f"the plan has {client} evaluate each version, and this site's records are never used "
            "for that: ask for a plan with another evaluation.evaluator"
        )
    return Verdict("evaluation", "false", has, objection)


NO_TERMS = Terms()
NO_REASON = "by its own terms"
"""The coordinator cannot tell from this whether options or the site's policy refused."""


# --- settings ----------------------------------------------------------------------

STATE_GONE = (
    "this client took part in this run before, and its state is gone: what it spent then is in its "
    "ledger (--ledger), which still holds it to the plan's budget"
)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a client has from its kit, its script and its own settings.

    Args:
        rows: by sparse tensor, the rows that its data touches.
        records: the public number of records that it counts by; None for the plan's, or its own.
        initial: digest of the file of version 0 that it was given, or empty.
        values: by tensor, the digest of the initial values; sent for tensors that a plan freezes.
        last: which groups' last versions it pulls after the run: "own", those that it contributes
            to; "every", all groups; empty, its own groups if one of them is a sum.
    """

    name: str
    roster: Roster
    schema: Schema
    terms: Terms = NO_TERMS
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: int | None = None
    initial: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    last: Literal["", "own", "every"] = ""

    def check_own(self, client: str) -> None:
        if client != self.name:
            raise ConfigError(
                f"this state folder is {client}'s: {self.name} needs a --state folder of its own"
            )

    def make_join(self, pinned: Pinned | None, groups: tuple[str, ...]) -> Join:
        """Makes the request to join, with the model and the groups that it contributes to."""
        if pinned is None:
            return Join(self.name, self.schema)
        some = () if groups == pinned.plan.groups else groups
        return Join(self.name, self.model(pinned.plan), some, pinned.run.id)

    def make_join_again(self, pinned: Pinned | None, asked: Join, proposed: Proposal) -> Join:
        """Makes the request to join a plan that freezes tensors, with these tensors' digests.

        Args:
            asked: the request without digests.

        Raises:
            ConfigError, PlanRefused: the plan is unsound, or cannot carry the model.
            TermsRefused: the plan does not keep to this client's terms.
            WrongRun: the plan is not that of this client's run, or not the one that it agreed to.
            Malformed: the coordinator has no reason to ask again.
        """
        if pinned is not None:
            raise WrongRun("the coordinator has another run than this client takes part in")
        self._check_terms(proposed.plan)  # before any digest of a value is sent
        model = self.model(Plan.from_text(proposed.plan))
        if asked.schema.valued or not model.valued:
            raise Malformed("the coordinator asks for frozen values twice, or for none")
        return Join(self.name, model)

    def model(self, plan: Plan) -> Schema:
        """Returns its model under a plan, with digests of the tensors that the plan freezes."""
        if not plan.section.frozen:
            return self.schema
        frozen = plan.layout(self.schema).frozen or ()
        if unknown := [spec.name for spec in frozen if spec.name not in self.values]:
            raise PlanRefused(
                f"the plan freezes {named(unknown)}, and this client has no values of its own: "
                "leave frozen out"
            )
        return self.schema.with_values({spec.name: self.values[spec.name] for spec in frozen})

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Returns warnings for the data holder: what is published, and if privacy is very weak.

        A client with a budget of its own needs no warning of weak privacy.
        """
        trains = self.name != plan.evaluator
        public = describe_public_number(plan.section, self.records) if trains else ()
        weak = weak_privacy(plan.section.privacy) if self.terms.budget is None else ()
        return (*public, *weak)

    def agree(self, welcome: Welcome, pinned: Pinned | None, out: Outbox) -> None:
        """Accepts a run, and what the coordinator knows of this client.

        `pinned` is the run on record here; None before the client takes part in one.

        Raises:
            WrongRun: it is another run, is founded on another file than this client was given, or
                has another plan than the client agreed to.
            DamagedStore: the client has sent more than is on record here.
            WrongShape: a new run trains another model than the client's.
            TermsRefused: the plan does not keep to this client's terms.
            PlanRefused: the plan counts by public numbers, and the client has none; and as
                `check_run`.
        """
        run = welcome.run
        if pinned is None:
            plan = check_run(run, welcome.placement, self.roster)
            plan.find_touched(self.rows)
            if self.name != plan.evaluator:
                public_number(plan.section, self.records)  # refuses a plan without one
            model = self.model(plan)
            if run.schema.untied != model.untied:
                difference = run.schema.difference(model)
                raise WrongShape(f"the run trains another model than this client's: {difference}")
        elif pinned.run.id != run.id:
            raise WrongRun(wrong_run(self.name, pinned.run.id, run.id))
        elif lost := out.why_behind(welcome.next):
            raise DamagedStore(lost)
        self._check_terms(run.plan)

    def _check_terms(self, text: str) -> None:
        """Accepts a plan by this client's terms."""
        plan = Plan.from_text(text)
        self.terms.refuse(plan, self.name)
        founded = plan.initial_digest
        if self.initial and founded and self.initial != founded:
            raise WrongRun(
                "the run is founded on another file than the one that this client was given: ask "
                "for the plan's file of version 0, and give that as the setting initial"
            )
        if self.terms.plan and (keys := different_keys(self.terms.plan, text)):
            raise WrongRun(
                f"the run's plan is not the one that this client agreed to, in {named(keys)}: ask "
                "the run's operator for the plan, see secureps check, and join with it"
            )
