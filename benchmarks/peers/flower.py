"""Flower as it is deployed: a SuperLink, a SuperNode for each client, and apps as its processes.

Or as it is simulated: a SuperLink that has Ray play all clients. The older interface is that of
SecAgg+, the newer, of messages, is ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.deployed import still_plan
from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures, PeerError
from benchmarks.peers.stage import Stage
from secureps.flower.strategy import simulated_kit
from secureps.policy.plan import load_plan
from secureps.run.up.folder import client_names, holder_names

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
serverapp = "{server}:app"
clientapp = "{client}:app"
[tool.flwr.app.config]
"""
_CONNECTION = """
[superlink]
default = "peers"
[superlink.peers]
address = "{address}"
insecure = true
"""
_OLDER = ("flower_client", "flower_server")
_NEWER = ("flower_message_client", "flower_message_server")
_SIMULATED = "num-supernodes={} client-resources-num-cpus=1"


def play_plain(stage: Stage, python: str) -> Figures:
    """FedAvg in the clear."""
    return _play(stage, python, {"PEERS_SECURE": "no"}, _OLDER)


def play_secagg(stage: Stage, python: str, simulated: bool = False) -> Figures:
    """FedAvg of masked integers, in four stages."""
    return _play(stage, python, {"PEERS_SECURE": "yes"}, _OLDER, simulated)


def play_messages(stage: Stage, python: str, simulated: bool = False) -> Figures:
    """FedAvg in the clear, of messages."""
    return _play(stage, python, {"PEERS_SECURE": "no"}, _NEWER, simulated)


def play_secureps(stage: Stage, python: str, simulated: bool = False) -> Figures:
    """`SecureFedAvg` under `rlwe`; three of four key holders, processes beside the ServerApp."""
    clients = stage.clients
    path = stage.folder / "plan.toml"
    text = still_plan("rlwe", clients, clients).format(cipher="rlwe", versions=stage.rounds)
    path.write_text(text)
    told = {"PEERS_SECURE": "secureps", "PEERS_PLAN": str(path)}
    if simulated:
        return _play(stage, python, told, _NEWER, simulated)
    kit, nodes = _kit(stage, path)
    return _play(stage, python, told | {"PEERS_KIT": str(kit)}, _NEWER, nodes=nodes)


def play_secureps_nodes(stage: Stage, python: str) -> Figures:
    """The same with key holders as nodes, each a SuperNode beside those of the clients."""
    path = stage.folder / "plan.toml"
    text = still_plan("rlwe", stage.clients, stage.clients)
    path.write_text(text.format(cipher="rlwe", versions=stage.rounds))
    kit, nodes = _kit(stage, path)
    for name in holder_names(load_plan(path).holders):
        config, waves = stage.folder / f"{name}.toml", stage.folder / f"{name}.waves"
        config.write_text(
            f'name = "{name}"\nkit = "{kit}"\nstate = "{stage.folder / name}"\nminimum = 2\n'
            f'socket = "{waves}"\ninsecure_for_tests = true\n'  # all is one user's here
        )
        serve = [python, "-m", "secureps", "serve", "keyholder", "--config", str(config)]
        stage.start(CLIENTS, name, serve)
        nodes.append(f' secureps-holder="{waves}"')
    told = {"PEERS_SECURE": "secureps", "PEERS_PLAN": str(path), "PEERS_HOLDERS": "nodes"}
    return _play(stage, python, told | {"PEERS_KIT": str(kit)}, _NEWER, nodes=nodes)


def _kit(stage: Stage, plan: Path) -> tuple[Path, list[str]]:
    """The kit of a run's parties, and what clients' SuperNodes say of themselves."""
    kit = simulated_kit(stage.folder, load_plan(plan), stage.clients)
    names = client_names(stage.clients)
    return kit, [f' secureps-kit="{kit}" secureps-name="{name}"' for name in names]


play_secagg_simulated = partial(play_secagg, simulated=True)
play_messages_simulated = partial(play_messages, simulated=True)
play_secureps_simulated = partial(play_secureps, simulated=True)


def _play(
    stage: Stage,
    python: str,
    told: Mapping[str, str],
    parts: tuple[str, str],
    simulated: bool = False,
    nodes: list[str] | None = None,
) -> Figures:
    programs = Path(python).parent
    port = stage.free_port()
    address = f"{stage.host}:{port}"
    around = {
        **told,
        "PATH": f"{programs}:/usr/bin:/bin",  # it begins its own by name
        "HOME": str(stage.folder),
        "FLWR_HOME": str(stage.folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",
    }
    app = _app(stage.folder, parts)
    (stage.folder / "flwr").mkdir()
    (stage.folder / "flwr" / "config.toml").write_text(_CONNECTION.format(address=address))
    link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
    link += ["--host", stage.host, "--port", str(port)]
    link += ["--simulation"] if simulated else []
    stage.start(SERVERS, "superlink", [str(programs / link[0]), *link[1:]], around)
    stage.wait(lambda: stage.answers(port), "the SuperLink")
    for client in () if simulated else range(len(nodes or "") or stage.clients):
        node = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
        own = f"partition-id={client}{nodes[client] if nodes else ''}"
        node += ["--port", str(stage.free_port()), "--node-config", own]
        stage.start(CLIENTS, f"supernode-{client}", node, around)
    run = [str(programs / "flwr"), "run", str(app), "peers"]
    run += ["--federation-config", _SIMULATED.format(stage.clients)] if simulated else []
    stage.start(SERVERS, "run", run, around)
    said, error = stage.folder / "superlink.log", stage.folder / "error"
    over = "Finished task"  # of the ServerApp: its figures are there by then
    stage.wait(lambda: error.is_file() or over in said.read_text(errors="replace"), "the mean")
    if not error.is_file():
        raise PeerError(f"the ServerApp failed; {_log(stage, programs, around)}")
    return stage.figures(stage.error())


def _log(stage: Stage, programs: Path, around: Mapping[str, str]) -> str:
    """Why a run ended by the SuperLink, which gives up apps that do not begin within 30 s, and the
    end of what they have logged, of which it alone knows."""
    found = re.search(r"run (\d+)", (stage.folder / "run.log").read_text(errors="replace"))
    own = stage.environment(around)

    def said(*words: str) -> str:
        command = [str(programs / "flwr"), *words]
        done = subprocess.run(command, env=own, cwd=stage.folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    why = re.search(r'"status-details": "([^"]*)"', said("ls", "peers", "--format", "json"))
    log = said("log", found[1] if found else "", "peers", "--show")[-2000:]
    return f"{why[1] if why else ''}; {log}"


def _app(folder: Path, parts: tuple[str, str]) -> Path:
    """The folder that is sent to the SuperLink."""
    app = folder / "app"
    app.mkdir()
    client, server = parts
    (app / "pyproject.toml").write_text(_PROJECT.format(client=client, server=server))
    for name in parts:
        shutil.copy(Path(__file__).parent / "apps" / f"{name}.py", app / f"{name}.py")
    return app
