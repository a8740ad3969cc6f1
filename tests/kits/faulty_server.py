"""A real server that dies, lies or waits at the points that its command line names, for tests.

    faulty_server.py POINT@VERSION:ACTION ... -- serve ROLE --config FILE

VERSION is the one that is being made, 0 while the run is founded. Points of a committee's holder,
in the order in which they come:

    founded             the run is in its ledger
    asked-to-examine    the first receipt is here, and nothing is done about it
    examined            its envelope is opened, and nobody heard of it
    asked-to-open       the cohort is here, and nothing is done about it
    released            the cohort counts as opened in its ledger, and nothing is derived
    derived             its share is made, and has not left
    answered            the coordinator has acknowledged the share

Of a shard: `summed`, the sums of a cohort are made and nobody heard of it; `journals`, a version is
made and not on record; `reads`, a block of the cohort is about to be read on the worker's thread.
Of a coordinator: `commits`, a version is made by all shards and not on record. With one of the
last three a party counts as hanging after a second. Actions:

    die                 SIGKILL
    touch=FILE          says that it came so far
    wait=FILE           goes on once there is this file
    random, off-by-one  at `derived`: another share; the second spoils the sum of keys by 1 in its
                        first coefficient where holders 0, 1 and 2 open together
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secureps.crypto.sharing import P, Vector, lagrange, parse_vector, vector_bytes
from secureps.messages.coordinator_records import VersionCommitted
from secureps.messages.holder_records import CohortReleased
from secureps.messages.records import RunPinned
from secureps.messages.requests import KeyShare, Prepared
from secureps.roles.holder.committee import CommitteeHolder, ShareDerived
from secureps.roles.machine import Answered
from secureps.run.cli import main
from secureps.service import process
from secureps.service.holder import CommitteeWorker
from secureps.service.shard.worker import ShardWorker
from secureps.store.journal import SqliteJournal
from secureps.store.served_runs import ServedJournal

FAULTS: dict[tuple[str, int], str] = {}
"""What happens at a point while a version is made."""


def reached(point: str, version: int) -> str:
    """Dies, waits or touches as it is told; returns the action."""
    action, _, file = FAULTS.get((point, version), "").partition("=")
    match action:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "touch":
            Path(file).touch()
        case "wait":
            while not Path(file).exists():
                time.sleep(0.01)
    return action


# --- where they are ---------------------------------------------------------------


def before(owner: Any, method: str, act: Callable[..., Any]) -> None:
    """`act` is called with the arguments of the method, and then the method."""
    right = getattr(owner, method)

    def patched(*given: Any) -> Any:
        act(*given)
        return right(*given)

    setattr(owner, method, patched)


def after(owner: type, method: str, act: Callable[..., Any]) -> None:
    """`act` is called with what the method returned and its arguments; its result counts."""
    right = getattr(owner, method)

    def patched(*given: Any) -> Any:
        return act(right(*given), *given)

    setattr(owner, method, patched)


def ledger(done: None, journal: ServedJournal, at: float, records: Sequence[Any]) -> None:
    for record in records:
        match record:
            case RunPinned():
                reached("founded", 0)
            case CohortReleased(cohort):
                reached("released", cohort.version)


def examined(flaw: str, worker: CommitteeWorker, receipt: Any) -> str:
    reached("examined", receipt.version + 1)
    return flaw


def derived(done: ShareDerived, worker: CommitteeWorker, task: Any) -> ShareDerived:
    share = parse_vector(done.share, len(done.share) // 4)
    match reached("derived", done.cohort.version):
        case "random":
            share = at_random(share)
        case "off-by-one":
            share = off_by_one(share)
    return dataclasses.replace(done, share=vector_bytes(share))


def answered(machine: CommitteeHolder, now: float, sender: str, event: Any) -> None:
    match event:
        case Answered(KeyShare(_, group, number)):
            known = machine._ledger.known.standings.values()
            released = {
                (c.group, c.number): c.version for each in known for c in each.released.values()
            }
            reached("answered", released[group, number])


def journalling(journal: SqliteJournal, at: float, records: Sequence[Any]) -> None:
    for record in records:
        match record:
            case Prepared():
                reached("journals", record.version)
            case VersionCommitted():
                reached("commits", record.version)


def reading(file: int) -> None:
    """Somebody opens a file; that of an update's block is the version's that it is for."""
    kind, *name = Path(os.readlink(f"/proc/self/fd/{file}")).name.split("~")
    if kind == "update":
        reached("reads", int(name[2]) + 1)


def hang_at(point: str, version: int, action: str) -> None:
    """Has a party that stands still there count as hanging after a second."""
    FAULTS[point, version] = action
    if point == "reads":
        before(os, "fstat", reading)
    else:
        before(SqliteJournal, "append", journalling)
    process.PROBE_SECONDS, process.STILL = 0.1, 1.0


def summed(done: Any, worker: ShardWorker, task: Any) -> Any:
    reached("summed", task.cohort.version)
    return done


# --- lies -------------------------------------------------------------------------


def at_random(share: Vector) -> Vector:
    return np.random.default_rng(1).integers(0, P, share.size).astype(np.uint32)


def off_by_one(share: Vector) -> Vector:
    """Holder 1's, with which holders 0, 1 and 2 get a sum of keys that is as small as any."""
    lie = share.copy()
    lie[0] = (int(share[0]) + pow(lagrange((1, 2, 3), 0)[1], -1, P)) % P
    return lie


if __name__ == "__main__":
    cut = sys.argv.index("--")
    for fault in sys.argv[1:cut]:
        place, _, action = fault.partition(":")
        point, _, version = place.partition("@")
        FAULTS[point, int(version)] = action
    sys.argv = ["secureps", *sys.argv[cut + 1 :]]
    after(ServedJournal, "append", ledger)
    before(
        CommitteeHolder,
        "_examine",
        lambda machine, order: reached("asked-to-examine", order.receipt.version + 1),
    )
    after(CommitteeWorker, "_flaw", examined)
    before(
        CommitteeHolder,
        "_open",
        lambda machine, order: reached("asked-to-open", order.cohort.version),
    )
    after(CommitteeWorker, "_derive", derived)
    before(CommitteeHolder, "handle", answered)
    after(ShardWorker, "_sum", summed)
    for (where, made), what in tuple(FAULTS.items()):
        if where in ("journals", "commits", "reads"):
            hang_at(where, made, what)
    main()
