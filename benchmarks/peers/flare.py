"""NVIDIA FLARE as it is deployed: provisioned, a server and clients with mutual TLS, a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import run
from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage

PARTS = "benchmarks.peers.apps.flare_parts"
ADMIN = "admin@peers.com"
_LIGHTER = "nvflare.lighter.impl"
_HE, _COMMON = "nvflare.app_opt.he", "nvflare.app_common"


def play_plain(stage: Stage, python: str) -> Figures:
    """FedAvg in the clear, inside TLS."""
    aggregator = f"{_COMMON}.aggregators.intime_accumulate_model_aggregator"
    generator = f"{_COMMON}.shareablegenerators.full_model_shareable_generator"
    paths = (
        f"{aggregator}.InTimeAccumulateWeightedAggregator",
        f"{generator}.FullModelShareableGenerator",
    )
    return _play(stage, python, paths, secure=False)


def play_he(stage: Stage, python: str) -> Figures:
    """CKKS with FLARE's own parameters."""
    paths = (
        f"{_HE}.intime_accumulate_model_aggregator.HEInTimeAccumulateWeightedAggregator",
        f"{_HE}.model_shareable_generator.HEModelShareableGenerator",
    )
    return _play(stage, python, paths, secure=True)


def project(server: str, ports: tuple[int, int], clients: list[str]) -> dict[str, Any]:
    """What is provisioned, with HE by the defaults; YAML reads JSON."""
    listening = {"fed_learn_port": ports[0], "admin_port": ports[1]}
    parties: list[dict[str, Any]] = [{"name": server, "type": "server", **listening}]
    parties += [{"name": name, "type": "client"} for name in clients]
    parties += [{"name": ADMIN, "type": "admin", "role": "project_admin"}]
    builders: list[tuple[str, dict[str, Any]]] = [
        ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
        ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "grpc"}),
        ("cert.CertBuilder", {}),
        ("he.HEBuilder", {}),
        ("signature.SignatureBuilder", {}),
    ]
    return {
        "api_version": 3,
        "name": "peers",
        "description": "a benchmark",
        "participants": [{**party, "org": "peers"} for party in parties],
        "builders": [{"path": f"{_LIGHTER}.{path}", "args": args} for path, args in builders],
    }


def resources(default: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A site's, which lets our parts in and keeps everything under the folder."""
    allowed = [f"{PARTS}.{name}" for name in ("Same", "Zeros", "Marker")]
    text = json.dumps({**default, "class_allow_list": default["class_allow_list"] + allowed})
    made: dict[str, Any] = json.loads(text.replace("/tmp/nvflare", str(folder)))
    return made


def job(stage: Stage, paths: tuple[str, str], secure: bool) -> dict[str, dict[str, Any]]:
    """The files of a job, by their paths."""

    def part(name: str, path: str, **args: Any) -> dict[str, Any]:
        return {"id": name, "path": path, "args": args}

    def filters(name: str) -> list[dict[str, Any]]:
        found = [{"path": f"{_HE}.model_{name.lower()}.HEModel{name}", "args": {}}]
        return [{"tasks": ["train"], "filters": found}] if secure else []

    weighing = {"expected_data_kind": "WEIGHTS", "weigh_by_local_iter": not secure}
    server = {
        "format_version": 2,
        "components": [
            part("persistor", f"{PARTS}.Zeros"),
            part("marker", f"{PARTS}.Marker"),
            part("aggregator", paths[0], **weighing),
            part("shareable_generator", paths[1]),
        ],
        "task_data_filters": [],
        "task_result_filters": [],
        "workflows": [
            part(
                "scatter_and_gather",
                f"{_COMMON}.workflows.scatter_and_gather.ScatterAndGather",
                min_clients=stage.clients,
                num_rounds=stage.rounds + 1,
                wait_time_after_min_received=0,
                aggregator_id="aggregator",
                persistor_id="persistor",
                shareable_generator_id="shareable_generator",
                train_task_name="train",
                train_timeout=0,
            )
        ],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["train"], "executor": {"path": f"{PARTS}.Same", "args": {}}}],
        "task_data_filters": filters("Decryptor"),
        "task_result_filters": filters("Encryptor"),
        "components": [],
    }
    meta = {
        "name": "peers",
        "resource_spec": {},
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": stage.clients,
    }
    return {
        "meta.json": meta,
        "app/config/config_fed_server.json": server,
        "app/config/config_fed_client.json": client,
    }


def _play(stage: Stage, python: str, paths: tuple[str, str], secure: bool) -> Figures:
    server = stage.name_host("flserver")
    ports = stage.free_port(), stage.free_port()
    sites = [f"site-{client + 1}" for client in range(stage.clients)]
    kits = _provision(stage, python, project(server, ports, sites), (server, *sites))
    app = "nvflare.private.fed.app"
    around = {"HOME": str(stage.folder)}
    more = ["--set", "secure_train=true", "org=peers", "config_folder=config"]
    line = [python, "-u", "-m", f"{app}.server.server_train", "-m", str(kits / server)]
    stage.start(SERVERS, "server", [*line, "-s", "fed_server.json", *more], around)
    stage.wait(lambda: stage.answers(ports[0]), "the server")
    for name in sites:
        line = [python, "-u", "-m", f"{app}.client.client_train", "-m", str(kits / name)]
        line += ["-s", "fed_client.json", *more, f"uid={name}"]
        stage.start(CLIENTS, name, line, around)
    folder = stage.folder / "job"
    for path, content in job(stage, paths, secure).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    submit = [python, "-m", "benchmarks.peers.apps.flare_submit", ADMIN]
    stage.start(SERVERS, "submit", [*submit, str(kits / ADMIN), str(folder)], around)
    return stage.figures(stage.error())


def _provision(
    stage: Stage, python: str, content: dict[str, Any], parties: tuple[str, ...]
) -> Path:
    """Startup kits of all, under the folder that is returned."""
    written = stage.folder / "project.yml"
    written.write_text(json.dumps(content))
    program = str(Path(python).parent / "nvflare")
    command = [program, "provision", "-p", str(written), "-w", str(stage.folder / "kits")]
    run(["env", f"HOME={stage.folder}", *command])
    kits = stage.folder / "kits" / "peers" / "prod_00"
    for name in parties:
        local = kits / name / "local"
        default = json.loads((local / "resources.json.default").read_text())
        made = resources(default, stage.folder / name)
        (local / "resources.json").write_text(json.dumps(made))
    return kits
