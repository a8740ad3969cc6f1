"""An object store on Kubernetes: keys by a Secret that is named, and a way to it, for servers."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from secureps.errors import ConfigError
from secureps.run.cli import deploy
from secureps.run.deploy.deployment import kubernetes_files
from secureps.run.deploy.kubernetes import Cluster, Store
from secureps.run.deploy.parties import Request
from tests.kits.command import said
from tests.run.deploy.test_kubernetes import (
    CLUSTER,
    asked_memory,
    complaint,
    deployed,
    parsed,
    settings_in,
    written,
)

pytest.importorskip("s3fs", reason="s3fs is not installed: no store can be named")

URL = "s3://bucket/trial/checkpoints"
STORE = Store("store-keys", URL, "https://minio.example:9000")
COPYING = replace(CLUSTER, standby=True, store=STORE)
POLICY = "NetworkPolicy"
SERVERS = ("coordinator", "standby", "shard-0", "shard-1")


def objects(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    texts = written(COPYING)[folder].values()
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def rules(folder: str, cluster: Cluster = COPYING) -> dict[str, list[dict[str, Any]]]:
    found = (each for text in written(cluster)[folder].values() for each in parsed(text, POLICY))
    return {each["metadata"]["name"]: each["spec"]["egress"] for each in found}


def test_every_object_is_sound() -> None:
    found = {name: complaint(each) for name, each in objects("servers").items()}
    assert found == dict.fromkeys(found, "")


def test_servers_copy_with_keys_that_no_manifest_has() -> None:
    files = written(COPYING)["servers"]
    for name in SERVERS:
        file = "coordinator.toml" if name == "standby" else f"{name}.toml"
        assert settings_in(files[f"{name}.yaml"], file)["checkpoint_copies"] == URL
        spec = objects("servers")["StatefulSet", name]["spec"]["template"]["spec"]
        (container,), (prepare,) = spec["containers"], spec["initContainers"]
        assert container["envFrom"] == [{"secretRef": {"name": "store-keys"}}]
        given = {each["name"]: each["value"] for each in container["env"]}
        assert given["AWS_ENDPOINT_URL"] == "https://minio.example:9000"
        assert "envFrom" not in prepare
    assert ("Secret", "store-keys") not in objects("servers"), "the operator has made it"


def test_nobody_else_reaches_the_store() -> None:
    for folder, parties in (("holder-0", {"holder-0"}), ("south", {"south", "south-holder"})):
        assert rules(folder).keys() == parties
        assert "ipBlock" not in str(rules(folder))
        assert "store-keys" not in str(objects(folder))
        assert "checkpoint_copies" not in "".join(written(COPYING)[folder].values())


def test_servers_dial_whom_they_did_and_the_store_besides() -> None:
    before, now = rules("servers", replace(COPYING, store=None)), rules("servers")
    assert now.keys() == before.keys() == set(SERVERS)
    for name in SERVERS:
        assert now[name] == [*before[name], STORE.egress_rule()]
    alone = rules("servers", replace(COPYING, standby=False))["coordinator"]
    assert alone == [now["shard-0"][0], STORE.egress_rule()], "names, and the store: no party"


@pytest.mark.parametrize(
    ("endpoint", "networks", "to", "port"),
    [
        (None, (), ["0.0.0.0/0", "::/0"], 443),
        ("https://minio.example:9000", (), ["0.0.0.0/0", "::/0"], 9000),
        ("http://minio.example", (), ["0.0.0.0/0", "::/0"], 80),
        ("https://minio.example", ("10.1.0.0/16", "fd00::/8"), ["10.1.0.0/16", "fd00::/8"], 443),
        ("http://10.0.0.7:9000", (), ["10.0.0.7/32"], 9000),
        ("https://[fd00::7]", (), ["fd00::7/128"], 443),
    ],
)
def test_the_way_is_to_the_stores_port_outside(
    endpoint: str | None, networks: tuple[str, ...], to: list[str], port: int
) -> None:
    assert Store("keys", URL, endpoint, networks).egress_rule() == {
        "to": [{"ipBlock": {"cidr": each}} for each in to],
        "ports": [{"protocol": "TCP", "port": port}],
    }


@pytest.mark.parametrize("host", ["minio.storage.svc", "minio.storage.svc.cluster.local"])
def test_a_store_in_the_cluster_is_reached_in_its_namespace(host: str) -> None:
    """At any port: its Service may have another one than its pod."""
    space = {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}
    made = Store("keys", URL, f"http://{host}").egress_rule()
    assert made == {"to": [{"namespaceSelector": space}]}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("Keys",), "no name of a Secret"),
        (("keys", "s3://me:word@bucket/x"), r"--copies: s3://\*\*\*@bucket/x: a user, a password"),
        (("keys", "file:///srv/copies"), "a pod has no such place"),
        (("keys", "copies"), "--copies: copies: no URL of an object store"),
        (("keys", URL, "minio.example:9000"), "--store-endpoint minio.example:9000: no server's"),
        (("keys", URL, "https://u:secret@minio"), r"--store-endpoint https://\*\*\*@minio: no"),
        (("keys", URL, "https://minio:0"), "no server's URL"),
        (("keys", URL, None, ("10.1.0.0/99",)), "--store-network 10.1.0.0/99: "),
    ],
)
def test_what_cannot_be_is_refused(given: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Store(*given)
    assert "word" not in str(refused.value).replace("a password", "")
    assert "u:secret" not in str(refused.value)


def test_the_command_says_which_secret_is_needed(tmp_path: Path) -> None:
    home = deployed()
    own = ("--kit", home / "kit", "--out", tmp_path / "out", "--name", "coordinator")
    with pytest.raises(ConfigError, match="--store-secret: pods find keys to a store in a Secret"):
        said(deploy, "kubernetes", home / "plan.toml", *own, "--copies", URL)
    more = ("--store-secret", "store-keys")
    with pytest.raises(ConfigError, match="nothing is at a store"):
        said(deploy, "kubernetes", home / "plan.toml", *own, *more)
    told = said(deploy, "kubernetes", home / "plan.toml", *own, *more, "--copies", URL)
    assert "note: servers need the Secret store-keys in secureps" in told
    text = (tmp_path / "out" / "servers" / "coordinator.yaml").read_text()
    assert settings_in(text, "coordinator.toml")["checkpoint_copies"] == URL


def test_memory_is_asked_for_what_is_on_its_way() -> None:
    def asked(cluster: Cluster, name: str) -> int:
        return asked_memory(written(cluster)["servers"][f"{name}.yaml"])

    without = replace(COPYING, store=None)
    assert asked(COPYING, "coordinator") - asked(without, "coordinator") == 64
    assert asked(COPYING, "shard-0") - asked(without, "shard-0") > 64 + 4, "a million values"


def test_a_first_model_at_a_store_needs_the_secret_where_servers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is read here, so its file is; what a pod would see is judged by its URL."""
    from secureps.run.deploy import kubernetes as stores

    save_file({"w": np.zeros(10, np.float32)}, tmp_path / "first.safetensors")
    plan = tmp_path / "plan.toml"
    url = f"file://{tmp_path}/first.safetensors"
    plan.write_text(f'initial = "{url}"\n{(deployed() / "plan.toml").read_text()}')
    kit = deployed() / "kit"

    def files(name: str, cluster: Any) -> dict[str, str]:
        asked = Request(plan, kit, (name,))
        return next(iter(kubernetes_files(asked, cluster).values()))

    with pytest.raises(ConfigError, match="name their Secret by --store-secret"):
        files("coordinator", CLUSTER)
    with pytest.raises(ConfigError, match=r"initial: file://.*: a pod has no such place"):
        files("coordinator", replace(CLUSTER, store=Store("keys")))
    monkeypatch.setattr(stores, "_OF_THIS_MACHINE", ())
    assert "holder-0.yaml" in files("holder-0", CLUSTER), "it reads no model"
    made = files("coordinator", replace(CLUSTER, store=Store("keys")))["coordinator.yaml"]
    (runs,) = parsed(made, "StatefulSet")
    (container,) = runs["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    (config,) = parsed(made, "ConfigMap")
    assert tomllib.loads(config["data"]["plan.toml"])["initial"] == url
    assert "checkpoint_copies" not in config["data"]["coordinator.toml"]
