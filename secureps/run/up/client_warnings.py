"""Repeats the warnings of clients' own terminals once, under `up`.

A clip or a range that cuts most of an update off is told by its client alone, for no noise covers
it. Under `up` all clients are one user's, whose terminal this is: so the first such line is
repeated, with the client's name. What must not live here: what is a cut (`client.clipping`), and
anything that would leave this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from secureps.run.up.party_logs import LogReader
from secureps.tracebacks import TEXT_LIMIT

MOST_LEFT = 50.0
"""Percent of an update: a cut that leaves more of it is not repeated."""

PIECE = 1 << 16
"""The most bytes of a log that are read at a time."""

_KINDS = {
    "clip": re.compile(r"update norm \S+, clip \S+: cut to (?P<left>\d+(\.\d+)?(e[+-]?\d+)?) %"),
    "range": re.compile(r"\S+ of the update's \S+ values are beyond range \S+: cut to it.*"),
}


class ClientWarnings:
    """Follows the logs of clients, and finds the first far cut of each kind.

    Args:
        logs: the folder; that of client NAME is NAME.log.
    """

    def __init__(self, logs: Path, clients: Iterable[str]) -> None:
        self._logs = {client: LogReader(logs / f"{client}.log", False) for client in clients}
        self._left = dict(_KINDS)

    def news(self) -> Iterator[str]:
        """Yields a line for each kind that was not told before."""
        for client, log in self._logs.items() if self._left else ():
            with suppress(OSError):  # it has none yet
                for _, line in log.news(True, PIECE):
                    yield from self._told(client, line)

    def _told(self, client: str, line: str) -> Iterator[str]:
        for kind, pattern in list(self._left.items()):
            found = pattern.search(line)
            if found is None or float(found.groupdict().get("left", 0)) > MOST_LEFT:
                continue
            del self._left[kind]
            said = line[line.find(f"{client}: ") + len(client) + 2 :][:TEXT_LIMIT]
            yield f"{client} says: {said} (its log has every such line, this is said once)"
