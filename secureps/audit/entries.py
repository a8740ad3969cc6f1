"""Audit logs: the entries that a journal's rows make, and the signed file of them.

Theory of operation. A party's journal is its own; an audit log is what it shows to an auditor.
`run.audit_log` exports and verifies, `page` prints a log, and `ledger_statement` signs what one
site's records have spent over all runs. The same rows make the same entries on any machine.

What happens to one row: `store.journal.read_rows` reads it, `entries` looks its class up in KINDS
and takes the fields that KINDS names, and `dump` writes it as a line. Later `load` checks the chain
of lines, `verify_end` the signature, `epsilons` what was spent, and `demand_agreement` whether
several parties' logs confirm each other. KINDS and LEFT_OUT together have every class of record. No
entry has a digest of an update's values, a share, a key, or a number of records. Epsilons are
computed from the log alone: from the plan in its first line, and the facts in its entries.

The file has lines of JSON, each with the digest of the line before it:

    begin   the party, its role, and the run with its plan
    entry   numbered from 1
    end     how far the journal had come, and what was spent; signed by the party. More lines may
            follow, up to another end: what was exported once is never written again

`previous` is BLAKE2b-256 of the bytes of the line before, without its newline, as b2sum
--length=256 computes it. An end's signature is Ed25519, in the domain DOMAIN
(`crypto.identity.frame`), over its line with an empty signature; so it covers all lines before.

Guards. The chain shows lines that were changed, removed or moved, and the signature shows a log
that another party made. A party can sign false statements about itself, but not in the name of
others: so logs of several parties of one run are compared.

Look first at KINDS for what a log shows. A class of record without a row there needs one in
LEFT_OUT.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from typing import Literal, TypeVar

from secureps.crypto.identity import Identity, PublicIdentity
from secureps.crypto.roster import Roster
from secureps.errors import DamagedStore, Malformed, SecurepsError
from secureps.messages import coordinator_records as coordinator
from secureps.messages import holder_records as holder
from secureps.messages import member_records as member
from secureps.messages import records, requests
from secureps.messages.acts import Act
from secureps.messages.charge import Charge, Fact, Release
from secureps.messages.encoding import file_digest, from_plain, to_plain
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.orders import KeyCommittee
from secureps.messages.run import RunInfo
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Cohort, Receipt, SubmissionId, cohort_digest
from secureps.policy.plan import Plan
from secureps.policy.spending import total_epsilon
from secureps.privacy.ledger import Ledger
from secureps.store.journal_rows import UNTOLD, Record, Row
from secureps.wording import finite

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

Chapter = Literal["who", "openings", "privacy", "refused", "course"]
"""An auditor's questions, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The way an audit log shows a class of record: its chapter, its words and its fields."""

    chapter: Chapter
    what: str
    fields: tuple[str, ...]


_COHORT = ("group", "number", "reason")

KINDS: Mapping[type, Kind] = {
    coordinator.MemberJoined: Kind("who", "client joined", ("client", "groups")),
    requests.Retire: Kind("who", "client retired", ("client", "reason", "returns")),
    coordinator.ClientRevoked: Kind("who", "client revoked", ("client",)),
    KeyCommittee: Kind("who", "key holders from now on", ()),
    records.RosterFollowed: Kind("who", "roster followed", ("text",)),
    coordinator.FounderChosen: Kind("who", "founder chosen", ("client",)),
    coordinator.MemberEntered: Kind("who", "client takes part", ("group", "client")),
    coordinator.MemberLeft: Kind("who", "client takes no part", ("group", "client", "spent")),
    requests.Submit: Kind("who", "update received", ("receipt",)),
    records.ReceiptSummary: Kind("who", "update received", ()),
    member.Sealed: Kind("who", "update sealed", ("receipt",)),
    member.OwnAct: Kind("who", "data holder's act", ("what", "budget")),
    member.SubmissionSettled: Kind("who", "update settled", ("id", "outcome")),
    coordinator.CohortClosed: Kind("openings", "cohort closed", ("cohort", "reason")),
    coordinator.CohortOpened: Kind("openings", "cohort opened", ("group", "number", "holders")),
    coordinator.CohortReopened: Kind("openings", "cohort reopened", ("group", "number", "missing")),
    holder.CohortReleased: Kind("openings", "share given", ("cohort",)),
    Charge: Kind("privacy", "privacy spent", ()),
    Release: Kind("privacy", "privacy spent", ()),
    requests.OpenRefused: Kind(
        "refused", "opening refused", ("group", "cohort", "holder", "reason")
    ),
    coordinator.OpeningFailed: Kind("refused", "opening failed", (*_COHORT, "holders")),
    coordinator.LiarsNamed: Kind("refused", "holders named", (*_COHORT, "holders")),
    coordinator.CohortBurnt: Kind("refused", "cohort burnt", (*_COHORT, "spoilt")),
    coordinator.LengthsGrew: Kind("refused", "updates grew", ("group", "reason")),
    coordinator.ClientIsolated: Kind("refused", "client isolated", ("group", "client", "reason")),
    requests.Examined: Kind("refused", "flaw found", ("group", "id", "holder", "flaw")),
    coordinator.FlawNoted: Kind(
        "refused", "flaw noted", ("group", "id", "holder", "flaw", "reason")
    ),
    coordinator.MemberDeclined: Kind(
        "refused", "client declined", ("group", "round", "client", "reason")
    ),
    coordinator.MemberPassed: Kind("refused", "client passed over", ("group", "client", "reason")),
    coordinator.SubmissionsDropped: Kind("refused", "updates dropped", ("group", "ids", "reason")),
    requests.Withdraw: Kind("refused", "update withdrawn", ("group", "id", "reason")),
    coordinator.RoundGivenUp: Kind("refused", "round given up", ("group", "round", "reason")),
    coordinator.GroupResigned: Kind("refused", "row-block resigned", ("group", "reason")),
    records.RefusedRequests: Kind("refused", "requests refused", ("party", "error", "count")),
    EvaluationSkipped: Kind("refused", "evaluation skipped", ("version", "reason")),
    coordinator.RoundOpened: Kind(
        "course", "round opened", ("group", "round", "version", "invited", "reason")
    ),
    coordinator.VersionCommitted: Kind("course", "version committed", ("group", "version")),
    VersionEvaluated: Kind("course", "version evaluated", ("version",)),
    coordinator.CheckpointComplete: Kind("course", "checkpoint complete", ("number",)),
    coordinator.Ending: Kind("course", "run ends", ("reason", "failure")),
    Act: Kind("course", "operator's act", ("what", "party", "reason")),
    ScalingDecided: Kind("course", "scaling decided", ("what", "shard", "reason")),
    coordinator.Finished: Kind("course", "run over", ("reason", "failure")),
}
"""Every class of record that appears in a log."""

LEFT_OUT: frozenset[type] = UNTOLD | {
    # the log's first line, and its dates
    records.RunPinned,
    records.Dated,
    # internals of one party: these records admit no party, open nothing and spend nothing
    records.Incarnated,
    coordinator.StandbyFollows,
    coordinator.ShardLeft,
    coordinator.StreamBegan,
    coordinator.StreamEnded,
    holder.KeyReplaced,
    holder.KeysErased,
    member.SequencesBegun,
    member.UpdateReleased,  # in the ledger over all runs, not in a run's journal
    member.BudgetCharged,
    member.BudgetLowered,
    member.SentWithoutPrivacy,
    # never journalled alone: a field of other records
    holder.BaseModel,
}
"""Every other class of record."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where and when a party journalled something, and what it was.

    Args:
        row, journal: the journal's row, and the digest of that row and all before it.
        at: seconds of the run's clock.
        date: UTC, to the second; None where the journal does not say.
    """

    row: int
    journal: bytes
    at: float
    date: str | None
    what: str


@dataclass(frozen=True, slots=True)
class Entry(Moment):
    """A row of a journal as an auditor reads it; `facts` say who, how many and why, as JSON."""

    facts: dict[str, Json]


def chapter_of(what: str) -> Chapter:
    return _CHAPTERS.get(what, "course")


_CHAPTERS: Mapping[str, Chapter] = {told.what: told.chapter for told in KINDS.values()}


def entries(run: bytes, rows: Iterable[Row]) -> Iterator[Entry]:
    began: float | None = None
    for row in rows:
        record = row.record
        if isinstance(record, records.Dated):
            began = record.unix - row.at
        flawless = isinstance(record, requests.Examined) and not record.flaw
        if flawless or type(record) in LEFT_OUT:
            continue
        sealed = isinstance(record, records.ReceiptSummary) and record.sealed
        told = KINDS[member.Sealed if sealed else type(record)]
        date = None if began is None else date_of(began + row.at)
        facts = _facts(run, record, told)
        yield Entry(row.seq, row.chain, row.at, date, told.what, facts)


def date_of(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _facts(run: bytes, record: Record, told: Kind) -> dict[str, Json]:
    if isinstance(record, Fact):
        return _spent(record)
    if isinstance(record, records.ReceiptSummary):
        return _receipt(record, record.sealed)
    if isinstance(record, records.RosterFollowed):
        return _roster(Roster.from_bytes(record.text.encode()))
    if isinstance(record, KeyCommittee):
        since: Json = {at.group: at.version for at in record.since}
        return {"holders": list(record.holders), "since": since}
    found: dict[str, Json] = {}
    for name in told.fields:
        value = getattr(record, name)
        match value:
            case Cohort():
                found |= _cohort(run, value)
            case Receipt():
                found |= _receipt(value, isinstance(record, member.Sealed))
            case SubmissionId():
                found["update"] = str(value)
            case tuple() if name in ("ids", "missing"):
                found[name] = [str(id) for id in value]
            case None:
                pass
            case _:
                plain: Json = to_plain(value)
                found["cohort" if name == "number" and "group" in told.fields else name] = plain
    return found


def _roster(roster: Roster) -> dict[str, Json]:
    """Describes a roster and who came with it; who left is told client by client."""
    names = (certificate.name for certificate in roster.certificates)
    came: list[Json] = [name for name in names if roster.enrolment(name).epoch == roster.number]
    return {
        "number": roster.number,
        "came": came,
        "expires": date_of(roster.expires) if roster.expires else "never",
        "digest": roster.digest.hex(),
    }


def _cohort(run: bytes, cohort: Cohort) -> dict[str, Json]:
    clients: list[Json] = [member.id.client for member in cohort.members]
    return {
        "group": cohort.group,
        "cohort": cohort.number,
        "version": cohort.version,
        "count": len(clients),
        "clients": clients,
        "digest": cohort_digest(run, cohort).hex(),
    }


def _receipt(receipt: Receipt | records.ReceiptSummary, sealed: bool) -> dict[str, Json]:
    found: dict[str, Json] = {
        "update": str(receipt.id),
        "purpose": receipt.purpose,
        "version": receipt.version,
        "digest": receipt.digest.hex(),
    }
    if receipt.unsafe:
        found["unsafe"] = True
    if sealed and receipt.fact is not None:
        found |= _spent(receipt.fact)  # a coordinator's journal has a separate row for it
    return found


def _spent(fact: Fact) -> dict[str, Json]:
    plain: Json = to_plain(fact)
    return {"charge" if isinstance(fact, Charge) else "release": plain}


DIGITS = 3
"""Decimals of an epsilon in a log."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A client's epsilon at the plan's delta, rounded; None if no noise protects it."""

    client: str
    epsilon: float | None


def epsilons(plan: Plan, entries: Iterable[Entry]) -> tuple[Spent, ...] | None:
    """Adds up what each client has spent, by name; None under a plan without privacy.

    Raises DamagedStore if the facts of an entry are impossible.
    """
    if plan.section.privacy is None:
        return None
    ledger, parties = Ledger(), set[str]()
    for entry in entries:
        if (fact := _fact(entry)) is None:
            continue
        try:
            ledger.append(fact)
        except SecurepsError as error:
            raise DamagedStore(f"row {entry.row}, {entry.what}: {error}") from None
        parties.add(fact.party)
    alike: dict[frozenset[tuple[Fact, int]], float | None] = {}
    found = []
    for party in sorted(parties):
        tally = ledger.tally(party)
        facts = frozenset((replace(fact, party=""), count) for fact, count in tally.items())
        if facts not in alike:
            alike[facts] = finite(round(total_epsilon(plan, tally), DIGITS))
        found.append(Spent(party, alike[facts]))
    return tuple(found)


def _fact(entry: Entry) -> Fact | None:
    try:
        if "charge" in entry.facts:
            return from_plain(Charge, entry.facts["charge"])
        if "release" in entry.facts:
            return from_plain(Release, entry.facts["release"])
    except Malformed as error:
        raise DamagedStore(f"row {entry.row}, {entry.what}: {error}") from None
    return None


# --- chained file ------------------------------------------------------------------

DOMAIN = b"secureps-audit-log"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a log: its party and its run; the run's `id` binds plan and roster."""

    format: int
    party: str
    role: str
    id: bytes
    run: RunInfo


@dataclass(frozen=True, slots=True)
class End:
    """The party's statement about all lines before.

    Args:
        entries: how many there are.
        row, journal: the last row of its journal, and the digest of that row and all before it.
        epsilon: what was spent; None under a plan without privacy.
        signature: 64 bytes; empty in the bytes that are signed.
    """

    entries: int
    row: int
    journal: bytes
    epsilon: tuple[Spent, ...] | None
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class AuditLog:
    """A whole file; its last line is a signed end."""

    begin: Begin
    entries: tuple[Entry, ...]
    ends: tuple[End, ...]

    @property
    def end(self) -> End:
        return self.ends[-1]


def dump(before: bytes, begin: Begin, entries: Sequence[Entry], end: End, me: Identity) -> bytes:
    """Returns the lines that continue `before`, a log's bytes so far, up to a signed end.

    Args:
        begin: written if there is no line yet.
        entries: the new ones; `end` has the number of the last.
    """
    last = before.rstrip(b"\n").rpartition(b"\n")[2]
    made = []

    def line(kind: str, body: dict[str, Json]) -> bytes:
        previous = file_digest(last).hex() if last else ""
        return _encode({"line": kind, **body, "previous": previous})

    if not last:
        made.append(last := line("begin", to_plain(begin)))
    for number, entry in enumerate(entries, end.entries - len(entries) + 1):
        body = {"number": number, **to_plain(entry), "facts": entry.facts}
        made.append(last := line("entry", body))
    signature = me.sign(DOMAIN, line("end", to_plain(replace(end, signature=b""))))
    made.append(line("end", to_plain(replace(end, signature=signature))))
    return b"".join(each + b"\n" for each in made)


def load(data: bytes) -> AuditLog:
    """Reads a log and checks its chain, not its signature; DamagedStore names the first fault."""
    lines = data.split(b"\n")
    if lines.pop() or not lines:
        raise DamagedStore("its last line is cut short: take a whole copy, or export it again")
    begin: Begin | None = None
    entries: list[Entry] = []
    ends: list[End] = []
    before, last = b"", "the first line"
    for place, line in enumerate(lines, 1):
        kind, body = _parse(place, line)
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
                        f"line {place} counts {ends[-1].entries} entries before it, and there are "
                        f"{len(entries)}"
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
    """Raises Unsigned unless this key signed the last line, and so all before it."""
    body = json.loads(data.rstrip(b"\n").rpartition(b"\n")[2])
    signature = bytes.fromhex(body["signature"])
    key.verify(DOMAIN, _encode(body | {"signature": ""}), signature)


def _encode(body: dict[str, Json]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _parse(place: int, line: bytes) -> tuple[str, dict[str, Json]]:
    try:
        body = json.loads(line)
        # refuse any other spelling of the same body
        whole = isinstance(body, dict) and _encode(body) == line
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
"""Entries of one role's log with a digest, and the other role's entries with the same digest.

Audit logs up to format 4 say "opening granted"."""


def demand_agreement(logs: Sequence[AuditLog]) -> None:
    """Raises DamagedStore unless the logs are of one run and confirm each other.

    A holder gives shares only for cohorts that the coordinator closed, a cohort is opened by
    holders that say so, and the coordinator received no update that its client did not seal.
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
