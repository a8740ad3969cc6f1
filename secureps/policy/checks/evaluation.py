"""The [evaluation] table of a plan: its schedule, its group of metrics, and the best version.

Clients that evaluate contribute to an extra group beside the model's. It has one value per metric,
divided by the metric's largest magnitude, under the rule, weighting and privacy of any other group.

Reports travel in the same vector, each weighted by its own number of examples n_p. A client counts
by the largest number n of its parts. Each part adds its share n_p / n, and its metrics multiplied
by that share. The sum of the products divided by the sum of the shares is the mean weighted by n_p.

All functions depend on journalled records alone, so a restarted coordinator decides as before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from secureps.config.plan import (
    EVALUATED,
    BestSection,
    ClientPrivacySection,
    EvaluationSection,
    GroupSection,
    PlanSection,
    RecordPrivacySection,
    SyncSection,
)
from secureps.errors import Malformed, NotFinite, PlanRefused
from secureps.messages.encoding import payload_digest
from secureps.messages.evaluation import EVALUATION, Metric, VersionEvaluated
from secureps.messages.run import TensorSpec
from secureps.messages.submission import Base
from secureps.model.layout import GroupLayout
from secureps.wording import suggest


@dataclass(frozen=True, slots=True)
class Schedule:
    """The versions of the model that a trailing group has a round for: every k-th and the last.

    The schedule is empty if `every`, k, is 0.
    """

    every: int
    last: int

    def __contains__(self, version: int) -> bool:
        if not self.every or not 0 < version <= self.last:
            return False
        return version % self.every == 0 or version == self.last

    def count(self, newest: int) -> int:
        return newest // self.every if newest < self.last else -(-self.last // self.every)

    def base(self, version: int, at: int) -> Base:
        """Returns the base of contributions about version `at`, while the group is at `version`.

        Each version on the schedule has its own base, even if the sum before it was skipped,
        because whatever came of a base keeps one name for ever.
        """
        return Base(version, -(-at // self.every) - 1 - version)

    def tries(self, at: int) -> int:
        """Returns how many rounds a version may have: two for the last, which delays nothing."""
        return 2 if at == self.last else 1


LEAST_BITS = 12
"""Bits of a metric where the model's values have fewer: an accuracy then travels in steps of
0.05 %, and metrics are so few that their bits cost nothing."""


def evaluation_group(section: PlanSection) -> GroupSection | None:
    """Builds the group of the metrics; None unless clients evaluate.

    Its grid reaches 1. Under client-level privacy its clip is the length of the longest possible
    vector, sqrt(number of metrics), so that the clip changes nothing.
    """
    own, first = section.evaluation, section.group[0]
    if own is None or own.evaluator is not None:
        return None
    private = isinstance(section.privacy, ClientPrivacySection)
    most = own.most_examples or _stated(section)
    return GroupSection(
        name=EVALUATION,
        pattern="",
        clip=math.sqrt(len(own.contributed)),
        bits=max(LEAST_BITS, *(group.bits for group in section.group)),
        range=None if private else 1.0,
        weighting="uniform" if private or most is None else "examples",
        most_examples=most,
        rule=own.rule if own.rule is not None else first.rule,
        outcome="sum",
    )


def evaluation_layout(own: EvaluationSection) -> GroupLayout:
    specs = tuple(TensorSpec(name, (), "float32") for name in own.contributed)
    return GroupLayout(EVALUATION, specs, len(specs), len(specs))


def _stated(section: PlanSection) -> int | None:
    """Returns the largest bound on examples among the model's groups; None without any."""
    own = (each.most_examples for each in section.group if each.weighting == "examples")
    return max((most for most in own if most is not None), default=None)


def refuse_unsound_evaluation(section: PlanSection) -> None:
    if any(group.name == EVALUATION for group in section.group):
        raise PlanRefused(f'no group is called "{EVALUATION}": that name is the metrics\'')
    own = section.evaluation
    if own is None:
        return
    if all(group.outcome == "sum" for group in section.group):
        raise PlanRefused(
            'evaluation: there is no model to evaluate, for each group has outcome = "sum": leave '
            "[evaluation] out, or add a group that is trained"
        )
    for group in section.group:
        if group.sparse is not None:
            raise PlanRefused(
                f"evaluation: a version is of all groups, and the row-blocks of group {group.name} "
                "do not wait for each other, nor has every client all of them: remove sparse, or "
                "leave [evaluation] out"
            )
        if group.versions not in (None, section.versions):
            raise PlanRefused(
                "evaluation: a version is judged when every group is at it, and group "
                f"{group.name} makes {group.versions} of {section.versions}: leave [evaluation] or "
                "its versions out"
            )
        if not isinstance(group.rule, SyncSection):
            raise PlanRefused(
                f"evaluation: a version is judged between rounds, and group {group.name} has none "
                f'under rule "{group.rule.name}": take "sync", or leave [evaluation] out'
            )
    if own.rule is not None and own.rule.name == "fragments":
        raise PlanRefused('evaluation.rule: metrics take no turns with groups: take "sync"')
    if own.every > section.versions:
        raise PlanRefused(
            f"evaluation.every: of {section.versions} versions none is the {own.every}th"
        )
    if section.block_size is not None and len(own.contributed) > section.block_size:
        raise PlanRefused(
            f"evaluation.metrics: {len(own.contributed)} do not fit a block of {section.block_size}"
        )
    if own.reports and isinstance(section.privacy, RecordPrivacySection):
        raise PlanRefused(
            f"evaluation.reports: under {section.privacy.unit}-level privacy nothing is told of "
            "the records that a client trains on but by noisy steps: remove them"
        )
    if own.reports and own.evaluator is not None:
        raise PlanRefused(
            "evaluation.reports: an evaluator speaks in the clear, and a report is told only as "
            "a cohort's mean: remove the evaluator or the reports"
        )
    for name, count in Counter(own.contributed).items():
        if count > 1:
            raise PlanRefused(f"evaluation.reports: two metrics are called {name}")
    if own.best is not None and own.best.metric not in own.metrics:
        raise PlanRefused(
            f"evaluation.best.metric: {own.best.metric!r} is none of the metrics; "
            f"{suggest(own.best.metric, sorted(own.metrics))}"
        )
    if own.stop is not None:
        if own.best is None:
            raise PlanRefused("evaluation.stop: by which metric? add [evaluation.best]")
        if own.stop.patience is None and own.stop.target is None:
            raise PlanRefused("evaluation.stop: state a patience, a target, or both")
        name, most = own.best.metric, own.metrics[own.best.metric]
        if own.stop.target is not None and abs(own.stop.target) > most:
            raise PlanRefused(
                f"evaluation.stop.target: {own.stop.target:g} is never reached: {name} is within "
                f"+-{most:g} (evaluation.metrics)"
            )
    if own.evaluator is not None and (own.rule or own.most_examples):
        raise PlanRefused(
            "evaluation: one designated evaluator speaks in the clear and for itself: rule and "
            "most_examples are for clients; remove them or the evaluator"
        )


NOISY_CHOICE = 0.25
"""The largest standard deviation of noise that may pick a version, in parts of the magnitude."""


def refuse_noisy_choice(own: EvaluationSection | None, metric_noise: Mapping[str, float]) -> None:
    """Refuses noise, a standard deviation by metric, that would choose the best version."""
    if own is None or own.best is None:
        return
    name = own.best.metric
    noise, most = metric_noise.get(name, 0.0), own.metrics[name]
    if noise > NOISY_CHOICE * most:
        raise PlanRefused(
            f"evaluation.best: the noise would choose the version: on {name}, which is within "
            f"+-{most:g}, it has a standard deviation of {noise:.2g} in the smallest cohort; "
            "remove best and stop, raise evaluation.rule.minimum, name fewer metrics, or name an "
            "evaluator"
        )


@dataclass(frozen=True)
class Said:
    """One part of a contribution: its metrics, over `examples` >= 1 examples."""

    examples: int
    metrics: Mapping[str, float]


def to_vector(
    section: EvaluationSection, own: Said, reports: Mapping[str, Said] = MappingProxyType({})
) -> NDArray[np.float32]:
    """Turns a client's metrics into the vector that it contributes.

    Args:
        own: its evaluation; metrics that the plan does not name are ignored, in reports too.
        reports: all that the plan names, by message.
    Returns:
        float32 in the order of `EvaluationSection.contributed`: each metric clipped to its largest
        magnitude and divided by it, in [-1, 1]; with reports, multiplied by its part's share.
    Raises:
        Malformed: a metric is missing.
        NotFinite: one is NaN or infinite.
    """
    if not section.reports:
        return np.array(_scaled(section.metrics, own.metrics), dtype=np.float32)
    said = {EVALUATED: own, **reports}
    most, values = count_examples(own, reports), list[float]()
    for message, magnitudes in section.parts:
        part = said[message]
        share = part.examples / most
        values += [share, *(share * each for each in _scaled(magnitudes, part.metrics))]
    return np.array(values, dtype=np.float32)


def count_examples(own: Said, reports: Mapping[str, Said]) -> int:
    """Returns the number of examples by which a contribution counts: the most of its parts."""
    return max(own.examples, *(each.examples for each in reports.values()), 1)


def _scaled(magnitudes: Mapping[str, float], values: Mapping[str, float]) -> list[float]:
    scaled = []
    for name, most in sorted(magnitudes.items()):
        if name not in values:
            raise Malformed(
                f"there is no metric {name!r}, which the plan evaluates (there are: "
                f"{', '.join(sorted(values))})"
            )
        value = float(values[name])
        if not math.isfinite(value):
            raise NotFinite(f"metric {name!r} is {value}: look at the held-out records")
        scaled.append(max(-1.0, min(1.0, value / most)))
    return scaled


def check_total(shard: str, total: tuple[float, ...], block: bytes) -> None:
    """Raises Malformed unless a shard's opened total is the block with this digest.

    Copies of the block are compared by digest; with this check that compares their totals too.
    """
    with np.errstate(over="ignore"):
        values = np.array(total, np.float64).astype("<f4")
    if payload_digest(values.tobytes()) != block:
        raise Malformed(f"{shard}: its total is not the block that it made")


def from_vector(
    section: EvaluationSection, total: tuple[float, ...], shares: Fraction
) -> tuple[Metric, ...]:
    """Turns the total of many `to_vector`s into mean metrics in their own units, sorted by name.

    A report is left out if noise has taken its share below 0. The total is divided by `shares`
    (`policy.plan.shares_in`). Malformed if the number of values is wrong, or one is not finite.
    """
    wanted = len(section.contributed)
    if len(total) != wanted or not all(math.isfinite(value) for value in total):
        raise Malformed(f"an evaluation is {wanted} finite values")
    mean = [value / float(shares) for value in total]
    if not section.reports:
        named = zip(sorted(section.metrics.items()), mean, strict=True)
        return tuple(Metric(name, value * most) for (name, most), value in named)
    values, found = iter(mean), list[Metric]()
    for message, magnitudes in section.parts:
        share = next(values)
        for name, most in sorted(magnitudes.items()):
            value = next(values)
            if share > 0:  # noise may take the share, or the ratio, out of range
                ratio = max(-1.0, min(1.0, value / share))
            elif message == EVALUATED:  # every client evaluates: the share was rounded to 0
                ratio = 0.0
            else:
                continue
            found.append(Metric(section.title(message, name), ratio * most))
    return tuple(sorted(found, key=lambda metric: metric.name))


def check_metrics(section: EvaluationSection, metrics: tuple[Metric, ...]) -> None:
    """Checks that an evaluator's metrics are exactly the plan's, sorted, and finite."""
    if [metric.name for metric in metrics] != sorted(section.metrics):
        raise Malformed(
            f"an evaluation has the metrics {', '.join(sorted(section.metrics))}, in this order"
        )
    for metric in metrics:  # one NaN would spoil the choice of the best version for good
        if not math.isfinite(metric.value):
            raise NotFinite(f"metric {metric.name!r} is {metric.value}: evaluate again")


# --- which evaluated version is the best, and when evaluations end a run -----------


def find_best(
    results: Sequence[VersionEvaluated], section: EvaluationSection | None
) -> VersionEvaluated | None:
    """Returns the best evaluation, the earliest of equals; None without any or without `best`."""
    if section is None or section.best is None:
        return None
    return max(results, key=partial(_worth, by=section.best), default=None)


def why_stop(
    evaluations: Sequence[VersionEvaluated], section: EvaluationSection | None
) -> str | None:
    """Returns why the run ends now, in words for an operator; None while it continues.

    With a target the run ends when an evaluation reaches it. With a patience p it ends when the
    last p evaluations beat the mark by no more than `least`. The first evaluation is the first
    mark; an evaluation that beats the mark by more than `least` is the next one (after Prechelt
    1998, "Early Stopping - But When?", UP).
    """
    if section is None or section.stop is None or section.best is None or not evaluations:
        return None
    own, by = section.stop, section.best
    mark, stalled, value = evaluations[0], 0, evaluations[-1].value(by.metric)
    if own.target is not None and (
        value >= own.target if by.goal == "max" else value <= own.target
    ):
        return (
            f"version {evaluations[-1].version} reached the target: {by.metric} {value:.4f}, "
            f"{own.target:g} was asked for"
        )
    for evaluation in evaluations[1:]:
        better = _worth(evaluation, by) - _worth(mark, by) > own.least
        mark, stalled = (evaluation, 0) if better else (mark, stalled + 1)
    if own.patience is None or stalled < own.patience:
        return None
    return (
        f"{stalled} evaluations in a row did not improve {by.metric} by more than "
        f"{own.least:g} on version {mark.version}'s {mark.value(by.metric):.4f}"
    )


def _worth(evaluation: VersionEvaluated, by: BestSection) -> float:
    value = evaluation.value(by.metric)
    return value if by.goal == "max" else -value
