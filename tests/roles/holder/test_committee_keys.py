"""A committee's envelope keys: journalled first, then announced and erased; no older one counts."""

import dataclasses
from typing import Any

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty, Unsigned, WrongRun
from secureps.messages import holder_records, orders
from secureps.messages.encoding import digest
from secureps.messages.envelope_keys import MOST_KEYS, EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.messages.run import Task
from secureps.messages.submission import signing_bytes
from secureps.roles.holder.committee import AnnounceKey
from secureps.roles.holder.holder import KEPT, KEY_COHORTS, KEY_SECONDS, KeyRotation
from secureps.roles.machine import WORKER, AnnouncedKeys, Done, KitRead, Step, Work
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
    assert rotation().number_to_announce(DAY) == 1
    assert rotation().number_to_announce(None) is None
    assert served(rotation(), KEY_COHORTS - 1).number_to_announce(None) is None
    assert served(rotation(), KEY_COHORTS).number_to_announce(None) == 1


@pytest.mark.parametrize(
    ("times", "later", "due"),
    [
        (KEY_COHORTS - 1, KEY_SECONDS - 1, None),
        (KEY_COHORTS, 0.0, 6),
        (0, KEY_SECONDS, 6),
        (0, -5.0, None),
    ],
)
def test_a_key_serves_so_many_cohorts_or_so_long(times: int, later: float, due: int | None) -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), times)
    assert made.number_to_announce(DAY + later) == due
    assert made.number_to_announce(None) == (6 if times == KEY_COHORTS else None)


def test_a_new_key_begins_anew_and_the_same_said_again_does_not() -> None:
    made = served(rotation(KeyReplaced(announced(5), DAY)), KEY_COHORTS)
    made.apply(KeyReplaced(announced(6), DAY + 50))
    assert made.number_to_announce(DAY + KEY_SECONDS + 49) is None
    served(made, KEY_COHORTS - 1).apply(KeyReplaced(announced(6, 6), DAY + 60))
    assert made.number_to_announce(DAY + KEY_SECONDS + 50) == 7
    assert served(made, 1).number_to_announce(DAY + 60) == 7


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
    assert made.number_to_announce(DAY + 1) == 1
    made.apply(KeyReplaced(announced(1, 1), DAY + 1))
    assert made.number_to_announce(DAY + 1) is None


CA, RUN = Identity.generate(), bytes(32)
PARTIES = {name: Identity.generate() for name in ("keys-0", "keys-1", "north", "blind")}
ROLES: dict[str, Any] = {"north": "client"}
ROSTER = sign_roster(
    CA,
    [
        certify(
            CA,
            name,
            ROLES.get(name, "holder"),
            own.public.key,
            bytes(32) if name.startswith("keys") else b"",
        )
        for name, own in PARTIES.items()
    ],
)
KEYS = [EnvelopeKey.from_os().public.key for _ in range(3)]


def told(number: int, by: str = "keys-0", **changes: Any) -> EnvelopeKeyAnnounced:
    """A holder's announcement with these changes; `by` signs it."""
    bare = EnvelopeKeyAnnounced(RUN, "keys-0", number, KEYS[number % 3], 0)
    bare = dataclasses.replace(bare, **changes)
    signature = PARTIES[by].sign(*announcement_bytes(bare))
    return dataclasses.replace(bare, signature=signature)


def known(*announced: EnvelopeKeyAnnounced) -> AnnouncedKeys:
    keys = AnnouncedKeys()
    for each in announced:
        assert keys.is_news(each, RUN, ROSTER)
        keys.apply(each)
    return keys


def test_the_newest_counts_and_the_kits_is_number_0() -> None:
    keys = known()
    assert (keys.number("keys-0"), keys.least("keys-0")) == (0, 0)
    before = keys.newest
    keys = known(told(1), told(2, least=1), told(7, least=7))
    assert (keys.number("keys-0"), keys.least("keys-0")) == (7, 7)
    assert keys.newest["keys-0"].key == KEYS[1]
    assert (keys.number("keys-1"), before) == (0, {})


def test_the_same_again_is_no_news_and_what_is_erased_is() -> None:
    keys = known(told(2))
    assert not keys.is_news(told(2), RUN, ROSTER)
    assert keys.is_news(told(2, least=1), RUN, ROSTER)
    keys.apply(told(2, least=1))
    assert (keys.number("keys-0"), keys.least("keys-0")) == (2, 1)


WRONG: dict[str, tuple[EnvelopeKeyAnnounced, type[SecurepsError], str]] = {
    "older": (told(1), Refused, "older than its key 2"),
    "older, and later": (told(1, least=1), Refused, "older than its key 2"),
    "less erased": (told(2, least=0), Refused, "older than its key 2"),
    "another key, same number": (told(2, key=KEYS[0], least=2), Refused, "is another than was"),
    "another holder's signature": (told(3, by="keys-1"), Unsigned, "signature"),
    "a client's": (told(3, by="north", holder="north"), UnknownParty, "no key holder"),
    "a bfv holder's": (told(3, by="blind", holder="blind"), UnknownParty, "no key holder"),
    "nobody's": (told(3, holder="nobody"), UnknownParty, "nobody named"),
    "unsigned": (dataclasses.replace(told(3), signature=b""), Unsigned, "signature"),
    "edited": (dataclasses.replace(told(3), key=KEYS[1]), Unsigned, "signature"),
    "another run's": (told(3, run=bytes([1]) * 32), WrongRun, "another run"),
    "number 0": (told(0, by="keys-1", holder="keys-1"), Malformed, "announces key 0"),
    "negative": (told(3, least=-1), Malformed, "announces key 3"),
    "too great a number": (told(MOST_KEYS, least=1), Malformed, "announces key"),
    "erased itself": (told(3, least=4), Malformed, "announces key 3, least 4"),
    "no key": (told(3, key=b"x"), Malformed, "1216 bytes"),
    "low order": (told(3, key=KEYS[0][:1184] + bytes(32)), Malformed, "low order"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_announcements_that_are_none(wrong: str) -> None:
    keys, (announced, error, text) = known(told(2, least=1)), WRONG[wrong]
    with pytest.raises(error, match=text):
        keys.is_news(announced, RUN, ROSTER)
    assert keys.number("keys-0") == 2
