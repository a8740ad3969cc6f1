"""`secureps backup` and `restore`: copy a party's state folder, and bring a copy back.

`restore` says which versions a shard's copy has: with one replica, and checkpoints of only some
versions, even a copy that is seconds old is useless if the run has made a version since.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from secureps.crypto.identity import Role
from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, DamagedStore
from secureps.policy.plan import Plan
from secureps.run.report.terminal import fold_versions
from secureps.service.shard.states import ShardFolders
from secureps.store.backup import JOURNAL, demand_owner, read_pinned, read_run
from secureps.store.backup import backup as make_backup
from secureps.store.backup import restore as bring_back
from secureps.store.checkpoint import checkpoint_directories, read_metadata
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
    """A shard's copy is always accepted, and what it may lack is printed. A copy of a
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
    plan = Plan.from_text(pinned.run.plan)
    every = plan.section.checkpoint_every
    if every == 1 or plan.section.replicas > 1:
        return
    # As `up` and the guide lay it out: beside the folder of all states.
    checkpoints = state.resolve().parent.parent / "checkpoints"
    own = _newest_versions(ShardFolders(state / "states", checkpoints), plan.groups)
    has = f"version {fold_versions(own)}" if own else "no version"
    part = _describe_part(checkpoints, name, plan.groups)
    typer.echo(
        f"note: the copy has {has}, {part}: with checkpoint_every = {every} and "
        "replicas = 1 the run goes on if it is at one of these, or at a version of "
        f"another part of a checkpoint. If it has come to any other, {name} says so once it is "
        "started, and no cohort is opened: begin a new run from the newest checkpoint then "
        "(secureps export)"
    )


def _newest_versions(folders: ShardFolders, groups: Iterable[str]) -> dict[str, int]:
    found = {group: [at for _, at, _ in folders.state_files(group)] for group in groups}
    return {group: max(versions) for group, versions in found.items() if versions}


def _describe_part(checkpoints: Path, name: str, groups: Iterable[str]) -> str:
    for directory in checkpoint_directories(checkpoints):
        part = directory / f"{name}.safetensors"
        with suppress(DamagedStore, ValueError):
            told = read_metadata(part)
            known = {g: int(told[key]) for g in groups if (key := f"version.{g}") in told}
            if known:
                return f"{part} version {fold_versions(known)}"
    return f"no part of a checkpoint is in {checkpoints}"
