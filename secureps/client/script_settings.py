"""Reads a script's settings, and refuses misspelt ones by comparing what the script asks for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from secureps.client.trainer import Setting
from secureps.config.sections import Section, parse, read_toml, toml_value
from secureps.errors import ConfigError
from secureps.wording import meant


class Settings(Section):
    """A script's settings, declared: a field for each, with its type and default.

    Values are checked and converted; a setting that is no field is refused.

    Examples:
        >>> class Share(ps.Settings):
        ...     partition: int = 0
        ...     device: str = "cpu"
        >>> Share.of({"partition": "3"})
        Share(partition=3, device='cpu')
    """

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Reads the settings that `make(settings)` is given; ConfigError names all wrong ones.

        A text is read as the field's type, as `--set` gives it.
        """
        return parse(cls, dict(settings), "--set")


_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")


def read_run_config(given: Sequence[str]) -> dict[str, Setting]:
    """Reads `--run-config` as `flwr run` does: "lr=0.1 name='x'", or a TOML file's path."""
    if len(given) == 1 and given[0].endswith(".toml"):
        return dict(flat(read_toml(Path(given[0])), f"--run-config {given[0]}"))
    found = dict[str, Setting]()
    for text in given:
        if _PAIR.sub("", text).strip():
            raise ConfigError(
                f"--run-config {text}: expected KEY=VALUE KEY='TEXT' ..., or a TOML file"
            )
        for key, value in _PAIR.findall(text):
            found[key] = toml_value(value)
            if found[key] == value:
                raise ConfigError(f"--run-config {key}={value}: quote a text: {key}='{value}'")
    return found


def flat(table: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Yields the plain values of a table, "a.b" for b of table a; else ConfigError."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, where, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{key}", value
        else:
            raise ConfigError(f"{where}: {prefix}{key} is no plain value")


class MissingSetting(KeyError):
    """Raised when a script asks for a setting that it was not given; names the nearest one."""

    def __init__(self, key: str, given: Iterable[str]) -> None:
        super().__init__(key)
        self._given = tuple(given)

    def __str__(self) -> str:
        hint = meant(self.args[0], self._given) if self._given else "no setting is"
        own = self.args[0]
        return (
            f"{own!r} is not given; {hint.replace('known are', 'given are')}; give it by `secureps "
            f"join --set {own}=...`, or in the settings of [federation] or of a scenario"
        )


class Asked(dict[str, Any]):
    """A dict of settings that remembers which keys were asked for, present or not."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        super().__init__(settings)
        self._asked = set[str]()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        if not super().__contains__(key):
            raise MissingSetting(key, super().keys())
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The setting, or `default`; the key counts as asked for."""
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._asked.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """All keys; all of them count as asked for."""
        self._asked.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        """All settings; all of them count as asked for."""
        self._asked.update(super().keys())
        return super().items()

    def refuse_misspelt(self) -> None:
        """Raises ConfigError for an unused key that resembles a missing one."""
        known = set(super().keys())
        refuse_misspelt(known - self._asked, self._asked - known)


EVERYBODYS = ("partition", "partitions")
"""Settings that `up` and `simulate` give to every client."""


def refuse_unknown(given: Iterable[str], names: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that a script's `SETTINGS`, if any, does not declare."""
    declared = names.get("SETTINGS")
    if declared is None:
        return
    if isinstance(declared, str) or not all(isinstance(each, str) for each in declared):
        raise ConfigError("SETTINGS must be the names of the settings that the script reads")
    known = (*declared, *EVERYBODYS)
    for key in given:
        if key not in known:
            raise ConfigError(f"setting {key!r} is not known; {meant(key, known)}")


def refuse_misspelt(given: set[str], wanted: set[str]) -> None:
    """Raises ConfigError for a given key that is similar to a wanted one, and names both.

    A key that is like none of them may be for code that has not asked yet.
    """
    for key in sorted(given):
        for near in difflib.get_close_matches(key, sorted(wanted), 1, cutoff=0.75):
            raise ConfigError(f"setting {key!r} is not known; did you mean {near}?")
