"""Which versions of groups are in memory: those that are used most, within so many bytes.

TinyLFU: a version that comes is taken in if its group was used more often, lately, than the groups
of those that would have to go; they go in the order in which they were used last. A scan uses each
group once, and so pushes nothing out that is used twice. Lately: all counts are halved after every
`SAMPLE` uses for each version that is held, so that what was hot is forgotten. Groups are few
enough to be counted exactly, where the paper has a sketch.

References: Einziger, Friedman and Manes 2017, "TinyLFU: A Highly Efficient Cache Admission Policy";
sizes as in Einziger et al. 2021, "Lightweight Robust Size Aware Cache Management". What must not
live here: files, and what versions are.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, defaultdict
from typing import Generic, TypeAlias, TypeVar

Held = TypeVar("Held")
_Key: TypeAlias = tuple[str, int]

SAMPLE = 20
"""Uses for each version that is held, after which counts are halved: the paper's W / C. Under
Zipf's law (exponent 1.1) 10 had one use in a hundred less in memory."""
LEAST_SAMPLE = 100
"""Uses at least, while few are held."""


class HotVersions(Generic[Held]):
    """The versions in memory, by group and number; to be used on one thread.

    Args:
        room: bytes that they have together, at most; None: all that is put is held.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.nbytes = 0
        self._held: OrderedDict[_Key, tuple[Held, int, bool]] = OrderedDict()
        self._numbers: defaultdict[str, set[int]] = defaultdict(set)
        self._uses = Counter[str]()
        self._sample = 0

    def use(self, group: str) -> None:
        """Counts one use of a group."""
        self._uses[group] += 1
        self._sample += 1
        if self._sample >= max(LEAST_SAMPLE, SAMPLE * len(self._held)):
            self._sample = 0
            self._uses = Counter({name: n // 2 for name, n in self._uses.items() if n > 1})

    def get(self, group: str, version: int) -> Held | None:
        """A version, if it is held; it is the last that goes then."""
        found = self._held.get((group, version))
        if found is None:
            return None
        self._held.move_to_end((group, version))
        return found[0]

    def holds(self, group: str, version: int) -> bool:
        """Whether a version is held; it goes as soon as it would have."""
        return (group, version) in self._held

    def versions(self, group: str) -> dict[int, Held]:
        """The versions of a group that are held, by number."""
        return {v: self._held[group, v][0] for v in sorted(self._numbers.get(group, ()))}

    def makes_room(self, group: str, version: int, size: int, pinned: bool = False) -> bool:
        """Whether a version of so many bytes is taken in; others go before it is read."""
        victims = self._victims(group, version, size, pinned)
        for each in victims or ():
            self.drop(*each)
        return victims is not None

    def put(self, group: str, version: int, held: Held, size: int, pinned: bool = False) -> bool:
        """Takes a version in, or does not; a pinned one is, and stays until it is dropped."""
        self.drop(group, version)
        if not self.makes_room(group, version, size, pinned):
            return False
        self._held[group, version] = (held, size, pinned)
        self._numbers[group].add(version)
        self.nbytes += size
        return True

    def drop(self, group: str, version: int) -> None:
        """Lets go of a version, if it is held."""
        if (group, version) not in self._held:
            return
        self.nbytes -= self._held.pop((group, version))[1]
        self._numbers[group].discard(version)
        if not self._numbers[group]:
            del self._numbers[group]

    def _victims(self, group: str, version: int, size: int, pinned: bool) -> list[_Key] | None:
        """Those that go for a version, older ones of its group first; None if it is not to come.

        What is pinned counts, and goes for nobody.
        """
        if self.room is None:
            return []
        excess = self.nbytes + size - self.room
        older = [(group, each) for each in sorted(self._numbers.get(group, ())) if each < version]
        others = (key for key in self._held if key not in older)
        found: list[_Key] = []
        for key in itertools.chain(older, others):
            if excess <= 0:
                break
            _, freed, stays = self._held[key]
            if stays:
                continue
            if not (key in older or pinned or self._uses[key[0]] < self._uses[group]):
                return None
            found.append(key)
            excess -= freed
        return found if excess <= 0 or pinned else None
