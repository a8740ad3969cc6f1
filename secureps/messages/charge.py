"""One privacy fact: what a client spent when it trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Charge:
    """Record-level DP-SGD facts of one training run (Abadi et al. 2016).

    Args:
        party: who spent it.
        group, version: the group trained for and its base version.
        noise_multiplier: sigma, the noise's standard deviation over the clipping norm.
        sample_rate: Poisson sampling probability of each record in each step.
        steps: how many steps were taken.
    """

    party: str
    group: str
    version: int
    noise_multiplier: float
    sample_rate: float
    steps: int
