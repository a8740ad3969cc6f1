"""The command `secureps dashboard`, and the dashboards of `up` and `join`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secureps.errors import ConfigError
from secureps.run.options import AskingKit, Insecure, MaybeRun, PassphraseFd, Server
from secureps.run.status import find
from secureps.service.shutdown import Shutdown
from secureps.store.kit_files import Passphrases

if TYPE_CHECKING:
    from secureps.client.runner import Joining


def dashboard(
    run: MaybeRun = None,
    server: Server = None,
    kit: AskingKit = None,
    name: Annotated[
        str | None,
        typer.Option(help="Who looks: by its role there are other pages. Default: an observer."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A client's own state folder, else the coordinator's."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A client's own ledger, else a folder of ledgers."),
    ] = None,
    own_budget: Annotated[
        float | None,
        typer.Option(
            "--budget", show_envvar=False, metavar="EPSILON", help="A client's own, to be shown."
        ),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="An audit log to verify; repeat it."),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where. Off loopback, for the kit's certificates."),
    ] = "127.0.0.1:0",
    act: Annotated[
        bool,
        typer.Option("--act", help="Also act: pause the run, leave a client out, end it."),
    ] = False,
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """An operator sees for whom a run waits, and its six steps; a privacy officer the
    plan explained, what was spent, opened and refused; a client (--name) its own
    epsilon, what left its machine, and who could open that. Give RUN, or --kit and
    what to look at: --server, --state or --log.
    """
    from secureps.dashboard.application import Looking, show_beside

    asks = run is not None or server is not None
    target = find(run, server, kit, name, insecure, passphrase_fd) if asks else None
    own = target.kit if target is not None else kit
    if own is None or not (asks or state or logs):
        raise ConfigError(
            "give RUN, the folder of a run of `up`, or --kit and what to look at: --server, "
            "--state or --log"
        )
    passphrases = Passphrases(passphrase_fd) if target is None else target.passphrases
    more = (state, ledger, own_budget, tuple(logs or ()), listen, act, passphrases)
    with Shutdown() as shutdown, show_beside(Looking(own, name, target, *more)):
        shutdown.wait()


def show_run(run: Path) -> AbstractContextManager[None]:
    """Shows a run of `up`, by its folder."""
    from secureps.dashboard.application import Looking, show_beside

    target = find(run, None, None, None)
    return show_beside(Looking(target.kit, None, target))


def show_own_page(joining: Joining, shown: bool) -> AbstractContextManager[None]:
    if not shown:
        return nullcontext()
    from secureps.dashboard.application import Looking, show_beside

    own = Looking(
        joining.kit,
        joining.name,
        state=joining.state,
        ledger=joining.ledger_path,
        budget=joining.effective_terms.budget,
        passphrases=joining.passphrases,
        acts=True,
    )
    return show_beside(own)
