"""`--set key=value`, as a Flower app knows it: node_config and run_config."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.client.trainer import Array, Setting
from secureps.errors import ConfigError, DamagedStore
from secureps.store.checkpoint import read_state

NODE = {"partition": "partition-id", "partitions": "num-partitions"}
"""Settings of `up` and `simulate`, and what Flower's simulations call them in node_config."""


@dataclass(frozen=True)
class Settings:
    """A client's settings as Flower knows them: node_config, run_config; and ours, `initial`."""

    node: Mapping[str, Setting]
    run: Mapping[str, Setting]
    initial: Path | None

    @classmethod
    def of(cls, declared: Mapping[str, Setting], given: Mapping[str, str]) -> Settings:
        """From `--set`, and what the project's [tool.flwr.app.config] declares with defaults.

        Declared names override run_config; `partition` and `partitions` become node_config's
        partition-id and num-partitions. All others go to node_config and, if nothing is
        declared, to run_config too.

        Raises:
            ConfigError: a value of another type than the default's, or a partition that is no
                whole number.
        """
        node: dict[str, Setting] = {}
        run = dict(declared)
        initial = None
        for name, text in given.items():
            if name in declared:
                run[name] = _typed(name, text, type(declared[name]))
            elif name == "initial":
                initial = Path(text)
            elif name in NODE or name in NODE.values():
                node[NODE.get(name, name)] = _typed(name, text, int)
            else:
                node[name] = _guessed(text)
                if not declared:
                    run[name] = node[name]
        return cls(node, run, initial)

    def model(self) -> dict[str, Array]:
        """The tensors of `initial`; ConfigError if there are none."""
        assert self.initial is not None
        try:
            tensors = read_state(self.initial, None)[0]
        except DamagedStore as error:
            raise ConfigError(f"initial: {error}") from None
        if not tensors:
            raise ConfigError(f"initial: {self.initial} has no tensors")
        return tensors


def _guessed(text: str) -> Setting:
    """A TOML value, as in Flower's --run-config; what is none is a string."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = values["value"]
    return value if len(values) == 1 and isinstance(value, bool | int | float | str) else text


def _typed(name: str, text: str, kind: type) -> Setting:
    value = text if kind is str else _guessed(text)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {text!r}")
    return value
