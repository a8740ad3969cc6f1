"""The command line: its commands and options, and how errors are printed.

Commands import what they need when they run, so that help appears at once. Only this module,
`run.options` and OpenTelemetry read environment variables.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from secureps import __version__
from secureps.dashboard.command import dashboard, show_own_page, show_run
from secureps.errors import ConfigError, SecurepsError, exit_status
from secureps.exhaustion import disable_core_dumps
from secureps.run import commands
from secureps.run.act import act, shards
from secureps.run.options import (
    Copies,
    Fetch,
    Insecure,
    InsecureForTests,
    LogFormat,
    MLflow,
    PassphraseFd,
    Pin,
    RunScript,
    Shown,
    TensorBoard,
    Threads,
    Tool,
    UnsafeSeed,
    Values,
    repeat_words,
    settle_environment,
)
from secureps.service.logs import ignore_output_errors, logging_as
from secureps.tracebacks import with_fault
from secureps.wording import one_line

app = Tool(
    name="secureps",
    help=(
        "A parameter server for training on data that may not leave its owner: clients train "
        "at home, encrypt what they learned, and nobody can open the update of a single one."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# The panels of `--help`, which are ordered by their first commands.
_HERE, _RUNS = "A federation on this machine", "Its runs"
_VIRTUAL, _APART = "In virtual time", "Each party on a machine of its own"

PROFILED = ("dashboard", "join", "preflight", "status")
"""The commands for which a profile supplies options."""

GONE = {
    "profile": "`secureps check PLAN --run-script --up MBIT --down MBIT` says how long an update "
    "takes on a link",
    "--sealing": "leave it out; updates are sealed on the processor",
}
"""Commands and options of 0.2.0 that were removed, and what to do instead."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secureps {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which it is.")
    ] = False,
    kernels: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="SECUREPS_KERNELS",
            help="Where compiled kernels are kept. Default: ~/.cache/secureps/kernels.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="--server, --kit and --name of dashboard, join, preflight and status, from "
            "~/.config/secureps/config.toml.",
        ),
    ] = None,
) -> None:
    """Before every command."""
    if profile is not None:
        from click import get_current_context

        from secureps.config.site_files import read_profile

        get_current_context().default_map = dict.fromkeys(PROFILED, read_profile(profile))
    if kernels is not None:
        from secureps.compiled import keep_in

        keep_in(kernels)
        os.environ["SECUREPS_KERNELS"] = str(kernels.absolute())  # for processes it starts


@app.command(rich_help_panel=_HERE)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's: of its folder and its plan.")
    ],
    torch: Annotated[
        bool, typer.Option("--torch", help="A network of PyTorch, with record-level privacy.")
    ] = False,
    sklearn: Annotated[
        bool, typer.Option("--sklearn", help="A classifier of scikit-learn.")
    ] = False,
    flower: Annotated[bool, typer.Option("--flower", help="A Flower app.")] = False,
) -> None:
    """Make a runnable project: a plan, a client's script, a README and a test.

    The folder NAME must be new or empty. Without an option the script needs only
    NumPy.
    """
    from secureps.run.new import new as make

    asked = {"torch": torch, "sklearn": sklearn, "flower": flower}
    kinds = [kind for kind, wanted in asked.items() if wanted] or ["numpy"]
    if len(kinds) > 1:
        raise typer.BadParameter("a project has one kind of script: give one option of these")
    made = make(name, kinds[0], Path())
    typer.echo(f"made {name}: {', '.join(path.name for path in made)}")
    typer.echo(f"next:\n  cd {name}\n  secureps up plan.toml")


@app.command(rich_help_panel=_HERE)
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
    as_json: Annotated[bool, typer.Option("--json", help="The same for programs.")] = False,
) -> None:
    """Explain a plan on a page, or refuse it with the reason.

    Says who sees what and who must collude, what privacy spends and what its noise
    costs, bytes and time of an update, and memory per shard. Runs nothing of the plan.
    With --site it ends with status 1 if that site's policy refuses the plan.
    """
    settle_environment()
    from rich.console import Console

    from secureps.policy.explain.explanation import Link
    from secureps.run.check import (
        Permit,
        check_site,
        forbids_script,
        is_accepted,
        record,
        site_record,
        site_tables,
        tables,
    )
    from secureps.run.check import check as examine
    from secureps.run.initial_schema import read_values

    permit, sizes, link = Permit(run_script, fetch), read_values(values or ()), Link(up, down)
    verdicts = () if site is None else check_site(plan, site, permit)
    refused = run_script and forbids_script(verdicts)
    known = None if refused else examine(plan, sizes, memory, schema, permit, epsilon, link)
    if as_json:
        more = {} if site is None else {"site": site_record(verdicts)}
        typer.echo(json.dumps((record(known) if known else {}) | more, indent=1))
    else:
        parts = [*(tables(known) if known else ()), *(site_tables(verdicts, site) if site else ())]
        for part in parts:
            Console().print(part)
    if not is_accepted(verdicts):
        raise typer.Exit(1)


@app.command(rich_help_panel=_HERE)
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
    """Play a whole federation on this machine, each party a process of its own.

    Makes keys, starts coordinator, shards, key holders and clients, shows their
    progress, and compares the result with training alone and training centrally.
    RUN gets everything: logs, checkpoints, a report with curves, model.safetensors.
    Ctrl-C stops all processes.
    """
    settle_environment()
    ignore_output_errors()
    from rich.console import Console

    from secureps.run.report.version_metrics import Extras
    from secureps.run.up.programs import Order
    from secureps.run.up.up import up as play
    from secureps.store.keyring import refuse_unsafe

    refuse_unsafe(unsafe_seed, insecure_for_tests)
    also = (Extras(tensorboard, mlflow), copies, show_run() if shown else nullcontext, standby, pin)
    play(Order(plan, out, unsafe_seed, dict(os.environ), *also), Console())


for _command in (commands.runs, commands.status, dashboard, commands.log):
    app.command(rich_help_panel=_RUNS)(_command)
for _doing in (act, shards, commands.stop):
    app.command(rich_help_panel=_RUNS)(_doing)


@app.command(rich_help_panel=_RUNS)
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")],
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
) -> None:
    """Continue a run of `up` that was stopped, by Ctrl-C or a power cut.

    Every party starts from its journal, so the model is the same as without the stop.
    """
    settle_environment()
    ignore_output_errors()
    from rich.console import Console

    from secureps.run.report.version_metrics import Extras
    from secureps.run.up.up import resume as go_on

    go_on(run, dict(os.environ), Console(), Extras(tensorboard, mlflow))


app.command(rich_help_panel=_RUNS)(commands.export)


@app.command(rich_help_panel=_VIRTUAL)
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
    """Play many clients, delays and faults in virtual time, in one process.

    The same scenario gives the same model, bit for bit, on whichever engine.
    Noise is seeded: no privacy.
    """
    settle_environment()
    ignore_output_errors()
    from secureps.run.report.version_metrics import Extras
    from secureps.run.simulate.simulate import simulate as play

    play(scenario, out, extras=Extras(tensorboard, mlflow), engine=engine, copies=copies)


app.command(rich_help_panel=_VIRTUAL)(commands.study)


_forwarding = app.command(
    rich_help_panel=_APART,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
"""Makes a command that passes all its arguments on to a tool, which it imports when it runs."""


def _forward(context: typer.Context, tool: Tool) -> None:
    tool(args=context.args, prog_name=f"secureps {context.info_name}")


@_forwarding
def keys(context: typer.Context) -> None:
    """Make each party's keys, and the kit that certifies them: request, init, approve, show."""
    from secureps.run.keys import keys as tool

    _forward(context, tool)


@_forwarding
def roster(context: typer.Context) -> None:
    """Change who takes part in a run while it trains: add, revoke, renew."""
    from secureps.run.keys import roster as tool

    _forward(context, tool)


@_forwarding
def deploy(context: typer.Context) -> None:
    """Write the files that run the parties of a kit on a cluster: kubernetes, slurm."""
    from secureps.run.deploy.commands import deploy as tool

    _forward(context, tool)


@app.command(rich_help_panel=_APART)
def serve(
    role: Annotated[
        Literal["coordinator", "shard", "keyholder"],
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
    """Run one server until a signal stops it.

    If it is killed, the same command continues where it was. STATE/address says
    where it listens.
    """
    from secureps.run.serve import serve as run

    with _as_a_party():
        run(role, config, log_format, passphrase_fd, standby)


@app.command(rich_help_panel=_APART)
def join(
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
    threads: Threads = 1,
    pin: Pin = "off",
    ca_fingerprint: Annotated[
        str | None, typer.Option(metavar="HEX", help="Refuse a kit that another CA has signed.")
    ] = None,
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
    """Take part in a federation as a data holder, until the run ends.

    If it is killed, the same command continues where it was.
    """
    from secureps.client.runner import Joining, read_run_config, read_settings
    from secureps.client.site_policy import NO_POLICY, read_site
    from secureps.roles.member.terms import Terms
    from secureps.run.join import join as run
    from secureps.store.keyring import default_state
    from secureps.store.kit_files import Passphrases, read_passphrase

    with _as_a_party():
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
            from secureps.run.join import join_and_hold

            words = repeat_words("hold", "passphrase_fd")
            secret = None if passphrase_fd is None else read_passphrase(passphrase_fd)
            ignore_output_errors()  # reserves a closed stdin's number, which a pipe would get
            with logging_as(log_format, name, verbose):
                typer.echo(join_and_hold(joining, words, log_format, secret))
            return
        with logging_as(log_format, name, verbose), show_own_page(joining, shown):
            given = read_settings(settings or []) | read_run_config(run_config or [])
            reason = run(script, joining, given, pin)
    typer.echo(reason)


for _apart in (commands.flower, commands.preflight, commands.health, commands.takeover):
    app.command(rich_help_panel=_APART)(_apart)
for _kept in (commands.warm, commands.backup, commands.restore):
    app.command(rich_help_panel=_APART)(_kept)
app.add_typer(commands.budget, name="budget", rich_help_panel=_APART)
app.add_typer(commands.audit_log, name="audit-log", rich_help_panel=_APART)


def _complain(error: Exception) -> SecurepsError:
    known = with_fault(error)
    typer.secho(f"error: {one_line(known)} ({known.fault} fault)", fg=typer.colors.RED, err=True)
    return known


@contextmanager
def _as_a_party() -> Iterator[None]:
    """Exits with `errors.exit_status`, which tells a supervisor whether a restart can help."""
    ignore_output_errors()
    try:
        yield
    except SecurepsError as error:
        raise typer.Exit(exit_status(_complain(error))) from None


def main() -> None:
    """Runs the command line; exits with 0, 1 (an error, in one line), 2 (usage) or 130 (Ctrl-C).

    `serve` and `join` exit with 78 if a restart cannot help.
    """
    disable_core_dumps()
    words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
    given = words.index("--profile") if "--profile" in words else 0
    if command := next((word for word in words[:given] if word in PROFILED), ""):
        example = f"`secureps --profile {' '.join([*words[given + 1 : given + 2], command])}`"
        typer.echo(f"error: --profile comes before the command: {example}", err=True)
        sys.exit(2)
    for word in (*words[:1], *(each for each in words if each.startswith("--"))):
        if word in GONE:
            typer.echo(f"error: {word} is gone: {GONE[word]}", err=True)
            sys.exit(2)
    try:
        app()
    except Exception as error:
        _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
