"""Plans and rosters of key holders under rlwe, for tests of what follows from them alone."""

from collections.abc import Iterable

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster, certify, next_roster
from secureps.messages.encoding import file_digest
from secureps.policy.plan import Plan

CA = Identity(b"c" * 32)
KEYS = {f"h{k}": EnvelopeKey.from_os().public for k in range(6)}
IDENTITIES = {name: Identity(name.encode() * 16) for name in KEYS}


def committee_plan(
    holders: int = 4,
    threshold: int = 3,
    bits: int = 16,
    capacity: int = 32,
    most: int = 20,
    minimum: int = 5,
) -> Plan:
    """`threshold` of `holders` must agree; cohorts of `minimum` to `most`."""
    cipher = {"name": "rlwe", "capacity": capacity, "holders": holders, "threshold": threshold}
    group = {"bits": bits, "rule": {"quorum": 5, "minimum": minimum, "most": most}}
    body = {"name": "committee", "versions": 3, "cipher": cipher, "group": [group]}
    return Plan(parse(PlanSection, body, "a test"))


def holders_roster(last: Roster, names: Iterable[str], expires: int = 0) -> Roster:
    """The roster after the last one, with these key holders and nobody else."""
    made = [
        certify(
            *(CA, name, "holder", IDENTITIES[name].public.key), file_digest(KEYS[name].to_bytes())
        )
        for name in names
    ]
    return next_roster(CA, last, made, 1, expires)
