"""Secrecy: all that holders ever answered, combined, shows no sum below the minimum.

Every key holder is a real one: its ledger decides, and its own code derives its answers. Only the
random generator is replaced by one whose every stream is a unit vector, so that an answer *is* the
linear form of it in all that is random. What the aggregator has is then a matrix:

    a row for each submission    the client's update, plus the streams of its key
    a row for each answer        weights times streams of keys, plus streams of its share of zero
    a column for each stream     without those that a corrupt holder knows
    a column for each update     of a client and base

Whatever can be computed from answers and ciphertexts is in the span of the rows. A leak is a
combination in which all streams vanish, and updates of fewer than `minimum` clients are left.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.config.plan import BufferedSection
from secureps.crypto import sharing
from secureps.crypto.sharing import Subset, Vector, parse_vector
from secureps.messages import orders
from secureps.messages.encoding import digest
from secureps.messages.submission import Receipt, opening_digest, sharing_id
from secureps.policy.cohorts.suspicion import halves
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import bounds
from tests.kits.committee_kit import Bench, Holder, Sent
from tests.kits.sharing_kit import echelon, rank

LENGTH = 2048
"""Coefficients of a key: there are never as many streams as that."""
STALE = 2
CLIENTS = tuple(f"c{number}" for number in range(9))


@cache
def bench(n: int, t: int) -> Bench:
    return Bench(n, t, clients=CLIENTS)


@cache
def sent(n: int, t: int, client: str, sequence: int, version: int) -> Sent:
    base = digest("model", bytes([version]))
    return bench(n, t).send(client, sequence, version, base)


@dataclass
class Streams:
    """A double of the generator: every stream is a unit vector of its own."""

    known: dict[tuple[bytes, Subset], int] = field(default_factory=dict)

    def of(self, id: bytes, subset: Subset, seed: bytes, length: int) -> Vector:
        found = np.zeros(length, np.uint32)
        found[self.known.setdefault((id, subset), len(self.known))] = 1
        return found


class Aggregator:
    """It asks honest holders for what it likes, and keeps all that it hears.

    Args:
        corrupt: the first so many holders, whose seeds it has.
    """

    def __init__(self, n: int, t: int, corrupt: int = 0) -> None:
        self.site, self.minimum = bench(n, t), 2
        self._of = (n, t)
        self.corrupt = frozenset(range(corrupt))
        self.honest = {k: self.site.holder(k) for k in range(corrupt, n)}
        self.streams = Streams()
        self.answers: list[list[int]] = []
        self.sent: dict[tuple[str, int, int], Sent] = {}

    def order(
        self,
        clients: Iterable[str],
        sequence: int,
        bases: Sequence[int] = (),
        weights: Sequence[int] | None = None,
        later: int = 0,
    ) -> orders.Open:
        """A cohort of these clients' submissions of this sequence, counted anew at each base: no
        client seals two updates under one name. It is for a version `later` than the next one."""
        names = sorted(clients)
        places = [(c, 100 * v + sequence, v) for c, v in zip(names, bases or [0] * len(names))]
        self.sent |= {place: sent(*self._of, *place) for place in places}
        each = [self.sent[place] for place in places]
        order = self.site.opening(each, number=sequence, weights=weights)
        cohort = replace(order.cohort, version=order.cohort.version + later)
        return replace(order, cohort=cohort)

    def ask(self, holder: int, order: orders.Open) -> bool:
        """Returns whether an honest holder answers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharing, "_pseudorandom", self.streams.of)
            found = self._share(self.honest[holder], order)
        if found is not None:
            self.answers.append(parse_vector(found, LENGTH).tolist())
        return found is not None

    def _share(self, holder: Holder, order: orders.Open) -> bytes | None:
        shares = [m.share for m in holder.order(order) if hasattr(m, "share")]
        return shares[0] if shares else None

    @property
    def elements(self) -> list[tuple[str, int]]:
        """Client and base of each column of updates."""
        return sorted({(client, version) for client, _, version in self.sent})

    def learnt(self) -> list[list[int]]:
        """The combinations of updates that are left when all streams are eliminated."""
        unknown = [
            at for (_, subset), at in self.streams.known.items() if self.corrupt <= set(subset)
        ]
        elements = self.elements
        rows = [[answer[at] for at in unknown] + [0] * len(elements) for answer in self.answers]
        for (client, _, version), each in self.sent.items():
            id = sharing_id(each.receipt.run, each.receipt.id)
            own = {
                self.streams.known[id, subset]
                for subset in self.site.committee.key_subsets
                if (id, subset) in self.streams.known
            }
            row = [int(at in own) for at in unknown]
            # An unknown stream that is in no answer hides the update for good.
            dealt = [a for a in self.site.committee.key_subsets if self.corrupt <= set(a)]
            if all((id, a) in self.streams.known for a in dealt):
                rows.append(row + [int(e == (client, version)) for e in elements])
        width = len(unknown)
        return [row[width:] for row in echelon(rows) if not any(row[:width])]

    def leaks(self) -> bool:
        """Whether a combination has updates of fewer than `minimum` clients."""
        found = self.learnt()
        if not found:
            return False
        clients = sorted({client for client, _ in self.elements})
        for few in itertools.combinations(clients, min(self.minimum - 1, len(clients))):
            kept = [at for at, (client, _) in enumerate(self.elements) if client not in few]
            rest = [[row[at] for at in kept] for row in found]
            if rank(rest) < rank(found):
                return True
        return False


@pytest.fixture(scope="module", autouse=True)
def stale() -> Iterable[None]:
    """A rule that takes older updates with smaller weights, as without rounds."""
    own = bounds(BufferedSection(name="buffered", buffer=5, minimum=2, max_staleness=STALE), 8)
    with pytest.MonkeyPatch.context() as patch:
        real = Plan.bounds

        def behind(plan: Plan, group: str) -> object:
            known = real(plan, group)
            return replace(known, stale=own.stale, rounds=own.rounds, most_weight=own.most_weight)

        patch.setattr(Plan, "bounds", behind)
        yield


SIZES = [(1, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (5, 3), (5, 4), (5, 5)]
"""(n, t): all with 2t > n, up to five holders."""


def bound(n: int, t: int) -> int:
    """How many corrupt holders a committee withstands."""
    return 2 * t - n - 1


def cases(beyond: int = 0) -> list[tuple[int, int, int]]:
    """(n, t, f) for all f up to the bound; or only those so many beyond it, below t."""
    if beyond:
        return [(n, t, bound(n, t) + 1) for n, t in SIZES if bound(n, t) + 1 < t]
    return [(n, t, f) for n, t in SIZES for f in range(bound(n, t) + 1)]


def test_a_whole_opening_tells_its_sum_and_nothing_else() -> None:
    for n, t, f in cases():
        party = Aggregator(n, t, f)
        order = party.order(CLIENTS[:4], 1)
        asked = sorted(party.honest)[: t - f]
        assert all(party.ask(k, order) for k in asked[:-1])
        assert party.learnt() == []
        assert party.ask(asked[-1], order)
        assert party.learnt() == [[1, 1, 1, 1]]


def mixed(party: Aggregator, threshold: int, bases: Sequence[Sequence[int]] = ()) -> int:
    """Puts one victim into another cohort for each of q holders; returns how many answers came."""
    q, least = threshold - len(party.corrupt), party.minimum
    victim, others = CLIENTS[0], CLIENTS[1:]
    groups = [others[least * j : least * (j + 1)] for j in range(q)]
    if bases:
        groups = [others[:least]] * q
    versions = list(bases) or [[0] * least] * q
    given, asked = 0, sorted(party.honest)
    for j, (group, version) in enumerate(zip(groups, versions)):
        alone = party.order(group, 1 + j if bases else 1, version)
        names = sorted((victim, *group))
        whole = [0 if c == victim else version[group.index(c)] for c in names]
        beside = party.order(names, 1 + j if bases else 1, whole)
        for k in asked:
            given += party.ask(k, beside) if k == asked[j] else party.ask(k, alone)
    return given


MIXED = [(3, 2, 0), (4, 3, 0), (5, 3, 0), (5, 4, 0), (5, 4, 1), (5, 4, 2)]
"""Where it fell, and with corrupt holders up to the bound."""


@pytest.mark.parametrize(("n", "t", "f"), MIXED)
def test_answers_to_different_cohorts_add_up_to_nothing(n: int, t: int, f: int) -> None:
    """This attack once opened one update while every ledger saw large, disjoint cohorts."""
    party = Aggregator(n, t, f)
    assert mixed(party, t) >= (t - f) * (n - f - 1)
    assert not party.leaks()


@pytest.mark.parametrize(("n", "t", "f"), MIXED)
def test_without_shares_of_zero_the_same_answers_leak(
    n: int, t: int, f: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix does find the leak of bare linear shares."""
    bare = lambda shares, weights, about, length: sharing.weighted_sum(  # noqa: E731
        (share.share(length) for share in shares), weights
    )
    monkeypatch.setattr("secureps.service.holder.answer", bare)
    party = Aggregator(n, t, f)
    mixed(party, t)
    assert party.leaks()


@pytest.mark.parametrize(("n", "t", "f"), cases(beyond=1))
def test_one_corrupt_holder_beyond_the_bound_splits_the_ledgers(n: int, t: int, f: int) -> None:
    """Half of the honest holders see W and the others W without one client: the bound is tight."""
    party = Aggregator(n, t, f)
    honest, q = sorted(party.honest), t - f
    assert 2 * q <= len(honest)
    for k in honest[:q]:
        assert party.ask(k, party.order(CLIENTS[:4], 1))
    for k in honest[q : 2 * q]:
        assert party.ask(k, party.order(CLIENTS[1:4], 1))
    assert party.leaks()


def families(party: Aggregator, clients: Sequence[str]) -> list[list[tuple[tuple[str, ...], int]]]:
    """What one ledger may be asked for of four clients (cohorts and sequences), largest first."""
    whole = tuple(clients)
    cut = halves(party.site.run.id, "all", 1, frozenset(whole), 2)
    found = [[(whole, 1), *((tuple(sorted(each)), 2) for each in cut)]]
    found += [[(three, 1)] for three in itertools.combinations(whole, 3)]
    for other in whole[1:]:
        first = (whole[0], other)
        found.append([(first, 1), (tuple(c for c in whole if c not in first), 1)])
    return found


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3)])
def test_no_family_of_four_clients_leaks(n: int, t: int) -> None:
    """Every way in which three ledgers see cohorts of two or more, each as many as it allows.

    Holders are alike: which of them sees which cohorts is no matter.
    """
    known = families(Aggregator(n, t), CLIENTS[:4])
    for chosen in itertools.combinations_with_replacement(known, 3):
        party = Aggregator(n, t)
        for k, family in enumerate(chosen):
            assert all(party.ask(k, party.order(*each)) for each in family)
        assert not party.leaks(), chosen


def drawn(chance: random.Random, party: Aggregator) -> None:
    """Cohorts made up of six clients, near one another, asked of some holders in some order.

    Some have other weights than the others, or are said to be for another version.
    """
    clients = CLIENTS[: chance.randint(4, 6)]
    bases = {client: chance.choice((1, 1, 2)) for client in clients}
    weights = dict.fromkeys(clients, 1)
    made = [tuple(clients)]
    for sequence in range(1, chance.randint(3, 7)):
        cohort = set(chance.choice(made))
        for _ in range(chance.randint(0, 2)):
            cohort ^= {chance.choice(clients)}
        if chance.random() < 0.3:
            cohort = set(chance.sample(clients, chance.randint(2, len(clients))))
        if chance.random() < 0.2:
            bases = {client: chance.choice((1, 2)) for client in clients}
        if chance.random() < 0.3:
            weights = {client: chance.choice((1, 2)) for client in clients}
        names = sorted(cohort)
        if len(names) < 2:
            continue
        made.append(tuple(names))
        order = party.order(
            names,
            chance.choice((1, sequence)),
            [bases[c] for c in names],
            [weights[c] for c in names],
            chance.choice((0, 0, 0, 1)),
        )
        for k in chance.sample(sorted(party.honest), chance.randint(1, len(party.honest))):
            party.ask(k, order)


@pytest.mark.parametrize(("n", "t", "f"), [each for each in cases() if each[0] > 1])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nothing_that_honest_ledgers_answer_leaks(n: int, t: int, f: int, seed: int) -> None:
    party = Aggregator(n, t, f)
    drawn(random.Random(seed), party)
    assert not party.leaks()


def test_six_clients_and_three_bases_are_not_enough_either() -> None:
    """Without rounds, the attack asked for the same five clients at three bases."""
    party = Aggregator(4, 3)
    mixed(party, 3, bases=[(0, 0), (1, 1), (2, 2)])
    assert not party.leaks()


def test_a_digest_fixes_receipts_weights_bases_and_committee() -> None:
    party = Aggregator(4, 3)
    order = party.order(CLIENTS[:3], 1)
    run, cohort = party.site.run.id, order.cohort
    receipts = tuple(receipt.digest for receipt in order.receipts)
    first, *others = cohort.members
    changed = [
        (bytes(32), cohort, receipts),
        (run, replace(cohort, committee=bytes(32)), receipts),
        (run, replace(cohort, committee=None), receipts),
        (run, replace(cohort, group="b"), receipts),
        (run, replace(cohort, version=cohort.version + 1), receipts),
        (run, replace(cohort, members=(replace(first, weight=2), *others)), receipts),
        (run, replace(cohort, members=(replace(first, version=9), *others)), receipts),
        (run, replace(cohort, members=(replace(first, step=1), *others)), receipts),
        (run, replace(cohort, members=tuple(others)), receipts[1:]),
        *((run, cohort, (each.digest, *receipts[1:])) for each in otherwise(order.receipts[0])),
    ]
    found = {opening_digest(*each) for each in changed}
    assert len(found) == len(changed)
    known = opening_digest(run, cohort, receipts)
    assert known not in found
    renamed = replace(cohort, number=9, epoch=9, scale=2.0)
    assert known == opening_digest(run, renamed, receipts)


def otherwise(receipt: Receipt) -> list[Receipt]:
    """Receipts that differ from this one in one field each, without fields that the root covers."""
    names = [each.name for each in fields(receipt) if each.name not in ("blocks", "correction")]
    return [replace(receipt, **{name: b"other"}) for name in names]  # type: ignore[arg-type]
