"""Whether a scenario speaks of parties that it has.

What must not live here: what its file may say (`config.scenario`), and playing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from secureps.config.scenario import ScenarioSection
from secureps.errors import ConfigError
from secureps.policy.checks.scaling import most_shards
from secureps.policy.plan import Plan
from secureps.run.party_names import shard_names
from secureps.wording import meant


def refuse_unknown_parties(section: ScenarioSection, plans: Iterable[Plan], path: Path) -> None:
    """Refuses a scenario that speaks of parties that it does not have.

    Args:
        plans: that it plays, its studies' among them.

    Raises:
        ConfigError: stays that end before they begin, or of unknown clients; factors of shards
            that none of the plans has at any time.
    """
    _refuse_stays(section, path)
    known = shard_names(max(most_shards(plan.section) for plan in plans))
    for name in section.shards.slow:
        if name not in known:
            text = f"no shard is called {name!r}; {meant(name, known)}"
            raise ConfigError(f"{path}: shards.slow: {text}")


def _refuse_stays(section: ScenarioSection, path: Path) -> None:
    taken = set[int]()
    for number, stay in enumerate(section.stay, 1):
        own = range(stay.first, stay.first + stay.count)
        if own.stop > section.clients:
            raise ConfigError(
                f"{path}: stay {number}: there are clients 0 to {section.clients - 1} and no others"
            )
        if not taken.isdisjoint(own):
            raise ConfigError(f"{path}: stay {number}: a client of it has another stay: join them")
        if stay.leaves is not None and stay.leaves <= stay.comes:
            raise ConfigError(f"{path}: stay {number}: it leaves before it comes")
        taken.update(own)
