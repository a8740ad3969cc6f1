"""Brings another shard into a run of `up`: its keys, and the file that its process reads.

Whoever plays the run sees the file, and starts the process as those of the plan's shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from secureps.config.sections import read_toml
from secureps.crypto.identity import check_name
from secureps.errors import OperatorError, PeerError, UnknownParty
from secureps.messages.requests import Status
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import RESERVED, RunFolder, write_config
from secureps.store.issuing import issue
from secureps.store.keyring import load_public

EVERY = 0.5
"""Seconds between two looks at whether the run knows it."""
WITHIN = 60.0
"""Seconds in which its coordinator has to read the new roster, and then the shard has to come."""


def demand_shard(root: Path, name: str) -> None:
    """Refuses a name that no party can have, or that is another party's of the run.

    Raises:
        Malformed: no party can have it.
        UnknownParty: another party has it, in this run or in every one.
    """
    check_name(name)
    if name in RESERVED:
        raise UnknownParty(f"{name} is no shard's name in any run of up: take another one")
    roster = load_public(RunFolder(root.resolve()).kit).roster
    if name in roster and (role := roster.find(name).role) != "shard":
        raise UnknownParty(f"{name} is a {role} of this run, and no shard")


def bring(
    root: Path,
    name: str,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Has a shard come to a run that is being played; returns when it is there, or the run is over.

    Said again, it goes on where it was. Of a run that is over no process is begun.

    Args:
        pause: between two looks, for EVERY seconds.
        clock: seconds.

    Raises:
        OperatorError: the shard does not come, or the disk refuses.
    """
    folder = RunFolder(root.resolve())
    roster = load_public(folder.kit).roster
    if name not in roster:
        issue(folder.kit, "shard", name)
    wait = partial(_await, pause=pause, clock=clock)

    def here(status: Status) -> bool:
        return name in [shard.name for shard in status.shards]

    # who asks is on the coordinator's roster
    with closing(StatusClient(folder.kit, name, folder.server)) as own:
        status = wait(own.status, lambda status: True, f"{name} is not on its roster yet")
        if status.finished:
            return status
        if not folder.config(name).exists():  # started earlier, it would be refused, and end
            shards = [each.name for each in roster.certificates if each.role == "shard"]
            like = next(each for each in shards if folder.config(each).exists())
            settings = read_toml(folder.config(like))
            write_config(folder, name, {**settings, "name": name, "state": str(folder.state(name))})
        log = folder.logs / f"{name}.log"
        return wait(own.status, here, f"it has not come; see {log}")


def _await(
    ask: Callable[[], Status],
    done: Callable[[Status], bool],
    otherwise: str,
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> Status:
    """Asks until it is so, or the run is over; OperatorError says what is not after WITHIN seconds.

    A coordinator that cannot be reached may take long to be asked.
    """
    last, until = otherwise, clock() + WITHIN
    while clock() < until:
        try:
            if done(status := ask()) or status.finished:
                return status
        except (PeerError, UnknownParty) as error:
            last = f"{otherwise}: {error}"
        pause(EVERY)
    raise OperatorError(f"the run was given {WITHIN:g} seconds: {last}")
