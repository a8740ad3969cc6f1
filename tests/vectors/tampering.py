"""The recorded run, tampered with in ten ways: a verifier has to refuse each.

A tampered run is as good a forgery as its forger can make. The coordinator and both shards chain
their journals anew, and the coordinator signs its audit log again; nobody else signs anything.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from secureps.crypto.identity import Identity
from secureps.messages.encoding import from_plain, payload_digest
from secureps.messages.run import RunInfo
from secureps.store.journal_rows import RECORDS, Row, chain_digest
from tests.vectors.recording import BLOCK, JOURNALS, Files, as_json, audit_log, packed, rows_of

Change = Callable[[str, Any], None]
"""Edits the fields of a record in place, given its class."""
Tampering = Callable[[Files], Files]
COORDINATOR = Identity(hashlib.shake_256(b"vectors 1").digest(32))
NEWEST = "models/2.bin"


def forged(files: Files, change: Change) -> Files:
    """Edits records of all journals, and makes digests and the coordinator's log fit again."""
    rows, chains, told = rows_of(files), dict[str, bytes](), list[Row]()
    for row in rows:
        party, seq, at, kind, text, _ = row
        fields = json.loads(text)
        change(kind, fields)
        row[4] = json.dumps(fields, separators=(",", ":"))
        chains[party] = chain_digest(chains.get(party, b""), seq, at, kind, row[4])
        row[5] = chains[party].hex()
        if party == "coordinator":
            told.append(Row(seq, at, from_plain(RECORDS[kind], fields), chains[party]))
    run = from_plain(RunInfo, json.loads(files["run.json"])["run"])
    log = audit_log("coordinator", "coordinator", run, told, COORDINATOR)
    return files | {JOURNALS: packed(rows), "audit/coordinator.jsonl": log}


def in_record(kind: str, number: int, edit: Callable[[Any], object]) -> Tampering:
    """Edits one record of a class."""

    def tamper(files: Files) -> Files:
        numbers = itertools.count()

        def change(own: str, fields: Any) -> None:
            if own == kind and next(numbers) == number:
                edit(fields)

        return forged(files, change)

    return tamper


def flip(fields: dict[str, str], name: str) -> None:
    """Changes the last byte of a field."""
    fields[name] = fields[name][:-2] + f"{int(fields[name][-2:], 16) ^ 1:02x}"


def with_model(files: Files, model: bytes) -> Files:
    """Another newest version, which coordinator and shards say that they have prepared."""
    size = 4 * BLOCK
    blocks = payload_digest(model[:size]).hex(), payload_digest(model[size:]).hex()
    owners = json.loads(files["run.json"])["owners"]

    def change(kind: str, fields: Any) -> None:
        if kind == "Prepared" and fields["version"] == 2:
            fields["blocks"] = [blocks[owners.index(fields["shard"])]]

    return forged(files | {NEWEST: model}, change)


def without_row(files: Files) -> Files:
    rows = rows_of(files)
    held = next(row for row in rows if row[3] == "Held")
    return files | {JOURNALS: packed(row for row in rows if row is not held)}


def with_swapped_rows(files: Files) -> Files:
    rows = rows_of(files)
    rows[20], rows[21] = rows[21], rows[20]
    return files | {JOURNALS: packed(rows)}


def with_another_plan(files: Files) -> Files:
    def other(plan: str) -> str:
        return plan.replace('"learning_rate":0.1', '"learning_rate":0.2')

    def change(kind: str, fields: Any) -> None:
        if kind == "RunPinned":
            fields["run"]["plan"] = other(fields["run"]["plan"])

    told = json.loads(files["run.json"])
    told["run"]["plan"] = other(told["run"]["plan"])
    return forged(files | {"run.json": as_json(told)}, change)


TAMPERED: Mapping[str, Tampering] = {
    "a value": lambda files: with_model(files, files[NEWEST][:-4] + bytes(4)),
    "a weight": in_record("Submit", 1, lambda f: f["receipt"].update(examples=2)),
    "a client left out": in_record("CohortClosed", 0, lambda f: f["cohort"]["members"].pop()),
    "a signature": in_record("Submit", 2, lambda f: flip(f["receipt"], "signature")),
    "a row removed": without_row,
    "rows swapped": with_swapped_rows,
    "a share": in_record("KeyShare", 0, lambda f: flip(f, "share")),
    "another plan": with_another_plan,
    "a stale model": lambda files: with_model(files, files["models/1.bin"]),
    "a doubled update": in_record(
        "CohortClosed", 1, lambda f: f["cohort"].update(members=f["cohort"]["members"][:1] * 2)
    ),
}
