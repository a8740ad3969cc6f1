"""Translates `--set key=value` into a Flower app's node_config and run_config."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from secureps.client.script_settings import refuse_misspelt
from secureps.client.trainer import Setting
from secureps.config.sections import toml_value
from secureps.errors import ConfigError
from secureps.wording import meant

NODE = {"partition": "partition-id", "partitions": "num-partitions"}
"""Settings of `up` and `simulate`, by their names in the node_config of Flower's simulations."""

_NOT_ITS_OWN = ("site-packages", "venv", "node_modules")
"""Folders in a project's folder with code that is not the project's."""


@dataclass(frozen=True)
class Settings:
    """Flower's node_config and run_config of a client, and our own `initial`, a path or URL."""

    node: Mapping[str, Setting]
    run: Mapping[str, Setting]
    initial: str | None

    @classmethod
    def of(
        cls,
        declared: Mapping[str, Setting],
        given: Mapping[str, Setting],
        read: Callable[[], Collection[str]] = frozenset,
    ) -> Settings:
        """Merges `--set` with the defaults that the project's [tool.flwr.app.config] declares.

        Declared names override run_config; `partition` and `partitions` become node_config's
        partition-id and num-partitions. All others go to node_config and, if nothing is
        declared, to run_config too. Where names are declared, one that the app's own code does not
        contain is refused: it cannot ask node_config for it.

        Args:
            declared: names and defaults; given: `--set`.
            read: finds every text in the code of a project that declares names.

        Raises:
            ConfigError: a value of another type than the default's, a partition that is no
                whole number, or an unknown or misspelt name.
        """
        node: dict[str, Setting] = {}
        run = dict(declared)
        initial = None
        for name, value in given.items():
            if name in declared:
                run[name] = _typed(name, value, type(declared[name]))
            elif name == "initial":
                initial = str(value)
            elif name in NODE or name in NODE.values():
                node[NODE.get(name, name)] = _typed(name, value, int)
            elif declared and name not in read():
                known = (*declared, *NODE, "initial")
                raise ConfigError(f"setting {name!r} is not known; {meant(name, known)}")
            else:
                node[name] = value
                if not declared:
                    run[name] = node[name]
        refuse_misspelt(node.keys() - NODE.values(), declared.keys() - given.keys())
        return cls(node, run, initial)


def texts_of(folder: Path) -> frozenset[str]:
    """Every string in a project's Python files, and so every key that its code can ask for."""
    found = set[str]()
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder).parts
        if any(part.startswith(".") or part in _NOT_ITS_OWN for part in inside):
            continue
        with suppress(OSError, SyntaxError, ValueError):
            tree = ast.parse(path.read_bytes())
            constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            found.update(value for value in constants if isinstance(value, str))
    return frozenset(found)


def _typed(name: str, value: Setting, kind: type) -> Setting:
    if isinstance(value, str) and kind is not str:
        value = toml_value(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value
