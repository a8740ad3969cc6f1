"""A committee's key holder and its envelope keys: on record first, then told, made and erased."""

from __future__ import annotations

import dataclasses

from secureps.messages import holder_records, orders
from secureps.messages.encoding import digest
from secureps.messages.submission import signing_bytes
from secureps.roles.holder.committee import AnnounceKey, Erase, KeySigned
from secureps.roles.holder.ledger import KEPT
from secureps.roles.machine import WORKER, KitRead, Step, Work
from tests.kits.committee_kit import Bench, said


def test_a_key_is_on_record_before_anybody_hears_of_it_and_made_once() -> None:
    holder, day = Bench().holder(0), 1.7e9
    (work,) = holder.give(WORKER, KitRead(day)).effects
    assert work == Work(AnnounceKey(1, 0))
    assert holder.give(WORKER, KitRead(day)) == Step(), "that one is under way"
    assert isinstance(work, Work)
    signed = holder.worker.work(work.task)
    assert isinstance(signed, KeySigned)
    step = holder.give(WORKER, signed)
    assert step.records == [holder_records.KeyReplaced(signed.announced, day)]
    assert said(step) == [signed.announced]
    run = orders.Configure(1, holder.bench.run, holder.bench.placement, holder.bench.addresses)
    assert said(holder.restarted().begin(run)) == [signed.announced]


def test_an_announced_key_whose_file_is_lost_is_announced_again_and_never_replaced() -> None:
    """Clients have sealed for it: a second key under its number would look like an equivocation."""
    holder, day = Bench().holder(0), 1.7e9
    for effect in holder.give(WORKER, KitRead(day)).effects:
        holder.worked(effect)
    first = holder.machine.announced
    assert first is not None
    holder.keys.erase(first.number + 1)
    again = holder.worker.work(AnnounceKey(first.number, 0))
    assert isinstance(again, KeySigned)
    assert (again.announced.number, again.announced.key) == (first.number, first.key)


def test_a_key_is_erased_on_record_first_and_again_after_a_restart() -> None:
    holder, day = Bench().holder(0), 1.7e9
    holder.order(orders.EraseKeys(1, 5))
    assert holder.keys.oldest == 0, "its newest stays, whatever it is told"
    for unix in (day, day + 3600):
        for effect in holder.give(WORKER, KitRead(unix)).effects:
            holder.worked(effect)
    step = holder.begin(orders.EraseKeys(1, 1))
    assert step.records == [holder_records.KeysErased(1)]
    assert Work(Erase(1)) in step.effects
    assert Work(Erase(1)) in holder.restarted().machine.resume(0.0).effects
    step = holder.give(WORKER, KitRead(day + 3600 + KEPT))
    assert step.records == [holder_records.KeysErased(2)], "a day later, nobody has to say so"
    assert Work(Erase(2)) in step.effects


def test_what_is_sealed_for_others_is_not_looked_into() -> None:
    bench = Bench()
    bare = dataclasses.replace(bench.send("c0").receipt, committee=digest("others"))
    signature = bench.kit.identities["c0"].sign(*signing_bytes(bare))
    receipt = dataclasses.replace(bare, signature=signature)
    (found,) = said(bench.holder(0).begin(orders.Examine(1, receipt)))
    assert "on no roster that this party has followed" in found.flaw
