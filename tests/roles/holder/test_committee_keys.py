"""A committee's key holder and its envelope keys: journalled first, then announced and erased."""

import dataclasses

import pytest

from secureps.config.plan import CipherSection
from secureps.messages import holder_records, orders
from secureps.messages.encoding import digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.messages.orders import Task
from secureps.messages.submission import signing_bytes
from secureps.roles.holder.committee import AnnounceKey
from secureps.roles.holder.holder import KEPT, KeyRotation
from secureps.roles.machine import WORKER, Done, KitRead, Step, Work
from tests.kits.committee_kit import Bench, Holder, said


def signed(holder: Holder, task: Task) -> EnvelopeKeyAnnounced:
    done = holder.worker.work(task)
    assert isinstance(done, Done)
    assert isinstance(done.made, EnvelopeKeyAnnounced)
    return done.made


def test_a_key_is_on_record_before_anybody_hears_of_it_and_made_once() -> None:
    holder, day = Bench().holder(0), 1.7e9
    (work,) = holder.give(WORKER, KitRead(day)).effects
    assert work == Work(AnnounceKey(1, 0))
    assert holder.give(WORKER, KitRead(day)) == Step(), "that one is under way"
    assert isinstance(work, Work)
    announced = signed(holder, work.task)
    step = holder.give(WORKER, Done(work.task, announced))
    assert step.records == [holder_records.KeyReplaced(announced, day)]
    assert said(step) == [announced]
    run = orders.Configure(1, holder.bench.run, holder.bench.placement, holder.bench.addresses)
    assert said(holder.restarted().begin(run)) == [announced]


def test_an_announced_key_whose_file_is_lost_is_announced_again_and_never_replaced() -> None:
    """Clients have sealed for the key: a second one of its number would look like an attack."""
    holder, day = Bench().holder(0), 1.7e9
    for effect in holder.give(WORKER, KitRead(day)).effects:
        holder.worked(effect)
    first = holder.machine.announced
    assert first is not None
    holder.keys.erase(first.number + 1)
    again = signed(holder, AnnounceKey(first.number, 0))
    assert (again.number, again.key) == (first.number, first.key)


def test_a_key_is_erased_on_record_first_and_again_after_a_restart() -> None:
    holder, day = Bench().holder(0), 1.7e9
    holder.order(orders.EraseKeys(1, 5))
    assert holder.keys.oldest == 0, "its newest stays, whatever it is told"
    for unix in (day, day + 3600):
        for effect in holder.give(WORKER, KitRead(unix)).effects:
            holder.worked(effect)
    step = holder.begin(orders.EraseKeys(1, 1))
    assert step.records == [holder_records.KeysErased(1)]
    assert Work(orders.EraseKeys(1, 1)) in step.effects
    assert Work(orders.EraseKeys(1, 1)) in holder.restarted().machine.resume(0.0).effects
    step = holder.give(WORKER, KitRead(day + 3600 + KEPT))
    assert step.records == [holder_records.KeysErased(2)], "a day later, nobody has to say so"
    assert Work(orders.EraseKeys(1, 2)) in step.effects


def test_what_is_sealed_for_others_is_not_looked_into() -> None:
    bench = Bench()
    bare = dataclasses.replace(bench.send("c0").receipt, committee=digest("others"))
    signature = bench.kit.identities["c0"].sign(*signing_bytes(bare))
    receipt = dataclasses.replace(bare, signature=signature)
    (found,) = said(bench.holder(0).begin(orders.Examine(1, receipt)))
    assert "on no roster that this party has followed" in found.flaw


SECTION = CipherSection(envelope_versions=3, envelope_seconds=100.0)
DAY = 1.7e9


def announced(number: int, least: int = 0) -> EnvelopeKeyAnnounced:
    return EnvelopeKeyAnnounced(bytes(32), "keys-0", number, b"", least)


def rotation(*records: KeyReplaced | KeysErased) -> KeyRotation:
    made = KeyRotation()
    for record in records:
        made.apply(record)
    return made


def served(made: KeyRotation, times: int) -> KeyRotation:
    for _ in range(times):
        made.serve()
    return made


def test_the_kits_key_goes_when_the_run_begins_where_there_is_a_calendar() -> None:
    assert rotation().number_to_announce(SECTION, DAY) == 1
    assert rotation().number_to_announce(SECTION, None) is None
    assert served(rotation(), 2).number_to_announce(SECTION, None) is None
    assert served(rotation(), 3).number_to_announce(SECTION, None) == 1


@pytest.mark.parametrize(
    ("times", "later", "due"), [(2, 99.0, None), (3, 0.0, 6), (0, 100.0, 6), (0, -5.0, None)]
)
def test_a_key_serves_so_many_cohorts_or_so_long(times: int, later: float, due: int | None) -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), times)
    assert made.number_to_announce(SECTION, DAY + later) == due
    assert made.number_to_announce(SECTION, None) == (6 if times == 3 else None)


def test_a_new_key_begins_anew_and_the_same_said_again_does_not() -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), 3)
    made.apply(KeyReplaced(announced(6), DAY + 50))
    assert made.number_to_announce(SECTION, DAY + 149) is None
    served(made, 2).apply(KeyReplaced(announced(6, 6), DAY + 60))
    assert made.number_to_announce(SECTION, DAY + 150) == 7
    assert served(made, 1).number_to_announce(SECTION, DAY + 60) == 7


def test_what_was_replaced_is_erased_after_a_day_down_or_not() -> None:
    made = rotation(KeyReplaced(announced(1), DAY), KeyReplaced(announced(2), DAY + 10))
    assert made.overdue_below(None) == made.overdue_below(DAY + KEPT - 1) == 0
    assert made.overdue_below(DAY + KEPT) == 1
    assert made.overdue_below(DAY + KEPT + 10) == made.overdue_below(DAY + 9 * KEPT) == 2
    made.apply(KeysErased(1))
    assert (made.least, made.overdue_below(DAY + KEPT)) == (1, 1)
    assert made.overdue_below(DAY + KEPT + 10) == 2


def test_what_is_erased_stays_so_whatever_is_said_later() -> None:
    made = rotation(KeyReplaced(announced(7), DAY), KeysErased(5), KeysErased(3))
    assert (made.least, made.overdue_below(DAY)) == (5, 5)


def test_what_is_erased_is_told() -> None:
    made = rotation(KeyReplaced(announced(1), DAY), KeysErased(1))
    assert made.number_to_announce(SECTION, DAY + 1) == 1
    made.apply(KeyReplaced(announced(1, 1), DAY + 1))
    assert made.number_to_announce(SECTION, DAY + 1) is None
