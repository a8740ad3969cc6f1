"""Commands whose work takes up to a second to import: their options and help.

Each imports its work when it is called, so that its help appears at once.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from secureps.dashboard.command import show_own_page, show_run
from secureps.errors import ConfigError
from secureps.run.options import (
    AsJson,
    CaFingerprint,
    Copies,
    Fetch,
    Insecure,
    InsecureForTests,
    LogFormat,
    MLflow,
    PassphraseFd,
    Pin,
    RunOfUp,
    RunScript,
    ServerRole,
    Shown,
    TensorBoard,
    UnsafeSeed,
    Values,
    as_a_party,
    repeat_words,
)
from secureps.service.logs import logging_as
from secureps.store.kit_files import Passphrases, read_passphrase
from secureps.wording import named


def up(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan with a federation section.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run's folder. Default: runs/NAME-DATE-TIME."),
    ] = None,
    unsafe_seed: UnsafeSeed = None,
    insecure_for_tests: InsecureForTests = False,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    copies: Copies = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Play a standby of the coordinator, too.")
    ] = False,
    pin: Pin = "off",
    shown: Shown = False,
) -> None:
    """`up` makes keys, starts coordinator, shards, key holders and clients, shows their
    progress, and compares the result with training alone and training centrally.
    RUN gets everything: logs, checkpoints, a report with curves, model.safetensors.
    Ctrl-C stops all processes.
    """
    from secureps.run.report.version_metrics import Extras
    from secureps.run.up.programs import Order
    from secureps.run.up.up import up as play
    from secureps.store.keyring import refuse_unsafe

    refuse_unsafe(unsafe_seed, insecure_for_tests)
    also = (Extras(tensorboard, mlflow), copies, show_run if shown else nullcontext, standby, pin)
    play(Order(plan, out, unsafe_seed, dict(os.environ), *also), Console())


def resume(
    run: RunOfUp,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
) -> None:
    """A resumed run starts each party from its journal, so that its model is the same as
    without the stop.
    """
    from secureps.run.report.version_metrics import Extras
    from secureps.run.up.up import resume as continue_run

    continue_run(run, dict(os.environ), Console(), Extras(tensorboard, mlflow))


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A file of simulations/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The report's folder. Default: runs/NAME.")
    ] = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    engine: Annotated[
        Literal["here", "ray"], typer.Option(help="Where clients train: here, or on a Ray cluster.")
    ] = "here",
    copies: Copies = None,
) -> None:
    """A simulation of the same scenario gives the same model, bit for bit, on whichever
    engine. Its noise is seeded: no privacy.
    """
    from secureps.run.report.version_metrics import Extras
    from secureps.run.simulate.simulation import simulate as play
    from secureps.service.malloc import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)  # clients keep millions of objects
    play(scenario, out, extras=Extras(tensorboard, mlflow), engine=engine, copies=copies)


def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, or a scenario.")],
    values: Values = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='The model\'s tensors, JSON: {"weight": \\[10, 64]}.'),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A site's policy: would its clients take part?"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help='Of each shard, as its file has it: "2 GiB".'),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            help="Find the noise for epsilon E, or the versions if noise is stated.",
        ),
    ] = None,
    up: Annotated[float, typer.Option(help="A client's link to the servers, Mbit/s.")] = 20.0,
    down: Annotated[float, typer.Option(help="The same link from them, Mbit/s.")] = 100.0,
    run_script: RunScript = False,
    fetch: Fetch = False,
    as_json: AsJson = False,
) -> None:
    """`check` says who sees what and who must collude, what privacy spends and what its
    noise costs, bytes and time of an update, and memory per shard. Without --run-script
    it runs nothing of the plan. With --site the command ends with status 1 if that
    site's policy refuses the plan.
    """
    from secureps.policy.explain.explanation import Link
    from secureps.run.check import Permit, check_site, is_accepted, record, site_tables, tables
    from secureps.run.check import check as examine
    from secureps.run.initial_schema import read_values

    permit, sizes, link = Permit(run_script, fetch), read_values(values or ()), Link(up, down)
    verdicts = () if site is None else check_site(plan, site, permit)
    refused = run_script and any(each.key == "scripts" and each.objection for each in verdicts)
    known = None if refused else examine(plan, sizes, memory, schema, permit, epsilon, link)
    if as_json:
        said = record(known) if known else {}
        if site is not None:
            told = [asdict(each) for each in verdicts]
            said["site"] = {"accepted": is_accepted(verdicts), "verdicts": told}
        typer.echo(json.dumps(said, indent=1))
    else:
        parts = [*(tables(known) if known else ()), *(site_tables(verdicts, site) if site else ())]
        for part in parts:
            Console().print(part)
    if not is_accepted(verdicts):
        raise typer.Exit(1)


def audit(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan with \\[privacy].")],
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCRIPT]",
            help="A data holder's script, for the model's size and an update: "
            "[red]code of whoever wrote it runs[/red].",
        ),
    ] = None,
    values: Values = None,
    seconds: Annotated[float, typer.Option(min=0, help="About how long to attack.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the coins; noise is never seeded.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The report's folder. Default: runs/PLAN-audit."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`audit` puts canaries into single releases, made by the code that a run executes:
    records, persons or updates that are as bad as can be. It ends with status 1 if
    they show a larger epsilon than the plan claims.
    """
    from secureps.run.attacks import audit as attack
    from secureps.run.attacks import tables
    from secureps.run.initial_schema import read_values
    from secureps.run.report.plots import draw_audit
    from secureps.run.up.folder import new_folder

    new_folder(folder := out or Path("runs") / f"{plan.stem}-audit")
    page = attack(plan, script, read_values(values or ()), seconds, seed)
    text = json.dumps(page, indent=1)
    (folder / "audit.json").write_text(text)
    draw_audit(page, folder)
    for part in (text,) if as_json else tables(page):
        typer.echo(part) if as_json else Console().print(part, highlight=False)
    if page["violated"]:
        raise typer.Exit(1)


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
    """`export` reads only RUN/checkpoints, so no server has to run. A damaged checkpoint
    is named, and the one before it is taken. RUN and FILE may be at an object
    store, as s3://BUCKET/RUN, where no existing file is overwritten.
    """
    from secureps.crypto.sampling import NO_PRIVACY
    from secureps.files.objects import redact
    from secureps.run.export import export as write_model

    model = write_model(run, out, best)
    if model.unsafe:
        text = f"warning: {NO_PRIVACY}, in what came from {named(model.unsafe)}"
        typer.secho(text, fg=typer.colors.RED, bold=True, err=True)
    for complaint in model.complaints:
        _warn(f"passed over {complaint}")
    for spec in model.layout.local:
        _warn(f"{spec.name} is not in it: it stays with each client")
    if frozen := model.layout.frozen:
        text = f"{frozen[0].name} and {len(frozen) - 1} more" if len(frozen) > 1 else frozen[0].name
        typer.echo(f"frozen and not in it: {text}; load it over the base (strict=False)")
    typer.echo(
        f"wrote {len(model.tensors)} tensors to {redact(out)}: checkpoint {model.number}, "
        f"version {model.version}"
    )


def _warn(text: str) -> None:
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)


def join(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT",
            help="A script with make(settings), a Flower file, or a Flower project's folder.",
        ),
    ],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The coordinator.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="Your start-up kit.")],
    name: Annotated[str, typer.Option(help="Who you are on the kit's roster.")],
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Outbox, journal, seed. Default: KIT/state/NAME."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the script; repeat it."),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Settings of a Flower app, as `flwr run` takes them."),
    ] = None,
    own_budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="EPSILON",
            help="Your own limit, whatever the plan says; a plan without privacy is refused.",
        ),
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(
            metavar="T", help="Refuse a plan by which fewer than T key holders open a sum together."
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Count as so many records, a public number, however many there are."
        ),
    ] = None,
    unsafe_seed: UnsafeSeed = None,
    insecure_for_tests: InsecureForTests = False,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many seal updates, block by block.")
    ] = 1,
    pin: Pin = "off",
    ca_fingerprint: CaFingerprint = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What your records spend, over all runs. Default: ledgers/NAME.db beside the kit.",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What your site allows, whatever the plan says."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the last model there when the run ends, as safetensors."
        ),
    ] = None,
    hold: Annotated[
        bool,
        typer.Option(
            "--hold", help="Run your site's key holder beside it: NAME-holder of the kit."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show where the script's own errors come from.")
    ] = False,
    log_format: LogFormat = "text",
    shown: Shown = False,
) -> None:
    """If the client is killed, the same command continues where the client was. A script that
    ends with `run_client` or `run_flower` takes these options itself, without SCRIPT.
    """
    from secureps.client.runner import Joining
    from secureps.client.settings import read_run_config, read_settings
    from secureps.client.site_policy import NO_POLICY, read_site
    from secureps.roles.member.terms import Terms
    from secureps.run.join import join as take_part
    from secureps.run.join import join_and_hold
    from secureps.store.keyring import default_state

    with as_a_party():
        state = state if state is not None else default_state(kit, name)
        terms = Terms(own_budget, threshold)
        own = Passphrases(None if hold else passphrase_fd)
        joining = Joining(
            *(server, kit, name, state, unsafe_seed, terms, threads, ca_fingerprint),
            records=records,
            insecure_for_tests=insecure_for_tests,
            insecure=insecure,
            ledger=ledger,
            passphrases=own,
            site=NO_POLICY if site is None else read_site(site),
            model=model,
        )
        if hold and not hasattr(os, "killpg"):
            raise ConfigError(
                "--hold: this system, Windows, has no groups of processes to watch: leave it out, "
                "and start the key holder beside this client by itself"
            )
        if hold:
            words = repeat_words(context, "hold", "passphrase_fd")
            secret = None if passphrase_fd is None else read_passphrase(passphrase_fd)
            with logging_as(log_format, name, verbose):
                typer.echo(join_and_hold(joining, words, log_format, secret))
            return
        build = context.obj  # of a script that runs itself (`run.own_script`)
        own_log = logging_as(log_format, name, verbose, ours=build is None)
        with own_log, show_own_page(joining, shown):
            given = read_settings(settings or []) | read_run_config(run_config or [])
            reason = take_part(build or script, joining, given, pin)
    typer.echo(reason)


def serve(
    role: Annotated[
        ServerRole,
        typer.Argument(metavar="ROLE", help="coordinator, shard or keyholder."),
    ],
    config: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Its configuration: name, kit, state, listen, coordinator, ..."
        ),
    ],
    standby: Annotated[
        bool, typer.Option("--standby", help="Follow the coordinator that FILE names.")
    ] = False,
    passphrase_fd: PassphraseFd = None,
    log_format: LogFormat = "text",
) -> None:
    """If the server is killed, the same command continues where the server was.
    STATE/address says where the server listens.
    """
    from secureps.run.serve import serve as run_server

    with as_a_party():
        run_server(role, config, log_format, passphrase_fd, standby)


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
    ca_fingerprint: CaFingerprint = None,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """`preflight` checks the party's kit, keys, roster and certificate by this machine's
    calendar, dials the coordinator and every shard, and checks the disk, the kernels,
    and what the party's site allows. Each check prints a line with what to do. The
    command ends with status 1 if one fails.
    """
    from secureps.run.preflight import Departure, read_config
    from secureps.run.preflight import preflight as look

    if (plan is None) != (site is None):
        raise typer.BadParameter("--plan and --site go together")
    if config is not None and site is not None:
        raise typer.BadParameter("--plan and --site are for data holders, --config for servers")
    passphrases = Passphrases(passphrase_fd)
    if config is not None:
        section, kit, state = read_config(config)
        name, server = section.name, server or section.coordinator
        ca_fingerprint, insecure = section.ca_fingerprint, section.insecure
    elif kit is None or name is None:
        raise typer.BadParameter("give KIT and --name, or --config")
    of = (kit, name, server, state, site, plan, ca_fingerprint, insecure)
    colors = {"ok": typer.colors.GREEN, "look": typer.colors.YELLOW, "no": typer.colors.RED}
    outcomes = set()
    for found in look(Departure(*of, passphrases)):
        mark = typer.style(f"{found.outcome:4}", colors[found.outcome])
        typer.echo(f"{mark}  {found.what:12}{found.text}")
        outcomes.add(found.outcome)
    if "no" in outcomes:
        raise typer.Exit(1)


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
    """The report of a study is one table and one picture."""
    from secureps.run.study import study as compare

    compare(scenario, out, workers)
