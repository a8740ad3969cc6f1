"""Secrecy: a key holder refuses small cohorts, uneven weights, reused updates, other receipts."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity, PublicIdentity
from secureps.crypto.roster import certify, sign_roster
from secureps.crypto.secret import Secret
from secureps.crypto.sharing import answer, vector_bytes
from secureps.crypto.suite import key_length
from secureps.errors import (
    Conflict,
    Fenced,
    InternalError,
    Malformed,
    Refused,
    SecurepsError,
    UnknownParty,
    Unsigned,
    WrongRun,
)
from secureps.messages import holder_records, orders, records, requests
from secureps.messages.coordinator_records import FounderChosen
from secureps.messages.encoding import digest, payload_digest
from secureps.messages.envelope_keys import MOST_KEYS, EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.messages.requests import AskStatus
from secureps.messages.run import COORDINATOR, GroupPlacement, Task
from secureps.messages.submission import (
    FOUNDING,
    Held,
    Receipt,
    ciphertext_root,
    opening_digest,
    signing_bytes,
)
from secureps.policy.plan import Plan
from secureps.roles.holder.bfv import OpenSum, received_key
from secureps.roles.holder.committee import AnnounceKey
from secureps.roles.holder.holder import KEPT, KEY_COHORTS, KEY_SECONDS, KeyRotation
from secureps.roles.machine import (
    WORKER,
    AnnouncedKeys,
    Answered,
    Call,
    CallOff,
    Done,
    Failed,
    Halt,
    KitRead,
    Locate,
    Prune,
    RosterFollower,
    Say,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import Pinned
from secureps.service.holder import BfvWorker
from secureps.store.envelope_keys import EnvelopeKeys
from secureps.store.spool import MemorySpool
from tests.kits.bfv_holder import (
    ENDS,
    PLAN,
    RUN,
    SUMS,
    Keys,
    fetches,
    last_word,
    opening,
    refusal,
    released,
    sum_opened,
)
from tests.kits.committee_kit import BASE, CLIENTS, Bench, Holder, Sent, said
from tests.kits.roles_kit import (
    ADDRESSES,
    HOLDER,
    IDENTITIES,
    ROSTER,
    SHARDS,
    configure,
    make_cohort,
    opened_header,
)


@cache
def made(minimum: int) -> Bench:
    return Bench(minimum=minimum)


def bench(minimum: int = 2) -> Bench:
    return made(minimum)


@cache
def crowd(minimum: int = 2) -> tuple[Sent, ...]:
    """Six members' updates of version 0."""
    return tuple(bench(minimum).send(name) for name in CLIENTS[:6])


def signed(receipt: Receipt, author: str | None = None) -> Receipt:
    identity = bench().kit.identities[author or receipt.id.client]
    return dataclasses.replace(receipt, signature=identity.sign(*signing_bytes(receipt)))


def test_it_greets_watches_and_obeys_the_coordinator_alone() -> None:
    holder = bench().holder(0)
    register = requests.Register("holder-0", "", 1.0, 1, bench().run.id)
    assert said(holder.machine.resume(0.0)) == [register]
    assert holder.give(COORDINATOR, Answered(register, requests.Noted())).effects == [Watch()]
    assert said(holder.give("holder-0", WatchLost())) == [register]
    assert holder.machine.subscription() == requests.Subscribe("holder-0", ())
    assert holder.machine.wake() is None
    for idle in (Tick(), orders.Finish(1, "done")):
        assert holder.give("holder-0", idle) == Step()
    failed = Failed(register, UnknownParty("no"))
    halt = Halt("the coordinator refuses this holder: no", UnknownParty)
    assert holder.give(COORDINATOR, failed).effects == [halt]
    order = bench().opening(crowd())
    for sender in ("c0", "shard-0", "holder-1"):
        for event in (order, orders.Examine(1, crowd()[0].receipt)):
            with pytest.raises(Malformed, match="has no answer"):
                holder.give(sender, event)
    with pytest.raises(Malformed, match="takes no payloads"):
        holder.machine.inspect("c0", register)
    share = requests.KeyShare("holder-0", "all", 0, b"", b"")
    assert holder.give(COORDINATOR, Failed(share, Malformed("x"))) == Step()


def test_old_orders_and_other_runs_are_refused() -> None:
    holder = bench().holder(0)
    holder.order(orders.Examine(3, crowd()[0].receipt))
    for order in (bench().opening(crowd(), incarnation=2), orders.Examine(2, crowd()[0].receipt)):
        with pytest.raises(Fenced, match="incarnation 2, 3 rules"):
            holder.begin(order)
    other = dataclasses.replace(bench().run, nonce=bytes([1]) * 32)
    wrong = orders.Configure(3, other, bench().placement, bench().addresses)
    halt = last_word(holder.machine, holder.begin(wrong))
    assert halt.error is WrongRun
    assert "keep the one that it has while its run goes on" in halt.reason


def test_an_envelope_is_examined_and_nothing_is_journalled() -> None:
    holder = bench().holder(1)
    before = list(holder.journal)
    receipt = crowd()[0].receipt
    step = holder.begin(orders.Examine(1, receipt))
    assert step == Step(effects=[Work(orders.Examine(1, receipt))])
    sound = requests.Examined("holder-1", receipt.id, "", receipt.digest)
    assert holder.order(orders.Examine(1, receipt)) == [sound]
    assert holder.journal == before


def test_a_signature_is_verified_once_and_any_other_receipt_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, verified = bench().holder(1), list[bytes]()
    verify = PublicIdentity.verify

    def counted(identity: PublicIdentity, domain: bytes, data: bytes, signature: bytes) -> None:
        verified.append(signature)
        verify(identity, domain, data, signature)

    monkeypatch.setattr(PublicIdentity, "verify", counted)
    for sent in crowd():
        holder.order(orders.Examine(1, sent.receipt))
    assert len(verified) == len(crowd())
    first, *others = crowd()
    for change in ({"signature": bytes(64)}, {"size": 1}):
        bad = dataclasses.replace(first.receipt, **change)
        order = bench().opening([dataclasses.replace(first, receipt=bad), *others])
        assert "sign" in holder.refusal(order)
    assert len(verified) == len(crowd()) + 2
    assert holder.share(bench().opening(crowd()))
    assert len(verified) == len(crowd()) + 2


FORGERIES: dict[str, tuple[Callable[[Receipt], dict[str, Any]], str]] = {
    "altered": (
        lambda r: {"envelopes": tuple(e[:-1] + bytes([e[-1] ^ 1]) for e in r.envelopes)},
        "does not open",
    ),
    "truncated": (lambda r: {"envelopes": tuple(e[:-1] for e in r.envelopes)}, "1232 bytes|bytes"),
    "swapped": (lambda r: {"envelopes": r.envelopes[::-1]}, "does not open"),
    "replayed": (lambda r: {"envelopes": crowd()[1].receipt.envelopes}, "does not open"),
    "another correction": (lambda r: {"root": ciphertext_root(r.blocks, b"x")}, "not open"),
    "too few": (lambda r: {"envelopes": r.envelopes[:2]}, "2 envelopes for 4"),
    "for a key to come": (lambda r: {"keys": (1,) * 4}, "for key 1, and the newest is 0"),
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=str)
def test_envelopes_that_do_not_fit_are_flaws(forgery: str) -> None:
    """Also if the member itself signed a wrong receipt."""
    change, text = FORGERIES[forgery]
    receipt = crowd()[0].receipt
    bad = signed(dataclasses.replace(receipt, **change(receipt)))
    for index in range(4):
        (answer,) = bench().holder(index).order(orders.Examine(1, bad))
        assert answer.id == receipt.id
        assert any(each in answer.flaw for each in text.split("|"))
        order = bench().opening([dataclasses.replace(crowd()[0], receipt=bad), *crowd()[1:]])
        *found, refused = bench().holder(index).order(order)
        assert refused.reason.startswith("c0/all/1: ")
        assert [each.flaw for each in found] == [answer.flaw]


def test_seeds_that_were_not_committed_to_are_named() -> None:
    """The envelope opens but has other seeds: each holder of one reports it."""
    from secureps.crypto import envelope
    from secureps.messages.submission import enveloped_part

    right = crowd()[0].receipt
    receipt = dataclasses.replace(right, commitments=(digest("x"), *right.commitments[1:]))
    keys = bench().kit.public.holder_keys
    seeds = bytes(bench().committee.seed_bytes)
    envelopes = tuple(
        envelope.seal(envelope.EnvelopePublicKey(keys[n]), seeds, enveloped_part(receipt, n))
        for n in bench().names
    )
    bad = signed(dataclasses.replace(receipt, envelopes=envelopes))
    for index in range(4):
        (answer,) = bench().holder(index).order(orders.Examine(1, bad))
        assert f"is not, at holder-{index}, the one that was committed to" in answer.flaw


def test_receipts_of_others_are_not_looked_into() -> None:
    receipt = crowd()[0].receipt
    for bad, text in (
        (signed(receipt, "c1"), "signature"),
        (signed(dataclasses.replace(receipt, run=bytes(32))), "not for an update of this run"),
        (signed(dataclasses.replace(receipt, purpose=FOUNDING)), "not for an update"),
    ):
        (answer,) = bench().holder(0).order(orders.Examine(1, bad))
        assert text in answer.flaw


def test_the_ledger_is_written_before_the_share_exists() -> None:
    holder, order = bench().holder(0), bench().opening(crowd())
    step = holder.begin(order)
    bases = (holder_records.BaseModel(0, BASE),)
    about = opening_digest(bench().run.id, order.cohort, (r.digest for r in order.receipts))
    released = holder_records.CohortReleased(order.cohort, about, bases)
    assert step == Step([released], [Work(order)])
    assert holder.begin(order) == Step(), "it is at it"
    (work,) = step.effects
    assert isinstance(work, Work)
    done = holder.worker.work(work.task)
    assert isinstance(done, Done)
    assert isinstance(done.made, requests.KeyShare)
    assert repr(done.made.share) not in repr(done)
    step = holder.give(WORKER, done)
    assert step.records == []
    share, report = said(step)
    own = [holder.worker._share(receipt) for receipt in order.receipts]
    derived = answer(own, [1] * len(own), about, key_length(bench().plan.cipher_parameters))
    known = ("holder-0", "all", order.cohort.number)
    assert share == requests.KeyShare(*known, vector_bytes(derived), about)
    assert [f.name for f in report.figures] == ["opening_seconds"]


def test_by_an_expired_roster_it_answers_nothing_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, order = bench().holder(0), bench().opening(crowd())
    with monkeypatch.context() as patch:
        patch.setattr(RosterFollower, "expired", "the roster expired")
        waits = Say("cohort 0 of all waits: the roster expired")
        assert holder.begin(order) == Step(effects=[waits])
    assert holder.share(order)


def test_killed_between_ledger_and_answer_it_gives_the_same_answer() -> None:
    order = bench().opening(crowd())
    expected = bench().holder(2).share(order)
    holder = bench().holder(2)
    holder.begin(order)
    assert holder.restarted().share(order) == expected, "released, not derived"
    holder = bench().holder(2)
    holder.share(order)
    again = holder.restarted()
    assert again.share(order) == expected
    assert again.journal == holder.journal, "it is on record once"


def test_no_secret_is_in_journal_or_repr() -> None:
    holder, order = bench().holder(0), bench().opening(crowd())
    share = holder.share(order)
    seeds = holder.worker._share(order.receipts[0])
    text = repr(holder.journal) + repr(vars(holder.machine)) + repr(seeds)
    assert share.hex()[:64] not in text
    assert repr(share)[2:40] not in text
    for seed in seeds._seeds.values():
        assert repr(seed) not in text


def test_an_order_of_other_receipts_for_an_opened_cohort_is_refused() -> None:
    """An attacker who knows a forged receipt's seeds could subtract its key from the sum."""
    holder, order = bench().holder(0), bench().opening(crowd())
    holder.share(order)
    forged = bench().send("c0", 1, seed=5)
    other = bench().opening([forged, *crowd()[1:]])
    assert other.cohort == order.cohort
    assert holder.refusal(other) == "c0/all/1 is bound to cohort 0 for ever"
    smaller = bench().opening(crowd()[1:])
    assert holder.refusal(smaller) == "c1/all/1 is bound to cohort 0 for ever"


def test_no_member_weighs_more_than_the_plans_rule_gives() -> None:
    """The noise of a sum is made for members of equal weight."""
    for weights in ([2] * 6, [1, 1, 1, 2, 2, 2]):
        reason = bench().holder(0).refusal(bench().opening(crowd(), weights=weights))
        assert reason == "a member weighs 2, and by the plan's rule 1 at most"


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, 1, 1, 1, 1, 3], "cohorts of weights (1, 2, 4) are opened, and no others"),
        ([1, 1, 1, 1, 1, 0], "cohorts of weights (1, 2, 4) are opened, and no others"),
        ([1, 2, 2, 2, 2, 2], "1 members weigh less than 2: none, or 3 or more must"),
        ([2, 2, 4, 4, 4, 4], "2 members weigh less than 4: none, or 3 or more must"),
        ([1, 1, 1, 4, 4, 4], ""),
        ([2, 2, 2, 2, 2, 2], ""),
        ([4, 4, 4, 1, 1, 1], ""),
    ],
)
def test_weights_by_which_few_stand_out_are_refused(
    weights: list[int], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dataclasses.replace(bench(3).plan.bounds("all"), most_weight=4)
    monkeypatch.setattr(Plan, "bounds", lambda plan, group: own)
    site, sent = bench(3), crowd(minimum=3)
    order = site.opening(sent, weights=weights)
    if text:
        assert text in site.holder(0).refusal(order)
        return
    shares = {h.name: h.share(order) for h in (site.holder(k) for k in range(3))}
    expected = sum(weight * each.values for weight, each in zip(weights, sent))
    found = site.opened(sent, weights, site.key(order, shares))
    assert (found == expected).all()


def test_what_is_our_own_fault_ends_the_process() -> None:
    holder, order = bench().holder(0), bench().opening(crowd())
    step = holder.give(WORKER, WorkFailed(order, InternalError("oh")))
    assert step.effects == [Halt("oh", InternalError)]
    with pytest.raises(InternalError, match="does not know"):
        holder.worker.work(Task())
    with pytest.raises(Malformed, match="no payload is expected"):
        holder.worker.keep(AskStatus(), b"", b"")
    with pytest.raises(InternalError, match="a holder's journal has no"):
        holder.machine.apply(0.0, FounderChosen("c0"))


def test_before_the_run_is_founded_it_answers_nothing() -> None:
    holder = Holder(bench(), "holder-0")
    fresh = type(holder.machine)("holder-0", bench().kit.public.roster, holder.machine._rules)
    for order in (bench().opening(crowd()), orders.Examine(2, crowd()[0].receipt)):
        step = fresh.handle(0.0, COORDINATOR, order)
        obeys = requests.Register("holder-0", "", 1.0, order.incarnation)
        assert step.effects == [Call(COORDINATOR, obeys)]
    assert not fresh.is_pinned


def test_when_the_run_is_over_a_key_that_is_just_made_is_erased_with_the_others() -> None:
    holder = Holder(bench(), "holder-0")
    holder.worker._keys = keys = EnvelopeKeys({0: EnvelopeKey.from_os()})
    begun = holder.give(WORKER, KitRead(1.7e9))
    assert [e.task for e in begun.effects if isinstance(e, Work)] == [AnnounceKey(1, 0)]
    failed = holder.begin(orders.Finish(1, "too few are left", "TooFew"))
    assert failed.effects == [Say("the run failed: too few are left")], "it may go on"
    over = orders.Finish(1, "all versions are made")
    assert holder.give("shard-0", over).records == [], "it is the coordinator's to say"
    ended = holder.begin(over)
    assert Say("the run is over: all versions are made") in ended.effects
    signed = holder.worker.work(AnnounceKey(1, 0))
    (erasing,) = [effect.task for effect in ended.effects if isinstance(effect, Work)]
    holder.worker.work(erasing)
    assert (keys.get(0), keys.get(1)) == (None, None)
    for event in (signed, KitRead(1.8e9)):
        step = holder.give(WORKER, event)
        assert not any(isinstance(effect, Work) for effect in step.effects)
    again = holder.restarted()
    assert [e.task for e in again.machine.resume(0.0).effects if isinstance(e, Work)] == [
        orders.EraseKeys(1, 2)
    ]


def announced_by(holder: Holder, task: Task) -> EnvelopeKeyAnnounced:
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
    announced = announced_by(holder, work.task)
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
    first = holder.machine.known.keys.announced
    assert first is not None
    holder.keys.erase(first.number + 1)
    again = announced_by(holder, AnnounceKey(first.number, 0))
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


def test_what_was_replaced_before_the_date_was_known_goes_a_day_after_the_next_one() -> None:
    made = rotation(KeyReplaced(announced(1), 0.0))
    assert made.overdue_below(DAY) == 0
    assert made.number_to_announce(DAY) == 2, "its time is up, as far as the holder knows"
    made.apply(KeyReplaced(announced(2), DAY))
    assert (made.overdue_below(DAY + KEPT - 1), made.overdue_below(DAY + KEPT)) == (0, 2)


def test_what_is_erased_stays_so_whatever_is_said_later() -> None:
    made = rotation(KeyReplaced(announced(7), DAY), KeysErased(5), KeysErased(3))
    assert (made.least, made.overdue_below(DAY)) == (5, 5)


def test_what_is_erased_is_told() -> None:
    made = rotation(KeyReplaced(announced(1), DAY), KeysErased(1))
    assert made.number_to_announce(DAY + 1) == 1
    made.apply(KeyReplaced(announced(1, 1), DAY + 1))
    assert made.number_to_announce(DAY + 1) is None


CA, COMMITTEE_RUN = Identity.generate(), bytes(32)
PARTIES = {name: Identity.generate() for name in ("keys-0", "keys-1", "north", "blind")}
ROLES: dict[str, Any] = {"north": "client"}
COMMITTEE_ROSTER = sign_roster(
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
    bare = EnvelopeKeyAnnounced(COMMITTEE_RUN, "keys-0", number, KEYS[number % 3], 0)
    bare = dataclasses.replace(bare, **changes)
    signature = PARTIES[by].sign(*announcement_bytes(bare))
    return dataclasses.replace(bare, signature=signature)


def known(*announced: EnvelopeKeyAnnounced) -> AnnouncedKeys:
    keys = AnnouncedKeys()
    for each in announced:
        assert keys.is_news(each, COMMITTEE_RUN, COMMITTEE_ROSTER)
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
    assert not keys.is_news(told(2), COMMITTEE_RUN, COMMITTEE_ROSTER)
    assert keys.is_news(told(2, least=1), COMMITTEE_RUN, COMMITTEE_ROSTER)
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
        keys.is_news(announced, COMMITTEE_RUN, COMMITTEE_ROSTER)
    assert keys.number("keys-0") == 2


def test_the_run_is_pinned_once() -> None:
    keys = Keys()
    order = configure(PLAN)
    locations: list[Any] = [Locate(s.name, s.advertise) for s in ADDRESSES]
    step, pinned = keys.order(order), records.RunPinned(order.run, order.placement, order.shards)
    obeys = Call(COORDINATOR, requests.Register(HOLDER, "", 1.0, 1, order.run.id))
    assert step == Step([records.Incarnated(1), pinned], [*locations, obeys])
    assert keys.order(order) == Step(effects=locations)
    assert keys.machine.pinned == Pinned.of(pinned)
    step = keys.order(configure(PLAN, incarnation=9, nonce=bytes(32)))
    halt = last_word(keys.machine, step)
    assert halt.error is WrongRun
    assert halt.reason.startswith(f"{ENDS}{HOLDER} takes part in run {order.run.id.hex()[:16]}, ")
    assert "keep the one that it has" in halt.reason
    assert keys.restarted().order(order) == Step(effects=locations), "no incarnation is left of it"


def test_an_incarnation_of_which_the_order_is_refused_is_not_obeyed_yet() -> None:
    """Otherwise it would never be journalled, and a restart would obey an older coordinator."""
    keys = Keys().founded()
    with pytest.raises(SecurepsError):
        keys.order(orders.RosterChanged(7, "no roster"))
    step = keys.order(orders.RosterChanged(7, ROSTER.text))
    assert step.records == [records.Incarnated(7)]


def test_a_shard_that_left_is_asked_no_more() -> None:
    keys, order = Keys(), configure(PLAN)
    keys.order(order)
    groups = tuple(GroupPlacement(g.group, (SHARDS[0],) * 4) for g in order.placement.groups)
    placed = dataclasses.replace(order.placement, epoch=2, shards=SHARDS[:1], groups=groups)
    step = keys.order(dataclasses.replace(order, placement=placed))
    assert step.effects[0] == CallOff(SHARDS[1])


def test_a_holder_that_takes_no_part_ends_once_its_coordinator_has_heard_it() -> None:
    machine = Keys().machine
    (said,) = machine.handle(7.0, COORDINATOR, configure(PLAN, roster=bytes(32))).effects
    assert isinstance(said, Call)
    of_a_disk = Answered(requests.Trouble(HOLDER, "its disk is full"), requests.Noted())
    for event in (opening(), Tick(), of_a_disk):
        assert machine.handle(8.0, COORDINATOR, event) == Step(effects=[])
    failed = Failed(said.message, Malformed("x"))
    (halt,) = machine.handle(9.0, COORDINATOR, failed).effects
    assert isinstance(halt, Halt)
    assert halt.error is WrongRun


def test_a_cohort_is_opened_block_by_block() -> None:
    keys = Keys().founded()
    step = keys.order(opening())
    assert step.records == [released()], "before anything is fetched"
    assert fetches(step) == [("shard-a", 0), ("shard-b", 1), ("shard-a", 2), ("shard-b", 3)]
    assert len(step.effects) == 4
    for block in range(4):
        step = keys.fetched(block)
        key = f"{received_key('all', 0, block)}/{SUMS[block].hex()}"
        assert step == Step(effects=[Work(OpenSum(make_cohort(), block, key))])
    headers = [opened_header(PLAN, RUN, "all", 0, b) for b in range(4)]
    first = [headers[block] for block in (2, 0, 1)]
    for header in first:
        assert keys.give(WORKER, sum_opened(header)) == Step()  # nothing before all are
    assert keys.give(WORKER, sum_opened(headers[3])) == Step(
        [],
        [
            Call(SHARDS[block % 2], requests.PutBlock(header), attach=header.key)
            for block, header in enumerate(headers)
        ],
    )
    for block, header in enumerate(headers[:3]):
        put = requests.PutBlock(header)
        stored = Answered(put, requests.Stored(header.digest))
        assert keys.give(SHARDS[block % 2], stored) == Step()
        assert keys.give(SHARDS[block % 2], stored) == Step()
    step = keys.give("shard-b", Answered(requests.PutBlock(headers[3]), requests.Noted()))
    figures = (requests.Figure("opening_seconds", 2.0),)
    sums = tuple(h.digest for h in headers)
    bound = opening_digest(RUN, make_cohort(), (r.digest for r in opening().receipts))
    assert step == Step(
        effects=[
            Work(Prune(tuple(h.key for h in (*first, headers[3])))),
            Call(COORDINATOR, requests.Opened(HOLDER, "all", 0, sums, bound)),
            Call(COORDINATOR, requests.Telemetry(HOLDER, "all", 1, figures)),
        ]
    )


def test_an_order_that_comes_twice_changes_nothing() -> None:
    keys = Keys().founded()
    keys.order(opening())
    assert keys.order(opening()) == Step()
    for block in range(4):
        keys.fetched(block)
        keys.stored(block)
    again = keys.order(opening())
    assert again.records == []
    assert len(fetches(again)) == 4, "lost sums are opened again, and come out the same"


def test_a_fault_of_its_own_ends_it_and_burns_no_cohort() -> None:
    keys = Keys().founded()
    keys.order(opening())
    step = keys.give(WORKER, WorkFailed(OpenSum(make_cohort(), 0, "x"), InternalError("no keys")))
    assert step == Step(effects=[Halt("no keys", InternalError)])


def test_of_a_cohort_that_is_given_up_no_opened_sum_stays() -> None:
    keys, header = Keys().founded(), opened_header(PLAN, RUN, "all", 0, 0)
    keys.order(opening())
    keys.fetched(0)
    keys.give(WORKER, sum_opened(header))
    failed = Failed(requests.GetSum(RUN, "all", 0, 1), Refused("it is gone"))
    prune, _ = keys.give("shard-b", failed).effects
    assert prune == Work(Prune((header.key,)))


def test_what_is_fetched_while_blocks_move_is_fetched_anew() -> None:
    """A shard that left answers no more, and the same order could not begin again."""
    keys, told = Keys().founded(), configure(PLAN)
    keys.order(opening())
    keys.order(told)
    assert keys.order(opening()) == Step(), "nothing has moved"
    keys.order(dataclasses.replace(told, placement=dataclasses.replace(told.placement, epoch=2)))
    assert len(fetches(keys.order(opening()))) == 4


def test_answers_that_come_too_late_are_passed_over() -> None:
    keys = Keys().founded()
    header = opened_header(PLAN, RUN, "all", 0, 0)
    assert keys.fetched(0) == Step()
    assert keys.give(WORKER, sum_opened(header)) == Step()
    assert keys.give("shard-a", Answered(requests.PutBlock(header), requests.Noted())) == Step()
    for request in (
        requests.GetSum(RUN, "all", 0, 0),
        requests.PutBlock(header),
        requests.Opened(HOLDER, "all", 0, (), b""),
    ):
        assert keys.give("shard-a", Failed(request, WrongRun("x"))) == Step()
    opened = requests.Opened(HOLDER, "all", 0, (), b"")
    assert keys.give(COORDINATOR, Answered(opened, requests.Noted())) == Step()


def test_receipts_must_be_the_cohorts() -> None:
    order = opening()
    for receipts in (
        order.receipts[:2],
        order.receipts[::-1],
        (*order.receipts, order.receipts[0]),
    ):
        wrong = dataclasses.replace(order, receipts=receipts)
        reason = refusal(Keys().founded().order(wrong))
        assert reason == "the receipts are not those of the cohort"


def test_a_group_that_there_is_not() -> None:
    keys = Keys().founded()
    cohort = dataclasses.replace(make_cohort(), group="none")
    order = dataclasses.replace(opening(), cohort=cohort)
    step: Any = keys.order(order)
    assert step.effects[0].message.reason == "no group is called 'none'"


def test_a_grant_is_for_the_sums_that_were_held_and_no_others() -> None:
    """Otherwise one grant would open any sums under its name, one update after another."""
    keys = Keys().founded()
    order = opening()
    keys.order(order)
    first, *rest = order.held
    swapped = dataclasses.replace(first, sums=(digest("another"), *first.sums[1:]))
    other = dataclasses.replace(order, held=(swapped, *rest))
    for holder in (keys.restarted(), keys.restarted()):
        assert refusal(holder.order(other)) == "cohort 0 of all had other sums before"
    assert len(fetches(keys.restarted().order(order))) == 4


def test_every_shard_must_hold() -> None:
    order = opening()
    short = Held("shard-b", "all", 0, SUMS[:1])
    for sums in ((), order.held[:1], (order.held[0], short)):
        wrong = dataclasses.replace(order, held=sums)
        assert "does not hold the cohort" in refusal(Keys().founded().order(wrong))


def test_another_sum_than_was_held_is_not_opened() -> None:
    keys = Keys().founded()
    keys.order(opening())
    reason = refusal(keys.fetched(1, answer=bytes(32)))
    assert reason == "the sum of block 1 is not the one that its shard held"
    assert keys.fetched(0) == Step()


@pytest.mark.parametrize("error", [UnknownParty("not you"), Conflict("known")])
def test_a_sum_that_cannot_be_had_or_delivered_gives_the_cohort_up(error: SecurepsError) -> None:
    header = opened_header(PLAN, RUN, "all", 0, 0)
    for request in (requests.GetSum(RUN, "all", 0, 0), requests.PutBlock(header)):
        keys = Keys().founded()
        keys.order(opening())
        assert refusal(keys.give("shard-a", Failed(request, error))) == str(error)
        assert keys.give("shard-a", Failed(request, error)) == Step()


def test_a_sum_that_is_no_ciphertext_of_its_block_is_not_kept() -> None:
    """A malicious shard could otherwise end the key holder, which opens the sum later."""
    spool, machine = MemorySpool(), Keys().founded().machine
    worker = BfvWorker(machine, IDENTITIES[HOLDER], Secret(), spool)
    for payload in (b"", bytes(16)):
        with pytest.raises(Malformed):
            worker.keep(requests.GetSum(RUN, "all", 0, 0), payload, payload_digest(payload))
    assert spool.keys() == []
