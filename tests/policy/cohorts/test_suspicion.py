"""Secrecy: a client that spoils cohorts is found in a bounded number of them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.policy.cohorts.suspicion import (
    MOST_TRIED,
    Choice,
    Clients,
    Suspicion,
    choose,
    close_with,
    halves,
    is_within,
)

RUN = b"r" * 32
MOST = 100
TIMES = 3.0


def named(*numbers: int) -> Clients:
    return frozenset(f"c{number:02}" for number in numbers)


def crowd(count: int) -> Clients:
    return named(*range(count))


def cutting(version: int) -> Callable[[Clients, int], tuple[Clients, ...]]:
    return partial(halves, RUN, "all", version)


@dataclasses.dataclass
class Played:
    """A run that consists only of clients, some of which spoil cohorts."""

    minimum: int
    clients: Clients
    state: Suspicion = dataclasses.field(default_factory=Suspicion)
    isolated: Clients = frozenset()
    included: Clients = frozenset()
    burnt: int = 0
    versions: int = 0
    over: bool = False
    compared: bool = False
    """Cohorts fail because they are longer than usual, which proves nothing by itself."""
    grew: int = 0

    def version(self, spoils: Callable[[Clients], Clients]) -> None:
        asked: list[Clients] = []
        while not self.over:
            self.sound()
            able = self.clients - self.isolated
            choice = Choice(able, "free")
            if self.state.chooses:
                cut = cutting(self.versions)
                choice = choose(self.state, cut, able, able, self.minimum, MOST)
                if self.state.grown(choice.over) is not None:
                    self.state, self.grew = self.state.note_grown(), self.grew + 1
                    continue
            self.over = choice.over or len(choice.clients) < self.minimum
            if self.over:
                return
            for before in asked:
                part, whole = sorted((choice.clients, before), key=len)
                known = partial(is_within, RUN, "all", self.versions, whole, part)
                assert not part & whole or known(self.minimum)
            asked.append(choice.clients)
            self.state = self.state.start_round(choice.clients)
            if not spoils(choice.clients):
                own = (1.0, float(len(choice.clients))) if self.compared else ()
                self.state = self.state.note_opened(choice.clients, own, TIMES)
                self.included |= choice.clients
                self.isolate()
                break
            self.burnt += 1
            share = len(self.clients) / len(choice.clients)
            length = ((TIMES + 1) * share, float(len(choice.clients))) if self.compared else ()
            weights = dict.fromkeys(choice.clients, 1)
            self.state = self.state.note_burnt(weights, not self.compared, length)
            self.isolate()
        self.versions += 1

    def sound(self) -> None:
        """Checks that no client is cleared and suspected, nor cleared without any suspects."""
        suspects = frozenset[str]().union(*self.state.suspect_sets)
        assert self.state.cleared.isdisjoint(suspects)
        assert suspects or not self.state.cleared

    def isolate(self) -> None:
        for client in sorted(self.state.offenders):
            self.isolated |= {client}
            self.state = self.state.remove_client(client)

    def on(self, spoils: Callable[[Clients], Clients]) -> "Played":
        """Plays until every client is in a version or isolated."""
        for _ in range(8 * len(self.clients)):
            if self.included | self.isolated == self.clients and not self.state.chooses:
                break
            self.version(spoils)
        return self


@settings(max_examples=150, deadline=None)
@given(minimum=st.integers(2, 6), count=st.integers(1, 3), more=st.integers(0, 40), data=st.data())
def test_offenders_are_found_and_everybody_else_goes_on(
    minimum: int, count: int, more: int, data: st.DataObject
) -> None:
    """Of several, where some set of the tree is always without one: of so many clients."""
    clients = crowd((2 if count == 1 else 4 * count) * minimum + more)
    drawn = st.sets(st.sampled_from(sorted(clients)), min_size=count, max_size=count)
    offenders = frozenset(data.draw(drawn))
    played = Played(minimum, clients).on(offenders.intersection)
    assert not played.over
    assert played.isolated == offenders
    assert played.included == clients - offenders
    assert played.burnt <= 2 * count * (1 + ceil(log2(len(clients))))
    before = played.burnt
    played.version(offenders.intersection)
    assert played.burnt == before


@settings(max_examples=100, deadline=None)
@given(minimum=st.integers(2, 5), more=st.integers(0, 20), data=st.data())
def test_nobody_honest_is_left_out_while_offenders_are_steady(
    minimum: int, more: int, data: st.DataObject
) -> None:
    """However many offenders there are, the run may end but blames no other client."""
    clients = crowd(minimum + more)
    offenders = frozenset(data.draw(st.sets(st.sampled_from(sorted(clients)))))
    played = Played(minimum, clients).on(offenders.intersection)
    assert played.isolated <= offenders
    assert played.over or played.isolated == offenders


@settings(max_examples=100, deadline=None)
@given(minimum=st.integers(2, 5), more=st.integers(0, 25), data=st.data())
def test_offenders_that_behave_at_times_cannot_burn_one_version_for_ever(
    minimum: int, more: int, data: st.DataObject
) -> None:
    """A version is made, or the run ends, within twice as many cohorts as there are leaves."""
    clients = crowd(minimum + more)
    offenders = frozenset(data.draw(st.sets(st.sampled_from(sorted(clients)), max_size=3)))
    moods = st.booleans()
    played = Played(minimum, clients)
    for _ in range(10):
        before = played.burnt
        played.version(lambda c: c & offenders if data.draw(moods) else frozenset())
        assert played.burnt - before <= max(MOST_TRIED, 2 * len(clients) // minimum)
    assert played.over or played.versions == 10


@settings(max_examples=200, deadline=None)
@given(minimum=st.integers(2, 4), more=st.integers(0, 12), data=st.data())
def test_two_that_behave_as_they_like_have_nobody_honest_left_out(
    minimum: int, more: int, data: st.DataObject
) -> None:
    """They know every cohort; at times both spoil exactly those that somebody honest is in."""
    clients = crowd(minimum + more)
    offenders = frozenset(sorted(clients)[:2])
    victim = frozenset(data.draw(st.sets(st.sampled_from(sorted(clients)), max_size=1)))
    steady = st.sampled_from([True, True, True, False])
    played = Played(minimum, clients)
    for _ in range(20):
        played.version(
            lambda cohort: (
                cohort & offenders if victim <= cohort and data.draw(steady) else frozenset()
            )
        )
    assert played.isolated <= offenders


def test_who_is_cleared_and_turns_bad_is_found_all_the_same() -> None:
    played = Played(4, crowd(16))
    for _ in range(2):
        played.version(named(3).intersection)
    played.on(named(3, 9).intersection)
    assert played.isolated == named(3, 9)
    assert played.included >= crowd(16) - played.isolated


# --- cohorts that are longer than usual ---------------------------------------------


@settings(max_examples=150, deadline=None)
@given(minimum=st.integers(2, 5), more=st.integers(0, 30), data=st.data())
def test_a_client_that_always_sends_too_much_is_left_out(
    minimum: int, more: int, data: st.DataObject
) -> None:
    clients = crowd(4 * minimum + more)
    offenders = frozenset([data.draw(st.sampled_from(sorted(clients)))])
    played = Played(minimum, clients, compared=True)
    for _ in range(60):
        played.version(offenders.intersection)
    assert not played.over
    assert played.isolated == offenders
    assert played.grew == 0, "it stands in one of the sets, and the others are as usual"


@settings(max_examples=200, deadline=None)
@given(minimum=st.integers(2, 4), more=st.integers(0, 20), data=st.data())
def test_nobody_honest_is_left_out_for_long_sums_however_two_behave_and_updates_grow(
    minimum: int, more: int, data: st.DataObject
) -> None:
    """A set without the two is too long only if updates grew, and then every set is."""
    clients = crowd(2 * minimum + more)
    offenders = frozenset(data.draw(st.sets(st.sampled_from(sorted(clients)), max_size=2)))
    played = Played(minimum, clients, compared=True)
    moods = st.sampled_from(["offend", "offend", "behave", "all grow"])
    for _ in range(25):
        grow = data.draw(moods) == "all grow"
        before = played.grew

        def spoils(cohort: Clients, grow: bool = grow, before: int = before) -> Clients:
            if grow and played.grew == before:
                return cohort
            return cohort & offenders if data.draw(moods) == "offend" else frozenset()

        played.version(spoils)
        assert played.over or not grow or played.grew > before
    assert played.isolated <= offenders


def test_what_is_usual_after_growth_is_a_length_that_few_can_move() -> None:
    def grown(over: bool, *lengths: float, state: Suspicion | None = None) -> float | None:
        state = state or Suspicion()
        for k, length in enumerate(lengths):
            weights = dict.fromkeys(named(2 * k, 2 * k + 1), 1)
            state = state.note_burnt(weights, False, (length, 2.0))
        found = state.grown(over)
        return None if found is None else found[0]

    assert grown(False, 4.0, 1.0, 3.0, 2.0) == 2.0
    assert grown(True, 4.0, 1.0, 3.0) == grown(True, 4.0, 1.0) == 1.0
    assert grown(False, 4.0, 1.0, 3.0) is grown(True, 4.0) is None, "others may be tried"
    assert grown(True, 4.0, 1.0, state=burns(named(20), spoilt=False)) is None, "holders refused it"


def test_nobody_is_left_out_for_long_sets_that_two_cannot_account_for() -> None:
    """Spoilt cohorts that two account for still tell of a client by themselves."""
    likely = frozenset({named(1, 2), named(3, 4), named(5, 6)})
    last, one = frozenset({named(0)}), frozenset({named(0, 7)})
    for evidence in (frozenset[Clients](), one, one | {named(0, 8), named(0, 9)}):
        assert not Suspicion(evidence, last, likely=likely).offenders
    assert Suspicion(evidence, last, likely=likely).find_offenders(compares=False) == named(0)
    assert not Suspicion(one, last, likely=likely).find_offenders(compares=False)


def test_a_long_cohort_that_cannot_be_cut_is_not_tried_as_it_was() -> None:
    """The same updates are as long again, and each try is charged."""
    few, state = crowd(5), Suspicion()
    for length, over in (((2.0, 5.0), True), ((), False)):
        burnt = state.note_burnt(dict.fromkeys(few, 1), False, length)
        assert choose(burnt, cutting(0), few, few, 3, MOST).over == over


def test_growth_gives_sets_that_stayed_away_new_tries() -> None:
    whole, half = crowd(6), cutting(0)(crowd(6), 3)[0]
    state = Suspicion().note_burnt(dict.fromkeys(whole, 1), False, (2.0, 6.0))
    state = state.start_round(half).give_up_round().note_grown()
    assert (state.burnt, state.passed, state.long) == ((whole,), (), frozenset())


def test_a_client_that_leaves_accounts_for_the_long_sets_that_it_stood_in() -> None:
    state = Suspicion(likely=frozenset({named(0, 1), named(2, 3)}))
    assert state.remove_client(min(named(0))).likely == {named(2, 3)}


def test_sets_that_share_a_client_count_once_for_growth() -> None:
    sets = [named(0, 1), named(0, 2), named(0, 3), named(0, 4), named(5, 6)]
    state = Suspicion()
    for k, each in enumerate(sets):
        state = state.note_burnt(dict.fromkeys(each, 1), False, (9.0 - k, 2.0))
    assert state.grown(over=False) is None, "one offender may have made four of them long"
    assert state.grown(over=True) == (5.0, 2.0)


@pytest.mark.parametrize("spoilt", [True, False])
def test_one_long_set_is_enough_beside_an_offender(spoilt: bool) -> None:
    """The whole and one half hold client 0, who spoils them or was left out; the other is long."""
    whole, half = crowd(8), named(4, 5, 6, 7)
    state = burns(whole, spoilt=spoilt)
    if spoilt:
        state = state.note_burnt(dict.fromkeys(whole - half, 1), spoilt=True)
    state = state.note_burnt(dict.fromkeys(half, 1), False, (2.0, 4.0))
    assert (state.grown(over=True) == (2.0, 4.0)) == spoilt
    assert state.grown(over=True, left=named(0)) == (2.0, 4.0)
    if not spoilt:
        assert state.grown(over=True, left=named(4)) is None, "that one is in the long set"
    assert state.grown(over=False, left=named(0)) is None
    assert burns(whole).grown(over=True, left=named(0)) is None, "no set is long"


def test_a_long_cohort_counts_only_beside_a_set_that_is_many_times_shorter() -> None:
    whole = crowd(16)
    first, second = cutting(3)(whole, 4)
    small = cutting(3)(second, 4)[0]
    long = {whole: 7.0, first: 9.1, second: 6.5}
    state = Suspicion()
    for each, length in long.items():
        state = state.note_burnt(dict.fromkeys(each, 1), False, (length, float(len(each))))
    for opened, length, likely in (
        (first, 1.0, {second}),
        (second, 3.0, {first}),
        (second, 3.1, set()),
        (small, 3.0, {first}),
    ):
        noted = state.note_opened(opened, (length, float(len(opened))), TIMES)
        assert noted.likely == likely
        assert not noted.offenders
    larger = state.note_opened(named(*range(20, 52)), (3.0, 32.0), TIMES)
    assert not larger.likely, "a set of fewer clients may be as much longer as theirs are alike"


# --- one choice -------------------------------------------------------------------


def chosen(state: Suspicion, able: Clients, live: Clients, minimum: int = 4) -> Choice:
    return choose(state, cutting(3), able, live, minimum, MOST)


def burns(*clients: Clients, spoilt: bool = True) -> Suspicion:
    state = Suspicion()
    for each in clients:
        state = state.start_round(each).note_burnt(dict.fromkeys(each, 1), spoilt)
    return state


def test_what_could_not_be_cut_is_tried_as_it_was_three_times_in_all() -> None:
    few = crowd(7)
    assert chosen(burns(few), few, few).clients == few
    assert chosen(burns(few, few), few, few).clients == few
    last = chosen(burns(few, few, few), few, few)
    assert last == Choice(frozenset(), "no other set of clients may make this version", over=True)


def test_clients_that_were_not_in_it_come_first() -> None:
    others = named(*range(7, 11))
    found = chosen(burns(crowd(7)), crowd(11), crowd(11))
    assert (found.clients, found.reason) == (
        others,
        "4 members that stood in no burnt cohort are invited",
    )
    assert chosen(burns(crowd(7)), crowd(11), crowd(10)).clients == crowd(7), "three are too few"


def test_the_largest_set_without_a_known_offender_or_flaw_is_next() -> None:
    whole = crowd(16)
    first, second = cutting(3)(whole, 4)
    state = burns(whole, first)
    assert state.suspect_sets == {first}
    assert chosen(state, whole, whole).clients == second, "before the halves of the first"
    for half, other in ((first, second), (second, first)):
        flawed = burns(whole, spoilt=False).note_flaw(min(half))
        assert chosen(flawed, whole, whole).clients == other
        assert chosen(burns(whole), whole - {min(half)}, whole).clients == other, "left out"


def test_a_set_is_waited_for_while_somebody_in_it_is_away() -> None:
    whole = crowd(8)
    halves_ = cutting(3)(whole, 4)
    away = frozenset(min(half) for half in halves_)
    found = chosen(burns(whole), whole, whole - away)
    assert (found.clients, found.over) == (frozenset(), False)
    assert found.reason == f"waits for {min(away)}, without whom no set may be tried"
    here = chosen(burns(whole), whole, whole - {min(halves_[0])})
    assert here.clients == halves_[1]
    assert here.reason == "exactly 4 members of a burnt cohort are invited"


def test_a_set_that_is_given_up_again_and_again_is_no_longer_tried() -> None:
    whole = crowd(8)
    state, tried = burns(whole), []
    while not (found := chosen(state, whole, whole)).over:
        tried.append(found.clients)
        state = state.start_round(found.clients).give_up_round()
    assert sorted(map(sorted, tried)) == sorted(map(sorted, MOST_TRIED * cutting(3)(whole, 4)))


def test_a_round_after_a_burnt_cohort_closes_for_exactly_those_it_is_for() -> None:
    half = cutting(3)(crowd(16), 4)[0]
    state = burns(crowd(16)).start_round(half)
    assert state.exact
    assert close_with(state, half - {min(half)}, 4, deadline=True, last=True) is None
    assert close_with(state, half, 4, deadline=False, last=False) == half


def test_a_round_of_a_version_of_its_own_closes_without_those_who_are_late() -> None:
    state = burns(crowd(16)).note_opened(crowd(16) - named(1, 2, 3))
    assert state.cleared == crowd(16) - named(1, 2, 3)
    found = chosen(state, crowd(16), crowd(16)).clients
    assert len(found & named(1, 2, 3)) == 1
    state = state.start_round(found)
    assert not state.exact
    ten, six = [frozenset(sorted(found, reverse=True)[:k]) for k in (10, 6)]
    assert close_with(state, ten, 4, deadline=False, last=False) is None
    assert close_with(state, ten, 4, deadline=True, last=False) == ten
    assert close_with(state, six | found & named(1, 2, 3), 4, deadline=True, last=False) == six, (
        "if it burnt, nothing could follow it"
    )
    assert close_with(state, named(1, 2, 3, 4), 4, deadline=True, last=False) is None
    assert close_with(state, named(1, 2, 3, 4), 4, deadline=True, last=True) == named(1, 2, 3, 4)
    assert close_with(state, crowd(16) | found, 4, deadline=True, last=True) == found, "no others"


def test_what_was_cleared_of_an_old_suspicion_counts_for_no_new_one() -> None:
    """A client that behaved while nobody was suspected may be the next offender."""
    six = crowd(6)
    behaved = Suspicion().note_opened(six).note_opened(six)
    spoilt = behaved.note_burnt(dict.fromkeys(crowd(7), 1), spoilt=True)
    assert spoilt.suspect_sets == {crowd(7)}, "not the newcomer alone"
    among = dataclasses.replace(spoilt, burnt=()).note_opened(named(0, 1, 2))
    turned = among.note_burnt(dict.fromkeys(named(0, 1, 2), 1), spoilt=True)
    assert turned.suspect_sets == {named(3, 4, 5, 6), named(0, 1, 2)}
    assert turned.cleared == frozenset()


def test_a_set_whose_clients_have_sent_something_else_since_follows_no_burnt_cohort() -> None:
    """The largest set that is allowed follows: its members can send the same updates again."""
    whole = crowd(16)
    state = Suspicion().note_burnt(dict.fromkeys(whole, 1), spoilt=True)
    cut = cutting(0)
    first, second = sorted(cut(whole, 2), key=sorted)
    free = choose(state, cut, whole, whole, 2, MOST)
    assert free.clients == first
    bound = choose(state, cut, whole, whole, 2, MOST, lambda _, part: not part & first)
    assert bound.clients == second
    none = choose(state, cut, whole, whole, 2, MOST, lambda *_: False)
    assert none.over


def test_a_last_suspect_stands_to_the_test_among_others_than_before() -> None:
    eight, four = crowd(8), named(0, 1, 2, 3)
    state = burns(four).note_opened(named(1, 2, 3))
    assert state.suspect_sets == {named(0)}
    assert not state.offenders, "each of the four may have spoilt the one cohort"
    found = chosen(state, eight, eight)
    assert (found.clients, found.reason) == (named(0, 4, 5, 6), "c00 stands to the test")
    again = state.note_burnt(dict.fromkeys(eight, 1), spoilt=True)
    assert named(0) < chosen(again, eight, eight).clients < eight, "before the other half"
    assert not again.remove_client("c00").evidence, "it may have spoilt both"


def test_too_few_for_a_test_go_on_without_the_suspects() -> None:
    state = burns(crowd(9)).note_opened(crowd(6))
    found = chosen(state, crowd(7), crowd(7))
    assert found.clients == crowd(6)
    assert found.reason == "too few for a test: without c06"
    with_all = chosen(state, crowd(7), named(0, 1, 2, 6))
    assert with_all.clients == named(0, 1, 2, 6)
    assert chosen(state, crowd(7), named(0, 1, 6)).reason == "waits for members: 3 of 4 are live"
    nobody = chosen(state, crowd(9), crowd(6) | named(12)).clients
    assert nobody == crowd(6), "no suspect is here"
