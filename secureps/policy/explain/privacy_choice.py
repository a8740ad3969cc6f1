"""Noise or versions for an epsilon that somebody wants: `secureps check PLAN --epsilon E`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from secureps.config.plan import PlanSection
from secureps.errors import ConfigError, PlanRefused
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency, planned
from secureps.wording import counted

HUNDREDTHS = 100
"""Noise multipliers are searched in steps of 0.01, which is as a plan states them."""

MOST_NOISE = 1000
MOST_VERSIONS = 100_000


@dataclass(frozen=True, slots=True)
class Choice:
    """What to write into a plan so that a client spends no more than `epsilon`.

    Args:
        noise_multiplier, versions: of the plan then; one of the two was searched for.
        epsilon: what was asked for, at the plan's `delta`.
        spends: the epsilon of the run then, at most that.
        lines: of TOML, which stand in place of the plan's own.
        otherwise: what else would do, in words; empty if there is nothing.
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


def choose(
    plan: Plan, sizes: Mapping[str, int], epsilon: float, noise_stated: bool
) -> tuple[Plan, Choice]:
    """Finds the least noise for the plan's versions, or where it states the noise, the versions.

    Args:
        sizes: values that are sent of an update of each group.
        noise_stated: whether the plan's noise stays.
    Returns:
        the plan as it is then, with `epsilon` as its budget.
    Raises:
        PlanRefused: no noise is enough; or the plan's is not enough for one version.
    """
    asked, refused = plan.section.versions, ""

    def spends(made: Plan) -> float:
        return planned(made, sizes, made.section.versions)

    def with_noise(hundredths: int) -> Plan:
        return _change_plan(plan, epsilon, hundredths / HUNDREDTHS, asked)

    def enough(hundredths: int) -> bool:
        nonlocal refused
        try:
            return spends(with_noise(hundredths)) <= epsilon
        except PlanRefused as error:  # too little noise for a group's grid, or too much
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
        except PlanRefused:  # noise that is cut off has used up delta
            return True

    first = _least(too_many, MOST_VERSIONS)
    versions = MOST_VERSIONS if first is None else first - 1
    louder = "" if versions >= asked else _say_noise(_least(enough, MOST_NOISE * HUNDREDTHS))
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


def _say_noise(hundredths: int | None) -> str:
    if hundredths is None:
        return ""
    return f"noise_multiplier = {hundredths / HUNDREDTHS:g} lasts for all versions of the plan"


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
    """The least number from 1 on for which `holds` is true, as it is for all larger ones."""
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
