"""`secureps status`, `runs`, `log` and `stop`: look at runs of this machine and elsewhere.

A coordinator is asked once or until the run ends, and its silence is explained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from secureps.errors import ConfigError, OperatorError, PeerError, SecurepsError, Unreachable
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR
from secureps.run.options import (
    AsJson,
    AskingKit,
    Insecure,
    MaybeRun,
    PassphraseFd,
    RunOfUp,
    Server,
)
from secureps.run.up.folder import Origin, RunFolder
from secureps.run.up.runs import PLAYED, describe_standing, list_runs
from secureps.run.up.runs import log as read_logs
from secureps.run.up.runs import stop as stop_run

if TYPE_CHECKING:
    from secureps.run.status_client import StatusClient
    from secureps.store.kit_files import Passphrases

OF_SERVERS = frozenset({"servers", "shards"})
"""The parts of a status that describe processes; a run that nobody plays has none."""

EVERY = 2.0
"""Seconds between two requests of a watch."""


@dataclass(frozen=True)
class StatusTarget:
    """The coordinator at `server`, which is asked with `kit` as `name` (None: as an observer).

    Args:
        folder: that of a run of `up`, by which silence can be explained.
        insecure: connect without TLS.
        passphrase_fd: an open file with the passphrase of the private keys.
    """

    kit: Path
    name: str | None
    server: str
    folder: RunFolder | None = None
    insecure: bool = False
    passphrase_fd: int | None = None

    @cached_property
    def passphrases(self) -> Passphrases:
        """The passphrase of the private keys, which can be read only once."""
        from secureps.store.kit_files import Passphrases

        return Passphrases(self.passphrase_fd)

    def why_silent(self) -> str:
        """The reason why no answer will come any more; empty if one may come."""
        told = PLAYED if self.folder is None else describe_standing(self.folder)
        return "" if told == PLAYED else told

    def connect(self, name: str | None = None) -> StatusClient:
        """Connects as `name`, or its own; OperatorError if the coordinator does not listen yet."""
        from secureps.run.status_client import StatusClient

        server = self.server or (self.folder and self.folder.server)
        if not server:
            raise OperatorError("the coordinator is being started")
        return StatusClient(self.kit, name or self.name, server, self.insecure, self.passphrases)


def find(
    run: Path | None,
    server: str | None,
    kit: Path | None,
    name: str | None,
    insecure: bool = False,
    passphrase_fd: int | None = None,
) -> StatusTarget:
    """Finds the coordinator by the options; ConfigError if they give none, or two."""
    if run is not None:
        if server is not None or kit is not None:
            raise ConfigError("give RUN, the folder of a run of `up`, or --server and --kit")
        folder = RunFolder(run.resolve())
        Origin.read(folder)
        return StatusTarget(folder.kit, name, folder.server, folder, False, passphrase_fd)
    if server is None or kit is None:
        raise ConfigError("give --server and --kit, or RUN, the folder of a run of `up`")
    return StatusTarget(kit, name, server, None, insecure, passphrase_fd)


def look(whom: StatusTarget, as_json: bool, again: bool, console: Console) -> None:
    """Shows the status of a run once or until it ends; the last status if nobody plays the run."""
    why = whom.why_silent()
    if whom.folder is not None and why:
        _tell_end(whom.folder, why, as_json, console)
        return
    from secureps.run.report.status_tables import show, show_fitting, show_json

    with closing(whom.connect()) as observer:
        if again:
            fitting = show_fitting if console.is_terminal else show
            watch(observer.status, show_json if as_json else fitting, console, whom.why_silent)
            return
        try:
            status = observer.status()
        except Unreachable:  # the run may have ended meanwhile
            if whom.folder is None or not (why := whom.why_silent()):
                raise
            _tell_end(whom.folder, why, as_json, console)
        else:
            (show_json if as_json else show)(status, console)


def watch(
    ask: Callable[[], Status],
    show: Callable[[Status, Console], None],
    console: Console,
    why_silent: Callable[[], str] = lambda: "",
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Shows the status again and again until the run ends; the coordinator may be away meanwhile.

    Args:
        ask: gets the status; raises PeerError when there is no answer.
        why_silent: asked after a missing answer: why none will come any more; empty if one may.
        pause: waits EVERY seconds between two requests.
    """
    last: Status | None = None
    since = ""
    while True:
        try:
            last, since, said = ask(), "", ""
            over = last.finished
        except PeerError as error:
            since, over = since or time.strftime("%H:%M:%S"), why_silent()
            said = over or f"no answer since {since}: {error}; this goes on asking, Ctrl-C ends it"
        if console.is_terminal:
            console.clear()
        if last is not None and (console.is_terminal or not said):
            show(last, console)
        if said:
            console.print(Text(said, "yellow"), soft_wrap=True)
        if over:
            return
        pause(EVERY)


def _tell_end(folder: RunFolder, why: str, as_json: bool, console: Console) -> None:
    """Prints why nobody plays a run, and its last status by the coordinator's journal."""
    over, known = folder.summary.exists(), None
    if folder.state(COORDINATOR).is_dir():
        try:
            known = _last_status(folder, why)
        except SecurepsError as error:
            why = f"{why} (its journal cannot be read: {error})"
    if as_json:
        from secureps.run.report.status_tables import record

        whole = {} if known is None else record(known)
        told = {name: each for name, each in whole.items() if name not in OF_SERVERS}
        told |= {"finished": why if over else "", "stopped": "" if over else why}
        console.print(json.dumps(told), soft_wrap=True, highlight=False, markup=False)
        return
    text = f"this run is over: {why}; its model is {folder.model}" if over else why
    console.print(Text(text), soft_wrap=True)
    if known is not None:
        from secureps.run.report.status_tables import show

        show(known, console)


def _last_status(folder: RunFolder, why: str) -> Status | None:
    """The journal's status, with the parties marked as ended; None if no run was founded."""
    from secureps.roles.coordinator.status import ENDED, NOT_KNOWN
    from secureps.run.journal_status import journal_status

    known = journal_status(folder.rulers, folder.kit)
    if known is None:
        return None
    ended = (replace(m, state=ENDED) if m.state == NOT_KNOWN else m for m in known.members)
    finished = known.finished or why
    return replace(known, finished=finished, members=tuple(ended), servers=(), shards=())


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs lie.")] = Path("runs"),
) -> None:
    for line in list_runs(folder):
        Console().print(line, soft_wrap=True)


def status(
    run: MaybeRun = None,
    server: Server = None,
    kit: AskingKit = None,
    name: Annotated[
        str | None, typer.Option(help="Who asks, if it is no observer: a name on the kit's roster.")
    ] = None,
    as_json: AsJson = False,
    again: Annotated[
        bool, typer.Option("--watch", help="Every 2 seconds, until the run is over.")
    ] = False,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """`status` shows versions, what each group waits for and why, what clients have spent,
    and which shard holds what. Give RUN, or --server and --kit.
    """
    look(find(run, server, kit, name, insecure, passphrase_fd), as_json, again, Console())


def log(
    run: RunOfUp,
    party: Annotated[
        str | None, typer.Argument(metavar="[PARTY]", help="Whose; default: of all parties.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="The last N lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="And what comes, until the run ends.")
    ] = False,
) -> None:
    """Ctrl-C ends --follow, and not the run."""
    for line in read_logs(run, party, tail, follow):
        typer.echo(line)


def stop(
    run: RunOfUp,
) -> None:
    """`stop` acts like Ctrl-C in that terminal: nothing is lost, and `secureps resume`
    continues the run.
    """
    typer.echo(stop_run(run))
