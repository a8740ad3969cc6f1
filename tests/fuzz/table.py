"""All that reads bytes from outside: every function that parses, and the target that tries it.

A function parses if it calls one of PARSERS. One that no target names, and that is not among
TRUSTED with a reason, fails a test: so does a new one.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz import (
    config_targets,
    coordinator_targets,
    crypto_targets,
    payload_targets,
    store_targets,
    wire_targets,
)
from tests.fuzz.target import Target
from tests.kits.nursery import ROOT

PARSERS = frozenset(
    {
        *("loads", "load_safetensors", "frombuffer", "unpack", "unpack_from", "iter_unpack"),
        *("fromhex", "ParseFromString", "from_public_bytes", "from_encoded_point", "safe_open"),
        *("load_pem_x509_certificate", "load_pem_private_key", "load_der_public_key"),
        *("sqlite3.connect", "int.from_bytes", "np.load", "literal_eval", "FromString"),
    }
)
"""By the last word of what is called, or by all of it."""

OWN = "bytes that this very function, or its caller, has just made"
CHECKED = "bytes whose digest and length were compared before, with what was signed or journalled"
FOLDER = "a folder of runs, which `secureps up` and `study` make for whoever types the command"
PIPE = "a socket between two processes of one command, of which neither runs anybody else's code"
TRUSTED: Mapping[str, tuple[str, ...]] = {
    OWN: (
        "buffers:Buffers._wrap",
        "client.patch:Rounds._look_at",
        "client.torch_sgd:derive",
        "client.torch_sgd:noise_generators",
        "client.flower.trainer:to_plain",
        "client.flower.trainer:FlowerTrainer._node_id",
        "client.flower.trainer:bind_seed",
        "client.torch_ranks:send_order",
        "crypto.bfv_seal:BfvOpener._open",
        "crypto.cipher:Adder.zero",
        "crypto.cipher:Opener.open",
        "crypto.identity:check_identity_key",  # 32 bytes, in parsers that are tried
        "run.initial_schema:read_schema",  # a file that who types the command names
        "crypto.identity:",
        "crypto.identity:_signed_by",
        "messages.encoding:_read_bytes",  # of `from_plain`, whose targets try it
        "model.placement:_uniform",
        "roles.member.tasks:in_own_order",
        "store.checkpoint:Scratch.vector",
        "run.simulate.simulation:Simulation.model.values",
        "run.script.cut_off:answer_call",
        "scenario.delays:generator",
        "service.pinning:choose",
        "service.tracing:span_of",
        "service.tracing:trace_of",
    ),
    CHECKED: (
        "client.worker:ClientWorker.keep",
        "flower.strategy:Aggregator.model.values",
        "run.status_client:_values",
        "service.shard.worker:ShardWorker._block",
        "service.shard.worker:ShardWorker._make_first",
        "service.shard.worker:ShardWorker._open_sum",
        "service.shard.worker:ShardWorker.take",
        "store.journal:MemoryJournal.take",
    ),
    FOLDER: (
        "dashboard.observation:read_report",
        "store.act_lines:read_acts",
        "store.backup:load_folder_number",
        "run.api:RunResult.read",
        "run.up.folder:Origin.read",
        "run.up.runs:_read_summary",
        "run.up.up:resume",
        "run.study:_read_outcome",
        "run.study:main",
        "run.join:_Terminal._hear",  # logs of its own two processes
    ),
    "another process of the same client, which has its records": (
        "client.torch_ranks:receive_order",
    ),
    "the client's own state folder, whose damage is found and told": (
        "client.update:load_training",
    ),
    "digits that the same function has looked at": ("flower.post:read_wave",),
    "what the same function has just written": ("run.check:record",),
    "a Ray cluster: its operator's own machines, of which each could run anything here": (
        "run.simulate.ray_cluster:RayCalls.ask",
        "run.simulate.ray_cluster:_make_trainer",
        "run.simulate.ray_cluster:make_call",
    ),
    PIPE: (
        "run.processes.launcher:Launcher.hear",
        "run.processes.launcher:_serve",
        "run.processes.supervisor:_strip_error",
        "service.one_wave:refuse_reader",
    ),
}
"""Parsers that are tried by no target, by the reason."""


def targets(folder: Path) -> dict[str, Target]:
    """All of them by name; `folder` is for their files, and empty."""
    made = list(wire_targets.targets())
    rooms = (crypto_targets, store_targets, config_targets, payload_targets, coordinator_targets)
    for room in rooms:
        own = folder / room.__name__.rpartition(".")[2]
        own.mkdir()
        made += room.targets(own)
    found = {target.name: target for target in made}
    assert len(found) == len(made), "two targets have one name"
    return found


def parsers() -> set[str]:
    """Every function of the package that parses, as `module:function`."""
    found = set[str]()
    for path in sorted((ROOT / "secureps").rglob("*.py")):
        if "templates" not in path.parts:
            module = ".".join(path.relative_to(ROOT / "secureps").with_suffix("").parts)
            found |= {f"{module}:{name}" for name in _parsing(ast.parse(path.read_text()), ())}
    return found


def _parsing(node: ast.AST, within: tuple[str, ...]) -> set[str]:
    found = set[str]()
    for child in ast.iter_child_nodes(node):
        inner = within
        match child:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                inner = (*within, name)
            case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(attr=name)) if name in PARSERS:
                found.add(".".join(within))
            case ast.Call(ast.Attribute(ast.Name(module), name)) if f"{module}.{name}" in PARSERS:
                found.add(".".join(within))
        found |= _parsing(child, inner)
    return found
