"""All peers: what each is, how many rounds it plays, and who plays it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.peers import ceilings, flare, flower, ours
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage

WIRE, SERIALIZED = "on the wire", "as serialized"


@dataclass(frozen=True)
class Peer:
    """One system in one setting.

    Args:
        label: as tables call it.
        packages: whose versions are told.
        rounds: the first of which is not counted.
        play: plays it with an environment's interpreter.
        environment: of `environments.PACKAGES`; empty: this project's.
        bytes_from: WIRE, where there is one, or SERIALIZED.
        note: what a reader has to know beside its figures.
    """

    label: str
    packages: tuple[str, ...]
    rounds: int
    play: Callable[[Stage, str], Figures]
    environment: str = ""
    bytes_from: str = WIRE
    note: str = ""


ALONE = "no network; all parties in turn in one process"
PEERS: Mapping[str, Peer] = {
    "ours-plain": Peer("secureps, plain", ("secureps",), 20, ours.play_plain),
    "ours-rlwe": Peer(
        "secureps, rlwe, 3 of 4", ("secureps",), 20, ours.play_rlwe, note="four key holders"
    ),
    "ours-thin": Peer(
        "secureps, rlwe, a quarter in 4 bits",
        ("secureps",),
        5,
        ours.play_thin,
        note="`policies/thin.toml`; what is not sent is sent later",
    ),
    "flower-plain": Peer("Flower, FedAvg", ("flwr",), 4, flower.play_plain, "flower"),
    "flower-secagg": Peer("Flower, SecAgg+", ("flwr",), 3, flower.play_secagg, "flower"),
    "flare-plain": Peer("NVIDIA FLARE", ("nvflare",), 4, flare.play_plain, "flare"),
    "flare-he": Peer(
        "NVIDIA FLARE, HE (CKKS)",
        ("nvflare", "tenseal"),
        3,
        flare.play_he,
        "flare",
        note="every client has the secret key",
    ),
    "flare-classes": Peer(
        "NVIDIA FLARE's HE classes alone",
        ("nvflare", "tenseal"),
        2,
        ceilings.play_flare_classes,
        "flare",
        SERIALIZED,
        ALONE,
    ),
    "tenseal-ckks": Peer(
        "TenSEAL alone, CKKS",
        ("tenseal",),
        2,
        ceilings.play_ckks,
        "tenseal",
        SERIALIZED,
        ALONE,
    ),
    "tenseal-bfv": Peer(
        "TenSEAL alone, BFV",
        ("tenseal",),
        2,
        ceilings.play_bfv,
        "tenseal",
        SERIALIZED,
        ALONE,
    ),
    "grpc": Peer(
        "gRPC alone, streamed", ("grpcio",), 30, ceilings.play_grpc, note="nothing is added"
    ),
    "gloo": Peer(
        "gloo, all-reduce", ("torch",), 40, ceilings.play_gloo, note="clients among themselves"
    ),
}
"""In the order in which they play."""

_BOTH = ("secureps", "flwr")
ENGINE: Mapping[str, Peer] = {
    "plain": Peer("Flower, FedAvg", _BOTH, 4, flower.play_messages),
    "secureps": Peer("secureps inside Flower", _BOTH, 4, flower.play_secureps),
    "secureps, holders as nodes": Peer(
        "secureps inside Flower, holders as nodes", _BOTH, 4, flower.play_secureps_nodes
    ),
    "secagg": Peer("Flower, SecAgg+", _BOTH, 3, flower.play_secagg),
    "plain, simulated": Peer("FedAvg, simulated", _BOTH, 8, flower.play_messages_simulated),
    "secureps, simulated": Peer("secureps, simulated", _BOTH, 8, flower.play_secureps_simulated),
    "secagg, simulated": Peer("SecAgg+, simulated", _BOTH, 8, flower.play_secagg_simulated),
}
"""Inside Flower's engine, all with this project's interpreter: `benchmarks.flower_engine`."""
EVERY: Mapping[str, Peer] = {**PEERS, **ENGINE}
