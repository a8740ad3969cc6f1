"""Words for the evaluation of published versions on held-out records.

Metrics that clients evaluate together travel in a group of their own beside the model's,
as encrypted integers like any update; a designated evaluator says its own in the clear.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.encoding import digest, signed_part

EVALUATION = "evaluation"
"""The name of the group whose values are the metrics; no group of a model is called so."""


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
    """What an evaluation of a version of the model came to.

    Args:
        version: of every group of the model.
        metrics: sorted by name: means over the held-out records of a cohort, or of one
            designated evaluator.
        by: that evaluator, with how many `examples`; empty and 0 for a cohort, whose number of
            examples nobody knows.
    """

    version: int
    metrics: tuple[Metric, ...]
    by: str = ""
    examples: int = 0

    def value(self, name: str) -> float:
        return {metric.name: metric.value for metric in self.metrics}[name]


@dataclass(frozen=True, slots=True)
class EvaluationSkipped:
    """A version of the model that was to be evaluated never will be."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """What evaluations came to.

    Args:
        step, reason, late: as of a group: of the evaluation under way.
        results: in the order of versions; best: the best version of them, 0 for none.
        skipped: versions that never will be evaluated, in their order; why, of the newest.
        noise: standard deviation of the noise on each metric, at most; empty if there is none.
    """

    step: str
    reason: str
    late: tuple[str, ...]
    results: tuple[VersionEvaluated, ...]
    best: int
    skipped: tuple[EvaluationSkipped, ...]
    noise: tuple[Metric, ...] = ()


def evaluated_digest(base: bytes, model: tuple[bytes, ...]) -> bytes:
    """What the receipt of an evaluation is bound to.

    Args:
        base: digest of the version of the trailing group that it follows.
        model: digests of the evaluated version of every group of the model, in the plan's order.
    """
    return digest("secureps-evaluated", base, *model)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A designated evaluator says what a version of the model came to, signed (Ed25519).

    Args:
        run: run id, 32 bytes.
        party: the evaluator.
        version: of every group of the model; model: their digests, in the plan's order.
        metrics: sorted by name, finite, in their own units.
        examples: held-out records that they are means over, at least 1.
    """

    run: bytes
    party: str
    version: int
    model: tuple[bytes, ...]
    metrics: tuple[Metric, ...]
    examples: int
    signature: bytes = b""


def evaluated_bytes(record: Evaluated) -> tuple[bytes, bytes]:
    """Returns the domain and the bytes that the evaluator signs."""
    return b"secureps-evaluated", signed_part(record)
