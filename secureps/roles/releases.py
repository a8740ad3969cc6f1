"""What a client has let out so far of each version, and of each model that it judged.

Whatever else comes of a version is another release. A model is judged under one version of the
metrics' group for ever: under that one again and again, while nothing comes of it (the same
metrics are then the same integers, noise included, and holders keep sums of one base version
apart), and under no other, whatever the model is called there. What must not live here: when to
evaluate (`roles.appraisal`), and budgets (`roles.allowance`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.records import Sealed


@dataclass(slots=True)
class Releases:
    """The fold of what was sealed.

    Args:
        contents: digests of what came of (group, version), in order.
        judged: the version of the metrics' group under which a model was judged, by the digest of
            its blocks (`appraisal.model_content`).
    """

    contents: dict[tuple[str, int], tuple[bytes, ...]] = field(default_factory=dict)
    judged: dict[bytes, int] = field(default_factory=dict)

    def add(self, sealed: Sealed) -> None:
        """For good, whatever becomes of it."""
        at = (sealed.receipt.id.group, sealed.receipt.version)
        known = self.contents.get(at, ())
        if sealed.content and sealed.content not in known:
            self.contents[at] = (*known, sealed.content)
        if sealed.judged:
            self.judged.setdefault(sealed.judged, sealed.receipt.version)

    def known(self, group: str, version: int) -> tuple[bytes, ...]:
        """What came of a version before."""
        return self.contents.get((group, version), ())
