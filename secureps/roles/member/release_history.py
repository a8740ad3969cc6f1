"""What a client has let out so far of each version, and of each model that it judged.

Whatever else comes of a version is another release. A model is judged under one version of the
metrics' group for ever: under that one again and again, while nothing comes of it (the same
metrics are then the same integers, noise included, and holders keep sums of one base version
apart), and under no other, whatever the model is called there.

A founding model goes out in the clear: one for each group, while its run is founded. A
coordinator that asks again later might else see what `parameters` makes of a model by then, without
clip, noise or encryption. What must not live here: when to evaluate (`roles.member.evaluation`),
and budgets (`roles.member.budget`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.member_records import Sealed
from secureps.messages.submission import FOUNDING, Receipt
from secureps.policy.base import Base

FOUNDED = Base(-1, 0)
"""What the founding model is sealed for."""


@dataclass(slots=True)
class ReleaseHistory:
    """The fold of what was sealed.

    Args:
        contents: digests of what came of (group, version), in order.
        judged: the version of the metrics' group under which a model was judged, by the digest of
            its blocks (`roles.member.evaluation.model_content`).
        offered: digests of the blocks of the founding model, by group.
        trained: groups of which an update was sealed: they are founded.
    """

    contents: dict[tuple[str, int], tuple[bytes, ...]] = field(default_factory=dict)
    judged: dict[bytes, int] = field(default_factory=dict)
    offered: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)

    def add(self, sealed: Sealed) -> None:
        """For good, whatever becomes of it."""
        at = (sealed.receipt.id.group, sealed.receipt.version)
        known = self.contents.get(at, ())
        if sealed.content and sealed.content not in known:
            self.contents[at] = (*known, sealed.content)
        if sealed.judged:
            self.judged.setdefault(sealed.judged, sealed.receipt.version)
        if sealed.receipt.purpose == FOUNDING:
            self.offered.setdefault(sealed.receipt.id.group, sealed.receipt.blocks)
        else:
            self.trained.add(sealed.receipt.id.group)

    def objection(self, receipt: Receipt) -> str:
        """Why this is not sent: another founding model of the group was before; else empty."""
        group = receipt.id.group
        before = self.offered.get(group, receipt.blocks)
        if receipt.purpose != FOUNDING or before == receipt.blocks:
            return ""
        return (
            f"asked again for a founding model of {group}, `parameters` made another one than "
            "before, and only the first is ever sent: make it a function of its seed alone"
        )

    def known(self, group: str, version: int) -> tuple[bytes, ...]:
        """What came of a version before."""
        return self.contents.get((group, version), ())
