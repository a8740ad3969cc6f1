"""A standby on Kubernetes: a pod that is the coordinator, elsewhere."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import yaml

from tests.run.deploy.test_kubernetes import CLUSTER, written


def test_a_standby_has_the_coordinators_keys_and_a_place_of_its_own() -> None:
    files = written(replace(CLUSTER, standby=True))
    made = list(yaml.safe_load_all(files["servers"]["standby.yaml"]))
    (runs,) = (each for each in made if each["kind"] == "StatefulSet")
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
    (policy,) = (each for each in made if each["kind"] == "NetworkPolicy")
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
    maps = (each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap")
    (found,) = (each["data"][file] for each in maps if file in each.get("data", {}))
    return tomllib.loads(found)
