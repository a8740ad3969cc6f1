"""Where the keys of a TOML file stand: what `tomllib` does not tell.

For files that `tomllib` has read already: nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Path = tuple[str | int, ...]
"""Keys and, in arrays, numbers from 0."""

_QUOTES = ('"""', "'''", '"', "'")
_SPACE = " \t\r\n"


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
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                self._at = (self._text + "\n").index("\n", self._at)
            elif self._text[self._at] in _SPACE:
                self._at += 1
            else:
                return True
        return False

    def _head(self, close: str) -> None:
        start, self._at = self._at, self._at + len(close)
        *outer, last = self._key(close[0])
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

    def _key(self, end: str) -> list[str]:
        """The parts of a dotted key, up to the character after it."""
        parts = []
        while True:
            self._skip()
            parts.append(self._part(end))
            self._skip()
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _part(self, end: str) -> str:
        if self._text[self._at] in "\"'":
            start = self._at
            self._string()
            return self._text[start + 1 : self._at - 1]
        start = self._at
        while self._text[self._at] not in f".{end}{_SPACE}":
            self._at += 1
        return self._text[start : self._at]

    def _pair(self, table: Path) -> None:
        start = self._at
        path = (*table, *self._key("="))
        after, self._at = self._at, start
        self._note(path)
        self._at = after + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        self._note(path)
        match self._text[self._at]:
            case '"' | "'":
                self._string()
            case "[":
                self._items("]", lambda number: self._value((*path, number)))
            case "{":
                self._items("}", lambda _: self._pair(path))
            case _:
                while self._at < len(self._text) and self._text[self._at] not in ",]}#\n":
                    self._at += 1

    def _items(self, close: str, item: Callable[[int], None]) -> None:
        self._at += 1
        number = 0
        while self._skip() and self._text[self._at] != close:
            item(number)
            number += 1
            if self._skip() and self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _string(self) -> None:
        quote = next(each for each in _QUOTES if self._text.startswith(each, self._at))
        self._at += len(quote)
        while not self._text.startswith(quote, self._at):
            escaped = quote[0] == '"' and self._text[self._at] == "\\"
            self._at += 2 if escaped else 1
        self._at += len(quote)
        while len(quote) == 3 and self._text.startswith(quote[0], self._at):
            self._at += 1  # a quote or two may stand before the closing ones
