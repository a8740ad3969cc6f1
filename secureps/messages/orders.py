"""What the coordinator says on the streams that parties watch.

Every order carries the coordinator's incarnation; a lower one than was seen is refused.
Orders may be lost or repeated: all are idempotent, and a party that subscribes again is
told again what still concerns it.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.run import Placement, RunInfo, ShardAddress
from secureps.messages.submission import Cohort, Held, Receipt, SubmissionId

MESSAGE_LIMIT = 20 << 20
"""Bytes: no order, and no other message, is longer when it is encoded."""


class Task:
    """Something long or with I/O that a party's machine hands to its worker.

    An order that says all that there is to do is the task itself.
    """

    __slots__ = ()


# --- to shards and holders --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configure:
    """The run is founded, and its shards are here; sent again whenever one has moved.

    While blocks move, shards get ready for the `coming` placement, and go by `placement`.
    """

    incarnation: int
    run: RunInfo
    placement: Placement
    shards: tuple[ShardAddress, ...]
    coming: Placement | None = None


@dataclass(frozen=True, slots=True)
class RosterChanged:
    """The CA's newest roster, as its file has it, for everybody."""

    incarnation: int
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """Make version 0 of a group from a founding submission, or (no receipt) from the file."""

    incarnation: int
    group: str
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class MemberBlocks:
    """The digests of one member's blocks that a shard should hold, ascending by block."""

    id: SubmissionId
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Step 2: verify and sum a cohort; answer Held or Missing."""

    incarnation: int
    cohort: Cohort
    members: tuple[MemberBlocks, ...]


@dataclass(frozen=True, slots=True)
class Examine(Task):
    """Asks a committee's holder whether its envelope of this submission opens, and fits."""

    incarnation: int
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class EraseKeys(Task):
    """Tells a committee's holder that nothing openable is sealed for its keys `below`."""

    incarnation: int
    below: int


@dataclass(frozen=True, slots=True)
class Open(Task):
    """Step 3, to a holder: every shard holds; open this cohort.

    Receipts are `rooted`, and `held` is empty for the holders of a committee, which see no sums:
    what they are told is as long for every model.
    """

    incarnation: int
    cohort: Cohort
    receipts: tuple[Receipt, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Step 4: average and step.

    `opened` are digests of the opened sums of this shard's blocks, `key` is the sum of the members'
    one-time keys (int32 little-endian): one or the other, or nothing where sums lie in the clear.
    """

    incarnation: int
    cohort: Cohort
    opened: tuple[bytes, ...]
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Step 5: a version is committed; states older than version `keep` may be deleted.

    An order with the digests of the shard's own blocks and of its state file is a repetition: from
    them a shard that lost its journal knows its part of a checkpoint again. Without a file's digest
    these blocks are the shard's by the coming placement, for which it makes a file of them.
    """

    incarnation: int
    group: str
    version: int
    keep: int
    blocks: tuple[bytes, ...] = ()
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupVersion:
    """One coordinate of a vector of versions."""

    group: str
    version: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Task):
    """Write this shard's file of a checkpoint, and delete those of others that are not `kept`.

    Where `kept` names none, nothing is deleted.
    """

    incarnation: int
    number: int
    versions: tuple[GroupVersion, ...]
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Discard:
    """These submissions are settled; their spooled blocks may be deleted."""

    incarnation: int
    ids: tuple[SubmissionId, ...]


# --- to clients -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyCommittee:
    """The key holders that updates are sealed for, from these base versions on.

    Args:
        committee: their digest, 32 bytes, as the roster has it (`Roster.committee`).
        holders: their names, ascending; keys: what is sealed under for each of them.
        since: by group, the first base version; none named: from the beginning.
    """

    committee: bytes
    holders: tuple[str, ...]
    keys: tuple[bytes, ...]
    since: tuple[GroupVersion, ...] = ()

    def begins(self, group: str) -> int:
        """The first base version of a group that is sealed for it."""
        return next((at.version for at in self.since if at.group == group), 0)


@dataclass(frozen=True, slots=True)
class SealFor:
    """Seal for these key holders, under the newest keys that they announced.

    It is said before the first version that is sealed for them, and when one has a newer key.
    """

    incarnation: int
    committee: KeyCommittee
    announced: tuple[EnvelopeKeyAnnounced, ...] = ()


@dataclass(frozen=True, slots=True)
class Invite:
    """Train from this base version; version -1 asks for the founding model.

    `seconds` is how long the round stays open from now, by which local work follows the deadline
    under `[scaling]` and is information else. `evaluates` is the
    version of the model that is to be evaluated: of the metrics' group by this invitation, of
    any other by one that comes besides, before the training; 0 if there is none. Under a rule
    without rounds a newer version than this may be trained from, and `step` is which of the
    client's updates of this version it would be.
    """

    incarnation: int
    group: str
    round: int
    version: int
    seconds: float
    evaluates: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A version is committed; pull the blocks whose digests changed."""

    incarnation: int
    group: str
    version: int
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The fate of a submission, an `Outcome` as a string, and why.

    `burnt`: it was in a burnt cohort. Where a committee opens, it may be asked for once more
    (`SealAgain`); elsewhere nobody can tell whose payload was at fault, so it is made anew.
    """

    incarnation: int
    id: SubmissionId
    outcome: str
    version: int
    reason: str
    burnt: bool = False


@dataclass(frozen=True, slots=True)
class SendAgain:
    """A shard lacks blocks of a submission: send it again from the outbox."""

    incarnation: int
    id: SubmissionId


@dataclass(frozen=True, slots=True)
class SealAgain:
    """A cohort with this submission was burnt: seal the same update anew, and send that.

    The new submission takes a sequence and a key of its own; `update` names the update. A client
    that no longer has its integers declines the round of the `invite`: another update never leaves
    for that base.
    """

    incarnation: int
    id: SubmissionId
    update: bytes
    invite: Invite


TO_GO_ON = "; start the coordinator again to go on"
"""How words about a run that failed end: nothing else has it open another round."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over; `failure` is that of `Ending`."""

    incarnation: int
    reason: str
    failure: str | None = None


# --- mailboxes --------------------------------------------------------------------

ShardOrder = Configure | RosterChanged | Found | Hold | Prepare | Commit | WriteCheckpoint | Discard
HolderOrder = Configure | RosterChanged | Examine | Open | EraseKeys
ClientOrder = (Configure | RosterChanged | SealFor | Invite | Published) | (
    Settled | SendAgain | SealAgain
)
AnyOrder = ShardOrder | HolderOrder | ClientOrder | Finish
"""All may be told that the run is over; what else, by whom."""
