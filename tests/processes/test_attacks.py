"""Secrecy: a malicious aggregator before real key holders gets nothing beyond its sums."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.crypto.sharing import P, vector_bytes
from secureps.crypto.suite import key_length
from secureps.errors import Malformed, NotReady, Refused
from secureps.messages import orders, requests
from secureps.messages.requests import GetBlock, Prepared
from secureps.messages.submission import Held, signing_bytes
from tests.kits.committee_kit import SHARD, Sent
from tests.kits.rogue import MINIMUM, RogueRun, RogueShard, read

Ints = NDArray[np.int64]
SOME_OTHER_KEY = r"none of|does not open"


@pytest.fixture(scope="module")
def two_of_three() -> Iterator[RogueRun]:
    with TemporaryDirectory() as folder, RogueRun(Path(folder), 3, 2) as run:
        yield run


@pytest.fixture(scope="module")
def three_of_four() -> Iterator[RogueRun]:
    with TemporaryDirectory() as folder, RogueRun(Path(folder), 4, 3) as run:
        yield run


@pytest.fixture
def run(request: pytest.FixtureRequest) -> RogueRun:
    found: RogueRun = request.getfixturevalue(request.param)
    return found


both = pytest.mark.parametrize("run", ["two_of_three", "three_of_four"], indirect=True)


def length_of(run: RogueRun) -> int:
    return key_length(run.site.plan.cipher_parameters)


def threshold(run: RogueRun) -> int:
    return run.site.committee.threshold


def sum_of(sent: tuple[Sent, ...]) -> Ints:
    total: Ints = np.sum([each.values for each in sent], axis=0)
    return total


def opens(run: RogueRun, sent: tuple[Sent, ...], key: Ints) -> None:
    """The key opens exactly the sum of these, by the shards' code and by the definition."""
    assert (run.site.opened(sent, [1] * len(sent), key) == sum_of(sent)).all()
    assert (read(run.site, sent, key) == sum_of(sent)).all()


def opens_nothing(run: RogueRun, sent: tuple[Sent, ...], key: Ints) -> None:
    """The residual gives the key away; who looks all the same sees other values."""
    with pytest.raises((Malformed, Refused), match=SOME_OTHER_KEY):
        run.site.opened(sent, [1] * len(sent), key)
    assert (read(run.site, sent, key) == sum_of(sent)).mean() < 0.1, "a chance in 2^20 each"


def completed(
    run: RogueRun, order: orders.Open, shares: dict[str, bytes], last: str, key: Ints
) -> bytes:
    length = length_of(run)
    at = [np.full(length, value, np.uint32) for value in (0, 1)]
    zero, one = (run.site.key(order, {**shares, last: vector_bytes(each)}) for each in at)
    slope = pow(int(one[0] - zero[0]), -1, P)
    return vector_bytes(((key - zero) % P * slope % P).astype(np.uint32))


@both
def test_answers_of_all_but_one_of_t_holders_open_nothing(run: RogueRun) -> None:
    """Whatever is put in the place of the last answer; and with it, the same code opens all."""
    other, sent = run.fresh(), run.fresh()  # a holder takes none from before one that it opened
    order, elsewhere = run.opening(sent), run.opening(other)
    asked, last = run.names[: threshold(run) - 1], run.names[threshold(run) - 1]
    shares = {name: run.share(name, order) for name in asked}
    rng = np.random.default_rng(0)
    wished = [np.zeros(length_of(run), np.int64), rng.integers(-41, 42, length_of(run))]
    wishes = [completed(run, order, shares, last, key) for key in wished]
    for key, wish in zip(wished, wishes):
        found = run.site.key(order, {**shares, last: wish})
        assert (found == key).all(), "what they answered speaks against no key at all"
    guesses = {
        "nothing": bytes(4 * length_of(run)),
        "uniform": vector_bytes(rng.integers(0, P, length_of(run)).astype(np.uint32)),
        "the answer of another": shares[asked[0]],
        "its own answer for another cohort": run.share(last, elsewhere),
        "so that the sum of keys is zero": wishes[0],
        "so that it is small": wishes[1],
    }
    for guess in guesses.values():
        key = run.site.key(order, {**shares, last: guess})
        opens_nothing(run, sent, key)
        opens_nothing(run, sent[:1], key)
    key = run.site.key(order, {**shares, last: run.share(last, order)})
    opens(run, sent, key)
    opens_nothing(run, sent[:1], key)
    opens_nothing(run, sent[1:], key)


@dataclass
class Loot:
    """What two cohorts gave that differ in the first member; who refused which, and why."""

    sent: tuple[Sent, ...]
    cohorts: tuple[orders.Open, orders.Open]
    shares: tuple[dict[str, bytes], dict[str, bytes]] = field(default_factory=lambda: ({}, {}))
    refused: dict[str, str] = field(default_factory=dict)


def differencing(run: RogueRun, first: tuple[int, ...], corrupt: tuple[int, ...]) -> Loot:
    """Both cohorts are asked of everybody.

    Args:
        first: honest holders that are asked for the larger cohort first, the others for the other.
    """
    sent = run.fresh()
    loot = Loot(sent, (run.opening(sent), run.opening(sent[1:])))
    for index, name in enumerate(run.names):
        for which in (0, 1) if index in first else (1, 0):
            order = loot.cohorts[which]
            if index in corrupt:
                loot.shares[which][name] = run.corrupt(index).share(order)
                continue
            (said,) = run.ask(name, order)
            if isinstance(said, requests.KeyShare):
                loot.shares[which][name] = said.share
            else:
                loot.refused[name] = said.reason
    return loot


def taken(run: RogueRun, loot: Loot) -> Ints:
    """The difference of two sums of keys; what holders did not answer is made up."""
    rng, keys = np.random.default_rng(1), []
    for order, shares in zip(loot.cohorts, loot.shares):
        made_up = {
            name: vector_bytes(rng.integers(0, P, length_of(run)).astype(np.uint32))
            for name in run.names
            if name not in shares
        }
        answers = [*shares.items(), *made_up.items()][: threshold(run)]
        keys.append(run.site.key(order, dict(answers)))
    return keys[0] - keys[1]


def ways(run: RogueRun, corrupt: tuple[int, ...]) -> list[tuple[int, ...]]:
    honest = [k for k in range(len(run.names)) if k not in corrupt]
    sizes = range(len(honest) + 1)
    return [each for size in sizes for each in itertools.combinations(honest, size)]


def enough(run: RogueRun, loot: Loot) -> bool:
    return all(len(shares) >= threshold(run) for shares in loot.shares)


@pytest.mark.parametrize(
    ("run", "corrupt"), [("two_of_three", ()), ("three_of_four", (1,))], indirect=["run"]
)
def test_two_cohorts_that_differ_in_one_member_never_both_open(
    run: RogueRun, corrupt: tuple[int, ...]
) -> None:
    """Whichever way the holders are asked, each honest one answers for the first and no other."""
    for first in ways(run, corrupt):
        loot = differencing(run, first, corrupt)
        assert not enough(run, loot)
        sequence = loot.sent[1].receipt.id.sequence
        reasons = {
            name: f"client-01/all/{sequence} is bound to cohort "
            f"{loot.cohorts[0 if index in first else 1].cohort.number} for ever"
            for index, name in enumerate(run.names)
            if index not in corrupt
        }
        assert loot.refused == reasons
        opens_nothing(run, loot.sent[:1], taken(run, loot))


@both
def test_a_cohort_that_a_holder_could_not_answer_for_counts_as_opened(run: RogueRun) -> None:
    """It is asked for W, with a client that colludes and sealed nonsense for it; W is said to be
    burnt, all seal again, and W comes once more without one client."""
    sent, name = run.fresh(), run.names[0]
    *honest, last = sent
    envelopes = (bytes(len(last.receipt.envelopes[0])), *last.receipt.envelopes[1:])
    flawed = signed(run, last, last.receipt.id.client, envelopes=envelopes)
    assert "envelope" in run.refusal(name, run.opening((*honest, flawed)))
    for restarted in (False, True):
        if restarted:
            run.restart(name)
        again = run.again(sent)
        reason = run.refusal(name, run.opening(again[1:]))
        assert "which was opened with its update from the same version" in reason


def test_two_coordinators_that_split_the_holders_open_one_cohort_at_most(tmp_path: Path) -> None:
    """A second one takes over some of them, with a later incarnation, and seals W without one."""
    with RogueRun(tmp_path, 4, 3) as run:
        sent, (one, *others) = run.fresh(), run.names
        whole, rest = run.opening(sent), run.opening(run.again(sent)[1:], incarnation=2)
        run.share(one, whole)
        answers = [run.share(name, rest) for name in others]
        assert len(answers) == threshold(run), "the second one opens its cohort"
        reason = run.refusal(one, rest)
        assert "which was opened with its update from the same version" in reason
        later = dataclasses.replace(whole, incarnation=2)
        for name in others:
            assert "is over for ever" in run.refusal(name, later), "and nobody the first"


def test_a_holder_that_is_replaced_in_between_does_not_open_a_second_cohort(tmp_path: Path) -> None:
    """It has no record of W. All but one of its members seal once more, for its committee, as
    clients whose state was taken back may: those that stay remember what W was opened from."""
    with RogueRun(tmp_path, 4, 3) as run:
        sent, before = run.fresh(), run.site
        whole = run.opening(sent)
        lost, new, *stay = "holder-3", "holder-9", "holder-0", "holder-1"
        key = before.key(whole, {name: run.share(name, whole) for name in (lost, *stay)})
        opens(run, sent, key)
        run.replace(lost, new)
        bare = before.opening(sent[1:], number=100)
        digest = run.site.kit.public.roster.committee
        moved = dataclasses.replace(bare, cohort=dataclasses.replace(bare.cohort, committee=digest))
        for name in run.names:
            assert "sealed for different key holders" in run.refusal(name, moved)
        assert f"{new} is none of these key holders" in run.refusal(new, bare)
        part = run.opening(run.again(sent)[1:])
        shares = {name: run.share(name, part) for name in ("holder-2", new)}
        for restarted in (False, True):
            for name in stay:
                if restarted:
                    run.restart(name)
                assert run.refusal(name, part) == (
                    "an earlier committee of key holders was asked to open versions 0 to 0 of all: "
                    "this one opens none of them"
                )
        made_up = np.random.default_rng(1).integers(0, P, length_of(run)).astype(np.uint32)
        rest = run.site.key(part, {**shares, stay[0]: vector_bytes(made_up)})
        opens_nothing(run, sent[:1], key - rest)
        later = run.fresh()
        order = run.opening(later)
        opens(run, later, run.site.key(order, {n: run.share(n, order) for n in (new, *stay)}))


def signed(by: RogueRun, each: Sent, author: str, **changes: object) -> Sent:
    """The same submission with its receipt changed, under somebody's signature."""
    receipt = dataclasses.replace(each.receipt, **changes)  # type: ignore[arg-type]
    signature = by.identities[author].sign(*signing_bytes(receipt))
    return dataclasses.replace(each, receipt=dataclasses.replace(receipt, signature=signature))


def test_a_shard_opens_no_cohort_that_is_smaller_than_the_plans(tmp_path: Path) -> None:
    """In the clear: the coordinator alone would read one client's update out of the model. The same
    orders for a large enough cohort are carried out."""
    with RogueShard(tmp_path) as run:
        sent = [run.send(client) for client in run.clients[: MINIMUM + 1]]
        pull = GetBlock(run.site.run.id, "all", 1, 0)
        hold, prepare = run.orders(sent, 2)
        for number, few in enumerate((sent[:1], sent[: MINIMUM - 1])):
            for order in run.orders(few, number):
                run.rogue.tell(SHARD, order)
        run.rogue.tell(SHARD, hold)
        held = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(held), held.cohort) == (Held, 2), "and nothing was said of the others"
        for clients in (1, MINIMUM - 1):
            for kind in ("Hold", "Prepare"):
                said = f"{kind}: a cohort of {clients} clients, and {MINIMUM} or more are opened"
                assert said in run.processes.log(SHARD)
        with pytest.raises(NotReady, match="version 1 of all is not made yet"):
            run.ask(run.clients[0], pull)
        run.rogue.tell(SHARD, prepare)
        made = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(made), made.version) == (Prepared, 1)
        assert run.ask(run.clients[0], pull).payload
