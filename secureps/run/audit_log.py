"""Exports and verifies audit logs of parties, and statements of ledgers over all runs.

An audit log only grows: exported bytes never change, even if the journal is lost. A statement of a
ledger is written anew each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from secureps.audit.entries import (
    AuditLog,
    Begin,
    End,
    Entry,
    Spent,
    demand_agreement,
    dump,
    entries,
    epsilons,
    load,
    verify_end,
)
from secureps.audit.ledger_statement import party_of, read_verified, sign_statement, summarize
from secureps.audit.page import build_page
from secureps.crypto.identity import PublicIdentity
from secureps.errors import ConfigError, DamagedStore, OperatorError, Unsigned, naming
from secureps.messages.encoding import file_digest
from secureps.messages.format import FORMAT
from secureps.messages.member_records import SentWithoutPrivacy, UpdateReleased
from secureps.messages.records import RunPinned
from secureps.messages.run import RunInfo
from secureps.policy.plan import Plan
from secureps.privacy.ledger import OWN_DELTA
from secureps.run.options import PassphraseFd
from secureps.store.atomic_file import write_durably
from secureps.store.backup import JOURNAL, demand_owner
from secureps.store.budget import BudgetLedger, epsilon_of, unit_of, without_privacy
from secureps.store.journal import read_rows
from secureps.store.journal_rows import Row
from secureps.store.keyring import PublicKit, load_private, load_public
from secureps.store.kit_files import Passphrases
from secureps.wording import named

Ledger = Annotated[Path, typer.Argument(metavar="LEDGER", help="ledgers/NAME.db by default.")]
AnyKit = Annotated[
    Path, typer.Option("--kit", metavar="DIR", help="A start-up kit: public/ is enough.")
]

Journalled = tuple[RunInfo, tuple[Entry, ...], Sequence[Row]]
"""The contents of a state folder: the run, its entries, and the rows of its journal."""


def export(
    state: Path,
    kit: Path,
    name: str,
    out: Path,
    printed: Path | None = None,
    passphrases: Passphrases | None = None,
) -> tuple[AuditLog, int]:
    """Writes the entries of a party's journal to a log; returns the log and the number of new ones.

    The party may be running. A log whose last signature is from an older key is signed anew.

    Args:
        out: the log, which is made or extended.
        printed: an HTML page of the log, which is made or replaced.
    """
    public, me = load_public(kit), load_private(kit, name, passphrases)
    role = public.roster.find(name).role
    found = run, told, rows = _read_journal(state)
    demand_owner(state, role, name)
    begin = Begin(FORMAT, name, role, run.id, run)
    before = _read(out) if out.exists() else b""
    known = 0
    if before:
        log = _load(out, before)
        if log.begin != begin:
            raise ConfigError(f"{out} is the log of another party or run: name another file")
        _demand_complete(out, log, found)
        known = len(log.entries)
    whole, last = before, rows[-1]
    if not before or log.end.row < last.seq or not _is_signed(before, me.public):
        spent = epsilons(Plan.from_text(run.plan), told)
        end = End(len(told), last.seq, last.chain, spent)
        whole += dump(before, begin, told[known:], end, me)
        log = load(whole)
        _write(out, whole)
    if printed is not None:
        _write(printed, build_page(log, file_digest(whole).hex()).encode())
    return log, len(told) - known


def verify(files: Sequence[Path], kit: Path, state: Path | None = None) -> list[AuditLog]:
    """Reads logs, and checks that they are whole, signed by their parties, and agree.

    Args:
        state: the state folder of the party of the only log, which must agree with its journal.
    """
    if state is not None and len(files) > 1:
        raise ConfigError("--state is one party's: verify its log alone")
    public = load_public(kit)
    logs = [_verify_file(path, public) for path in files]
    if state is not None:
        _demand_complete(files[0], logs[0], _read_journal(state))
    demand_agreement(logs)
    return logs


def _is_signed(data: bytes, key: PublicIdentity) -> bool:
    try:
        verify_end(data, key)
    except Unsigned:
        return False
    return True


def _verify_file(path: Path, kit: PublicKit) -> AuditLog:
    data = _read(path)
    log = _load(path, data)
    begin = log.begin
    if kit.roster.number_of(begin.run.roster) is None:
        raise DamagedStore(
            f"{path} is of a run with another roster than this kit's, or than those before it: "
            "verify it with its own kit"
        )
    name = begin.party
    if name not in kit.roster or kit.roster.find(name).role != begin.role:
        raise DamagedStore(
            f"{path}: no {begin.role} called {name[:80]!r} is on the roster; of who was revoked or "
            "replaced since then, verify it with the public/ of that time"
        )
    if not _is_signed(data, kit.roster.identity(name)):
        raise DamagedStore(
            f"{path}: the last line is not signed by {name}: somebody else made this log, "
            "or changed it and all digests after; or it has other keys since then: verify it with "
            "the public/ of that time, or have it export again"
        )
    spent = epsilons(Plan.from_text(begin.run.plan), log.entries)
    stated = log.end.epsilon
    if not (stated == spent or (begin.format < FORMAT and _covers(stated, spent))):
        raise DamagedStore(f"{path}: the epsilon that it ends with is not what its entries come to")
    return log


def _covers(stated: tuple[Spent, ...] | None, spent: tuple[Spent, ...] | None) -> bool:
    """True if a log of an earlier format states at least the epsilons that its entries amount to.

    Until format 4 a looser bound was used: 7.875 for what is 7.860 now.
    """
    if stated is None or spent is None or len(stated) != len(spent):
        return False
    return all(
        old.client == new.client
        and (old.epsilon is None or (new.epsilon is not None and old.epsilon >= new.epsilon))
        for old, new in zip(stated, spent, strict=True)
    )


def _load(path: Path, data: bytes) -> AuditLog:
    with naming(path, DamagedStore):
        return load(data)


def _read_journal(state: Path) -> Journalled:
    journal = state / JOURNAL
    if not journal.is_file():
        raise ConfigError(f"{state} is no state folder: it has no {JOURNAL}")
    rows = list(read_rows(journal))
    run = next((row.record.run for row in rows if isinstance(row.record, RunPinned)), None)
    if run is None:
        raise ConfigError(f"{state} takes part in no run yet: there is nothing to tell")
    return run, tuple(entries(run.id, rows)), rows


def _demand_complete(path: Path, log: AuditLog, found: Journalled) -> None:
    """Refuses a log that differs from the journal up to the log's last row (DamagedStore)."""
    run, known, rows = found
    if log.begin.run != run:
        raise DamagedStore(
            f"{path} is of run {log.begin.id.hex()[:16]}, and the journal of run "
            f"{run.id.hex()[:16]}"
        )
    told = [entry for entry in known if entry.row <= log.end.row]
    for number in range(1, max(len(told), len(log.entries)) + 1):
        own, other = (_describe_entry(each, number) for each in (log.entries, told))
        if log.entries[number - 1 : number] != tuple(told[number - 1 : number]):
            raise DamagedStore(f"{path}: entry {number} is {own}; by the journal it is {other}")
    chains, newest = {row.seq: row.chain for row in rows}, rows[-1].seq
    for end in log.ends:
        # An archived row may be gone; the entries up to it were compared above.
        gone = end.row < newest and end.row not in chains
        if not (gone or chains.get(end.row) == end.journal):
            raise DamagedStore(
                f"{path}: its row {end.row} is not the journal's, which ends at row {newest}: "
                "this is an older or another journal"
            )


def _describe_entry(all_entries: Sequence[Entry], number: int) -> str:
    if number > len(all_entries):
        return "not there"
    entry = all_entries[number - 1]
    return f"{entry.what} (row {entry.row}: {json.dumps(entry.facts)[:200]})"


def demand_ledger(ledger: Path) -> None:
    """Refuses a missing ledger (ConfigError), because opening a ledger creates it."""
    if found := sorted(ledger.rglob("ledgers/*.db")) if ledger.is_dir() else []:
        raise ConfigError(f"{ledger} is a folder: name one of its ledgers, such as {found[0]}")
    if not ledger.is_file():
        raise ConfigError(f"{ledger}: no ledger; a client makes it when it first spends")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error}") from None


def _write(path: Path, data: bytes) -> None:
    try:
        write_durably(path, [data])
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error}") from None


def show_ledger(
    ledger: Ledger,
) -> None:
    demand_ledger(ledger)
    own = BudgetLedger(ledger)
    for run in (runs := own.spent()):
        typer.echo(f"run {run.run.hex()[:16]}  {run.text}")
    told = list[str]()
    if facts := [fact for _, fact in own.facts()]:
        spent = f"epsilon {epsilon_of(facts, OWN_DELTA):.3f} at delta {OWN_DELTA:g}"
        told.append(f"{spent}, of {unit_of(facts)}")
    if exact := without_privacy(sum(run.exact for run in runs)):
        told.append(exact)
    typer.echo(f"together  {', and '.join(told) or 'nothing'}")


def export_ledger(
    ledger: Ledger,
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The client's start-up kit: it signs.")],
    name: Annotated[str, typer.Option(help="Whose ledger it is, on the kit's roster.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON, to be made or replaced.")],
    passphrase_fd: PassphraseFd = None,
) -> None:
    """The file has runs, dates, numbers of updates and epsilons, and no content of records."""
    demand_ledger(ledger)
    me = load_private(kit, name, Passphrases(passphrase_fd))
    own = BudgetLedger(ledger)
    naming_clients = UpdateReleased | SentWithoutPrivacy
    clients = {row.client for _, row in own.rows() if isinstance(row, naming_clients)}
    if clients and name not in clients:
        raise ConfigError(
            f"{ledger} is the ledger of {named(sorted(clients))}, and has no update of {name}: "
            f"name the ledger that is {name}'s, or its own client by --name"
        )
    data = sign_statement(own, name, me)
    _write(out, data)
    typer.echo(f"wrote {out}: {summarize(read_verified(data, me.public))}")


def verify_ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `budget export` wrote.")],
    kit: AnyKit,
) -> None:
    data = _read(file)
    with naming(file, DamagedStore):
        signer = load_public(kit).roster.identity(party_of(data))
        typer.echo(summarize(read_verified(data, signer)))


def export_log(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="A party's state folder.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The party's start-up kit: it signs.")],
    name: Annotated[str, typer.Option(help="Whose it is, on the kit's roster.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON lines; made, or added to.")],
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same to print: one HTML file.")
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """An existing FILE is extended, and its lines never change. FILE has no secrets
    of the party, but it names all clients that the party knows.
    """
    log, new = export(state, kit, name, out, page, Passphrases(passphrase_fd))
    more = f"{new} of them new, " if new < log.end.entries else ""
    typer.echo(f"wrote {out}: {log.end.entries} entries, {more}of {log.end.row} rows")


def verify_logs(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Logs of parties of one run.")
    ],
    kit: AnyKit,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The party's state folder: is the log complete?"),
    ] = None,
) -> None:
    """With --state one log is compared with its party's journal. The first wrong entry
    is named.
    """
    for log in verify(files, kit, state):
        whose = f"{log.begin.party} ({log.begin.role}), run {log.begin.id.hex()[:16]}"
        against = "" if state is None else ", complete against the journal"
        typer.echo(f"{whose}: {log.end.entries} entries up to row {log.end.row}, signed{against}")
        for each in log.end.epsilon or ():
            epsilon = "unbounded" if each.epsilon is None else f"{each.epsilon:.3f}"
            typer.echo(f"  {each.client}  epsilon {epsilon}")
