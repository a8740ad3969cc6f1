"""Which clients may stand in a cohort, after some cohort failed or some key holder found a flaw.

| question | answered by |
|---|---|
| which parts of a failed cohort may be tried | `halves`, `leaves`, `is_within` |
| who is suspected, and who makes the next cohort | `Suspicion`, `choose`, `close_with` |
| may two sums of one group both be opened | `check_members`, `uneven`, `may_both_open` |
| is a holder that reports a flaw believed | `believes`, `find_doubted` |

**Halves.** Two opened sums of one version tell their difference. A cohort that did not open for the
coordinator may have opened for somebody else, so the cohorts after it must not take it apart
freely. It is cut into halves, these into halves again, and only these sets may follow, as a whole.
Any two of them are disjoint or nested. Whatever sums are subtracted, what remains is a sum over
whole leaves of this tree, and every leaf has at least `least` clients. A hash draws the tree, so
that all parties compute the same one; the size of the leaves protects clients, not the draw. It
differs from version to version: otherwise two offenders in different halves would spoil both.

**Suspicion.** A cohort that did not open has an offender in it, and none of those who are cleared:
its other members are a set of suspects. Clients of cohorts that open later are taken off the set.
The only one left is an offender. For the version of the burnt cohort only halves may be tried, or
clients that were not in it. For later versions a cohort is free: it has cleared clients, and half
of a set of suspects.

**Proof.** A client that behaves for a while is cleared, and whoever is then the last suspect may be
honest. So a last suspect is only put to the test, each time among as few others as possible that
stood in few burnt cohorts with it. Each burnt cohort has an offender in it, whatever offenders did
before and after. A client is left out if it belongs to every group of at most `COLLUDING` clients
that has a member in each burnt cohort: if no more than so many offend, it is one of them. If no
such group is left, more than `COLLUDING` offend. Then every last suspect is left out: if all who
offend always do, none that was cleared offends, and it is one of them.

**Long sums.** Where a sum may be several times as long as usual (`policy.longest`), a longer one is
no proof: honest updates may grow. It counts once a set that is disjoint from it made the same
version with a mean that is as many times shorter: growth makes both longer. A mean is at most as
long as its longest update, so a member sent one that is so many times longer than that set's mean.
Nobody is left out because more than `COLLUDING` clients would have to offend. So a client that
sends no such update is never left out if at most `COLLUDING` others do. But an offender that
cancels the others' updates makes its set short, and an honest update may be long beside it. So only
`COLLUDING` clients are left out for this, until an operator takes one of them back. If four
disjoint sets (`COLLUDING` + 2) are too long, or two and nothing else can be tried, or one beside an
offender's, updates have grown: the version is tried again, and what counts as usual is the second
shortest of four, else the shortest. Fewer offenders than sets, and two of four, cannot make that
longer than an honest set. Of four sets one cannot make it shorter; of fewer one can that knows the
others' updates.

**Overlap.** Two sums that share a client's update from one base tell their difference to whoever
sees both. `may_both_open` therefore allows two cohorts with a common (client, base) only if one is
a set of the other's tree, for the same version, with the same updates and weights. Checking pairs
is enough: sets that are pairwise disjoint or nested are laminar, so every combination of opened
sums is a combination of sums over whole leaves.

**Accusations.** If a holder reports a flaw in its envelope, either the client sealed badly or the
holder lies, and nobody else can look. Of n holders (those on the roster for whom envelopes were
sealed) t open a cohort, so at most n - t are assumed corrupt; see `count_spare` for n = t.

    more than n - t accuse a client     one of them is honest, so the client is at fault
    fewer accuse it                     all may lie; each is believed about up to `BELIEVED` such
                                        clients, and about none if it accuses more

A holder that accuses more is doubted: its word keeps no client out, and cohorts are opened without
its shares. So each corrupt holder can keep out at most `BELIEVED` honest clients, even if clients
collude with it. More than n - t holders are doubted only if clients collude; their cohorts are
refused by too many holders and never open, because nobody can tell which holders are honest. Where
no holder can be missed, the clients beyond `BELIEVED` wait until a holder has been replaced.

Safety does not depend on accusations: a holder gives no share of what it cannot open, and no cohort
becomes smaller than the plan allows.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from secureps.crypto.cipher import WEIGHTS
from secureps.errors import Refused
from secureps.messages.encoding import digest
from secureps.messages.submission import Base, Cohort
from secureps.wording import counted, named

Clients = frozenset[str]

Length = tuple[float, ...]
"""The length of a mean, and the number of its members; with unlike weights (sum w)^2 / sum w^2."""

MEMORY = 15
"""The number of versions whose lengths are usual."""


def halves(
    run: bytes, group: str, version: int, whole: Set[str], least: int
) -> tuple[Clients, ...]:
    """Cuts a set of clients into two halves, drawn by a hash; none if one had fewer than `least`.

    `group` and `version` are what the cohort was to make.
    """
    if len(whole) < 2 * least:
        return ()
    names = sorted(whole)
    seed = digest(
        "secureps-buckets", run, group.encode(), version.to_bytes(8, "little"),
        *(name.encode() for name in names),
    )  # fmt: skip
    drawn = sorted(names, key=lambda name: digest("secureps-bucket", seed, name.encode()))
    middle = len(drawn) // 2
    return frozenset(drawn[:middle]), frozenset(drawn[middle:])


def leaves(
    run: bytes, group: str, version: int, whole: Set[str], least: int
) -> tuple[Clients, ...]:
    """Returns the leaves of the tree of halves: disjoint, each with `least` or more clients."""
    cut = halves(run, group, version, whole, least)
    if not cut:
        return (frozenset(whole),)
    return tuple(leaf for half in cut for leaf in leaves(run, group, version, half, least))


def is_within(
    run: bytes, group: str, version: int, whole: Set[str], part: Set[str], least: int
) -> bool:
    """Tells whether `part` is `whole`, or one of the sets that it is cut into."""
    while whole != part:
        half = [h for h in halves(run, group, version, whole, least) if part <= h]
        if not half:
            return False
        whole = half[0]
    return True


COLLUDING = 2
"""The most clients that may offend together while no honest one is left out."""

MOST_TRIED = 3
"""How often a set is tried at most. A try ends when members stay away, or when a set that cannot be
cut is burnt."""

Cut = Callable[[Clients, int], tuple[Clients, ...]]
"""Cuts a set into halves of at least so many clients; none if the set is too small (`halves`)."""


Allowed = Callable[[Clients, Clients], bool]
"""Tells whether a part of a burnt set may follow it, given the updates that its clients have."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Knowledge about the offenders among the clients of one group.

    Args:
        evidence: cohorts that an update in them spoilt, none within another.
        suspect_sets: what is left of them without who was cleared; none lies within another.
        cleared: clients in a cohort that opened while others were suspected.
        flawed: clients in whose envelopes a holder found a flaw too late to leave them out.
        burnt: cohorts that failed for the version in the making.
        passed: sets that were tried for it and given up.
        weights: of the clients in burnt cohorts.
        chosen: clients that the open round is for.
        long: cohorts of the version in the making that were longer than usual.
        likely: cohorts that were longer than usual while others of their version were not.
    """

    evidence: frozenset[Clients] = frozenset()
    suspect_sets: frozenset[Clients] = frozenset()
    cleared: Clients = frozenset()
    flawed: Clients = frozenset()
    burnt: tuple[Clients, ...] = ()
    passed: tuple[Clients, ...] = ()
    weights: frozenset[tuple[str, int]] = frozenset()
    chosen: Clients = frozenset()
    long: frozenset[tuple[Clients, Length]] = frozenset()
    likely: frozenset[Clients] = frozenset()

    @property
    def chooses(self) -> bool:
        """True if suspicion decides who makes the next cohort, instead of a rule."""
        return bool(self.suspect_sets or self.burnt)

    @property
    def exact(self) -> bool:
        """True if the open round needs all its clients, because some were in a burnt cohort."""
        return not self.chosen.isdisjoint(_union(self.burnt))

    @property
    def offenders(self) -> Clients:
        return self.find_offenders()

    def find_offenders(self, compares: bool = True) -> Clients:
        """Finds last suspects that belong to every explanation of the evidence.

        It `compares`: likely cohorts count, too.
        """
        last = frozenset(suspects for suspects in self.suspect_sets if len(suspects) == 1)
        if not last:  # the usual case, in which no explanations are looked for
            return _union(())
        kinds, found = _explain(self.evidence | self.likely if compares else self.evidence)
        if not found and (self.likely or not self.evidence):
            return _union(())
        return _union(
            suspects
            for suspects in last
            if all(any(kinds[kind] == suspects for kind in few) for few in found)
        )

    def weight(self, client: str) -> int:
        """A client's weight in this version: the same as in a burnt cohort."""
        return dict(self.weights).get(client, 1)

    def start_round(self, clients: Clients) -> Suspicion:
        return dataclasses.replace(self, chosen=clients)

    def give_up_round(self) -> Suspicion:
        passed = (*self.passed, self.chosen) if self.burnt else ()
        return dataclasses.replace(self, passed=passed, chosen=frozenset())

    def grown(self, over: bool, left: Set[str] = frozenset()) -> Length | None:
        """Returns the new usual length if updates have grown; `over`: no set is left to try.

        Sets that an update spoilt, and clients that were `left` out, account for themselves: one
        long set beside them is enough. Otherwise a client that always spoils would end the run.
        """
        lengths, sets = dict(self.long), _smallest(self.burnt)
        long = sets & lengths.keys()
        spoilt = {each for each in sets - long if any(known <= each for known in self.evidence)}
        spoilt |= {each for each in sets - long if each & left}
        at_fault = spoilt or left & _union(self.burnt) - _union(long)
        disjoint: list[Clients] = []  # without rounds a client may have come back from a newer base
        for each in sorted(long, key=_order):
            disjoint += [each] * each.isdisjoint(_union(disjoint))
        enough = len(disjoint) > COLLUDING + 1
        all_long = over and long | spoilt == sets and len(disjoint) + bool(at_fault) > 1
        if enough or (all_long and disjoint):
            return sorted(lengths[each] for each in disjoint)[enough]
        return None

    def note_grown(self) -> Suspicion:
        """Forgets long sums, and lets sets of the largest burnt cohorts be tried anew."""
        sets = sorted({*self.burnt}, key=_order)
        whole = (each for each in sets if not any(each < other for other in sets))
        return dataclasses.replace(self, long=frozenset(), burnt=tuple(whole), passed=())

    def note_burnt(
        self, weights: Mapping[str, int], spoilt: bool, length: Length = ()
    ) -> Suspicion:
        """Notes that a cohort failed: by an update in it (`spoilt`), or by an unusual `length`."""
        clients = frozenset(weights)
        evidence, suspect_sets, cleared = self.evidence, self.suspect_sets, self.cleared
        if spoilt:
            evidence = _smallest({*evidence, clients})
            doubted = clients - cleared or clients
            suspect_sets, cleared = _smallest({*suspect_sets, doubted}), cleared - doubted
        return dataclasses.replace(
            self,
            evidence=evidence,
            suspect_sets=suspect_sets,
            cleared=cleared,
            burnt=(*self.burnt, clients),
            weights=self.weights | frozenset(weights.items()),
            chosen=frozenset(),
            long=self.long | ({(clients, length)} if length else frozenset()),
        )

    def note_opened(self, clients: Clients, length: Length = (), times: float = 0.0) -> Suspicion:
        """Notes that a cohort made a version; beside it those `times` as long are likely spoilt.

        With 0 `times`, no lengths are compared.
        """
        long = {each for each, _ in self.long if not any(known <= each for known in self.evidence)}
        own, n = length or (math.inf, 1.0)
        most = times * own if times else math.inf
        longer = {s for s, (its, k) in self.long if its > most * math.sqrt(max(1.0, n / k))}
        beside = {each for each in long & longer if each.isdisjoint(clients)}
        doubted = {each - self.cleared or each for each in long}
        suspect_sets = _smallest(each - clients for each in _smallest(self.suspect_sets | doubted))
        cleared = self.cleared - _union(doubted) | clients if suspect_sets else frozenset()
        likely = _smallest(self.likely | beside)
        return Suspicion(self.evidence, suspect_sets, cleared, self.flawed, likely=likely)

    def remove_client(self, client: str) -> Suspicion:
        """Removes a client that left the run, and the sets it is in: it may be the offender of
        each.
        """
        evidence = frozenset(each for each in self.evidence if client not in each)
        likely = frozenset(each for each in self.likely if client not in each)
        suspect_sets = frozenset(each for each in self.suspect_sets if client not in each)
        cleared = self.cleared - {client} if suspect_sets else frozenset()
        return dataclasses.replace(
            self, evidence=evidence, likely=likely, suspect_sets=suspect_sets, cleared=cleared
        )

    def note_flaw(self, client: str) -> Suspicion:
        """Notes that a holder found a flaw in what a client sent, too late to leave it out."""
        return dataclasses.replace(self, flawed=self.flawed | {client})


@dataclass(frozen=True, slots=True)
class Choice:
    """The clients to invite; without any, wait for members, or stop if the search is `over`."""

    clients: Clients
    reason: str
    over: bool = False


def choose(
    state: Suspicion,
    cut: Cut,
    able: Clients,
    live: Clients,
    minimum: int,
    most: int,
    allowed: Allowed = lambda whole, part: True,
) -> Choice:
    """Chooses the clients of the next round while there is suspicion; burnt cohorts come first.

    Args:
        able: clients that may take part in this run.
        live: those of them that are here.
        allowed: whether a set may follow a burnt one.
    """
    live &= able
    if not state.burnt:
        return _divide(state, cut, live, minimum, most)
    parts = {(whole, part) for whole in state.burnt for part in _parts(whole, cut, minimum)}
    inner = {part for whole, part in parts if part <= able and allowed(whole, part)}
    left = [part for part in inner if part not in state.burnt]
    outside = frozenset(sorted(live - _union(state.burnt))[:most])
    left += [outside] * (len(outside) >= minimum)
    if not left and len(state.burnt) < MOST_TRIED:
        again = set(state.burnt) - dict(state.long).keys()  # these would be as long again
        whole = (each for each in again if each <= able and allowed(each, each))
        left = [each for each in whole if not cut(each, minimum)]
    left = [each for each in left if state.passed.count(each) < MOST_TRIED]
    if not left:
        return Choice(frozenset(), "no other set of clients may make this version", over=True)
    here = [each for each in left if each <= live]
    if not here:
        fewest = min([each - live for each in left], key=_order)
        away = sorted(fewest)
        return Choice(frozenset(), f"waits for {named(away)}, without whom no set may be tried")
    best = min(here, key=partial(_rank, state))
    if best.isdisjoint(_union(state.burnt)):
        return Choice(best, f"{len(best)} members that stood in no burnt cohort are invited")
    return Choice(best, f"exactly {len(best)} members of a burnt cohort are invited")


def _divide(state: Suspicion, cut: Cut, live: Clients, minimum: int, most: int) -> Choice:
    """Chooses a cohort such that another can follow if it burns.

    It can be cut into halves, one of them without the offender, or as many clients stay outside.
    """
    if len(live) < minimum:
        return Choice(frozenset(), f"waits for members: {len(live)} of {minimum} are live")
    trusted = sorted(live & state.cleared)
    here = sorted((each & live for each in state.suspect_sets if each & live), key=_order)
    if not here:
        clients = frozenset([*trusted, *sorted(live.difference(trusted))][:most])
        return Choice(clients, f"{len(clients)} members are invited, no suspects of old are here")
    suspects = here[0]
    if len(suspects) == 1 and len(live) >= 2 * minimum:
        others = _sort_by_excuse(state, suspects, live)
        return Choice(
            suspects.union(others[: minimum - 1]), f"{named(sorted(suspects))} stands to the test"
        )
    half = cut(suspects, 1)[0] if len(suspects) > 1 else suspects
    reason = f"{len(half)} of {len(suspects)} suspects stand to the test"
    all_cleared = half.union(trusted[: most - len(half)])
    if len(all_cleared) >= 2 * minimum:
        return Choice(all_cleared, f"{reason} among all who are cleared")
    if len(live) >= 2 * minimum:
        others = [*trusted, *sorted(live.difference(trusted, suspects)), *sorted(suspects - half)]
        size = min(len(live) // 2, most)
        return Choice(half.union(others[: size - len(half)]), f"{reason} in half of all members")
    if len(trusted) >= minimum:
        return Choice(
            frozenset(trusted[:most]), f"too few for a test: without {named(sorted(suspects))}"
        )
    return Choice(frozenset(sorted(live)[:most]), "too few for a test: all are invited")


def close_with(
    state: Suspicion, here: Clients, minimum: int, deadline: bool, last: bool
) -> Clients | None:
    """Chooses the clients of the open round's cohort, given those that are here; None: wait."""
    if here >= state.chosen:
        return state.chosen
    if state.exact:
        return None
    sure = here if len(here) >= 2 * minimum else here & state.cleared
    if deadline and len(sure) >= minimum:
        return sure
    return here if last and len(here) >= minimum else None


# --- sets -------------------------------------------------------------------------


def _parts(whole: Clients, cut: Cut, least: int) -> Iterator[Clients]:
    for half in cut(whole, least):
        yield half
        yield from _parts(half, cut, least)


def _smallest(sets: Iterable[Clients]) -> frozenset[Clients]:
    """Keeps the sets that are not empty and contain no other."""
    known = {each for each in sets if each}
    return frozenset(each for each in known if not any(other < each for other in known))


Stood = frozenset[int]
"""The cohorts of the evidence in which a client stood; clients that stood in the same are alike."""


def _explain(evidence: Set[Clients]) -> tuple[dict[Stood, Clients], list[tuple[Stood, ...]]]:
    """Finds who may have spoilt these cohorts, if at most `COLLUDING` clients offend.

    Returns the clients by where they stood, and every choice of a few of these kinds of clients
    that together stood in all the cohorts.
    """
    sets = sorted(evidence, key=_order)
    kinds: dict[Stood, Clients] = {}
    for client in _union(sets):
        stood = frozenset(k for k, each in enumerate(sets) if client in each)
        kinds[stood] = kinds.get(stood, frozenset()) | {client}
    counts = range(1, COLLUDING + 1)
    some = (few for count in counts for few in combinations(kinds, count))
    return kinds, [few for few in some if len(frozenset().union(*few)) == len(sets)]


def _sort_by_excuse(state: Suspicion, suspects: Clients, live: Clients) -> list[str]:
    """Returns the others, first those in the fewest explanations that do without the suspect."""
    kinds, found = _explain(state.evidence | state.likely)
    without = [few for few in found if all(kinds[kind] != suspects for kind in few)]
    excuses = Counter[str]()
    for few in without:
        groups = math.prod(len(kinds[kind]) for kind in few)
        for kind in few:
            excuses.update(dict.fromkeys(kinds[kind], groups // len(kinds[kind])))
    return sorted(live - suspects, key=lambda client: (excuses[client], client))


def _union(sets: Iterable[Clients]) -> Clients:
    return frozenset[str]().union(*sets)


def _order(clients: Clients) -> tuple[int, list[str]]:
    return len(clients), sorted(clients)


def _rank(state: Suspicion, clients: Clients) -> tuple[bool, bool, int, bool, int, list[str]]:
    """Puts a last suspect to the test among few first, then prefers sets without offenders."""
    suspected = [suspects for suspects in state.suspect_sets if suspects <= clients]
    tests = any(len(suspects) == 1 for suspects in suspected)
    flawed = not clients.isdisjoint(state.flawed)
    return (
        not tests,
        bool(suspected),
        state.passed.count(clients),
        flawed,
        -len(clients),
        sorted(clients),
    )


# --- overlap -----------------------------------------------------------------------


Place = tuple[int, Base, bytes]
"""A client's part in a sum: its weight, the base of its update, and the update's name."""


def check_members(cohort: Cohort, least: int, heaviest: int, sealed: bool = True) -> None:
    """Checks that a cohort by itself hides its members.

    Raises:
        Refused: it has fewer than `least` clients, a client twice, an update of another group, a
            weight above `heaviest`, or, if updates are `sealed`, weights that are too uneven.
    """
    clients = {member.id.client for member in cohort.members}
    if len(clients) != len(cohort.members):
        raise Refused("a client stands in the cohort twice")
    if len(clients) < least:
        raise Refused(f"a cohort of {len(clients)} clients, and {least} or more are opened")
    if any(member.id.group != cohort.group for member in cohort.members):
        raise Refused(f"an update of another group stands in a cohort of {cohort.group}")
    weights = [member.weight for member in cohort.members]
    # Shared noise is scaled to the plan's weights: it would cover a heavier member less.
    if max(weights) > heaviest:
        raise Refused(f"a member weighs {max(weights)}, and by the plan's rule {heaviest} at most")
    if sealed and (flaw := uneven(weights, least)):
        raise Refused(flaw)


def uneven(weights: Sequence[int], least: int) -> str:
    """Returns why these weights single out a few members; empty if they do not.

    Every member must hide among `least`. So the members of a smaller weight are at least as
    many, the effective number (sum w)^2 / sum w^2 is at least `least`, and no member outweighs all
    others. What holds of disjoint sets holds of their union. Only weights of 1, 2 and 4 are opened.
    """
    if any(weight not in WEIGHTS for weight in weights):
        return f"cohorts of weights {WEIGHTS} are opened, and no others"
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:  # modulo `heavier` the sum is that of these few alone
            return f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        return (
            f"members of so uneven weights hide among {total * total / squares:.1f}, and {least} "
            "or more are wanted"
        )
    return "one member outweighs all the others" if squares < 2 * max(weights) ** 2 else ""


def places(cohort: Cohort) -> dict[str, Place]:
    return {m.id.client: (m.weight, m.base, m.update) for m in cohort.members}


def may_both_open(run: bytes, one: Cohort, other: Cohort, least: int) -> bool:
    """Tells whether two sums of one group may both be opened while each member still hides.

    Both cohorts pass `check_members`; `least` is the fewest members of a leaf.
    """
    mine, theirs = places(one), places(other)
    common = mine.keys() & theirs.keys()
    if all(mine[client][1] != theirs[client][1] for client in common):
        return True  # no (client, base) is in both
    part, whole = sorted((mine, theirs), key=len)
    if one.version != other.version or any(whole.get(c) != place for c, place in part.items()):
        return False
    if part.keys() == whole.keys():
        return True
    tree = (run, one.group, one.version, whole.keys())
    if not is_within(*tree, part.keys(), least):
        return False
    of_leaves = ([whole[client][0] for client in leaf] for leaf in leaves(*tree, least))
    return not any(uneven(weights, least) for weights in of_leaves)


# --- accusations -------------------------------------------------------------------

BELIEVED = 2
"""The number of clients that a holder may accuse without support and still be believed."""

Accused = Mapping[str, Set[str]]
"""Clients in whose envelopes a flaw was ever found, and the holders that found it."""


def count_spare(left: int, holders: int, threshold: int) -> int:
    """Counts the holders that may be corrupt when `left` of the plan's are on the roster: n - t.

    It is 1 where only t are left of more, so that one of them can be believed.
    """
    return max(left - threshold, min(1, holders - threshold))


def tally_doubts(accused: Accused, spare: int) -> Counter[str]:
    """Counts the clients that each holder accuses and at most `spare` holders accuse in all."""
    few = (holders for holders in accused.values() if len(holders) <= spare)
    return Counter(holder for holders in few for holder in holders)


def accusation(clients: int) -> str:
    return f"finds flaws in what {counted(clients, 'client')} sent, and too few others do"


def find_doubted(accused: Accused, spare: int, most: int) -> frozenset[str]:
    """Finds the holders that accuse more than `most` clients without support.

    `most` is `BELIEVED`, or 0 where no client can be left out.
    """
    return frozenset(h for h, count in tally_doubts(accused, spare).items() if count > most)


def believes(accused: Accused, client: str, holder: str, spare: int, most: int) -> bool:
    """Tells whether a client is left out because this holder accuses it."""
    return len(accused[client]) > spare or holder not in find_doubted(accused, spare, most)
