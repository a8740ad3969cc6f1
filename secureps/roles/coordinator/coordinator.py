"""The coordinator decides what happens next in a run; it sees receipts and never payloads.

Theory of operation. `Coordinator` is a machine (`roles.machine`). `handle` takes one event: a
request of a client, shard or key holder, an operator's act, or a tick. `_answer` passes it to the
module that knows it. `_close_turn` then has `scheduler.advance` move every group as far as it can
go; with very many members, once for all messages of a moment. All modules work on one
`transaction.Transaction`: `write` journals a record and folds it into `state.CoordinatorState` at
once, and `order` sends an order to a party that watches now.

What happens to one update:

    asked      `scheduler` journals RoundOpened or MemberAsked, and sends the client an invitation
    received   `membership.submit` checks the receipt, and journals it with its privacy charge
    examined   `envelopes.examine` has key holders look into the receipt's envelopes
    closed     `scheduler` asks the rule (`policy.rules`), and `commit.close` journals the cohort
    held       `commit.take_held` notes each shard that has added the cohort's blocks
    opened     `commit.take_key_share` keeps shares; `commit.try_answers` tries the sums of keys
               that they give
    committed  `commit.take_prepared` journals the version when all shards have made it
    burnt      `commit.burn` ends a cohort that nobody can open; `recovery` chooses who follows

What survives a kill is the journal. `resume` begins a new incarnation, which shards and holders
obey from then on. `transaction.Sessions` forgets who is here. An order may be lost with the stream
that carried it, so `repeat_orders` says every order that still matters again to a party that
subscribes anew. Orders are idempotent, and an act that is done already changes nothing.

Guards. `roles.permissions` and `_demand_own` stop a party that speaks for another one.
`membership.submit` stops receipts that were forged, or made for another run or plan; a repeated
one changes nothing. `opening` finds key holders that lie about shares, and `recovery` finds
clients that spoil cohorts. `reign` ends a coordinator whose journal is older than what shards
obey, so that two never rule at once. A corrupt coordinator is stopped elsewhere: shards, holders
and clients check what it orders.

Look first at `group.TRANSITIONS` for what a group can go through, `scheduler` for when it does,
`commit` for the six steps of a version, and TAKEN_BY for which module takes a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from secureps.errors import ConfigError, Malformed, NotReady, PlanRefused, Refused, UnknownParty
from secureps.messages import requests
from secureps.messages.acts import OF_A_CLIENT, Act, Deed, ShardDeed
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.orders import Discard, Found
from secureps.messages.records import Incarnated, RosterFollowed
from secureps.messages.run import COORDINATOR, RunInfo
from secureps.messages.submission import Held, SubmissionId
from secureps.policy.plan import different_keys
from secureps.roles.coordinator import (
    checkpointing,
    commit,
    envelopes,
    founding,
    membership,
    opening,
    reign,
    resharding,
    scaling,
    scheduler,
    termination,
)
from secureps.roles.coordinator.group import MAKING, GroupState, OpenReceipts, Phase
from secureps.roles.coordinator.reign import Seat
from secureps.roles.coordinator.scaling import Load
from secureps.roles.coordinator.state import BY_ITSELF, CoordinatorState, WriteManifest
from secureps.roles.coordinator.status import (
    HERE,
    NOT_KNOWN,
    Window,
    describe_wait,
    servers,
    status,
)
from secureps.roles.coordinator.transaction import Sessions, Transaction
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Done,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Record,
    Step,
    Tick,
    WatchLost,
    WorkFailed,
)
from secureps.roles.pinned_run import LATER, PinnedRun
from secureps.wording import named

BEFORE_A_RUN = (*reign.ALWAYS, requests.Join, requests.Subscribe, requests.Retire)
"""Requests that a coordinator accepts before it has founded a run."""


OF_BLOCKS = (Held, requests.Missing, requests.Spoilt, requests.Prepared, requests.Checkpointed)
"""Messages that only a shard which holds blocks may send."""

OF_A_COMMITTEE = (requests.Examined, requests.KeyShare, EnvelopeKeyAnnounced)

LOOK_AGAIN = 1.0
"""Seconds from an event that moves no group (`Transaction.quiet`) to the next look at all groups.

Most answers of key holders about a receipt are such events: only the answer that makes enough of
them lets the receipt into a cohort. A status may say for so long what groups waited for before."""

CROWD, LOOKED_AT = 1000, 50_000
"""With more than CROWD members, groups are looked at once in a while instead of after each message
of a client, so that LOOKED_AT members are looked at in a second."""


class Coordinator(Seat):
    """The machine of the one coordinator of a federation."""

    def __init__(self, settings: PinnedRun) -> None:
        super().__init__("the coordinator", settings.plan, settings.roster)
        self._settings = settings
        if settings.initial is not None:
            settings.plan.layout(settings.initial)  # refused now, not when the shards are up
        looks = settings.examined and settings.plan.has_committee
        enough = settings.plan.threshold if looks else 0
        bounds, names = settings.plan.bounds, settings.plan.all_groups
        groups = {
            name: GroupState(
                name,
                rounds=bounds(name).rounds,
                trails=settings.plan.trails(name),
                times=settings.plan.times_median(name),
                open_receipts=OpenReceipts(enough),
            )
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
        self._until: float | None = None

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        if isinstance(record, RosterFollowed):
            self._follower.apply(record)
            self._settings = replace(self._settings, roster=self._follower.roster)
        self.federation.apply(at, record)

    def make_fold(self) -> Fold:
        pinned = self.federation.pinned
        records = (*(() if pinned is None else (pinned,)), *self._follower.records)
        return Fold(records, to_plain(self.federation))

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        enough = {name: g.open_receipts.enough for name, g in self.federation.groups.items()}
        self.federation = from_plain(CoordinatorState, fold.state)
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
        reign.begin(tx)
        if pinned is not None and self._settings.roster.digest != pinned.run.roster:
            self._follower.resume(tx.step)
        membership.revoke(tx)
        opening.form_committee(tx)
        checkpointing.write_manifest_if_whole(tx)
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

    def report_trouble(self, reason: str) -> list[Effect]:
        """Shows a fault of this process, such as a full disk, in the status."""
        self._sessions.trouble(COORDINATOR, reason)
        return []

    def view(self, now: float, sender: str, message: Event) -> requests.Reply | None:
        """Answers `AskStatus`, also while the coordinator's own disk is full.

        The end of a run is left out: parties stop when they see it, and it may not be on record.
        """
        if not isinstance(message, requests.AskStatus):
            return None
        self._demand_permitted(sender, message)
        seen = status(self._tx(now), self._telemetry.newest, self.servers)
        return replace(seen, finished="", failure="")

    def recall(self) -> requests.Status:
        """Returns the status by the journal alone, which does not say which clients are live.

        So the state of every client is "not known", and no group's reason names clients as away.
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
        tx = self._tx(now)
        match event:
            case Tick():
                return self._close_turn(tx)
            case WatchLost():
                self._sessions.waiting.pop(sender, None)
                self._sessions.watchers.discard(sender)
                self._say_of_server(tx, sender, "is away")
                # a shard leaves the run if it stays away
                return self._close_turn(tx, self._patience(tx, sender, event))
            case WorkFailed(_, error) | Failed(_, error):
                return Step(effects=[Halt(str(error), type(error))])
            case Answered():  # from another coordinator
                return Step()
            case StandbyFollows(standby) if sender == WORKER:
                self._sessions.caught_up = standby
                self._rule(tx)
                return self._close_turn(tx)
            case Done(WriteManifest() as task, tuple() as kept) if sender == WORKER:
                if checkpointing.complete(tx, task, kept):
                    resharding.finish(tx)
                return self._close_turn(tx)
            case KitRead() if sender == WORKER:
                return self._read_kit(now, event)
        self._demand_permitted(sender, event)
        # These do not show that a client works: anybody with its key may ask for the run or the
        # status, and a thread beside its loop reports that the loop hangs.
        if not isinstance(event, requests.AskRun | requests.AskStatus | requests.Trouble):
            federation = self.federation
            if sender in federation.members and sender not in federation.why_gone:
                self._sessions.renew(sender, now + self.plan.section.lease)
        answer = self._answer(tx, sender, event)
        self._close_turn(tx, self._patience(tx, sender, event))
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
        """The shards and holders for a status, and the coordinator if it has a trouble."""
        return servers(self._tx(0.0))

    def describe_waits(self, now: float) -> dict[str, str]:
        tx, own = self._tx(now), self.servers
        return {name: describe_wait(tx, group, own) for name, group in tx.federation.groups.items()}

    def _answer(
        self, tx: Transaction, sender: str, event: Event
    ) -> requests.Reply | NotReady | None:
        if self.federation.pinned is None and not isinstance(event, BEFORE_A_RUN):
            # The sender holds a run, and this folder may be a volume that is not mounted. Any
            # other error would end a shard, and would make a client drop what it sealed.
            raise NotReady(f"{sender} speaks of a run, and none is founded here yet", LATER)
        reign.demand_ruling(tx, sender, event)
        gave_up = sender in tx.federation.moving.removed or tx.is_spare(sender)
        if isinstance(event, OF_BLOCKS) and gave_up:
            return requests.Noted()  # the shard still held blocks when it sent this
        self._demand_own(tx, sender, event)
        match event:
            case requests.Register():
                answer = founding.register(tx, event)
                self._rule(tx)
                return answer
            case requests.Join(client):
                if client not in self._sessions.watchers:  # a new process, whose disk may be sound
                    self._sessions.trouble(client, "")
                membership.demand_known(tx, self._follower, client)
                if waits := membership.join(tx, event):
                    return waits
                self._sessions.renew(client, tx.now + self.plan.section.lease)
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
            case requests.Trouble(party, reason):
                self._sessions.trouble(party, membership.shorten(reason))
            case requests.Missing(party, ids=ids):
                # A client may have the name of a shard that left: it must not reopen a cohort.
                if self._settings.roster.find(party).role == "client":
                    membership.take_lost(tx, party, ids)
                else:
                    commit.take_missing(tx, event)
            case requests.Prepared(epoch=epoch) if epoch:
                resharding.take_prepared(tx, event)
            case requests.Examined():
                envelopes.take_examination(tx, tx.group(event.group), event)
            case requests.Telemetry():
                self._telemetry.take(event, tx.federation.groups)
                if self.plan.section.scaling is not None and not self.plan.trails(event.group):
                    self._load.take(event, tx.federation.shards)
                else:
                    tx.quiet = True
            case requests.TakeOver():
                raise Refused("it rules already: there is nothing to take over")
            case requests.AskRun():
                return self._welcome(tx)
            case requests.AskStatus():
                return status(tx, self._telemetry.newest, self.servers)
            case _ if (take := TAKEN_BY.get(type(event))) is not None:
                take(tx, event)
            case _:
                raise Malformed(f"the coordinator has no answer to a {type(event).__name__}")
        return requests.Noted()

    def _demand_own(self, tx: Transaction, sender: str, event: Event) -> None:
        """UnknownParty if the sender speaks for another party, or of blocks that it cannot hold.

        Malformed if it speaks for a committee, and the run has none.
        """
        names = [event.receipt.id.client] if isinstance(event, requests.Submit) else []
        if not isinstance(event, Act):  # an act's `party` is the party that the act is about
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
        if isinstance(event, OF_A_COMMITTEE) and not self.plan.has_committee:
            raise Malformed(f"{sender} speaks for a committee, and this run has none")

    def _rule(self, tx: Transaction) -> None:
        """Takes the next step towards ruling; once it rules, serves waiting subscriptions."""
        left = set(tx.federation.reigns.left)
        for event in reign.pick_next(tx):
            self._watched(tx, event)
            tx.order(event.party, tx.make_configure())
        reign.pass_fence(tx)
        reign.record_follower(tx)
        left.difference_update(tx.federation.reigns.left, self._sessions.waiting)
        for shard in sorted(left & tx.federation.moving.left.keys()):
            resharding.dismiss(tx, shard)
        if reign.is_ruling(tx):
            waiting = list(self._sessions.waiting.values())
            self._sessions.waiting.clear()
            for event in waiting:
                self._watched(tx, event)
                repeat_orders(tx, event.party, event.unsettled)

    def _watched(self, tx: Transaction, event: requests.Subscribe) -> None:
        party = event.party
        if party in self._sessions.told and party not in self._sessions.watchers:
            self._say_of_server(tx, party, "is here again")
        self._sessions.watchers.add(party)
        self._sessions.away.pop(party, None)
        # A shard may have come back without what it had prepared.
        self._sessions.prepared = {each for each in self._sessions.prepared if each[2] != party}
        self._sessions.told.add(party)
        membership.tell_roster(tx, self._follower, event)  # first: orders name newcomers

    def _say_of_server(self, tx: Transaction, party: str, text: str) -> None:
        """Logs that a server went away or came back, because rounds wait for servers too."""
        if party not in self.federation.members and not self.federation.finished:
            tx.step.say(f"{party} {text}")

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
            step.say(f"the coordinator {self._sessions.roster}")
        keys, roster = event.keys or self._settings.keys, self._follower.roster
        self._settings = replace(self._settings, roster=roster, keys=keys)
        tx = replace(self._tx(now), step=step)
        if newer:
            membership.announce(tx, event.roster)
            membership.revoke(tx)
        if newer or event.keys:
            opening.form_committee(tx)
        return self._close_turn(tx)

    # --- transactions -------------------------------------------------------------

    def _tx(self, now: float) -> Transaction:
        everybody, evaluator = self._settings.roster.names("client"), self.plan.evaluator
        return Transaction(
            now=now,
            settings=self._settings,
            federation=self.federation,
            clients=everybody - {evaluator} if evaluator else everybody,
            holders=tuple(sorted(self._settings.roster.names("holder"))),
            live=self._sessions.live(now),
            watchers=self._sessions.watchers,
            sessions=self._sessions,
        )

    def _patience(self, tx: Transaction, sender: str, event: Event) -> float:
        """Returns for how many seconds an event need not move any group.

        A look at all groups takes as long as there are members. Where these are very many, one look
        serves all that clients, members or not, say in a moment, and all that holders say of their
        updates.
        """
        if tx.quiet:
            return LOOK_AGAIN
        many = len(self.federation.members)
        clients = self._settings.roster.names("client")
        by_many = sender in clients or isinstance(event, requests.Examined)
        return many / LOOKED_AT if by_many and many > CROWD else 0.0

    def _close_turn(self, tx: Transaction, patience: float = 0.0) -> Step:
        """Moves every group as far as it can go, now or when this patience has ended."""
        if patience:
            soon = tx.now + patience
            self._until = soon if self._until is None else min(self._until, soon)
        else:
            if rules := reign.is_ruling(tx):
                scaling.advance(tx, self._load)
            self._until = scheduler.advance(tx) if rules else None
        self._telemetry.measure(tx)
        if self.plan.section.scaling is not None:
            self._load.measure(tx)
        return tx.step


# --- acts --------------------------------------------------------------------------


def do_act(tx: Transaction, act: Act) -> None:
    """Does an operator's act, unless it is done already."""
    what = _deed(act)
    act = Act(what.value, act.party, membership.shorten(act.reason))
    known, out = tx.federation, tx.federation.isolated
    if act.reason.startswith(BY_ITSELF):  # an audit would take the act for the coordinator's own
        raise Malformed(
            f'a reason that begins with "{BY_ITSELF}" is the coordinator\'s own, for what it does '
            "because of the load: word yours another way"
        )
    if known.finished:
        raise Refused(f"the run is over: {known.finished}")
    match what:
        case Deed.PAUSE if not known.paused:
            tx.write(act)
        case Deed.GO_ON if known.paused:
            tx.write(act)
        case Deed.SCALING_OFF | Deed.SCALING_ON if tx.plan.section.scaling is None:
            raise Refused(
                "this run's plan has no [scaling]: nothing follows the load, and there is nothing "
                "to switch off"
            )
        case Deed.SCALING_OFF if not known.scaled.off:
            tx.write(act)
        case Deed.SCALING_ON if known.scaled.off:
            tx.write(act)
        case Deed.CHECKPOINT if not known.wants_checkpoint and checkpointing.has_newer_version(tx):
            tx.write(act)
        case Deed.LEAVE_OUT if act.party not in out:
            _leave_out(tx, act)
        case Deed.TAKE_BACK if act.party in known.left_out:
            tx.write(act)
        case Deed.TAKE_BACK if act.party in out:
            raise Refused(f"{act.party} was not left out by an operator: {out[act.party]}")
        case Deed.LEAVE_OUT | Deed.TAKE_BACK if act.party not in tx.clients:
            raise UnknownParty(f"no client that trains in this run is called {act.party!r:.80}")
        case ShardDeed():
            resharding.begin_move(tx, act)
            drained = what is ShardDeed.DRAIN and act.party not in known.scaled.drained
            if drained and tx.plan.section.scaling is not None:
                tx.write(act)  # scaling drained it; from now on only an operator adds it again
        case _:
            pass  # already done


def _deed(act: Act) -> Deed | ShardDeed:
    known: dict[str, Deed | ShardDeed] = {deed.value: deed for deed in (*Deed, *ShardDeed)}
    if (what := known.get(act.what)) is None:
        raise Malformed(f"{act.what!r:.40} is no act: it is one of {', '.join(known)}")
    role = "shard" if isinstance(what, ShardDeed) else "client" if what in OF_A_CLIENT else ""
    if bool(role) != bool(act.party):
        whom = f"a {role}: name one" if role else "no client: name none"
        raise Malformed(f"{what.value} is of {whom}")
    return what


def _leave_out(tx: Transaction, act: Act) -> None:
    federation, client = tx.federation, act.party
    if client not in tx.clients:
        raise UnknownParty(f"no client that trains in this run is called {client!r:.80}")
    left = tx.clients - federation.isolated.keys() - federation.retired - {client}
    for group in federation.groups.values():
        least = tx.plan.bounds(group.name).minimum
        if len(left) < least:
            cohort = f"a cohort{tx.plan.of(group.name)} needs {least}"
            raise Refused(f"without {client} {len(left)} clients are left, and {cohort}")
    tx.write(act)
    for group in federation.groups.values():
        if group.phase is Phase.COLLECTING and client in group.invited:
            termination.leave_out(tx, group)


# --- repeated orders ---------------------------------------------------------------


def repeat_orders(tx: Transaction, party: str, unsettled: tuple[SubmissionId, ...]) -> None:
    """Repeats to a party that subscribed all orders that still concern it, in order of the steps.

    Args:
        unsettled: submissions whose fate the party does not know: those in a client's outbox, or
            those of which a shard has blocks.
    """
    federation = tx.federation
    if federation.pinned is None:
        return
    if party in federation.moving.left and party not in federation.members:
        resharding.dismiss(tx, party)
        return
    tx.order(party, tx.make_configure())
    if party in federation.placed:
        for group in federation.groups.values():
            _repeat_to_shard(tx, group, party)
        past = tuple(id for id in unsettled if federation.is_past(id))
        if past:
            tx.order(party, Discard(federation.incarnation, past))
    elif party in tx.holders:
        if federation.least_usable_key(party):
            tx.order(party, envelopes.make_erase(tx, party))
        for group in federation.groups.values():
            if tx.plan.has_committee:
                _repeat_to_committee(tx, group, party)
            elif group.phase is Phase.OPENING:
                tx.order(party, commit.make_open(tx, group))
            elif group.phase is Phase.PREPARING:
                commit.prepare_again(tx, group)  # a shard may have lost sums of this holder
    elif not tx.is_spare(party):  # a spare shard is told its run, and nothing else
        for committee in opening.used_committees(tx):
            tx.order(party, opening.make_seal_for(tx, committee))
        for id in unsettled:
            if federation.settled.of(id) is not None:
                tx.tell_fates((id,))
            elif not federation.is_known(id):
                commit.send_again(tx, (id,))
        for group in federation.groups.values():
            _repeat_to_client(tx, group, party)
    if party in checkpointing.parts_due(tx):
        checkpointing.order_part(tx, party)
    if federation.finished:
        termination.tell_finish(tx, party)


def _repeat_to_shard(tx: Transaction, group: GroupState, shard: str) -> None:
    commit.tell_coming(tx, group, shard)
    blocks = tx.federation.owners(group.name).get(shard)
    if blocks is None:
        return
    if group.phase is Phase.FOUNDING:
        for receipt in commit.founding_models(tx, group) if shard not in group.coming else ():
            tx.order(shard, Found(tx.federation.incarnation, group.name, receipt))
        return
    tx.order(shard, commit.make_known(tx, group, shard, blocks))
    if group.phase in MAKING:
        # The shard may have lost its journal: ask again, and continue from its reply.
        if shard in group.coming:
            tx.sessions.unconfirmed.add((group.name, shard))
        tx.order(shard, commit.make_hold(tx, group, blocks))


def _repeat_to_committee(tx: Transaction, group: GroupState, holder: str) -> None:
    if group.takes_updates or group.phase in (Phase.HOLDING, Phase.OPENING):
        for receipt in opening.unexamined(tx, group, holder):
            tx.order(holder, envelopes.make_examine(tx, receipt))
    if group.is_opening and holder in opening.silent_holders(tx, group):
        tx.order(holder, commit.make_open(tx, group))


def _repeat_to_client(tx: Transaction, group: GroupState, client: str) -> None:
    if group.version >= 0:
        tx.order(client, commit.make_published(tx, group))
    for receipt in [group.receipts[id] for id in group.open_receipts.clients.get(client, ())]:
        commit.resume_submission(tx, group, receipt)  # a shard may have lost its blocks
    if group.awaits(client):
        tx.order(client, tx.make_invite(group, client))
    founder = client == tx.federation.founder and not tx.plan.is_given(group.name)
    if group.phase is Phase.FOUNDING and founder and not group.receipts:
        tx.order(client, tx.make_invite(group, client))


TAKEN_BY: dict[type, Callable[[Transaction, Any], None]] = {
    Act: do_act,
    requests.Submit: membership.submit,
    requests.Decline: membership.decline,
    requests.Withdraw: membership.withdraw,
    requests.Retire: membership.retire,
    Evaluated: membership.take_evaluation,
    requests.Spoilt: commit.take_spoilt,
    requests.Prepared: commit.take_prepared,
    requests.Checkpointed: checkpointing.take_checkpointed,
    requests.Opened: commit.take_opened,
    requests.OpenRefused: commit.take_refusal,
    requests.KeyShare: commit.take_key_share,
    Held: commit.take_held,
    EnvelopeKeyAnnounced: envelopes.take_key,
}
"""Requests that need nothing but the transaction."""
