"""Generates synthetic click data with a known truth, as pure functions of a seed.

A record says that a user of some segment saw an item in some context, and whether it was
clicked. The three fields share one table of rows, in this order: segments, contexts, the items of a
popular head, then the items of each topic. Every party has records about the head, and about the
items of only a few topics, so that it touches a small part of the table. Clicks are drawn from a
factorization machine (Rendle 2010), so the best possible AUC is known.

Examples:
    >>> ps.clicks.auc(np.array([0.1, 0.8, 0.7]), np.array([0, 1, 0]))
    1.0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError
from secureps.scenario.datasets import seeded

FIELDS = 3
SEGMENTS = 64
CONTEXTS = 64
HEAD = 128
"""The number of items that every party has."""
TOPICS = 30
TASTES = 3
"""The number of a party's topics."""
HEAD_SHARE = 0.5
"""The share of a party's records that are about the head; the others are about its topics."""
ZIPF = 1.1
"""Exponent of popularity: the item of rank r is seen in proportion to r^-ZIPF."""
LATENT = 4
OFFSET = -1.2
"""The offset of the logit, with which about three records in ten are clicks."""

_TRUTH, _HABITS, _TRAIN, _HELD_OUT = range(4)


@dataclass(frozen=True, eq=False)
class Records:
    """Records of items that were shown, and whether they were clicked.

    Args:
        x: [n, 3] int64, the rows of the table: segment, context, item.
        y: [n] int64, 1 for a click.
        p: [n] float64, the true chance of a click, from which y was drawn.
    """

    x: NDArray[np.int64]
    y: NDArray[np.int64]
    p: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: list[Records]) -> Records:
        x, y, p = (np.concatenate([getattr(part, k) for part in parts]) for k in ("x", "y", "p"))
        return cls(x, y, p)


@dataclass(frozen=True)
class Clicks:
    """The click data of several parties, each with `records` of its own.

    Args:
        rows: of the table, for all fields together.
        held_out: the number of records that no party has, drawn like those of all parties.
        seed: of the truth, the habits and the records; the order in which parties are asked for
            changes nothing.

    Raises:
        ConfigError: a count is below 1, the table is too small for a row of each topic, or, when
            records are drawn, the seed is below 0.
    """

    rows: int = 4000
    parties: int = 40
    records: int = 600
    held_out: int = 5000
    seed: int = 7

    def __post_init__(self) -> None:
        least = SEGMENTS + CONTEXTS + HEAD + TOPICS
        if self.rows < least:
            raise ConfigError(f"the table needs at least {least} rows, got {self.rows}")
        if min(self.parties, self.records, self.held_out) < 1:
            raise ConfigError("parties, records and held_out must be at least 1")

    def share(self, party: int) -> Records:
        return self._draw(party, self.records, _TRAIN)

    def pooled(self) -> Records:
        return Records.joined([self.share(party) for party in range(self.parties)])

    def judged(self) -> Records:
        """The held-out records, drawn like each party's own, equally many (+- 1) for each party."""
        edges = np.linspace(0, self.held_out, self.parties + 1).astype(np.int64)
        counts = np.diff(edges).tolist()
        return Records.joined([self._draw(k, count, _HELD_OUT) for k, count in enumerate(counts)])

    def chance(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        """The true chance of a click, [n] in (0, 1), of records x [n, 3].

        logit = offset + sum of the rows' weights + sum over pairs of the rows' inner products.
        """
        weights, vectors = self._truth
        shown = vectors[x]
        pairs = (shown.sum(axis=1) ** 2 - (shown**2).sum(axis=1)).sum(axis=1) / 2
        logits = OFFSET + weights[x].sum(axis=1) + pairs
        return np.asarray(1 / (1 + np.exp(-logits)))

    @property
    def shelves(self) -> NDArray[np.int64]:
        """The bounds of topics, [TOPICS + 1]: topic k has rows shelves[k] to shelves[k + 1]."""
        first = SEGMENTS + CONTEXTS + HEAD
        return np.linspace(first, self.rows, TOPICS + 1).astype(np.int64)

    @cached_property
    def _truth(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The weights [rows] and vectors [rows, LATENT]; items of one topic have similar ones."""
        rng, shelves = seeded(self.seed, _TRUTH), self.shelves
        weights = 0.9 * rng.standard_normal(self.rows)
        vectors = 0.25 * rng.standard_normal((self.rows, LATENT))
        items, alike = slice(shelves[0], None), np.diff(shelves)
        weights[items] = 0.5 * weights[items] + 0.9 * np.repeat(rng.standard_normal(TOPICS), alike)
        common = 0.4 * rng.standard_normal((TOPICS, LATENT))
        vectors[items] = 0.5 * vectors[items] + np.repeat(common, alike, axis=0)
        return weights, vectors

    def _draw(self, party: int, count: int, purpose: int) -> Records:
        habits, rng = seeded(self.seed, _HABITS, party), seeded(self.seed, purpose, party)
        users = habits.permutation(SEGMENTS)  # its commonest segment first
        topics = habits.choice(TOPICS, TASTES, replace=False)
        segment = users[_draw_ranks(rng, SEGMENTS, count)]
        context = SEGMENTS + _draw_ranks(rng, CONTEXTS, count)
        item = SEGMENTS + CONTEXTS + _draw_ranks(rng, HEAD, count)
        topic = np.where(rng.random(count) < HEAD_SHARE, -1, rng.choice(topics, count))
        for own in topics:
            there, shelf = np.flatnonzero(topic == own), self.shelves[own : own + 2]
            item[there] = shelf[0] + _draw_ranks(rng, int(shelf[1] - shelf[0]), len(there))
        x = np.stack([segment, context, item], axis=1)
        p = self.chance(x)
        return Records(x, (rng.random(count) < p).astype(np.int64), p)


def _draw_ranks(rng: np.random.Generator, items: int, count: int) -> NDArray[np.int64]:
    """Draws `count` ranks in [0, items) from a Zipf distribution."""
    chances = np.arange(1, items + 1) ** -ZIPF
    return rng.choice(items, size=count, p=chances / chances.sum()).astype(np.int64)


def auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """The chance that a random positive scores above a random negative; a tie counts half.

    Computed as the rank statistic of Mann and Whitney (1947); tied scores share their mean rank.

    Args:
        scores: [n], in any unit that orders the records.
        labels: [n] of 0 and 1.
    Raises:
        ConfigError: there are no positives, or no negatives.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        raise ConfigError("an AUC needs records of both classes; give it more records")
    above = ranks[place][labels != 0].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))
