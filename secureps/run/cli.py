"""The command line: the table of its commands, and how errors are printed.

A command's module is imported when the command is called, so that help appears at once. Only this
module, `run.options`, OpenTelemetry and, for proxies, `wire.grpc.framing` read the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

from secureps import __version__
from secureps.exhaustion import disable_core_dumps
from secureps.run.options import (
    Command,
    as_a_party,
    complain,
    hide_absent_variables,
    settle_environment,
)
from secureps.service.logs import ignore_output_errors

# The panels of `--help`, which are ordered by their first commands.
_HERE, _RUNS = "A federation on this machine", "Its runs"
_VIRTUAL, _APART = "In virtual time", "Each party on a machine of its own"
_AT_PARTY, _AT_ISSUER, _ANYWHERE = "At each party", "At whoever issues keys", "Anywhere"
_PLAIN = "Commands"

TRAINING = ("audit", "check", "flower", "resume", "simulate", "study", "up")
"""The commands whose environment is settled before NumPy and torch are imported and read it."""

LASTING = ("join", "resume", "serve", "simulate", "up")
"""The commands that go on when nobody reads what they print any more."""

PROFILED = ("dashboard", "join", "preflight", "status")
"""The commands for which a profile supplies options."""

Commands = Mapping[str, Mapping[str, tuple[str, str] | TyperGroup]]
"""By panel and name: a command's "MODULE:FUNCTION" and first line of help; or a group."""


def _make(commands: Commands) -> Iterator[Command | TyperGroup]:
    for panel, below in commands.items():
        for name, each in below.items():
            yield each if isinstance(each, TyperGroup) else Command(name, *each, panel)


def _group(name: str, help: str, commands: Commands) -> TyperGroup:
    """Makes a group of commands; the list of all commands shows its help's first paragraph."""
    return TyperGroup(
        name=name,
        help=help,
        commands=list(_make(commands)),
        no_args_is_help=True,
        rich_help_panel=_APART,
    )


keys = _group(
    "keys",
    "Make each party's keys, and the kit that certifies them: request, init, approve, show.\n\n"
    "A start-up kit says who takes part, signed by a CA that the aggregator does not hold.",
    {
        _AT_PARTY: {
            "request": (
                "run.keys:request",
                "Make a party's own keys, where it runs, and a request to certify them.",
            ),
            "rotate": (
                "run.keys:rotate",
                "Make new keys of a party, and a request that the old keys sign too.",
            ),
        },
        _AT_ISSUER: {
            "init": ("run.keys:init", "Make a CA and an empty roster."),
            "approve": (
                "run.keys:approve",
                "Certify the keys of all given parties, or of none, and sign the roster anew.",
            ),
            "revoke": (
                "run.keys:revoke",
                "Take parties off the roster; their keys are never approved again.",
            ),
            "issue": (
                "run.keys:issue",
                "Make a party's keys and put them in KIT, if all parties run on this machine.",
            ),
            "renew": (
                "run.keys:renew",
                "Sign TLS certificates anew, which expire after a year. Running parties reload "
                "theirs.",
            ),
        },
        _ANYWHERE: {
            "show": ("run.keys:show", "Verify a kit and list who is in it."),
        },
    },
)
roster = _group(
    "roster",
    "Change who takes part in a run while it trains: add, revoke, renew, replace-holder.\n\n"
    "These commands run at whoever issues keys.",
    {
        _PLAIN: {
            "add": (
                "run.keys:approve",
                "Certify parties' keys and put them on the roster, as `keys approve` does.",
            ),
            "revoke": (
                "run.keys:revoke",
                "Take parties off the roster, and out of runs that train, as `keys revoke` does.",
            ),
            "replace-holder": (
                "run.keys:replace_holder",
                "Replace a lost key holder by another one, while a run trains.",
            ),
            "renew": (
                "run.keys:renew_roster",
                "Sign the roster anew before it expires; an expired one stops sealing and opening.",
            ),
        },
    },
)
deploy = _group(
    "deploy",
    "Write the files that run the parties of a kit on a cluster: kubernetes, slurm.\n\n"
    "These commands start nothing.",
    {
        _PLAIN: {
            "kubernetes": (
                "run.deploy.deployment:kubernetes",
                "Write manifests for Kubernetes: OUT/servers for the aggregator, OUT/NAME for "
                "others.",
            ),
            "slurm": (
                "run.deploy.deployment:slurm",
                "Write batch files for Slurm: OUT/aggregator.sbatch, OUT/NAME.sbatch for others.",
            ),
        },
    },
)
budget = _group(
    "budget",
    "What a data holder's records have spent, over all runs.",
    {
        _PLAIN: {
            "show": ("run.audit_log:show_ledger", "List what every run has spent, and the sum."),
            "export": (
                "run.audit_log:export_ledger",
                "Write what every run has spent into a signed file, for an auditor.",
            ),
            "verify": (
                "run.audit_log:verify_ledger",
                "Check who signed such a file, and that it is unchanged.",
            ),
        },
    },
)
audit_log = _group(
    "audit-log",
    "What a party did in a run, signed: who, when, how many, what epsilon, what was refused.",
    {
        _PLAIN: {
            "export": (
                "run.audit_log:export_log",
                "Write a party's journal as a chained and signed log, also while the party runs.",
            ),
            "verify": (
                "run.audit_log:verify_logs",
                "Check chain and signature of logs, and that none contradicts another.",
            ),
        },
    },
)

COMMANDS: Commands = {
    _HERE: {
        "new": (
            "run.new:make_project",
            "Make a runnable project: a plan, a client's script, a README and a test.",
        ),
        "check": (
            "run.commands:check",
            "Explain a plan on a page, or refuse it with the reason.",
        ),
        "audit": (
            "run.commands:audit",
            "Attack a plan's noise: show a lower bound of epsilon beside the claimed one.",
        ),
        "up": (
            "run.commands:up",
            "Play a whole federation on this machine, each party a process of its own.",
        ),
    },
    _RUNS: {
        "runs": (
            "run.status:runs",
            "List the runs of `up` with their versions, scores and states.",
        ),
        "status": (
            "run.status:status",
            "Ask a coordinator for the status of its run, which changes nothing.",
        ),
        "dashboard": (
            "dashboard.command:dashboard",
            "Show a run in a browser, until Ctrl-C. Looking changes nothing.",
        ),
        "log": ("run.status:log", "Print the logs of a run's parties, in the order of time."),
        "act": ("run.act:act", "Order a coordinator, signed by its own key and journalled."),
        "shards": (
            "run.act:shards",
            "Move blocks to a new shard, or away from one that leaves, while a run trains.",
        ),
        "stop": (
            "run.status:stop",
            "End a run of `up` that another terminal plays, and wait for its end.",
        ),
        "resume": (
            "run.commands:resume",
            "Continue a run of `up` that failed, or that Ctrl-C or a power cut stopped.",
        ),
        "export": (
            "run.commands:export",
            "Write the newest whole model of a run as one safetensors file, by tensor name.",
        ),
    },
    _VIRTUAL: {
        "simulate": (
            "run.commands:simulate",
            "Play many clients, delays and faults in virtual time, in one process.",
        ),
        "study": (
            "run.commands:study",
            "Compare rules by the virtual time that each takes to a target, over several seeds.",
        ),
    },
    _APART: {
        "keys": keys,
        "roster": roster,
        "deploy": deploy,
        "serve": ("run.commands:serve", "Run one server until a signal stops it."),
        "join": (
            "run.commands:join",
            "Take part in a federation as a data holder, until the run ends.",
        ),
        "flower": (
            "run.server_app:flower",
            "Run a Flower app's ServerApp once, where the plan is made, and nowhere else.",
        ),
        "preflight": (
            "run.commands:preflight",
            "Check whether one party could take part from this machine, before it does.",
        ),
        "health": (
            "run.preflight:print_health",
            "Ask a server on this machine whether it can work, as a probe in its pod does.",
        ),
        "takeover": (
            "run.preflight:take_over",
            "Have a standby on this machine take over from its coordinator at once.",
        ),
        "warm": (
            "run.warm:print_warm",
            "Compile the kernels of `rlwe` ahead, so that no party waits for them later.",
        ),
        "backup": (
            "run.restore:backup",
            "Make a whole copy of a party's state folder, also while the party runs.",
        ),
        "restore": (
            "run.restore:restore",
            "Bring back a copy of a state folder. If it is killed midway, run it again.",
        ),
        "budget": budget,
        "audit-log": audit_log,
    },
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secureps {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
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
            help=f"--server, --kit and --name of {', '.join(PROFILED[:-1])} and {PROFILED[-1]}, "
            "from ~/.config/secureps/config.toml.",
        ),
    ] = None,
) -> None:
    """Runs before every command, and before the command's module is imported."""
    if context.invoked_subcommand in TRAINING:
        settle_environment()
    if context.invoked_subcommand in LASTING:
        ignore_output_errors()
    if profile is not None:
        from secureps.config.site_files import read_profile

        with as_a_party() if context.invoked_subcommand == "join" else nullcontext():
            context.default_map = dict.fromkeys(PROFILED, read_profile(profile))
    if kernels is not None:
        from secureps.compiled import keep_in

        keep_in(kernels)
        os.environ["SECUREPS_KERNELS"] = str(kernels.absolute())  # for processes it starts


app = get_group(
    typer.Typer(
        name="secureps",
        help=(
            "A parameter server for training on data that may not leave its owner: clients train "
            "at home, encrypt what they learned, and nobody can open the update of a single one."
        ),
        no_args_is_help=True,
        callback=root,
    )
)
hide_absent_variables(app)
for _each in _make(COMMANDS):
    app.add_command(_each)


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
    call()


def call(words: Sequence[str] | None = None, build: object = None) -> None:
    """Runs a command line (None: the process's own), and exits as `main` says.

    Args:
        build: makes the trainer of `join`, in place of its SCRIPT.
    """
    try:
        app(words, prog_name="secureps", obj=build)
    except Exception as error:
        complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
