"""The receipts of a group whose fate is open: whose they are, and who found them in order.

What is asked for at every event follows each receipt as it comes and goes, so that nobody looks
through all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.submission import Receipt, SubmissionId


@dataclass(frozen=True, slots=True)
class OpenFold:
    """The same, each receipt once, and nothing that follows from the rest."""

    enough: int
    receipts: tuple[Receipt, ...]
    examined: dict[SubmissionId, frozenset[str]]
    doubted: dict[SubmissionId, frozenset[str]]
    ready: tuple[SubmissionId, ...]
    changes: int
    looked: Counter[str]


@dataclass(slots=True)
class OpenReceipts:
    """Of one group.

    Args:
        enough: holders of a committee that must find a submission in order; 0: nobody looks.
        receipts: in the order in which they came.
        examined: the holders that found nothing wrong with a submission, where one has.
        doubted: those that found a flaw, and it stays in all the same.
        ready: those that enough holders found in order.
        clients: the submissions of each client that is here with any.
        changes: how often `ready` has changed.
    """

    enough: int = 0
    receipts: dict[SubmissionId, Receipt] = field(default_factory=dict)
    examined: dict[SubmissionId, frozenset[str]] = field(default_factory=dict)
    doubted: dict[SubmissionId, frozenset[str]] = field(default_factory=dict)
    ready: dict[SubmissionId, Receipt] = field(default_factory=dict)
    clients: dict[str, dict[SubmissionId, None]] = field(default_factory=dict)
    changes: int = 0
    _looked: Counter[str] = field(default_factory=Counter)
    """Into how many of those that are not ready each holder has looked."""

    def packed(self) -> Any:
        """In plain values: a receipt is some kilobytes."""
        receipts, ready = tuple(self.receipts.values()), tuple(self.ready)
        answers = self.examined, self.doubted
        state = OpenFold(self.enough, receipts, *answers, ready, self.changes, self._looked)
        return to_plain(state)

    @classmethod
    def unpacked(cls, plain: Any) -> OpenReceipts:
        """The receipts again."""
        state = from_plain(OpenFold, plain)
        receipts = {receipt.id: receipt for receipt in state.receipts}
        clients: dict[str, dict[SubmissionId, None]] = {}
        for id in receipts:
            clients.setdefault(id.client, {})[id] = None
        ready = {id: receipts[id] for id in state.ready}
        answers = state.examined, state.doubted
        return cls(state.enough, receipts, *answers, ready, clients, state.changes, state.looked)

    def put(self, receipt: Receipt) -> None:
        """A receipt was accepted."""
        self.receipts[receipt.id] = receipt
        self.clients.setdefault(receipt.id.client, {})[receipt.id] = None
        if not self.enough:
            self._make_ready(receipt.id)

    def look(self, id: SubmissionId, holder: str) -> None:
        """A holder found nothing wrong with a submission that is here."""
        self._answer(self.examined, id, holder)
        if id not in self.ready and len(self.examined[id]) >= self.enough:
            self._looked.subtract(self.answered(id))
            self._make_ready(id)

    def doubt(self, id: SubmissionId, holder: str) -> None:
        """It found a flaw, and whatever is here stays."""
        if id in self.receipts:
            self._answer(self.doubted, id, holder)

    def answered(self, id: SubmissionId) -> frozenset[str]:
        """Who has looked into a submission, whatever was found."""
        return self.examined.get(id, frozenset()) | self.doubted.get(id, frozenset())

    def remove(self, id: SubmissionId) -> None:
        """It waits no more, if it does."""
        if self.receipts.pop(id, None) is None:
            return
        of_client = self.clients[id.client]
        del of_client[id]
        if not of_client:
            del self.clients[id.client]
        by = self.answered(id)
        self.examined.pop(id, None)
        self.doubted.pop(id, None)
        if self.ready.pop(id, None) is None:
            self._looked.subtract(by)
        else:
            self.changes += 1

    def clear(self) -> None:
        """Nothing is here."""
        for id in tuple(self.receipts):
            self.remove(id)

    def looked_into_all(self, kept: Collection[SubmissionId]) -> frozenset[str]:
        """Holders that have looked into all that are not ready, and into these that are."""
        waiting = len(self.receipts) - len(self.ready) + len(kept)
        found = self._looked + Counter(h for id in kept for h in self.answered(id))
        return frozenset(holder for holder, count in found.items() if count == waiting)

    def _answer(
        self, answers: dict[SubmissionId, frozenset[str]], id: SubmissionId, holder: str
    ) -> None:
        if id not in self.ready and holder not in self.answered(id):
            self._looked[holder] += 1
        answers[id] = answers.get(id, frozenset()) | {holder}

    def _make_ready(self, id: SubmissionId) -> None:
        self.ready[id] = self.receipts[id]
        self.changes += 1
