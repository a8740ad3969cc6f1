"""What `secureps deploy` writes: sound by the API's schemas, and each with its own keys."""

import base64
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from secureps.config.sections import parse
from secureps.config.site_files import ServeSection
from secureps.crypto.identity import Role
from secureps.errors import ConfigError, KitError
from secureps.policy.plan import Plan, load_plan
from secureps.run.check import PROGRAM_BYTES, check
from secureps.run.cli import app, deploy
from secureps.run.deploy.deployment import kubernetes_files, notes, yaml_text
from secureps.run.deploy.kubernetes import _PREPARE, Cluster, alerts, manifests
from secureps.run.deploy.parties import Request, party_kits
from secureps.run.deploy.slurm import Batch
from secureps.store.issuing import create_kit, issue
from secureps.store.keyring import load_public
from tests.kits.command import said
from tests.kits.nursery import ROOT
from tests.kits.party_kits import phrase

PLAN = """
name = "trial"
versions = 3
shards = 2
[cipher]
name = "rlwe"
holders = 2
threshold = 2
capacity = 8
[[group]]
rule = { quorum = 4, minimum = 3 }
"""
PARTIES: dict[str, Role] = {
    "coordinator": "coordinator",
    "shard-0": "shard",
    "shard-1": "shard",
    "holder-0": "holder",
    "south-holder": "holder",
    "north.clinic_1": "client",
    "south": "client",
    "observer": "observer",
}


@cache
def deployed() -> Path:
    folder = Path(mkdtemp(prefix="secureps-deploy-"))
    (folder / "plan.toml").write_text(PLAN)
    (folder / "client.py").write_text("def make(settings):\n    ...\n")
    kit = folder / "kit"
    create_kit(kit, load_plan(folder / "plan.toml").cipher_parameters)
    for name, role in PARTIES.items():
        issue(kit, role, name)
    return folder


def parsed(text: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in a file of manifests."""
    return [each for each in yaml.safe_load_all(text) if each["kind"] == kind]


_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def _texts() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "string"}}


def _of(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = _object({"name": _NAME, "namespace": _NAME}, labels=_texts())
    api = {"const": "monitoring.coreos.com/v1"}
    return _object({"apiVersion": api, "kind": {"const": kind}, "metadata": metadata, "spec": spec})


_KEY = _object({"name": _NAME, "key": {"type": "string"}})
_CONFIG_MAP = _object({"configMap": _KEY})
_TLS = _object(
    {"ca": _CONFIG_MAP, "cert": _CONFIG_MAP, "keySecret": _KEY, "serverName": {"type": "string"}}
)
_ENDPOINT = _object(
    {"port": {"type": "string"}, "scheme": {"enum": ["http", "https"]}, "tlsConfig": _TLS},
    interval=_DURATION,
)
_RULE = _object(
    {"alert": {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"}, "expr": {"type": "string"}},
    labels=_texts(),
    annotations=_texts(),
    **{"for": _DURATION},
)

SCHEMAS = {
    "ServiceMonitor": _of(
        "ServiceMonitor",
        _object(
            {
                "selector": _object({"matchLabels": _texts()}),
                "endpoints": {"type": "array", "minItems": 1, "items": _ENDPOINT},
            }
        ),
    ),
    "PrometheusRule": _of(
        "PrometheusRule",
        _object(
            {
                "groups": {
                    "type": "array",
                    "items": _object(
                        {
                            "name": {"type": "string"},
                            "rules": {"type": "array", "minItems": 1, "items": _RULE},
                        }
                    ),
                }
            }
        ),
    ),
}


CLUSTER = Cluster("registry.example/secureps:1", "trial", "", "ps.example", "fast", "monitoring")


@cache
def written(cluster: Cluster = CLUSTER, names: tuple[str, ...] = ()) -> dict[str, dict[str, str]]:
    home = deployed()
    request = Request(
        home / "plan.toml",
        home / "kit",
        names,
        values=1_000_000,
        script=home / "client.py",
        settings=("partition={index}", "who={name}", "data=/srv/records/mine.npz"),
        budget=8.0,
    )
    own = replace(cluster, records="records", client_image="registry.example/client:1")
    return kubernetes_files(request, own)


def objects(folder: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, files in written().items():
        for text in files.values() if not folder or name == folder else ():
            for each in yaml.safe_load_all(text):
                yield name, each


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for _, each in objects() if each["kind"] == kind]


def pods() -> list[dict[str, Any]]:
    found = [*of_kind("StatefulSet"), *of_kind("Job")]
    return [each["spec"]["template"]["spec"] for each in found]


def asked_memory(text: str) -> int:
    """MiB that the StatefulSet of a file asks for."""
    (runs,) = parsed(text, "StatefulSet")
    resources = runs["spec"]["template"]["spec"]["containers"][0]["resources"]
    return int(resources["requests"]["memory"].removesuffix("Mi"))


def complaint(each: dict[str, Any]) -> str:
    """What the API would say of an object; empty if it is sound."""
    validator = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    try:
        if each.get("kind") in SCHEMAS:
            jsonschema.validate(each, SCHEMAS[each["kind"]])
        else:
            validator.validate(each, "1.31", strict=True)
    except (jsonschema.ValidationError, validator.ValidationError) as error:
        return str(error)
    return ""


def test_every_object_is_sound_by_the_apis_own_schemas() -> None:
    found = {f"{each['kind']} {each['metadata']['name']}": complaint(each) for _, each in objects()}
    assert found == dict.fromkeys(found, "")
    kinds = {name.split()[0] for name in found}
    assert kinds > {"StatefulSet", "Job", "Secret", "NetworkPolicy", *SCHEMAS}


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "NetworkPolicy", *SCHEMAS])
def test_the_schemas_find_what_is_wrong(kind: str) -> None:
    each = of_kind(kind)[0]
    assert complaint(each) == ""
    for wrong in ({"spec": each["spec"] | {"replicaz": 1}}, {"kindd": "x"}, {"spec": 1}):
        assert complaint(each | wrong)


def test_a_folder_for_the_aggregators_servers_one_for_each_site_and_one_for_each_other() -> None:
    assert sorted(written()) == ["holder-0", "north-clinic-1", "servers", "south"]
    site = {f"{each['kind']} {each['metadata']['name']}" for _, each in objects("south")}
    for name in ("south", "south-holder"):
        assert {f"Secret {name}-keys", f"NetworkPolicy {name}"} <= site
    assert {"Job south", "PersistentVolumeClaim south-data", "StatefulSet south-holder"} <= site
    (runs,) = [e for _, e in objects("south") if e["kind"] == "StatefulSet"]
    assert runs["spec"]["volumeClaimTemplates"], "its ledger is on a volume of its own"


def test_a_secret_has_one_partys_private_keys_and_nobody_elses_is_in_its_folder() -> None:
    kit = deployed() / "kit" / "private"
    theirs = {name: {f.name: f.read_bytes() for f in (kit / name).iterdir()} for name in PARTIES}
    serving = {"coordinator", "shard-0", "shard-1", "observer"}

    def home(party: str) -> str:
        own = re.sub("[._]", "-", party.removesuffix("-holder"))
        return "servers" if party in serving else own

    for folder, each in objects():
        party = (
            each["metadata"]["name"]
            .removesuffix("-keys")
            .replace("north-clinic-1", "north.clinic_1")
        )
        if each["kind"] == "Secret":
            own = {key: base64.b64decode(data) for key, data in each["data"].items()}
            wanted = theirs[party] if party != "observer" else {"tls.key": theirs[party]["tls.key"]}
            assert own == wanted
            assert folder == home(party)
    assert len(of_kind("Secret")) == len(PARTIES)
    for folder, files in written().items():
        text = "".join(files.values())
        for name, keys in theirs.items():
            for key in (data for file, data in keys.items() if file.endswith(".key")):
                found = base64.b64encode(key).decode() in text or key.hex() in text
                assert not found or folder == home(name), (folder, name)
    secrets = [
        text for files in written().values() for name, text in files.items() if "keys" not in name
    ]
    assert not any("PRIVATE KEY" in text for text in secrets)


def test_the_public_part_is_the_kits_file_by_file() -> None:
    maps = {each["metadata"]["name"]: each for each in of_kind("ConfigMap")}
    public = deployed() / "kit" / "public"

    def files(name: str) -> dict[str, bytes]:
        each = maps[name]
        encoded = {k: base64.b64decode(v) for k, v in each.get("binaryData", {}).items()}
        return encoded | {k: v.encode() for k, v in each.get("data", {}).items()}

    for party in ("coordinator", "holder-0", "south"):
        assert files(f"{party}-public") == {
            f: (public / f).read_bytes() for f in ("ca.pub", "roster.json")
        }
        assert files(f"{party}-tls") == {
            f"{n}.pem": (public / "tls" / f"{n}.pem").read_bytes() for n in ("ca", party)
        }
        assert files(f"{party}-holders") == {
            f.name: f.read_bytes() for f in (public / "holders").iterdir()
        }


def test_pods_write_where_their_data_are_and_nowhere_else() -> None:
    for spec in pods():
        for container in (*spec["initContainers"], *spec["containers"]):
            writable = {m["name"] for m in container["volumeMounts"] if not m.get("readOnly")}
            assert writable == {"data", "tmp"}
        assert "keys" not in {m["name"] for m in spec["containers"][0]["volumeMounts"]}


def test_every_command_is_one_of_ours_and_every_file_that_it_names_is_mounted() -> None:
    for spec in pods():
        (container,) = spec["containers"]
        probed = [p["exec"]["command"] for key, p in container.items() if key.endswith("Probe")]
        main = container["command"]
        main = main[main.index("secureps") :]
        for words in (main, *probed):
            app.commands[words[1]].make_context(words[1], words[2:])
        given = {v["name"]: v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
        (config,) = (
            each for each in of_kind("ConfigMap") if each["metadata"]["name"] == given["config"]
        )
        files = [word for word in main if word.startswith("/srv/config/")]
        assert len(files) == 1
        assert {word.removeprefix("/srv/config/") for word in files} <= set(config["data"])


def test_servers_files_are_ones_and_say_who_dials_whom() -> None:
    found = {}
    for each in of_kind("ConfigMap"):
        for name, text in each.get("data", {}).items():
            if name.endswith(".toml") and name != "plan.toml":
                section = parse(ServeSection, tomllib.loads(text), name)
                found[section.name] = section
                assert name == f"{section.name}.toml"
    assert found["coordinator"].plan == "/srv/config/plan.toml"
    assert found["shard-1"].advertise == "shard-1.ps.example:7600"
    assert found["shard-1"].coordinator == "coordinator.trial.svc:7600"
    assert found["holder-0"].coordinator == "coordinator.ps.example:7600"
    assert (found["holder-0"].minimum, found["holder-0"].threshold) == (3, 2)
    assert found["holder-0"].metrics == "127.0.0.1:7700"
    assert found["shard-0"].metrics == "0.0.0.0:7700"
    assert {each.state for each in found.values()} == {"/srv/data/runs/trial/state"}


def test_each_client_joins_as_itself_with_its_own_settings() -> None:
    joins = {}
    for each in of_kind("Job"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        joins[each["metadata"]["name"]] = container["command"][4:]
        assert container["image"] == "registry.example/client:1"
    north, south = joins["north-clinic-1"], joins["south"]
    assert north[north.index("--name") + 1] == "north.clinic_1"
    assert [w for w in north if w.startswith("--set")] == [
        "--set=partition=0",
        "--set=who=north.clinic_1",
        "--set=data=/srv/records/mine.npz",
    ]
    assert "--set=partition=1" in south
    assert "--budget=8" in south


def test_memory_and_disk_are_what_check_says() -> None:
    from secureps.run.check import PROGRAM_BYTES, check

    need = check(deployed() / "plan.toml", 1_000_000).shard
    assert need is not None
    (shard,) = [e for e in of_kind("StatefulSet") if e["metadata"]["name"] == "shard-0"]
    resources = shard["spec"]["template"]["spec"]["containers"][0]["resources"]
    asked = int(resources["requests"]["memory"].removesuffix("Mi")) << 20
    assert need.memory + PROGRAM_BYTES <= asked < need.memory + PROGRAM_BYTES + (1 << 20)
    assert int(resources["limits"]["memory"].removesuffix("Mi")) << 20 >= asked * 1.4
    limited = [
        e["metadata"]["name"] for e in of_kind("StatefulSet") + of_kind("Job") if "limits" in str(e)
    ]
    assert limited == ["shard-0", "shard-1"], "what training takes, and many clients, nobody knows"
    (claim,) = shard["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert (
        int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) << 30 > need.disk
    )


def test_alerts_are_on_metrics_that_there_are() -> None:
    text = (ROOT / "secureps/service/metrics.py").read_text()
    text += (ROOT / "secureps/run/serve.py").read_text()
    known = set(re.findall(r'"(secureps_\w+)"', text))
    known |= {f"{name}_total" for name in re.findall(r'counter\(\s*"(secureps_\w+)"', text)}
    records = (ROOT / "secureps/messages/coordinator_records.py").read_text()
    plan = load_plan(ROOT / "policies" / "digits.toml")
    rules = list(alerts(plan))
    for rule in rules:
        expression = str(rule["expr"])
        used = set(re.findall(r"secureps_\w+", expression))
        assert used
        assert used <= known, rule["alert"]
        for kind in re.findall(r'kind="(\w+)"', expression):
            assert f"class {kind}" in records
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert "SecurepsBudgetNearlySpent" in {rule["alert"] for rule in rules}
    (written_rule,) = of_kind("PrometheusRule")
    assert len(written_rule["spec"]["groups"][0]["rules"]) == len(
        list(alerts(load_plan(deployed() / "plan.toml")))
    )


def test_somebody_is_woken_once_too_few_holders_are_there() -> None:
    plan = load_plan(deployed() / "plan.toml")
    for holders, threshold, spare in ((2, 2, 0), (5, 3, 2)):
        own = {"holders": holders, "threshold": threshold}
        cipher = plan.section.cipher.model_copy(update=own)
        section = plan.section.model_copy(update={"cipher": cipher})
        rules = {each["alert"]: each for each in alerts(Plan(section))}
        away = 'secureps_servers_away{role="holder"} > '
        assert rules["SecurepsHoldersAway"]["expr"] == f"{away}{spare}"
        assert ("SecurepsHolderAway" in rules) == (spare > 0)


def test_prometheus_finds_what_it_needs() -> None:
    services = {e["metadata"]["name"]: e for e in of_kind("Service")}
    maps = {e["metadata"]["name"]: e for e in of_kind("ConfigMap")}
    secrets = {e["metadata"]["name"]: e for e in of_kind("Secret")}
    monitors = of_kind("ServiceMonitor")
    assert {m["metadata"]["name"] for m in monitors} == {"coordinator", "shard-0", "shard-1"}
    for each in monitors:
        (endpoint,) = each["spec"]["endpoints"]
        own = services[each["metadata"]["name"]]
        assert each["spec"]["selector"]["matchLabels"].items() <= own["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in own["spec"]["ports"]}
        tls = endpoint["tlsConfig"]
        for part in ("ca", "cert"):
            key = tls[part]["configMap"]
            assert key["key"] in maps[key["name"]]["data"]
        assert tls["keySecret"]["key"] in secrets[tls["keySecret"]["name"]]["data"]
        assert tls["serverName"] == f"{each['metadata']['name']}.secureps"


def test_services_and_policies_find_one_pod_each() -> None:
    templates = {
        e["metadata"]["name"]: e["spec"]["template"]
        for e in (*of_kind("StatefulSet"), *of_kind("Job"))
    }
    for each in (*of_kind("Service"), *of_kind("NetworkPolicy")):
        spec = each["spec"]
        wanted = (
            spec["selector"] if each["kind"] == "Service" else spec["podSelector"]["matchLabels"]
        )
        found = [
            n for n, t in templates.items() if wanted.items() <= t["metadata"]["labels"].items()
        ]
        assert found == [each["metadata"]["name"].removesuffix("-outside")]
        if each["kind"] == "Service":
            ports = {p["name"] for p in templates[found[0]]["spec"]["containers"][0]["ports"]}
            assert {p["targetPort"] for p in spec["ports"]} <= ports
            assert spec["publishNotReadyAddresses"] is True
    outside = {e["metadata"]["name"]: e for e in of_kind("Service") if e["spec"].get("type")}
    assert sorted(outside) == ["coordinator-outside", "shard-0-outside", "shard-1-outside"]
    assert all([p["name"] for p in e["spec"]["ports"]] == ["grpc"] for e in outside.values())


def test_nobody_dials_a_key_holder_or_a_client() -> None:
    ingress = {e["metadata"]["name"]: e["spec"]["ingress"] for e in of_kind("NetworkPolicy")}
    assert sorted(ingress) == sorted(re.sub("[._]", "-", n) for n in PARTIES if n != "observer")
    assert [n for n, rules in ingress.items() if rules] == ["coordinator", "shard-0", "shard-1"]


def test_the_coordinator_dials_nobody_and_a_shard_the_coordinator_and_other_shards() -> None:
    egress = {e["metadata"]["name"]: e["spec"]["egress"] for e in of_kind("NetworkPolicy")}
    assert egress["coordinator"] == []
    names, calls = egress["shard-0"]
    assert {port["port"] for port in names["ports"]} == {53}
    to = [each["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] for each in calls["to"]]
    assert to == ["coordinator", "shard-1"]
    assert [port["port"] for port in calls["ports"]] == [7600]


def test_metrics_are_read_from_the_namespace_of_prometheus_alone() -> None:
    for each in of_kind("NetworkPolicy"):
        for rule in each["spec"]["ingress"]:
            if [port["port"] for port in rule["ports"]] == [7700]:
                (of,) = rule["from"]
                labels = of["namespaceSelector"]["matchLabels"]
                assert labels == {"kubernetes.io/metadata.name": "monitoring"}


def test_keys_are_their_pods_alone() -> None:
    for spec in pods():
        (keys,) = [each["secret"] for each in spec["volumes"] if each["name"] == "keys"]
        assert keys["defaultMode"] == 0o400


def test_a_key_under_a_passphrase_stays_where_somebody_types_it(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    shutil.copytree(deployed() / "kit", kit)
    key = kit / "private" / "south" / "identity.key"
    key.write_bytes(phrase("a long passphrase").lock(key.read_bytes()))
    with pytest.raises(ConfigError, match=r"identity\.key is under a passphrase, and in a cluster"):
        party_kits(kit, load_plan(deployed() / "plan.toml"), ("south",))


def test_without_an_observer_metrics_stay_in_the_pod() -> None:
    files = written(names=("coordinator", "shard-0"))
    text = "".join(files["servers"].values())
    assert list(files) == ["servers"]
    assert "ServiceMonitor" not in text
    assert '"0.0.0.0:7700"' not in text.replace("'", '"')


def test_in_one_cluster_nothing_is_open_to_others() -> None:
    text = "".join(written(Cluster("i", "one", "1Gi"))["servers"].values())
    assert "LoadBalancer" not in text
    assert "shard-0.one.svc:7600" in text


def test_the_command_writes_folders_of_its_owner_and_says_what_to_do(tmp_path: Path) -> None:
    home, out = deployed(), tmp_path / "out"
    options = ("--kit", home / "kit", "--out", out, "--domain", "ps.example", "--name", "holder-0")
    told = said(deploy, "kubernetes", home / "plan.toml", *options)
    assert f"kubectl apply -f {out}/holder-0" in told
    assert "note: nothing is known of the model's size" in told
    assert out.joinpath("holder-0").stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in (out / "holder-0").iterdir()} == {0o600}
    said(deploy, "kubernetes", home / "plan.toml", *options)
    (out / "holder-0" / "other.yaml").touch()
    with pytest.raises(ConfigError, match=r"has other\.yaml, which is no part of this"):
        said(deploy, "kubernetes", home / "plan.toml", *options)


def test_a_standby_without_a_timer_is_said(tmp_path: Path) -> None:
    home, note = deployed(), "note: the plan has no take_over_after"
    own = ("--kit", home / "kit", "--out", tmp_path / "out", "--name", "coordinator")
    assert note not in said(deploy, "kubernetes", home / "plan.toml", *own)
    assert note in said(deploy, "kubernetes", home / "plan.toml", *own, "--standby")
    timed = tmp_path / "plan.toml"
    timed.write_text(f"take_over_after = 60\n{(home / 'plan.toml').read_text()}")
    assert note not in said(deploy, "kubernetes", timed, *own, "--standby")


def test_a_cluster_fills_nothing_into_a_clients_words() -> None:
    """Kubernetes reads $(NAME) in a command, and $$ as one sign."""
    files = kubernetes_files(
        request(script=deployed() / "client.py", settings=("a=$(HOME) $$ $5 $$(B)",)), CLUSTER
    )
    (job,) = parsed(files["south"]["south.yaml"], "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "--set=a=$$(HOME) $$$$ $5 $$$$(B)" in container["command"]
    (prepare,) = job["spec"]["template"]["spec"]["initContainers"]
    assert "$$" not in prepare["command"][2]


def test_no_party_is_in_the_servers_folder() -> None:
    made = request(names=("south",))
    made.__dict__["kits"] = [replace(each, name="servers") for each in made.kits]
    with pytest.raises(ConfigError, match="servers is what the servers' folder is called"):
        manifests(made, {}, {}, CLUSTER)


def request(**given: Any) -> Request:
    home = deployed()
    return Request(**({"plan": home / "plan.toml", "kit": home / "kit"} | given))


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        ({"names": ("east",)}, KitError, "has no private keys of east"),
        ({"script": ROOT / "clients"}, ConfigError, "a script of one file travels with its party"),
        ({"settings": ("x",)}, ConfigError, "expected KEY=VALUE"),
    ],
)
def test_what_cannot_be_deployed_is_refused(
    given: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        kubernetes_files(request(**given), CLUSTER)


def test_a_first_model_travels_with_the_plan_if_it_is_small(tmp_path: Path) -> None:

    text = (deployed() / "plan.toml").read_text()
    for values, folder, reason in (
        (10, "", ""),
        (300_000, "", "bytes, and a ConfigMap holds"),
        (10, "sub/", "put it there"),
    ):
        plan = tmp_path / "plan.toml"
        (tmp_path / "sub").mkdir(exist_ok=True)
        plan.write_text(f'initial = "{folder}first.safetensors"\n{text}')
        save_file({"w": np.zeros(values, np.float32)}, tmp_path / folder / "first.safetensors")
        asked = request(plan=plan, names=("coordinator",))
        if reason:
            with pytest.raises(ConfigError, match=reason):
                kubernetes_files(asked, CLUSTER)
            continue
        files = kubernetes_files(asked, CLUSTER)["servers"]
        (config,) = parsed(files["coordinator.yaml"], "ConfigMap")
        first = base64.b64decode(config["binaryData"]["first.safetensors"])
        assert first == (tmp_path / "first.safetensors").read_bytes()
        assert config["data"]["plan.toml"] == plan.read_text()


def test_no_key_is_in_a_text_about_a_party() -> None:
    from secureps.run.deploy.parties import PartyKit, party_kits

    home = deployed()
    (kit,) = party_kits(home / "kit", load_plan(home / "plan.toml"), ("south",))
    assert "private" not in repr(kit)
    assert {f.name for f in fields(PartyKit) if not f.repr} == {"private", "public"}


def test_a_standby_has_the_coordinators_keys_and_a_place_of_its_own() -> None:
    files = written(replace(CLUSTER, standby=True))
    made = files["servers"]["standby.yaml"]
    (runs,) = parsed(made, "StatefulSet")
    assert runs["metadata"]["name"] == "standby"
    command = runs["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--standby" in command
    keys = [
        yaml.safe_load(files["servers"][f"{name}-keys.yaml"]) for name in ("standby", "coordinator")
    ]
    assert keys[0]["data"] == keys[1]["data"]
    own = settings_in(files["servers"]["standby.yaml"], "coordinator.toml")
    assert own["coordinator"] == "coordinator.trial.svc:7600"
    assert settings_in(files["servers"]["coordinator.yaml"], "coordinator.toml")["standby"] == (
        "standby.trial.svc:7600"
    )
    inside = "coordinator.trial.svc:7600,standby.trial.svc:7600"
    assert settings_in(files["servers"]["shard-0.yaml"], "shard-0.toml")["coordinator"] == inside
    outside = "coordinator.ps.example:7600,standby.ps.example:7600"
    assert (
        settings_in(files["holder-0"]["holder-0.yaml"], "holder-0.toml")["coordinator"] == outside
    )
    assert outside in files["south"]["south.yaml"]
    (policy,) = parsed(made, "NetworkPolicy")
    assert policy["spec"]["egress"][1]["to"] == [
        {
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "secureps",
                    "app.kubernetes.io/instance": "coordinator",
                }
            }
        }
    ]


def settings_in(text: str, file: str) -> dict[str, Any]:
    """A server's file, as its ConfigMap has it."""
    maps = (each.get("data", {}) for each in parsed(text, "ConfigMap"))
    (found,) = (data[file] for data in maps if file in data)
    return tomllib.loads(found)


# --- what of a kit and a site goes along ------------------------------------------


def test_what_a_site_allows_goes_with_its_parties_and_the_kits_ca_is_pinned(tmp_path: Path) -> None:
    site, pinned = tmp_path / "own.toml", load_public(deployed() / "kit").ca.fingerprint
    site.write_text('minimum = 4\nledger = "/srv/data/ledger.db"\n')
    home = deployed()
    request = Request(
        home / "plan.toml", home / "kit", script=home / "client.py", site=site, threshold=3
    )
    found = kubernetes_files(request, CLUSTER)
    texts = {name: "".join(files.values()) for name, files in found.items()}
    for role in ("south", "north-clinic-1"):
        maps = [each for each in yaml.safe_load_all(texts[role]) if each and "data" in each]
        assert any(each["data"].get("site.toml") == site.read_text() for each in maps)
        for word in ("--site=/srv/config/site.toml", "--threshold=3", f"--ca-fingerprint={pinned}"):
            assert word in texts[role]
    for server in ("servers", "holder-0"):
        assert f'ca_fingerprint = "{pinned}"' in texts[server]
    made = settings_in(found["south"]["south-holder.yaml"], "south-holder.toml")
    assert (made["minimum"], made["threshold"]) == (4, 3)
    site.write_text('ledger = "ledger.db"\n')
    with pytest.raises(ConfigError, match="in a cluster nothing is written"):
        kubernetes_files(request, CLUSTER)


def test_a_shard_gets_what_it_needs_with_the_fewest_shards_that_the_load_may_leave(
    tmp_path: Path,
) -> None:
    home, scaled = deployed(), tmp_path / "plan.toml"
    scaling = 'block_size = 65536\n[scaling]\npolicy = "rule"\nleast_shards = 1\n[cipher]'
    scaled.write_text((home / "plan.toml").read_text().replace("[cipher]", scaling))
    need = check(scaled, 1_000_000).shard
    assert need is not None
    assert need.shards == 1
    found = kubernetes_files(Request(scaled, home / "kit", ("shard-0",), values=1_000_000), CLUSTER)
    asked = asked_memory(found["servers"]["shard-0.yaml"]) << 20
    assert 0 <= asked - need.memory - PROGRAM_BYTES < 1 << 20


def test_a_shard_with_a_limit_gets_room_for_pages_of_its_files(tmp_path: Path) -> None:
    """A container counts what the system keeps of files: without room, each pull reads the disk."""
    home, asked = deployed(), {}
    for memory in ("50 MB", "100 MB", "900 MB", "1 GB"):
        own = f'[federation]\nscript = "client.py"\nclients = 5\nmemory = "{memory}"\n'
        (tmp_path / "plan.toml").write_text((home / "plan.toml").read_text() + own)
        request = Request(tmp_path / "plan.toml", home / "kit", ("shard-0",), values=10**8)
        parts = kubernetes_files(request, CLUSTER)["servers"]
        asked[memory] = asked_memory(parts["shard-0.yaml"])
    assert asked["100 MB"] - asked["50 MB"] in (47, 48)
    assert asked["100 MB"] < asked["900 MB"] == asked["1 GB"], "no more than a version has"


def test_a_file_of_this_machine_is_in_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "south.csv").touch()
    home, settings = deployed(), ("data={name}.csv", "of=/srv/records/a.csv")
    request = Request(
        home / "plan.toml", home / "kit", script=home / "client.py", settings=settings
    )
    told = [line for line in notes(request, shared=False) if "--set" in line]
    assert told == [
        "--set data={name}.csv is a path on this machine, whose files no pod has: records come "
        "from a volume (--records)"
    ]
    (tmp_path / "south.csv").unlink()
    assert not [line for line in notes(request, shared=False) if "--set" in line]


texts = st.text(st.characters(codec="utf-8").filter(lambda c: c.isprintable() or c in "\n\t"))
scalars = texts | st.integers(-(1 << 53), 1 << 53) | st.booleans()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(st.lists(values, min_size=1, max_size=3))
def test_a_parser_reads_what_was_written(documents: list[object]) -> None:
    assert list(yaml.safe_load_all(yaml_text(documents))) == documents


def test_a_text_of_several_lines_stands_as_it_is() -> None:
    script = "set -e\n\n  indented $x\nlast\n"
    assert yaml_text([{"run": ["sh", "-c", script]}]) == (
        "---\nrun:\n- sh\n- -c\n- |\n  set -e\n\n    indented $x\n  last\n"
    )


def test_words_that_are_something_else_to_a_parser_stay_words() -> None:
    words = ["y", "No", "ON", "true", "null", "1e3", "0o7", "1_000", "0x1", "2026-11-24", "~", ""]
    others = [
        "a: b",
        "a #b",
        "-",
        ".inf",
        "=",
        "<<",
        "1:30",
        "+.5",
        "name",
        "app.kubernetes.io/name",
    ]
    value = {word: [word] for word in (*words, *others)}
    text = yaml_text([value])
    assert yaml.safe_load(text) == value
    assert all(f'- "{word}"\n' in text for word in words), "1.2 readers know other words than 1.1"
    assert "- name\n" in text


def test_what_is_there_twice_is_written_twice() -> None:
    same = {"cpu": "1"}
    assert yaml_text([{"limits": same, "requests": same}]).count('cpu: "1"') == 2


HOLDER = "holder-0"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return Path(shutil.copytree(deployed() / "kit", tmp_path / "kit"))


def test_what_a_link_leads_to_does_not_travel(kit: Path, tmp_path: Path) -> None:
    (tmp_path / "other.key").write_bytes(b"of somebody else")
    (tmp_path / "other.key").chmod(0o600)
    (kit / "private" / HOLDER / "other.key").symlink_to(tmp_path / "other.key")
    (found,) = party_kits(kit, load_plan(deployed() / "plan.toml"), (HOLDER,))
    assert "other.key" not in found.private
    assert "identity.key" in found.private


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604])
def test_no_key_travels_that_others_may_read(kit: Path, mode: int) -> None:
    own = kit / "private" / HOLDER
    names = {path.name for path in own.iterdir()}
    for name in names:
        (own / name).chmod(mode)
        with pytest.raises(KitError, match=f"{name}.*chmod 600"):
            party_kits(kit, load_plan(deployed() / "plan.toml"), (HOLDER,))
        (own / name).chmod(0o600)


def test_a_key_that_was_erased_does_not_come_back(tmp_path: Path) -> None:
    """A pod that starts again takes nothing from its Secret, unless that is of new keys."""
    places = {name: tmp_path / name for name in ("data", "keys", "public", "holders", "tls")}
    places["own"] = tmp_path / "data" / "kit" / "private" / HOLDER
    for path in places.values():
        path.mkdir(parents=True, exist_ok=True)

    def prepared() -> dict[str, str]:
        given = "".join(f"{name}={path}\n" for name, path in places.items())
        script = f"secureps() {{ :; }}\nrun=trial\n{given}{_PREPARE}"
        subprocess.run(["sh", "-c", script], check=True)
        return {path.name: path.read_text() for path in places["own"].iterdir()}

    (places["keys"] / "identity.key").write_text("me")
    (places["keys"] / "envelope.key").write_text("once")
    assert prepared() == {"identity.key": "me", "envelope.key": "once"}
    (places["own"] / "envelope.key").unlink()
    assert prepared() == {"identity.key": "me"}
    (places["keys"] / "identity.key").write_text("me anew")
    assert prepared() == {"identity.key": "me anew", "envelope.key": "once"}
    assert {path.stat().st_mode & 0o777 for path in places["own"].iterdir()} == {0o600}


# --- Slurm ------------------------------------------------------------------------


def write_batch(out: Path, *more: str) -> str:
    home = deployed()
    options = ["--kit", home / "kit", "--out", out, "--script", home / "client.py"]
    return said(deploy, "slurm", home / "plan.toml", *map(str, options), *more)


def directives(text: str) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE)
    assert len(found) == len(dict(found)), "an option is given twice"
    return dict(found)


def test_a_job_for_the_aggregator_and_one_for_each_other_party(tmp_path: Path) -> None:
    told = write_batch(tmp_path / "run", "--sbatch=--partition=low", "--set", "partition={index}")
    jobs = {path.stem: path.read_text() for path in (tmp_path / "run").glob("*.sbatch")}
    wanted = {"holder-0", "south-holder", "north.clinic_1", "south"}
    assert set(jobs) == wanted | {"aggregator"}
    assert set(re.findall(r"^sbatch (\S+)$", told, re.MULTILINE)) == {
        str(tmp_path / "run" / f"{name}.sbatch") for name in jobs
    }
    for name, text in jobs.items():
        asked = directives(text)
        assert text.startswith("#!/bin/bash\n#SBATCH ")
        assert asked["partition"] == "low"
        assert asked["output"] == f"{tmp_path}/run/logs/{name}.log"
        assert (tmp_path / "run" / "logs").is_dir()
        if bash := shutil.which("bash"):
            assert subprocess.run([bash, "-n"], input=text, text=True, check=False).returncode == 0
    assert directives(jobs["aggregator"])["cpus-per-task"] == "3"
    assert "--set=partition=1" in jobs["south"]
    assert (
        f"--name south --kit {deployed() / 'kit'} --state {tmp_path}/run/state/south "
        in jobs["south"]
    )


def test_servers_files_are_ones(tmp_path: Path) -> None:
    write_batch(tmp_path / "run", "--port", "7100")
    found = {}
    for path in (tmp_path / "run" / "config").iterdir():
        section = parse(ServeSection, tomllib.loads(path.read_text()), path.name)
        found[section.name] = section
    assert found["coordinator"].listen == "0.0.0.0:7100"
    assert (found["shard-0"].listen, found["shard-1"].listen) == ("0.0.0.0:7101", "0.0.0.0:7102")
    assert found["shard-1"].coordinator == "127.0.0.1:7100"
    assert found["shard-1"].advertise == "@HOST@:7102"
    assert found["holder-0"].coordinator == "@COORDINATOR@"
    assert (found["holder-0"].minimum, found["holder-0"].threshold) == (3, 2)
    assert len({each.state for each in found.values()}) == len(found)


def test_what_is_written_pins_the_kits_ca_and_takes_what_a_site_allows(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("minimum = 4\n")
    url = "memory://bucket/run/checkpoints"
    more = ("--threshold", "3", "--site", str(site), "--copies", url)
    write_batch(tmp_path / "run", *more)
    pinned = load_public(deployed() / "kit").ca.fingerprint
    for path in (tmp_path / "run" / "config").iterdir():
        section = parse(ServeSection, tomllib.loads(path.read_text()), path.name)
        assert section.ca_fingerprint == pinned
        limits = (section.checkpoint_copies, section.minimum, section.threshold)
        assert limits == ((None, 4, 3) if "holder" in section.name else (url, 5, None))
    job = (tmp_path / "run" / "south.sbatch").read_text()
    assert f" --threshold=3 --site={site} --ca-fingerprint={pinned} --server " in job
    with pytest.raises(ConfigError, match="--copies: bucket: no URL"):
        write_batch(tmp_path / "again", "--copies", "bucket")
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):  # also if no client is deployed
        write_batch(tmp_path / "again", "--set", "x", "--name", "holder-0")
    site.write_text("minimun = 3\n")
    with pytest.raises(ConfigError, match="did you mean minimum"):
        write_batch(tmp_path / "again", "--site", str(site))


def test_shards_go_with_their_coordinator(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shard-0 runs in the coordinator's job"):
        write_batch(tmp_path / "run", "--name", "shard-0")


@pytest.mark.parametrize(
    ("out", "more", "reason"),
    [
        ("a run", (), "sbatch takes no such path for a log"),
        ("run\nreboot", (), "sbatch takes no such path for a log"),
        ("run-%j", (), "sbatch takes no such path for a log"),
        ("run", ("--sbatch=--partition=low\nreboot",), "is no option in one line"),
        ("run", ("--sbatch=partition=low",), "is no option in one line"),
        ("run", ("--time=1:00:00\nreboot",), "is no time of sbatch's"),
    ],
)
def test_what_sbatch_would_read_as_something_else_is_refused(
    tmp_path: Path, out: str, more: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        write_batch(tmp_path / out, *more)
    assert not (tmp_path / out).exists()


def test_words_of_a_client_are_words_to_bash(tmp_path: Path) -> None:
    odd = "a 'b\" $(touch bad) `x` ; {name}\nnext"
    write_batch(tmp_path / "run", f"--set=who={odd}")
    text = (tmp_path / "run" / "south.sbatch").read_text()
    begin = text.partition("server=$(cat coordinator.address)\n")[2].partition(" & parties=")[0]
    fake = f'secureps() {{ printf "%s\\0" "$@"; }}; server=here\n{begin}'
    words = subprocess.run(["bash", "-c", fake], capture_output=True, text=True, check=True).stdout
    assert f"--set=who={odd.replace('{name}', 'south')}" in words.split("\0")


def test_a_file_that_a_setting_names_is_found_from_a_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "south.csv").write_text("1\n")
    given = ("data=data/{name}.csv", "split=3", "kind=small", "url=s3://b/c.csv", "more=no.npz")
    told = write_batch(tmp_path / "run", *(f"--set={each}" for each in given))
    job = (tmp_path / "run" / "south.sbatch").read_text()
    whole = f"data={tmp_path}/data/south.csv"
    assert re.findall(r"--set=(\S+)", job) == [whole, *given[1:]]
    (note,) = [line for line in told.splitlines() if "--set" in line]
    assert note == (
        f"note: --set {given[0]} is a path from here: jobs have data={tmp_path}/data/{{name}}.csv; "
        "nothing is there for north.clinic_1"
    )


def test_no_party_takes_the_place_of_the_servers() -> None:
    request = Request(deployed() / "plan.toml", deployed() / "kit")
    batch = Batch(request, Path("/shared"), "1:00:00", {"coordinator": 1}, (), 7600, None)
    kits = {kit.name: kit for kit in request.kits}

    def jobs(**named: str) -> dict[str, str]:
        own = replace(request)
        own.__dict__["kits"] = [replace(kits[like], name=name) for name, like in named.items()]
        return replace(batch, request=own).files()[""]

    with pytest.raises(ConfigError, match="aggregator is what the servers' job is called"):
        jobs(aggregator="south")
    made = jobs(**{"coordinator": "coordinator", "coordinator-2": "shard-0"})["aggregator.sbatch"]
    chosen = made.partition("case $file in ")[2].partition(" esac")[0]
    for name, role in (("coordinator", "coordinator"), ("coordinator-2", "shard")):
        script = f"file={name}.toml; case $file in {chosen} esac; echo $role"
        said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert said.stdout == f"{role}\n"


def test_without_a_script_there_are_no_clients(tmp_path: Path) -> None:
    home = deployed()
    told = said(deploy, "slurm", home / "plan.toml", "--kit", home / "kit", "--out", tmp_path / "r")
    assert "note: clients are left out: name what they run by --script" in told
    assert not (tmp_path / "r" / "south.sbatch").exists()


def test_a_site_alone_is_told_where_to_say_who_coordinates(tmp_path: Path) -> None:
    note = "the coordinator runs elsewhere: jobs wait for its HOST:PORT in"
    assert note not in write_batch(tmp_path / "all")
    told = write_batch(tmp_path / "run", "--name", "south")
    assert f"note: {note} {tmp_path}/run/coordinator.address" in told.replace("\n", " ")
    batch = (tmp_path / "run" / "south.sbatch").read_text()
    assert 'echo "waits for $PWD/coordinator.address' in batch
