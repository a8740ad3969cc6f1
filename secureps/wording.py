"""What an error says about a name that nobody knows: which one was meant, and which there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(given: object, names: Iterable[str]) -> str:
    """The end of "unknown optimizer 'adma'; ...": "did you mean adam? known are sgd, adam".

    Args:
        given: what stands in a file; large and small letters are alike.
        names: those that would have been right, in the order in which they are listed.
    """
    listed = tuple(names)
    folded = {name.casefold(): name for name in listed}
    close = difflib.get_close_matches(str(given).casefold(), folded, 1)
    hint = f"did you mean {folded[close[0]]}? " if close else ""
    return f"{hint}known are {', '.join(listed)}"


def nearest(given: str, names: Iterable[str]) -> str:
    """Of names that are too many to list, the one most like it: "the nearest is 'fc1.weight'"."""
    listed = sorted(names)
    close = difflib.get_close_matches(given, listed, 1, cutoff=0.0)
    return f"the nearest is {close[0]!r}" if close else "there are no names at all"
