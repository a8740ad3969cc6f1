"""`secureps act` and `secureps shards`: orders of the operator to a coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from secureps.errors import (
    ClientError,
    ConfigError,
    OperatorError,
    PeerError,
    Refused,
    UnknownParty,
    Unreachable,
)
from secureps.messages.acts import Act, Deed, ShardDeed
from secureps.messages.requests import Move, Status
from secureps.messages.run import COORDINATOR
from secureps.run.options import AskingKit, Insecure, MaybeRun, PassphraseFd, Reason, Server
from secureps.run.report.terminal import Progress, move_text
from secureps.run.status import find
from secureps.run.status_client import StatusClient
from secureps.wording import counted, duration, printable, size

SAID = {
    Deed.PAUSE: "the run is paused: no round opens and no cohort closes until it is to go on",
    Deed.GO_ON: "the run goes on",
    Deed.CHECKPOINT: "a checkpoint is made of all that is committed and in none yet",
    Deed.LEAVE_OUT: "{client} takes no part until it is taken back",
    Deed.TAKE_BACK: "{client} takes part again, from the next round on",
    Deed.SCALING_OFF: "nothing follows the load any more: shards stay as they are, buffers are the "
    "plan's, and so are deadlines from each group's next round on",
    Deed.SCALING_ON: "shards, deadlines and buffers follow the load, as the plan's [scaling] says",
}


def describe(act: Act) -> str:
    return SAID[Deed(act.what)].format(client=act.party)


@contextmanager
def as_coordinator(
    run: Path | None,
    server: str | None,
    kit: Path | None,
    insecure: bool,
    passphrase_fd: int | None,
) -> Iterator[tuple[StatusClient, Callable[[], str]]]:
    """Connects to a coordinator with its own key; OperatorError if the run has none now.

    Yields:
        The client, and a function that says why no answer will come any more; empty if one may.
    """
    whom = find(run, server, kit, COORDINATOR, insecure, passphrase_fd)
    gone = "{} has no coordinator now: {}"
    if why := whom.why_silent():
        raise OperatorError(gone.format(run, why))
    with closing(whom.connect()) as own:
        try:
            yield own, whom.why_silent
        except Unreachable:
            if why := whom.why_silent():  # the run has ended meanwhile
                raise OperatorError(gone.format(run, why)) from None
            raise


def act(
    what: Annotated[Deed, typer.Argument(help="What to do.")],
    run: MaybeRun = None,
    server: Server = None,
    kit: AskingKit = None,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Whom to leave out, or to take back.")
    ] = "",
    reason: Reason = "",
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """pause holds the run between two versions until go-on; checkpoint makes all
    committed versions durable; leave-out excludes one client (--client) until
    take-back; scaling-off suspends the plan's \\[scaling] until scaling-on.
    Give RUN, or --server and the coordinator's own --kit.
    """
    with as_coordinator(run, server, kit, insecure, passphrase_fd) as (own, _):
        try:
            own.act(done := Act(what.value, client, reason))
        except (ClientError, Refused) as error:  # the operator, and no program, asked for the act
            raise OperatorError(str(error)) from None
    typer.echo(describe(done))


EVERY = 0.5
"""Seconds between two requests for the status of a move."""


class RunOver(Exception):
    """The run has ended, or is about to: no more shards can change, and nobody is at fault."""


def shards(
    what: Annotated[Literal["add", "drain", "remove"], typer.Argument(help="What to do.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The shard, as on the roster.")],
    run: MaybeRun = None,
    server: Server = None,
    kit: AskingKit = None,
    reason: Reason = "",
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """add gives a share of the blocks to a running shard of the roster; drain moves all
    blocks of a shard to the others; remove does that too, and the shard leaves the
    run. The model stays the same, except for noise that shards add, and for the
    members of cohorts under buffered. Ctrl-C stops the display, and not the move.
    Give RUN, in which add also starts a shard of a new name, or --server and the
    coordinator's own --kit.
    """
    deed = ShardDeed(f"{what}-shard")
    if run is not None and deed is ShardDeed.REMOVE:
        raise ConfigError(
            f"`secureps resume` starts all shards of {run}, also one that has left: drain it "
            f"instead, secureps shards drain {name} {run}"
        )
    with as_coordinator(run, server, kit, insecure, passphrase_fd) as (own, why_silent):
        act = Act(deed.value, name, reason)
        try:
            try:
                _send_act(own, act)
            except UnknownParty:
                if run is None or deed is not ShardDeed.ADD:
                    raise
                # Imports what plans need, which no other act does.
                from secureps.run.up.programs import bring_shard, demand_shard

                _refuse_ended(own.status())
                demand_shard(run, name)
                typer.echo(f"{name} is new: it gets keys, and whoever plays the run starts it")
                _refuse_ended(bring_shard(run, name))
                _send_act(own, act)
            typer.echo(follow(own.status, act, Console(), why_silent))
        except RunOver as over:
            typer.echo(f"{over}: nothing came of it, {name} is as it was", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("the move goes on without this: secureps status shows it", err=True)
            raise


def _send_act(own: StatusClient, act: Act) -> None:
    """Sends an act; RunOver if the coordinator refuses it because the run has ended."""
    try:
        own.act(act)
    except Refused:
        _refuse_ended(own.status())
        raise


def _refuse_ended(status: Status) -> None:
    if status.finished:
        raise RunOver(f"the run is over ({printable(status.finished)})")
    if status.groups and all(group.step == "done" for group in status.groups):
        raise RunOver(f"the run is at its end ({printable(status.groups[0].reason)})")


def follow(
    ask: Callable[[], Status],
    act: Act,
    console: Console,
    why_silent: Callable[[], str] = lambda: "",
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Shows the move that an act began until the move ends; returns its outcome in a line.

    Args:
        ask: gets the status; raises PeerError while there is no answer.
        why_silent: asked after a missing answer: why none will come any more; empty if one may.

    Raises RunOver if the run ended first, OperatorError if the coordinator gave up the move.
    """
    last: Move | None = None
    began, silent, shown = time.monotonic(), False, ""
    with Progress(console, act.party, unsafe=False) as progress:
        while True:
            try:
                status, silent = ask(), False
            except PeerError as error:  # the coordinator may be restarted, and then continues
                if why := why_silent():
                    raise OperatorError(f"what came of it is not known: {why}") from None
                if not silent:
                    progress.say(f"no answer: {error}; this goes on asking, Ctrl-C ends it")
                silent = True
            else:
                move = status.move
                if move is None or (move.what, move.shard) != (act.what, act.party):
                    return _describe_outcome(act, status, last, time.monotonic() - began)
                if (text := move_text(move)) != shown:
                    progress.show_activity(text)
                last, shown = move, text
            pause(EVERY)


def _describe_outcome(act: Act, status: Status, last: Move | None, seconds: float) -> str:
    name, moved = act.party, ""
    held = next((h for h in status.holdings if h.shard == name), None)
    here = name in [each.name for each in status.shards]
    if last is not None:
        moved = f"; {counted(last.blocks, 'block')} moved, {size(last.bytes)}, within "
        moved += duration(seconds)
    if act.what == ShardDeed.ADD and held is not None and not held.blocks:
        count = counted(sum(each.blocks for each in status.holdings), "block")
        return f"{name} holds nothing: {count} are too few for it; a plan's block_size has more"
    if act.what == ShardDeed.ADD and held is not None:
        own = counted(held.blocks, "block")
        return f"{name} holds {own}, {size(held.bytes)} of the model{moved}"
    if act.what == ShardDeed.DRAIN and (held is None or not held.blocks):
        return f"{name} holds nothing: it may be stopped, and added again later{moved}"
    if act.what == ShardDeed.REMOVE and not here:
        return f"{name} has left the run, and its process ends{moved}"
    _refuse_ended(status)
    raise OperatorError(f"nothing came of it: {name} is as it was; the coordinator's log says why")
