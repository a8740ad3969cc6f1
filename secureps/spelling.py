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
