"""What logs of several parties of one run say of each other: nobody's word stands alone.

A party can sign what it likes of itself; it cannot sign for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from secureps.audit.chained_file import AuditLog
from secureps.audit.entries import Entry
from secureps.errors import DamagedStore

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
        for log, witness in product(_of(role, logs), _of(other, logs)):
            known = _digests(witness, wanted)
            for entry in (entry for entry in log.entries if entry.what in told):
                mine = other != "client" or witness.begin.party == _client(entry)
                if mine and entry.facts.get("digest") not in known:
                    raise _lacks(log, entry, witness, wanted)
    for log, witness in product(_of("coordinator", logs), _of("holder", logs)):
        _demand_opener(log, witness)


def _of(role: str, logs: Sequence[AuditLog]) -> list[AuditLog]:
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
            raise _lacks(log, entry, holder, "share given")


def _lacks(log: AuditLog, entry: Entry, witness: AuditLog, wanted: str) -> DamagedStore:
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
