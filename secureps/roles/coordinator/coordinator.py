"""The coordinator: checks what parties say and turns it into records; it sees no payloads."""

from __future__ import annotations

from dataclasses import replace

from secureps.errors import ConfigError, Malformed, NotReady, PlanRefused, Refused, UnknownParty
from secureps.messages import requests
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.records import Incarnated, RosterFollowed
from secureps.messages.requests import TakeOver
from secureps.messages.run import COORDINATOR, RunInfo
from secureps.messages.submission import Held
from secureps.policy.canonical import different_keys
from secureps.roles.coordinator import (
    acts,
    answers,
    checkpointing,
    envelopes,
    founding,
    membership,
    opening,
    reign,
    resharding,
    resubscribe,
    scaling,
    scheduler,
    submissions,
)
from secureps.roles.coordinator.checkpointing import ManifestWritten
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState, OpenReceipts
from secureps.roles.coordinator.scaling import Load
from secureps.roles.coordinator.standby import Seat
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.status import HERE, NOT_KNOWN, Window, servers, status
from secureps.roles.coordinator.transaction import Cache, Sessions, Transaction
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Record,
    Say,
    Step,
    Tick,
    Unwatched,
    WorkFailed,
)
from secureps.roles.pinned_run import LATER, PinnedRun
from secureps.wording import named

BEFORE_A_RUN = (*reign.ALWAYS, requests.Join, requests.Subscribe, requests.Retire)
"""What is said to a coordinator that has founded no run yet."""


OF_BLOCKS = (Held, requests.Missing, requests.Spoilt, requests.Prepared, requests.Checkpointed)
"""What shards say of blocks that they hold."""

OF_A_COMMITTEE = (requests.Examined, requests.KeyShare, EnvelopeKeyAnnounced)


class Coordinator(Seat):
    """The machine of the one coordinator of a federation."""

    def __init__(self, settings: PinnedRun) -> None:
        super().__init__("the coordinator", settings.plan, settings.roster)
        self._settings = settings
        if settings.initial is not None:
            settings.plan.layout(settings.initial)  # refused now, not when the shards are up
        looks = settings.examined and opening.wanted(settings.plan)
        enough = settings.plan.threshold if looks else 0
        bounds, names = settings.plan.bounds, settings.plan.all_groups
        groups = {
            name: GroupState(name, rounds=bounds(name).rounds, open_receipts=OpenReceipts(enough))
            for name in names
        }
        self.federation = CoordinatorState(groups)
        self._sessions = Sessions()
        evaluator, clients = settings.plan.evaluator, settings.roster.names("client")
        if evaluator and evaluator not in clients:
            raise PlanRefused(
                f"evaluation.evaluator: no client on the roster is called {evaluator}"
            )
        self._telemetry = Window()
        self._load = Load()
        self._cache = Cache()
        self._until: float | None = None

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        if isinstance(record, RosterFollowed):
            self._follower.apply(record)
            self._settings = replace(self._settings, roster=self._follower.roster)
        self.federation.apply(at, record)
        self._sessions.changes.forget()

    def folded(self) -> Fold:
        pinned = self.federation.pinned
        records = (*(() if pinned is None else (pinned,)), *self._follower.records)
        return Fold(records, to_plain(self.federation))

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        enough = {name: g.open_receipts.enough for name, g in self.federation.groups.items()}
        self.federation = from_plain(CoordinatorState, fold.state)
        self._sessions.changes.forget()
        for name, group in self.federation.groups.items():
            group.open_receipts.enough = enough[name]

    def resume(self, now: float) -> Step:
        """Begins another incarnation; ConfigError if the journal is of another plan or roster."""
        if (pinned := self.federation.pinned) is not None:
            self._refuse_other(pinned.run)
            self.plan.layout(pinned.run.schema)  # refused now, not at the first receipt
        gone = self.federation.why_gone
        here = [client for client in self.federation.members if client not in gone]
        self._sessions.begin(now, here, now + self.plan.section.lease)
        tx = self._tx(now)
        tx.write(Incarnated(tx.federation.incarnation + 1))
        reign.begin(tx, self._settings.elsewhere)
        if pinned is not None and self._settings.roster.digest != pinned.run.roster:
            self._follower.resume(tx.step)
        membership.revoke(tx, self._settings.roster)
        opening.form_committee(tx, self._settings)
        checkpointing.manifest_again(tx)
        return self._close_turn(tx)

    def _refuse_other(self, run: RunInfo) -> None:
        """ConfigError unless the plan and the kit that were given are those of this run."""
        differs = ""
        if keys := different_keys(run.plan, self.plan.text):
            differs = f"whose plan differs in {named(keys)} from the one that was given"
        elif self._settings.roster.number_of(run.roster) is None:
            differs = "which was founded with another kit, or a newer one, than was given"
        if differs:
            raise ConfigError(
                f"this state folder holds run {run.id.hex()[:16]}, {differs}: give what the run "
                "began with. A new run takes a new state folder: keep this one"
            )

    def troubled(self, reason: str) -> list[Effect]:
        """Shows in the status what is wrong beside it."""
        self._sessions.trouble(COORDINATOR, reason)
        return []

    def view(self, now: float, sender: str, message: Event) -> requests.Reply | None:
        """The status, of which a full disk of its own is a part.

        The end of a run is not shown: parties that see it stop, and it may not be on record yet.
        """
        if not isinstance(message, requests.AskStatus):
            return None
        self._demand_permitted(sender, message)
        seen = status(self._tx(now), self._telemetry.newest, self.servers)
        return replace(seen, finished="", failure="")

    def recall(self) -> requests.Status:
        """The status by the journal alone, which does not say which clients are there now.

        So every client is "not known", and no group's reason names clients that are away.
        """
        groups, gone = self.federation.groups, self.federation.why_gone
        here = frozenset(self.federation.members.keys() - gone.keys())
        seen = status(replace(self._tx(0.0), live=here), ())
        return replace(
            seen,
            groups=tuple(replace(each, reason=groups[each.name].reason) for each in seen.groups),
            members=tuple(
                replace(each, live=False, state=NOT_KNOWN if each.state in HERE else each.state)
                for each in seen.members
            ),
            servers=self.servers,
        )

    def wake(self) -> float | None:
        times = (self._until, self._sessions.next_look)
        return min([t for t in times if t is not None], default=None)

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles one event, then moves every group as far as it can go; answers come last."""
        if isinstance(event, Tick):
            return self._close_turn(self._tx(now))
        if isinstance(event, Unwatched):
            for known in (self._sessions.waiting, self._sessions.told_of):
                known.pop(event.party, None)
            self._sessions.watchers.discard(event.party)
            tx = self._tx(now)
            self._say_of_server(tx, event.party, "is away")
            if self.plan.section.replicas == 1:
                return tx.step
            return self._close_turn(tx)  # a shard leaves if it stays away
        if isinstance(event, WorkFailed | Failed):
            return Step(effects=[Halt(str(event.error), type(event.error))])
        if isinstance(event, Answered):  # another coordinator has heard of this one
            return Step()
        if sender == WORKER and isinstance(event, StandbyFollows):
            self._sessions.caught_up = event.standby
            self._rule(tx := self._tx(now))
            return self._close_turn(tx)
        if sender == WORKER and isinstance(event, ManifestWritten):
            if checkpointing.written(tx := self._tx(now), event):
                resharding.finish(tx)
            return self._close_turn(tx)
        if sender == WORKER and isinstance(event, KitRead):
            return self._read_kit(now, event)
        self._demand_permitted(sender, event)
        # Whoever holds a client's key and looks does not say that it is there.
        # Its main thread says that it hangs, and nothing of its loop.
        if not isinstance(event, requests.AskRun | requests.AskStatus | requests.Trouble):
            federation = self.federation
            if sender in federation.members and sender not in federation.why_gone:
                self._sessions.renew(sender, now + self.plan.section.lease)
        tx = self._tx(now)
        answer = self._answer(tx, sender, event)
        self._close_turn(tx)
        if answer is not None:
            tx.step.effects.append(Answer(answer))
        return tx.step

    @property
    def telemetry(self) -> tuple[requests.Telemetry, ...]:
        return self._telemetry.newest

    def live(self, now: float) -> frozenset[str]:
        return frozenset(self._sessions.live(now))

    @property
    def servers(self) -> tuple[requests.ServerStatus, ...]:
        """Shards and holders, and which watch now; the coordinator too, if it has a trouble."""
        return servers(self.federation, self._settings.roster, self._sessions, self.plan)

    def _answer(
        self, tx: Transaction, sender: str, event: Event
    ) -> requests.Reply | NotReady | None:
        if self.federation.pinned is None and not isinstance(event, BEFORE_A_RUN):
            # Whoever says it holds a run, and this folder may be a volume that is not mounted: a
            # refusal would end a shard, and drop what a client sealed.
            raise NotReady(f"{sender} speaks of a run, and none is founded here yet", LATER)
        reign.demand_ruling(tx, sender, event)
        gave_up = sender in tx.federation.moving.removed or tx.spare(sender)
        if isinstance(event, OF_BLOCKS) and gave_up:
            return requests.Noted()  # it held some when it said so
        self._demand_own(tx, sender, event)
        match event:
            case requests.Register():
                answer = founding.register(tx, self._settings, event)
                self._rule(tx)
                return answer
            case requests.Join(client):
                if client not in self._sessions.watchers:  # another process, whose disk may work
                    self._sessions.trouble(client, "")
                membership.demand_known(tx, self._follower, client)
                if waits := membership.join(tx, self._settings, event):
                    return waits
                self._sessions.renew(client, tx.now + self.plan.section.lease)
                known = tx.federation
                self._sessions.located[client] = known.addresses, known.placement.epoch
                return self._welcome(tx, client)
            case requests.Subscribe(party, unsettled, epoch):
                self._sessions.epochs[party] = epoch
                if self._settings.roster.find(party).role == "client":
                    pending = tx.federation.pending(party)
                    self._sessions.lost[party] = pending.difference(unsettled)
                self._sessions.waiting[party] = event
                self._rule(tx)
                return None
            case requests.Heartbeat():
                pass
            case requests.Submit(receipt):
                submissions.submit(tx, self._settings.roster, receipt)
            case requests.Trouble(party, reason):
                self._sessions.trouble(party, membership.said(reason))
            case requests.Retire(party):
                self._sessions.leave(party)
                membership.retire(tx, event)
            case requests.Decline():
                membership.decline(tx, event)
            case requests.Withdraw():
                membership.withdraw(tx, event)
            case Evaluated():
                membership.evaluated(tx, self._settings.roster, event)
            case requests.Missing(party, ids=ids):
                # A client may have the name of a shard that left, and reopens no cohort as that.
                if self._settings.roster.find(party).role == "client":
                    membership.gone(tx, party, ids)
                else:
                    answers.missing(tx, event)
            case Held():
                answers.held(tx, event)
            case requests.Spoilt():
                answers.spoilt(tx, event)
            case requests.Prepared():
                answers.prepared(tx, event)
            case requests.Checkpointed():
                answers.checkpointed(tx, event)
            case requests.Opened():
                answers.opened(tx, event)
            case requests.OpenRefused():
                answers.refused(tx, event)
            case requests.KeyShare():
                answers.key_share(tx, event)
            case requests.Examined():
                envelopes.looked_into(tx, tx.group(event.group), event)
            case EnvelopeKeyAnnounced():
                envelopes.announced(tx, self._settings.roster, event)
            case requests.Telemetry():
                self._telemetry.take(event, tx.federation.groups)
                if self.plan.section.scaling is not None:
                    self._load.take(event, tx.federation.shards)
            case TakeOver():
                raise Refused("it rules already: there is nothing to take over")
            case Act():
                acts.do(tx, event)
            case requests.AskRun():
                return self._welcome(tx)
            case requests.AskStatus():
                return status(tx, self._telemetry.newest, self.servers)
            case _:
                raise Malformed(f"the coordinator has no answer to a {type(event).__name__}")
        return requests.Noted()

    def _demand_own(self, tx: Transaction, sender: str, event: Event) -> None:
        """UnknownParty unless everybody speaks for themselves, and shards of blocks they hold.

        Malformed if a holder speaks for a committee of a run that has none.
        """
        names = [event.receipt.id.client] if isinstance(event, requests.Submit) else []
        if not isinstance(event, Act):  # whose party is whom it is about
            fields = ("party", "client", "shard", "holder")
            names += [getattr(event, name) for name in fields if hasattr(event, name)]
        role = "" if sender == COORDINATOR else self._settings.roster.find(sender).role
        if isinstance(event, requests.Subscribe) and role == "client":
            names += [id.client for id in event.unsettled]
        for claimed in names:
            if claimed != sender:
                raise UnknownParty(f"{sender} speaks as {claimed}; everyone speaks for themselves")
        of_blocks = isinstance(event, OF_BLOCKS) and role == "shard"
        if of_blocks and sender not in tx.federation.placed:
            raise UnknownParty(f"{sender} holds no blocks of this run, which is placed already")
        if isinstance(event, OF_A_COMMITTEE) and not opening.wanted(self.plan):
            raise Malformed(f"{sender} speaks for a committee, and this run has none")

    def _rule(self, tx: Transaction) -> None:
        """Does what is left to do before this coordinator rules, then what waited for that."""
        for event in reign.asked(tx):
            self._watched(tx, event)
            tx.order(event.party, make_configure(tx))
        reign.pass_fence(tx)
        reign.follow(tx)
        if reign.rules(tx):
            waiting = list(self._sessions.waiting.values())
            self._sessions.waiting.clear()
            for event in waiting:
                self._watched(tx, event)
                located = self._sessions.located.pop(event.party, None)
                resubscribe.repeat(tx, event.party, event.unsettled, located)

    def _watched(self, tx: Transaction, event: requests.Subscribe) -> None:
        party = event.party
        if party in self._sessions.told and party not in self._sessions.watchers:
            self._say_of_server(tx, party, "is here again")
        self._sessions.watchers.add(party)
        self._sessions.away.pop(party, None)
        # It may have come anew without what it has prepared.
        self._sessions.prepared = {each for each in self._sessions.prepared if each[2] != party}
        self._sessions.told.add(party)
        membership.tell_roster(tx, self._follower, event)  # orders name who is new on it

    def _say_of_server(self, tx: Transaction, party: str, text: str) -> None:
        """Logs what became of a server: rounds wait for it, and not for clients alone."""
        if party not in self.federation.members and not self.federation.finished:
            tx.step.effects.append(Say(f"{party} {text}"))

    @staticmethod
    def _welcome(tx: Transaction, client: str = "") -> requests.Welcome:
        pinned = tx.federation.pinned
        if pinned is None:
            raise NotReady("the run is not founded yet")
        shards, sequences = tx.federation.addresses, tx.federation.next_of(client)
        return requests.Welcome(pinned.run, pinned.placement, shards, sequences)

    # --- the roster ---------------------------------------------------------------

    def _read_kit(self, now: float, event: KitRead) -> Step:
        step = Step()
        newer = self._follower.read(step, event)
        known, self._sessions.roster = self._sessions.roster, self._follower.notice
        if self._sessions.roster not in ("", known):
            step.effects.append(Say(f"the coordinator {self._sessions.roster}"))
        keys, roster = event.keys or self._settings.keys, self._follower.roster
        self._settings = own = replace(self._settings, roster=roster, keys=keys)
        tx = replace(self._tx(now), step=step)
        if newer:
            membership.announce(tx, event.roster)
            membership.revoke(tx, roster)
        if newer or event.keys:
            opening.form_committee(tx, own)
        return self._close_turn(tx)

    # --- small things -------------------------------------------------------------

    def _tx(self, now: float) -> Transaction:
        everybody, evaluator = self._settings.roster.names("client"), self.plan.evaluator
        return Transaction(
            now=now,
            plan=self.plan,
            federation=self.federation,
            clients=everybody - {evaluator} if evaluator else everybody,
            holders=tuple(sorted(self._settings.roster.names("holder"))),
            live=self._sessions.live(now),
            watchers=self._sessions.watchers,
            sessions=self._sessions,
            cache=self._cache,
        )

    def _close_turn(self, tx: Transaction) -> Step:
        if rules := reign.rules(tx):
            scaling.advance(tx, self._load)
        self._until = scheduler.advance(tx) if rules else None
        self._telemetry.measure(tx)
        if self.plan.section.scaling is not None:
            self._load.measure(tx)
        return tx.step
