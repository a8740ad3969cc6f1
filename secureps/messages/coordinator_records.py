"""The coordinator's records, from which a restart rebuilds its state.

Records are appended, in one transaction, before any effect of the step that made them.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages import requests
from secureps.messages.acts import Act
from secureps.messages.charge import Charge, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.orders import KeyCommittee
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import GroupVersion, Placement, ShardAddress
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Cohort, Held, SubmissionId


@dataclass(frozen=True, slots=True)
class ShardLeft:
    """A shard no longer takes part: from the next placement epoch on, others hold its blocks.

    `removed`: an operator removed it, and the shard ends when it hears of that.
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
    """A shard has this address, for the first time or again.

    `unsafe`: the shard draws the plan's noise from a seed that everybody may know.
    """

    shard: ShardAddress
    unsafe: bool = False


@dataclass(frozen=True, slots=True)
class StandbyFollows:
    """From now on no message leaves before this standby has its records; empty: no standby.

    The standby is named by the number of its folder.
    """

    standby: bytes


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A client joined, for the first time or with something new; fields are those of `Join`."""

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
    """An invited client takes no part in this round, and the round does not wait for it.

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
    """A shard lacked blocks; no key was used, and the members may be in a new cohort."""

    group: str
    number: int
    missing: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True)
class KeysReleased:
    """A holder may erase its keys below this number, because their submissions are settled."""

    holder: str
    below: int


@dataclass(frozen=True, slots=True)
class FlawNoted:
    """A holder found a flaw, without consequences.

    It came too late, the client was left out already, or the holder is not believed.
    """

    group: str
    id: SubmissionId
    holder: str
    flaw: str
    reason: str


@dataclass(frozen=True, slots=True)
class CohortOpened:
    """Step 3: digests of the opened sums of every block; empty if no opening is needed.

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
    """The sum of keys from these holders' answers does not open the shards' sums."""

    group: str
    number: int
    holders: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LiarsNamed:
    """These holders' answers are not on the polynomial of all others."""

    group: str
    number: int
    holders: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CohortBurnt:
    """A cohort will never be opened; its members' submissions are dropped.

    `spoilt`: the holders' answers fit together, so a member's submission is at fault. `length` is
    there if the sum is longer than usual: that of the mean and the number of members
    (`policy.longest`).
    """

    group: str
    number: int
    reason: str
    spoilt: bool = False
    length: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LengthsGrew:
    """All sets of a cohort were longer than usual: this `length` is usual from now on."""

    group: str
    length: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ClientIsolated:
    """A client spoils cohorts of this group, and is left out of the run from now on."""

    group: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClientRevoked:
    """A client that joined was taken off the roster, and is left out from now on."""

    client: str


@dataclass(frozen=True, slots=True)
class GroupResigned:
    """A row-block stays at its version for good; the run goes on without it."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class VersionCommitted:
    """Step 5: all shards have the version; `length` as in `CohortBurnt`, if that decides later."""

    group: str
    version: int
    length: tuple[float, ...] = ()


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
    """No more rounds open; rounds that are open finish.

    `failure` is the error that the run ends with, unless the plan foresees this end.
    """

    reason: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; `failure` as in `Ending`."""

    reason: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class StreamBegan:
    """A group without rounds takes updates from now on."""

    group: str


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A group without rounds takes no more updates; waiting ones are dropped."""

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
    """A member's lease ran out, it sits out, or its budget is `spent`."""

    group: str
    client: str
    spent: bool = False


@dataclass(frozen=True, slots=True)
class MemberPassed:
    """A member was passed over: it has no clock until it sends again."""

    group: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class MembersReturned:
    """Members no longer sit out, because the base of their burnt updates is outdated."""

    group: str
    clients: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MemberAsked:
    """A member was asked to train from this version, or from a newer one by then."""

    group: str
    client: str
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class SubmissionsDropped:
    """These submissions become part of no version."""

    group: str
    ids: tuple[SubmissionId, ...]
    reason: str


MovingRecord = ShardLeft | PlacementMoved | ScalingDecided
"""Records that may have blocks move."""

RoundRecord = RoundOpened | RoundExtended | RoundGivenUp | MemberDeclined
MembersRecord = (
    StreamBegan | StreamEnded | MemberEntered | MemberLeft | MemberPassed | MembersReturned
) | (MemberAsked | SubmissionsDropped | requests.Withdraw)
AnswerRecord = requests.Examined | requests.KeyShare | requests.OpenRefused | OpeningFailed
"""Answers of a committee's holders, and their failure."""

GroupRecord = (
    (RoundRecord | MembersRecord | AnswerRecord | CohortClosed | CohortReopened)
    | (Held | CohortOpened | FlawNoted | LiarsNamed | CohortBurnt | GroupResigned)
    | (requests.Prepared | VersionCommitted | LengthsGrew)
)
"""Records about one group."""

CoordinatorRecord = (
    (GroupRecord | Incarnated | RunPinned | RosterFollowed | ShardLocated | MemberJoined)
    | (KeyCommittee | MovingRecord | StandbyFollows)
    | (requests.Retire | FounderChosen | requests.Submit | ClientIsolated | ClientRevoked)
    | (CheckpointOrdered | requests.Checkpointed | CheckpointComplete | Ending | Finished)
    | (Charge | Release | VersionEvaluated | EvaluationSkipped)
    | (EnvelopeKeyAnnounced | KeysReleased | Act)
)
