"""What goes wrong under which plan: a pure function of a seed, and its form on a command line.

kill      the party dies, as by SIGKILL, and is started again
power     the same, and its disk forgets what was not synced
dies      the same at the party's n-th operation on its disk, in the middle of an event
torn      the same, and its disk forgets what was not synced
wiped     the party dies, and comes back with an empty disk
older     the party dies, and comes back with its disk as it was at that event
away      the coordinator dies, comes back with an empty disk, dies again, and has its own back
rots      a file on the shard's disk has other bytes
asks      somebody looks on: the party asks which run this is, and how it stands
stands    an operator pauses the run, and has it go on later
saves     an operator wants a checkpoint
omits     an operator leaves the client out, and takes it back later
pause     the party does nothing for a while, as after SIGSTOP
jump      the party's clock leaps ahead
full      the party's disk refuses every write for a while
part      nothing passes between two parties for a while
lost, unanswered, twice, late     what becomes of one message
rests     a data holder pauses its client, and has it go on later
lowers    a data holder lowers the budget of its client, to that epsilon
quits     a data holder has its client leave
stops     the client's process is told to take part no more, and may be started again
replaced  the key holder, or who came for it, dies for good, and another comes by the next roster
revoked   the client is taken off the roster
comes     a client that was on no roster comes, by the next one
added     a shard that holds nothing takes over its share of the blocks; a spare one comes first
drained   all that a shard holds moves to others
removed   the same, and the shard leaves the run
renewed   the roster expires for everybody, and is signed anew
gone      the coordinator dies for good, and an operator has its standby take over
frozen    the same, and the coordinator's process is stopped for so long, as by SIGSTOP
commanded an operator has the standby take over from a coordinator that is there
spoil     the client shares another key than it seals with, so many times
lie       the key holder answers with a wrong share, so many times
flaws     of the client's envelopes the one for that key holder does not open, so many times
"""

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.up.folder import client_names, holder_names, shard_names

CLIENTS, SHARDS, HOLDERS, THRESHOLD = 5, 2, 3, 2


@dataclass(frozen=True, slots=True)
class Setting:
    """The plan of a seed: `all` is the synchronous rule that waits for every member.

    `privacy` is one of `tests.chaos.plans.PRIVACY`, `codec` one of CODECS there; of every block
    there are so many `replicas`. `frozen`: a part of the model never travels, and nobody has said
    how many examples a client may have. `judge`: one client alone evaluates, and does not train.
    """

    rule: str
    cipher: str
    privacy: str = ""
    evaluated: bool = False
    codec: str = ""
    replicas: int = 1
    frozen: bool = False
    judge: str = ""


SETTINGS = (
    Setting("all", "plain"),
    Setting("all", "rlwe"),
    Setting("all", "plain", "record", True),
    Setting("sync", "plain", "", True),
    Setting("sync", "rlwe", "client"),
    Setting("ssp", "plain"),
    Setting("ssp", "rlwe"),
    Setting("buffered", "plain", "record"),
    Setting("buffered", "rlwe"),
    Setting("priority", "plain", "client"),
    Setting("priority", "rlwe"),
    Setting("own", "plain"),
    Setting("own", "rlwe", "record"),
    Setting("all", "bfv"),
    Setting("sync", "bfv", "client"),
    Setting("buffered", "bfv", codec="spans"),
    Setting("all", "rlwe", codec="thin"),
    Setting("sync", "plain", codec="thin"),
    Setting("sync", "rlwe", "client", codec="noised"),
    Setting("priority", "rlwe", codec="spans"),
    Setting("own", "plain", codec="spans"),
)

MESSAGES = ("lost", "unanswered", "twice", "late")
DEATHS = ("kill", "power", "dies", "torn")
SPOIL, LIE, FLAWS = "spoil", "lie", "flaws"
CHEATS = (SPOIL, LIE, FLAWS)
KINDS = (*DEATHS, "pause", "jump", "full", "part", *MESSAGES, SPOIL, LIE)
WIPED, OLDER, AWAY, ROTS, ASKS = "wiped", "older", "away", "rots", "asks"
LOSSES = (WIPED, OLDER, AWAY)
SELDOM, LOSS = 0.15, 0.3
"""How often somebody looks on, or a bit flips; and how often there is a loss: no run has two, but
two disks may be lost at once."""
TWICE = 0.4
"""How often then two are."""

STANDS, SAVES, OMITS = "stands", "saves", "omits"
ACTS = (STANDS, SAVES, OMITS)
ACTED = 0.4
"""How often an operator acts."""

RESTS, LOWERS, QUITS, STOPS = "rests", "lowers", "quits", "stops"
OWN_ACTS = (RESTS, LOWERS, QUITS, STOPS)
ADDED, DRAINED, REMOVED = "added", "drained", "removed"
MOVES = (ADDED, DRAINED, REMOVED)
MOVED = 0.35
"""How often shards come or go."""
OWN = 0.3
"""How often data holders act on their own clients."""

REPLACED, REVOKED, RENEWED, COMES = "replaced", "revoked", "renewed", "comes"
ROSTERS = (REPLACED, REVOKED, RENEWED, COMES)
NEWCOMER = f"client-{CLIENTS:02}"
CHANGE, SOON = 0.5, 300
"""How often the roster changes, where no disk is lost; events within which it does so again."""

GONE, FROZEN, COMMANDED = "gone", "frozen", "commanded"
TAKEOVERS = (GONE, FROZEN, COMMANDED)
FOLLOWED = 0.4
"""How often there is a standby, where no disk is lost."""

FLAWED, UNHEARD = 0.15, 0.15
"""Where there is a committee: how often an envelope of a client's does not open, and how often a
client is revoked while two key holders are away."""

EVERY = frozenset(
    (*KINDS, FLAWS, *LOSSES, *ROSTERS, *ACTS, *OWN_ACTS, *MOVES, *TAKEOVERS, ROTS, ASKS)
)

EVENTS = 2000
"""Below this most runs have had their last event."""

OPERATIONS = (20, 60, 120, 380)
"""Of its disk, below which a party may die in one; a shard alone has as many as the last."""

SPEECH = {
    "client": (
        (
            *("Join", "Subscribe", "Heartbeat", "Submit", "Telemetry", "Withdraw", "Decline"),
            *("Retire", "Missing"),
        ),
        (
            *("Invite", "Published", "Settled", "Configure", "SendAgain", "Finish"),
            *("SealAgain", "RosterChanged", "SealFor"),
        ),
        ("PutBlock", "GetBlock"),
    ),
    "shard": (
        ("Register", "Subscribe", "Held", "Prepared", "Checkpointed", "Heartbeat", "Missing"),
        (
            *("Configure", "Found", "Hold", "Prepare", "Commit", "WriteCheckpoint", "Finish"),
            *("Discard", "RosterChanged"),
        ),
        ("PutBlock", "GetBlock", "GetSum"),
    ),
    "holder": (
        ("Register", "Subscribe", "Examined", "KeyShare", "Heartbeat", "OpenRefused"),
        ("Configure", "Examine", "Open", "Finish", "EraseKeys", "RosterChanged"),
        (),
    ),
}
"""By role: what it says to the coordinator, hears of it, and says to shards."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Args:
        kind: of KINDS, LOSSES, ROSTERS, ACTS, OWN_ACTS, MOVES or TAKEOVERS, ROTS
            or ASKS.
        who: the party, the first of two, or the sender.
        at: the event of the whole run before which it happens; of `dies` and `torn`: the party's
            operation on its disk; of a message: which of its class on this way; of CHEATS: how
            often; among real processes: seconds after the start.
        seconds: how long it lasts, or until the party is started again; of `older`: until it dies;
            of ROSTERS: until the coordinator has the next roster; of ACTS and `rests`: until it is
            taken back; of `lowers`: the epsilon.
        to: the other party; message: the class of one.
        much: among real processes: how lossy, late, narrow or generous, by its kind.
    """

    kind: str
    who: str
    at: float
    seconds: float = 0.0
    to: str = ""
    message: str = ""
    much: float = 0.0

    def __str__(self) -> str:
        way = f"{self.who}>{self.to}" if self.to else self.who
        what = f":{self.message}" if self.message else ""
        long = f"+{self.seconds:g}" if self.seconds else ""
        much = f"*{self.much:g}" if self.much else ""
        return f"{self.kind}:{way}{what}@{self.at:g}{long}{much}"


_FAULT = re.compile(
    r"(?P<kind>[a-z]+):(?P<who>[a-z0-9-]+)(>(?P<to>[a-z0-9-]+))?(:(?P<message>[A-Za-z]+))?"
    r"@(?P<at>[0-9.]+)(\+(?P<seconds>[0-9.]+))?(\*(?P<much>[0-9.]+))?"
)


def parsed(text: str, kinds: Collection[str] = EVERY) -> tuple[Fault, ...]:
    """The faults of a command line, with commas between them; ValueError if it has none such."""
    return tuple(_parsed(part, kinds) for part in text.split(",") if part)


def _parsed(text: str, kinds: Collection[str]) -> Fault:
    found = _FAULT.fullmatch(text.strip())
    if found is None or found["kind"] not in kinds:
        raise ValueError(f"not a fault: {text!r}")
    known = found.groupdict(default="")
    at, seconds, much = (float(known[key] or 0) for key in ("at", "seconds", "much"))
    return Fault(known["kind"], known["who"], at, seconds, known["to"], known["message"], much)


def setting_of(seed: int) -> Setting:
    """The plan of a seed: all of them take turns."""
    setting, turn = SETTINGS[seed % len(SETTINGS)], seed // len(SETTINGS)
    if turn % 3 == 2:
        setting = replace(setting, replicas=2)
    match turn % 12:
        case 4:
            return replace(setting, frozen=True)
        case 7 if setting.rule in ("all", "sync") and not (setting.codec or setting.privacy):
            return replace(setting, evaluated=True, judge=client_names(CLIENTS)[-1])
        case 8 | 9 if setting.cipher != "rlwe" and setting.rule != "all" and not setting.codec:
            return replace(setting, privacy="shards")
    return setting


def holders_of(setting: Setting) -> tuple[str, ...]:
    return holder_names({"rlwe": HOLDERS, "bfv": 1}.get(setting.cipher, 0))


def parties_of(setting: Setting) -> tuple[str, ...]:
    return (COORDINATOR, *shard_names(SHARDS), *holders_of(setting), *client_names(CLIENTS))


def faults_of(seed: int) -> tuple[Fault, ...]:
    """One to eight faults; now and then two parties die at the same event."""
    setting, rng = setting_of(seed), random.Random(f"chaos/{seed}")
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 8)):
        kind = rng.choice(DEATHS) if rng.random() < 0.35 else rng.choice(KINDS)
        faults += _drawn(rng, kind, setting)
    lost = rng.random() < LOSS
    if lost:
        faults += _lost(rng, parties_of(setting))
    if rng.random() < SELDOM:
        faults.append(Fault(ASKS, rng.choice(client_names(CLIENTS)), rng.randrange(1, EVENTS)))
    if rng.random() < SELDOM:
        faults.append(Fault(ROTS, rng.choice(shard_names(SHARDS)), rng.randrange(1, EVENTS)))
    if not lost and rng.random() < CHANGE:
        faults += _changed(rng, setting)
    if rng.random() < ACTED:
        faults += [_act(rng) for _ in range(rng.randint(1, 3))]
    if not lost:
        faults += _followed(random.Random(f"chaos-standby/{seed}"), setting)
    faults += _own(random.Random(f"chaos-own/{seed}"), setting, lost)
    if setting.cipher == "rlwe":
        faults += _opened(random.Random(f"chaos-opening/{seed}"), setting, lost)
    return (*faults, *_moved(random.Random(f"chaos-shards/{seed}")))


def _act(rng: random.Random) -> Fault:
    kind, at = rng.choice(ACTS), rng.randrange(1, EVENTS)
    who = rng.choice(client_names(CLIENTS)) if kind == OMITS else COORDINATOR
    return Fault(kind, who, at, round(rng.uniform(1.0, 60.0), 1))


def _moved(rng: random.Random) -> Sequence[Fault]:
    """A shard comes, or one goes; then others, and the first may come again."""
    found: list[Fault] = []
    if rng.random() >= MOVED:
        return found
    at, names = rng.randrange(1, EVENTS), shard_names(SHARDS + 1)
    for number in range(rng.randint(1, 3)):
        kind = ADDED if number == 0 and rng.random() < 0.7 else rng.choice(MOVES)
        who = names[-1] if kind == ADDED and number == 0 else rng.choice(names)
        if kind == REMOVED and rng.random() < 0.3:  # while it is away
            found.append(Fault("kill", who, at, round(rng.uniform(1.0, 40.0), 1)))
        found.append(Fault(kind, who, at))
        at += rng.randrange(2 * SOON)
    return found


def _own(rng: random.Random, setting: Setting, lost: bool) -> Sequence[Fault]:
    """Data holders act on their clients; where no disk is lost, another client comes, too."""
    found: list[Fault] = []
    for _ in range(rng.randint(1, 3) if rng.random() < OWN else 0):
        kinds = (RESTS,) * (9 if setting.rule == "all" else 1) + OWN_ACTS  # few can spare anybody
        kind, who = rng.choice(kinds), rng.choice(client_names(CLIENTS))
        seconds = {RESTS: rng.uniform(1.0, 60.0), LOWERS: rng.uniform(0.01, 2.0)}.get(kind, 0.0)
        found.append(Fault(kind, who, rng.randrange(1, EVENTS), round(seconds, 2)))
    if not lost and setting.rule != "all" and rng.random() < OWN:
        seconds = round(rng.uniform(0.1, 8.0), 1)
        found.append(Fault(COMES, NEWCOMER, rng.randrange(1, EVENTS), seconds))
    return found


def _opened(rng: random.Random, setting: Setting, lost: bool) -> Sequence[Fault]:
    """What may have a holder of a committee refuse to open a cohort."""
    found: list[Fault] = []
    client, holder = rng.choice(client_names(CLIENTS)), rng.choice(holders_of(setting))
    if rng.random() < FLAWED:
        found.append(Fault(FLAWS, client, rng.randint(1, 2), to=holder))
    if not lost and setting.rule != "all" and rng.random() < UNHEARD:
        at, seconds = rng.randrange(1, EVENTS), round(rng.uniform(0.1, 8.0), 1)
        long = round(rng.uniform(10.0, 40.0), 1)
        away = (each for each in holders_of(setting) if each != holder)
        found += [Fault("part", each, at, long, COORDINATOR) for each in away]
        found.append(Fault(REVOKED, client, at, seconds))
    return found


def _followed(rng: random.Random, setting: Setting) -> Sequence[Fault]:
    """Now and then the coordinator has a standby that takes over, and may be away before that."""
    found: list[Fault] = []
    if rng.random() >= FOLLOWED:
        return found
    before, at = rng.randrange(1, EVENTS), rng.randrange(1, EVENTS)
    short, long = round(rng.uniform(0.1, 8.0), 1), round(rng.uniform(1.0, 40.0), 1)
    if rng.random() < 0.3:
        found.append(Fault(rng.choice(("kill", "power", WIPED)), STANDBY, before, short))
    if rng.random() < 0.3:
        found.append(Fault("part", COORDINATOR, before, long, STANDBY))
    if rng.random() < 0.3:
        found.append(Fault("part", STANDBY, at, long, rng.choice(parties_of(setting)[1:])))
    kind = rng.choice((*TAKEOVERS, GONE))
    found.append(Fault(kind, COORDINATOR, at, long if kind == FROZEN else 0.0))
    if kind != GONE and rng.random() < 0.4:  # both live, and neither hears the other
        found.append(Fault("part", COORDINATOR, at, long, STANDBY))
    return found


def _drawn(rng: random.Random, kind: str, setting: Setting) -> Sequence[Fault]:
    parties = parties_of(setting)
    who, at = rng.choice(parties), rng.randrange(1, EVENTS)
    short, long = round(rng.uniform(0.1, 8.0), 1), round(rng.uniform(1.0, 40.0), 1)
    match kind:
        case "kill" | "power":
            both = rng.sample(parties, 2) if rng.random() < 0.3 else [who]
            return [Fault(kind, each, at, short) for each in both]
        case "dies" | "torn":
            return [Fault(kind, who, rng.randrange(1, rng.choice(OPERATIONS)), short)]
        case "pause" | "full":
            return [Fault(kind, who, at, long)]
        case "jump":
            return [Fault(kind, who, at, round(rng.uniform(1.0, 300.0), 1))]
        case "part":
            servers = parties[: 1 + SHARDS]
            other = rng.choice([party for party in servers if party != who])
            return [Fault(kind, who, at, long, other)]
        case "spoil" if setting.cipher == "rlwe":
            return [Fault(kind, rng.choice(client_names(CLIENTS)), rng.randint(1, 2))]
        case "lie" if setting.cipher == "rlwe":
            return [Fault(kind, rng.choice(holders_of(setting)), rng.randint(1, 2))]
    return [_message(rng, kind if kind in MESSAGES else "late", rng.choice(parties[1:]))]


def _lost(rng: random.Random, parties: Sequence[str]) -> Sequence[Fault]:
    kind, at = rng.choice((WIPED, *LOSSES)), rng.randrange(1, EVENTS)
    seconds = round(rng.uniform(0.1, 8.0), 1)
    if kind == AWAY:
        return [Fault(kind, COORDINATOR, at, seconds)]
    whose = rng.sample(parties, 2 if kind == WIPED and rng.random() < TWICE else 1)
    if rng.random() < SELDOM:
        whose[0] = COORDINATOR
    return [Fault(kind, who, at, seconds) for who in dict.fromkeys(whose)]


def _changed(rng: random.Random, setting: Setting) -> Sequence[Fault]:
    """The roster changes, now and then twice, and while one party cannot hear of it."""
    at, seconds = rng.randrange(1, EVENTS), round(rng.uniform(0.1, 8.0), 1)
    kinds = [RENEWED, *[REVOKED] * (setting.rule != "all")]
    kinds += [REPLACED] * 4 * (setting.cipher == "rlwe")
    kind, party = rng.choice(kinds), rng.choice(parties_of(setting)[1:])
    found = []
    if rng.random() < 0.5:
        found.append(Fault("part", party, at, round(rng.uniform(1.0, 40.0), 1), COORDINATOR))
    for _ in range(1 + (rng.random() < TWICE)):
        if kind == REPLACED:
            found.append(Fault(kind, rng.choice(holders_of(setting)), at, seconds))
        at += rng.randrange(SOON)
    if kind == REVOKED:
        found.append(Fault(kind, rng.choice(client_names(CLIENTS)), at, seconds))
    elif kind == RENEWED:
        found.append(Fault(kind, COORDINATOR, at, seconds))
    return found


def _message(rng: random.Random, kind: str, who: str) -> Fault:
    said, heard, given = SPEECH[who.rpartition("-")[0]]
    way = rng.randrange(3 if given else 2)
    count, seconds = rng.randint(1, 8), round(rng.uniform(0.1, 9.0), 1)
    if way == 1:
        return Fault(kind, COORDINATOR, count, seconds, who, rng.choice(heard))
    to = COORDINATOR if way == 0 else rng.choice(shard_names(SHARDS))
    return Fault(kind, who, count, seconds, to, rng.choice(said if way == 0 else given))
