"""The settings of a data holder's script, from the command line or a TOML file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from secureps.client.trainer import Setting
from secureps.config.sections import Section, parse, read_toml, toml_value
from secureps.errors import ConfigError
from secureps.wording import suggest


class Settings(Section):
    """Declares a script's settings: a field for each, with its type and default.

    Values are checked and converted; a setting without a field is refused.

    Examples:
        >>> class Share(ps.Settings):
        ...     partition: int = 0
        ...     device: str = "cpu"
        >>> Share.of({"partition": "3"})
        Share(partition=3, device='cpu')
    """

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Reads the settings that `make(settings)` gets; ConfigError names all wrong ones.

        A text, as `--set` gives it, is converted to the field's type.
        """
        return parse(cls, dict(settings), "--set")


def read_settings(given: Sequence[str]) -> dict[str, Setting]:
    """Parses `--set key=value`: TOML values (3, 0.5, true, "text"), else text; ConfigError."""
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        settings[key] = toml_value(value)
    return settings


_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")


def read_run_config(given: Sequence[str]) -> dict[str, Setting]:
    """Reads `--run-config` as `flwr run` does: "lr=0.1 name='x'", or a TOML file's path."""
    if len(given) == 1 and given[0].endswith(".toml"):
        return dict(flatten_table(read_toml(Path(given[0])), f"--run-config {given[0]}"))
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


def flatten_table(
    table: Mapping[str, Any], where: str, prefix: str = ""
) -> Iterator[tuple[str, Setting]]:
    """Yields a table's values, "a.b" for b of table a; ConfigError if one is no plain value."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_table(value, where, f"{prefix}{key}.")
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
        hint = suggest(self.args[0], self._given) if self._given else "no setting is"
        own = self.args[0]
        return (
            f"{own!r} is not given; {hint.replace('known are', 'given are')}; give it by `secureps "
            f"join --set {own}=...`, or in the settings of [federation] or of a scenario"
        )


class TrackedSettings(dict[str, Any]):
    """A dict of settings that remembers which keys a script asked for, present or not."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        super().__init__(settings)
        self._asked = set[str]()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        if not super().__contains__(key):
            raise MissingSetting(key, super().keys())
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._asked.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self._asked.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self._asked.update(super().keys())
        return super().items()

    def refuse_misspelt(self) -> None:
        """Raises ConfigError if an unused key resembles a missing one."""
        known = set(super().keys())
        refuse_misspelt(known - self._asked, self._asked - known)


def refuse_misspelt(given: set[str], wanted: set[str]) -> None:
    """Raises ConfigError for a given key that resembles a wanted one, and names both.

    Any other key may be for code that has not asked for it yet.
    """
    for key in sorted(given):
        for near in difflib.get_close_matches(key, sorted(wanted), 1, cutoff=0.75):
            raise ConfigError(f"setting {key!r} is not known; did you mean {near}?")


importing: ContextVar[bool] = ContextVar("a script is imported for its functions", default=False)


@contextmanager
def only_importing() -> Iterator[None]:
    """Makes `run_client` do nothing, while a script is imported only for its functions."""
    token = importing.set(True)
    try:
        yield
    finally:
        importing.reset(token)
