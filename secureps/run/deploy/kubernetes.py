"""A plan and a kit as manifests for Kubernetes: a folder for the aggregator, one for each other.

Pure: the same plan, kit and options give the same manifests. Each folder is for a cluster, or a
namespace, of its own: nobody's Secret is in another party's.

Prometheus reads servers over mutual TLS, with an observer's certificate.

References: Prometheus Operator, monitoring.coreos.com/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from secureps.config.sections import toml_tables
from secureps.crypto.identity import Role
from secureps.crypto.tls import tls_name
from secureps.errors import ConfigError
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan
from secureps.run.deploy.parties import PartyKit, own_options
from secureps.run.deploy.pods import (
    CONFIG,
    DATA,
    GRPC,
    KIT,
    METRICS,
    Manifest,
    Needs,
    Pod,
    config_map,
    disruption_budget,
    job,
    labels,
    policy,
    probes,
    secret,
    services,
    shared_maps,
    stateful_set,
    until_over,
)
from secureps.run.deploy.stores import Store

Folder = dict[str, list[Manifest]]
"""Files of a folder, by name."""

SITE = "site.toml"
"""What a client's site allows, beside its script."""

SERVERS = "servers"
"""The aggregator's folder."""
SERVING = ("coordinator", "shard")
_JSON_LOGS = ("--log-format", "json")

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
"""What a pod, a Service and a label can all be called, with what Kubernetes adds."""


@dataclass(frozen=True)
class Cluster:
    """Where a party runs.

    Args:
        domain: servers are coordinator.DOMAIN, and so on; None: all parties are in one cluster.
        storage: of a party's volume, as Kubernetes spells it.
        monitoring: the namespace of Prometheus.
    """

    image: str
    namespace: str
    storage: str
    domain: str | None = None
    storage_class: str | None = None
    monitoring: str = "monitoring"
    standby: bool = False
    store: Store | None = None

    def address(self, server: str) -> str:
        """HOST:PORT that a server is dialled at by everybody."""
        return f"{server}.{self.domain or f'{self.namespace}.svc'}:{GRPC}"

    def inside(self, server: str) -> str:
        """HOST:PORT that a server is dialled at from its own cluster."""
        return f"{server}.{self.namespace}.svc:{GRPC}"

    @property
    def coordinators(self) -> tuple[str, ...]:
        """What the coordinator may be found as, its standby too."""
        return (COORDINATOR, STANDBY) if self.standby else (COORDINATOR,)


@dataclass(frozen=True)
class Training:
    """What clients run.

    Args:
        script: name and text of the file; None: clients are left out.
        options: of `secureps join`; {name} stands for a client, {index} for its number in the kit.
        records: a PersistentVolumeClaim with the data holder's records.
        image: with what the script imports; None: that of servers.
        site: text of the file of what their site allows.
    """

    script: tuple[str, bytes] | None = None
    options: Sequence[str] = ()
    records: str | None = None
    image: str | None = None
    site: bytes | None = None


@dataclass(frozen=True)
class Federation:
    """What is deployed: a sound plan, its file and those that it names, and whose kits."""

    plan: Plan
    files: Mapping[str, bytes]
    kits: Sequence[PartyKit]
    needs: Needs
    training: Training = field(default_factory=Training)


def manifests(federation: Federation, cluster: Cluster) -> dict[str, Folder]:
    """Makes the folders; ConfigError if a party, or two, cannot have its name in a cluster."""
    names = _cluster_names(federation.kits)
    folders: dict[str, Folder] = {}
    monitored = _observer(federation, names)
    for kit in federation.kits:
        if kit.role == "observer" or (kit.role == "client" and federation.training.script is None):
            continue
        folder = SERVERS if kit.role in SERVING else names[kit.name]
        of = _Party(federation, cluster, kit, names[kit.name], monitored is not None)
        files = {f"{of.name}-keys.yaml": [secret(f"{of.name}-keys", kit.private)]}
        files[f"{of.name}-kit.yaml"] = shared_maps(of.name, kit)
        files[f"{of.name}.yaml"] = of.objects()
        if kit.role == COORDINATOR and cluster.standby:
            other = replace(of, name=STANDBY)
            files[f"{STANDBY}-keys.yaml"] = [secret(f"{STANDBY}-keys", kit.private)]
            files[f"{STANDBY}-kit.yaml"] = shared_maps(STANDBY, kit)
            files[f"{STANDBY}.yaml"] = other.objects()
        folders.setdefault(folder, {}).update(files)
    if SERVERS in folders:
        folders[SERVERS]["disruption.yaml"] = [disruption_budget("servers")]
        if monitored is not None:
            folders[SERVERS]["monitoring.yaml"] = list(_monitoring(federation, names, monitored))
    return {folder: _placed(files, cluster) for folder, files in folders.items()}


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


def _observer(federation: Federation, names: Mapping[str, str]) -> tuple[PartyKit, str] | None:
    found = (kit for kit in federation.kits if kit.role == "observer")
    return next(((kit, names[kit.name]) for kit in found), None)


@dataclass(frozen=True)
class _Party:
    federation: Federation
    cluster: Cluster
    kit: PartyKit
    name: str
    monitored: bool

    def objects(self) -> list[Manifest]:
        cluster, role = self.cluster, self.kit.role
        if role == "client":
            pod = replace(self._client(), volume=f"{self.name}-data")
            runs = job(pod, cluster.storage, cluster.storage_class)
        else:
            pod = self._server()
            runs = [stateful_set(pod, cluster.storage, cluster.storage_class)]
        scraped = cluster.monitoring if self.monitored else None
        dials = [*cluster.coordinators, *self._peers] if role == "shard" else []
        if role == COORDINATOR and cluster.standby:
            dials = [self._other]
        found: list[Manifest] = []
        if role in SERVING:
            outside = cluster.address(self._place).rpartition(":")[0] if cluster.domain else None
            found = services(self.name, role, self.monitored, outside)
        return [
            config_map(f"{self.name}-config", pod.config),
            *found,
            *runs,
            policy(self.name, role, scraped, dials, [self._store.way()] if self._store else []),
        ]

    @property
    def _store(self) -> Store | None:
        """Of a server alone: nobody else needs it."""
        return self.cluster.store if self.kit.role in SERVING else None

    @property
    def _peers(self) -> list[str]:
        """Other shards: blocks have copies on them, and move to them while a run trains."""
        shards = (kit.name for kit in self.federation.kits if kit.role == "shard")
        return [_cluster_name(shard) for shard in shards if shard != self.kit.name]

    @property
    def _run(self) -> str:
        return self.federation.plan.section.name

    @property
    def _place(self) -> str:
        return STANDBY if self.name == STANDBY else self.kit.name

    @property
    def _other(self) -> str:
        return COORDINATOR if self.name == STANDBY else STANDBY

    def _server(self) -> Pod:
        role, file, needs = self.kit.role, f"{self.kit.name}.toml", self.federation.needs
        kind = "keyholder" if role == "holder" else role
        config = {file: toml_tables(self._settings()).encode()}
        ports: list[tuple[str, int]] = [("grpc", GRPC)] if role in SERVING else []
        if role in SERVING and self.monitored:
            ports.append(("metrics", METRICS))
        if role == "coordinator":
            config |= self.federation.files
        return Pod(
            name=self.name,
            run=self._run,
            image=self.cluster.image,
            command=[
                *("secureps", "serve", kind, "--config", f"{CONFIG}/{file}"),
                *(["--standby"] if self.name == STANDBY else []),
                *_JSON_LOGS,
            ],
            kit=self.kit,
            config=config,
            memory=needs.shard if role == "shard" else needs.server,
            bounded=role == "shard",
            probes=probes(file),
            ports=tuple(ports),
            environment=self._store.environment if self._store else {},
            secret=self._store.secret if self._store else None,
        )

    def _settings(self) -> dict[str, object]:
        role, of = self.kit.role, f"{DATA}/runs/{self._run}"
        made: dict[str, object] = {"name": self.kit.name, "kit": KIT, "state": f"{of}/state"}
        open_to = "0.0.0.0" if self.monitored and role in SERVING else "127.0.0.1"
        made["metrics"] = f"{open_to}:{METRICS}"
        made["ca_fingerprint"] = self.kit.ca_fingerprint  # of another's kit nothing starts
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
                made |= self.federation.plan.section.shard_memory
            case _:
                made["coordinator"] = self._coordinator
                plan = self.federation.plan
                made["minimum"] = min(plan.bounds(name).minimum for name in plan.all_groups)
                made["threshold"] = plan.threshold
        return made

    def _client(self) -> Pod:
        training = self.federation.training
        assert training.script is not None
        script, text = training.script
        joins = ["secureps", "join", f"{CONFIG}/{script}", "--name", self.kit.name]
        joins += ["--server", self._coordinator, "--kit", KIT]
        joins += ["--state", f"{DATA}/runs/{self._run}/state", *_JSON_LOGS]
        joins.append(f"--ca-fingerprint={self.kit.ca_fingerprint}")
        config = {script: text}
        if training.site is not None:
            config[SITE] = training.site
            joins.append(f"--site={CONFIG}/{SITE}")
        return Pod(
            name=self.name,
            run=self._run,
            image=training.image or self.cluster.image,
            command=until_over(*joins, *self._own(training.options)),
            kit=self.kit,
            config=config,
            memory=self.federation.needs.client,
            records=training.records,
        )

    @property
    def _coordinator(self) -> str:
        return ",".join(map(self.cluster.address, self.cluster.coordinators))

    def _own(self, options: Sequence[str]) -> list[str]:
        clients = [kit.name for kit in self.federation.kits if kit.role == "client"]
        return own_options(options, self.kit.name, clients.index(self.kit.name))


def _monitoring(
    federation: Federation, names: Mapping[str, str], observer: tuple[PartyKit, str]
) -> Iterator[Manifest]:
    kit, name = observer
    yield secret(f"{name}-keys", {"tls.key": kit.private["tls.key"]})
    own = {path.rpartition("/")[2]: d for path, d in kit.public.items() if path.startswith("tls/")}
    yield config_map(f"{name}-tls", own)
    for each in federation.kits:
        if each.role in SERVING:
            yield service_monitor(names[each.name], each.name, each.role, (name, kit.name))
    yield prometheus_rule("secureps", list(alerts(federation.plan)))


def _placed(files: Folder, cluster: Cluster) -> Folder:
    policies = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    space: Manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": cluster.namespace, "labels": policies},
    }
    placed: Folder = {"00-namespace.yaml": [space]}
    for file, objects in sorted(files.items()):
        placed[file] = [_in(cluster.namespace, each) for each in objects]
    return placed


def _in(namespace: str, manifest: Manifest) -> Manifest:
    own = manifest["metadata"]
    assert isinstance(own, dict)
    return manifest | {"metadata": {"name": own["name"], "namespace": namespace} | own}


# --- what Prometheus reads, and what it wakes somebody for -----------------------

_API = "monitoring.coreos.com/v1"


@dataclass(frozen=True)
class Alert:
    """A rule: it fires where `expression` has held for `minutes`."""

    name: str
    expression: str
    minutes: int
    urgent: bool
    summary: str


def service_monitor(name: str, party: str, role: Role, observer: tuple[str, str]) -> Manifest:
    """Says how Prometheus reads one server.

    Args:
        name, party: the server's in the cluster, and on the roster.
        observer: in the same two places, whose certificate is shown.
    """
    theirs, certificate = observer
    shown: Manifest = {
        "serverName": tls_name(party),
        "ca": {"configMap": {"name": f"{theirs}-tls", "key": "ca.pem"}},
        "cert": {"configMap": {"name": f"{theirs}-tls", "key": f"{certificate}.pem"}},
        "keySecret": {"name": f"{theirs}-keys", "key": "tls.key"},
    }
    endpoint = {"port": "metrics", "scheme": "https", "interval": "30s", "tlsConfig": shown}
    return {
        "apiVersion": _API,
        "kind": "ServiceMonitor",
        "metadata": {"name": name, "labels": labels(name, role)},
        "spec": {"selector": {"matchLabels": labels(name, role)}, "endpoints": [endpoint]},
    }


def alerts(plan: Plan) -> Iterator[Alert]:
    """The rules for a plan's run."""
    over = "unless on () (secureps_finished == 1)"
    yield Alert(
        "SecurepsCoordinatorUnseen",
        "absent(secureps_finished)",
        10,
        True,
        "Nothing is heard of the coordinator: nobody's update is taken.",
    )
    yield Alert(
        "SecurepsNotReady",
        "secureps_ready == 0",
        15,
        False,
        "A server cannot work: its journal is being read, or no run is founded.",
    )
    yield Alert(
        "SecurepsShardAway",
        'secureps_servers_away{role="shard"} > 0',
        5,
        True,
        "A shard is away: no version can be made.",
    )
    yield Alert(
        "SecurepsStandbyAway",
        f"secureps_standby_follows == 0 {over}",
        10,
        False,
        "The standby does not follow: if the coordinator's machine is lost now, the run is.",
    )
    if spare := plan.holders - plan.threshold:
        yield Alert(
            "SecurepsHolderAway",
            'secureps_servers_away{role="holder"} > 0',
            30,
            False,
            f"A key holder is away; when more than {spare} are, no sum can be opened.",
        )
    if plan.holders:
        yield Alert(
            "SecurepsHoldersAway",
            f'secureps_servers_away{{role="holder"}} > {spare}',
            5,
            True,
            "Too few key holders are there to open a sum.",
        )
    start = max(plan.bounds(name).start for name in plan.groups)
    yield Alert(
        "SecurepsTooFewClients",
        f"secureps_members_live < {start} {over}",
        30,
        False,
        f"Fewer clients are live than the {start} that a version waits for.",
    )
    yield Alert(
        "SecurepsVersionStalls",
        f"changes(secureps_group_version[2h]) == 0 {over}",
        30,
        False,
        "A group has had no new version for two hours: `secureps status` says what it waits for.",
    )
    yield Alert(
        "SecurepsCohortBurnt",
        'increase(secureps_records_journalled_total{kind="CohortBurnt"}[1h]) > 0',
        0,
        False,
        "A cohort was burnt: its updates are charged and in no version.",
    )
    yield Alert(
        "SecurepsStrangers",
        "rate(secureps_unauthenticated_requests_total[15m]) > 1",
        15,
        False,
        "Requests come without a signature of anybody on the roster: an old kit, or an attack.",
    )
    if plan.section.privacy is not None:
        budget = plan.section.privacy.budget
        yield Alert(
            "SecurepsBudgetNearlySpent",
            f"secureps_largest_epsilon > {0.9 * budget:g} {over}",
            0,
            False,
            f"A client has spent nine tenths of the plan's budget, epsilon {budget:g}.",
        )


def prometheus_rule(name: str, rules: Sequence[Alert]) -> Manifest:
    """The rules as one object."""

    def rule(each: Alert) -> Manifest:
        return {
            "alert": each.name,
            "expr": each.expression,
            **({"for": f"{each.minutes}m"} if each.minutes else {}),
            "labels": {"severity": "critical" if each.urgent else "warning"},
            "annotations": {"summary": each.summary},
        }

    groups = [{"name": name, "rules": [rule(each) for each in rules]}]
    return {
        "apiVersion": _API,
        "kind": "PrometheusRule",
        "metadata": {"name": name},
        "spec": {"groups": groups},
    }
