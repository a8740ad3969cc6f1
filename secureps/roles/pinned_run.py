"""The run that a party is pinned to, and the checks that it is the run of the party's own kit.

Parties take the roster and the holders' keys from their kit, and never from the coordinator. A run
that is bound to others is refused before any update is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from secureps.crypto.cipher import Opening, Place
from secureps.crypto.roster import Roster
from secureps.errors import NotReady, PlanRefused, TermsRefused, WrongRun
from secureps.messages.records import RunPinned
from secureps.messages.run import Placement, RunInfo, Schema, all_shards
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.roles.machine import CallOff

LATER = 1.0
"""Seconds after which a party that cannot be served yet first asks again."""


@dataclass(frozen=True, slots=True)
class PinnedRun:
    """The settings with which the coordinator founds a run.

    Args:
        plan, roster: from the operator and from the kit.
        initial: schema of the plan's file of version 0; None if the first client gives the model.
        nonce: 32 random bytes; only a run's first start uses them.
        keys: the key holders' envelope keys of the kit.
        examined: whether holders examine envelopes before a cohort closes. If not, they examine
            them while they open it, and a flawed one burns the cohort.
        elsewhere: whether the address of a standby is known.
    """

    plan: Plan
    roster: Roster
    initial: Schema | None
    nonce: bytes
    keys: tuple[bytes, ...] = ()
    examined: bool = True
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Pinned:
    """The run that a party is bound to for good, with its plan and layout."""

    record: RunPinned
    placement: Placement
    plan: Plan
    layout: Layout
    coming: Placement | None = None

    @classmethod
    def of(cls, record: RunPinned, threshold: int | None = None) -> Pinned:
        """Makes the run from its record; raises as `read_plan` and `check_threshold`."""
        plan = read_plan(record.run)
        check_threshold(plan, threshold)
        layout = plan.layout(record.run.schema)
        return cls(record, record.placement, plan, layout, record.coming)

    @property
    def run(self) -> RunInfo:
        return self.record.run

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that hold blocks, then those that get their first ones by a move."""
        return all_shards(self.placement, self.coming)

    @property
    def epoch(self) -> int:
        """The epoch of the newest placement, in force or coming."""
        return (self.coming or self.placement).epoch

    def takers(self, group: str, block: int) -> tuple[str, ...]:
        """Returns the shards that hold a block, its primary first, then those that it moves to."""
        held = self.placement.holders(group, block)
        gains = () if self.coming is None else self.coming.holders(group, block)
        return (*held, *(shard for shard in gains if shard not in held))

    def follow_placement(
        self, placement: Placement, roster: Roster, coming: Placement | None = None
    ) -> Pinned:
        """Returns the run with newer placements; as it was if their shards are of a newer roster.

        The coordinator tells them again behind that roster. Raises WrongRun as `check_placement`.
        """
        shards = roster.names("shard")
        known = (self.placement.epoch, 0 if self.coming is None else self.coming.epoch)
        newer = (placement.epoch, 0 if coming is None else coming.epoch) > known
        if not newer or not shards.issuperset(all_shards(placement, coming)):
            return self
        for each in filter(None, (placement, coming)):
            check_placement(self.layout, each, roster, self.plan.section.replicas)
        return replace(self, placement=placement, coming=coming)

    def call_off_left(self, before: Pinned) -> list[CallOff]:
        """Ends calls to shards that held blocks before, and do not now."""
        return [CallOff(shard) for shard in before.shards if shard not in self.shards]

    def place(self, group: str) -> Place:
        return Place(self.run.id, group, self.layout.digest, self.layout.group(group).full)


class PinnedParty:
    """A party that takes part in one run, once it has heard of that run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pinned: Pinned | None = None

    @property
    def is_pinned(self) -> bool:
        return self._pinned is not None

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        if self._pinned is None:
            raise NotReady(f"{self.name} waits for the run to be founded")
        return self._pinned

    @property
    def run(self) -> bytes:
        """The run's id; empty before it is founded."""
        return b"" if self._pinned is None else self._pinned.run.id

    @property
    def record(self) -> tuple[RunPinned, ...]:
        """The record of the run; none before it is founded."""
        return () if self._pinned is None else (self._pinned.record,)


def read_plan(run: RunInfo) -> Plan:
    """Reads the plan of a run in which this party takes part.

    Raises as `Plan.from_text`, and PlanRefused if the text says what this version of secureps does
    not follow. Without that check parties of two versions could read one update differently.
    """
    plan = Plan.from_text(run.plan)
    if plan.text != run.plan:
        raise PlanRefused(
            "the run's plan is of another version of secureps: finish the run with that version"
        )
    return plan


def check_threshold(plan: Plan, threshold: int | None) -> None:
    """TermsRefused if fewer key holders open a sum than a party insists on (None: any number)."""
    if threshold is not None and plan.threshold < threshold:
        raise TermsRefused(
            f"by the plan {plan.threshold} of {plan.holders} key holders open a sum together, and "
            f"this party insists on {threshold}: ask for a plan with cipher.threshold = "
            f"{threshold} or more, or lower this party's own threshold"
        )


def check_minimum(plan: Plan, minimum: int) -> None:
    """TermsRefused if the plan's cohorts may be smaller than a holder opens.

    Such a holder would refuse some cohorts that the coordinator closes, and burn them.
    """
    for group in plan.all_groups:
        least = plan.bounds(group).minimum
        if least < minimum:
            raise TermsRefused(
                f"by the plan {least} members of {group} may be a cohort, and this holder opens "
                f"none of fewer than {minimum}: ask for a plan with a minimum of {minimum} or more "
                f"in each rule, or write `minimum = {least}` into this holder's file, or into its "
                "site's policy under `secureps join --hold --site FILE`"
            )


def check_placement(layout: Layout, placement: Placement, roster: Roster, copies: int) -> None:
    """WrongRun unless shards of the roster hold each block of the run's model, and no other block.

    The placement goes on record, and a wrong one would make the party fail at each start.
    """
    shards = roster.names("shard")
    blocks = {group.name: group.blocks for group in layout.all_groups}
    more = () if placement.replicas is None else placement.replicas.groups
    placed = [(each.group, len(each.owners)) for each in placement.groups]
    copied = [(each.group, len(each.owners)) for each in more]
    fits = sorted(placed) == sorted(blocks.items()) and set(copied) <= set(placed)
    owners = {owner for each in placement.groups for owner in each.owners}
    others = {owner for each in more for owner in each.owners if owner}
    if not fits or len(copied) > (copies - 1) * len(placed) or not owners | others <= shards:
        raise WrongRun(
            "the coordinator's is no placement of this run's blocks on shards of the roster: "
            "nothing was sent; get the current kit from the CA, for a shard may have come since, "
            "or ask the aggregator's operator"
        )


def check_run(
    run: RunInfo,
    placement: Placement,
    roster: Roster,
    threshold: int | None = None,
) -> Plan:
    """Checks that a run is bound to this kit, and to its own plan and schema; returns its plan.

    `threshold` is how many key holders this party insists on (`check_threshold`).

    Raises:
        WrongRun: the run is bound to a roster that is neither this kit's nor an earlier one, to
            other holders' keys, or to another layout; or its updates would be in the clear although
            the kit has keys; and as `check_placement`.
        PlanRefused, ConfigError: its plan is unsound, or fewer key holders open a sum.
    """
    if roster.number_of(run.roster) is None:
        raise WrongRun(
            "the coordinator's roster differs from this kit's: get the current kit from the CA"
        )
    plan = read_plan(run)
    replaceable = plan.opening is not Opening.HOLDER and roster.digest != run.roster
    if run.holders != roster.committee and not replaceable:
        raise WrongRun(
            "the coordinator's key holders are not those of this kit: do not send anything, "
            "and ask the CA which kit is right"
        )
    if len(run.nonce) != 32:
        raise WrongRun("the run's nonce is not 32 bytes")
    sealed = any(holder.cipher_key_digest for holder in roster.holders())
    if sealed and plan.opening is Opening.NOTHING:
        raise WrongRun(
            f"the coordinator's plan sends updates in the clear ({plan.section.cipher.name}), but "
            "this kit was made for encryption: nothing was sent; ask the CA"
        )
    check_threshold(plan, threshold)
    layout = plan.layout(run.schema)
    if layout.digest != run.layout:
        raise WrongRun("the run's layout is not that of its plan and model")
    check_placement(layout, placement, roster, plan.section.replicas)
    return plan
