"""What a submission spends under a plan, and what a party's facts come to.

The one place that knows which unit a plan protects, a client's records or the client as a
whole, so that nobody adds one to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from secureps.config.plan import ClientPrivacySection
from secureps.errors import InternalError, PlanRefused
from secureps.messages.charge import CLIENT_ADJACENCY, Charge, Release
from secureps.messages.evaluation import EVALUATION
from secureps.policy.plan import Plan
from secureps.privacy.ledger import Ledger

Fact = Charge | Release


def adjacency(plan: Plan) -> str:
    """Says what every epsilon of a plan is of; empty where nothing is private."""
    privacy = plan.section.privacy
    if privacy is None:
        return ""
    if isinstance(privacy, ClientPrivacySection):
        return CLIENT_ADJACENCY
    how = "replaced by nothing" if privacy.adjacency == "zero-out" else "added or removed"
    return f"one record {how}"


def fact(
    plan: Plan, party: str, group: str, values: int, version: int, step: int = 0
) -> Fact | None:
    """Makes the privacy fact of one update from this base version; None if nothing is private.

    Record-level privacy is the training's: it covers no held-out record, and an evaluation
    spends nothing of it.

    Args:
        values: that are sent of an update (`GroupLayout.sent`).
        step: which of the client's updates of this version it is.
    """
    privacy = plan.section.privacy
    if privacy is None or (group == EVALUATION and privacy.unit == "record"):
        return None
    if isinstance(privacy, ClientPrivacySection):
        mechanism = plan.mechanism(group, values)
        assert mechanism is not None
        return replace(mechanism.release(party, group, version), step=step)
    steps = int(plan.section.training["local_steps"])
    return Charge(party, group, version, privacy.noise_multiplier, privacy.sample_rate, steps, step)


def spent(plan: Plan, facts: Iterable[Fact], most_delta: float = 1.0) -> float:
    """Computes the epsilon of one party's facts at the plan's delta, or a smaller one; 0 for none.

    Args:
        facts: any number, or how often each (`Ledger.tally`).
    Raises:
        InternalError: the plan protects nothing, or a fact is of the other unit.
    """
    from secureps.privacy.accountant import client_epsilon, epsilon

    privacy = plan.section.privacy
    if privacy is None:
        raise InternalError("nothing is spent under a plan without privacy")
    charges: Counter[Charge] = Counter()
    releases: Counter[Release] = Counter()
    for each, times in Counter(facts).items():
        if isinstance(each, Charge):
            charges[each] = times
        else:
            releases[each] = times
    client = isinstance(privacy, ClientPrivacySection)
    if charges if client else releases:
        raise InternalError(f"facts of another unit than the plan's {privacy.unit}")
    delta = min(privacy.delta, most_delta)
    return client_epsilon(releases, delta) if client else epsilon(charges, delta)


def planned(plan: Plan, sizes: Mapping[str, int], versions: int) -> float:
    """Computes the epsilon of a client that has a part in each of the first so many versions.

    The client counts in each of them: a rule that takes those who come first is no random sample,
    and no chance to be left out is made use of. The last of a group's own versions includes what
    its rule lets a member send ahead.

    Args:
        sizes: values that are sent of an update of each group.
    Raises:
        InternalError: the plan protects nothing.
    """
    facts: Iterable[Fact | None] = (
        fact(plan, "client", group, sizes[group], version)
        for group in plan.groups
        for version in range(_updates(plan, group, versions))
    )
    if plan.clients_evaluate:
        rounds = plan.evaluated.count(versions)
        size = plan.metrics_count
        own = (fact(plan, "client", EVALUATION, size, number) for number in range(rounds))
        facts = (*facts, *own)
    return spent(plan, (each for each in facts if each is not None))


def _updates(plan: Plan, group: str, versions: int) -> int:
    own = plan.versions(group)
    return versions if versions < own else own + plan.bounds(group).ahead


def refuse_unaffordable(plan: Plan, sizes: Mapping[str, int] | None = None) -> None:
    """Refuses a budget that no client can contribute to a single version with.

    Args:
        sizes: as of `planned`; default: one value in each group, which costs least.
    Raises:
        PlanRefused: says what a version costs.
    """
    privacy = plan.section.privacy
    if privacy is None:
        return
    cost = planned(plan, sizes or dict.fromkeys(plan.groups, 1), 1)
    if cost > privacy.budget:
        raise PlanRefused(
            f"privacy.budget: {privacy.budget:g} allows no version: the first spends epsilon "
            f"{cost:.3g} at delta {privacy.delta:g}, of {adjacency(plan)}; add noise or raise the "
            "budget"
        )


def after(
    plan: Plan, ledger: Ledger, party: str, ahead: Iterable[Fact], most_delta: float = 1.0
) -> float:
    """The epsilon of a party once it has spent these, too; facts on record cost nothing more."""
    facts = ledger.tally(party)
    facts.update(each for each in ahead if ledger.new(each))
    return spent(plan, facts, most_delta)
