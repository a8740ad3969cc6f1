"""A shard by its journal alone: its run, its roster, and which blocks it takes in by them."""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Malformed, WrongRun
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.records import RosterFollowed
from secureps.messages.requests import PutBlock, Request, Subscribe
from secureps.messages.shard_records import ShardRecord
from secureps.roles import permissions
from secureps.roles.machine import Fold, Record, Step
from secureps.roles.roster_follower import RosterFollower
from secureps.roles.shard import intake
from secureps.roles.shard.state import ShardFold, ShardState


class ShardFoldable:
    """The state of one shard; `apply` alone changes what survives a restart."""

    def __init__(self, name: str, roster: Roster) -> None:
        self._name = name
        self._follower = RosterFollower(roster)
        self.state = ShardState(name)

    def apply(self, at: float, record: Record) -> None:
        if isinstance(record, RosterFollowed):
            self._follower.apply(record)
        else:
            self.state.apply(record)

    def folded(self) -> Fold:
        records = (*self.state.record, *self._follower.records)
        return Fold(records, to_plain(self.state.folded()))

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        self.state.unfold(from_plain(ShardFold, fold.state))

    def subscription(self) -> Subscribe:
        own = self._roster
        return Subscribe(self._name, self.state.submissions(), own.number, own.expires)

    def inspect(self, sender: str, message: Request) -> bool:
        """Checks all that can be checked of a block without its payload.

        Raises:
            Malformed, Oversized, WrongRun, UnknownParty, Unsigned, Conflict: the sender's fault.
            NotReady: the run is not founded yet.
        """
        if not isinstance(message, PutBlock):
            raise Malformed(f"a shard takes no payload with a {type(message).__name__}")
        permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, message)
        self._check_run(message.header.run)
        return intake.wanted(self._name, self.state, self._roster, sender, message.header)

    @property
    def _roster(self) -> Roster:
        return self._follower.roster

    def _check_run(self, run: bytes) -> None:
        if run != self.state.pinned.run.id:
            raise WrongRun("made for another run; join this one first")

    def _write(self, step: Step, record: ShardRecord) -> None:
        step.records.append(record)
        self.apply(0.0, record)
