"""The sources of a dashboard's facts about a run: status, journals, ledgers, audit logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from secureps.dashboard import Json
from secureps.dashboard.holder_view import OwnLedger, holder_view
from secureps.dashboard.observation import (
    Course,
    Facts,
    Observation,
    Report,
    read_course,
    read_report,
)
from secureps.errors import SecurepsError
from secureps.messages.run import RunInfo
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan, load_plan
from secureps.privacy.ledger import OWN_DELTA
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.run.audit_log import verify
from secureps.run.journal_status import find_ruler
from secureps.run.status import StatusTarget
from secureps.store.backup import JOURNAL
from secureps.store.budget import BudgetLedger, epsilon_of
from secureps.store.journal import read_rows
from secureps.store.keyring import load_public
from secureps.tracebacks import describe_error
from secureps.wording import finite


class Board:
    """The newest facts; thread-safe."""

    def __init__(self, facts: Facts | None = None) -> None:
        self._lock = threading.Lock()
        self._facts = Facts() if facts is None else facts

    @property
    def facts(self) -> Facts:
        return self._facts

    def put(self, change: Callable[[Facts], Facts]) -> None:
        with self._lock:
            self._facts = change(self._facts)


# --- sources ----------------------------------------------------------------------

STATUS_EVERY = 0.25
"""Seconds between two questions for the status, as in `up`."""
FILES_EVERY = 2.0
"""Seconds between two checks for changed files."""
SHARE = 9.0
"""A pause is this many times longer than the look before it, to leave the machine to others."""
LAST_LOOK = 30.0
"""Seconds for looks to end when the dashboard does."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """One source, by its name in troubles: `look` puts new facts on the board every so often."""

    name: str
    look: Callable[[Board], None]
    every: float = FILES_EVERY


@contextmanager
def feed(board: Board, sources: Sequence[Source]) -> Iterator[None]:
    """Reads all sources while the `with` lasts, each in a thread."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_look_again, args=(each, board, over), name=each.name, daemon=True)
        for each in sources
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LAST_LOOK)


def _look_again(source: Source, board: Board, over: threading.Event) -> None:
    pause = 0.0
    while not over.wait(pause):
        began, trouble = time.monotonic(), ""
        try:
            source.look(board)
        except (SecurepsError, OSError) as error:
            trouble = str(error)
        except Exception as error:  # the next look may succeed, and a dead thread shows nothing
            trouble = describe_error(error)
        board.put(_note_trouble(source.name, trouble))
        pause = max(source.every, SHARE * (time.monotonic() - began))


def _note_trouble(name: str, text: str) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        others = {of: why for of, why in facts.troubles.items() if of != name}
        return replace(facts, troubles=others | ({name: text} if text else {}))

    return change


def status_source(target: StatusTarget) -> Source:
    """A run's status, from its coordinator; KitError if this kit may not ask."""
    observation = Observation()
    client = target.connect() if target.server else None
    run: RunInfo | None = None

    def look(board: Board) -> None:
        nonlocal client, run
        try:
            client = target.connect() if client is None else client
            status = client.status()
            if status.run and run is None:
                run = client.run()
        except SecurepsError as error:
            over = target.why_silent()
            seen = observation.miss(over or str(error), time.time(), bool(over))
        else:
            seen = observation.take(status, time.time())
        board.put(lambda facts: _add_plan(replace(facts, seen=seen), run))

    return Source("status", look, STATUS_EVERY)


def _add_plan(facts: Facts, run: RunInfo | None) -> Facts:
    if run is None or facts.planned == run.id:
        return facts
    plan = Plan.from_text(run.plan)
    sizes = {group.name: group.size for group in plan.layout(run.schema).groups}
    return _add_explanation(replace(facts, planned=run.id), plan, sizes)


def _add_explanation(facts: Facts, plan: Plan, sizes: dict[str, int] | None) -> Facts:
    from secureps.run.check import assume_service, record

    try:
        explanation = record(explain(plan, sizes, assume_service(plan)))
    except SecurepsError:  # the run uses the plan all the same
        explanation = None
    return replace(facts, plan=plan, explanation=explanation)


class ChangedFiles:
    """Files that are read again when they have changed."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._known: object = None

    def read(self, reading: Callable[[], T]) -> T | None:
        """Returns the result of `reading`; None if no file changed since it last succeeded."""
        now = [_stamp(path) for path in self._paths]
        if now == self._known:
            return None
        self._known = None  # after a failure, read again and report it at every look
        found = reading()
        self._known = now
        return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def file_source(
    name: str,
    files: Sequence[Path],
    read: Callable[[], T | None],
    add: Callable[[Facts, T], Facts],
) -> Source:
    """A fact that is read from files when they have changed, and added to the others."""
    changed = ChangedFiles(*files)

    def look(board: Board) -> None:
        if (found := changed.read(read)) is not None:
            board.put(lambda facts: add(facts, found))

    return Source(name, look)


def plan_source(path: Path) -> Source:
    """The plan in the folder of a run of `up`, until the run is founded with it."""

    def add(facts: Facts, plan: Plan) -> Facts:
        return facts if facts.plan else _add_explanation(facts, plan, None)

    return file_source("the plan", [path], lambda: load_plan(path), add)


def report_source(path: Path) -> Source:
    def read() -> Report | None:
        return read_report(path.read_text()) if path.is_file() else None

    return file_source("report", [path], read, lambda facts, report: replace(facts, report=report))


def logs_source(files: Sequence[Path], kit: Path) -> Source:
    return file_source(
        *("audit logs", files, lambda: tuple(verify_logs(files, kit))),
        lambda facts, logs: replace(facts, logs=logs),
    )


def _files(state: Path) -> tuple[Path, Path]:
    return state / JOURNAL, state / f"{JOURNAL}-wal"


def course_source(kit: Path, *states: Path) -> Source:
    """Reads the ruling coordinator's journal, among the state folders of all coordinators.

    The journal also gives the status if the coordinator gives none, or no longer does.
    """

    def read() -> tuple[Course, Coordinator | None] | None:
        ruler = find_ruler(states, kit)
        if ruler is None:
            return None
        journal, machine = ruler
        burnt = () if machine is None else machine.federation.timeline.burnt
        return read_course(read_rows(journal), burnt), machine

    def add(facts: Facts, found: tuple[Course, Coordinator | None]) -> Facts:
        course, machine = found
        facts = replace(facts, course=course)
        if machine is None or machine.federation.pinned is None:
            return facts
        return _add_plan(replace(facts, recalled=machine.recall()), machine.federation.pinned.run)

    files = [file for state in states for file in _files(state)]
    return file_source("the coordinator's state", files, read, add)


def holder_source(name: str, kit: Path, state: Path, ledger: Path, budget: float | None) -> Source:
    """A client's own state folder, and its ledger with its own budget, if it has one."""
    journal = state / JOURNAL

    def read() -> Json | None:
        if not journal.is_file():
            return None
        rows = tuple(read_rows(journal))
        holders = [each.name for each in load_public(kit).roster.holders()]
        # The client writes its ledger first and its journal next: read in reverse, so that the
        # ledger has every charge of which the journal tells.
        return holder_view(name, rows, read_ledger(ledger, budget), holders)

    return file_source(
        *("this client's state", [*_files(state), ledger], read),
        lambda facts, view: replace(facts, own=view),
    )


def read_ledger(path: Path, budget: float | None = None) -> OwnLedger:
    """Reads a ledger over all runs; `budget` is its owner's."""
    if not path.is_file():
        return OwnLedger(budget=budget, missing=f"there is none at {path}")
    try:
        ledger = BudgetLedger(path, budget)
        facts = [fact for _, fact in ledger.facts()]
        return OwnLedger(ledger.spent(), finite(epsilon_of(facts, OWN_DELTA)), ledger.limit)
    except SecurepsError as error:
        return OwnLedger((), None, budget, str(error))


def ledgers_source(folder: Path) -> Source:
    """The ledgers of clients in a folder, NAME.db each."""
    known, said = dict[Path, ChangedFiles](), dict[str, OwnLedger]()

    def look(board: Board) -> None:
        for path in sorted(folder.glob("*.db")):
            files = known.setdefault(path, ChangedFiles(path))
            if (found := files.read(partial(read_ledger, path))) is not None:
                said[path.stem] = found
        board.put(lambda facts: replace(facts, ledgers=dict(said)))

    return Source("ledgers", look)


def verify_logs(files: Sequence[Path], kit: Path) -> Iterator[Json]:
    checks = [_check(path.name, [path], kit) for path in files]
    yield from checks
    if len(files) > 1 and all(each["sound"] for each in checks):
        yield _check("together", files, kit)


def _check(file: str, paths: Sequence[Path], kit: Path) -> Json:
    try:
        log, *others = verify(paths, kit)
    except SecurepsError as error:
        return {"file": file, "sound": False, "text": str(error)}
    text = (
        f"{log.begin.party} ({log.begin.role}), run {log.begin.id.hex()[:16]}: "
        f"{log.end.entries} entries up to row {log.end.row}, signed"
    )
    return {"file": file, "sound": True, "text": "none contradicts another" if others else text}
