"""What parties say to the coordinator and to shards, and what these answer.

Everyone dials the coordinator; clients and a bfv holder also dial shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from secureps.messages.acts import Act
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated, EvaluationStatus
from secureps.messages.orders import GroupVersion, Task
from secureps.messages.run import Placement, RunInfo, Schema, ShardAddress
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
else:  # what is read back is bytes
    Octets = bytes

BALANCE: Final = "balance"
"""Why blocks move that go from a shard with much to do to one with less (`Move.what`)."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a shard holds of the model: blocks, and bytes of their values as float32."""

    shard: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks that move because a shard comes or goes, while they do.

    Args:
        what: the `ShardDeed`, or BALANCE; empty: copies are made again that were lost with a shard.
        shard: whom it is of, if it is of one.
        moved: copies of blocks that are whole at their new shard.
        blocks: copies of blocks that move in all.
        moved_bytes: of the values of those that are moved, as float32.
        bytes: of the values of all that move.
        reason: what it waits for now; empty: for nothing but the copying.
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
        version: that it makes; members: how many clients stand in it.
        began: its round opened, or the version before was committed.
        ended: in a word, where it made no version: burnt, spoilt or reopened; and why.
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

    `run` is its own, empty before the first; `reached` a shard's committed versions, or a holder's
    newest cohorts that it opened; `held` the newest cohort of each group of which a shard has sums,
    `epoch` its newest placement's, which is not in force while it is `coming`. `unsafe`: its noise
    comes from a seed that everybody may know.
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

    `groups` are those that it contributes to, for a client whose data touches few row-blocks of a
    sparse group; empty for all. `run` is the one that it takes part in already, empty if it is new.
    """

    client: str
    schema: Schema
    groups: tuple[str, ...] = ()
    run: bytes = b""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A server tells what is wrong with it, such as a full disk; an empty reason: nothing is."""

    party: str
    reason: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Opens the stream of orders; `epoch` and `expires` are of the roster that the party goes by.

    `unsettled` are submissions whose fate it does not know: a client's own, those of which a
    shard has blocks.
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

    `version` and `step` are the base from which it sends nothing; where a group has no rounds, they
    say which invitation it declines.
    """

    party: str
    group: str
    round: int
    reason: str
    version: int = -1
    step: int = 0


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A submission to a group without rounds was refused on its way: it never comes.

    `version` and `step` are its base's; its client is to be asked anew.
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
"""How a reason to retire begins that a client's supervisor gives, because its process failed."""


@dataclass(frozen=True, slots=True)
class Retire:
    """A client leaves for good, or rests if it `returns`; joining again takes that back."""

    client: str
    reason: str = ""
    returns: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """A party lacks what it should work on or send: one of the cases below."""

    party: str
    group: str
    cohort: int
    ids: tuple[SubmissionId, ...]
    epoch: int = 0

    @classmethod
    def of_cohort(cls, shard: str, cohort: Cohort, ids: tuple[SubmissionId, ...]) -> Missing:
        """Blocks of these members; once the cohort is opened, its opened sums as well."""
        return cls(shard, cohort.group, cohort.number, ids)

    @classmethod
    def of_founding(cls, shard: str, group: str, ids: tuple[SubmissionId, ...]) -> Missing:
        return cls(shard, group, -1, ids)

    @classmethod
    def of_placement(cls, shard: str, group: str, epoch: int) -> Missing:
        """All that was acknowledged of blocks that the shard gains by this epoch's placement."""
        return cls(shard, group, -1, (), epoch)

    @classmethod
    def of_outbox(cls, client: str, id: SubmissionId) -> Missing:
        """A client's own submission that it should send again, and no longer has."""
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
    """A holder looked into its envelope of a submission; `flaw` says what is wrong, or nothing.

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
    """A holder's part of the sum of a cohort's one-time keys: uint32, little endian."""

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
    """A shard has no usable sum: a member sent what it may not, or the sum is lost.

    `key` is the digest of the sum of keys that does not open its sums, if that is why.
    """

    shard: str
    group: str
    cohort: int
    reason: str
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Step 4: a shard's blocks of a new version are durable; digests of them, and of its file.

    `scale` comes from the shard that holds the group's last block, under adaptive clipping.
    `total` is the opened total of a sum group of which the coordinator is told.
    `epoch`: the version is committed, and these are the shard's blocks by the coming placement of
    this epoch; 0 else.
    `cohort` is what it came of; -1 for version 0, and for a version that came of a checkpoint.
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
    """Seconds and bytes of a party for a version, spent or waited; no data, no payload.

    `step` is which of its updates from the version before it is about (`Receipt.step`).
    """

    party: str
    group: str
    version: int
    figures: tuple[Figure, ...]
    step: int = 0


WAITED, ARRIVED = "waited_seconds", "arrived"
"""Figures of a client: seconds from the round's opening, and 1 if its update came, else 0."""

UP = "bytes_up"
"""Bytes of a client's update that the coordinator accepted."""

PUBLISHED = "published_seconds"
"""The second of the run's clock at which the coordinator published a version."""

SPENT = "epsilon"
"""The largest epsilon of all members when the version was published."""

CLIP = "clip"
"""The clip of the clients that train from the version, where the clip is adaptive."""


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Anyone may ask how the run stands."""


@dataclass(frozen=True, slots=True)
class AskRun:
    """Anyone may ask which run this is; answered by Welcome."""


# --- the coordinator's answers ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Noted:
    """The request was taken, and what had to be journalled is."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run that a client joined, to be pinned, and where its blocks live.

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
    """One client: alive or not, in which state, and what it has spent.

    Args:
        submissions: its updates that are part of a version.
        charges: how many privacy facts the ledger has of it.
        epsilon: what they come to at the plan's delta; infinite where nothing protects.
        unsafe: it has ever submitted what an unsafe seed made.
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
    """One group: its version, the step of its commit, what it waits for; `clip` if adaptive."""

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
        registered: it has said that it is up, ever (a holder: since the coordinator started).
        live: it watches the coordinator now.
        accuses: clients in whose envelopes it finds flaws and too few other holders do.
        trouble: what is wrong there, to follow its name; the coordinator is listed if anything is.
    """

    name: str
    role: str
    registered: bool
    live: bool
    accuses: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """How the run stands; `run` is empty until the run is founded, as is `holdings`.

    `groups` are the model's; `evaluation` is None where the plan has none; `servers` are all
    shards and holders of the roster, by name. `failure` names the error that a run ended with, if
    any. `adjacency` says what every epsilon is of, at `delta`; empty and 0 if nothing is private.
    `paused` says that an operator has the run wait, and why; empty while it goes. `steps` are of
    the newest cohorts, oldest first; `burnt` is how many came to nothing in all; `checkpoint` the
    number of the newest whole one. `clock` are the Unix seconds of the coordinator's machine, which
    its server adds; 0 where nobody did. `move` is under way, if any is; `scaling` is the plan's.
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


# --- a coordinator and its standby ------------------------------------------------
#
# A row's text is what the journal has, and its digest covers all rows before it: a standby checks
# each row before it keeps it. Where rows that it lacks are compacted, a copy of the whole journal
# comes first, in parts.


@dataclass(frozen=True, slots=True)
class Follow:
    """A standby has the journal up to this row, durably, and asks for the rows after it.

    The standby is named by the number of its folder. The answer is Rows, none if nothing was
    written for a moment. Of a copy, by its digest, the standby has that many bytes.
    """

    standby: bytes
    seq: int
    chain: bytes
    copy: bytes = b""
    have: int = 0


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row as the journal has it: its time, the record's class and JSON, and the digest."""

    at: float
    kind: str
    body: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A part of a copy of the journal, which has so many bytes and this digest in all."""

    digest: bytes
    size: int
    offset: int
    part: bytes

    @property
    def end(self) -> int:
        """Counts the bytes of the copy up to the end of this part."""
        return self.offset + len(self.part)


@dataclass(frozen=True, slots=True)
class Rows(Task):
    """The rows after the one that a standby has, in order; or a part of a copy, if some are gone.

    The next part comes when a Follow names the copy and how much of it is there.
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

    `offset` is the place of its first byte in the block: above 0, an interrupted upload continues.
    """

    header: BlockHeader
    payload: Octets = b""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AskBlock:
    """Asks whether a block is wanted, and how much of it is here; the answer is Stored."""

    header: BlockHeader


@dataclass(frozen=True, slots=True)
class Stored:
    """The block is durable in the spool; or, by `have`, so many of its bytes are here."""

    digest: bytes
    have: int | None = None


@dataclass(frozen=True, slots=True)
class GetBlock:
    """Asks for a block, or for what changed since the block of digest `base`.

    A shard asks for its `state` as well.
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
    """Asks for the ciphertext sum of a block from byte `offset` on, a shard for the noise in it.

    `about`: the `cohort_digest` of the cohort that noise is for.
    """

    run: bytes
    group: str
    cohort: int
    block: int
    offset: int = 0
    about: bytes = b""


@dataclass(frozen=True, slots=True)
class Payload:
    """Answers GetBlock and GetSum; the digest is of the whole, whatever was asked for."""

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
"""What a server is asked or told: the coordinator, or (last line) a shard."""

Reply = Noted | Welcome | Proposal | Status | Rows | Stored | Payload
"""What it answers, if it does not refuse."""
