"""What became of submissions, for as long as their clients may ask.

A fate is told on the client's stream of orders, or again when it subscribes anew, and before any
version that is newer than the fate. So a client that sends an update of a version which was
committed after a fate was final has journalled that fate, and never asks for it again. What is
left of it then is its number: an update of that name is over, whoever sends it once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.submission import Outcome, SubmissionId


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a submission."""

    outcome: Outcome
    version: int
    reason: str

    @property
    def final(self) -> bool:
        """Whether nothing else becomes of it."""
        return self.outcome != Outcome.INCLUDED


KEPT = 16
"""Final fates of a client and group that are kept all the same: what is sent twice on its way is
answered as before."""

OVER = Fate(Outcome.DROPPED, -1, "it is over since long, and its client was told of it")
"""Of a submission whose fate is kept no more: who asks all the same goes on without it."""

Ranges = tuple[tuple[int, int], ...]
"""First and last of sequences, ascending, none beside another."""


@dataclass(slots=True)
class Fates:
    """Of all submissions.

    Args:
        known: those that may be asked for.
        receipts: the digest of every receipt that was accepted, and may be asked for.
        final: by (client, group) and sequence, at which version of its group a fate was final.
        over: by (client, group), the sequences of all others.
    """

    known: dict[SubmissionId, Fate] = field(default_factory=dict)
    receipts: dict[SubmissionId, bytes] = field(default_factory=dict)
    final: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    over: dict[tuple[str, str], Ranges] = field(default_factory=dict)

    def of(self, id: SubmissionId) -> Fate | None:
        """The fate of a submission; None while it is open."""
        found = self.known.get(id)
        return OVER if found is None and self.is_over(id) else found

    def is_over(self, id: SubmissionId) -> bool:
        """Whether it was settled so long ago that its fate is kept no more."""
        ranges = self.over.get((id.client, id.group), ())
        return any(first <= id.sequence <= last for first, last in ranges)

    def settle(self, id: SubmissionId, fate: Fate, version: int) -> None:
        """It has a fate, `version` being the newest of its group."""
        self.known[id] = fate
        if fate.final:
            self.final.setdefault((id.client, id.group), {}).setdefault(id.sequence, version)

    def trained_from(self, client: str, group: str, version: int) -> None:
        """A client sent an update of a version: what was settled before that, it knows."""
        final = self.final.get((client, group), {})
        if len(final) <= KEPT:
            return
        told = [sequence for sequence, at in final.items() if at < version][:-KEPT]
        for sequence in told:
            del final[sequence]
            id = SubmissionId(client, group, sequence)
            self.known.pop(id, None)
            self.receipts.pop(id, None)
        if told:
            self.over[client, group] = joined((*self.over.get((client, group), ()), *told))


def joined(of: tuple[tuple[int, int] | int, ...]) -> Ranges:
    """Ranges and single sequences as ranges, in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((each, each) if isinstance(each, int) else each for each in of):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)
