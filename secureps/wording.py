"""Formats names, numbers and units for errors, tables and progress lines."""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence


def printable(text: str) -> str:
    """Another party's text on one line, without control characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def one_line(error: object, lines: int | None = None) -> str:
    """The text of an error on one line; empty if it has none.

    Args:
        lines: take only so many lines of it: hints follow the first line of torch's errors.
    """
    return " ".join(" ".join(str(error).strip().splitlines()[:lines]).split())


def suggest(given: object, names: Iterable[str]) -> str:
    """Suggests a name for an unknown one: "did you mean adam? known are sgd, adam".

    Args:
        given: the unknown name; case does not matter.
        names: the known names, in the order in which they are listed.
    """
    listed = tuple(names)
    return " ".join(filter(None, (hint(given, listed), f"known are {', '.join(listed)}")))


def hint(given: object, names: Iterable[str]) -> str:
    """Suggests the most similar name: "did you mean adam?"; empty if no name is similar.

    A far-off hint ("encryption": "federation"?) is worse than the list of names.
    """
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(str(given).casefold(), folded, 1, cutoff=0.7)
    return f"did you mean {folded[close[0]]}?" if close else ""


def nearest(given: str, names: Iterable[str]) -> str:
    """Names the most similar of many names: "the nearest is 'fc1.weight'"."""
    listed = sorted(names)
    close = difflib.get_close_matches(given, listed, 1, cutoff=0.0)
    return f"the nearest is {close[0]!r}" if close else "there are no names at all"


def named(names: Sequence[str], shown: int = 3) -> str:
    """Lists the first names: "a, b, c and 4 more"."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def group_by_reason(said: Mapping[str, str]) -> str:
    """Joins reasons by party, each with the parties that gave it: "no data (a, b); ..."."""
    alike = defaultdict[str, list[str]](list)
    for name in sorted(said):
        alike[said[name]].append(name)
    return "; ".join(f"{reason} ({named(names)})" for reason, names in alike.items())


def numberless(line: str) -> str:
    """A line with its numbers replaced by 0, to compare lines of different processes."""
    return re.sub(r"0x[0-9a-f]+|\d+", "0", line)


def join_alike(said: Mapping[str, str]) -> list[str]:
    """Joins lines by party: one for all parties whose lines differ only in names and numbers."""
    alike = defaultdict[str, list[str]](list)
    for name in sorted(said):
        alike[numberless(said[name].replace(name, ""))].append(name)
    return [
        said[names[0]] + (f"; so did {named(names[1:])}" if names[1:] else "")
        for names in alike.values()
    ]


def counted(number: int, what: str) -> str:
    """A number with its noun: 1 client, 2 clients."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(count: float) -> str:
    """Bytes in decimal units: 1.3 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds in a fitting unit: less than 1 us, 340 us, 12.5 ms, 7.21 s, 12.1 min, 3.4 h."""
    if 0 < seconds < 1e-6:
        return "less than 1 us"
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def finite(figure: float) -> float | None:
    """A number for JSON; None for infinity and NaN, which JSON lacks."""
    return figure if math.isfinite(figure) else None
