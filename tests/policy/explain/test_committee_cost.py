"""The stated cost of a committee is what its code produces."""

from dataclasses import replace

import numpy as np
import pytest

from secureps.config.plan import MOST_CAPACITY
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.envelope import OVERHEAD, EnvelopeKey, seal
from secureps.crypto.ring import GUIDELINES_LOG_Q, HINTED_SIGMA, choose, core_svp
from secureps.crypto.sharing import share, vector_bytes
from secureps.crypto.suite import cipher
from secureps.messages.charge import Charge
from secureps.messages.orders import Examine
from secureps.messages.submission import UPDATE, Receipt, SubmissionId, shorten
from secureps.model.layout import GroupLayout
from secureps.policy.explain.explanation import RECEIPT_BYTES, CommitteeCost, advice, committee_cost
from secureps.policy.plan import Plan, value_bytes
from secureps.wire.msgpack import encode
from tests.kits.committee_plans import committee_plan
from tests.kits.roles_kit import make_plan


def cost(made: Plan, values: int = 100_000, block: int = 1 << 12) -> CommitteeCost:
    found = committee_cost(made, (GroupLayout("all", (), values, block - 1),))
    assert found is not None
    return found


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 2), (4, 3), (7, 5)])
def test_a_submissions_bytes_are_those_that_sharing_makes(holders: int, threshold: int) -> None:
    made = committee_plan(holders, threshold)
    committee = made.committee([f"holder-{i}" for i in range(holders)])
    degree = choose(CipherParameters("rlwe", 32, 65_534)).ring.degree
    shared = share(b"id", np.zeros(degree, np.int32), committee)
    public = EnvelopeKey(bytes(range(1, 97))).public
    envelopes = [seal(public, shared.seeds_of(k), b"") for k in range(holders)]
    sent = sum(map(len, (*envelopes, *shared.commitments, vector_bytes(shared.correction))))
    assert cost(made).submission == sent
    assert cost(made).up == len(vector_bytes(shared.correction))


def test_a_receipt_on_the_wire_has_the_bytes_that_are_counted() -> None:
    plan = committee_plan()
    committee = plan.committee([f"holder-{i}" for i in range(4)])
    receipt = Receipt(
        run=bytes(32),
        id=SubmissionId("hospital-12", "all", 7),
        purpose=UPDATE,
        version=6,
        base=bytes(32),
        blocks=(bytes(32),) * 3,
        root=bytes(32),
        envelopes=(bytes(committee.seed_bytes + OVERHEAD),) * 4,
        commitments=(bytes(32),) * len(committee.subsets),
        size=40_704,
        charge=Charge("hospital-12", "all", 6, 3.66, 0.5, 8),
        release=None,
        unsafe=False,
        correction=bytes(4 * 2048),
        signature=bytes(64),
    )
    counted = RECEIPT_BYTES + cost(plan).submission - cost(plan).up
    assert len(encode(Examine(3, shorten(receipt)))) == pytest.approx(counted, rel=0.05)


def test_a_holders_traffic_grows_with_the_cohort_and_not_with_the_model() -> None:
    small, large = (cost(committee_plan(), values, 1 << 18) for values in (1000, 10_000_000))
    assert (small.up, small.down) == (large.up, large.down)
    assert cost(committee_plan(most=30)).down == 3 * cost(committee_plan(most=10)).down
    assert small.down == 40 * (RECEIPT_BYTES + small.submission - small.up)


def test_the_ring_is_the_ciphers_own() -> None:
    for bits, capacity in ((16, 32), (16, 64), (24, 4096)):
        made = committee_plan(bits=bits, capacity=capacity)
        ring, found = choose(made.cipher_parameters).ring, cost(made)
        assert found.degree == ring.degree
        assert 2 ** (found.modulus_bits - 1) < ring.modulus < 2**found.modulus_bits
        assert found.modulus_bits <= found.most_modulus_bits == GUIDELINES_LOG_Q[found.degree]
        assert found.security_bits == 128
        slots = 1 << 18
        sent = cipher(made.cipher_parameters).adder().block_bytes(slots) / slots
        assert value_bytes(made.cipher_parameters) == pytest.approx(sent, rel=0.02)


def test_the_weakest_link_is_the_ring_or_the_envelope() -> None:
    standard = cost(committee_plan())
    conservative = replace(standard, core_svp=core_svp(4096, 2**53, HINTED_SIGMA))
    assert standard.weakest.startswith("the ring: 91 bits of core-SVP against a quantum computer")
    assert conservative.weakest.startswith("ML-KEM-768 in envelopes and TLS: 160 bits")
    assert conservative.weakest.endswith("the ring: 231")


@pytest.mark.parametrize(("bits", "capacity"), [(16, 32), (12, 32), (8, 100)])
def test_what_costs_the_same_is_the_most_that_does(bits: int, capacity: int) -> None:
    made = committee_plan(bits=bits, capacity=capacity)
    now, found = value_bytes(made.cipher_parameters), cost(made)

    def of(bits: int, capacity: int) -> float:
        return value_bytes(committee_plan(bits=bits, capacity=capacity).cipher_parameters)

    assert of(found.bits, capacity) == now
    assert of(bits, found.capacity) == now
    assert of(found.bits + 1, capacity) > now
    assert of(bits, found.capacity + 1) > now


def test_no_capacity_is_named_that_no_plan_may_have() -> None:
    """A coefficient with two values has room for more than a hundred thousand clients."""
    for capacity in (600, MOST_CAPACITY):
        assert cost(committee_plan(capacity=capacity)).capacity == MOST_CAPACITY


LARGE = GroupLayout("all", (), 1 << 20, 1 << 18)


def test_advice_on_what_would_cost_less() -> None:
    (capacity,) = (
        a
        for a in advice(committee_plan(bits=12, capacity=4096), LARGE)
        if a.startswith("cipher.capacity")
    )
    assert "no cohort is larger than 20" in capacity
    (bits,) = advice(committee_plan(bits=15, most=32), LARGE)
    assert bits.startswith("bits: 14 would take 2.69 bytes a value in place of 3.31")
    assert not list(advice(committee_plan(bits=18, most=32), LARGE))
    assert not list(advice(make_plan("bfv"), LARGE))
