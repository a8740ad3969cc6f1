"""Words the log lines of a server: one for each journal record that an operator should see."""

from __future__ import annotations

from dataclasses import fields

from secureps.crypto.roster import Roster
from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages import coordinator_records, holder_records, records, requests, shard_records
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.orders import TO_GO_ON, Commit
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Cohort, Receipt
from secureps.policy.plan import Plan
from secureps.roles.machine import Record
from secureps.wording import counted, named

KNOWN = ("group", "version", "round", "number", "extensions", "client")
"""Fields of records that are logged beside the line, for programs."""


class LogLines:
    """The log lines of one party; they name a group only if the plan has several."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def hear(self, record: Record) -> None:
        if isinstance(record, records.RunPinned):
            self._plan = Plan.from_text(record.run.plan)

    def _prefix(self, group: str, text: str) -> str:
        return (f"{group}: " if self._plan is None else self._plan.head(group)) + text

    def _trails(self, group: str) -> bool:
        return self._plan is not None and self._plan.trails(group)

    def line(self, record: Record) -> str | None:
        match record:
            case records.Incarnated(number):
                reign, start = number // records.REIGN, number % records.LINE
                return f"incarnation {start}" + (f" of reign {reign}" if reign else "")
            case coordinator_records.StandbyFollows(standby):
                return "a standby follows, and is waited for" if standby else "no standby follows"
            case records.RunPinned(run):
                return f"the run is {run.id.hex()[:16]}, {len(run.schema.tensors)} tensors"
            case records.RosterFollowed(text):
                roster = Roster.from_text(text)
                parties = len(roster.certificates)
                return f"goes by roster {roster.number}, of {parties} parties, {roster.lifetime}"
            case holder_records.KeyReplaced(announced):
                return f"envelope key {announced.number} is its newest"
            case holder_records.KeysErased(below):
                return f"envelope keys below {below} are erased"
            case EnvelopeKeyAnnounced(holder=holder, number=number):
                return f"{holder} announced envelope key {number}"
            case coordinator_records.ClientRevoked(client):
                return f"{client} is left out of the run: it is on the roster no more"
            case coordinator_records.ShardLocated(shard, unsafe):
                mark = f"; {NO_PRIVACY}" if unsafe else ""
                return f"{shard.name} is at {shard.advertise}{mark}"
            case coordinator_records.ShardLeft(shard_name, reason):
                return f"{shard_name} has left the run: {reason}"
            case coordinator_records.PlacementMoved(placement, in_force):
                where = f"placement {placement.epoch}, on {named(placement.shards)}"
                return f"blocks lie by {where}" if in_force else f"blocks begin to move: {where}"
            case ScalingDecided(reason=reason):
                return f"scaling: {reason}"
            case requests.Prepared(group=group, version=version) if record.epoch:
                where = f"{counted(len(record.blocks), 'block')} of placement {record.epoch}"
                return self._prefix(group, f"version {version}: {where}")
            case coordinator_records.MemberJoined(client):
                return f"{client} joined"
            case (
                coordinator_records.RoundOpened()
                | coordinator_records.RoundExtended()
                | coordinator_records.RoundGivenUp()
            ):
                return self._prefix(record.group, record.reason)
            case EvaluationSkipped(version, reason):
                return f"version {version} is not evaluated: {reason}"
            case requests.Retire(client, reason) if reason.startswith(requests.FAILED):
                return f"{client} {reason}"
            case requests.Retire(client, reason, returns):
                what = "rests for a while" if returns else "takes part no more"
                return f"{client} {what}{reason and f': {reason}'}"
            case coordinator_records.MemberDeclined(group=group, client=client, reason=reason):
                return self._prefix(group, f"{client} takes no part: {reason}")
            case coordinator_records.MembersReturned(group=group, clients=clients, reason=reason):
                return self._prefix(group, f"{named(clients)} return: {reason}")
            case coordinator_records.MemberPassed(group=group, client=client, reason=reason):
                return self._prefix(group, f"{client} is not waited for: {reason}")
            case requests.Withdraw(id=id, reason=reason):
                return f"{id} never comes: {reason}"
            case VersionEvaluated(version, metrics):
                values = ", ".join(f"{metric.name} {metric.value:.4f}" for metric in metrics)
                return f"version {version} is evaluated: {values}"
            case requests.Submit(receipt) if receipt.unsafe:
                return f"{receipt.id}: {NO_PRIVACY}"
            case coordinator_records.CohortClosed(cohort, reason):
                return self._prefix(cohort.group, f"cohort {cohort.number} closed: {reason}")
            case coordinator_records.CohortReopened(group, number, missing):
                left = "nobody was asked to open it, and not all of it counts any more"
                why = f"blocks of {len(missing)} are missing" if missing else left
                return self._prefix(group, f"cohort {number} reopened: {why}")
            case requests.Examined(id=id, holder=holder, flaw=flaw) if flaw:
                return f"{id} is dropped: {holder} found a flaw: {flaw}"
            case coordinator_records.FlawNoted(id=id, holder=holder, flaw=flaw, reason=reason):
                return f"{id}: {holder} found a flaw, {reason}: {flaw}"
            case requests.OpenRefused():
                refusal = f"{record.holder} refuses: {record.reason}"
                return self._prefix(record.group, f"cohort {record.cohort}: {refusal}")
            case coordinator_records.OpeningFailed(group=group, number=number, reason=reason):
                return self._prefix(group, f"cohort {number} does not open: {reason}")
            case coordinator_records.LiarsNamed(group=group, number=number, reason=reason):
                return self._prefix(group, f"cohort {number}: {reason}")
            case coordinator_records.CohortBurnt(group=group, number=number, reason=reason):
                return self._prefix(group, f"cohort {number} is burnt: {reason}")
            case coordinator_records.LengthsGrew(group=group, reason=reason):
                return self._prefix(group, reason)
            case coordinator_records.ClientIsolated(group=group, client=client, reason=reason):
                return self._prefix(group, f"{client} is left out of the run: {reason}")
            case coordinator_records.GroupResigned(group, reason):
                return f"{group} is given up: {reason}"
            case (
                coordinator_records.VersionCommitted(group, version)
                | Commit(group=group, version=version)
            ) if not self._trails(group):
                return self._prefix(group, f"version {version} is committed")
            case coordinator_records.CheckpointComplete(number):
                return f"checkpoint {number} is complete"
            case shard_records.OpenedForgotten(group, number, blocks):
                lost = f"opened sums of {len(blocks)} blocks are lost"
                return self._prefix(group, f"cohort {number}: {lost}")
            case holder_records.CohortReleased(cohort):
                opens = f"opens cohort {cohort.number}, of {len(cohort.members)} clients"
                # the cohort of a trailing group does not name its round's version
                at = "" if self._trails(cohort.group) else f"version {cohort.version}: "
                return self._prefix(cohort.group, f"{at}{opens}")
            case coordinator_records.Ending(reason):
                return reason
            case coordinator_records.Finished(reason, failure):
                how, then = ("failed", TO_GO_ON) if failure else ("is over", "")
                return f"the run {how}: {reason}{then}"
        return None


def log_fields(record: Record) -> dict[str, str | int]:
    known = {f.name: getattr(record, f.name) for f in fields(record) if f.name in KNOWN}
    if isinstance(cohort := getattr(record, "cohort", None), Cohort):
        known |= {"group": cohort.group, "version": cohort.version, "cohort": cohort.number}
        known |= {"members": len(cohort.members)}
    if isinstance(receipt := getattr(record, "receipt", None), Receipt):
        known |= {"group": receipt.id.group, "version": receipt.version}
        known |= {"client": receipt.id.client}
    return known
