"""`secureps join`: runs a data holder's client; with `--hold` also the key holder of its site.

With `--hold` both are processes with their own keys and journals. This process starts them, shows
their output, and restarts them if they die.

    DIR                       the client's state folder
    DIR-holder/lock           held by this process
    DIR-holder/keyholder.toml the configuration of `secureps serve keyholder`
    DIR-holder/state          the key holder's ledger
    DIR-holder/logs/NAME.log  the output of each, as on the terminal
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from secureps.client.runner import Joining
from secureps.client.runner import join as take_part
from secureps.client.script import Script
from secureps.client.trainer import Setting, Trainer
from secureps.config.sections import toml_tables
from secureps.errors import KitError, OperatorError, RuleFailed, TooFew, split_fault
from secureps.messages.orders import COME_BACK
from secureps.roles.holder.holder import FAILED, OVER
from secureps.run.processes.launcher import GRACE, SECUREPS, Program
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.processes.supervisor import RESTARTS, Finished, Supervisor
from secureps.run.script.cut_off import cut_off
from secureps.run.up.folder import lock_folder, refuse_running, site_holder
from secureps.run.up.runs import LogReader
from secureps.service.logs import LogFormat, tell
from secureps.service.pinning import pin_process
from secureps.store.atomic_file import make_directory, replace_text
from secureps.store.keyring import load_public
from secureps.tracebacks import dump_crashes

Build = Callable[[Joining, Mapping[str, Setting]], Trainer]
"""Makes the trainer of a script that runs itself."""


def join(
    script: Path | Build, joining: Joining, settings: Mapping[str, Setting], pin: str = "off"
) -> str:
    """Takes part until the run ends; returns the reason for the end.

    Args:
        script: a script of secureps, a Flower file, or a Flower project's folder; or the function
            that makes the trainer, if the script is running already.
        pin: the NUMA node to which this process is pinned before it imports the script.
    """
    dump_crashes()
    pin_process(pin, joining.name, joining.threads)
    if not isinstance(script, Path):
        joining.site.demand_running()
        return take_part(joining, script(joining, settings)).reason
    joining.site.demand_script(script)  # before any of its code runs
    sys.argv = [str(script)]  # the script, and processes that it starts, may read it
    if not joining.site.network:
        with cut_off(script, settings, joining.state, joining.name) as trainer:
            return take_part(joining, trainer).reason
    source = Script(script)
    return take_part(joining, source.make(settings, joining.state, joining.name)).reason


# --- hold --------------------------------------------------------------------------

_TICK = 0.05


def join_and_hold(
    joining: Joining, words: Sequence[str], log_format: LogFormat, passphrase: bytes | None
) -> str:
    """Runs a client and its site's key holder, each as a process; returns why the client ended.

    A process that dies is restarted, and a signal ends both. If the client leaves or fails, its key
    holder continues until the run ends, because the other sites need it. If the key holder fails,
    the client continues, because the other key holders may be enough. A failed run ends both.

    Args:
        words: the arguments of `secureps` that run the client alone.
        passphrase: of the private keys of both; None if there is none.
    """
    client, holder = joining.name, site_holder(joining.name)
    state = joining.state.absolute()
    folder = state.with_name(site_holder(state.name))
    both = Supervisor(folder / "logs")
    with ExitStack() as stack:
        config = stack.enter_context(_claim_folder(joining, holder, folder))
        serve = ("serve", "keyholder", "--config", str(config), "--log-format", log_format)
        programs = (
            Program(holder, (*SECUREPS, *serve), os.environ, may_fail=True),
            Program(client, (*SECUREPS, *words), os.environ, may_finish=True, may_fail=True),
        )
        then = {
            client: f"{holder} goes on for the other sites until the run is over; the same command "
            f"without --hold starts {client} again",
            holder: f"{client} goes on while enough others hold keys; after a change of the site's "
            "policy, stop this command and start it again; once another cause is mended, "
            f"`secureps serve keyholder --config {config}` runs {holder} beside it",
        }
        shown = _Terminal(folder / "logs", client, holder, named=log_format == "text")
        try:
            with terminable(Terminated), both:
                for program in programs:
                    both.start(_give_passphrase(program, passphrase, stack))
                ended = _watch(both, shown, then)
        except KeyboardInterrupt:
            ended = "stopped"
        finally:
            shown.news()
    for error in filter(None, map(both.failed.get, then)):
        raise error
    return ended


def _watch(both: Supervisor, shown: _Terminal, then: Mapping[str, str]) -> str:
    """Waits until the client has ended, and the run or the key holder too.

    `then` says, by name, what follows if the client or the key holder fails. Returns the reason why
    the client ended; "" if it failed. Raises TooFew if the run failed.
    """
    ended = ""
    client, holder = then
    while client in both.running() or (holder in both.running() and not shown.over):
        time.sleep(_TICK)
        failed, found = set(both.failed), both.poll()
        shown.news()
        for news in found:
            if isinstance(news, Finished):
                ended = _explain_end(news)
                tell(client, "Ended", f"has ended; {holder} goes on until the run is over")
            else:
                text = f"died ({news.how}); it is started again, restart {news.restarts}"
                tell(news.name, "Died", text, logging.WARNING)
        for name in both.failed.keys() - failed:
            text = str(both.failed[name]).removeprefix(f"{name} ")
            tell(name, "Failed", f"{text}; {then[name]}", logging.ERROR)
    if shown.failure and not both.failed:
        raise TooFew(shown.failure + COME_BACK)
    return ended


class _Terminal:
    """Shows both logs on stderr, and notes when the key holder's log says that the run has ended.

    `over` is true once the run is over or failed; `failure` is the reason why it failed.

    Args:
        logs: the folder of the logs, which are emptied first.
        named: each line begins with its party's name.
    """

    def __init__(self, logs: Path, client: str, holder: str, named: bool) -> None:
        self.over, self.failure = False, ""
        self._holders = logs / f"{holder}.log"
        paths = (logs / f"{client}.log", self._holders)
        self._logs = {path: LogReader(path, named) for path in paths}
        for path in paths:
            path.unlink(missing_ok=True)

    def news(self) -> None:
        for path, log in self._logs.items():
            for _, line in log.read_new(whole=True) if path.exists() else ():
                if path == self._holders:
                    self._hear(line)
                print(line, file=sys.stderr, flush=True)

    def _hear(self, line: str) -> None:
        with suppress(ValueError, KeyError, TypeError):  # under `--log-format json`
            line = json.loads(line)["message"]
        if OVER in line or FAILED in line:
            self.over, self.failure = True, line.partition(f"{FAILED}: ")[2]


def _give_passphrase(program: Program, passphrase: bytes | None, stack: ExitStack) -> Program:
    """Gives a program a pipe that has its passphrase once for each start."""
    if passphrase is None:
        return program
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    os.write(ends[1], (passphrase + b"\n") * (RESTARTS + 1))
    # Right after the command's name no earlier word can take the option as its value.
    at = len(SECUREPS) + 1
    own = ("--passphrase-fd", str(ends[0]))
    arguments = (*program.arguments[:at], *own, *program.arguments[at:])
    return replace(program, arguments=arguments, inherits=ends[0])


def _explain_end(ended: Finished) -> str:
    """Returns why a client ended, or raises the error with which its run failed."""
    if not ended.failed:
        return ended.last
    text, kind = split_fault(ended.last)
    raise (RuleFailed if kind is RuleFailed else TooFew)(text)


@contextmanager
def _claim_folder(joining: Joining, holder: str, folder: Path) -> Iterator[Path]:
    """Locks a key holder's folder while the `with` lasts; yields the file for `serve keyholder`."""
    kit, name = joining.kit.absolute(), joining.name
    known = load_public(kit, joining.ca_fingerprint).roster.names("holder")
    if holder not in known or not (kit / "private" / holder).is_dir():
        raise KitError(
            f"--hold: {kit} has no keys of {holder}, a key holder on its roster: make them by "
            f"`secureps keys request {kit} --role client --name {name} --hold --plan FILE`, have "
            "the CA approve the request, and copy its public/; or leave --hold out"
        )
    own = {
        "name": holder,
        "kit": str(kit),
        "ca_fingerprint": joining.ca_fingerprint,
        "state": "state",
        "coordinator": joining.server,
        "minimum": joining.site.terms.minimum,
        "threshold": joining.effective_terms.threshold,
        "insecure": joining.insecure or None,
    }
    path, taken = folder / "keyholder.toml", f"another `secureps join --hold` runs {name} already"
    with ExitStack() as stack:
        try:
            make_directory(folder, 0o700)
            stack.enter_context(lock_folder(folder, taken))
            # The processes of a killed `join` end by themselves within this time. A key holder
            # that still runs would otherwise read the new file when it is restarted.
            refuse_running(folder, {name: joining.state, holder: folder / "state"}, GRACE + 1)
            replace_text(path, toml_tables(own), 0o600)
        except OSError as error:
            raise OperatorError(f"{path}: cannot write: {error.strerror}") from None
        yield path
