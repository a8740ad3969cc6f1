"""What Prometheus reads of servers, and what it wakes somebody for.

Metrics are those of `service.metrics`, over mutual TLS with an observer's certificate.

References: Prometheus Operator, monitoring.coreos.com/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from secureps.crypto.credentials import tls_name
from secureps.crypto.identity import Role
from secureps.policy.plan import Plan
from secureps.run.deploy.pods import Manifest, labels

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
