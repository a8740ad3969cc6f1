"""Messages about the evaluation of published versions on held-out records.

Metrics of clients travel in a group of their own, as encrypted integers like any update. A
designated evaluator sends its metrics in the clear.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.encoding import digest, signed_part

EVALUATION = "evaluation"
"""The name of the group of the metrics; no group of a model may have it."""


def is_model_group(group: str) -> bool:
    """Tells by its name whether a group is part of the model, for files without a plan."""
    return group != EVALUATION


@dataclass(frozen=True, slots=True)
class Metric:
    """One named value, in the metric's own unit."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class VersionEvaluated:
    """The result of evaluating a version of the model.

    Args:
        version: of every group of the model.
        metrics: sorted by name: means over the held-out records of a cohort, or of one evaluator.
        by, examples: the designated evaluator and its number of examples; empty and 0 for a cohort,
            whose number is unknown.
    """

    version: int
    metrics: tuple[Metric, ...]
    by: str = ""
    examples: int = 0

    def value(self, name: str) -> float:
        return {metric.name: metric.value for metric in self.metrics}[name]


@dataclass(frozen=True, slots=True)
class EvaluationSkipped:
    """A version of the model will not be evaluated although it was due."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """The state of evaluations.

    Args:
        step, reason, late: as in `GroupStatus`, of the evaluation under way.
        results: in the order of versions.
        best: the best version among them; 0 for none.
        skipped: versions that will never be evaluated, in order.
        noise: largest standard deviation of the noise, by metric; empty without noise.
    """

    step: str
    reason: str
    late: tuple[str, ...]
    results: tuple[VersionEvaluated, ...]
    best: int
    skipped: tuple[EvaluationSkipped, ...]
    noise: tuple[Metric, ...] = ()


def evaluated_digest(base: bytes, model: tuple[bytes, ...]) -> bytes:
    """Computes the digest to which an evaluation's receipt is bound.

    Args:
        base: digest of the trailing group's version that it follows.
        model: digests of the evaluated version of every group of the model, in the plan's order.
    """
    return digest("secureps-evaluated", base, *model)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A designated evaluator's metrics of a version of the model, signed (Ed25519).

    Args:
        run: run id, 32 bytes.
        party: the evaluator.
        version: of every group of the model.
        model: digests of these, in the plan's order.
        metrics: sorted by name, finite, in their own units.
        examples: held-out records behind the means, at least 1.
    """

    run: bytes
    party: str
    version: int
    model: tuple[bytes, ...]
    metrics: tuple[Metric, ...]
    examples: int
    signature: bytes = b""


def evaluated_bytes(record: Evaluated) -> tuple[bytes, bytes]:
    return b"secureps-evaluated", signed_part(record)
