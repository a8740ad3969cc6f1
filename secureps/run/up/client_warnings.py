"""Repeats the warnings of clients' own terminals once, under `up`, and counts them.

What a client sends nothing for is told at once: in one line for all that say the same. A clip or a
range that cuts most of an update off is told by its client alone, for no noise covers
it. Under `up` all clients are one user's, whose terminal this is: so the first such line is
repeated, with the client's name, and the furthest one under the final tables. A line may tell of
both, because a range is measured after the clip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from secureps.run.up.party_logs import LogReader
from secureps.tracebacks import TEXT_LIMIT
from secureps.wording import by_reason, counted, numberless

MOST_LEFT = 50.0
"""Percent of an update: a cut that leaves more of it is not repeated."""

PIECE = 1 << 16
"""The most bytes of a log that are read at a time."""

LONGEST = 4 * TEXT_LIMIT
"""Characters of a line that are looked at: a script may write lines of any length."""

_NOTHING_SENT = re.compile(r"sends no (update|evaluation)\b.*")

_NUMBER = r"\d+(\.\d+)?(e[+-]?\d+)?"

_KINDS = {
    "clip": re.compile(rf"update norm \S+, clip \S+: cut to (?P<left>{_NUMBER}) %"),
    "range": re.compile(
        r"[\d,]+ of the update's [\d,]+ values are beyond range \S+: cut to it.*"
        rf"; the largest is (?P<largest>{_NUMBER}): .*"
    ),
}


@dataclass
class _Cuts:
    """Those of one kind: how many there were, of whom, and the furthest with its line."""

    times: int = 0
    clients: set[str] = field(default_factory=set)
    furthest: tuple[float, str] = (-math.inf, "")


class ClientWarnings:
    """Follows the logs of clients, finds the first far cut of each kind, and counts them.

    Args:
        logs: the folder; that of client NAME is NAME.log.
    """

    def __init__(self, logs: Path, clients: Iterable[str]) -> None:
        self._logs = {client: LogReader(logs / f"{client}.log", False) for client in clients}
        self._cuts = {kind: _Cuts() for kind in _KINDS}
        self._silent: dict[str, dict[str, str]] = {}
        self._told = set[tuple[str, str]]()

    def news(self) -> Iterator[str]:
        """Yields a line for each kind that was not told before.

        Who sends nothing is told when no other client has said the same since the last call.
        """
        before = {kind: len(said) for kind, said in self._silent.items()}
        for client, log in self._logs.items():
            with suppress(OSError):  # it has none yet
                for _, line in log.news(True, PIECE):
                    self._hear_silence(client, line)
                    yield from self._new_cut(client, line)
        quiet = [kind for kind, said in self._silent.items() if len(said) == before.get(kind)]
        yield from (by_reason(self._silent.pop(kind)) for kind in quiet)

    def rest(self) -> Iterator[str]:
        """Yields the lines that waited for other clients, at the end of a run."""
        yield from map(by_reason, self._silent.values())
        self._silent.clear()

    def notes(self) -> tuple[str, ...]:
        """What there was until now, in one line: how often of each kind, and the furthest cuts."""
        done = {"clip": "to half or less", "range": "in single values"}
        often = [
            f"{kind} cut {counted(cuts.times, 'update')} of "
            f"{counted(len(cuts.clients), 'client')} {done[kind]}"
            for kind, cuts in self._cuts.items()
            if cuts.times
        ]
        said = dict.fromkeys(cuts.furthest[1] for cuts in self._cuts.values() if cuts.times)
        return (f"{', '.join(often)}; the furthest: {'; '.join(said)}",) if often else ()

    def _hear_silence(self, client: str, line: str) -> None:
        if (found := _NOTHING_SENT.search(line[:LONGEST])) is None:
            return
        kind = numberless(found.group())
        if (kind, client) not in self._told:
            self._told.add((kind, client))
            said = self._silent.setdefault(kind, {})
            said[client] = next(iter(said.values()), found.group())

    def _new_cut(self, client: str, line: str) -> Iterator[str]:
        own = line[line.find(f"{client}: ") + len(client) + 2 :]
        said, first = f"{client} says: {own[: 2 * TEXT_LIMIT]}", False
        for kind, pattern in _KINDS.items():
            if (found := pattern.search(line[:LONGEST])) is None:
                continue
            number = {name: float(text) for name, text in found.groupdict().items()}
            if number.get("left", 0) > MOST_LEFT:
                continue
            far = number["largest"] if kind == "range" else -number["left"]
            cuts = self._cuts[kind]
            cuts.times += 1
            cuts.clients.add(client)
            cuts.furthest = max(cuts.furthest, (far, said))
            first = first or cuts.times == 1
        if first:
            yield f"{said} (its log has every such line, this is said once)"
