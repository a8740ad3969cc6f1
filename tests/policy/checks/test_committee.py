"""Plans are refused whose cohorts are too large for one message to a key holder."""

import re
from itertools import product

import pytest

from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.sharing import Committee
from secureps.errors import Oversized, PlanRefused
from secureps.messages.charge import Release
from secureps.messages.envelope_keys import MOST_KEYS
from secureps.messages.orders import MESSAGE_LIMIT, Open
from secureps.messages.submission import UPDATE, Cohort, Member, Receipt, SubmissionId
from secureps.policy.plan import Plan, order_bytes
from secureps.wire.msgpack import encode
from tests.kits.committee_plans import committee_plan

MOST = (1 << 63) - 1
DIGEST = b"\1" * 32


def longest(committee: Committee, members: int, group: str) -> Open:
    """Builds an order in which every name and number is as long as possible."""
    holders, client = len(committee.holders), "c" * 63
    id = SubmissionId(client, group, MOST)
    receipt = Receipt(
        run=DIGEST,
        id=id,
        purpose=UPDATE,
        version=MOST,
        base=DIGEST,
        blocks=(),
        root=DIGEST,
        envelopes=(bytes(committee.seed_bytes + OVERHEAD),) * holders,
        commitments=(DIGEST,) * len(committee.subsets),
        size=MOST,
        charge=None,
        release=Release(client, group, MOST, 0.1, 0.1, 0.1, MOST, 0.1, MOST),
        unsafe=True,
        step=MOST,
        magnitude=15,
        update=bytes(16),
        beside=DIGEST,
        examples=MOST,
        keys=(MOST_KEYS - 1,) * holders,
        committee=DIGEST,
        signature=bytes(64),
    )
    member = Member(id, MOST, MOST, MOST, bytes(16))
    cohort = Cohort(group, MOST, MOST, MOST, (member,) * members, 0.1, DIGEST)
    return Open(MOST, cohort, (receipt,) * members, ())


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 2), (4, 3), (7, 5), (11, 6)])
def test_no_order_is_longer_than_is_counted(holders: int, threshold: int) -> None:
    committee = committee_plan(holders, threshold).unnamed_committee
    for members, group in product((1, 20), ("a", "all", "g" * 63)):
        own = len(encode(longest(committee, members, group)))
        assert own <= order_bytes(committee, members, group) < 1.01 * own + 200


def plan(most: int, holders: int = 4, threshold: int = 3) -> Plan:
    return committee_plan(holders, threshold, capacity=4096, most=most)


def test_a_plan_is_refused_whose_cohorts_are_told_in_no_message() -> None:
    with pytest.raises(PlanRefused) as caught:
        plan(4096)
    told = str(caught.value)
    assert "cohorts of all have up to 4096 members, whose envelopes for 4 key holders" in told
    found = re.search(r"let the rule take at most (\d+) \(most, buffer, or cipher.capacity\)", told)
    assert found is not None
    fit = int(found[1])
    assert 3100 < fit < 3200
    committee = plan(fit).unnamed_committee
    with pytest.raises(PlanRefused, match=f"up to {fit + 1} members"):
        plan(fit + 1)
    assert len(encode(longest(committee, fit, "all"))) <= MESSAGE_LIMIT
    with pytest.raises(Oversized):
        encode(longest(committee, fit + 30, "all"))
    assert plan(4096, 1, 1).unnamed_committee.threshold == 1
