"""The host that a kit is for, as its CA has signed it: a native run, or Flower's engine.

Inside Flower the run ships the code that reads a client's keys. A native run's kit would not be its
party's alone any more if it served there too, and one of Flower's never was.
"""

from __future__ import annotations

from pathlib import Path

from secureps.crypto.roster import Roster
from secureps.errors import KitError

FLOWER = "flower"
NATIVE = ""

_FOR = {
    FLOWER: "a native run, and this one is inside Flower's engine, whose code reads its clients' "
    "keys: make another kit for it, `secureps keys init DIR --plan FILE --host flower`",
    NATIVE: "a run inside Flower's engine, whose code could read its clients' keys: make another "
    "kit for a native run, `secureps keys init DIR --plan FILE`",
}


def demand_host(roster: Roster, kit: Path, host: str = FLOWER) -> None:
    """KitError unless a roster is for this host."""
    if roster.host != host:
        raise KitError(f"{kit} is the kit of {_FOR[host]}")
