"""A script's settings, and which of them it asks for: a misspelt one is not passed over.

What must not live here: where settings come from (`client.runner`, `run`), and what they mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from secureps.client.trainer import Setting
from secureps.config.sections import Section, parse
from secureps.errors import ConfigError
from secureps.wording import meant


class Settings(Section):
    """A script's settings, declared: a field for each, with its type and default.

    Values are checked and converted; a setting that is no field is refused.

    Example:
        >>> class Share(ps.Settings):
        ...     partition: int = 0
        ...     device: str = "cpu"
        >>> Share.of({"partition": "3"})
        Share(partition=3, device='cpu')
    """

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Reads what `make(settings)` is given.

        Raises:
            ConfigError: names every setting that is wrong.
        """
        return parse(cls, dict(settings), "--set")


class MissingSetting(KeyError):
    """A script asks for a setting that it was not given; its text names the nearest that it was."""

    def __init__(self, key: str, given: Iterable[str]) -> None:
        super().__init__(key)
        self._given = tuple(given)

    def __str__(self) -> str:
        hint = meant(self.args[0], self._given) if self._given else "no setting is"
        return f"{self.args[0]!r} is not given; {hint.replace('known are', 'given are')}"


class Asked(dict[str, Any]):
    """Settings that remember which keys were asked for, whether they are there or not."""

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
        """ConfigError: a key that nobody asked for, where one like it was asked for in vain."""
        known = set(super().keys())
        refuse_misspelt(known - self._asked, self._asked - known)


EVERYBODYS = ("partition", "partitions")
"""What `up` and `simulate` give to every client, whether its script asks for it or not."""


def refuse_unknown(given: Iterable[str], names: Mapping[str, Any]) -> None:
    """Of a script that declares what it reads, in `SETTINGS`; of any other it cannot be known.

    Args:
        names: the script's own, of the module that `make` is in.

    Raises:
        ConfigError: a given key is not declared, or SETTINGS is no collection of names.
    """
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
    """Raises ConfigError: a given key is none of the wanted ones, but nearly.

    A key that is like none of them may be for somebody who has not asked yet.
    """
    for key in sorted(given):
        for near in difflib.get_close_matches(key, sorted(wanted), 1, cutoff=0.75):
            raise ConfigError(f"setting {key!r} is not known; did you mean {near}?")
