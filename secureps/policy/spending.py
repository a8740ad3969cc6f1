"""Computes what submissions spend, and which noise or how many versions meet an epsilon.

This module alone knows whether a plan protects records, persons or clients as a whole, so that
facts of two units are never added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from secureps.config.plan import ClientPrivacySection, PlanSection
from secureps.errors import ConfigError, InternalError, PlanRefused
from secureps.messages.charge import CLIENT_ADJACENCY, Charge, Fact, Release
from secureps.policy.plan import Plan, protects_persons
from secureps.privacy.ledger import UNIT_NAMES, Ledger, PersonCharge
from secureps.wording import counted


def adjacency(plan: Plan) -> str:
    """Names what a plan's epsilon protects; empty where nothing is private."""
    privacy = plan.section.privacy
    if privacy is None:
        return ""
    if isinstance(privacy, ClientPrivacySection):
        return CLIENT_ADJACENCY
    how = "replaced by nothing" if privacy.adjacency == "zero-out" else "added or removed"
    return f"{UNIT_NAMES[privacy.unit]} {how}"


def make_fact(
    plan: Plan, party: str, group: str, values: int, version: int, step: int = 0
) -> Fact | None:
    """Makes the privacy fact of one update; None if it spends nothing.

    Record-level privacy covers training only, so an evaluation spends nothing of it. An update
    sends so many `values` (`GroupLayout.sent`), and `version` is its base.
    """
    privacy = plan.section.privacy
    if privacy is None:
        return None
    if isinstance(privacy, ClientPrivacySection):
        mechanism = plan.mechanism(group, values)
        assert mechanism is not None
        return replace(mechanism.release(party, group, version), step=step)
    if plan.trails(group):
        return None
    steps = int(plan.section.training["local_steps"])
    return Charge(party, group, version, privacy.noise_multiplier, privacy.sample_rate, steps, step)


def mark_unit(plan: Plan, fact: Fact) -> Fact:
    """Marks a fact with the unit of its plan, for a ledger over all runs, which knows no plan."""
    return PersonCharge(*astuple(fact)) if protects_persons(plan.section) else fact


def total_epsilon(plan: Plan, facts: Iterable[Fact], most_delta: float = 1.0) -> float:
    """Computes the epsilon of one party's facts, at the plan's delta or `most_delta`; 0 for none.

    `facts` may also say how often each occurs (`Ledger.tally`). InternalError if one is of the
    other unit than the plan's.
    """
    from secureps.privacy.accountant import client_epsilon, epsilon

    privacy = plan.section.privacy
    assert privacy is not None
    known: Counter[Any] = Counter(facts)
    client = isinstance(privacy, ClientPrivacySection)
    if any(isinstance(each, Release) != client for each in known):
        raise InternalError(f"facts of another unit than the plan's {privacy.unit}")
    delta = min(privacy.delta, most_delta)
    return client_epsilon(known, delta) if client else epsilon(known, delta)


def plan_epsilon(plan: Plan, sizes: Mapping[str, int], versions: int) -> float:
    """Computes the epsilon of a client that takes part in each of the first `versions` versions.

    No amplification by sampling is claimed, because a rule that takes the first updates to arrive
    is no random sample. The last version includes what the rule lets a member send ahead. `sizes`
    has the number of values that are sent of an update, by group.
    """
    sizes = {**sizes, plan.trailing: plan.metrics_count}
    facts = (
        make_fact(plan, "client", group, sizes[group], version)
        for group in sorted(plan.all_groups, key=plan.trails)
        for version in range(_updates(plan, group, versions))
    )
    return total_epsilon(plan, (each for each in facts if each is not None))


def _updates(plan: Plan, group: str, versions: int) -> int:
    if plan.trails(group):
        return plan.schedule.count(versions)
    own = plan.versions(group)
    return versions if versions < own else own + plan.bounds(group).ahead


def refuse_unaffordable(plan: Plan, sizes: Mapping[str, int] | None = None) -> None:
    """Refuses a budget that is too small for a single version (PlanRefused).

    `sizes` are as in `plan_epsilon`; default: one value in each group, which costs least.
    """
    privacy = plan.section.privacy
    if privacy is None:
        return
    cost = plan_epsilon(plan, sizes or dict.fromkeys(plan.groups, 1), 1)
    if cost > privacy.budget:
        raise PlanRefused(
            f"privacy.budget: {privacy.budget:g} allows no version: the first spends epsilon "
            f"{cost:.3g} at delta {privacy.delta:g}, of {adjacency(plan)}; add noise or raise the "
            "budget"
        )


def epsilon_after(
    plan: Plan, ledger: Ledger, party: str, ahead: Iterable[Fact], most_delta: float = 1.0
) -> float:
    """Computes a party's epsilon after these facts too; facts on record cost nothing more."""
    facts = ledger.tally(party)
    facts.update(each for each in ahead if ledger.is_new(each))
    return total_epsilon(plan, facts, most_delta)


# --- privacy choice ----------------------------------------------------------------

HUNDREDTHS = 100
"""Noise multipliers are searched in steps of 0.01."""

MOST_NOISE = 1000
MOST_VERSIONS = 100_000


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan's lines by which a client spends no more than `epsilon`.

    Args:
        noise_multiplier, versions: of the changed plan; one of the two was searched for.
        spends: the epsilon of the whole changed run.
        lines: of TOML, to replace the plan's own.
        otherwise: an alternative, in words; empty without one.
    """

    noise_multiplier: float
    versions: int
    epsilon: float
    delta: float
    spends: float
    lines: tuple[str, ...]
    otherwise: str


def refuse_epsilon(epsilon: float, section: PlanSection) -> None:
    """Refuses an epsilon for which no noise can be chosen (ConfigError)."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"--epsilon: {epsilon:g} is no number above 0")
    if section.privacy is None:
        raise ConfigError(
            "--epsilon: the plan has no [privacy], which says of what it is an epsilon: add the "
            "table; noise_multiplier and budget may be left out of it for this"
        )


def choose_noise(
    plan: Plan, sizes: Mapping[str, int], epsilon: float, noise_stated: bool
) -> tuple[Plan, Choice]:
    """Finds the least noise for the plan's versions; if the noise is stated, the most versions.

    Returns the changed plan, with `epsilon` as its budget. Raises PlanRefused if no noise is
    enough, or the stated noise is too little for one version. `sizes` are as in `plan_epsilon`.
    """
    asked, refused = plan.section.versions, ""

    def spends(made: Plan) -> float:
        return plan_epsilon(made, sizes, made.section.versions)

    def with_noise(hundredths: int) -> Plan:
        return _change_plan(plan, epsilon, hundredths / HUNDREDTHS, asked)

    def enough(hundredths: int) -> bool:
        nonlocal refused
        try:
            return spends(with_noise(hundredths)) <= epsilon
        except PlanRefused as error:  # too little or too much noise for a group's grid
            refused = f": {error}"
            return False

    if not noise_stated:
        found = _least(enough, MOST_NOISE * HUNDREDTHS)
        if found is None:
            raise PlanRefused(
                f"--epsilon: no noise_multiplier up to {MOST_NOISE} spends {epsilon:g} or less in "
                f"{counted(asked, 'version')}{refused}; take fewer versions, or a larger epsilon"
            )
        made = with_noise(found)
        noise = found / HUNDREDTHS
        chosen = ("[privacy]", f"noise_multiplier = {noise:g}", f"budget = {epsilon:g}")
        return made, _make_choice(made, epsilon, spends(made), chosen, "")
    privacy = plan.section.privacy
    assert privacy is not None
    noise = privacy.noise_multiplier

    def too_many(versions: int) -> bool:
        try:
            return spends(_change_plan(plan, epsilon, noise, versions)) > epsilon
        except PlanRefused:  # noise that the grid cuts off has used up delta
            return True

    first = _least(too_many, MOST_VERSIONS)
    versions = MOST_VERSIONS if first is None else first - 1
    louder = ""
    if versions < asked and (found := _least(enough, MOST_NOISE * HUNDREDTHS)) is not None:
        louder = f"noise_multiplier = {found / HUNDREDTHS:g} lasts for all versions of the plan"
    if versions == 0:
        one = spends(_change_plan(plan, epsilon, noise, 1))
        raise PlanRefused(
            f"--epsilon: with noise_multiplier = {noise:g} one version spends {one:.3g} of "
            f"{epsilon:g}, of {adjacency(plan)}{louder and f'; {louder}'}"
        )
    made = _change_plan(plan, epsilon, noise, versions)
    lines: tuple[str, ...] = (f"versions = {versions}", "[privacy]", f"budget = {epsilon:g}")
    evaluation = plan.section.evaluation
    if evaluation is not None and evaluation.every > versions:
        lines += ("[evaluation]", f"every = {versions}")
    return made, _make_choice(made, epsilon, spends(made), lines, louder)


def _make_choice(
    made: Plan, epsilon: float, spends: float, lines: tuple[str, ...], otherwise: str
) -> Choice:
    privacy = made.section.privacy
    assert privacy is not None
    noise, versions = privacy.noise_multiplier, made.section.versions
    return Choice(noise, versions, epsilon, privacy.delta, spends, lines, otherwise)


def _change_plan(plan: Plan, epsilon: float, noise: float, versions: int) -> Plan:
    section, evaluation = plan.section, plan.section.evaluation
    assert section.privacy is not None
    privacy = section.privacy.model_copy(update={"noise_multiplier": noise, "budget": epsilon})
    changes: dict[str, object] = {"privacy": privacy, "versions": versions}
    if evaluation is not None:  # at least the last version is judged
        every = min(evaluation.every, versions)
        changes["evaluation"] = evaluation.model_copy(update={"every": every})
    return Plan(section.model_copy(update=changes), plan.initial_digest)


def _least(holds: Callable[[int], bool], most: int) -> int | None:
    """Returns the least number from 1 to `most` for which the monotone `holds` is true, if any."""
    high = 1
    while not holds(high):
        if high == most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
