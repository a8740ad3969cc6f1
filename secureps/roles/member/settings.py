"""What a client's machine is made from: what its kit, its script and its own settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, DamagedStore, Malformed, PlanRefused, WrongRun, WrongShape
from secureps.messages.requests import Join, Proposal, Welcome
from secureps.messages.run import other_run
from secureps.messages.schema import Schema
from secureps.policy.canonical import different_keys
from secureps.policy.checks.privacy import weak_privacy
from secureps.policy.counting import public_number, publication
from secureps.policy.plan import Plan
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.terms import NO_TERMS, Terms
from secureps.roles.pinned_run import Pinned, check_run
from secureps.wording import named

STATE_GONE = (
    "this client took part in this run before, and its state is gone: what it spent then is in its "
    "ledger (--ledger), which still holds it to the plan's budget"
)
"""What its data holder has to know."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a client has from its kit, its script and its own settings.

    `rows` are those of sparse tensors that its data touches; `records` is the public number that it
    counts by, None for the plan's or how many it has. `initial` is the digest of the file of
    version 0 that it was given, as a plan has it, or empty. `values` are digests of its tensors'
    initial values, by name: it tells those of the tensors that a plan freezes.
    """

    name: str
    roster: Roster
    schema: Schema
    terms: Terms = NO_TERMS
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: int | None = None
    initial: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def check_own(self, client: str) -> None:
        if client != self.name:
            raise ConfigError(
                f"this state folder is {client}'s: {self.name} needs a --state folder of its own"
            )

    def joins(self, pinned: Pinned | None, groups: tuple[str, ...]) -> Join:
        """The `Join` of a client: its model, and the groups that it contributes to."""
        if pinned is None:
            return Join(self.name, self.schema)
        some = () if groups == pinned.plan.groups else groups
        return Join(self.name, self.model(pinned.plan), some, pinned.run.id)

    def joins_again(self, pinned: Pinned | None, asked: Join, proposed: Proposal) -> Join:
        """The `Join` to a plan that freezes tensors, with the digests of these.

        Args:
            asked: what it said before.
        Raises:
            ConfigError, PlanRefused: the plan is unsound, or cannot carry the model.
            TermsRefused: it is not as this client insists.
            WrongRun: it is not that of this client's run, or not the one that it agreed to.
            Malformed: nobody has to join again.
        """
        if pinned is not None:
            raise WrongRun("the coordinator has another run than this client takes part in")
        self._check_terms(proposed.plan)  # before a plan learns which values are here
        model = self.model(Plan.from_text(proposed.plan))
        if asked.schema.told or not model.told:
            raise Malformed("the coordinator asks for frozen values twice, or for none")
        return Join(self.name, model)

    def model(self, plan: Plan) -> Schema:
        """Its model under a plan: with digests of the tensors that all parties must have alike.

        Raises:
            PlanRefused: the plan cannot carry it.
        """
        if not plan.section.frozen:
            return self.schema
        frozen = plan.layout(self.schema).frozen or ()
        if unknown := [spec.name for spec in frozen if spec.name not in self.values]:
            raise PlanRefused(
                f"the plan freezes {named(unknown)}, and this client has no values of its own: "
                "leave frozen out"
            )
        return self.schema.telling({spec.name: self.values[spec.name] for spec in frozen})

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Warns its data holder before anything leaves: of what is public, of next to no privacy.

        A budget of its own limits the second, whatever the plan says.
        """
        public = () if self.name == plan.evaluator else publication(plan.section, self.records)
        weak = weak_privacy(plan.section.privacy) if self.terms.budget is None else ()
        return (*public, *weak)

    def agree(self, welcome: Welcome, pinned: Pinned | None, out: Outbox) -> None:
        """Accepts the run that this client takes part in, and its coordinator's account of it.

        `pinned` is the run on record here, None before it takes part in any.

        Raises:
            WrongRun: it is another run, founded on another file than this client was given, or of
                another plan than it agreed to.
            DamagedStore: it has sent more than is on record here.
            WrongShape: a new run trains another model than its own.
            TermsRefused: the plan is not as this client insists.
            PlanRefused: it counts by public numbers, and there is none; and as `check_run`.
        """
        run = welcome.run
        if pinned is None:
            plan = check_run(run, welcome.placement, self.roster)
            plan.touched(self.rows)
            if self.name != plan.evaluator:
                public_number(plan.section, self.records)  # refuses a plan without one
            model = self.model(plan)
            if run.schema.untied != model.untied:
                difference = run.schema.difference(model)
                raise WrongShape(f"the run trains another model than this client's: {difference}")
        elif pinned.run.id != run.id:
            raise WrongRun(other_run(self.name, pinned.run.id, run.id))
        elif lost := out.behind(welcome.next):
            raise DamagedStore(lost)
        self._check_terms(run.plan)

    def _check_terms(self, text: str) -> None:
        """Accepts a plan by this client's terms.

        Raises:
            WrongRun: a run with it is founded on another file, or on a plan that nobody agreed to.
            TermsRefused: the plan is not as this client insists.
        """
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
