"""Makes the Kubernetes objects of one party: its pod, controller, services, policies and store.

A pod mounts a Secret with its private keys, ConfigMaps with the kit's public part and the party's
configuration, and a volume that outlives the pod. Its root file system is read-only, and it runs as
an unprivileged user.

Each party has a StatefulSet or Job of one pod, because pods of one template would share a Secret.
Network policies let any party dial a server, which demands a certificate of the kit; key holders
and clients accept no connections. Keys to an object store stay in a Secret of the operator's, which
the written files only name.

References: Kubernetes API v1, apps/v1, batch/v1, policy/v1, networking.k8s.io/v1, Pod Security
Standards ("restricted").
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
"""The user and group of all processes in pods; the image has this user too."""

DATA = "/srv/data"
"""The mount of a party's volume, with its kit, runs, privacy ledgers and compiled kernels."""
CONFIG, KEYS = "/srv/config", "/srv/keys"
PUBLIC, HOLDERS, CERTIFICATES = "/srv/public", "/srv/holders", "/srv/tls"
RECORDS = "/srv/records"
"""The mount of the existing volume with a data holder's records."""

KIT = f"{DATA}/kit"
SHARED = {"": PUBLIC, "holders": HOLDERS, "tls": CERTIFICATES}
"""The mount of each folder of the kit's public part. Folders are mounted whole, so that their files
may change while a pod runs."""

_PREPARE = """\
set -eu
umask 077
mkdir -p "$data/kit/public" "$own" "$data/runs/$run" "$data/ledgers" "$data/kernels"
# fsGroup opens the volume to its group, but keys that others may read are refused.
chmod -R go-rwx,g-s "$data/kit" "$data/runs" "$data/ledgers" "$data/kernels"
# Links, so that the running pod sees a new roster or certificate.
ln -sfn "$public/ca.pub" "$public/roster.json" "$data/kit/public/"
ln -sfn "$holders" "$data/kit/public/holders"
ln -sfn "$tls" "$data/kit/public/tls"
# Keys are copied once: a key that a key holder has erased must not return from the Secret.
take() { install -m 600 -T "$keys/$1" "$own/$1.new"; mv "$own/$1.new" "$own/$1"; }
if [ -e "$keys/identity.key" ] && ! cmp -s "$keys/identity.key" "$own/identity.key"; then
  for key in "$keys"/*; do [ "${key##*/}" = identity.key ] || take "${key##*/}"; done
  take identity.key  # last: without it the next start copies all keys again
fi
secureps warm
"""

_FILLED = re.compile(r"\$+(?=\()|\$\$+")
"""Dollar signs that Kubernetes would interpret in a command: $(NAME), and $$ as one sign."""

ENVIRONMENT = {
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "SECUREPS_KERNELS": f"{DATA}/kernels",
}


@dataclass(frozen=True)
class Needs:
    """The peak memory of parties in bytes, as `secureps check` estimates it; None: unknown."""

    server: int
    shard: int | None = None
    client: int | None = None


@dataclass(frozen=True)
class Pod:
    """The pod of one party.

    Args:
        name: the party's name in the cluster.
        config: the files of its configuration.
        memory: the requested bytes; None: unknown.
        bounded: the limit is 1.5 times the request, because the need is well known.
        records: a PersistentVolumeClaim that is mounted at RECORDS, read-only.
        volume: the claim that is mounted at DATA; None: its controller claims `data` for each pod.
        environment: additional variables.
        secret: a Secret whose entries become variables too, or None.
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
    return {"metadata": {"labels": dict(labels)}, "spec": {**_pod_spec(pod), **more}}


def manifest(
    api: str, kind: str, name: str, labels: Mapping[str, str] | None = None, **more: object
) -> Manifest:
    """Makes an object of the cluster; `more` are the other fields of its kind."""
    metadata = {"name": name} | ({} if labels is None else {"labels": labels})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def config_map(name: str, files: Mapping[str, bytes]) -> Manifest:
    """Makes a ConfigMap; files that are no plain text become base64."""
    texts = {key: text for key, data in files.items() if (text := _text(data)) is not None}
    rest = {key: _base64(data) for key, data in files.items() if key not in texts}
    made = manifest("v1", "ConfigMap", name)
    return made | ({"data": texts} if texts else {}) | ({"binaryData": rest} if rest else {})


def secret(name: str, files: Mapping[str, bytes]) -> Manifest:
    data = {key: _base64(value) for key, value in files.items()}
    return manifest("v1", "Secret", name, type="Opaque", data=data)


def shared_maps(name: str, kit: PartyKit) -> list[Manifest]:
    return [
        config_map(f"{name}-{folder or 'public'}", _folder(kit.public, folder)) for folder in SHARED
    ]


def volume_claim(name: str, storage: str, storage_class: str | None) -> Manifest:
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
    if pod.secret is not None:  # variables of `env` take precedence
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
"""The exit status of a client's pod that a signal ended before the run had ended."""

_UNTIL_OVER = f"""\
"$@" & party=$!
trap 'kill -TERM $party; wait $party; exit {TERMINATED}' TERM
wait $party
"""
"""Runs the client and passes on its exit status, or TERMINATED after SIGTERM."""

RETRIES = 100
"""Failures after which a client's Job is given up; evictions do not count."""


def labels(name: str, component: str) -> dict[str, str]:
    return selector(name) | {"app.kubernetes.io/component": component}


def selector(name: str) -> dict[str, str]:
    """The labels that select a party's pod."""
    own = "app.kubernetes.io"
    return {f"{own}/name": "secureps", f"{own}/instance": name}


def probes(file: str) -> Manifest:
    """Makes probes that run a command in the pod: kubelet's gRPC probes show no certificate.

    `file` is the server's configuration in CONFIG.
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
    """Makes a StatefulSet of one pod, which keeps its name and volume."""
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
    """Makes a client's volume claim and its Job, which recreates the pod until the run has ended.

    The Job fails at once if a restart cannot help the client.
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
        "podReplacementPolicy": "Failed",  # never two pods on one state folder
        "podFailurePolicy": {"rules": rules},
        "template": template(pod, own, restartPolicy="Never"),
    }
    return [volume, manifest("batch/v1", "Job", pod.name, own, spec=spec)]


def run_until_over(*command: str) -> list[str]:
    """Wraps a client's command in a shell that exits with TERMINATED after a signal."""
    return ["sh", "-c", _UNTIL_OVER, "client", *command]


def disruption_budget() -> Manifest:
    """Lets a drained node evict only one server at a time."""
    component = {"key": "app.kubernetes.io/component", "operator": "In"}
    servers = {
        "matchLabels": {"app.kubernetes.io/name": "secureps"},
        "matchExpressions": [component | {"values": ["coordinator", "shard"]}],
    }
    spec = {"maxUnavailable": 1, "selector": servers}
    return manifest("policy/v1", "PodDisruptionBudget", "servers", spec=spec)


GRPC, METRICS = 7600, 7700
"""The ports of every server; each server has its own address."""

_DNS: Manifest = {
    "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
}


def services(name: str, role: Role, metrics: bool, outside: str | None) -> list[Manifest]:
    """Makes a server's Service, and one for other clusters if it has a name `outside`.

    Pods are found before they are ready, because shards become ready by finding each other.
    `metrics` adds the port of metrics.
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
    """Makes a NetworkPolicy: who may dial a party's pod, and whom it may dial; the rest is blocked.

    Args:
        scraped_from: the namespace of Prometheus; None: nobody reads metrics.
        dials: the only parties of this cluster that it may dial; empty: any server's port.
        beside: further rules, for destinations that are no parties.
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
    """An object store that servers use.

    Args:
        secret: the Secret in their namespace whose entries become variables with the store's keys.
        copies: the URL to which checkpoints are copied; None: none are copied.
        endpoint: the URL of an S3 server; None: Amazon's, or the one of `copies`.
        networks: the store's addresses, as 10.1.0.0/16; empty: any address outside the cluster.

    Raises:
        ConfigError: one of them is invalid, cannot be opened, or would reveal a key.
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

    def egress_rule(self) -> Manifest:
        """Makes the rule of a NetworkPolicy that lets a server dial the store."""
        place = urlsplit(self.endpoint or "")
        host = place.hostname or ""
        if inside := _IN_CLUSTER.fullmatch(host):
            # A policy sees the port of the store's pod, which may differ from its Service's.
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
    """Makes the store of a command's options, if any; ConfigError without a Secret."""
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
    """Refuses (ConfigError) a URL that a pod cannot use, or that would reveal a key."""
    if redact(url) != url:
        raise ConfigError(
            f"{key}: {redact(url)}: a user, a password or a query would be in a ConfigMap, for all "
            "to read: name the URL without, and put keys into the Secret"
        )
    if url.partition("://")[0] in _OF_THIS_MACHINE:
        raise ConfigError(f"{key}: {url}: a pod has no such place: name one at a store, as s3://")


def refuse_unreachable(key: str, url: str) -> None:
    """Refuses (ConfigError) a URL that cannot be opened here, before every pod fails at it."""
    with naming(key, ConfigError):
        ObjectStore(url)


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
    """The network of an IP address; empty for a host name, whose addresses may change."""
    try:
        return (str(ip_network(ip_address(host))),)
    except ValueError:
        return ()
