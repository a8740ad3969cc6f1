"""Where the keys of a TOML file stand: what `tomllib` does not tell.

For files that `tomllib` has read already: nothing is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Path = tuple[str | int, ...]
"""Keys and, in arrays, numbers from 0."""

_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
"""Space and comments."""
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?""""*|' r"'''.*?''''*|" r'"(?:\\.|[^"\\])*"|' r"'[^']*'", re.DOTALL
)
"""Of any of the four kinds; a quote or two may stand before the closing ones of three."""
_BARE = re.compile(r"[^,\]}#\n]*")
"""A value that is no text, list or table."""
_WORD = re.compile(r"[^.=\]\s]*")
"""A part of a key that is not in quotes."""


def positions(text: str) -> Mapping[Path, int]:
    """The line, from 1, of every table, key and item of an array."""
    reader = _Reader(text)
    reader.read()
    return reader.found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text.lstrip("\ufeff")
        self._at = 0
        self._line, self._counted = 1, 0
        self._table: Path = ()
        self._counts: dict[Path, int] = {}
        self.found: dict[Path, int] = {}

    def read(self) -> None:
        while self._skip():
            if self._text.startswith("[[", self._at):
                self._head("]]")
            elif self._text[self._at] == "[":
                self._head("]")
            else:
                self._pair(self._table)

    def _note(self, path: Path) -> None:
        if self._at < self._counted:
            self._line, self._counted = 1, 0
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], self._line)

    def _skip(self) -> bool:
        """Past space and comments; whether anything follows."""
        self._past(_SPACE)
        return self._at < len(self._text)

    def _past(self, pattern: re.Pattern[str]) -> str:
        """What fits the pattern here, and is passed."""
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found[0]

    def _head(self, close: str) -> None:
        start, self._at = self._at, self._at + len(close)
        *outer, last = self._key()
        path = (*self._inside(tuple(outer)), last)
        if close == "]]":
            self._counts[path] = self._counts.get(path, -1) + 1
            path = (*path, self._counts[path])
        elif path in self._counts:
            path = (*path, self._counts[path])
        end, self._at = self._text.index(close, self._at) + len(close), start
        self._note(path)
        self._table, self._at = path, end

    def _inside(self, keys: tuple[str, ...]) -> Path:
        """The newest table of each array on the way."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._counts:
                path = (*path, self._counts[path])
        return path

    def _key(self) -> list[str]:
        """The parts of a dotted key, up to the character after it."""
        parts = []
        while True:
            self._skip()
            quoted = self._text[self._at] in "\"'"
            parts.append(self._past(_STRING)[1:-1] if quoted else self._past(_WORD))
            self._skip()
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _pair(self, table: Path) -> None:
        start = self._at
        path = (*table, *self._key())
        after, self._at = self._at, start
        self._note(path)
        self._at = after + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        self._note(path)
        match self._text[self._at]:
            case '"' | "'":
                self._past(_STRING)
            case "[":
                self._items("]", lambda number: self._value((*path, number)))
            case "{":
                self._items("}", lambda _: self._pair(path))
            case _:
                self._past(_BARE)

    def _items(self, close: str, item: Callable[[int], None]) -> None:
        self._at += 1
        number = 0
        while self._skip() and self._text[self._at] != close:
            item(number)
            number += 1
            if self._skip() and self._text[self._at] == ",":
                self._at += 1
        self._at += 1
