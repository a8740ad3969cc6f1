"""For which key holders a client seals: the CA says who they are, the coordinator from when on.

A holder that replaces another has an empty ledger. So a client seals each base version for one
committee alone, whatever it is told, and for none whose last roster has expired. What must not live
here: keys of its own, sealing (`client.sealing`).
"""

from __future__ import annotations

from collections.abc import Mapping

from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopePublicKey
from secureps.errors import Refused, SecurepsError
from secureps.messages.encoding import file_digest
from secureps.messages.orders import HolderKeys, Invite, KeyCommittee, Published, SealFor
from secureps.messages.submission import Receipt
from secureps.policy.plan import Plan
from secureps.roles.announced_keys import AnnouncedKeys
from secureps.roles.machine import Say, Step
from secureps.roles.roster_follower import RosterFollower


class Committees:
    """Those that a client has heard of."""

    def __init__(self, follower: RosterFollower) -> None:
        self._follower = follower
        self._told: dict[bytes, KeyCommittee] = {}
        self._sealed: dict[str, Receipt] = {}
        self.keys = AnnouncedKeys()

    def begin(self, plan: Plan, step: Step) -> None:
        """The roster that a run begins with is on record: by a later kit it seals for these too."""
        if plan.opening is Opening.COMMITTEE:
            self._follower.resume(step)

    def hear(self, step: Step, order: SealFor | HolderKeys, run: bytes) -> None:
        """Seals for these, or for newer keys of holders, which are on record before any of it."""
        for told in (order,) if isinstance(order, SealFor) else order.keys:
            try:
                if isinstance(told, SealFor):
                    self.take(told)
                elif self.keys.is_news(told, run, self._follower.roster):
                    step.records.append(told)
                    self.keys.apply(told)
            except SecurepsError as error:
                step.effects.append(Say(f"what is said of key holders is not taken: {error}"))

    def take(self, order: SealFor) -> None:
        """Takes the coordinator's word for when a committee begins; its first one counts.

        Raises:
            Refused: the CA has signed no roster with these holders and keys, as far as is known
                here.
        """
        told = order.committee
        known = self._follower.committee(told.committee)
        names = tuple(holder.name for holder in known.holders)
        digests = [file_digest(EnvelopePublicKey(key).to_bytes()) for key in told.keys]
        if (told.holders, digests) != (names, [h.cipher_key_digest for h in known.holders]):
            raise Refused("the coordinator's key holders are not those of the roster")
        self._told.setdefault(told.committee, told)

    def sealed(self, receipt: Receipt) -> None:
        """An update is on record: its base version is sealed for its committee, and no other."""
        if receipt.committee is not None:
            last = self._sealed.get(receipt.id.group)
            if last is None or last.version <= receipt.version:
                self._sealed[receipt.id.group] = receipt

    def due(self, group: str, version: int) -> KeyCommittee:
        """For whom an update of a group from this version is sealed.

        Raises:
            Refused: nobody is known, or the version, or one after it, was sealed for others.
        """
        begun = [told for told in self._told.values() if told.begins(group) <= version]
        if not begun:
            raise Refused(f"nobody said for which key holders version {version} is sealed")
        newest = max(begun, key=lambda told: self._follower.committee(told.committee).number)
        last = self._sealed.get(group)
        if last is not None and last.version >= version and last.committee != newest.committee:
            raise Refused(
                f"version {last.version} of {group} was sealed for other key holders: it waits for "
                "the next"
            )
        return newest

    def sealable(
        self, plan: Plan, invites: Mapping[str, Invite], published: Mapping[str, Published]
    ) -> dict[str, Invite]:
        """Those of these invitations, by group, to which an update can be sealed now."""
        base = {group: each.version for group, each in published.items()}
        return {
            group: invite
            for group, invite in invites.items()
            if self.seals(plan, group, base.get(group, invite.version))
        }

    def seals(self, plan: Plan, group: str, version: int) -> bool:
        """Whether an update of a group from this version can be sealed: also by the calendar."""
        if plan.opening is not Opening.COMMITTEE:
            return True
        try:
            self._follower.demand_unexpired(self.due(group, version).committee)
        except Refused:
            return False
        return True
