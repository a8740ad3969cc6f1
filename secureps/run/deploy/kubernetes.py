"""Makes Kubernetes manifests of a plan and a kit: a folder for the servers, one for each site.

Pure: the same plan, kit and options give the same manifests. Each folder is for a cluster or
namespace of its own, so that no party's Secret is in another's. A client and its site's key holder
share a folder, but each has its own Secret, volume and policy.

A pod mounts a Secret with its private keys, ConfigMaps with the kit's public part and the party's
configuration, and a volume that outlives the pod. Its root file system is read-only, and it runs as
an unprivileged user. Each party has a StatefulSet or Job of one pod, because pods of one template
would share a Secret.

Network policies let any party dial a server, which demands a certificate of the kit; key holders
and clients accept no connections. Prometheus reads servers' metrics over mutual TLS, with an
observer's certificate. Keys to an object store stay in a Secret of the operator's, which the
written files only name.

References: Kubernetes API v1, apps/v1, batch/v1, policy/v1, networking.k8s.io/v1, Pod Security
Standards ("restricted"); Prometheus Operator, monitoring.coreos.com/v1.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from secureps.config.sections import toml_tables
from secureps.crypto.identity import tls_name
from secureps.errors import MISCONFIGURED, ConfigError, naming
from secureps.files.objects import ObjectStore, redact
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan
from secureps.run.deploy.parties import Needs, PartyKit, Request, fill_options
from secureps.run.up.folder import site_holder

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

ENVIRONMENT = {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "SECUREPS_KERNELS": f"{DATA}/kernels"}


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


def _escape_dollars(text: str) -> str:
    return _FILLED.sub(r"\g<0>\g<0>", text)


def _mebibytes(count: int) -> str:
    return f"{-(-count // (1 << 20))}Mi"


def _mount(name: str, path: str, read_only: bool = True) -> Manifest:
    made: Manifest = {"name": name, "mountPath": path}
    return made | ({"readOnly": True} if read_only else {})


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
    own = "app.kubernetes.io"
    return {f"{own}/name": "secureps", f"{own}/instance": name}


def probes(file: str) -> Manifest:
    """Makes probes that run a command in the pod: kubelet's gRPC probes show no certificate.

    `file` is the server's configuration in CONFIG.
    """
    ready = ["secureps", "health", f"{CONFIG}/{file}"]

    def probe(command: list[str], **settings: int) -> Manifest:
        return {"exec": {"command": command}, **settings}

    alive = [*ready, "--alive"]
    return {
        "startupProbe": probe(alive, periodSeconds=10, failureThreshold=90, timeoutSeconds=15),
        "livenessProbe": probe(alive, periodSeconds=60, failureThreshold=5, timeoutSeconds=30),
        "readinessProbe": probe(ready, periodSeconds=20, timeoutSeconds=15),
    }


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

_DNS: Manifest = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}


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
        return {"to": blocks, "ports": [_tcp_port(port)]}


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


# --- folders -----------------------------------------------------------------------

Folder = dict[str, list[Manifest]]
"""Files of a folder, by name."""

SITE = "site.toml"
"""The file of the site's policy, which is mounted beside the client's script."""

SERVERS = "servers"
"""The aggregator's folder."""
SERVING = ("coordinator", "shard")
_JSON_LOGS = ("--log-format", "json")

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
"""Names that are valid for a pod, a Service and a label, with the suffixes that are added."""


@dataclass(frozen=True)
class Cluster:
    """The cluster in which parties run.

    Args:
        storage: the size of a party's volume, as Kubernetes spells it.
        domain: servers are coordinator.DOMAIN, and so on; None: all parties are in one cluster.
        monitoring: the namespace of Prometheus.
        records: a PersistentVolumeClaim with the data holder's records.
        client_image: an image with the packages that the script imports; None: the servers' image.
    """

    image: str
    namespace: str
    storage: str
    domain: str | None = None
    storage_class: str | None = None
    monitoring: str = "monitoring"
    standby: bool = False
    store: Store | None = None
    records: str | None = None
    client_image: str | None = None

    def address(self, server: str) -> str:
        return f"{server}.{self.domain or f'{self.namespace}.svc'}:{GRPC}"

    def inside(self, server: str) -> str:
        """The HOST:PORT at which a server is dialled from its own cluster."""
        return f"{server}.{self.namespace}.svc:{GRPC}"

    def volume_claim(self, name: str) -> Manifest:
        own: Manifest = {"accessModes": ["ReadWriteOnce"]}
        if self.storage_class is not None:
            own["storageClassName"] = self.storage_class
        spec = own | {"resources": {"requests": {"storage": self.storage}}}
        return {"metadata": {"name": name}, "spec": spec}

    @property
    def coordinators(self) -> tuple[str, ...]:
        return (COORDINATOR, STANDBY) if self.standby else (COORDINATOR,)


Files = Mapping[str, Mapping[str, bytes]]
"""Files of coordinators and of clients, by role and name."""


def manifests(request: Request, files: Files, needs: Needs, cluster: Cluster) -> dict[str, Folder]:
    """Makes the folders; ConfigError if a party's name is invalid or not unique in a cluster."""
    names = _cluster_names(request.kits)
    folders: dict[str, Folder] = {}
    observer = next((kit for kit in request.kits if kit.role == "observer"), None)
    sites = {site_holder(kit.name): kit.name for kit in request.kits if kit.role == "client"}
    for kit in request.kits:
        if kit.role == "observer" or (kit.role == "client" and request.script is None):
            continue
        site = sites.get(kit.name, kit.name) if kit.role == "holder" else kit.name
        home = SERVERS if kit.role in SERVING else names[site]
        folder = folders.setdefault(home, {})
        own = cluster.coordinators if kit.role == COORDINATOR else (names[kit.name],)
        for name in own:
            monitored = observer is not None
            party = _Party(request, files, needs, cluster, kit, name, monitored)
            folder[f"{name}-keys.yaml"] = [secret(f"{name}-keys", kit.private)]
            folder[f"{name}-kit.yaml"] = shared_maps(name, kit)
            folder[f"{name}.yaml"] = party.objects()
    if SERVERS in folders:
        folders[SERVERS]["disruption.yaml"] = [disruption_budget()]
        if observer is not None:
            folders[SERVERS]["monitoring.yaml"] = list(_make_monitoring(request, names, observer))
    return {folder: _add_namespaces(files, cluster) for folder, files in folders.items()}


def _cluster_names(kits: Sequence[PartyKit]) -> dict[str, str]:
    names = {kit.name: _cluster_name(kit.name) for kit in kits}
    for party, name in names.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{party} cannot be a name in a cluster: a letter, then at most 49 letters, "
                "digits and dashes; enrol it under another one"
            )
        if name == SERVERS:
            raise ConfigError(f"{party} is what the servers' folder is called: enrol it as another")
        if list(names.values()).count(name) > 1:
            raise ConfigError(f"two parties would be called {name} in a cluster: deploy one alone")
    return names


def _cluster_name(party: str) -> str:
    return re.sub(r"[._]", "-", party)


@dataclass(frozen=True)
class _Party:
    request: Request
    files: Files
    needs: Needs
    cluster: Cluster
    kit: PartyKit
    name: str
    monitored: bool

    def objects(self) -> list[Manifest]:
        role = self.kit.role
        config, command = self._join() if role == "client" else self._serve()
        return [
            config_map(f"{self.name}-config", config),
            *(self._services() if role in SERVING else []),
            *(self._job(command) if role == "client" else self._stateful_set(command)),
            self._policy(),
        ]

    def _services(self) -> list[Manifest]:
        """Makes a server's Service, and one for other clusters if servers have a domain.

        Pods are found before they are ready, because shards become ready by finding each other.
        """
        name, own = self.name, labels(self.name, self.kit.role)
        numbers = {"grpc": GRPC} | ({"metrics": METRICS} if self.monitored else {})
        ports = [{"name": each, "port": port, "targetPort": each} for each, port in numbers.items()]
        spec = {"selector": selector(name), "publishNotReadyAddresses": True}
        inside = {**spec, "clusterIP": "None", "ports": ports}
        made = [manifest("v1", "Service", name, own, spec=inside)]
        if self.cluster.domain:
            public = {**spec, "type": "LoadBalancer", "ports": ports[:1]}
            place = STANDBY if name == STANDBY else self.kit.name
            host = self.cluster.address(place).rpartition(":")[0]
            note = {"external-dns.alpha.kubernetes.io/hostname": host}
            metadata = {"name": f"{name}-outside", "labels": own, "annotations": note}
            made.append(manifest("v1", "Service", name, spec=public) | {"metadata": metadata})
        return made

    def _policy(self) -> Manifest:
        """Makes a NetworkPolicy: who may dial the pod, and whom it may dial; the rest is blocked.

        A shard, and a coordinator with a standby, dial only parties that are named here; others may
        dial any server's port, and a coordinator alone dials nobody.
        """
        cluster, role = self.cluster, self.kit.role
        dials = [*cluster.coordinators, *self._peers] if role == "shard" else []
        if role == COORDINATOR and cluster.standby:
            dials = [self._other]
        incoming: list[Manifest] = [{"ports": [_tcp_port(GRPC)]}] if role in SERVING else []
        if role in SERVING and self.monitored:
            space = {"matchLabels": {"kubernetes.io/metadata.name": cluster.monitoring}}
            incoming.append({"from": [{"namespaceSelector": space}], "ports": [_tcp_port(METRICS)]})
        to = [{"podSelector": {"matchLabels": selector(each)}} for each in dials]
        parties: Manifest = ({"to": to} if to else {}) | {"ports": [_tcp_port(GRPC)]}
        asked = [] if role == COORDINATOR and not dials else [parties]
        asked += [self._store.egress_rule()] if self._store else []
        spec = {
            "podSelector": {"matchLabels": selector(self.name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": incoming,
            "egress": [_DNS, *asked] if asked else [],
        }
        own = labels(self.name, role)
        return manifest("networking.k8s.io/v1", "NetworkPolicy", self.name, own, spec=spec)

    def _stateful_set(self, command: Sequence[str]) -> list[Manifest]:
        """Makes a StatefulSet of one pod, which keeps its name and volume."""
        own = labels(self.name, self.kit.role)
        spec = {
            "serviceName": self.name,
            "replicas": 1,
            "selector": {"matchLabels": selector(self.name)},
            "template": {"metadata": {"labels": dict(own)}, "spec": self._pod(command)},
            "volumeClaimTemplates": [self.cluster.volume_claim("data")],
        }
        return [manifest("apps/v1", "StatefulSet", self.name, own, spec=spec)]

    def _job(self, command: Sequence[str]) -> list[Manifest]:
        """Makes a client's volume claim and its Job, which recreates the pod until the run's end.

        The Job fails at once if a restart cannot help the client.
        """
        own = labels(self.name, self.kit.role)
        claim = self.cluster.volume_claim(f"{self.name}-data")

        def on(action: str, status: int) -> Manifest:
            codes = {"containerName": self.kit.role, "operator": "In", "values": [status]}
            return {"action": action, "onExitCodes": codes}

        evicted: Manifest = {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
        rules = [on("FailJob", MISCONFIGURED), evicted, on("Ignore", TERMINATED)]
        pod = {**self._pod(command), "restartPolicy": "Never"}
        spec = {
            "backoffLimit": RETRIES,
            "podReplacementPolicy": "Failed",  # never two pods on one state folder
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": dict(own)}, "spec": pod},
        }
        return [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim},
            manifest("batch/v1", "Job", self.name, own, spec=spec),
        ]

    def _pod(self, command: Sequence[str]) -> Manifest:
        """Makes the pod's specification; only a client claims its own volume and has records."""
        cluster, client = self.cluster, self.kit.role == "client"
        shared = {folder or "public": path for folder, path in SHARED.items()}
        mounts = [_mount("data", DATA, False), _mount("tmp", "/tmp", False)]
        mounts += [_mount(name, path) for name, path in shared.items()]
        keys: Manifest = {"secretName": f"{self.name}-keys", "optional": True, "defaultMode": 0o400}
        volumes: list[Manifest] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "keys", "secret": keys},
        ]
        for name in (*shared, "config"):
            volumes.append({"name": name, "configMap": {"name": f"{self.name}-{name}"}})
        records: list[Manifest] = []
        if client and cluster.records is not None:
            records = [_mount("records", RECORDS)]
            claim: Manifest = {"claimName": cluster.records, "readOnly": True}
            volumes.append({"name": "records", "persistentVolumeClaim": claim})
        if client:
            claim = {"claimName": f"{self.name}-data"}
            volumes.append({"name": "data", "persistentVolumeClaim": claim})
        prepare = self._container("prepare", ["sh", "-c", self._prepare()])
        main = self._main(command)
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
            "initContainers": [prepare | {"volumeMounts": [*mounts, _mount("keys", KEYS)]}],
            "containers": [main | {"volumeMounts": [*mounts, _mount("config", CONFIG), *records]}],
            "volumes": volumes,
        }

    def _main(self, command: Sequence[str]) -> Manifest:
        role, store = self.kit.role, self._store
        main = self._container(role, command, store.environment if store else {})
        if store is not None:  # variables of `env` take precedence
            main["envFrom"] = [{"secretRef": {"name": store.secret}}]
        if role in SERVING:
            ports = [("grpc", GRPC), *([("metrics", METRICS)] if self.monitored else [])]
            main["ports"] = [{"name": name, "containerPort": number} for name, number in ports]
        return main if role == "client" else main | probes(f"{self.kit.name}.toml")

    def _container(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> Manifest:
        role, requests = self.kit.role, {"cpu": "250m"}
        resources: Manifest = {"requests": requests}
        if (memory := self.needs.get(role)) is not None:
            requests["memory"] = _mebibytes(memory)
            if role == "shard":  # whose need is known well
                resources["limits"] = {"memory": _mebibytes(memory * 3 // 2)}
        own = self.cluster.client_image if role == "client" else None
        environment = {**(more or {}), **ENVIRONMENT}
        return {
            "name": name,
            "image": own or self.cluster.image,
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

    def _prepare(self) -> str:
        places = {
            "data": DATA,
            "keys": KEYS,
            "public": PUBLIC,
            "holders": HOLDERS,
            "tls": CERTIFICATES,
            "own": f"{KIT}/private/{self.kit.name}",
            "run": self._run,
        }
        return "".join(f"{name}={place}\n" for name, place in places.items()) + _PREPARE

    @property
    def _store(self) -> Store | None:
        """The object store, which only servers need."""
        return self.cluster.store if self.kit.role in SERVING else None

    @property
    def _peers(self) -> list[str]:
        """The other shards, to which copies of blocks and moved blocks are sent."""
        shards = (kit.name for kit in self.request.kits if kit.role == "shard")
        return [_cluster_name(shard) for shard in shards if shard != self.kit.name]

    @property
    def _run(self) -> str:
        return self.request.read.section.name

    @property
    def _other(self) -> str:
        return COORDINATOR if self.name == STANDBY else STANDBY

    def _serve(self) -> tuple[dict[str, bytes], list[str]]:
        """Makes a server's configuration files and command."""
        role, file = self.kit.role, f"{self.kit.name}.toml"
        config = {file: toml_tables(self._settings()).encode()}
        if role == "coordinator":
            config |= self.files[role]
        kind = "keyholder" if role == "holder" else role
        standby = ["--standby"] if self.name == STANDBY else []
        serve = ["secureps", "serve", kind, "--config", f"{CONFIG}/{file}"]
        return config, [*serve, *standby, *_JSON_LOGS]

    def _settings(self) -> dict[str, object]:
        role, of = self.kit.role, f"{DATA}/runs/{self._run}"
        made: dict[str, object] = {"name": self.kit.name, "kit": KIT, "state": f"{of}/state"}
        open_to = "0.0.0.0" if self.monitored and role in SERVING else "127.0.0.1"
        made["metrics"] = f"{open_to}:{METRICS}"
        made["ca_fingerprint"] = self.kit.ca_fingerprint  # another CA's kit is refused
        if role in SERVING:
            made |= {"listen": f"0.0.0.0:{GRPC}", "checkpoints": f"{of}/checkpoints"}
        if self._store is not None and self._store.copies is not None:
            made["checkpoint_copies"] = self._store.copies
        match role:
            case "coordinator":
                made["plan"] = f"{CONFIG}/plan.toml"
                if self.cluster.standby:
                    key = "coordinator" if self.name == STANDBY else "standby"
                    made[key] = self.cluster.inside(self._other)
            case "shard":
                made["coordinator"] = ",".join(map(self.cluster.inside, self.cluster.coordinators))
                made["advertise"] = self.cluster.address(self.kit.name)
                made |= self.request.read.section.shard_memory
            case _:
                made |= {"coordinator": self._coordinator, **self.request.holders_terms()}
        return made

    def _join(self) -> tuple[dict[str, bytes], list[str]]:
        """Makes a client's files and command, in a shell that exits with TERMINATED if ended."""
        request = self.request
        assert request.script is not None
        joins = ["secureps", "join", f"{CONFIG}/{request.script.name}", "--name", self.kit.name]
        joins += ["--server", self._coordinator, "--kit", KIT]
        joins += ["--state", f"{DATA}/runs/{self._run}/state", *_JSON_LOGS]
        joins.append(f"--ca-fingerprint={self.kit.ca_fingerprint}")
        if request.site is not None:
            joins.append(f"--site={CONFIG}/{SITE}")
        clients = [kit.name for kit in request.kits if kit.role == "client"]
        own = fill_options(request.options(), self.kit.name, clients.index(self.kit.name))
        return dict(self.files[self.kit.role]), ["sh", "-c", _UNTIL_OVER, "client", *joins, *own]

    @property
    def _coordinator(self) -> str:
        return ",".join(map(self.cluster.address, self.cluster.coordinators))


def _make_monitoring(
    request: Request, names: Mapping[str, str], observer: PartyKit
) -> Iterator[Manifest]:
    """Makes a ServiceMonitor of each server, by which Prometheus reads it, and the alerts.

    Prometheus shows the observer's certificate.
    """
    name, public = names[observer.name], observer.public
    yield secret(f"{name}-keys", {"tls.key": observer.private["tls.key"]})
    certificates = {p.rpartition("/")[2]: data for p, data in public.items() if p[:4] == "tls/"}
    yield config_map(f"{name}-tls", certificates)
    for each in request.kits:
        if each.role in SERVING:
            shown: Manifest = {
                "serverName": tls_name(each.name),
                "ca": {"configMap": {"name": f"{name}-tls", "key": "ca.pem"}},
                "cert": {"configMap": {"name": f"{name}-tls", "key": f"{observer.name}.pem"}},
                "keySecret": {"name": f"{name}-keys", "key": "tls.key"},
            }
            port = {"port": "metrics", "scheme": "https", "interval": "30s", "tlsConfig": shown}
            own = labels(names[each.name], each.role)
            spec = {"selector": {"matchLabels": own}, "endpoints": [port]}
            yield manifest(_API, "ServiceMonitor", names[each.name], own, spec=spec)
    groups = [{"name": "secureps", "rules": list(alerts(request.read))}]
    yield manifest(_API, "PrometheusRule", "secureps", spec={"groups": groups})


def _add_namespaces(files: Folder, cluster: Cluster) -> Folder:
    policies = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    space = manifest("v1", "Namespace", cluster.namespace, policies)
    placed: Folder = {"00-namespace.yaml": [space]}
    for file, objects in sorted(files.items()):
        placed[file] = []
        for each in objects:
            own = each["metadata"]
            assert isinstance(own, dict)
            own = {"name": own["name"], "namespace": cluster.namespace} | own
            placed[file].append(each | {"metadata": own})
    return placed


# --- metrics and alerts for Prometheus ---------------------------------------------

_API = "monitoring.coreos.com/v1"


_ALERTS = """\
SecurepsCoordinatorUnseen critical 10
absent(secureps_finished)
Nothing is heard of the coordinator: nobody's update is taken.
SecurepsNotReady warning 15
secureps_ready == 0
A server cannot work: its journal is being read, or no run is founded.
SecurepsShardAway critical 5
secureps_servers_away{{role="shard"}} > 0
A shard is away: no version can be made.
SecurepsStandbyAway warning 10
secureps_standby_follows == 0 {over}
The standby does not follow: if the coordinator's machine is lost now, the run is.
SecurepsHolderAway warning 30
secureps_servers_away{{role="holder"}} > 0
A key holder is away; when more than {spare} are, no sum can be opened.
SecurepsHoldersAway critical 5
secureps_servers_away{{role="holder"}} > {spare}
Too few key holders are there to open a sum.
SecurepsTooFewClients warning 30
secureps_members_live < {start} {over}
Fewer clients are live than the {start} that a version waits for.
SecurepsVersionStalls warning 30
changes(secureps_group_version[2h]) == 0 {over}
A group has had no new version for two hours: `secureps status` says what it waits for.
SecurepsCohortBurnt warning 0
increase(secureps_records_journalled_total{{kind="CohortBurnt"}}[1h]) > 0
A cohort was burnt: its updates are charged and in no version.
SecurepsStrangers warning 15
rate(secureps_unauthenticated_requests_total[15m]) > 1
Requests come without a signature of anybody on the roster: an old kit, or an attack.
SecurepsBudgetNearlySpent warning 0
secureps_largest_epsilon > {nearly:g} {over}
A client has spent nine tenths of the plan's budget, epsilon {budget:g}.
"""
"""Rules of three lines each: name, severity, and the minutes for which the expression of the second
line has held when the rule fires; then the summary."""


def alerts(plan: Plan) -> Iterator[Manifest]:
    privacy, spare = plan.section.privacy, plan.holders - plan.threshold
    budget = math.inf if privacy is None else privacy.budget
    fired = {
        "SecurepsHolderAway": spare > 0,
        "SecurepsHoldersAway": plan.holders > 0,
        "SecurepsBudgetNearlySpent": privacy is not None,
    }
    start = max(plan.bounds(name).start for name in plan.groups)
    over = "unless on () (secureps_finished == 1)"
    told = {"over": over, "spare": spare, "start": start, "budget": budget, "nearly": 0.9 * budget}
    lines = _ALERTS.format(**told).splitlines()
    for head, expression, summary in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, severity, minutes = head.split()
        if fired.get(name, True):
            yield {
                "alert": name,
                "expr": expression,
                **({} if minutes == "0" else {"for": f"{minutes}m"}),
                "labels": {"severity": severity},
                "annotations": {"summary": summary},
            }
