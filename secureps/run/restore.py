"""`secureps backup` and `restore`: copy a party's state folder, and bring a copy back.

With one replica, and checkpoints of only some versions, a shard's copy that is seconds old is
useless if the run has made a version since: `restore` says so.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from secureps.crypto.identity import Role
from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, DamagedStore
from secureps.policy.plan import Plan
from secureps.store.backup import JOURNAL, demand_owner, read_pinned, read_run
from secureps.store.backup import backup as make_backup
from secureps.store.backup import restore as bring_back
from secureps.store.journal import read_rows
from secureps.store.keyring import load_public


def backup(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="A party's state folder.")],
    out: Annotated[Path, typer.Option(metavar="COPY", help="A folder of its own, to be made.")],
) -> None:
    """Journal and log are copied at one moment. Keep the copy as secret as the folder,
    because a client's copy has its seed. The kit is not copied.
    """
    typer.echo(f"copied {state} to {out}: {make_backup(state, out)} rows of its journal")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="What `backup` made.")],
    state: Annotated[Path, typer.Option(metavar="DIR", help="The state folder to bring back.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The party's start-up kit.")],
    name: Annotated[str, typer.Option(help="Whose it is, on the kit's roster.")],
) -> None:
    """A shard's copy is always accepted, and it is printed if it may lack something. A copy of a
    coordinator, key holder or client is refused if the party has done more since,
    because the party would forget what it has said or spent.
    """
    roster = load_public(kit).roster
    role = roster.find(name).role
    if (copy / JOURNAL).is_file():
        _refuse_foreign(copy, state, roster, role, name)
    rows = bring_back(copy, state, role, kit / "private" / name)
    typer.echo(f"restored {state}: {rows} rows of its journal")
    if role == "shard":
        _note_versions(state, name)


def _refuse_foreign(copy: Path, state: Path, roster: Roster, role: Role, name: str) -> None:
    """Refuses a copy or state folder of another party or run (ConfigError)."""
    demand_owner(copy, role, name)
    for _ in read_rows(copy / JOURNAL):  # raises DamagedStore for a broken chain
        pass
    pinned = read_pinned(copy / JOURNAL)
    if pinned is not None and roster.number_of(pinned.run.roster) is None:
        raise ConfigError(
            f"{copy} is of run {pinned.run.id.hex()[:16]}, which was founded with another roster "
            "than this kit's, or than those before it: name by --kit the kit of that run"
        )
    there = state / JOURNAL
    if not there.is_file():
        return
    with suppress(DamagedStore):  # the copy may replace a damaged journal
        demand_owner(state, role, name)
    with suppress(DamagedStore):
        run = read_run(there)
        if run is not None and pinned is not None and run != pinned.run.id:
            raise ConfigError(
                f"{copy} is of run {pinned.run.id.hex()[:16]}, and {state} of run "
                f"{run.hex()[:16]}: name a copy of that run, or another folder by --state"
            )


def _note_versions(state: Path, name: str) -> None:
    if (pinned := read_pinned(state / JOURNAL)) is None:
        return
    section = Plan.from_text(pinned.run.plan).section
    every = section.checkpoint_every
    if every > 1 and section.replicas == 1:
        typer.echo(
            f"note: with checkpoint_every = {every} and replicas = 1 the run goes on if it is at a "
            "version that this copy or a checkpoint has. If it has come to any other, "
            f"{name} says so once it is started, and no cohort is opened: begin a new run from the "
            "newest checkpoint then (secureps export)"
        )
