"""Whether a party's state after a fold and the rest of its rows is that after all of its rows."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from typing import Any

from secureps.messages.encoding import from_plain, to_plain
from secureps.roles.coordinator.group import GroupState
from secureps.roles.fold import Fold
from secureps.roles.machine import Foldable
from secureps.run.simulate.simulation import Simulation


def through_json(fold: Fold) -> Fold:
    """As it comes back from a file."""
    records = tuple(from_plain(type(r), json.loads(json.dumps(to_plain(r)))) for r in fold.records)
    return Fold(records, json.loads(json.dumps(fold.state, allow_nan=False)))


def said_nothing(fold: Fold) -> Fold:
    """Without the words in which a coordinator says what each group waits for: it journals none."""
    if not isinstance(fold.state, list) or not isinstance(fold.state[0], list):
        return fold
    words = [field.name for field in fields(GroupState)].index("reason")
    groups = [[name, [*g[:words], "", *g[words + 1 :]]] for name, g in fold.state[0]]
    return Fold(fold.records, [groups, *fold.state[1:]])


def differing(simulation: Simulation, seed: int, points: int) -> list[str]:
    """Parties and rows at which a fold does not stand for the rows before it.

    Each party's journal is cut at its beginning, its end, and at so many other `points`.
    """
    rng = random.Random(seed)
    found: list[str] = []
    for name, stores in simulation._stores.items():
        rows = list(stores.journal.replay())
        cuts = {0, len(rows), *(rng.randrange(len(rows) + 1) for _ in range(points))}
        whole = made(simulation, name, rows)
        for cut in sorted(cuts):
            fold = through_json(made(simulation, name, rows[:cut]))
            if made(simulation, name, rows[cut:], fold) != whole:
                found.append(f"{name} at row {cut} of {len(rows)}")
    return found


def made(
    simulation: Simulation, name: str, rows: list[tuple[float, Any]], fold: Fold | None = None
) -> Fold:
    """What a new machine of a party has come to."""
    machine = simulation._make(name).machine
    assert isinstance(machine, Foldable)
    if fold is not None:
        machine.unfold(fold)
    for at, record in rows:
        machine.apply(at, record)
    return machine.folded()
