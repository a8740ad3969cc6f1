"""`secureps status`: asks a coordinator, once or until the run is over, and explains silence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from secureps.errors import ConfigError, OperatorError, PeerError, SecurepsError, Unreachable
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR
from secureps.run.up.folder import Origin, RunFolder
from secureps.run.up.runs import PLAYED, describe_standing

if TYPE_CHECKING:
    from secureps.run.status_client import StatusClient

OF_SERVERS = frozenset({"servers", "shards"})
"""Of a status, what is of processes: of a run that nobody plays there are none."""

EVERY = 2.0
"""Seconds between two requests of a watch."""


@dataclass(frozen=True)
class StatusTarget:
    """The coordinator at `server`, asked with `kit` as `name` (None: as an observer).

    `folder` is that of a run of `up`, whose silence can be told; `insecure`: without TLS;
    `passphrase_fd`: an open file, with the passphrase of the private keys.
    """

    kit: Path
    name: str | None
    server: str
    folder: RunFolder | None = None
    insecure: bool = False
    passphrase_fd: int | None = None

    def why_silent(self, asked: bool = False) -> str:
        """Why no answer will come any more; empty if one may, or it is not known.

        `asked`: the coordinator was asked just now, and did not answer.
        """
        if self.folder is None or (told := describe_standing(self.folder, asked)) == PLAYED:
            return ""
        return told

    @contextmanager
    def client(self) -> Iterator[StatusClient]:
        """Connects for a `with`; raises OperatorError before the coordinator listens."""
        from secureps.run.status_client import StatusClient
        from secureps.store.kit_files import Passphrases

        if not self.server:
            root = self.folder and self.folder.root
            raise OperatorError(f"{root}: its coordinator is being started")
        passphrases = Passphrases(self.passphrase_fd)
        with closing(
            StatusClient(self.kit, self.name, self.server, self.insecure, passphrases)
        ) as client:
            yield client


def find(
    run: Path | None,
    server: str | None,
    kit: Path | None,
    name: str | None,
    insecure: bool = False,
    passphrase_fd: int | None = None,
) -> StatusTarget:
    """Finds the coordinator to ask by options; ConfigError if they say too little or too much."""
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
    """Shows the status of a run, once or until it is over; of one that nobody plays, its last."""
    why = whom.why_silent()
    if whom.folder is not None and why:
        _tell_end(whom.folder, why, as_json, console)
        return
    from secureps.run.report.status_tables import show, show_fitting, show_json

    with whom.client() as observer:
        if again:
            fitting = show_fitting if console.is_terminal else show
            why_silent = partial(whom.why_silent, asked=True)
            watch(observer.status, show_json if as_json else fitting, console, why_silent)
            return
        try:
            status = observer.status()
        except Unreachable:
            if whom.folder is None or not (why := whom.why_silent(asked=True)):
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
    """Shows one status after another until the run is over; who is away may come back.

    Args:
        ask: for the next one; raises PeerError when there is no answer.
        why_silent: why no answer will come any more, when there was none; empty if one may.
        pause: between two, for EVERY seconds.
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
    """Says why nobody plays a run, and how it stands by its coordinator's journal."""
    over, known = folder.summary.exists(), None
    if folder.state(COORDINATOR).is_dir():  # else there is nothing to import all this for
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
    """The status of a run that nobody plays, which its journal does not say; None without a run."""
    from secureps.roles.coordinator.status import ENDED, NOT_KNOWN
    from secureps.run.journal_status import journal_status

    known = journal_status(folder.rulers, folder.kit)
    if known is None:
        return None
    ended = (replace(m, state=ENDED) if m.state == NOT_KNOWN else m for m in known.members)
    finished = known.finished or why
    return replace(known, finished=finished, members=tuple(ended), servers=(), shards=())
