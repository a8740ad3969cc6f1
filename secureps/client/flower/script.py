"""Runs a Flower app as a data holder's script.

`secureps join` and `secureps up` make a `FlowerScript` of a file or a project, and `run_flower` of
an object. Only `client.flower` and `flower` import flwr, which is an extra.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from secureps.client.initial_model import ServerAppResult
from secureps.client.trainer import PooledEvaluation, Setting
from secureps.errors import ConfigError, SecurepsError
from secureps.extras import command
from secureps.tracebacks import describe_error, find_place

# flwr imports alembic, which logs every plugin. Telemetry is turned off before any app is loaded,
# because an app may call functions that report to Flower.
logging.getLogger("alembic").setLevel(logging.WARNING)

try:
    from flwr.supercore import telemetry

    from secureps.client.flower.app import (
        FlowerApp,
        Settings,
        catch_start_client,
        find_in_module,
        find_in_project,
        wrap_object,
    )
    from secureps.client.flower.server import read_server_app
    from secureps.client.flower.trainer import NO_RECORD_PRIVACY, FlowerModel, FlowerTrainer, seeded
except ImportError as missing:
    raise ConfigError(
        f"Flower apps need flwr 1.41 or newer: {command('flower')} ({missing})"
    ) from None

telemetry.FLWR_TELEMETRY_ENABLED = "0"

__all__ = ["NO_RECORD_PRIVACY", "FlowerScript", "FlowerTrainer", "wrap_object"]

STATE = "flower"
"""The folder of `context.state`, in a client's state folder."""

ROUNDS = "num-server-rounds"
"""The run_config key for the number of rounds in Flower's templates; here the plan decides it."""


class FlowerScript:
    """A Flower app in place of a data holder's script (`client.script`)."""

    def __init__(self, app: FlowerApp) -> None:
        self._app = app

    @classmethod
    def at(cls, path: Path, load: Callable[[Path], ModuleType]) -> FlowerScript:
        """Finds the app in a project's folder, or in a file that `load` imports."""
        if path.is_dir():
            return cls(find_in_project(path))
        with catch_start_client(str(path)) as started:
            module = load(path)
        return cls(find_in_module(module, started, str(path)))

    def make(
        self, settings: Mapping[str, Setting], state: Path | None, name: str = ""
    ) -> FlowerTrainer:
        folder = None if state is None else state / STATE
        return FlowerTrainer(self._app, settings, folder, name)

    @property
    def own_code(self) -> str:
        return "the app has mods, which run in its clients alone" if self._app.has_mods else ""

    def run_server_app(
        self, settings: Mapping[str, Setting], versions: int, seed: int, clients: int
    ) -> ServerAppResult | None:
        """Runs the app's ServerApp, if it has one, once for the run; returns its decisions.

        If it has no model, the client of `partition` 0 makes one. Raises ConfigError if it fails,
        if nobody has a model, or if it has code of its own.
        """
        own = self._app.where
        try:
            with seeded(seed):
                server = self._app.server()
            if server is None:
                return None
            given = Settings.of(self._app.config, settings)
            rounds = {ROUNDS: versions} if ROUNDS in self._app.config else {}
            with seeded(seed):  # again, because torch may have been imported only now
                founded = read_server_app(server, {**given.run, **rounds}, versions, clients)
        except ConfigError as error:
            raise ConfigError(f"{own}: {error}") from None
        except SecurepsError:
            raise
        except Exception as error:
            text = f"its ServerApp failed: {describe_error(error)} ({find_place(error)})"
            raise ConfigError(f"{own}: {text}") from error
        if not founded.model or "initial" in settings:
            first: dict[str, Setting] = {"partition": 0, "partitions": clients, **settings}
            trainer = self.make(first, None)
            trainer.parameters(seed)
            founded = replace(founded, model=trainer.model.tensors, ties=trainer.tied())
        else:
            FlowerModel.of_file(founded.model, tuple(founded.model)).refuse_unsummable(own)
        served = replace(founded.served, names=tuple(founded.model), run=rounds)
        return replace(founded, served=served)

    def make_evaluator(self, settings: Mapping[str, Setting]) -> PooledEvaluation | None:
        """Pools all clients' evaluations, if the app can evaluate."""

        def holder(partition: int) -> FlowerTrainer:
            return self.make({**settings, "partition": partition}, None)

        if self.own_code:
            return None
        first = holder(0)
        if not first.evaluates():
            return None
        return PooledEvaluation(
            [first, *map(holder, range(1, int(settings.get("partitions", "1"))))]
        )
