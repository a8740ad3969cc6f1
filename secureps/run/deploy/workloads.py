"""What keeps pods running: StatefulSets of servers and key holders, Jobs of clients.

Each party has a StatefulSet of its own, of one pod, so that each has its own Secret: pods of one
template would share one.

References: Kubernetes API apps/v1, batch/v1, policy/v1.
"""

from __future__ import annotations

from collections.abc import Mapping

from secureps.errors import MISCONFIGURED
from secureps.run.deploy.pods import CONFIG, Manifest, Pod, claim, template

TERMINATED = 143
"""The exit status of a client's pod that was told to end before the run was over."""

_UNTIL_OVER = f"""\
"$@" & party=$!
trap 'kill -TERM $party; wait $party; exit {TERMINATED}' TERM
wait $party
"""
"""Ends as the client does, but for one that a signal ended: its run is not over."""

RETRIES = 100
"""Failures of a client after which its Job is given up; evictions count for nothing."""


def labels(name: str, component: str) -> dict[str, str]:
    """Of all that belongs to a party; `component` is its role."""
    own = "app.kubernetes.io"
    return {f"{own}/name": "secureps", f"{own}/component": component, f"{own}/instance": name}


def selector(name: str) -> dict[str, str]:
    """The labels by which a party's pod is found."""
    own = "app.kubernetes.io"
    return {f"{own}/name": "secureps", f"{own}/instance": name}


def probes(file: str) -> Manifest:
    """Those of a server: kubelet's own gRPC probes show no certificate, so the server is asked by
    a command in its pod.

    Args:
        file: of the server's configuration, in CONFIG.
    """
    alive = ["secureps", "health", f"{CONFIG}/{file}", "--alive"]
    ready = {"exec": {"command": alive[:-1]}}
    return {
        "startupProbe": {"exec": {"command": alive}, "periodSeconds": 10, "failureThreshold": 90}
        | {"timeoutSeconds": 15},
        "livenessProbe": {"exec": {"command": alive}, "periodSeconds": 60, "failureThreshold": 5}
        | {"timeoutSeconds": 30},
        "readinessProbe": ready | {"periodSeconds": 20, "timeoutSeconds": 15},
    }


def stateful_set(pod: Pod, storage: str, storage_class: str | None) -> Manifest:
    """One pod that comes back with its volume, under its own name."""
    own = labels(pod.name, pod.kit.role)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": pod.name, "labels": own},
        "spec": {
            "serviceName": pod.name,
            "replicas": 1,
            "selector": {"matchLabels": selector(pod.name)},
            "template": template(pod, own),
            "volumeClaimTemplates": [claim("data", storage, storage_class)],
        },
    }


def job(pod: Pod, storage: str, storage_class: str | None) -> list[Manifest]:
    """A client's Job, and what it claims: the pod is made anew until the client's run is over.

    A client that no restart mends fails the Job at once.
    """
    own = labels(pod.name, pod.kit.role)
    volume: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    volume |= claim(f"{pod.name}-data", storage, storage_class)

    def on(action: str, status: int) -> Manifest:
        codes: Mapping[str, object] = {
            "containerName": pod.kit.role,
            "operator": "In",
            "values": [status],
        }
        return {"action": action, "onExitCodes": dict(codes)}

    evicted: Manifest = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return [
        volume,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": pod.name, "labels": own},
            "spec": {
                "backoffLimit": RETRIES,
                "podReplacementPolicy": "Failed",  # never two on one state
                "podFailurePolicy": {
                    "rules": [on("FailJob", MISCONFIGURED), evicted, on("Ignore", TERMINATED)]
                },
                "template": template(pod, own, restartPolicy="Never"),
            },
        },
    ]


def until_over(*command: str) -> list[str]:
    """A client's command, which ends with TERMINATED where a signal ended it."""
    return ["sh", "-c", _UNTIL_OVER, "client", *command]


def disruption_budget(name: str) -> Manifest:
    """One server at a time: whoever empties a node waits until the last one is back."""
    component = {"key": "app.kubernetes.io/component", "operator": "In"}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {
            "maxUnavailable": 1,
            "selector": {
                "matchLabels": {"app.kubernetes.io/name": "secureps"},
                "matchExpressions": [component | {"values": ["coordinator", "shard"]}],
            },
        },
    }
