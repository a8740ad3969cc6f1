"""Makes Kubernetes manifests of a plan and a kit: a folder for the servers, one for each site.

Pure: the same plan, kit and options give the same manifests. Each folder is for a cluster or
namespace of its own, so that no party's Secret is in another's. A client and its site's key holder
share a folder, but each has its own Secret, volume and policy. Prometheus reads servers' metrics
over mutual TLS, with an observer's certificate.

References: Prometheus Operator, monitoring.coreos.com/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from secureps.config.sections import toml_tables
from secureps.crypto.tls import tls_name
from secureps.errors import ConfigError
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.policy.plan import Plan
from secureps.run.deploy.parties import PartyKit, fill_options
from secureps.run.deploy.pods import (
    CONFIG,
    DATA,
    GRPC,
    KIT,
    METRICS,
    Manifest,
    Needs,
    Pod,
    Store,
    config_map,
    disruption_budget,
    job,
    labels,
    manifest,
    policy,
    probes,
    run_until_over,
    secret,
    services,
    shared_maps,
    stateful_set,
)
from secureps.run.up.folder import site_holder

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

    @property
    def coordinators(self) -> tuple[str, ...]:
        return (COORDINATOR, STANDBY) if self.standby else (COORDINATOR,)


@dataclass(frozen=True)
class Federation:
    """A federation to deploy: a sound plan, its files, and the kits of its parties.

    Args:
        files: the plan's file and those that it names.
        terms: the limits that each key holder sets.
        script: name and text of the clients' file; None: clients are left out.
        options: of `secureps join`; {name} stands for a client, {index} for its number in the kit.
        site: the text of the site's policy for clients.
    """

    plan: Plan
    files: Mapping[str, bytes]
    kits: Sequence[PartyKit]
    needs: Needs
    terms: Mapping[str, int] = field(default_factory=dict)
    script: tuple[str, bytes] | None = None
    options: Sequence[str] = ()
    site: bytes | None = None


def manifests(federation: Federation, cluster: Cluster) -> dict[str, Folder]:
    """Makes the folders; ConfigError if a party's name is invalid or not unique in a cluster."""
    names = _cluster_names(federation.kits)
    folders: dict[str, Folder] = {}
    observer = next((kit for kit in federation.kits if kit.role == "observer"), None)
    sites = {site_holder(kit.name): kit.name for kit in federation.kits if kit.role == "client"}
    for kit in federation.kits:
        if kit.role == "observer" or (kit.role == "client" and federation.script is None):
            continue
        site = sites.get(kit.name, kit.name) if kit.role == "holder" else kit.name
        home = SERVERS if kit.role in SERVING else names[site]
        folder = folders.setdefault(home, {})
        own = cluster.coordinators if kit.role == COORDINATOR else (names[kit.name],)
        for name in own:
            party = _Party(federation, cluster, kit, name, observer is not None)
            folder[f"{name}-keys.yaml"] = [secret(f"{name}-keys", kit.private)]
            folder[f"{name}-kit.yaml"] = shared_maps(name, kit)
            folder[f"{name}.yaml"] = party.objects()
    if SERVERS in folders:
        folders[SERVERS]["disruption.yaml"] = [disruption_budget()]
        if observer is not None:
            folders[SERVERS]["monitoring.yaml"] = list(
                _make_monitoring(federation, names, observer)
            )
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
    federation: Federation
    cluster: Cluster
    kit: PartyKit
    name: str
    monitored: bool

    def objects(self) -> list[Manifest]:
        cluster, role = self.cluster, self.kit.role
        pod = self._client() if role == "client" else self._server()
        made = job if role == "client" else stateful_set
        runs = made(pod, cluster.storage, cluster.storage_class)
        scraped = cluster.monitoring if self.monitored else None
        dials = [*cluster.coordinators, *self._peers] if role == "shard" else []
        if role == COORDINATOR and cluster.standby:
            dials = [self._other]
        found: list[Manifest] = []
        if role in SERVING:
            outside = cluster.address(self._place).rpartition(":")[0] if cluster.domain else None
            found = services(self.name, role, self.monitored, outside)
        beside = [self._store.egress_rule()] if self._store else []
        return [
            config_map(f"{self.name}-config", pod.config),
            *found,
            *runs,
            policy(self.name, role, scraped, dials, beside),
        ]

    @property
    def _store(self) -> Store | None:
        """The object store, which only servers need."""
        return self.cluster.store if self.kit.role in SERVING else None

    @property
    def _peers(self) -> list[str]:
        """The other shards, to which copies of blocks and moved blocks are sent."""
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
                made |= self.federation.plan.section.shard_memory
            case _:
                made |= {"coordinator": self._coordinator, **self.federation.terms}
        return made

    def _client(self) -> Pod:
        federation = self.federation
        assert federation.script is not None
        script, text = federation.script
        joins = ["secureps", "join", f"{CONFIG}/{script}", "--name", self.kit.name]
        joins += ["--server", self._coordinator, "--kit", KIT]
        joins += ["--state", f"{DATA}/runs/{self._run}/state", *_JSON_LOGS]
        joins.append(f"--ca-fingerprint={self.kit.ca_fingerprint}")
        config = {script: text}
        if federation.site is not None:
            config[SITE] = federation.site
            joins.append(f"--site={CONFIG}/{SITE}")
        return Pod(
            name=self.name,
            run=self._run,
            image=self.cluster.client_image or self.cluster.image,
            command=run_until_over(*joins, *self._own(federation.options)),
            kit=self.kit,
            config=config,
            memory=federation.needs.client,
            records=self.cluster.records,
            volume=f"{self.name}-data",
        )

    @property
    def _coordinator(self) -> str:
        return ",".join(map(self.cluster.address, self.cluster.coordinators))

    def _own(self, options: Sequence[str]) -> list[str]:
        clients = [kit.name for kit in self.federation.kits if kit.role == "client"]
        return fill_options(options, self.kit.name, clients.index(self.kit.name))


def _make_monitoring(
    federation: Federation, names: Mapping[str, str], observer: PartyKit
) -> Iterator[Manifest]:
    name, public = names[observer.name], observer.public
    yield secret(f"{name}-keys", {"tls.key": observer.private["tls.key"]})
    own = {path.rpartition("/")[2]: data for path, data in public.items() if path[:4] == "tls/"}
    yield config_map(f"{name}-tls", own)
    for each in federation.kits:
        if each.role in SERVING:
            yield service_monitor(names[each.name], each, name, observer.name)
    groups = [{"name": "secureps", "rules": list(alerts(federation.plan))}]
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


def service_monitor(name: str, server: PartyKit, theirs: str, certificate: str) -> Manifest:
    """Makes a ServiceMonitor, by which Prometheus reads one server.

    Args:
        name: the server's name in the cluster.
        theirs: the observer's name in the cluster.
        certificate: the observer's name on the roster; Prometheus shows its certificate.
    """
    shown: Manifest = {
        "serverName": tls_name(server.name),
        "ca": {"configMap": {"name": f"{theirs}-tls", "key": "ca.pem"}},
        "cert": {"configMap": {"name": f"{theirs}-tls", "key": f"{certificate}.pem"}},
        "keySecret": {"name": f"{theirs}-keys", "key": "tls.key"},
    }
    endpoint = {"port": "metrics", "scheme": "https", "interval": "30s", "tlsConfig": shown}
    own = labels(name, server.role)
    spec = {"selector": {"matchLabels": own}, "endpoints": [endpoint]}
    return manifest(_API, "ServiceMonitor", name, own, spec=spec)


def _alert(name: str, expression: str, minutes: int, urgent: bool, summary: str) -> Manifest:
    """Makes a rule that fires once `expression` has held for `minutes`."""
    return {
        "alert": name,
        "expr": expression,
        **({"for": f"{minutes}m"} if minutes else {}),
        "labels": {"severity": "critical" if urgent else "warning"},
        "annotations": {"summary": summary},
    }


def alerts(plan: Plan) -> Iterator[Manifest]:
    over = "unless on () (secureps_finished == 1)"
    yield _alert(
        "SecurepsCoordinatorUnseen",
        "absent(secureps_finished)",
        10,
        True,
        "Nothing is heard of the coordinator: nobody's update is taken.",
    )
    yield _alert(
        "SecurepsNotReady",
        "secureps_ready == 0",
        15,
        False,
        "A server cannot work: its journal is being read, or no run is founded.",
    )
    yield _alert(
        "SecurepsShardAway",
        'secureps_servers_away{role="shard"} > 0',
        5,
        True,
        "A shard is away: no version can be made.",
    )
    yield _alert(
        "SecurepsStandbyAway",
        f"secureps_standby_follows == 0 {over}",
        10,
        False,
        "The standby does not follow: if the coordinator's machine is lost now, the run is.",
    )
    if spare := plan.holders - plan.threshold:
        yield _alert(
            "SecurepsHolderAway",
            'secureps_servers_away{role="holder"} > 0',
            30,
            False,
            f"A key holder is away; when more than {spare} are, no sum can be opened.",
        )
    if plan.holders:
        yield _alert(
            "SecurepsHoldersAway",
            f'secureps_servers_away{{role="holder"}} > {spare}',
            5,
            True,
            "Too few key holders are there to open a sum.",
        )
    start = max(plan.bounds(name).start for name in plan.groups)
    yield _alert(
        "SecurepsTooFewClients",
        f"secureps_members_live < {start} {over}",
        30,
        False,
        f"Fewer clients are live than the {start} that a version waits for.",
    )
    yield _alert(
        "SecurepsVersionStalls",
        f"changes(secureps_group_version[2h]) == 0 {over}",
        30,
        False,
        "A group has had no new version for two hours: `secureps status` says what it waits for.",
    )
    yield _alert(
        "SecurepsCohortBurnt",
        'increase(secureps_records_journalled_total{kind="CohortBurnt"}[1h]) > 0',
        0,
        False,
        "A cohort was burnt: its updates are charged and in no version.",
    )
    yield _alert(
        "SecurepsStrangers",
        "rate(secureps_unauthenticated_requests_total[15m]) > 1",
        15,
        False,
        "Requests come without a signature of anybody on the roster: an old kit, or an attack.",
    )
    if plan.section.privacy is not None:
        budget = plan.section.privacy.budget
        yield _alert(
            "SecurepsBudgetNearlySpent",
            f"secureps_largest_epsilon > {0.9 * budget:g} {over}",
            0,
            False,
            f"A client has spent nine tenths of the plan's budget, epsilon {budget:g}.",
        )
