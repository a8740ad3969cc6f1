"""Pods: how a party runs in a container, whatever starts it again.

What a pod is given are files: a Secret of its private keys, ConfigMaps of the kit's public part and
of its configuration, and a volume of its own that outlives it. Its root file system is read-only
and its user nobody.

References: Kubernetes API v1, Pod Security Standards ("restricted").
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
        command: of its one container.
        memory: bytes that are asked for; None: nothing is known of them.
        bounded: half as much again is its limit: it is known that no more is needed.
        config: files of its configuration.
        probes: the container's, as the API has them.
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
    """A pod's template; its volume `data` is claimed by its controller, or named by `volume`.

    Args:
        more: of its specification.
    """
    return {"metadata": {"labels": dict(labels)}, "spec": {**_spec(pod), **more}}


def config_map(name: str, files: Mapping[str, bytes]) -> Manifest:
    """A ConfigMap; what is no plain text is in it as base64."""
    texts = {key: text for key, data in files.items() if (text := _text(data)) is not None}
    rest = {key: _base64(data) for key, data in files.items() if key not in texts}
    made: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    return made | ({"data": texts} if texts else {}) | ({"binaryData": rest} if rest else {})


def secret(name: str, files: Mapping[str, bytes]) -> Manifest:
    """A Secret."""
    data = {key: _base64(value) for key, value in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": data,
    }


def shared_maps(name: str, kit: PartyKit) -> list[Manifest]:
    """The kit's public part: what changes with the roster, and with certificates."""
    return [
        config_map(f"{name}-{folder or 'public'}", _folder(kit.public, folder)) for folder in SHARED
    ]


def claim(name: str, storage: str, storage_class: str | None) -> Manifest:
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


def _spec(pod: Pod) -> Manifest:
    shared = [_mount(folder or "public", path) for folder, path in SHARED.items()]
    mounts = [_mount("data", DATA, False), _mount("tmp", "/tmp", False), *shared]
    records = [] if pod.records is None else [_mount("records", RECORDS)]
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
                **({"ports": [_port(*port) for port in pod.ports]} if pod.ports else {}),
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
        "command": list(map(_filled, command)),
        "env": [{"name": key, "value": _filled(value)} for key, value in environment.items()],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _filled(text: str) -> str:
    """A text of which Kubernetes makes this one."""
    return _FILLED.sub(r"\g<0>\g<0>", text)


def _mebibytes(count: int) -> str:
    return f"{-(-count // (1 << 20))}Mi"


def _mount(name: str, path: str, read_only: bool = True) -> Manifest:
    made: Manifest = {"name": name, "mountPath": path}
    return made | ({"readOnly": True} if read_only else {})


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number}


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
    """What makes a kit and a run's folder of what is mounted, before every start."""
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
