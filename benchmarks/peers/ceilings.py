"""What is less than a federation: gRPC, gloo, TenSEAL and classes of FLARE's, each alone."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace

from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage

APPS = "benchmarks.peers.apps"


def play_grpc(stage: Stage, _: str) -> Figures:
    """A server and its clients stream bytes up and down."""
    program = [sys.executable, "-m", f"{APPS}.grpc_party"]
    address = f"{stage.host}:{stage.free_port()}"
    stage.start(SERVERS, "server", [*program, "serve", address])
    for client in range(stage.clients):
        stage.start(CLIENTS, f"client-{client}", [*program, "send", address, str(client)])
    stage.wait(lambda: len(stage.times("marks")) == stage.rounds, "the last round")
    return stage.figures(None)


def play_gloo(stage: Stage, _: str) -> Figures:
    """Processes add up among themselves; there is no server."""
    stage.among_clients = True
    for client in range(stage.clients):
        command = [sys.executable, "-m", f"{APPS}.gloo_party", str(client)]
        stage.start(CLIENTS, f"client-{client}", command)
    return stage.figures(stage.error())


def play_ckks(stage: Stage, python: str) -> Figures:
    """Approximate ciphertexts."""
    return _alone(stage, python, "tenseal_alone", "ckks")


def play_bfv(stage: Stage, python: str) -> Figures:
    """Exact ciphertexts."""
    return _alone(stage, python, "tenseal_alone", "bfv")


def play_flare_classes(stage: Stage, python: str) -> Figures:
    """FLARE's own classes for HE, where its federation needs more memory than there is."""
    return _alone(stage, python, "flare_classes")


def _alone(stage: Stage, python: str, app: str, *words: str) -> Figures:
    """One process is all parties; it says itself who spent what."""
    stage.start(CLIENTS, "all", [python, "-m", f"{APPS}.{app}", *words])
    error = stage.error()
    made = stage.figures(error)
    warm = json.loads((stage.folder / "steps").read_text())[1:]

    def a_round(what: str) -> float:
        return statistics.fmean(step[what] for step in warm)

    sent = stage.values * stage.clients
    return replace(
        made,
        client_cpu=a_round("clients"),
        server_cpu=a_round("server"),
        up=a_round("up") / sent,
        down=a_round("down") / sent,
    )
