"""Commands about studies, kernels, existing runs, Flower's servers, and a party's state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from secureps.run.options import (
    AskingKit,
    Insecure,
    PassphraseFd,
    RunFolder,
    Server,
    open_passphrases,
    settle_environment,
)
from secureps.wording import named


def study(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="A scenario with a \\[study] section.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The report's folder. Default: runs/NAME-study."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that play, side by side.")
    ] = 2,
) -> None:
    """Compare rules by the virtual time that each takes to a target, over several seeds.

    The report is one table and one picture.
    """
    settle_environment()
    from rich.console import Console

    from secureps.run.study import study as compare

    compare(scenario, out, workers, Console())


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where runs lie. Default: runs.")
    ] = Path("runs"),
) -> None:
    """List the runs of `up` with their versions, scores and states."""
    from rich.console import Console

    from secureps.run.up.runs import list_runs

    for line in list_runs(folder):
        Console().print(line, soft_wrap=True)


def status(
    run: RunFolder = None,
    server: Server = None,
    kit: AskingKit = None,
    name: Annotated[
        str | None, typer.Option(help="Who asks, if it is no observer: a name on the kit's roster.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same for programs.")] = False,
    again: Annotated[
        bool, typer.Option("--watch", help="Every 2 seconds, until the run is over.")
    ] = False,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Ask a coordinator for the status of its run, which changes nothing.

    Shows versions, what each group waits for and why, what clients have spent, and which shard
    holds what. Give RUN, or --server and --kit.
    """
    from rich.console import Console

    from secureps.run.status import find, look

    look(find(run, server, kit, name, insecure, passphrase_fd), as_json, again, Console())


def preflight(
    kit: Annotated[
        Path | None, typer.Argument(metavar="[KIT]", help="The party's start-up kit.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Who it is on the kit's roster.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A server's: its kit, name, state and coordinator are there."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The coordinator; after a comma its standby."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its state. Default: KIT/state/NAME.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan, to hold --site against.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the site allows, for --plan.")
    ] = None,
    ca_fingerprint: Annotated[
        str | None, typer.Option(metavar="HEX", help="Refuse a kit that another CA has signed.")
    ] = None,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Check whether one party could take part from this machine, before it does.

    Checks its kit, keys, roster and certificate by this machine's calendar, dials the
    coordinator and every shard, and checks the disk, the kernels, and what its site
    allows. Each check prints a line with what to do. Ends with status 1 if one fails.
    """
    from secureps.run.preflight import Departure
    from secureps.run.preflight import preflight as look

    if (plan is None) != (site is None):
        raise typer.BadParameter("--plan and --site go together")
    passphrases = open_passphrases(passphrase_fd)
    if config is not None:
        whom = Departure.of_server(config, server, passphrases)
    elif kit is None or name is None:
        raise typer.BadParameter("give KIT and --name, or --config")
    else:
        of = (kit, name, server, state, site, plan, ca_fingerprint, insecure)
        whom = Departure(*of, passphrases)
    colors = {"ok": typer.colors.GREEN, "look": typer.colors.YELLOW, "no": typer.colors.RED}
    outcomes = set()
    for found in look(whom):
        mark = typer.style(f"{found.outcome:4}", colors[found.outcome])
        typer.echo(f"{mark}  {found.what:12}{found.text}")
        outcomes.add(found.outcome)
    if "no" in outcomes:
        raise typer.Exit(1)


def health(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the server was started with.")
    ],
    alive: Annotated[
        bool, typer.Option("--alive", help="Any answer will do, also that it cannot work yet.")
    ] = False,
) -> None:
    """Ask a server on this machine whether it can work, as a probe in its pod does.

    Ends with status 1 if it does not answer, or cannot work yet.
    """
    from secureps.run.preflight import health as ask

    ready = ask(config)
    typer.echo("it can work" if ready else "it cannot work yet")
    if not ready and not alive:
        raise typer.Exit(1)


def takeover(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the standby was started with.")
    ],
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Have a standby on this machine take over from its coordinator at once.

    The coordinator ends, if it is still running.
    """
    from secureps.run.preflight import take_over

    take_over(config, passphrase_fd)
    typer.echo(
        "the standby takes over: the run goes on once all shards and enough key holders obey it; "
        "secureps status says whom it waits for"
    )


def log(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")],
    party: Annotated[
        str | None, typer.Argument(metavar="[PARTY]", help="Whose; default: of all parties.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="The last N lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="And what comes, until the run ends.")
    ] = False,
) -> None:
    """Print the logs of a run's parties, in the order of time.

    Ctrl-C ends --follow, and not the run.
    """
    from secureps.run.up.runs import log as lines

    for line in lines(run, party, tail, follow):
        typer.echo(line)


def stop(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")],
) -> None:
    """End a run of `up` that another terminal plays, and wait for its end.

    It acts like Ctrl-C there: nothing is lost, and `secureps resume` continues the run.
    """
    from secureps.run.up.runs import stop as end

    typer.echo(end(run))


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="What has checkpoints/: a folder, or a URL.")
    ],
    out: Annotated[
        str,
        typer.Option(metavar="FILE", help="The safetensors file to write, or replace; or a URL."),
    ],
    best: Annotated[
        bool, typer.Option("--best", help="The best version by the federation's own evaluation.")
    ] = False,
) -> None:
    """Write the newest whole model of a run as one safetensors file, by tensor name.

    Reads only RUN/checkpoints, so no server has to run. A damaged checkpoint is
    named, and the one before it is taken. RUN and FILE may be at an object
    store, as s3://BUCKET/RUN, where no existing file is overwritten.
    """
    from secureps.crypto.sampling import NO_PRIVACY
    from secureps.files.objects import redact
    from secureps.run.export import export as write

    model = write(run, out, best)
    if model.unsafe:
        text = f"warning: {NO_PRIVACY}, in what came from {named(model.unsafe)}"
        typer.secho(text, fg=typer.colors.RED, bold=True, err=True)
    for complaint in model.complaints:
        typer.secho(f"warning: passed over {complaint}", fg=typer.colors.YELLOW, err=True)
    for spec in model.layout.local:
        text = f"warning: {spec.name} is not in it: it stays with each client"
        typer.secho(text, fg=typer.colors.YELLOW, err=True)
    if frozen := model.layout.frozen:
        text = f"{frozen[0].name} and {len(frozen) - 1} more" if len(frozen) > 1 else frozen[0].name
        typer.echo(f"frozen and not in it: {text}; load it over the base (strict=False)")
    typer.echo(
        f"wrote {len(model.tensors)} tensors to {redact(out)}: checkpoint {model.number}, "
        f"version {model.version}"
    )


def flower(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan whose federation names a Flower app.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results are written.")],
) -> None:
    """Run a Flower app's ServerApp once, where the plan is made, and nowhere else.

    Writes DIR/plan.toml, with the strategy's optimizer, and
    DIR/initial.safetensors: version 0 and the messages to clients in every
    version. Says what was taken; a ServerApp with code of its own is refused.
    `up`, `simulate` and `check --run-script` do this by themselves.
    """
    settle_environment()
    from rich.console import Console

    from secureps.crypto.sampling import SecretSeed
    from secureps.run.server_app import prepare

    prepare(plan, out, SecretSeed.from_os(), Console())


def warm() -> None:
    """Compile the kernels of `rlwe` ahead, so that no party waits for them later.

    Each release has a folder of kernels that only you may write to. Without it parties
    compile kernels at their first use, which takes some seconds.
    """
    from secureps.run.warm import warm as compile_all

    typer.echo(compile_all())


# --- a party's state --------------------------------------------------------------

State = Annotated[Path, typer.Argument(metavar="STATE", help="A party's state folder.")]


def backup(
    state: State,
    out: Annotated[Path, typer.Option(metavar="COPY", help="A folder of its own, to be made.")],
) -> None:
    """Make a whole copy of a party's state folder, also while the party runs.

    Journal and log are copied at one moment. Keep the copy as secret as the folder,
    because a client's copy has its seed. The kit is not copied.
    """
    from secureps.store.backup import backup as copy

    typer.echo(f"copied {state} to {out}: {copy(state, out)} rows of its journal")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="What `backup` made.")],
    state: Annotated[Path, typer.Option(metavar="DIR", help="The state folder to bring back.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The party's start-up kit.")],
    name: Annotated[str, typer.Option(help="Whose it is, on the kit's roster.")],
) -> None:
    """Bring back a copy of a state folder. If it is killed midway, run it again.

    A shard's copy is always accepted, and what it may lack is printed. A copy of a
    coordinator, key holder or client is refused if the party has done more since,
    because the party would forget what it has said or spent.
    """
    from secureps.run.restore import bring_back

    for line in bring_back(copy, state, kit, name):
        typer.echo(line)


budget = typer.Typer(
    help="What a data holder's records have spent, over all runs.",
    no_args_is_help=True,
)


@budget.command()
def show(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="ledgers/NAME.db by default.")],
) -> None:
    """List what every run has spent, and the sum."""
    from secureps.privacy.ledger import OWN_DELTA
    from secureps.run.audit_log import demand_ledger
    from secureps.store.budget import BudgetLedger, epsilon_of, unit_of, without_privacy

    demand_ledger(ledger)
    own = BudgetLedger(ledger)
    for run in (runs := own.spent()):
        typer.echo(f"run {run.run.hex()[:16]}  {run.text}")
    told = list[str]()
    if facts := [fact for _, fact in own.facts()]:
        spent = f"epsilon {epsilon_of(facts, OWN_DELTA):.3f} at delta {OWN_DELTA:g}"
        told.append(f"{spent}, of {unit_of(facts)}")
    if exact := without_privacy(sum(run.exact for run in runs)):
        told.append(exact)
    typer.echo(f"together  {', and '.join(told) or 'nothing'}")


@budget.command("export")
def export_ledger(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="ledgers/NAME.db by default.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The client's start-up kit: it signs.")],
    name: Annotated[str, typer.Option(help="Whose ledger it is, on the kit's roster.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON, to be made or replaced.")],
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Write what every run has spent into a signed file, for an auditor.

    It has runs, dates, numbers of updates and epsilons, and no content of records.
    """
    from secureps.run.audit_log import export_ledger as write

    _say_statement(write(ledger, kit, name, out, open_passphrases(passphrase_fd)), f"wrote {out}: ")


@budget.command("verify")
def verify_ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `budget export` wrote.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="A start-up kit: public/ is enough.")],
) -> None:
    """Check who signed such a file, and that it is unchanged."""
    from secureps.run.audit_log import verify_ledger as check

    _say_statement(check(file, kit))


def _say_statement(told: Mapping[str, object], before: str = "") -> None:
    from secureps.audit.ledger_statement import summarize

    typer.echo(f"{before}{summarize(told)}")


audit_log = typer.Typer(
    help="What a party did in a run, signed: who, when, how many, what epsilon, what was refused.",
    no_args_is_help=True,
)


@audit_log.command("export")
def export_audit_log(
    state: State,
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The party's start-up kit: it signs.")],
    name: Annotated[str, typer.Option(help="Whose it is, on the kit's roster.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON lines; made, or added to.")],
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same to print: one HTML file.")
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Write a party's journal as a chained and signed log, also while the party runs.

    An existing FILE is extended, and its lines never change. It has no secrets of
    the party, but the names of all clients that the party knows.
    """
    from secureps.run.audit_log import export as write

    log, new = write(state, kit, name, out, page, open_passphrases(passphrase_fd))
    more = f"{new} of them new, " if new < log.end.entries else ""
    typer.echo(f"wrote {out}: {log.end.entries} entries, {more}of {log.end.row} rows")


@audit_log.command()
def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Logs of parties of one run.")
    ],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="A start-up kit: public/ is enough.")],
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The party's state folder: is the log complete?"),
    ] = None,
) -> None:
    """Check chain and signature of logs, and that none contradicts another.

    With --state one log is compared with its journal. The first wrong entry is
    named.
    """
    from secureps.run.audit_log import verify as check

    for log in check(files, kit, state):
        whose = f"{log.begin.party} ({log.begin.role}), run {log.begin.id.hex()[:16]}"
        against = "" if state is None else ", complete against the journal"
        typer.echo(f"{whose}: {log.end.entries} entries up to row {log.end.row}, signed{against}")
        for each in log.end.epsilon or ():
            epsilon = "unbounded" if each.epsilon is None else f"{each.epsilon:.3f}"
            typer.echo(f"  {each.client}  epsilon {epsilon}")
