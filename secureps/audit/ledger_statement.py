"""A signed statement of a ledger over all runs: what one site's records have spent, run by run.

It is one JSON object: whose ledger it is, how many rows it had and when, what each run spent, the
epsilon of all together, and how many updates at most left without privacy, which are in no epsilon.
The signature is Ed25519 in the domain DOMAIN (`crypto.identity.frame`), over the object's bytes
with an empty signature.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from secureps.audit.entries import DIGITS, Json, date_of
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.errors import DamagedStore, Unsigned
from secureps.privacy.ledger import OWN_DELTA
from secureps.store.budget import CHARGING, BudgetLedger, epsilon_of, unit_of, without_privacy
from secureps.wording import finite

DOMAIN = b"secureps-ledger-statement"


def sign_statement(ledger: BudgetLedger, party: str, me: Identity) -> bytes:
    """States a ledger as it is now, signed by its party."""
    rows, facts = ledger.rows(), [fact for _, fact in ledger.facts()]
    runs = ledger.spent()
    dates = defaultdict[bytes, list[float]](list)
    for at, row in rows:
        if isinstance(row, CHARGING):
            dates[row.run].append(at)
    body: dict[str, Json] = {
        "party": party,
        "date": date_of(ledger.clock()),
        "rows": len(rows),
        "delta": OWN_DELTA,
        "unit": unit_of(facts),
        "epsilon": finite(round(epsilon_of(facts, OWN_DELTA), DIGITS)),
        "without_privacy": sum(each.exact for each in runs),
        "runs": [
            {
                "run": each.run.hex(),
                "first": date_of(min(dates[each.run])),
                "last": date_of(max(dates[each.run])),
                "updates": each.facts + each.exact,
                "epsilon": finite(each.epsilon if each.exact else round(each.epsilon, DIGITS)),
                "without_privacy": each.exact,
            }
            for each in runs
        ],
        "signature": "",
    }
    return _encode(body | {"signature": me.sign(DOMAIN, _encode(body)).hex()})


def summarize(told: Mapping[str, object]) -> str:
    """Summarizes a statement in one line; one of 0.1.0 counts no updates without privacy."""
    number = told.get("without_privacy", 0)
    exact = without_privacy(number) if isinstance(number, int) else ""
    return (
        f"{told['party']} on {told['date']}: epsilon {told['epsilon']} at delta {told['delta']}, "
        f"of {told['unit']}{exact and f', and {exact}'}"
    )


def party_of(data: bytes) -> str:
    """Returns the party that claims to have made a statement; DamagedStore if it is none."""
    party = _body(data).get("party")
    if not isinstance(party, str):
        raise DamagedStore("this is no statement of a ledger")
    return party


def read_verified(data: bytes, key: PublicIdentity) -> dict[str, Json]:
    """Reads a statement and verifies that this key signed it; DamagedStore otherwise."""
    body = _body(data)
    try:
        signature = bytes.fromhex(str(body.get("signature")))
        key.verify(DOMAIN, _encode(body | {"signature": ""}), signature)
    except (ValueError, Unsigned):
        raise DamagedStore(
            "this statement was changed, or somebody else made it, or its client has other keys "
            "since then: verify it with the public/ of that time, or have it export again"
        ) from None
    if _encode(body | {"signature": signature.hex()}) != data:
        raise DamagedStore("these are not the bytes of a statement that was signed")
    return body


def _body(data: bytes) -> dict[str, Json]:
    try:
        body: Json = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise DamagedStore("this is no statement of a ledger")
    return body


def _encode(body: dict[str, Json]) -> bytes:
    return json.dumps(body, indent=1).encode() + b"\n"
