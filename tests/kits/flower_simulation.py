"""Flower's simulation without Ray: its own state, grid and threads; apps run in this process.

Ray is a large download and ten seconds to start. What stands in for it here is what Ray's actors do
with a message: one worker runs the ClientApp, and what it changed in its context is kept.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from unittest import mock

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.server.superlink.fleet.vce.backend import Backend, BackendConfig
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore import telemetry
from flwr.supercore.telemetry import EventType

from tests.kits.nursery import ROOT

_RAY = "flwr.server.superlink.fleet.vce.backend.raybackend"


class _Here(Backend):
    """One worker, which is a thread of Flower's."""

    def __init__(self, backend_config: BackendConfig) -> None:
        self._load: Callable[[], ClientApp] | None = None

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._load = app_fn

    @property
    def num_workers(self) -> int:
        return 1

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        """Nothing was started."""

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        assert self._load is not None
        own = context_from_proto(context_to_proto(context))  # an app that fails has changed nothing
        taken = deepcopy(message)  # Ray's actors have a copy: what is done to it is not the store's
        return self._load()(taken, own), own


def simulate(
    app: Path, nodes: int, folder: Path, config: Mapping[str, UserConfigValue] | None = None
) -> None:
    """Runs the app of a project to its end; its ServerApp's files are in `folder`.

    Args:
        config: as `flwr run --run-config`.

    Raises:
        Exception: whatever the ServerApp raises.
    """
    components = get_project_config(app)["tool"]["flwr"]["app"]["components"]
    fused = get_fused_config_from_dir(app, dict(config or {}))
    context = Context(1, 0, {}, RecordDict(), fused)
    with _in(folder), _apps_forgotten(app), _without_ray():
        _run_simulation(
            num_supernodes=nodes,
            exit_event=EventType.FLWR_SIMULATION_RUN_LEAVE,
            backend_name="here",
            client_app_attr=components["clientapp"],
            server_app_attr=components["serverapp"],
            server_app_context=context,
            app_dir=str(app),
            is_app=True,
        )


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _apps_forgotten(app: Path) -> Iterator[None]:
    """Another app may have packages of the same names."""
    modules, path = dict(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules.keys():
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(app)):
                del sys.modules[name]


@contextmanager
def _without_ray() -> Iterator[None]:
    module = ModuleType(_RAY)
    vars(module)["RayBackend"] = _Here
    sys.modules[_RAY] = module
    try:
        with mock.patch.object(telemetry, "FLWR_TELEMETRY_ENABLED", "0"):
            yield
    finally:
        del sys.modules[_RAY]


EXAMPLES = ROOT / "examples" / "flower"


def copied(name: str, folder: Path) -> Path:
    """An app, as its user has it."""
    app = folder / "app"
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    return app


def private(name: str, folder: Path, **more: object) -> Path:
    """The same with its diff applied.

    Args:
        more: said to SecureFedAvg besides.
    """
    app = copied(name, folder)
    subprocess.run(["git", "apply", "private.diff"], cwd=app, check=True, capture_output=True)
    server = app / f"{name}example" / "server_app.py"
    said = "".join(f", {key}={value!r}" for key, value in more.items())
    text = server.read_text()
    assert '"plan.toml"' in text
    server.write_text(text.replace('"plan.toml"', f'"plan.toml"{said}'))
    return app
