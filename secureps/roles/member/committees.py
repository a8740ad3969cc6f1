"""The committees of key holders that a client seals for.

A new holder has an empty ledger, and could open what its predecessor opened before. So a client
seals each base version for one committee only, whatever the coordinator says, and for no committee
whose last roster has expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from secureps.crypto.envelope import EnvelopePublicKey
from secureps.errors import Refused, SecurepsError
from secureps.messages.encoding import file_digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import Invite, KeyCommittee, Published, SealFor
from secureps.messages.requests import Decline
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Receipt
from secureps.policy.plan import Plan
from secureps.roles.machine import AnnouncedKeys, RosterFollower, Step


class Committees:
    """The committees that a client has heard of."""

    def __init__(self, follower: RosterFollower, client: str) -> None:
        self._follower, self._client = follower, client
        self._told: dict[bytes, KeyCommittee] = {}
        self.newest: dict[str, Receipt] = {}
        self.keys = AnnouncedKeys()

    def hear(self, step: Step, order: SealFor, run: bytes) -> None:
        """Takes a committee, and journals newer keys of its holders, before it seals for them."""
        known, roster = self.keys, self._follower.roster
        parts: tuple[KeyCommittee | EnvelopeKeyAnnounced, ...] = (order.committee, *order.announced)
        for told in parts:
            try:
                if isinstance(told, KeyCommittee):
                    self.take(told)
                elif known.is_news(told, run, roster) and told.number > known.number(told.holder):
                    step.records.append(told)
                    known.apply(told)
            except SecurepsError as error:
                step.say(f"what is said of key holders is not taken: {error}")

    def take(self, told: KeyCommittee) -> None:
        """Takes the coordinator's word for when a committee begins; the earliest one counts."""
        if self._told.get(told.committee) == told:
            return
        holders = self._follower.newest_with(told.committee).holders()
        names = tuple(holder.name for holder in holders)
        digests = [file_digest(EnvelopePublicKey(key).to_bytes()) for key in told.keys]
        if (told.holders, digests) != (names, [h.cipher_key_digest for h in holders]):
            raise Refused("the coordinator's key holders are not those of the roster")
        before = self._told.setdefault(told.committee, told)
        since = (GroupVersion(s.group, min(s.version, told.begins(s.group))) for s in before.since)
        self._told[told.committee] = replace(before, since=tuple(since))

    def note_sealed(self, receipt: Receipt) -> None:
        """Notes a sealed update: its base version is sealed for no other committee."""
        if receipt.committee is not None:
            last = self.newest.get(receipt.id.group)
            if last is None or last.version <= receipt.version:
                self.newest[receipt.id.group] = receipt

    def due(self, group: str, version: int) -> KeyCommittee:
        """Returns the committee that an update of a group from this version is sealed for."""
        if not self._begun(group, version):
            raise Refused(f"nobody said for which key holders version {version} is sealed")
        if objection := self.objection(group, version):
            raise Refused(objection)
        return self._begun(group, version)[-1]

    def due_for_made(self, group: str, version: int) -> KeyCommittee:
        """Like `due`, for an update that was made for an earlier committee.

        It is sealed for its version's committee again. That one does not open it any more, but no
        version may be sealed for two committees.
        """
        last = self.newest.get(group)
        if last is not None and last.version == version and self.objection(group, version):
            return self._told[last.committee or b""]
        return self.due(group, version)

    def objection(self, group: str, version: int) -> str:
        """Returns why this client may not seal an update from this version; empty if it may.

        A coordinator may claim later that a committee began earlier. Then an older version, which
        was sealed for another committee, would be sealed for this one too.
        """
        begun, last = self._begun(group, version), self.newest.get(group)
        if not begun or last is None or last.version < version:
            return ""
        if last.version > version:
            sealed = f"version {last.version} of {group}"
            return f"it has sealed {sealed}, and no longer seals an older one"
        if last.committee == begun[-1].committee:
            return ""
        return f"it has sealed version {last.version} of {group} for other key holders"

    def _begun(self, group: str, version: int) -> list[KeyCommittee]:
        """Returns the committees that have begun by this version, in the order of their rosters."""
        begun = (told for told in self._told.values() if told.begins(group) <= version)
        return sorted(begun, key=lambda told: self._follower.number_of(told.committee))

    def decline(
        self,
        step: Step,
        plan: Plan,
        invites: dict[str, Invite],
        published: Mapping[str, Published],
    ) -> None:
        """Declines invitations for which no update may be sealed (`objection`)."""
        for group, invite in list(invites.items()) if plan.has_committee else ():
            newest = published.get(group)
            base = invite.version if newest is None else newest.version
            if reason := self.objection(group, base):
                del invites[group]
                at = invite.step if base == invite.version else 0
                step.tell(Decline(self._client, group, invite.round, reason, base, at))

    def can_seal(self, plan: Plan, group: str, version: int) -> bool:
        """True if the key holders' roster, if any, has not expired, so an update can be sealed."""
        if not plan.has_committee:
            return True
        try:
            self._follower.demand_unexpired(self.due(group, version).committee)
        except Refused:
            return False
        return True
