"""Flower as it is deployed: a SuperLink, a SuperNode for each client, and apps as its processes."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage

_PROJECT = """
[project]
name = "peers"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "peers"
[tool.flwr.app.components]
serverapp = "flower_server:app"
clientapp = "flower_client:app"
[tool.flwr.app.config]
"""
_CONNECTION = """
[superlink]
default = "peers"
[superlink.peers]
address = "{address}"
insecure = true
"""


def play_plain(stage: Stage, python: str) -> Figures:
    """FedAvg in the clear."""
    return _play(stage, python, "no")


def play_secagg(stage: Stage, python: str) -> Figures:
    """FedAvg of masked integers, in four stages."""
    return _play(stage, python, "yes")


def _play(stage: Stage, python: str, secure: str) -> Figures:
    programs = Path(python).parent
    port = stage.free_port()
    address = f"{stage.host}:{port}"
    around = {
        "PEERS_SECURE": secure,
        "PATH": f"{programs}:/usr/bin:/bin",  # it begins its own by name
        "HOME": str(stage.folder),
        "FLWR_HOME": str(stage.folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    app = _app(stage.folder)
    (stage.folder / "flwr").mkdir()
    (stage.folder / "flwr" / "config.toml").write_text(_CONNECTION.format(address=address))
    link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
    link += ["--host", stage.host, "--port", str(port)]
    stage.start(SERVERS, "superlink", [str(programs / link[0]), *link[1:]], around)
    stage.wait(lambda: stage.answers(port), "the SuperLink")
    for client in range(stage.clients):
        node = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
        node += ["--port", str(stage.free_port()), "--node-config", f"partition-id={client}"]
        stage.start(CLIENTS, f"supernode-{client}", node, around)
    stage.start(SERVERS, "run", [str(programs / "flwr"), "run", str(app), "peers"], around)
    error = stage.error()
    return stage.figures(error)


def _app(folder: Path) -> Path:
    """The folder that is sent to the SuperLink."""
    app = folder / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(_PROJECT)
    for name in ("flower_client.py", "flower_server.py"):
        shutil.copy(Path(__file__).parent / "apps" / name, app / name)
    return app
