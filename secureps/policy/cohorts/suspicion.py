"""What burnt cohorts say of the clients in them, and who is to make the next one.

    a version is burnt      only sets of `buckets` may follow it, or clients that were not in it:
                            the largest of them that nothing speaks against is next
    suspicion is left       at a version of its own a cohort is free: those that stood in a cohort
                            that opened since, and half of a set of suspects, until one is left

A cohort that did not open has somebody in it who spoilt it, and not among those who are cleared:
such a set is one of suspects, and what opens later is taken off it. The only one of a set is an
offender. That is sound of offenders that spoil whatever they are in; one that behaves at times can
have another client suspected in its place. Pure functions of the state.

**Which smaller cohorts may follow one that did not open**, for the same version. Whoever makes two
sums of one version learns their difference. A cohort that did not open for the coordinator may have
opened for somebody, so what follows it must not take it apart at will: it is cut into halves, these
into halves again, and only these sets, whole, may follow. Any two of them are disjoint or nested,
and whatever sums of them are subtracted from each other, what is left is a sum over whole leaves of
this tree: no client hides among fewer than `least`. The size of the leaves protects, and not who
draws them: whoever chooses the first set chooses its tree. A hash draws the tree, so that all
parties compute the same one, compare two sets at a time, and cut otherwise for every version: else
two offenders in different halves would stay there.

Two opened sums that share a client's update from one base version tell their difference to
whoever sees both. `may_both_open` allows two cohorts that meet in a (client, base) only if one is a
set of the other's tree of halves, for the same version, with the same
updates and weights. Pairs are enough: sets of which any two are disjoint or nested are laminar, all
that meet a largest one are sets of its tree, and so every combination of the opened sums is a
combination of sums over whole leaves of trees. A leaf has `least` clients or more, whose weights
single nobody out.

Whom to believe when a key holder finds a flaw in its envelope, and nobody else can look into it.

Either a client sealed for it what does not open, or it lies. Of n holders t open a cohort, so that
n - t can be missed (n: of those that it is sealed for who are on the roster still); no more than
these are taken to be corrupt, but one where only t are left of more (`missable`):

    more than n - t accuse a client     one of them is honest: the client is at fault
    fewer do                            all of them may lie: each is believed of `BELIEVED` clients
                                        that too few accuse, and of none if it accuses more

A holder that accuses more is doubted: its word keeps nobody out, and cohorts are opened without its
shares. What corrupt holders say of an honest client too few say, so that it counts against each of
them, whatever others are accused of, and by whom: each keeps out `BELIEVED` honest clients at
most, also where clients collude with it and seal nonsense for an honest holder.

While no more than n - t are doubted, the others open whatever stays in. More are doubted only if
clients collude: honest holders say nothing of honest clients, so that with c corrupt ones
n - t + 1 - c honest ones must accuse more than `BELIEVED` clients each. More holders than can be
missed refuse a cohort with such clients, and it never opens. Nobody can tell then which holders are
honest; to leave out whom some of them accuse would leave the choice to the others.

Where only t are left nobody can be missed. Each is believed of `BELIEVED` clients all the same, for
what it does not open nobody does; of more it is not, and what they sent waits until it, or whoever
is missing, has been replaced. With t = n from the beginning each is believed whatever it says.

Safety hangs on none of this: no key is touched for it, no cohort is smaller for it, and what a
holder does not open it gives no share of.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from secureps.crypto.cipher import WEIGHTS
from secureps.errors import Refused
from secureps.messages.encoding import digest
from secureps.messages.submission import Base, Cohort
from secureps.wording import counted, named

Clients = frozenset[str]


def halves(
    run: bytes, group: str, version: int, whole: Set[str], least: int
) -> tuple[Clients, ...]:
    """Cuts a set of clients into two halves, drawn by a hash; none if one had fewer than `least`.

    Args:
        run: run id, 32 bytes; group and version: what the cohort was to make.
        least: >= 1.
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
    """Returns the sets that are cut no further: disjoint, `least` or more clients in each."""
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


MOST_TRIED = 3
"""How often one set is tried at most: given up by those who stay away, or burnt when it is all
that there is."""

Cut = Callable[[Clients, int], tuple[Clients, ...]]
"""The halves of a set, of no fewer than so many; none if it is too small (see `buckets`)."""


Allowed = Callable[[Clients, Clients], bool]
"""Whether a part of a burnt set may follow it, as far as what its clients have is concerned."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is known of the clients of one group.

    Args:
        suspect_sets: sets of whom one at least spoils cohorts, none within another.
        cleared: clients that stood in a cohort that opened while others were suspected.
        flawed: clients in whose envelopes a holder found a flaw too late to leave them out.
        burnt, passed: cohorts that were burnt for the version in the making, and sets that were
            given up; weights: what the clients of the burnt ones weighed.
        chosen: whom the round that is open is for.
    """

    suspect_sets: frozenset[Clients] = frozenset()
    cleared: Clients = frozenset()
    flawed: Clients = frozenset()
    burnt: tuple[Clients, ...] = ()
    passed: tuple[Clients, ...] = ()
    weights: frozenset[tuple[str, int]] = frozenset()
    chosen: Clients = frozenset()

    @property
    def chooses(self) -> bool:
        """Whether suspicion decides who makes the next cohort, instead of a rule."""
        return bool(self.suspect_sets or self.burnt)

    @property
    def exact(self) -> bool:
        """Whether the open round needs all its clients, because some were in a burnt cohort."""
        return not self.chosen.isdisjoint(_union(self.burnt))

    @property
    def offenders(self) -> Clients:
        """The offenders: each is the only suspect of a burnt cohort."""
        return _union(suspects for suspects in self.suspect_sets if len(suspects) == 1)

    def weight(self, client: str) -> int:
        """A client's weight in this version: the same as in a burnt cohort."""
        return dict(self.weights).get(client, 1)

    def start_round(self, clients: Clients) -> Suspicion:
        return dataclasses.replace(self, chosen=clients)

    def give_up_round(self) -> Suspicion:
        """Notes that the open round ended without a cohort."""
        passed = (*self.passed, self.chosen) if self.burnt else ()
        return dataclasses.replace(self, passed=passed, chosen=frozenset())

    def note_burnt(self, weights: Mapping[str, int], spoilt: bool) -> Suspicion:
        """Notes that a cohort of these clients failed; `spoilt`: for what one of them sent."""
        clients = frozenset(weights)
        suspect_sets, cleared = self.suspect_sets, self.cleared
        if spoilt:
            doubted = clients - cleared or clients
            suspect_sets, cleared = _smallest({*suspect_sets, doubted}), cleared - doubted
        return dataclasses.replace(
            self,
            suspect_sets=suspect_sets,
            cleared=cleared,
            burnt=(*self.burnt, clients),
            weights=self.weights | frozenset(weights.items()),
            chosen=frozenset(),
        )

    def note_opened(self, clients: Clients) -> Suspicion:
        """Notes that a version was made of these clients' updates."""
        suspect_sets = _smallest(suspects - clients for suspects in self.suspect_sets)
        cleared = self.cleared | clients if suspect_sets else frozenset()
        return Suspicion(suspect_sets, cleared, self.flawed)

    def remove_client(self, client: str) -> Suspicion:
        """Drops a client that left the run: what it is to blame for says nothing of others."""
        suspect_sets = frozenset(each for each in self.suspect_sets if client not in each)
        cleared = self.cleared - {client} if suspect_sets else frozenset()
        return dataclasses.replace(self, suspect_sets=suspect_sets, cleared=cleared)

    def note_flaw(self, client: str) -> Suspicion:
        """Notes that a holder found a flaw in what a client sent, too late to leave it out."""
        return dataclasses.replace(self, flawed=self.flawed | {client})


@dataclass(frozen=True, slots=True)
class Choice:
    """Which clients to invite; with none, wait for members, or stop if the search is `over`."""

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
    """Chooses the clients of the next round while there is suspicion.

    What may follow burnt cohorts comes first.

    Args:
        able: clients that may take part in this run; live: those of them that are here.
        minimum, most: clients of a cohort.
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
        whole = (each for each in set(state.burnt) if each <= able and allowed(each, each))
        left = [each for each in whole if not cut(each, minimum)]
    left = [each for each in left if state.passed.count(each) < MOST_TRIED]
    if not left:
        return Choice(frozenset(), "no other set of clients may make this version", over=True)
    here = [each for each in left if each <= live]
    if not here:
        fewest = min([each - live for each in left], key=_order)
        away = sorted(fewest)
        return Choice(frozenset(), f"waits for {named(away)}, without whom no set may be tried")
    tried = state.passed.count
    best = min(here, key=lambda each: (_spoils(state, each), tried(each), *_rank(state, each)))
    if best.isdisjoint(_union(state.burnt)):
        return Choice(best, f"{len(best)} members that stood in no burnt cohort are invited")
    return Choice(best, f"exactly {len(best)} members of a burnt cohort are invited")


def _divide(state: Suspicion, cut: Cut, live: Clients, minimum: int, most: int) -> Choice:
    """Chooses a cohort that another can follow if it burns.

    It has room for a half without the offender, or leaves as many clients outside.
    """
    if len(live) < minimum:
        return Choice(frozenset(), f"waits for members: {len(live)} of {minimum} are live")
    trusted = sorted(live & state.cleared)
    here = sorted((each & live for each in state.suspect_sets if each & live), key=_order)
    if not here:
        clients = frozenset([*trusted, *sorted(live.difference(trusted))][:most])
        return Choice(clients, f"{len(clients)} members are invited, no suspects of old are here")
    suspects = here[0]
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
    """Chooses the clients of the open round's cohort now that these are here; None: none yet.

    Args:
        deadline, last: whether the round's deadline has passed, and whether it was the last one.
    """
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
    """Yields all sets that a set is cut into, without the set itself."""
    for half in cut(whole, least):
        yield half
        yield from _parts(half, cut, least)


def _spoils(state: Suspicion, clients: Clients) -> bool:
    """Tells whether one of these clients certainly spoils cohorts."""
    return any(suspects <= clients for suspects in state.suspect_sets)


def _smallest(sets: Iterable[Clients]) -> frozenset[Clients]:
    """Keeps the sets that are not empty and contain no other."""
    known = {each for each in sets if each}
    return frozenset(each for each in known if not any(other < each for other in known))


def _union(sets: Iterable[Clients]) -> Clients:
    return frozenset[str]().union(*sets)


def _order(clients: Clients) -> tuple[int, list[str]]:
    return len(clients), sorted(clients)


def _rank(state: Suspicion, clients: Clients) -> tuple[bool, int, list[str]]:
    return not clients.isdisjoint(state.flawed), -len(clients), sorted(clients)


# --- overlap -----------------------------------------------------------------------


Place = tuple[int, Base, bytes]
"""What a client adds to a sum: its weight, what its update was trained from, and its name."""


def check_members(cohort: Cohort, least: int, heaviest: int, sealed: bool = True) -> None:
    """Checks that a cohort by itself hides its members: whoever adds or opens it checks this.

    Raises:
        Refused: fewer than `least` clients, a client twice, an update of another group, a weight
            above `heaviest`, or, if updates are `sealed`, weights that are too uneven.
    """
    clients = {member.id.client for member in cohort.members}
    if len(clients) != len(cohort.members):
        raise Refused("a client stands in the cohort twice")
    if len(clients) < least:
        raise Refused(f"a cohort of {len(clients)} clients, and {least} or more are opened")
    if any(member.id.group != cohort.group for member in cohort.members):
        raise Refused(f"an update of another group stands in a cohort of {cohort.group}")
    weights = [member.weight for member in cohort.members]
    # Noise of many parties, and what the cipher has room for, are made for the plan's weights.
    if max(weights) > heaviest:
        raise Refused(f"a member weighs {max(weights)}, and by the plan's rule {heaviest} at most")
    if sealed and (flaw := uneven(weights, least)):
        raise Refused(flaw)


def uneven(weights: Sequence[int], least: int) -> str:
    """Says how few members stand out by these weights; empty if none do.

    Every member must hide among `least`: those of a small weight are no fewer, the effective
    number (sum w)^2 / sum w^2 is no less, and the others weigh no less than the heaviest. What
    holds of disjoint sets holds of their union. No weights but 1, 2 and 4 are opened.
    """
    if any(weight not in WEIGHTS for weight in weights):
        return f"cohorts of weights {WEIGHTS} are opened, and no others"
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:  # modulo the heavier weight a sum is that of the lighter few
            return f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        return (
            f"members of so uneven weights hide among {total * total / squares:.1f}, and {least} "
            "or more are wanted"
        )
    return "one member outweighs all the others" if squares < 2 * max(weights) ** 2 else ""


def places(cohort: Cohort) -> dict[str, Place]:
    """Returns what each client adds to the sum, by name."""
    return {m.id.client: (m.weight, m.base, m.update) for m in cohort.members}


def may_both_open(run: bytes, one: Cohort, other: Cohort, least: int) -> bool:
    """Tells whether two sums of one group may both be opened, and each member still hides.

    Args:
        run: run id, 32 bytes.
        one, other: no client stands in either of them twice, and each passes `check_members`.
        least: fewest members of a leaf.
    """
    mine, theirs = places(one), places(other)
    common = mine.keys() & theirs.keys()
    if all(mine[client][1] != theirs[client][1] for client in common):
        return True  # they have no (client, base) in common
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
"""Clients of whom a holder is believed that too few others accuse, too."""

Accused = Mapping[str, Set[str]]
"""Clients in whose envelopes flaws were found, ever, and the holders that found them."""


def count_spare(left: int, holders: int, threshold: int) -> int:
    """Counts the holders that are taken to be corrupt, of so many that are left of the plan's."""
    return max(left - threshold, min(1, holders - threshold))


def tally_doubts(accused: Accused, spare: int) -> Counter[str]:
    """Counts for each holder the clients that it accuses, and that at most `spare` accuse in all.

    Args:
        spare: n - t, the holders that can be missed (`missable`).
    """
    few = (holders for holders in accused.values() if len(holders) <= spare)
    return Counter(holder for holders in few for holder in holders)


def accusation(clients: int) -> str:
    """Says that a holder accuses so many clients without support."""
    return f"finds flaws in what {counted(clients, 'client')} sent, and too few others do"


def find_doubted(accused: Accused, spare: int, most: int) -> frozenset[str]:
    """Finds the holders that accuse more than `most` clients without support.

    `most` is `BELIEVED`, or 0 where no client can be left out.
    """
    return frozenset(h for h, count in tally_doubts(accused, spare).items() if count > most)


def believes(accused: Accused, client: str, holder: str, spare: int, most: int) -> bool:
    """Tells whether a client is left out because this holder accuses it (see `doubted`)."""
    return len(accused[client]) > spare or holder not in find_doubted(accused, spare, most)
