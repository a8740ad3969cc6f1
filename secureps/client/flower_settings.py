"""`--set key=value`, as a Flower app knows it: node_config and run_config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.client.settings import refuse_misspelt
from secureps.client.trainer import Setting
from secureps.errors import ConfigError
from secureps.sections import toml_value

NODE = {"partition": "partition-id", "partitions": "num-partitions"}
"""Settings of `up` and `simulate`, and what Flower's simulations call them in node_config."""


@dataclass(frozen=True)
class Settings:
    """A client's settings as Flower knows them: node_config, run_config; and ours, `initial`."""

    node: Mapping[str, Setting]
    run: Mapping[str, Setting]
    initial: Path | None

    @classmethod
    def of(cls, declared: Mapping[str, Setting], given: Mapping[str, Setting]) -> Settings:
        """From `--set`, and what the project's [tool.flwr.app.config] declares with defaults.

        Declared names override run_config; `partition` and `partitions` become node_config's
        partition-id and num-partitions. All others go to node_config and, if nothing is
        declared, to run_config too.

        Raises:
            ConfigError: a value of another type than the default's, a partition that is no
                whole number, or a name that is nearly a declared one.
        """
        node: dict[str, Setting] = {}
        run = dict(declared)
        initial = None
        for name, value in given.items():
            if name in declared:
                run[name] = _typed(name, value, type(declared[name]))
            elif name == "initial":
                initial = Path(str(value))
            elif name in NODE or name in NODE.values():
                node[NODE.get(name, name)] = _typed(name, value, int)
            else:
                node[name] = value
                if not declared:
                    run[name] = node[name]
        refuse_misspelt(node.keys() - NODE.values(), declared.keys() - given.keys())
        return cls(node, run, initial)


def _typed(name: str, value: Setting, kind: type) -> Setting:
    if isinstance(value, str) and kind is not str:
        value = toml_value(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value
