"""The append-only ledger of privacy spent, which accountants read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, fields, replace
from typing import Any

from secureps.errors import Conflict, Malformed
from secureps.messages.charge import Charge, Fact, Release

OWN_DELTA = 1e-5
"""The largest delta at which a client accounts for a budget of its own."""

UNIT_NAMES = {"record": "one record", "person": "all records of one person"}
"""The data that a charge protects, in words, by the plan's unit."""


class PersonCharge(Charge):
    """A charge of a plan that protects persons, in a ledger over all runs, which knows no plan.

    Its row has the charge, and beside it a release of nothing. A version that knows no persons
    takes that for both of its units, and refuses to add it to what records have spent.
    """

    __slots__ = ()


def to_row(fact: Fact | None) -> tuple[Charge | None, Release | None]:
    """Returns the two fields in which a row of a ledger over all runs has a fact."""
    if isinstance(fact, PersonCharge):
        charge = Charge(*astuple(fact))
        return charge, _release_of_nothing(charge)
    return (fact, None) if isinstance(fact, Charge) else (None, fact)


def from_row(charge: Charge | None, release: Release | None) -> tuple[Fact, ...]:
    """Returns the facts of such a row: none, one, or both units, which nothing may add up."""
    if charge and release and release == _release_of_nothing(charge):
        return (PersonCharge(*astuple(charge)),)
    return tuple(each for each in (charge, release) if each is not None)


def _release_of_nothing(of: Charge) -> Release:
    return Release(of.party, of.group, of.version, 0.0, 0.0, 0.0, 1, 0.0, of.step)


def demand_sound(fact: Fact) -> None:
    """Raises Malformed if a record's numbers are out of range."""
    name = f"the {_noun(fact)} of {fact.party!r} for {fact.group!r} version {fact.version}"
    if fact.version < 0 or fact.step < 0:
        raise Malformed(f"{name}: a version and a step are at least 0")
    if isinstance(fact, Release):
        _demand_sound_release(name, fact)
        return
    if not (math.isfinite(fact.noise_multiplier) and fact.noise_multiplier >= 0):
        raise Malformed(f"{name}: the noise multiplier {fact.noise_multiplier} is no number >= 0")
    if not 0 <= fact.sample_rate <= 1:
        raise Malformed(f"{name}: the sample rate {fact.sample_rate} is not in [0, 1]")
    if fact.steps < 0:
        raise Malformed(f"{name}: {fact.steps} steps were not taken")


def _demand_sound_release(name: str, release: Release) -> None:
    if not (math.isfinite(release.stddev) and release.stddev >= 0):
        raise Malformed(f"{name}: the standard deviation {release.stddev} is no number >= 0")
    if not (0 <= release.l2 <= release.l1 < math.inf):
        raise Malformed(
            f"{name}: no vector of whole numbers has an L2 norm of {release.l2} and an L1 norm "
            f"of {release.l1}"
        )
    if release.sources < 1:
        raise Malformed(f"{name}: {release.sources} parties make no noise")
    if not 0 <= release.clamping <= 1:
        raise Malformed(f"{name}: {release.clamping} is no probability of clamping")


def _noun(fact: Fact) -> str:
    return "charge" if isinstance(fact, Charge) else "release"


class Ledger:
    """All charges (record unit) and releases (client unit) so far, in order; none is ever removed.

    Within a kind (party, group, version, step) identifies a fact: the same fact again costs
    nothing, and a different one is refused. A client that trained once for several groups charges
    each of them, so the ledger may count more than was spent, but never less.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._known: dict[tuple[str, str, str, int, int], Fact] = {}
        self._tallies: dict[str, Counter[Fact]] = {}
        for fact in facts:
            self.append(fact)

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(self._known.values())

    def count(self, party: str) -> int:
        return self._tallies.get(party, Counter()).total()

    def tally(self, party: str) -> Counter[Fact]:
        """Counts a party's facts that differ only by version and step, which are 0 here.

        An epsilon needs no more, and a tally stays short however many versions a run has.
        """
        return Counter(self._tallies.get(party))

    def tallies(self) -> tuple[tuple[Fact, int], ...]:
        """The tallies of all parties, in the order of first facts."""
        return tuple(each for tally in self._tallies.values() for each in tally.items())

    def is_new(self, fact: Fact) -> bool:
        """Tells whether `fact` would add to what was spent.

        Raises:
            Malformed: the fact's numbers are out of range.
            Conflict: another fact of this party, group, version and step is on record.
        """
        demand_sound(fact)
        known = self._known.get(_key(fact))
        if known is not None and known != fact:  # accepting it would hide what was spent
            raise Conflict(
                f"a {_noun(fact)} of {fact.party!r} for {fact.group!r} version {fact.version} "
                f"is on record, with other facts"
            )
        return known is None

    def append(self, fact: Fact) -> None:
        """Adds a fact, unless it is on record; raises as `is_new`."""
        if self.is_new(fact):
            self._known[_key(fact)] = fact
            tally = self._tallies.setdefault(fact.party, Counter())
            tally[replace(fact, version=0, step=0)] += 1

    def packed(self) -> Any:
        """Returns all facts in order as plain values; facts that differ by version share one."""
        alike: dict[tuple[Any, ...], int] = {}
        facts = self._known.values()
        places = [alike.setdefault(_without_version(fact), len(alike)) for fact in facts]
        return [list(map(list, alike)), places, [fact.version for fact in facts]]

    @classmethod
    def unpacked(cls, plain: Any) -> Ledger:
        """Restores a ledger from `packed`; Malformed if a fact's numbers are out of range."""
        alike, places, versions = plain
        pairs = ((alike[place], version) for place, version in zip(places, versions, strict=True))
        return cls(
            (Charge if charge else Release)(party, group, version, *rest)
            for (charge, party, group, *rest), version in pairs
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.facts == other.facts


def _without_version(fact: Fact) -> tuple[Any, ...]:
    own = [getattr(fact, name) for name in _FIELDS[type(fact)]]
    return (isinstance(fact, Charge), *own)


_FIELDS = {
    kind: tuple(field.name for field in fields(kind) if field.name != "version")
    for kind in (Charge, Release)
}


def _key(fact: Fact) -> tuple[str, str, str, int, int]:
    return _noun(fact), fact.party, fact.group, fact.version, fact.step
