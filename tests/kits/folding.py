"""Whether a party's state after a fold and the rest of its rows is that after all of its rows."""

import json
import random
from typing import Any

from secureps.messages.encoding import from_plain, to_plain
from secureps.roles.machine import Fold, Foldable
from secureps.run.simulate.simulation import Simulation


def through_json(fold: Fold) -> Fold:
    """As it comes back from a file."""
    records = tuple(from_plain(type(r), json.loads(json.dumps(to_plain(r)))) for r in fold.records)
    return Fold(records, json.loads(json.dumps(fold.state, allow_nan=False)))


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
    return machine.make_fold()
