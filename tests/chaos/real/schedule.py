"""What goes wrong with real processes under which plan: a function of a seed, and its text.

kill      SIGKILL, and a start after so many seconds
stop      SIGSTOP, and SIGCONT after so many seconds
part      nothing passes between two parties
oneway    nothing passes from the first party to the second
loss      of the party's packets this part is lost, both ways
delay     the party's packets take so many seconds longer, both ways
narrow    the party's packets pass at so many bytes a second, each way
full      the party's disk, a small one of its own, has no byte left
files     the party may open no more files than it has open, and this many
memory    the party may have no more memory than it has, and this many MiB
renewed   the party's TLS certificate is signed anew, and the roster for longer
wiped     SIGKILL, and a start with an empty state folder
older     SIGKILL, and a start with the state folder as it was so many seconds before
gone      SIGKILL of the coordinator for good, once its standby follows, which is told to take over
frozen    the same with SIGSTOP, and SIGCONT so many seconds after the standby took over
commanded an operator has the standby take over, as soon as it follows
added     an operator has blocks move to the shard, which may be new on the roster
drained   an operator has all its blocks move to others
removed   the same, and it leaves the run
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.up.folder import client_names, holder_names, shard_names
from tests.chaos import schedule
from tests.chaos.schedule import ADDED, DRAINED, FROZEN, GONE, MOVES, REMOVED, TAKEOVERS, Fault

CLIENTS, SHARDS, HOLDERS, VERSIONS = 3, 2, 3, 6
EVENTFUL = 6.0
"""Seconds from the start within which faults begin: as long as an undisturbed run takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The plan of a seed: `all` waits for all members; `private`: clients hide their updates."""

    rule: str
    cipher: str
    private: bool = False


SETTINGS = (
    Setting("all", "plain"),
    Setting("all", "rlwe"),
    Setting("sync", "plain", private=True),
    Setting("all", "plain", private=True),
    Setting("buffered", "rlwe"),
    Setting("all", "rlwe", private=True),
    Setting("sync", "rlwe"),
    Setting("buffered", "plain"),
)

ONE_WAY = ("part", "oneway")
LINKS = {"loss": (0.02, 0.25), "delay": (0.02, 0.4), "narrow": (4000.0, 60000.0)}
LOSSES = ("wiped", "older")
MOST_FILES = 3

MOST_MEMORY = 12
"""MiB: a thread takes 8."""

KINDS = (
    *("kill", "kill", "kill", "stop", "stop", *ONE_WAY, *LINKS),
    *("full", "full", "files", "memory", "renewed"),
)

FOLLOWED = 0.5
"""How often there is a standby, where no disk is lost."""

MOVED = 0.5
"""How often shards come or go, where no disk is lost: blocks that moved may lie on one alone."""

SPARE = shard_names(SHARDS + 1)[-1]
"""The shard that is on no roster at first."""

EVERY = frozenset((*KINDS, *LOSSES, *TAKEOVERS, *MOVES))

parsed = partial(schedule.parsed, kinds=EVERY)
"""The faults of a command line, with commas between them; ValueError if it has none such."""


def setting_of(seed: int) -> Setting:
    """The plan of a seed: all of them take turns."""
    return SETTINGS[seed % len(SETTINGS)]


def parties_of(setting: Setting) -> tuple[str, ...]:
    holders = holder_names(HOLDERS if setting.cipher == "rlwe" else 0)
    return (COORDINATOR, *shard_names(SHARDS), *holders, *client_names(CLIENTS))


def others_of(faults: Sequence[Fault]) -> tuple[str, ...]:
    """Who takes part besides, in a run of these faults: a standby, and a shard that comes later."""
    named = {name for fault in faults for name in (fault.who, fault.to)}
    followed = STANDBY in named or any(fault.kind in TAKEOVERS for fault in faults)
    return (*[STANDBY] * followed, *[SPARE] * (SPARE in named))


def faults_of(seed: int) -> tuple[Fault, ...]:
    """Two to eight faults; in every third run a disk is lost, or goes back.

    Elsewhere the coordinator may have a standby that takes over, and shards may come and go.
    """
    setting, rng = setting_of(seed), random.Random(f"real chaos/{seed}")
    parties, faults = parties_of(setting), list[Fault]()
    for _ in range(rng.randint(2, 8)):
        faults.append(_drawn(rng, rng.choice(KINDS), parties))
    if rng.random() < 0.33:
        kind, who = rng.choice(LOSSES), rng.choice(parties)
        faults.append(Fault(kind, who, round(rng.uniform(1.0, EVENTFUL), 1), _long(rng, 3.0)))
    else:
        faults += _followed(random.Random(f"real chaos of standbys/{seed}"), parties)
        faults += _moved(random.Random(f"real chaos of shards/{seed}"))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _followed(rng: random.Random, parties: tuple[str, ...]) -> Sequence[Fault]:
    """Now and then the coordinator has a standby that takes over, and may be away before that."""
    found: list[Fault] = []
    if rng.random() >= FOLLOWED:
        return found
    before, at = (round(rng.uniform(0.0, EVENTFUL), 1) for _ in range(2))
    if rng.random() < 0.3:
        found.append(Fault(rng.choice(("kill", "stop")), STANDBY, before, _long(rng, 6.0)))
    if rng.random() < 0.3:
        found.append(Fault("part", COORDINATOR, before, _long(rng, 8.0), STANDBY))
    if rng.random() < 0.3:
        found.append(Fault("part", rng.choice(parties[1:]), at, _long(rng, 8.0), STANDBY))
    kind, seconds = rng.choice((*TAKEOVERS, FROZEN)), _long(rng, 6.0)
    found.append(Fault(kind, COORDINATOR, at, seconds if kind == FROZEN else 0.0))
    if kind != GONE and rng.random() < 0.5:  # both live, and one or neither hears the other
        way = (COORDINATOR, STANDBY) if rng.random() < 0.5 else (STANDBY, COORDINATOR)
        found.append(Fault(rng.choice(ONE_WAY), way[0], at, _long(rng, 8.0), way[1]))
    return found


def _moved(rng: random.Random) -> Sequence[Fault]:
    """A shard comes, or one goes, then others; somebody is dead, or stands still, over a move."""
    found: list[Fault] = []
    if rng.random() >= MOVED:
        return found
    at, here, gone = round(rng.uniform(0.0, EVENTFUL / 2), 1), [*shard_names(SHARDS)], [SPARE]
    for _ in range(rng.randint(1, 3)):
        comes = bool(gone) and (rng.random() < 0.6 or len(here) == 1)
        kind = ADDED if comes else rng.choice((DRAINED, REMOVED))
        before, after = (gone, here) if comes else (here, gone)
        after.append(who := before.pop(rng.randrange(len(before))))
        found.append(Fault(kind, who, at, 0.0))
        if rng.random() < 0.4:
            harm, whose = rng.choice(("kill", "stop")), rng.choice((who, COORDINATOR, *here))
            found.append(Fault(harm, whose, round(at + rng.uniform(0.0, 2.0), 1), _long(rng, 6.0)))
        at = round(at + rng.uniform(0.0, 2.0), 1)
    return found


def _long(rng: random.Random, most: float) -> float:
    return round(rng.uniform(0.1, most), 1)


def _drawn(rng: random.Random, kind: str, parties: tuple[str, ...]) -> Fault:
    who, at, seconds = rng.choice(parties), round(rng.uniform(0.0, EVENTFUL), 1), _long(rng, 6.0)
    if kind in ONE_WAY:
        servers = parties[: 1 + SHARDS]
        other = rng.choice([party for party in servers if party != who])
        way = (who, other) if rng.random() < 0.5 else (other, who)
        return Fault(kind, way[0], at, seconds, way[1])
    if kind in LINKS:
        return Fault(kind, who, at, seconds, much=float(f"{rng.uniform(*LINKS[kind]):.2g}"))
    if kind == "files":
        return Fault(kind, who, at, seconds, much=rng.randint(0, MOST_FILES))
    if kind == "memory":
        return Fault(kind, who, at, _long(rng, 2.0), much=rng.randint(0, MOST_MEMORY))
    return Fault(kind, who, at, min(seconds, 3.0) if kind == "kill" else seconds)
