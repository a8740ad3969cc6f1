"""What a client keeps of its sealed updates, and until when."""

import dataclasses

import pytest

from secureps.errors import Conflict
from secureps.messages.member_records import Sealed, SequencesBegun
from secureps.messages.orders import GroupVersion
from secureps.messages.requests import PutBlock
from secureps.messages.submission import Base, Outcome, SubmissionId
from secureps.roles.machine import Failed
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.tasks import Reseal, kept_key
from tests.kits.member_kit import Client
from tests.kits.roles_kit import make_header, make_plan, make_receipt, works

PLAN = make_plan()
RUN = bytes(32)


def sealed(group: str, sequence: int) -> Sealed:
    id = SubmissionId("c0", "all", sequence)
    receipt = make_receipt(PLAN, RUN, id, 3, bytes(32))
    headers = tuple(make_header(PLAN, RUN, id, block) for block in range(2))
    own = SubmissionId("c0", group, sequence)
    return Sealed(dataclasses.replace(receipt, id=own), headers)


def test_a_burnt_update_is_kept_until_a_later_version_of_its_group() -> None:
    """Versions of another group do not count; without its key an update cannot be sealed anew."""
    out, made = Outbox(), sealed("head", 5)
    out.add(made)
    out.keyed.add(made.receipt.id)
    assert out.release(made, 3) == ()
    assert out.release_older("body", 9) == ()
    assert out.release_older("head", 3) == ()
    assert set(out.kept) == {("head", Base(3, 0))}
    assert out.release_older("head", 4) == tuple(header.key for header in made.headers)
    assert (out.kept, out.keyed) == ({}, set())


def test_what_an_update_left_over_stays_while_it_may_be_sealed_anew() -> None:
    """Two cohorts in succession were burnt with the update, and a third has it."""
    out = Outbox(keeping=frozenset({"all"}))
    first, again, last = sealed("all", 5), sealed("all", 6), sealed("all", 7)
    kept = kept_key("all", first.receipt.update)
    for made in (first, again):
        out.add(made)
        out.keyed.add(made.receipt.id)
        out.settle(made.receipt.id, Outcome.DROPPED)
        assert kept not in out.release(made, 3)
        assert kept in out.keys
    out.add(last)
    out.settle(last.receipt.id, Outcome.INCLUDED)
    assert out.carried_update("all") == first.receipt.update
    assert kept not in out.release_older("all", 4)


def test_an_older_update_that_becomes_durable_is_not_carried_once_more() -> None:
    out = Outbox(keeping=frozenset({"all"}))
    first, last = (
        dataclasses.replace(made, receipt=dataclasses.replace(made.receipt, update=name))
        for made, name in ((sealed("all", 5), bytes([1]) * 32), (sealed("all", 6), bytes([2]) * 32))
    )
    for made, outcome in (
        (first, Outcome.INCLUDED),
        (last, Outcome.INCLUDED),
        (first, Outcome.DURABLE),
    ):
        if made.receipt.id not in out.sealed:
            out.add(made)
        out.settle(made.receipt.id, outcome)
    assert out.carried_update("all") == last.receipt.update


def test_sequences_never_go_back() -> None:
    out = Outbox()
    out.add(sealed("all", 5))
    out.begin_at((GroupVersion("all", 3), GroupVersion("head", 2)))
    assert out.next == {"all": 6, "head": 2}
    out.begin_at((GroupVersion("all", 8),))
    out.add(sealed("all", 4))
    assert out.next["all"] == 8


def test_one_update_more_than_is_on_record_is_too_many() -> None:
    out = Outbox()
    out.add(sealed("all", 5))
    assert out.why_behind((GroupVersion("all", 6), GroupVersion("head", 0))) == ""
    assert "ends before update 6 of all" in out.why_behind((GroupVersion("all", 7),))
    assert "another process takes part under this name" in out.why_behind((GroupVersion("all", 7),))
    assert "ends before update 0 of head" in out.why_behind((GroupVersion("head", 1),))


@pytest.mark.parametrize(
    ("free", "then"), [(7, 7), (0, 1), (1, 1), (1 << 20, 1 << 20), (1 + (1 << 20), 1)]
)
def test_it_goes_on_in_one_step_after_all_that_a_shard_knows(free: int, then: int) -> None:
    """The client lost its state after many cut-off updates; a shard's word is limited."""
    client = Client().joined()
    update = client.trained()
    known = Conflict("known with other bytes; begin a new sequence", free)
    step = client.give("shard-a", Failed(PutBlock(update.headers[1]), known))
    assert works(step) == [Reseal(update.receipt, update.headers, then)]
    begun = (SequencesBegun((GroupVersion("all", then),)),) if then > 1 else ()
    assert tuple(r for r in step.records if isinstance(r, SequencesBegun)) == begun
    more = Conflict("known with other bytes; begin a new sequence", free + 5)
    client.give("shard-b", Failed(PutBlock(update.headers[2]), more))
    client.contributed(client.sealed(0, then))
    back = client.restarted().joined()
    assert back.machine._out.next["all"] == max(then + 1, free + 5 if free < 1 << 19 else 0)
