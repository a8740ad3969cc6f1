"""What became of the versions of a model that were to be evaluated: folded from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.evaluation import VersionEvaluated
from secureps.roles.coordinator.group import GroupState


@dataclass(slots=True)
class Evaluations:
    """What became of the versions that were to be evaluated.

    Args:
        results: by version; skipped: why, by version.
        subject: the version that members were last asked to evaluate, 0 before the first;
            model: the digests of its groups; rounds: how often they were asked.
        since: when the newest version of any group was committed.
    """

    results: dict[int, VersionEvaluated] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    subject: int = 0
    model: tuple[bytes, ...] = ()
    rounds: int = 0
    since: float = 0.0

    @property
    def newest(self) -> tuple[VersionEvaluated, ...]:
        """All results, in the order of versions."""
        return tuple(self.results[version] for version in sorted(self.results))

    def settled(self, version: int) -> bool:
        """Whether a version was evaluated, or never will be."""
        return version in self.results or version in self.skipped

    def begin(self, model: tuple[GroupState, ...]) -> None:
        """Members are asked to evaluate the version that the model is at."""
        version = model[0].version
        self.rounds = self.rounds + 1 if version == self.subject else 1
        self.subject, self.model = version, tuple(group.digest for group in model)
