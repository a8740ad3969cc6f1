"""Requests to the coordinator and to shards, and their answers.

All parties dial the coordinator; clients and a bfv holder also dial shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from secureps.messages.acts import Act
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated, EvaluationStatus
from secureps.messages.run import GroupVersion, Placement, RunInfo, Schema, ShardAddress, Task
from secureps.messages.scaling import ScalingStatus
from secureps.messages.submission import (
    BlockHeader,
    Cohort,
    CohortName,
    Held,
    Receipt,
    SubmissionId,
)

if TYPE_CHECKING:
    Octets = bytes | memoryview
else:  # decoding returns bytes
    Octets = bytes

BALANCE: Final = "balance"
"""`Move.what` of blocks that move from a shard with much work to one with less."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Share of the model at a shard: blocks, and bytes of their values as float32."""

    shard: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks that are moving because a shard comes or goes.

    Args:
        what: the `ShardDeed`, or BALANCE; empty: copies lost with a shard are made again.
        shard: that comes or goes, if any.
        moved, blocks: copies of blocks that are complete at their new shard, and that move in all.
        moved_bytes, bytes: of the values of both, as float32.
        reason: what the move waits for now; empty: for the copying alone.
    """

    what: str
    shard: str
    moved: int
    blocks: int
    moved_bytes: int
    bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CohortSteps:
    """When the steps of one cohort were done, in seconds of the run's clock; None: not yet.

    Args:
        version: that the cohort makes.
        members: number of its clients.
        began: its round opened, or the version before was committed.
        ended, why: "burnt", "spoilt" or "reopened" if it made no version, and the reason.
    """

    group: str
    number: int
    version: int
    members: int
    began: float
    closed: float
    held: float | None = None
    opened: float | None = None
    prepared: float | None = None
    committed: float | None = None
    ended: str = ""
    why: str = ""


# --- to the coordinator -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A shard or key holder has started; `seen` is the highest incarnation that it obeyed.

    `run` is its own, empty before the first. `reached` are a shard's committed versions, or the
    newest cohorts that a holder opened. `held` are the newest cohorts of which a shard has sums.
    `epoch` is its newest placement's, which is not in force while it is `coming`. `unsafe`: its
    noise comes from a seed that everybody may know.
    """

    party: str
    advertise: str
    weight: float
    seen: int
    run: bytes = b""
    reached: tuple[GroupVersion, ...] = ()
    unsafe: bool = False
    held: tuple[CohortName, ...] = ()
    epoch: int = 0
    coming: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """A client wants to take part with a model of this schema.

    `groups` are those that it contributes to, if its data touches few row-blocks of a sparse group;
    empty for all. `run` is the one that it takes part in already; empty for a new client.
    """

    client: str
    schema: Schema
    groups: tuple[str, ...] = ()
    run: bytes = b""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A server reports what is wrong with it, such as a full disk; empty when all is well."""

    party: str
    reason: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Opens the stream of orders; `epoch` and `expires` are those of the party's roster.

    `unsettled` are submissions whose fate the party does not know: a client's own, or those of
    which a shard has blocks.
    """

    party: str
    unsettled: tuple[SubmissionId, ...]
    epoch: int = 0
    expires: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Renews the lease of a client."""

    party: str


@dataclass(frozen=True, slots=True)
class Submit:
    """A submission is complete on its shards."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Decline:
    """A client takes no part in a round (an evaluator: in a version), and says why.

    `version` and `step` are the base from which it sends nothing; without rounds they identify the
    declined invitation.
    """

    party: str
    group: str
    round: int
    reason: str
    version: int = -1
    step: int = 0


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A submission to a group without rounds was refused on its way and will not arrive.

    `version` and `step` are its base's. Its client is to be asked again.
    """

    party: str
    id: SubmissionId
    version: int
    step: int
    reason: str

    @property
    def group(self) -> str:
        return self.id.group


FAILED = "failed: "
"""Begins the reason to retire that a client's supervisor gives because the process failed."""


@dataclass(frozen=True, slots=True)
class Retire:
    """A client leaves for good, or rests if it `returns`; joining again revokes that."""

    client: str
    reason: str = ""
    returns: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """A party lacks something that it should work on or send: one of the cases below."""

    party: str
    group: str
    cohort: int
    ids: tuple[SubmissionId, ...]
    epoch: int = 0

    @classmethod
    def of_cohort(cls, shard: str, cohort: Cohort, ids: tuple[SubmissionId, ...]) -> Missing:
        """A shard lacks blocks of these members, and of an opened cohort also the opened sums."""
        return cls(shard, cohort.group, cohort.number, ids)

    @classmethod
    def of_founding(cls, shard: str, group: str, ids: tuple[SubmissionId, ...]) -> Missing:
        return cls(shard, group, -1, ids)

    @classmethod
    def of_placement(cls, shard: str, group: str, epoch: int) -> Missing:
        """A shard lacks acknowledged updates of blocks that it gains by this epoch's placement."""
        return cls(shard, group, -1, (), epoch)

    @classmethod
    def of_outbox(cls, client: str, id: SubmissionId) -> Missing:
        """A client lacks its own submission, which it was asked to send again."""
        return cls(client, id.group, -1, (id,))


@dataclass(frozen=True, slots=True)
class Opened:
    """A holder opened a cohort; digests of the opened sums of every block of the group.

    `about` is the `opening_digest` of what it was asked to open, here and below.
    """

    holder: str
    group: str
    cohort: int
    sums: tuple[bytes, ...]
    about: bytes


@dataclass(frozen=True, slots=True)
class Examined:
    """A holder checked its envelope of a submission; `flaw` is what is wrong, empty for nothing.

    `about` is the `digest` of the receipt that the holder was shown.
    """

    holder: str
    id: SubmissionId
    flaw: str
    about: bytes

    @property
    def group(self) -> str:
        return self.id.group


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A holder's share of the sum of a cohort's one-time keys: uint32, little-endian."""

    holder: str
    group: str
    cohort: int
    share: bytes = field(repr=False)
    about: bytes


@dataclass(frozen=True, slots=True)
class OpenRefused:
    """A holder will never open this cohort, and says why."""

    holder: str
    group: str
    cohort: int
    reason: str
    about: bytes


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A shard has no usable sum: a member sent a bad block, or the sum is lost.

    `key` is the digest of the sum of keys that does not open its sums, if that is the reason.
    """

    shard: str
    group: str
    cohort: int
    reason: str
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Step 4: a shard's blocks of a new version are durable; digests of them and of its file.

    `scale` comes from the shard with the group's last block, under adaptive clipping. `total` is
    the opened total of a sum group, if the coordinator needs it. `cohort` made the version; -1 for
    version 0 and for a version from a checkpoint. `epoch` is 0, unless the version is committed
    already and these are the shard's blocks by the coming placement of this epoch. `squares` are
    the squared norms of the blocks' opened sums, if the plan bounds them (`policy.longest`).
    """

    shard: str
    group: str
    version: int
    blocks: tuple[bytes, ...]
    state: bytes
    scale: float | None = None
    total: tuple[float, ...] = ()
    epoch: int = 0
    cohort: int = -1
    squares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A shard's file of a checkpoint is durable."""

    shard: str
    number: int
    file: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Figure:
    """One named number."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Seconds and bytes that a party spent or waited for a version; no data.

    `step` is the number of the update among its updates of the version before (`Receipt.step`).
    """

    party: str
    group: str
    version: int
    figures: tuple[Figure, ...]
    step: int = 0


WAITED, ARRIVED = "waited_seconds", "arrived"
"""A client's figures: seconds since the round opened, and 1 if its update arrived, else 0."""

UP = "bytes_up"
"""Bytes of a client's update that the coordinator accepted."""

PUBLISHED = "published_seconds"
"""When the coordinator published a version, in seconds of the run's clock."""

SPENT = "epsilon"
"""The largest epsilon of all members when the version was published."""

CLIP = "clip"
"""The clip for clients that train from the version, if it is adaptive."""


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks for the run's status; allowed for every party."""


@dataclass(frozen=True, slots=True)
class AskRun:
    """Asks which run this is; allowed for every party, answered by Welcome."""


# --- the coordinator's answers ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Noted:
    """The request was accepted, and journalled where necessary."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run that a client joined and pins, and where its blocks are.

    A client that lost its state continues with the sequences `next`.
    """

    run: RunInfo
    placement: Placement
    shards: tuple[ShardAddress, ...]
    next: tuple[GroupVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan, for a client that must join again with the digests of its frozen tensors."""

    plan: str


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One client's status.

    Args:
        submissions: its updates that are part of a version.
        charges, epsilon: its privacy facts in the ledger, and their epsilon at the plan's delta;
            infinite without protection.
        unsafe: it has ever submitted an update made with an unsafe seed.
    """

    name: str
    live: bool
    state: str
    submissions: int
    charges: int
    epsilon: float
    unsafe: bool


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group: its version, its commit's step, what it waits for; `clip` if adaptive."""

    name: str
    version: int
    step: str
    reason: str
    late: tuple[str, ...]
    clip: float | None = None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One shard or key holder of the roster.

    Args:
        role: "shard" or "holder".
        registered: it has ever registered (a holder: since the coordinator started).
        live: it is subscribed to the coordinator now.
        accuses: clients whose envelopes it finds flawed although too few other holders do.
        trouble: what is wrong there; the coordinator is listed too if something is.
    """

    name: str
    role: str
    registered: bool
    live: bool
    accuses: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The run's status; `run` and `holdings` are empty until the run is founded.

    `groups` are the model's. `evaluation` is None if the plan has none. `servers` are all shards
    and holders of the roster, by name. `failure` is the error that the run ended with, if any.
    `adjacency` is what every epsilon protects, at `delta`; empty and 0 without privacy. `paused` is
    an operator's reason for a pause, empty without one. `steps` are of the newest cohorts, oldest
    first; `burnt` counts all burnt ones. `checkpoint` is the newest complete one. `clock` is the
    Unix time of the coordinator's machine, added by its server; 0 if it was not. `move` is under
    way; `scaling` is the plan's.
    """

    run: bytes
    incarnation: int
    finished: str
    groups: tuple[GroupStatus, ...]
    members: tuple[MemberStatus, ...]
    shards: tuple[ShardAddress, ...]
    telemetry: tuple[Telemetry, ...]
    holdings: tuple[Holding, ...] = ()
    evaluation: EvaluationStatus | None = None
    servers: tuple[ServerStatus, ...] = ()
    failure: str = ""
    adjacency: str = ""
    delta: float = 0.0
    paused: str = ""
    steps: tuple[CohortSteps, ...] = ()
    burnt: int = 0
    checkpoint: int | None = None
    clock: float = 0.0
    move: Move | None = None
    scaling: ScalingStatus | None = None

    def has_ended(self, server: ServerStatus) -> bool:
        """True for a key holder that stopped after the run's end; `join --hold` stops its own."""
        over = self.finished and not self.failure
        return bool(over) and server.role == "holder" and server.registered and not server.live


# --- a coordinator and its standby ------------------------------------------------
#
# A row's text is what the journal has, and its digest covers all rows before it: a standby checks
# each row before it keeps it. Where rows that it lacks are compacted, a copy of the whole journal
# comes first, in parts.


@dataclass(frozen=True, slots=True)
class Follow:
    """A standby has the journal up to this row, durably, and asks for the rows after it.

    The standby is named by the number of its folder. It `have`s so many bytes of a `copy`, named by
    its digest. The answer is Rows, which are empty if nothing was written for a moment.
    """

    standby: bytes
    seq: int
    chain: bytes
    copy: bytes = b""
    have: int = 0


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row of the journal: its time, the record's class and JSON, and the digest."""

    at: float
    kind: str
    body: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A part of a copy of the journal; the copy has this digest and size."""

    digest: bytes
    size: int
    offset: int
    part: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.part)


@dataclass(frozen=True, slots=True)
class Rows(Task):
    """The rows after a standby's newest, in order; or a part of a copy, if some are gone.

    The next part follows a Follow that names the copy and how much of it has arrived.
    """

    rows: tuple[JournalRow, ...]
    part: CopyPart | None = None


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An operator asks the standby to take over from the coordinator."""


# --- to a shard, and its answers --------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutBlock:
    """A block for the shard's spool; the payload travels beside the message, not in it.

    `offset` is the place of its first byte; above 0, an interrupted upload continues.
    """

    header: BlockHeader
    payload: Octets = b""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AskBlock:
    """Asks whether a block is wanted, and how much of it has arrived; the answer is Stored."""

    header: BlockHeader


@dataclass(frozen=True, slots=True)
class Stored:
    """The block is durable in the spool; or, if `have` is given, that many bytes have arrived."""

    digest: bytes
    have: int | None = None


@dataclass(frozen=True, slots=True)
class GetBlock:
    """Asks for a block, or for the differences since the block with digest `base`.

    A shard asks for its optimizer `state` as well.
    """

    run: bytes
    group: str
    version: int
    block: int
    offset: int = 0
    base: bytes = b""
    state: bool = False


@dataclass(frozen=True, slots=True)
class GetSum:
    """Asks for a block's ciphertext sum from byte `offset` on; a shard asks for the noise in it.

    `about` is the `cohort_digest` of the cohort that the noise is for.
    """

    run: bytes
    group: str
    cohort: int
    block: int
    offset: int = 0
    about: bytes = b""


@dataclass(frozen=True, slots=True)
class Payload:
    """Answers GetBlock and GetSum; the digest is always that of the whole."""

    digest: bytes
    payload: Octets = b""


# --- anyone -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error: its class in `secureps.errors`, its line of text, and its further fields."""

    error: str
    text: str
    retry_after: float | None
    free: int = 0


Request = (
    (Register | Join | Trouble | Subscribe | Heartbeat | Submit | Decline | Withdraw | Retire)
    | (Held | Missing | Opened | Examined | KeyShare | OpenRefused | Spoilt | Prepared)
    | (Checkpointed | Telemetry | AskStatus | AskRun | Evaluated | EnvelopeKeyAnnounced | Act)
    | (Follow | TakeOver)
) | (PutBlock | AskBlock | GetBlock | GetSum)
"""Requests to a server: to the coordinator, or (last line) to a shard."""

Reply = Noted | Welcome | Proposal | Status | Rows | Stored | Payload
"""Answers of a server, unless it refuses."""
