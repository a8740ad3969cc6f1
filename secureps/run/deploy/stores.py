"""An object store that pods of servers reach: keys from a Secret, and the way there.

The Secret is the operator's, and is only named here: no key to the store is in what is written.

References: Kubernetes API v1 (envFrom), networking.k8s.io/v1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from secureps.errors import ConfigError, naming
from secureps.files.objects import ObjectStore, shown
from secureps.run.deploy.pods import Manifest

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
        blocks = [{"ipBlock": {"cidr": each}} for each in self.networks or _own(host) or _OUTSIDE]
        return {"to": blocks, "ports": [{"protocol": "TCP", "port": port}]}


def store_of(
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
    if shown(url) != url:
        raise ConfigError(
            f"{key}: {shown(url)}: a user, a password or a query would be in a ConfigMap, for all "
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
    if not sound or shown(url) != url:
        raise ConfigError(
            f"--store-endpoint {shown(url)}: no server's URL without user and query, as "
            "https://minio.example:9000"
        )


def _own(host: str) -> tuple[str, ...]:
    """The network of an address; none of a name, whose addresses may change."""
    try:
        return (str(ip_network(ip_address(host))),)
    except ValueError:
        return ()
