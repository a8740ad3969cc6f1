"""The coordinator's orders, on streams that parties subscribe to.

Every order has the coordinator's incarnation; a party refuses one below the highest it has seen.
All orders are idempotent, because they may be lost or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.run import GroupVersion, Placement, RunInfo, ShardAddress, Task
from secureps.messages.submission import Cohort, Held, Receipt, SubmissionId

MESSAGE_LIMIT = 20 << 20
"""The most bytes of any encoded message."""


# --- to shards and holders --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configure:
    """The run is founded, and has these shards; sent again whenever one has moved.

    While blocks move, shards prepare for the `coming` placement and act by `placement`.
    """

    incarnation: int
    run: RunInfo
    placement: Placement
    shards: tuple[ShardAddress, ...]
    coming: Placement | None = None


@dataclass(frozen=True, slots=True)
class RosterChanged:
    """The CA's newest roster, as in its file, for all parties."""

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
    """Asks a committee's holder whether its envelope of this submission opens and fits."""

    incarnation: int
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class EraseKeys(Task):
    """Tells a committee's holder to erase its keys `below`: no open submission needs them."""

    incarnation: int
    below: int


@dataclass(frozen=True, slots=True)
class Open(Task):
    """Step 3, to a holder: all shards hold; open this cohort.

    A committee's holders get no sums: `held` is empty and receipts are shortened (`shorten`), so
    that the order is as long for any model.
    """

    incarnation: int
    cohort: Cohort
    receipts: tuple[Receipt, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Step 4: average and step.

    `opened` are digests of the opened sums of this shard's blocks. `key` is the sum of the members'
    one-time keys (int32 little-endian). It is one or the other, or neither if sums are in the
    clear.
    """

    incarnation: int
    cohort: Cohort
    opened: tuple[bytes, ...]
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Step 5: a version is committed; states older than version `keep` may be deleted.

    A repeated order has the digests of the shard's blocks and of its state file, from which a shard
    that lost its journal recognizes its part of a checkpoint. Without the file's digest the blocks
    are the shard's by the coming placement, and it writes a file of them.
    """

    incarnation: int
    group: str
    version: int
    keep: int
    blocks: tuple[bytes, ...] = ()
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Task):
    """Write this shard's file of a checkpoint, and delete those of checkpoints not `kept`.

    If `kept` is empty, nothing is deleted.
    """

    incarnation: int
    number: int
    versions: tuple[GroupVersion, ...]
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Discard:
    """These submissions are settled; the shard may delete their blocks."""

    incarnation: int
    ids: tuple[SubmissionId, ...]


# --- to clients -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyCommittee:
    """The key holders for which updates with certain base versions are sealed.

    Args:
        committee: their digest, 32 bytes (`Roster.committee`).
        holders: their names, ascending.
        keys: the public key of each.
        since: by group, the first base version; empty: from the beginning.
    """

    committee: bytes
    holders: tuple[str, ...]
    keys: tuple[bytes, ...]
    since: tuple[GroupVersion, ...] = ()

    def begins(self, group: str) -> int:
        return next((at.version for at in self.since if at.group == group), 0)


@dataclass(frozen=True, slots=True)
class SealFor:
    """Seal for these key holders, under the newest keys that they announced.

    It is sent before the first version that is sealed for them, and when a holder has a newer key.
    """

    incarnation: int
    committee: KeyCommittee
    announced: tuple[EnvelopeKeyAnnounced, ...] = ()


@dataclass(frozen=True, slots=True)
class Invite:
    """Train from this base version; version -1 asks for the founding model.

    `seconds` is how long the round stays open from now; under `[scaling]` local work follows it.
    `evaluates` is a version of the model to be evaluated (0: none): by this invitation for the
    metrics' group, otherwise by another invitation before the training. Without rounds a newer
    version may be trained from, and `step` is the number of the update among the client's updates
    of this version.
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

    `burnt`: it was in a burnt cohort. A committee may ask for it again (`SealAgain`). Elsewhere
    nobody can tell whose payload was at fault, so the client trains again.
    """

    incarnation: int
    id: SubmissionId
    outcome: str
    version: int
    reason: str
    burnt: bool = False


@dataclass(frozen=True, slots=True)
class SendAgain:
    """A shard lacks blocks of a submission; send them again from the outbox."""

    incarnation: int
    id: SubmissionId


@dataclass(frozen=True, slots=True)
class SealAgain:
    """A cohort with this submission was burnt; seal the same update again and send it.

    The new submission has its own sequence and key; `update` names the update. A client that no
    longer has its integers declines the round of the `invite`, because no other update may leave
    for that base.
    """

    incarnation: int
    id: SubmissionId
    update: bytes
    invite: Invite


TO_GO_ON = "; start the coordinator again to go on"
"""Ends texts about a failed run, in which only a restart opens another round."""

COME_BACK = "; once the coordinator has been started again, start this client again"
"""Ends what a client says of a failed run. A machine that slept may hear of the failure after that
restart, and its client ends all the same."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over; `failure` as in `Ending`."""

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
"""Every party may get `Finish`, and the orders of its role."""
