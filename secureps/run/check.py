"""`secureps check`: explains a plan on one page, and says whether a site's policy allows it.

The plan may come from a stranger. Without a `Permit` none of its code runs, no machine is dialled
and its script is not opened; facts that would need this are reported as unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.text import Text

from secureps.client.initial_model import read_initial, schema_of
from secureps.client.script import is_flower_app, refuse_privacy
from secureps.client.site_policy import SitePolicy, read_site
from secureps.config.plan import ClientPrivacySection, FederationSection
from secureps.config.sections import (
    MEMORY,
    PATTERNS,
    memory_bytes,
    read_toml,
)
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, naming
from secureps.files.objects import initial_path
from secureps.messages.charge import Fact
from secureps.messages.run import Schema
from secureps.policy.explain.explanation import (
    DEFAULT_LINK,
    CommitteeCost,
    Explanation,
    GroupCost,
    Link,
    Price,
    RuleText,
    explain,
    row_block_words,
    touched_by_few,
)
from secureps.policy.memory import MemoryUse, Service
from secureps.policy.plan import Plan, load_plan, publishes_counts, publishes_exact_counts
from secureps.policy.spending import Choice, choose_noise, make_fact, mark_unit, refuse_epsilon
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained, remarks
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.member.terms import Verdict
from secureps.run.initial_schema import (
    Values,
    count_values,
    read_initial_schema,
    read_schema,
    settle_schema,
    size_options,
)
from secureps.run.report.status_tables import WordTable
from secureps.run.script.process import assign, script_process
from secureps.run.server_app import run_server_app, share_settings
from secureps.run.simulate.scenario_file import load_scenario, refuse_few
from secureps.run.up.folder import shard_names
from secureps.store.budget import BudgetLedger, demand_unit, epsilon_of, without_privacy
from secureps.wire.grpc import servers
from secureps.wire.grpc.admission import SHARES
from secureps.wire.grpc.framing import CONNECTION_BUFFER, PAYLOADS_AT_ONCE, PIECE, STREAM_BUFFER
from secureps.wording import counted, duration, named, size

T = TypeVar("T")

PROGRAM_BYTES = 86_000_000
"""Resident memory of a shard without a model: Python 3.11, numpy, gRPC (`benchmarks.memory`,
"idle")."""
KERNEL_BYTES = 130_000_000
"""Additional resident memory once a sum was opened under rlwe: numba and compiled kernels."""


@dataclass(frozen=True)
class Permit:
    """Permission for what `check` may do with a plan besides reading it.

    `script` takes the place of the plan's own.
    """

    run_script: bool = False
    fetch: bool = False
    script: Path | None = None


READ_ONLY = Permit()


def check(
    path: Path,
    values: Values | None = None,
    memory: str | None = None,
    schema: Path | None = None,
    permit: Permit = READ_ONLY,
    epsilon: float | None = None,
    link: Link = DEFAULT_LINK,
) -> Explanation:
    """Reads a plan, refuses it or explains it.

    Args:
        path: the file of a plan, or of a scenario with its plan and clients.
        values: the number of values of the model; default: as the file `schema` says, else the
            plan's `initial`, else the script's model, else unknown.
        memory: the limit of each shard; default: the federation's, or no limit.
        epsilon: what a client may spend: noise or versions are chosen for it.
        link: of a client, for the seconds that an update takes.
    """
    if memory is not None and re.fullmatch(MEMORY, memory) is None:
        raise ConfigError(f"--memory: {memory!r} is not {PATTERNS[MEMORY]}")
    if not (link.up > 0 and link.down > 0):
        raise ConfigError(
            f"--up {link.up:g}, --down {link.down:g}: a link carries more than 0 Mbit/s"
        )
    refuse_two_sizes(values, schema, permit)
    plan, clients = read_plan(path, permit, epsilon)
    if epsilon is not None:
        refuse_epsilon(epsilon, plan.section)
    with naming(path):
        if values is None:
            found = find_model(plan, path, clients, permit, schema, rehearsed=True)
            plan = found.plan
            of_model = None if found.schema is None else plan.layout(found.schema).groups
            sizes = None if of_model is None else {group.name: group.size for group in of_model}
        else:
            found, sizes = Model(plan, None, (), ()), count_values(plan, values)
        choice = None
        if epsilon is not None:
            plan, choice = _choose_for(plan, path, sizes, epsilon)
        around = assume_service(plan, clients.clients if clients else None)
        if memory is not None:
            around = replace(around, memory=memory_bytes(memory))
        explained = explain(plan, sizes, around, found.examples, found.lengths, found.notes, link)
        unknown = list_unknown(plan, clients, permit, sizes is not None)
        return replace(explained, unknown=unknown, choice=choice)


STAND_IN, UNLIMITED = 1.0, 1e9
"""A provisional noise multiplier and budget for a plan that states none, until they are chosen."""


def _choose_for(
    plan: Plan, path: Path, sizes: Mapping[str, int] | None, epsilon: float
) -> tuple[Plan, Choice]:
    if sizes is None and isinstance(plan.section.privacy, ClientPrivacySection):
        raise ConfigError(
            "--epsilon: under client-level privacy it depends on how large the model is: give "
            f"{size_options(plan)}, --schema FILE or --run-script"
        )
    laid = () if sizes is None else plan.lay_out_sizes(sizes)
    sent = {group.name: group.sent for group in laid} or dict.fromkeys(plan.groups, 1)
    stated = "noise_multiplier" in read_toml(path).get("privacy", {"noise_multiplier": ""})
    return choose_noise(plan, sent, epsilon, stated)


def refuse_two_sizes(values: Values | None, schema: Path | None, permit: Permit) -> None:
    """Refuses two options that both give the model's size (ConfigError)."""
    told = {
        "--values": values is not None,
        "--schema": schema is not None,
        "--run-script": permit.run_script,
    }
    if len(given := [option for option in told if told[option]]) > 1:
        raise ConfigError(f"{named(given)}: each says how large the model is: give one of them")


def list_unknown(
    plan: Plan, clients: FederationSection | None, permit: Permit, sized: bool
) -> tuple[str, ...]:
    initial, told = plan.section.initial, list[str]()
    runs = clients is not None and not permit.run_script
    if not sized:
        ways = [f"give {size_options(plan)}, or --schema FILE with its tensors' shapes"]
        ways += ["have --fetch fetch initial"] if not plan.has_digest else []
        ways += ["have --run-script run the plan's script, which makes the model"] if runs else []
        spends = isinstance(plan.section.privacy, ClientPrivacySection)
        told.append(
            "how large the model is, and so what an update costs, what servers need"
            f"{', what privacy spends' if spends else ''} and what noise does: {'; or '.join(ways)}"
        )
    if not plan.has_digest:
        told.append(
            f"the plan's digest, which covers initial: it lies on another machine, {initial}, and "
            "was not fetched; --fetch fetches it"
        )
    if permit.run_script and clients is None:
        told.append(
            "whether a script takes the plan: --run-script ran none, because the plan has no "
            "[federation] that names one"
        )
    if runs and clients is not None:
        gone = "" if Path(clients.script).exists() else ", which is not there,"
        told.append(
            f"whether {clients.script}{gone} takes the plan: what it asks for in [training] is not "
            "checked, and a Flower app's ServerApp adds to the plan; --run-script runs it"
        )
    return tuple(told)


def assume_service(plan: Plan, clients: int | None = None) -> Service:
    """Returns the servers that a plan asks for, with its largest cohort connected by default."""
    memory = plan.section.shard_memory.get("memory")
    return Service(
        shards=shard_names(plan.section.shards),
        clients=clients or max(plan.bounds(name).most for name in plan.groups),
        program=PROGRAM_BYTES + KERNEL_BYTES * (plan.has_committee),
        connection=CONNECTION_BUFFER,
        stream=STREAM_BUFFER,
        threads=servers.TRANSFERS,
        streams=PAYLOADS_AT_ONCE,
        piece=PIECE,
        in_flight=servers.IN_FLIGHT_BYTES,
        shares=SHARES,
        memory=None if memory is None else memory_bytes(memory),
    )


def read_plan(
    path: Path, permit: Permit, epsilon: float | None = None
) -> tuple[Plan, FederationSection | None]:
    """Reads the plan and the clients of a plan's or a scenario's file; `script` becomes absolute.

    The script is checked only if it may run. With an `epsilon` the plan may lack noise and budget,
    which are chosen later.
    """
    if "plan" in read_toml(path):
        scenario = load_scenario(path, permit.fetch, permit.run_script)
        section = scenario.section
        return scenario.plan, FederationSection(
            script=str(scenario.source), clients=section.clients, settings=section.settings
        )
    lacking = {} if epsilon is None else {"noise_multiplier": STAND_IN, "budget": UNLIMITED}
    plan = load_plan(path, fetch=permit.fetch, lacking=lacking)
    federation = plan.section.federation
    if federation is not None:
        refuse_few(path, plan, federation.clients)
    elif permit.script is not None:
        federation = FederationSection(script=permit.script.name, clients=1)
    else:
        return plan, None
    script = permit.script or path.parent / federation.script
    if permit.run_script:
        refuse_privacy(script, plan)
    return plan, federation.model_copy(update={"script": str(script)})


@dataclass(frozen=True)
class Model:
    """The model of a plan; `plan` includes what its ServerApp asks for.

    Args:
        schema: None if nothing that may be read says it.
        examples: the number of each holder's examples; empty if it is unknown.
        lengths: of an update that was tried (`scoring.measure_lengths`).
    """

    plan: Plan
    schema: Schema | None
    notes: tuple[str, ...]
    examples: tuple[int, ...]
    lengths: Mapping[str, float] = field(default_factory=dict)


MOST_ASKED = 64
"""With more data holders than this, no trainers are made to count examples and touched rows."""


def find_model(
    plan: Plan,
    path: Path,
    clients: FederationSection | None,
    permit: Permit,
    schema: Path | None = None,
    rehearsed: bool = False,
) -> Model:
    """Finds the model in a file or the plan's `initial`, or asks the script in another process.

    Args:
        schema: a file of the model's tensors, in place of `initial`.
        rehearsed: the script also trains and evaluates once; not a Flower app.
    """
    if clients is None or not permit.run_script:
        told = read_initial_schema(plan) if plan.has_digest else None
        told = told if schema is None else read_schema(schema)
        notes = () if told is None else remarks(plan, told, {})
        return Model(plan, told, notes, ())
    if not plan.has_digest:
        raise ConfigError(
            f"--run-script: the script begins from initial, {plan.section.initial}, which lies on "
            "another machine: add --fetch"
        )
    seed, code = UnsafeSeed(0), Path(clients.script)
    founding = run_server_app(plan, code, clients.settings, clients.clients, seed)
    if founding is not None:
        plan = Plan(founding.section, plan.initial_digest)
        return Model(plan, schema_of(founding.founded.model), founding.notes, ())
    settings = share_settings(plan, code, clients.settings, clients.clients)
    exact = publishes_exact_counts(plan.section) or plan.section.privacy is None
    asked = clients.clients <= MOST_ASKED
    asked = asked and (exact or bool(plan.section.tables))
    numbers = range(clients.clients if asked else 1)
    holders = {f"client-{number:02d}": {**settings, "partition": number} for number in numbers}
    own = dict(zip(holders, clients.records, strict=False))
    assignment = assign(code, plan, holders, settings, {}, None, own)
    with (
        TemporaryDirectory(prefix="secureps-") as logs,
        script_process(assignment, Path(logs)) as script,
        naming(path, ConfigError, code.absolute()),
    ):
        made, kinds = script.look()
        made = settle_schema(plan, made)
        examples, touching = script.count() if asked else ((), {})
        lengths, said = dict[str, float](), tuple[str, ...]()
        if rehearsed and not is_flower_app(code):
            place = plan.section.initial
            start = read_initial(place, initial_path(place))[0] if place else {}
            lengths, said = script.rehearse(start)
    refuse_statistics(plan, made, kinds)
    refuse_trained(plan, made, kinds)
    few = touched_by_few(plan, touching) if asked else ()
    notes = (*said, *remarks(plan, made, kinds), *row_block_words(plan, few))
    return Model(plan, made, notes, examples if exact else (), lengths)


def record(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain values for JSON; infinity, which JSON lacks, becomes null."""
    text = json.dumps(asdict(explanation))
    made: dict[str, Any] = json.loads(text, parse_constant=lambda name: None)
    return made


def tables(explanation: Explanation) -> Iterable[WordTable | Text]:
    copies = f", each block on {explanation.replicas}" if explanation.replicas > 1 else ""
    unchecked = ", but for what is unknown (see the end)" if explanation.unknown else ""
    yield Text(
        f"{explanation.name}: sound{unchecked}. {counted(explanation.versions, 'version')} under "
        f"{explanation.cipher}, {counted(explanation.shards, 'shard')}{copies}.",
        "bold",
    )
    yield Text(f"digest: {explanation.digest or UNKNOWN}")
    yield WordTable(
        "who sees what",
        ("role", "sees", "never sees"),
        [(s.role, s.sees, s.never) for s in explanation.sights],
    )
    yield Text("Who can open a single update:")
    for who in explanation.collusion:
        yield Text(f"- {who}")
    yield Text(f"What they find: {explanation.opened}.\n")
    yield _rule_table(explanation.rules)
    yield _price_table(explanation.price)
    if explanation.choice is not None:
        yield _choice_text(explanation.choice)
    yield _cost_table(explanation.groups, explanation.link)
    if explanation.committee is not None:
        yield _committee_table(explanation.committee)
    if explanation.shard is not None:
        yield _shard_table(explanation.shard)
    for remark in explanation.remarks:
        warns = remark.startswith("WARNING")
        yield Text(remark, "bold red") if warns else Text(f"note: {remark}", "yellow")
    for text in explanation.unknown:
        yield Text(f"unknown: {text}", "bold yellow")


UNKNOWN = "unknown"


def _show(value: T | None, told: Callable[[T], str]) -> str:
    return UNKNOWN if value is None else told(value)


def _quantity_table(
    title: str,
    heads: Iterable[str],
    quantities: Mapping[str, Callable[[T], str]],
    things: Sequence[T],
) -> WordTable:
    """Makes a table with one row for each quantity, so that it fits narrow terminals."""
    return WordTable(title, heads, [(name, *map(of, things)) for name, of in quantities.items()])


def _rule_table(rules: tuple[RuleText, ...]) -> WordTable:
    quantities: dict[str, Callable[[RuleText], str]] = {
        "a version": lambda r: r.rule,
        "an update may be behind": lambda r: r.behind,
        "weights by the rule": lambda r: r.weights,
        "a client is charged": lambda r: r.charged,
        "the coordinator sees of a client": lambda r: r.seen,
    }
    heads = ("group", *(rule.group for rule in rules)) if len(rules) > 1 else ("what", "how")
    return _quantity_table("what the rules do", heads, quantities, rules)


def _price_table(price: Price | None) -> WordTable | Text:
    if price is None:
        return Text("what privacy spends: nothing is private")

    def at_delta(epsilon: float) -> str:
        return f"{epsilon:.3f} at delta {price.delta:g}"

    def versions(count: int) -> str:
        return counted(count, "version")

    return WordTable(
        "what privacy spends",
        ("what", "how much"),
        [
            ("protected", price.unit),
            ("against", price.against),
            ("epsilon of one version", _show(price.epsilon_version, at_delta)),
            ("epsilon of the run", _show(price.epsilon_run, at_delta)),
            (
                "budget",
                f"{price.budget:g}"
                + (f": enough for {versions(price.versions)}" if price.versions else ""),
            ),
            *(
                (
                    "noise on a coordinate" + (f" of {name}" if len(price.noise) > 1 else ""),
                    f"standard deviation {price.deviation[name]:.3g} in the smallest cohort's "
                    f"mean: all of it is {noise:.3g} times as long as {price.update[name]}, and "
                    f"over all versions {price.noise_run[name]:.3g} times",
                )
                for name, noise in price.noise.items()
            ),
            *(
                (
                    f"noise on metric {name}",
                    f"+- {noise:.2g} (standard deviation in the smallest cohort's mean), of a "
                    f"metric within +-{most:g}",
                )
                for name, (noise, most) in price.metrics.items()
            ),
        ],
    )


def _choice_text(choice: Choice) -> Text:
    lines = "\n".join(f"    {line}" for line in choice.lines)
    return Text(
        f"For epsilon {choice.epsilon:g} at delta {choice.delta:g} set these in the plan, in its "
        f"own tables; it is explained here as it is then (a client spends {choice.spends:.3f} in "
        f"{counted(choice.versions, 'version')} with noise_multiplier = "
        f"{choice.noise_multiplier:g}):\n\n{lines}\n"
        + (f"\nOr: {choice.otherwise}.\n" if choice.otherwise else "")
    )


def _committee_table(cost: CommitteeCost) -> WordTable:
    return WordTable(
        "what the committee of key holders costs: hardly more for a larger model",
        ("what", "how much"),
        [
            ("must agree", f"{cost.threshold} of {cost.holders}"),
            (
                "withstood",
                f"a malicious aggregator with {counted(cost.withstood, 'corrupt key holder')}",
            ),
            (
                "ring",
                f"N = {cost.degree}, q of {cost.modulus_bits} bits, {cost.digits} values in a "
                f"coefficient",
            ),
            (
                "security",
                f"{cost.security_bits} bits, classical: q of at most {cost.most_modulus_bits} "
                f"bits at this N ({cost.source})",
            ),
            (
                "core-SVP",
                "{:.0f} bits classical, {:.0f} quantum, after hints".format(*cost.core_svp),
            ),
            ("weakest link", cost.weakest),
            ("for the same bytes a value", f"bits up to {cost.bits}, or capacity {cost.capacity}"),
            ("of each submission", f"{size(cost.submission)}: envelopes, commitments, correction"),
            (
                "traffic of a key holder",
                f"about {size(cost.down)} in and {size(cost.up)} out for a version of the "
                f"largest cohorts",
            ),
        ],
    )


def _cost_table(groups: tuple[GroupCost, ...], link: Link) -> WordTable:
    quantities: dict[str, Callable[[GroupCost], str]] = {
        "values": lambda g: _show(g.values, lambda n: f"{n:,}"),
        "blocks": lambda g: _show(g.blocks, str),
        "bits": lambda g: str(g.bits),
        "bits left in a mean": lambda g: "-" if g.bits_left is None else f"{g.bits_left:.1f}",
        "range of a value": lambda g: _show(g.range, lambda most: f"+- {most:.3g}"),
        "step": lambda g: _show(g.step, lambda step: f"{step:.2g}"),
        "cohort": lambda g: f"{g.cohort[0]} to {g.cohort[1]}",
        "up per update": lambda g: _show(g.bytes_up, size),
        "bytes a value": lambda g: _show(g.bytes_value, lambda n: f"{n:.{1 if n >= 1 else 2}f}"),
        "to fp32": lambda g: _show(g.ratio, lambda ratio: f"{ratio:.2f} x"),
        "down at most": lambda g: _show(g.bytes_down, size),
        f"time up, {link.up:g} Mbit/s": lambda g: _show(g.seconds_up, duration),
        f"time down, {link.down:g} Mbit/s": lambda g: _show(g.seconds_down, duration),
        "client's CPU, about": lambda g: _show(g.client_cpu, duration),
        "servers' CPU, about": lambda g: _show(g.server_cpu, duration),
        "client's memory": lambda g: _show(g.client_memory, size),
    }
    alike = [list(same) for _, same in groupby(groups, lambda group: replace(group, name=""))]
    first = [same[0] for same in alike]
    heads = ("group", *map(_name_alike, alike)) if len(groups) > 1 else ("what", "how much")
    if all(group.bits_left is None for group in groups):
        del quantities["bits left in a mean"]
    return _quantity_table("what it costs", heads, quantities, first)


def _name_alike(alike: list[GroupCost]) -> str:
    if len(alike) == 1:
        return alike[0].name
    return f"{alike[0].name} to {alike[-1].name}, each"


def _shard_table(need: MemoryUse) -> WordTable:
    versions = "of it 3 versions" if need.limit is None else "of it versions"
    parts: dict[str, Callable[[MemoryUse], str]] = {
        "memory": lambda use: size(use.memory),
        "of which the program": lambda use: size(use.program),
        versions: lambda use: size(use.state),
        "of which one block's work": lambda use: size(use.work),
        "of which uploads": lambda use: size(use.uploads),
        "of which connections": lambda use: size(use.connections),
        "disk": lambda use: size(use.disk),
        "disk for versions": lambda use: size(use.files),
        "disk for checkpoints": lambda use: size(use.checkpoints),
    }
    title = (
        f"what a shard needs at its peak, about, with {counted(need.shards, 'shard')} and "
        f"{counted(need.clients, 'client')} connected"
    )
    return _quantity_table(title, ("what", "how much"), parts, [need])


# --- a site's policy --------------------------------------------------------------


def check_site(path: Path, site: Path, permit: Permit = READ_ONLY) -> tuple[Verdict, ...]:
    """Judges a plan's file by each key that a site's policy sets.

    A script that the site does not allow never runs, even if the permit allows it.
    """
    policy = read_site(site)
    plan, clients = read_plan(path, permit)
    script = None if clients is None else Path(clients.script)
    of_script = tuple(_judge_script(policy, script))
    runs = permit.run_script and is_accepted(of_script)
    if runs and script is not None and is_flower_app(script):
        plan = find_model(plan, path, clients, permit).plan  # includes its ServerApp's demands
    return (*of_script, *_verdicts(policy, plan))


def _judge_script(policy: SitePolicy, script: Path | None) -> Iterator[Verdict]:
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
        if verdict.key == "plans" and not plan.has_digest:
            objection = "it covers initial, which lies on another machine; --fetch fetches that"
            verdict = replace(verdict, plans="unknown", objection=objection)
        if verdict.key == "budget" and not verdict.objection and policy.terms.budget is not None:
            verdict = replace(verdict, objection=_overspends([], policy.terms.budget, plan))
        yield verdict
    if policy.records is not None:
        how = "counts by it" if publishes_counts(plan.section) else "counts all alike"
        yield Verdict("records", str(policy.records), how)
    if policy.ledger is not None and policy.terms.budget is not None:
        yield _judge_ledger(policy.ledger, policy.terms.budget, plan)
    if policy.terms.updates_per_hour is not None:
        most = str(policy.terms.updates_per_hour)
        yield Verdict("updates_per_hour", most, "as its rule asks: beyond it the client rests")


def _judge_ledger(path: Path, budget: float, plan: Plan) -> Verdict:
    """Judges a plan by what is left of a site's budget: without any, every plan is refused."""
    own = BudgetLedger(path)
    known = [fact for _, fact in own.facts()]
    privacy, objection = plan.section.privacy, ""
    has = "nothing" if privacy is None else f"up to {privacy.budget:g} ({privacy.unit})"
    spent = epsilon_of(known, OWN_DELTA)
    if spent >= budget:
        objection = f"{spent:.3f} of {budget:g} is spent: nothing more is sealed at this site"
    unit = demand_unit(map(type, known))
    if known and privacy is not None and privacy.unit != unit:
        objection = (
            f"it counts by {unit}, and the plan by {privacy.unit}: no epsilon is the sum of both; "
            "name another file as ledger for this plan"
        )
    objection = objection or (_overspends(known, budget, plan) if known else "")
    exact = without_privacy(sum(run.exact for run in own.spent()))
    more = exact and f", and {exact}"
    return Verdict("ledger", f"{spent:.3f} of {budget:g} is spent{more}", has, objection)


def _overspends(known: Sequence[Fact], budget: float, plan: Plan) -> str:
    """Returns why a site's budget covers no update of the plan; empty if it covers one.

    One value in one group costs least. `known` are charges of other updates, of the plan's unit.
    """
    privacy = plan.section.privacy
    if privacy is None:
        return ""
    facts = [make_fact(plan, "client", group, 1, 0) for group in plan.groups]
    new = [mark_unit(plan, fact) for fact in facts if fact is not None]
    delta = min(privacy.delta, OWN_DELTA)
    least = min(epsilon_of([*known, fact], delta) for fact in new)
    if least <= budget:
        return ""
    return (
        f"one update under this plan would bring epsilon to {least:.3f} at delta {delta:g}, and "
        f"the site's budget is {budget:g}: nothing is sealed under it"
    )


def site_tables(verdicts: tuple[Verdict, ...], site: Path) -> Iterable[WordTable | Text]:
    yield WordTable(
        f"what {site} says of the plan",
        ("key", "the site's", "the plan's", "verdict"),
        [(v.key, v.own, v.plans, "refused" if v.objection else "kept to") for v in verdicts],
    )
    for each in verdicts:
        if each.objection:
            yield Text(f"- {each.key}: {each.objection}", "red")
    refused = not is_accepted(verdicts)
    yield Text(
        f"a client of this site {'refuses' if refused else 'takes part in'} a run of this plan",
        "bold",
    )


def is_accepted(verdicts: tuple[Verdict, ...]) -> bool:
    return not any(each.objection for each in verdicts)
