"""What `secureps deploy kubernetes` writes: sound by the API's schemas, each with its own keys."""

import base64
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from secureps.config.sections import parse
from secureps.config.site_files import ServeSection
from secureps.errors import ConfigError, KitError
from secureps.policy.plan import Plan, load_plan
from secureps.run.cli import app, deploy
from secureps.run.deploy.deployment import kubernetes_files
from secureps.run.deploy.kubernetes import Cluster, alerts, manifests
from secureps.run.deploy.parties import Request, party_kits
from tests.kits.command import said
from tests.kits.nursery import ROOT
from tests.kits.party_kits import phrase
from tests.run.deploy.kits import PARTIES, deployed, parsed

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
    import numpy as np
    from safetensors.numpy import save_file

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
