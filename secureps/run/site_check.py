"""`secureps check --site`: what a site's policy says of a plan, key by key, before it joins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from secureps.client.script import speaks_flower
from secureps.client.site_policy import SitePolicy, read_site
from secureps.errors import ConfigError
from secureps.messages.charge import Release
from secureps.policy.counting import publishes
from secureps.policy.plan import Plan
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.member.terms import Verdict
from secureps.run.check import READ_ONLY, Permit, model, read
from secureps.run.report.tables import filled
from secureps.store.budget import BudgetLedger, epsilon_of, without_privacy
from secureps.wording import counted


def held_against(path: Path, site: Path, permit: Permit = READ_ONLY) -> tuple[Verdict, ...]:
    """What each key of a site's policy says of a plan's file; no verdict where a key is not set.

    A script that the site does not allow is not run, whatever is permitted.

    Raises:
        ConfigError, PlanRefused: one of the two files is unsound.
    """
    policy = read_site(site)
    plan, clients = read(path, permit)
    script = None if clients is None else clients.script
    of_script = tuple(_of_script(policy, script))
    runs = permit.run_script and accepted(of_script)
    if runs and clients is not None and speaks_flower(clients.script):
        plan = model(plan, path, clients, permit).plan  # with what its ServerApp asks for
    return (*of_script, *_verdicts(policy, plan))


def _of_script(policy: SitePolicy, script: Path | None) -> Iterator[Verdict]:
    if policy.scripts is not None:
        objection = ""
        try:
            policy.demand_script(script)
        except ConfigError as error:
            objection = str(error)
        allowed = counted(len(policy.scripts), "digest")
        yield Verdict("scripts", allowed, str(script or "names none"), objection)


def _verdicts(policy: SitePolicy, plan: Plan) -> Iterator[Verdict]:
    for verdict in policy.terms.verdicts(plan):
        yield verdict if verdict.key != "plans" or plan.has_digest else _of_unread(verdict, plan)
    if policy.records is not None:
        counts = "counts by it" if publishes(plan.section) else "counts all alike"
        yield Verdict("records", str(policy.records), counts)
    if policy.ledger is not None and policy.terms.budget is not None:
        yield _of_ledger(policy.ledger, policy.terms.budget, plan)
    if policy.terms.updates_per_hour is not None:
        most = str(policy.terms.updates_per_hour)
        yield Verdict("updates_per_hour", most, "as its rule asks: beyond it the client rests")


def _of_unread(verdict: Verdict, plan: Plan) -> Verdict:
    objection = (
        f"the plan's digest is unknown: initial lies on another machine, {plan.section.initial}, "
        "and was not fetched; --fetch fetches it"
    )
    return replace(verdict, plans="unknown", objection=objection)


def _of_ledger(path: Path, budget: float, plan: Plan) -> Verdict:
    """What is left of a site's budget: none refuses every plan, little ends a client early."""
    own = BudgetLedger(path)
    known = [fact for _, fact in own.facts()]
    privacy, objection = plan.section.privacy, ""
    has = "nothing" if privacy is None else f"up to {privacy.budget:g} ({privacy.unit})"
    spent = epsilon_of(known, OWN_DELTA)
    if spent >= budget:
        objection = f"{spent:.3f} of {budget:g} is spent: nothing more is sealed at this site"
    unit = "client" if any(isinstance(fact, Release) for fact in known) else "record"
    if known and privacy is not None and privacy.unit != unit:
        objection = (
            f"it counts by {unit}, and the plan by {privacy.unit}: no epsilon is the sum of both; "
            "name another file as ledger for this plan"
        )
    exact = without_privacy(sum(run.exact for run in own.spent()))
    more = exact and f", and {exact}"
    return Verdict("ledger", f"{spent:.3f} of {budget:g} is spent{more}", has, objection)


def tables(verdicts: tuple[Verdict, ...], site: Path) -> Iterable[Table | Text]:
    """The tables for people; the last line says whether a client of this site takes part."""
    yield filled(
        f"what {site} says of the plan",
        ("key", "the site's", "the plan's", "verdict"),
        [(v.key, v.own, v.plans, "refused" if v.objection else "kept to") for v in verdicts],
    )
    for each in verdicts:
        if each.objection:
            yield Text(f"- {each.key}: {each.objection}", "red")
    refused = not accepted(verdicts)
    yield Text(
        f"a client of this site {'refuses' if refused else 'takes part in'} a run of this plan",
        "bold",
    )


def record(verdicts: tuple[Verdict, ...]) -> dict[str, Any]:
    """The same as plain values for JSON."""
    return {"accepted": accepted(verdicts), "verdicts": [asdict(each) for each in verdicts]}


def runs_nothing(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether the plan's script is one that this site does not allow."""
    return any(each.key == "scripts" and each.objection for each in verdicts)


def accepted(verdicts: tuple[Verdict, ...]) -> bool:
    """Whether a client of this site takes part."""
    return not any(each.objection for each in verdicts)
