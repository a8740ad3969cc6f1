"""What the coordinator writes into its journal: the facts from which a restart rebuilds it.

Records are appended, in one transaction, before any effect of the step that made them.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.acts import Act
from secureps.messages.charge import Charge, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.orders import GroupVersion, KeyCommittee
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import (
    Checkpointed,
    Examined,
    KeyShare,
    OpenRefused,
    Prepared,
    Retire,
    Submit,
    Withdraw,
)
from secureps.messages.run import Placement, ShardAddress
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Cohort, Held, SubmissionId


@dataclass(frozen=True, slots=True)
class ShardLeft:
    """A shard no longer takes part: others hold its blocks from the next placement epoch on.

    `removed`: an operator removed it, and it ends when it is told so.
    """

    shard: str
    reason: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class PlacementMoved:
    """Blocks begin to move to this placement; written again once it is `in_force`."""

    placement: Placement
    in_force: bool = False


@dataclass(frozen=True, slots=True)
class ShardLocated:
    """A shard is at this address, for the first time or again.

    `unsafe`: the shard adds noise of the plan from a seed that everybody may know.
    """

    shard: ShardAddress
    unsafe: bool = False


@dataclass(frozen=True, slots=True)
class StandbyFollows:
    """From now on nothing is said before this standby has it; empty: nobody is waited for.

    The standby is named by the number of its folder.
    """

    standby: bytes


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A client joined, for the first time or with something new; the fields are those of `Join`."""

    client: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FounderChosen:
    """The client whose parameters become version 0."""

    client: str


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A cohort was invited to make the next version of a group."""

    group: str
    round: int
    version: int
    invited: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RoundExtended:
    """A round's deadline was moved because too few members had arrived."""

    group: str
    round: int
    extensions: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundGivenUp:
    """A round ended without opening anything; its submissions are dropped."""

    group: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class MemberDeclined:
    """An invited client takes no part in this round, and nobody waits for it any longer.

    `sits_out`: it is not asked again before the next version.
    """

    group: str
    round: int
    client: str
    reason: str
    sits_out: bool = False


@dataclass(frozen=True, slots=True)
class CohortClosed:
    """Step 1: these members' updates are summed, with these weights."""

    cohort: Cohort
    reason: str


@dataclass(frozen=True, slots=True)
class CohortReopened:
    """A shard lacked blocks; no key was touched, and the members may stand in a new cohort."""

    group: str
    number: int
    missing: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True)
class KeysReleased:
    """A holder may erase its envelope keys below this number: what they sealed is settled."""

    holder: str
    below: int


@dataclass(frozen=True, slots=True)
class FlawNoted:
    """A holder found a flaw, and nothing follows.

    It came too late, the client was left out already, or the holder is not believed.
    """

    group: str
    id: SubmissionId
    holder: str
    flaw: str
    reason: str


@dataclass(frozen=True, slots=True)
class CohortOpened:
    """Step 3: the digests of the opened sums of every block; empty when nothing needs opening.

    Under a committee `key` is the sum of the members' one-time keys, int32 little-endian, computed
    from the answers of these `holders`.
    """

    group: str
    number: int
    sums: tuple[bytes, ...]
    key: bytes | None = None
    holders: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OpeningFailed:
    """The sum of keys from these holders' answers does not open what the shards hold."""

    group: str
    number: int
    holders: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LiarsNamed:
    """The answers of these holders do not lie on the polynomial of all others."""

    group: str
    number: int
    holders: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CohortBurnt:
    """A cohort was not opened and never will be; its members' submissions are dropped.

    `spoilt`: the key holders' answers fit together, so a member's submission is at fault.
    """

    group: str
    number: int
    reason: str
    spoilt: bool = False


@dataclass(frozen=True, slots=True)
class ClientIsolated:
    """A client spoils cohorts of this group: it is left out of the run from now on."""

    group: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClientRevoked:
    """A client that joined was taken off the roster: it is left out from now on."""

    client: str


@dataclass(frozen=True, slots=True)
class GroupResigned:
    """A row-block stays at its version for good; the run goes on without it."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class VersionCommitted:
    """Step 5: all shards have the version."""

    group: str
    version: int


@dataclass(frozen=True, slots=True)
class CheckpointOrdered:
    """A checkpoint of one vector of versions was begun."""

    number: int
    versions: tuple[GroupVersion, ...]


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """The manifest is durable, and with it all that its versions include."""

    number: int


@dataclass(frozen=True, slots=True)
class Ending:
    """No more rounds open; what has begun is finished.

    `failure` names the error that the run ends with, unless the plan foresees this end.
    """

    reason: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; `failure` as `Ending` has it."""

    reason: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class StreamBegan:
    """A group without rounds takes updates from now on."""

    group: str


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A group without rounds takes no more updates; what waits is dropped."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberEntered:
    """A member takes part in a group without rounds, from this clock on (`policy.rules.rule`)."""

    group: str
    client: str
    clock: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member's lease ran out, or it sits out; or it leaves because its budget is `spent`."""

    group: str
    client: str
    spent: bool = False


@dataclass(frozen=True, slots=True)
class MemberPassed:
    """A member was waited for long enough: it has no clock until it sends again."""

    group: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class MembersReturned:
    """Members no longer sit out: the version that their burnt updates came from is outdated."""

    group: str
    clients: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MemberAsked:
    """A member trains from this version, or from a newer one that is there when it begins."""

    group: str
    client: str
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class SubmissionsDropped:
    """These submissions are dropped, and become part of no version."""

    group: str
    ids: tuple[SubmissionId, ...]
    reason: str


MovingRecord = ShardLeft | PlacementMoved | ScalingDecided
"""What may have blocks move."""

RoundRecord = RoundOpened | RoundExtended | RoundGivenUp | MemberDeclined
MembersRecord = (
    StreamBegan | StreamEnded | MemberEntered | MemberLeft | MemberPassed | MembersReturned
) | (MemberAsked | SubmissionsDropped | Withdraw)
AnswerRecord = Examined | KeyShare | OpenRefused | OpeningFailed
"""What holders of a committee said, or what came of it."""

GroupRecord = (
    (RoundRecord | MembersRecord | AnswerRecord | CohortClosed | CohortReopened)
    | (Held | CohortOpened | FlawNoted | LiarsNamed | CohortBurnt | GroupResigned)
    | (Prepared | VersionCommitted)
)
"""What is about one group."""

CoordinatorRecord = (
    (GroupRecord | Incarnated | RunPinned | RosterFollowed | ShardLocated | MemberJoined)
    | (KeyCommittee | MovingRecord | StandbyFollows)
    | (Retire | FounderChosen | Submit | ClientIsolated | ClientRevoked)
    | (CheckpointOrdered | Checkpointed | CheckpointComplete | Ending | Finished)
    | (Charge | Release | VersionEvaluated | EvaluationSkipped)
    | (EnvelopeKeyAnnounced | KeysReleased | Act)
)
"""What the coordinator writes."""
