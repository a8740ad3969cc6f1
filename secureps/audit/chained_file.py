"""The file of an audit log: lines of JSON, each with the digest of the line before it.

    begin   the party, its role, and the run with its plan
    entry   numbered from 1 (`audit.entries`)
    end     how far the journal had come, and what was spent; signed by the party. More may follow,
            up to another end: what was exported once is never written again

`previous` is BLAKE2b-256 of the bytes of the line before, without its newline: b2sum --length=256
makes it. An end's signature is Ed25519, in the domain DOMAIN (`crypto.identity.framed`), over the
bytes of its line with an empty signature; so it covers all lines before.

A party can sign what it likes of itself; it cannot sign for the others: so logs of several parties
of one run are held against each other (`demand_agreement`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from secureps.audit.entries import Entry, Json, Moment, Spent
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.errors import DamagedStore, Malformed
from secureps.messages.encoding import file_digest, from_plain, to_plain
from secureps.messages.run import RunInfo

DOMAIN = b"secureps-audit-log"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begin:
    """Whose log it is, and of which run; `id` is the run's, by which plan and roster are bound."""

    format: int
    party: str
    role: str
    id: bytes
    run: RunInfo


@dataclass(frozen=True, slots=True)
class End:
    """The party's word for all lines before.

    Args:
        entries: how many there are.
        row, journal: the last row of its journal, and the digest of that and all before it.
        epsilon: what was spent (`audit.entries`); None under a plan without privacy.
        signature: 64 bytes; empty in what is signed.
    """

    entries: int
    row: int
    journal: bytes
    epsilon: tuple[Spent, ...] | None
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class AuditLog:
    """What a whole file says; `ends` are its signed ends, the last of which closes it."""

    begin: Begin
    entries: tuple[Entry, ...]
    ends: tuple[End, ...]

    @property
    def end(self) -> End:
        return self.ends[-1]


def dump(before: bytes, begin: Begin, entries: Sequence[Entry], end: End, me: Identity) -> bytes:
    """Lines that go on from `before`, the bytes of a log so far, up to a signed end.

    Args:
        begin: written if there is no line yet.
        entries: the new ones; the last has the number that `end` says.
    """
    last = before.rstrip(b"\n").rpartition(b"\n")[2]
    made = []

    def line(kind: str, body: dict[str, Json]) -> bytes:
        previous = file_digest(last).hex() if last else ""
        return _encoded({"line": kind, **body, "previous": previous})

    if not last:
        made.append(last := line("begin", to_plain(begin)))
    for number, entry in enumerate(entries, end.entries - len(entries) + 1):
        body = {"number": number, **to_plain(_moment(entry)), "facts": entry.facts}
        made.append(last := line("entry", body))
    signature = me.sign(DOMAIN, line("end", to_plain(replace(end, signature=b""))))
    made.append(line("end", to_plain(replace(end, signature=signature))))
    return b"".join(each + b"\n" for each in made)


def load(data: bytes) -> AuditLog:
    """The log in a file, whose chain holds; nothing is said of its signature.

    Raises:
        DamagedStore: names the first line that is wrong.
    """
    lines = data.split(b"\n")
    if lines.pop() or not lines:
        raise DamagedStore("its last line is cut short: take a whole copy, or export it again")
    begin: Begin | None = None
    entries: list[Entry] = []
    ends: list[End] = []
    before, last = b"", "the first line"
    for place, line in enumerate(lines, 1):
        kind, body = _parsed(place, line)
        number = body.pop("number", None) if kind == "entry" else None
        if kind == "entry" and number != len(entries) + 1:
            raise DamagedStore(
                f"line {place} is entry {number!r:.40}, and entry {len(entries) + 1} should be "
                "there: entries were removed, added or moved"
            )
        if body.pop("previous", None) != (file_digest(before).hex() if before else ""):
            raise DamagedStore(
                f"{last} was changed, or lines between it and line {place} were removed or added: "
                f"line {place} does not follow it"
            )
        match kind:
            case "begin" if place == 1:
                begin, last = _read(Begin, place, body), "line 1"
                if begin.run.id != begin.id:
                    raise DamagedStore("line 1 names a run whose id is another one")
            case "entry" if begin is not None:
                entries.append(_entry(place, body))
                last = f"entry {number} ({entries[-1].what}, row {entries[-1].row})"
            case "end" if begin is not None:
                ends.append(_read(End, place, body))
                last = f"line {place}"
                if ends[-1].entries != len(entries):
                    raise DamagedStore(
                        f"line {place} ends {ends[-1].entries} entries, and there are "
                        f"{len(entries)} before it"
                    )
            case _:
                raise DamagedStore(f"line {place} is no line of an audit log: {kind!r:.40}")
        before = line
    if begin is None or not ends or kind != "end":
        raise DamagedStore(
            f"it ends with {last}, which is no signed end: its tail was cut off, or entries were "
            "added"
        )
    return AuditLog(begin, tuple(entries), tuple(ends))


def verify_end(data: bytes, key: PublicIdentity) -> None:
    """Unsigned unless the party with this key signed the last line, and so all before it."""
    body = json.loads(data.rstrip(b"\n").rpartition(b"\n")[2])
    signature = bytes.fromhex(body["signature"])
    key.verify(DOMAIN, _encoded(body | {"signature": ""}), signature)


def _encoded(body: dict[str, Json]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _moment(entry: Entry) -> Moment:
    return Moment(entry.row, entry.journal, entry.at, entry.date, entry.what)


def _parsed(place: int, line: bytes) -> tuple[str, dict[str, Json]]:
    try:
        body = json.loads(line)
        whole = isinstance(body, dict) and _encoded(body) == line  # one text for one line
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise DamagedStore(f"line {place} is no line of an audit log")
    return str(body.pop("line", "")), body


def _read(kind: type[T], place: int, body: dict[str, Json]) -> T:
    try:
        return from_plain(kind, body)
    except Malformed as error:
        raise DamagedStore(f"line {place} is not as an audit log has it: {error}") from None


def _entry(place: int, body: dict[str, Json]) -> Entry:
    facts = body.pop("facts", None)
    if not isinstance(facts, dict):
        raise DamagedStore(f"line {place} is not as an audit log has it: no facts")
    moment = _read(Moment, place, body)
    return Entry(moment.row, moment.journal, moment.at, moment.date, moment.what, facts)


PAIRS = (
    ("holder", ("opening granted", "share given"), "coordinator", "cohort closed"),
    ("coordinator", ("update received",), "client", "update sealed"),
)
"""Lines of one role's log that carry a digest, and the other role's lines that carry the same one.

Audit logs up to format 4 say "opening granted".
"""


def demand_agreement(logs: Sequence[AuditLog]) -> None:
    """DamagedStore unless the logs are of one run and each tells what another says it did.

    A holder opens nothing that the coordinator did not close, a cohort is opened by the holders
    that say so, and no update is a client's that the client did not seal.
    """
    first = logs[0].begin
    for log in logs[1:]:
        if log.begin.id != first.id:
            raise DamagedStore(
                f"the log of {log.begin.party} is of run {log.begin.id.hex()[:16]}, and that of "
                f"{first.party} of run {first.id.hex()[:16]}"
            )
    for role, told, other, wanted in PAIRS:
        for log, witness in product(_logs_of(role, logs), _logs_of(other, logs)):
            known = _digests(witness, wanted)
            for entry in (entry for entry in log.entries if entry.what in told):
                mine = other != "client" or witness.begin.party == _client(entry)
                if mine and entry.facts.get("digest") not in known:
                    raise _disagreement(log, entry, witness, wanted)
    for log, witness in product(_logs_of("coordinator", logs), _logs_of("holder", logs)):
        _demand_opener(log, witness)


def _logs_of(role: str, logs: Sequence[AuditLog]) -> list[AuditLog]:
    return [log for log in logs if log.begin.role == role]


def _demand_opener(log: AuditLog, holder: AuditLog) -> None:
    """The holder gave its share for every cohort that the coordinator says it opened."""
    closed = {_name(entry): entry for entry in log.entries if entry.what == "cohort closed"}
    given = _digests(holder, "share given")
    for entry in (entry for entry in log.entries if entry.what == "cohort opened"):
        named, cohort = entry.facts.get("holders"), closed.get(_name(entry))
        if not isinstance(named, list) or holder.begin.party not in named:
            continue
        if cohort is None or cohort.facts.get("digest") not in given:
            raise _disagreement(log, entry, holder, "share given")


def _disagreement(log: AuditLog, entry: Entry, witness: AuditLog, wanted: str) -> DamagedStore:
    return DamagedStore(
        f"the log of {log.begin.party} has, in row {entry.row}, {entry.what} "
        f"({entry.facts.get('update') or 'cohort {1} of {0}'.format(*_name(entry))}), and that of "
        f"{witness.begin.party} has no such {wanted}: one of the two is wrong, or that of "
        f"{witness.begin.party} was exported too early"
    )


def _digests(log: AuditLog, what: str) -> frozenset[str]:
    return frozenset(str(e.facts.get("digest")) for e in log.entries if e.what == what)


def _client(entry: Entry) -> str:
    return str(entry.facts.get("update")).partition("/")[0]


def _name(entry: Entry) -> tuple[str, str]:
    return str(entry.facts.get("group")), str(entry.facts.get("cohort"))
