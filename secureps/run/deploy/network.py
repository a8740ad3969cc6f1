"""Who reaches whom: Services of servers, and NetworkPolicies of every pod.

A server is dialled from anywhere, for who says anything there shows a certificate of the kit;
nobody dials a key holder or a client.

References: Kubernetes API v1, networking.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.crypto.identity import Role
from secureps.run.deploy.pods import Manifest
from secureps.run.deploy.workloads import labels, selector

GRPC, METRICS = 7600, 7700
"""Ports, the same at every server: each has an address of its own."""

_DNS: Manifest = {
    "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
}


def services(name: str, role: Role, metrics: bool, outside: str | None) -> list[Manifest]:
    """A server's name in the cluster, and where it is dialled from elsewhere.

    A pod is found before it is ready: no shard is ready before all have found each other.

    Args:
        metrics: whether it shows them.
        outside: its host name for other clusters; None: it has none.
    """
    ports = [_port("grpc", GRPC), *([_port("metrics", METRICS)] if metrics else [])]
    made = [_service(name, role, {"clusterIP": "None", "ports": ports})]
    if outside is not None:
        public = _service(name, role, {"type": "LoadBalancer", "ports": ports[:1]})
        note = {"external-dns.alpha.kubernetes.io/hostname": outside}
        public["metadata"] = {
            "name": f"{name}-outside",
            "labels": labels(name, role),
            "annotations": note,
        }
        made.append(public)
    return made


def policy(
    name: str,
    role: Role,
    scraped_from: str | None,
    dials: Sequence[str],
    beside: Sequence[Manifest] = (),
) -> Manifest:
    """What a party's pod may be asked, and whom it may ask; all else is cut off.

    Args:
        scraped_from: the namespace that Prometheus is in; None: nobody reads metrics.
        dials: parties of this cluster that it asks, alone; none: whoever has a server's port.
        beside: rules for whom it asks that is no party.
    """
    serves = role in ("coordinator", "shard")
    incoming: list[Manifest] = [{"ports": [_allowed(GRPC)]}] if serves else []
    if serves and scraped_from is not None:
        space = {"matchLabels": {"kubernetes.io/metadata.name": scraped_from}}
        incoming.append({"from": [{"namespaceSelector": space}], "ports": [_allowed(METRICS)]})
    to = [{"podSelector": {"matchLabels": selector(each)}} for each in dials]
    parties: Manifest = ({"to": to} if to else {}) | {"ports": [_allowed(GRPC)]}
    asked = [*([] if role == "coordinator" and not dials else [parties]), *beside]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels(name, role)},
        "spec": {
            "podSelector": {"matchLabels": selector(name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": incoming,
            "egress": [_DNS, *asked] if asked else [],
        },
    }


def _service(name: str, role: Role, more: Manifest) -> Manifest:
    spec: Manifest = {"selector": selector(name), "publishNotReadyAddresses": True}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(name, role)},
        "spec": spec | more,
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name}


def _allowed(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
