"""Pods: how a party runs in a container, whatever starts it again.

A pod is given files: a Secret of its private keys, ConfigMaps of the kit's public part and of its
configuration, and a volume that outlives it. Its root file system is read-only and its user nobody.

Each party has a StatefulSet or Job of one pod, because pods of one template would share a Secret.
Anybody may dial a server, which asks for a certificate of the kit; nobody dials holders or clients.

References: Kubernetes API v1, apps/v1, batch/v1, policy/v1, networking.k8s.io/v1, Pod Security
Standards ("restricted").

An object store that pods of servers reach: keys from a Secret, and the way there.

The Secret is the operator's, and is only named here: no key to the store is in what is written.

References: Kubernetes API v1 (envFrom), networking.k8s.io/v1.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from secureps.crypto.identity import Role
from secureps.errors import MISCONFIGURED, ConfigError, naming
from secureps.files.objects import ObjectStore, redact
from secureps.run.deploy.parties import PartyKit

Manifest = dict[str, object]

USER = 10001
"""Of all processes in pods, and their group; the image has it too."""

DATA = "/srv/data"
"""Where a party's volume is: its kit, its runs, what its records have spent, compiled kernels."""
CONFIG, KEYS = "/srv/config", "/srv/keys"
PUBLIC, HOLDERS, CERTIFICATES = "/srv/public", "/srv/holders", "/srv/tls"
RECORDS = "/srv/records"
"""Where a data holder's script finds its records, on a volume that is there already."""

KIT = f"{DATA}/kit"
SHARED = {"": PUBLIC, "holders": HOLDERS, "tls": CERTIFICATES}
"""Where each folder of the kit's public part is mounted: whole, so that files may come and go while
a pod runs."""

_PREPARE = """\
set -eu
umask 077
mkdir -p "$data/kit/public" "$own" "$data/runs/$run" "$data/ledgers" "$data/kernels"
# A volume that is handed to a group is open to it, and nobody takes keys that others may read.
chmod -R go-rwx,g-s "$data/kit" "$data/runs" "$data/ledgers" "$data/kernels"
# Links: a new roster or certificate is seen in the running pod.
ln -sfn "$public/ca.pub" "$public/roster.json" "$data/kit/public/"
ln -sfn "$holders" "$data/kit/public/holders"
ln -sfn "$tls" "$data/kit/public/tls"
# Keys are taken once: what a key holder has erased since must not come back from the Secret.
take() { install -m 600 -T "$keys/$1" "$own/$1.new"; mv "$own/$1.new" "$own/$1"; }
if [ -e "$keys/identity.key" ] && ! cmp -s "$keys/identity.key" "$own/identity.key"; then
  for key in "$keys"/*; do [ "${key##*/}" = identity.key ] || take "${key##*/}"; done
  take identity.key  # last: without it all are taken anew
fi
secureps warm
"""

_FILLED = re.compile(r"\$+(?=\()|\$\$+")
"""What Kubernetes reads in a command: $(NAME), and $$ as one sign."""

ENVIRONMENT = {
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "SECUREPS_KERNELS": f"{DATA}/kernels",
}


@dataclass(frozen=True)
class Needs:
    """Bytes that parties take at their peaks, as `secureps check` says it; None: nobody knows."""

    server: int
    shard: int | None = None
    client: int | None = None


@dataclass(frozen=True)
class Pod:
    """What runs for one party.

    Args:
        name: the party's in the cluster.
        memory: bytes that are asked for; None: nothing is known of them.
        bounded: half as much again is its limit: it is known that no more is needed.
        config: files of its configuration.
        records: a PersistentVolumeClaim that is mounted at RECORDS, read-only.
        volume: the one of its DATA; None: its controller claims `data` for each pod.
        environment: more of it; secret: a Secret whose entries are in it too, or None.
    """

    name: str
    run: str
    image: str
    command: Sequence[str]
    kit: PartyKit
    config: Mapping[str, bytes]
    memory: int | None = None
    bounded: bool = False
    probes: Manifest | None = None
    ports: tuple[tuple[str, int], ...] = ()
    records: str | None = None
    volume: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = None


def template(pod: Pod, labels: Mapping[str, str], **more: object) -> Manifest:
    """Makes a pod's template; its controller claims `data`, or `volume` names it."""
    return {"metadata": {"labels": dict(labels)}, "spec": {**_pod_spec(pod), **more}}


def manifest(
    api: str, kind: str, name: str, labels: Mapping[str, str] | None = None, **more: object
) -> Manifest:
    """An object of the cluster, with what else its kind has."""
    metadata = {"name": name} | ({} if labels is None else {"labels": labels})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def config_map(name: str, files: Mapping[str, bytes]) -> Manifest:
    """A ConfigMap; what is no plain text is in it as base64."""
    texts = {key: text for key, data in files.items() if (text := _text(data)) is not None}
    rest = {key: _base64(data) for key, data in files.items() if key not in texts}
    made = manifest("v1", "ConfigMap", name)
    return made | ({"data": texts} if texts else {}) | ({"binaryData": rest} if rest else {})


def secret(name: str, files: Mapping[str, bytes]) -> Manifest:
    data = {key: _base64(value) for key, value in files.items()}
    return manifest("v1", "Secret", name, type="Opaque", data=data)


def shared_maps(name: str, kit: PartyKit) -> list[Manifest]:
    """The kit's public part: what changes with the roster, and with certificates."""
    return [
        config_map(f"{name}-{folder or 'public'}", _folder(kit.public, folder)) for folder in SHARED
    ]


def volume_claim(name: str, storage: str, storage_class: str | None) -> Manifest:
    """What a party asks of the cluster's storage, without a version and a kind."""
    own: Manifest = {"storageClassName": storage_class} if storage_class is not None else {}
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            **own,
            "resources": {"requests": {"storage": storage}},
        },
    }


def _folder(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    paths = {path.rpartition("/"): data for path, data in files.items()}
    return {name: data for (of, _, name), data in paths.items() if of == folder}


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c in "\n\t" or c.isprintable() for c in text) else None


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _pod_spec(pod: Pod) -> Manifest:
    shared = [_mount(folder or "public", path) for folder, path in SHARED.items()]
    mounts = [_mount("data", DATA, False), _mount("tmp", "/tmp", False), *shared]
    records = [] if pod.records is None else [_mount("records", RECORDS)]
    ports = [{"name": name, "containerPort": number} for name, number in pod.ports]
    main = _container(pod, pod.kit.role, pod.command, pod.environment)
    if pod.secret is not None:  # what `env` has stands before it
        main["envFrom"] = [{"secretRef": {"name": pod.secret}}]
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [
            {
                **_container(pod, "prepare", ["sh", "-c", _prepare(pod)]),
                "volumeMounts": [*mounts, _mount("keys", KEYS)],
            }
        ],
        "containers": [
            {
                **main,
                **({"ports": ports} if ports else {}),
                **(pod.probes or {}),
                "volumeMounts": [*mounts, _mount("config", CONFIG), *records],
            }
        ],
        "volumes": _volumes(pod),
    }


def _container(
    pod: Pod, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
) -> Manifest:
    requests: dict[str, str] = {"cpu": "250m"}
    resources: Manifest = {"requests": requests}
    if pod.memory is not None:
        requests["memory"] = _mebibytes(pod.memory)
        if pod.bounded:
            resources["limits"] = {"memory": _mebibytes(pod.memory * 3 // 2)}
    environment = {**(more or {}), **ENVIRONMENT}
    return {
        "name": name,
        "image": pod.image,
        "command": list(map(_escape_dollars, command)),
        "env": [
            {"name": key, "value": _escape_dollars(value)} for key, value in environment.items()
        ],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _escape_dollars(text: str) -> str:
    """A text of which Kubernetes makes this one."""
    return _FILLED.sub(r"\g<0>\g<0>", text)


def _mebibytes(count: int) -> str:
    return f"{-(-count // (1 << 20))}Mi"


def _mount(name: str, path: str, read_only: bool = True) -> Manifest:
    made: Manifest = {"name": name, "mountPath": path}
    return made | ({"readOnly": True} if read_only else {})


def _volumes(pod: Pod) -> list[Manifest]:
    shared = [folder or "public" for folder in SHARED]
    maps: list[Manifest] = [
        {"name": each, "configMap": {"name": f"{pod.name}-{each}"}} for each in (*shared, "config")
    ]
    keys: Manifest = {"secretName": f"{pod.name}-keys", "optional": True, "defaultMode": 0o400}
    claims: list[Manifest] = []
    if pod.records is not None:
        own = {"claimName": pod.records, "readOnly": True}
        claims.append({"name": "records", "persistentVolumeClaim": own})
    if pod.volume is not None:
        claims.append({"name": "data", "persistentVolumeClaim": {"claimName": pod.volume}})
    return [{"name": "tmp", "emptyDir": {}}, {"name": "keys", "secret": keys}, *maps, *claims]


def _prepare(pod: Pod) -> str:
    places = {
        "data": DATA,
        "keys": KEYS,
        "public": PUBLIC,
        "holders": HOLDERS,
        "tls": CERTIFICATES,
        "own": f"{KIT}/private/{pod.kit.name}",
        "run": pod.run,
    }
    return "".join(f"{name}={place}\n" for name, place in places.items()) + _PREPARE


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
    return selector(name) | {"app.kubernetes.io/component": component}


def selector(name: str) -> dict[str, str]:
    """The labels by which a party's pod is found."""
    own = "app.kubernetes.io"
    return {f"{own}/name": "secureps", f"{own}/instance": name}


def probes(file: str) -> Manifest:
    """Probes a server by a command in its pod: kubelet's own gRPC probes show no certificate.

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


def stateful_set(pod: Pod, storage: str, storage_class: str | None) -> list[Manifest]:
    """One pod that comes back with its volume, under its own name."""
    own = labels(pod.name, pod.kit.role)
    spec = {
        "serviceName": pod.name,
        "replicas": 1,
        "selector": {"matchLabels": selector(pod.name)},
        "template": template(pod, own),
        "volumeClaimTemplates": [volume_claim("data", storage, storage_class)],
    }
    return [manifest("apps/v1", "StatefulSet", pod.name, own, spec=spec)]


def job(pod: Pod, storage: str, storage_class: str | None) -> list[Manifest]:
    """A client's Job, and what it claims: the pod is made anew until the client's run is over.

    A client that no restart mends fails the Job at once.
    """
    own = labels(pod.name, pod.kit.role)
    own_claim = volume_claim(f"{pod.name}-data", storage, storage_class)
    volume: Manifest = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **own_claim}

    def on(action: str, status: int) -> Manifest:
        codes = {"containerName": pod.kit.role, "operator": "In", "values": [status]}
        return {"action": action, "onExitCodes": codes}

    evicted: Manifest = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    rules = [on("FailJob", MISCONFIGURED), evicted, on("Ignore", TERMINATED)]
    spec = {
        "backoffLimit": RETRIES,
        "podReplacementPolicy": "Failed",  # never two on one state
        "podFailurePolicy": {"rules": rules},
        "template": template(pod, own, restartPolicy="Never"),
    }
    return [volume, manifest("batch/v1", "Job", pod.name, own, spec=spec)]


def run_until_over(*command: str) -> list[str]:
    """A client's command, which ends with TERMINATED where a signal ended it."""
    return ["sh", "-c", _UNTIL_OVER, "client", *command]


def disruption_budget() -> Manifest:
    """One server at a time: whoever empties a node waits until the last one is back."""
    component = {"key": "app.kubernetes.io/component", "operator": "In"}
    servers = {
        "matchLabels": {"app.kubernetes.io/name": "secureps"},
        "matchExpressions": [component | {"values": ["coordinator", "shard"]}],
    }
    spec = {"maxUnavailable": 1, "selector": servers}
    return manifest("policy/v1", "PodDisruptionBudget", "servers", spec=spec)


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
    ports = [_service_port("grpc", GRPC), *([_service_port("metrics", METRICS)] if metrics else [])]
    made = [_service(name, role, {"clusterIP": "None", "ports": ports})]
    if outside is not None:
        public = _service(name, role, {"type": "LoadBalancer", "ports": ports[:1]})
        note = {"external-dns.alpha.kubernetes.io/hostname": outside}
        metadata = {"name": f"{name}-outside", "labels": labels(name, role), "annotations": note}
        made.append(public | {"metadata": metadata})
    return made


def policy(
    name: str,
    role: Role,
    scraped_from: str | None,
    dials: Sequence[str],
    beside: Sequence[Manifest] = (),
) -> Manifest:
    """Says who may ask a party's pod, and whom it may ask; all else is cut off.

    Args:
        scraped_from: the namespace that Prometheus is in; None: nobody reads metrics.
        dials: parties of this cluster that it asks, alone; none: whoever has a server's port.
        beside: rules for whom it asks that is no party.
    """
    serves = role in ("coordinator", "shard")
    incoming: list[Manifest] = [{"ports": [_tcp_port(GRPC)]}] if serves else []
    if serves and scraped_from is not None:
        space = {"matchLabels": {"kubernetes.io/metadata.name": scraped_from}}
        incoming.append({"from": [{"namespaceSelector": space}], "ports": [_tcp_port(METRICS)]})
    to = [{"podSelector": {"matchLabels": selector(each)}} for each in dials]
    parties: Manifest = ({"to": to} if to else {}) | {"ports": [_tcp_port(GRPC)]}
    asked = [*([] if role == "coordinator" and not dials else [parties]), *beside]
    spec = {
        "podSelector": {"matchLabels": selector(name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": incoming,
        "egress": [_DNS, *asked] if asked else [],
    }
    return manifest("networking.k8s.io/v1", "NetworkPolicy", name, labels(name, role), spec=spec)


def _service(name: str, role: Role, more: Manifest) -> Manifest:
    spec = {"selector": selector(name), "publishNotReadyAddresses": True, **more}
    return manifest("v1", "Service", name, labels(name, role), spec=spec)


def _service_port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name}


def _tcp_port(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}


# --- stores ------------------------------------------------------------------------

HTTPS, HTTP = 443, 80

_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?")
_IN_CLUSTER = re.compile(r"[a-z0-9-]+\.([a-z0-9-]+)\.svc(\.cluster\.local)?\.?")
_OF_THIS_MACHINE = ("file", "local", "memory")
_OUTSIDE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True)
class Store:
    """A store that servers reach.

    Args:
        secret: of their namespace; the store's library finds keys in its entries, as variables.
        copies: the URL that checkpoints are copied to; None: none are.
        endpoint: the URL of a server that speaks S3; None: Amazon's, or whatever `copies` says.
        networks: its addresses, as 10.1.0.0/16; none: anywhere outside the cluster.

    Raises:
        ConfigError: one of them cannot be, cannot be opened, or would tell a key.
    """

    secret: str
    copies: str | None = None
    endpoint: str | None = None
    networks: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _SECRET.fullmatch(self.secret):
            raise ConfigError(f"--store-secret {self.secret!r}: no name of a Secret")
        if self.copies is not None:
            refuse_meaningless("--copies", self.copies)
            refuse_unreachable("--copies", self.copies)
        if self.endpoint is not None:
            _refuse_endpoint(self.endpoint)
        for network in self.networks:
            try:
                ip_network(network)
            except ValueError as error:
                raise ConfigError(f"--store-network {network}: {error}") from None

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.endpoint is None else {"AWS_ENDPOINT_URL": self.endpoint}

    def way(self) -> Manifest:
        """The rule by which a NetworkPolicy lets a server dial the store."""
        place = urlsplit(self.endpoint or "")
        host = place.hostname or ""
        if inside := _IN_CLUSTER.fullmatch(host):
            # A policy sees the port of the store's pod, which need not be that of its Service.
            space = {"matchLabels": {"kubernetes.io/metadata.name": inside[1]}}
            return {"to": [{"namespaceSelector": space}]}
        port = place.port or (HTTP if place.scheme == "http" else HTTPS)
        blocks = [
            {"ipBlock": {"cidr": each}} for each in self.networks or _network_of(host) or _OUTSIDE
        ]
        return {"to": blocks, "ports": [{"protocol": "TCP", "port": port}]}


def choose_store(
    secret: str | None, copies: str | None, endpoint: str | None, networks: Sequence[str]
) -> Store | None:
    """The store that a command names, if it does; ConfigError if it names none of its Secrets."""
    if secret is not None:
        return Store(secret, copies, endpoint, networks)
    if copies is None and endpoint is None and not networks:
        return None
    raise ConfigError(
        "--store-secret: pods find keys to a store in a Secret alone: make one, `kubectl create "
        "secret generic NAME --from-literal=AWS_ACCESS_KEY_ID=... "
        "--from-literal=AWS_SECRET_ACCESS_KEY=...`, and name it here"
    )


def refuse_meaningless(key: str, url: str) -> None:
    """Refuses (ConfigError) a URL of `key` that a pod has no use for, or that tells a key."""
    if redact(url) != url:
        raise ConfigError(
            f"{key}: {redact(url)}: a user, a password or a query would be in a ConfigMap, for all "
            "to read: name the URL without, and put keys into the Secret"
        )
    if url.partition("://")[0] in _OF_THIS_MACHINE:
        raise ConfigError(f"{key}: {url}: a pod has no such place: name one at a store, as s3://")


def refuse_unreachable(key: str, url: str) -> None:
    """Refuses (ConfigError) a URL that nothing here can open; some stores are dialled for it."""
    with naming(key, ConfigError):
        ObjectStore(url)  # refused now, and not by every pod


def _refuse_endpoint(url: str) -> None:
    try:
        place = urlsplit(url)
        sound = place.scheme in ("http", "https") and place.hostname and place.port != 0
    except ValueError:
        sound = False
    if not sound or redact(url) != url:
        raise ConfigError(
            f"--store-endpoint {redact(url)}: no server's URL without user and query, as "
            "https://minio.example:9000"
        )


def _network_of(host: str) -> tuple[str, ...]:
    """The network of an address; none of a name, whose addresses may change."""
    try:
        return (str(ip_network(ip_address(host))),)
    except ValueError:
        return ()
