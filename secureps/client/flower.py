"""Flower apps in a data holder's place: the only door between secureps and flwr.

`run_flower` ends a Flower script that joins by itself; `FlowerScript` is what `secureps join`
and `secureps up` make of a file or a project. Only this module and its neighbours `flower_*`
import flwr, which is an extra: pip install 'secureps[flower]'. What must not live here: driving
an app (`client.flower_trainer`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from secureps.client.panel import Panel
from secureps.client.runner import run
from secureps.client.trainer import Setting
from secureps.errors import ConfigError

# flwr is kept quiet before it is imported (alembic, which it imports, tells of every plugin) and
# before any app is loaded: nothing here reports to Flower, but what an app calls might.
logging.getLogger("alembic").setLevel(logging.WARNING)

try:
    from flwr.supercore import telemetry

    from secureps.client.flower_app import FlowerApp, in_module, in_project, loading, of_object
    from secureps.client.flower_trainer import NO_RECORD_PRIVACY, FlowerTrainer
except ImportError as missing:
    raise ConfigError(
        f"Flower apps need flwr 1.41: pip install 'secureps[flower]' ({missing})"
    ) from None

telemetry.FLWR_TELEMETRY_ENABLED = "0"

__all__ = ["NO_RECORD_PRIVACY", "FlowerScript", "FlowerTrainer", "run_flower"]

STATE = "flower"
"""The folder of `context.state` in a client's state folder."""


class FlowerScript:
    """A Flower app in the place of a data holder's script (`client.script`)."""

    def __init__(self, app: FlowerApp) -> None:
        self._app = app

    @classmethod
    def at(cls, path: Path, load: Callable[[Path], ModuleType]) -> FlowerScript:
        """Of a project's folder, or of a file, which `load` imports.

        Raises:
            ConfigError: no app, or one that cannot be run here; says why.
        """
        if path.is_dir():
            return cls(in_project(path))
        with loading(str(path)) as started:
            module = load(path)
        return cls(in_module(module, started, str(path)))

    def make(self, settings: Mapping[str, Setting], state: Path | None) -> FlowerTrainer:
        """One data holder's trainer; `state` is its client's state folder, None for memory."""
        return FlowerTrainer(self._app, settings, None if state is None else state / STATE)

    def make_evaluator(self, settings: Mapping[str, Setting]) -> Panel | None:
        """All holders' own evaluations, if the app has one: there is no other held-out set."""

        def holder(partition: int) -> FlowerTrainer:
            return self.make({**settings, "partition": partition}, None)

        first = holder(0)
        if not first.evaluates():
            return None
        return Panel([first, *map(holder, range(1, int(settings.get("partitions", "1"))))])


def run_flower(app: Any, arguments: Sequence[str] | None = None) -> None:
    """The last line of a Flower script that joins a federation of secureps by itself.

    Reads the command line as `client.runner.run_client` does; exits with status 1 and one line
    on stderr when something is wrong.

    Args:
        app: a ClientApp, a client_fn, or a client.
        arguments: the command line; default: the process's own.
    """
    run(
        lambda joining, settings: FlowerScript(of_object(app, "this script")).make(
            settings, joining.state
        ),
        arguments,
    )
