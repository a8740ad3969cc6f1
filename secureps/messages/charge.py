"""Privacy facts: one record for each of the two units, which are never added up together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Charge:
    """Record unit: facts about the DP-SGD of one training (Abadi et al. 2016).

    Args:
        party: the client.
        group, version: the group trained for and its base version.
        noise_multiplier: sigma, the noise's standard deviation over the clipping norm.
        sample_rate: Poisson sampling probability of each record in each step.
        steps: how many steps were taken.
        step: number of the update among the party's updates of this version (`Receipt.step`).
    """

    party: str
    group: str
    version: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    step: int = 0

    FORMER: ClassVar[Mapping[str, str]] = {"attempt": "step"}


CLIENT_ADJACENCY = "one client's updates replaced by zeros"
"""The adjacency of releases; that of charges is the plan's."""


@dataclass(frozen=True, slots=True)
class Release:
    """Client unit: facts about one whole update that was released under Skellam noise.

    Adjacency: the update replaced by zero, everything else unchanged (fixed denominators).

    Args:
        party: the client.
        group, version, step: as in `Charge`.
        l2, l1: how far the update can move the sum of integers, in grid steps.
        stddev: of the noise that protects it, in grid steps.
        sources: how many parties draw that noise.
        clamping: upper bound of the probability that noise was cut off where the guarantee needs
            all of it.
    """

    party: str
    group: str
    version: int
    l2: float
    l1: float
    stddev: float
    sources: int
    clamping: float
    step: int = 0

    FORMER: ClassVar[Mapping[str, str]] = {"attempt": "step"}


Fact = Charge | Release
