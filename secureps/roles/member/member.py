"""A member is one client of a run: it joins, pulls, trains, seals and sends, and may leave.

Theory of operation. `Member` is a machine (`roles.machine`). It speaks with the coordinator about
rounds and receipts, and with shards about blocks. The worker (`client.worker`) trains and seals.
`outbox.Outbox` has the updates on their way, `outbox.Desk` says which training is due,
`pulled_model.PulledModel` has the published versions, `committees` the key holders to seal for,
`terms` what the data holder insists on, and `Departure` whether the client leaves or rests.

What happens to one update:

    joined    `_greet` asks to take part. `_take_welcome` checks the run against kit and terms
              (`MemberSettings.agree`), journals it, and opens the stream of orders.
    invited   `_obey` keeps the invitation until `_begin_next` finds that it is due
    pulled    `PulledModel.ask_for_absent` asks shards for the blocks that are not here
    trained   the task `Contribute` trains and seals
    sealed    `_take_contribution` journals `Sealed`, and then sends the blocks
    received  `_take_answer` sends the receipt when shards have all blocks
    settled   `_settle` journals the fate; the payload goes when nobody can ask for it any more

What survives a kill. A sealed update is on record and its payload in the outbox, so the same bytes
are sent again when the coordinator asks. Invitations and transfers are forgotten, and the
coordinator repeats them. An update that was not sealed whole is sealed anew under another one-time
key: nothing of it has left.

Guards. `MemberSettings.agree` refuses a run of another kit, another plan than the data holder
agreed to, and a client's own state that is older than what the coordinator saw. `committees`
stops a coordinator that would have two committees open one version. The data holder's ledger
(`store.budget`) stops a second update from one model, also when this journal is lost.

Look first at `_begin_next` for what the client does next, and at `_obey` for orders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from secureps.errors import (
    BudgetSpent,
    Conflict,
    InternalError,
    Malformed,
    PlanRefused,
    SecurepsError,
    TermsRefused,
    Unreachable,
    from_wire,
)
from secureps.messages import orders, requests
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.member_records import (
    MemberRecord,
    OwnAct,
    OwnDeed,
    Sealed,
    SequencesBegun,
    SubmissionSettled,
)
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.run import COORDINATOR, Task
from secureps.messages.submission import (
    FOUNDING,
    Base,
    BlockHeader,
    Outcome,
    Receipt,
    SubmissionId,
)
from secureps.policy.plan import Plan
from secureps.privacy.ledger import Ledger
from secureps.roles.machine import (
    WORKER,
    AnnouncedKeys,
    Answered,
    Call,
    DiskReports,
    Done,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Leave,
    Locate,
    Prune,
    Record,
    RosterFollower,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.member.committees import Committees
from secureps.roles.member.outbox import (
    FOUNDED,
    GATHER_SECONDS,
    Desk,
    Outbox,
    Timing,
    portion,
    why_not_evaluated,
)
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.member.tasks import (
    DECLINES,
    Aim,
    Contribute,
    Contributed,
    Evaluate,
    Offer,
)
from secureps.roles.member.terms import STATE_GONE, Budget, MemberSettings
from secureps.roles.pinned_run import Pinned, PinnedParty
from secureps.wording import duration


def send_blocks(step: Step, pinned: Pinned, headers: Iterable[BlockHeader]) -> None:
    for each in headers:
        to = pinned.placement.of(each.group).owners[each.block]
        step.effects.append(Call(to, requests.PutBlock(each), attach=each.key))


_IDLE = (
    requests.Telemetry,
    requests.Trouble,
    requests.Decline,
    requests.Withdraw,
    requests.Missing,
)
"""Requests whose failure changes nothing."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a client, without the run and its rosters.

    Args:
        sealed, next, carried, founded: as in `Outbox`.
        committee: by group, the newest receipt under a committee.
        acted, wants: as in `Departure`.
        lowered: the least budget that an act named.
    """

    client: str
    sealed: dict[SubmissionId, Sealed]
    next: dict[str, int]
    carried: dict[str, tuple[int, bytes]]
    committee: dict[str, Receipt]
    keys: AnnouncedKeys
    ledger: Ledger
    founded: set[str]
    acted: int
    wants: OwnDeed | None
    lowered: float | None


class Member(PinnedParty):
    """The machine of one client; `apply` alone changes what survives a restart."""

    def __init__(self, settings: MemberSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._follower = RosterFollower(settings.roster)
        self.committees = Committees(self._follower, settings.name)
        self._groups: tuple[str, ...] = ()
        self._out = Outbox()
        self._ledger = Ledger()
        self._model = PulledModel()
        self._timing = Timing()
        self._working = self._watching = self._greeting = self._warned = False
        self._departure = Departure(settings.name)
        self._desk: Desk
        """Known once the run is."""
        self._has_told_why = False
        """True once it has told its data holder why it sends no evaluation."""
        self._lowered: float | None = None
        self._first_due: float | None = None
        self._gathers_until: float | None = None
        """Until when it waits for further invitations, after the first was due."""
        self._lease_at: float | None = None
        """When its lease is renewed next; None before the run is known."""
        self._beating = False
        self._end: tuple[float, Halt] | None = None
        """After the run has finished: when it ends at the latest, and how."""
        self._disk = DiskReports(settings.name)

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record; InternalError for one that is no member's."""
        match record:
            case RunPinned():
                self._pinned = Pinned.of(record)
                plan = self._pinned.plan
                self._groups = plan.find_touched(self._settings.rows)
                pulled = {g: bool(plan.group(g).pull_bits) for g in self._groups}
                self._model = PulledModel(pulled, client=self.name)
                seen, can_seal = self._model.published, self.committees.can_seal
                self._desk = Desk(plan, self._groups, seen, self._out, can_seal)
                self._out.keeping = frozenset(g for g in plan.groups if plan.group(g).feedback)
            case RosterFollowed():
                self._follower.apply(record)
            case Sealed(receipt):
                self._settings.check_own(receipt.id.client)
                self._out.add(record)
                self.committees.note_sealed(receipt)
                if receipt.fact is not None:
                    self._ledger.append(receipt.fact)
            case EnvelopeKeyAnnounced():
                self.committees.keys.apply(record)
            case SequencesBegun(sequences):
                self._out.begin_at(sequences)
            case SubmissionSettled(id, outcome):
                self._out.settle(id, outcome)
            case OwnAct(budget=budget):
                self._departure.apply(record)
                if budget is not None and (self._lowered is None or budget < self._lowered):
                    self._lowered = budget
            case _:
                raise InternalError(f"a member's journal has no {type(record).__name__}")

    def make_fold(self) -> Fold:
        state = MemberState(
            client=self.name,
            sealed=self._out.sealed,
            next=self._out.next,
            carried=self._out.carried,
            committee=self.committees.newest,
            keys=self.committees.keys,
            ledger=self._ledger,
            founded=self._out.founded,
            acted=self._departure.acted,
            wants=self._departure.wants,
            lowered=self._lowered,
        )
        return Fold((*self.record, *self._follower.records), to_plain(state))

    def unfold(self, fold: Fold) -> None:
        """Restores the state of a compacted journal; ConfigError if it is another client's."""
        state = from_plain(MemberState, fold.state)
        self._settings.check_own(state.client)
        self._ledger = state.ledger  # first, because records refer to it
        for record in fold.records:
            self.apply(0.0, record)
        self._out.sealed, self._out.next = state.sealed, state.next
        self._out.carried, self._out.founded = state.carried, state.founded
        self.committees.newest, self.committees.keys = state.committee, state.keys
        self._departure.acted, self._departure.wants = state.acted, state.wants
        self._lowered = state.lowered

    @property
    def is_over(self) -> bool:
        """True if the run has finished, and only its last version is still to be pulled."""
        return self._end is not None

    @property
    def _plan(self) -> Plan:
        return self.pinned.plan

    @property
    def _budget(self) -> Budget:
        terms = self._settings.terms
        budgets = [each for each in (terms.budget, self._lowered) if each is not None]
        return Budget(self._plan, self.name, min(budgets, default=None), terms.evaluation)

    # --- Machine ------------------------------------------------------------------

    def resume(self, now: float) -> Step:
        """Joins, and deletes payloads from the outbox that are not needed."""
        self._departure.follow()
        return Step(effects=[Work(Sweep(self._out.keys)), *self._greet().effects])

    def _greet(self) -> Step:
        self._greeting = True
        return Step(effects=[Call(COORDINATOR, self._join)])

    @property
    def _join(self) -> requests.Join:
        return self._settings.make_join(self._pinned, self._groups)

    def wake(self) -> float | None:
        end = None if self._end is None or self._working else self._end[0]
        times = (self._lease_at, self._gathers_until, self._departure.until, end)
        return min([t for t in times if t is not None], default=None)

    def subscription(self) -> requests.Subscribe:
        own, unsettled = self._follower.roster, tuple(sorted(self._out.sealed))
        return requests.Subscribe(self.name, unsettled, own.number, own.expires)

    def inspect(self, sender: str, message: requests.Request) -> bool:
        raise Malformed("nobody dials a client")

    def _renew_lease(self, now: float, step: Step) -> None:
        """Sends one heartbeat at a time: while the coordinator is away they do not pile up."""
        self._lease_at = now + self._plan.section.lease / 3
        if not self._beating:
            self._beating = True
            step.tell(requests.Heartbeat(self.name))

    def report_trouble(self, reason: str) -> list[Effect]:
        """Tells the coordinator what is wrong, without the path on this disk."""
        return self._disk.report_trouble(reason.partition(":")[0])

    def handle(self, now: float, sender: str, event: Event) -> Step:
        step = Step()
        match event:
            case Tick():
                if self._departure.end_rest_if_due(now):
                    step.effects += self._greet().effects
                if self._gathers_until is None or self._lease_at is None or now >= self._lease_at:
                    self._renew_lease(now, step)
            case WatchLost():
                self._watching = False
                return self._greet() if self._departure.take_lost_stream() else Step()
            case Answered(requests.Retire(returns=True)) if not self._departure.away:
                return self._greet()  # late: the coordinator takes this client for resting
            case Answered(requests.Retire(returns=rests)) | Failed(requests.Retire(returns=rests)):
                if rests:  # if it leaves by now, it ends after the answer to that
                    return Step()
                if self._departure.wants is OwnDeed.LEAVE:  # a restart then joins anew
                    self._write(step, OwnAct(self._departure.acted, OwnDeed.LEFT))
                if (halt := self._departure.halt) is not None:
                    if self._settings.last == "every" and halt.error is not TermsRefused:
                        step.effects.append(Say(MODEL_LATER))
                    step.effects.append(halt)
                return step
            case Answered(request, reply, length):
                self._take_answer(now, step, request, reply, length)
                if isinstance(request, requests.GetBlock) and self._model.is_pulling:
                    return step
            case Failed(request, error):
                self._take_failure(step, request, error)
            case WorkFailed(_, error):
                halt = Halt(str(error), type(error))
                if not isinstance(error, BudgetSpent):
                    return Step(effects=[halt])
                self._leave(step, halt)
            case Leave(reason) if sender == WORKER:
                if self._departure.halt is None:
                    self._leave(step, Halt(reason))
            case OwnAct() if sender == WORKER:
                self._take_act(step, event)
            case Done(Contribute(aims=())) if sender == WORKER and self._end is not None:
                return Step(effects=[self._end[1]])
            case Contributed() if sender == WORKER and self.is_over:
                self._drop_training(now)
            case Contributed() if sender == WORKER:
                self._take_contribution(now, step, event)
            case Done(_, Evaluated() | requests.Decline() as message) if sender == WORKER:
                self._working = False
                step.tell(message)
                if isinstance(message, Evaluated):
                    text = f"evaluates version {message.version}: {message.examples:,} records"
                    step.say(text)
            case KitRead() if sender == WORKER:
                self._follower.read(step, event)
            case _ if sender == COORDINATOR and self._pinned is not None:
                self._obey(now, step, event)
            case _:
                raise Malformed(f"a member has no answer to a {type(event).__name__}")
        self._begin_next(now, step)
        return step

    # --- orders -------------------------------------------------------------------

    def _obey(self, now: float, step: Step, order: Event) -> None:
        match order:
            case orders.Published(group=group, blocks=blocks):
                due = self.pinned.layout.group(group).blocks
                if len(blocks) != due:
                    raise Malformed(f"a version of {group} has {due} blocks, not {len(blocks)}")
                self._model.publish(order)
                if keys := self._out.release_older(order.group, order.version):
                    step.effects.append(Work(Prune(keys)))
            case orders.Invite(_, group):
                self._desk.open[group] = order
                # a newer invitation replaces an order to seal an older update again
                self._out.again.pop(group, None)
            case orders.SealAgain(_, id):
                self._out.ask_again(self.name, order)
                # an order to seal again replaces the group's open invitation
                self._desk.open.pop(id.group, None)
            case orders.Settled():
                until = order.version if order.burnt and self._plan.has_committee else None
                self._settle(step, order.id, order.outcome, order.reason, until, order.burnt)
            case orders.SendAgain(_, id):
                if id in self._out.sealed:
                    send_blocks(step, self.pinned, self._out.begin_sending(now, id))
                else:
                    step.tell(requests.Missing.of_outbox(self.name, id))
            case orders.Configure():
                self._follow(step, order)
            case orders.RosterChanged(_, text):
                self._follower.follow(step, text)
            case orders.SealFor():
                self.committees.hear(step, order, self.pinned.run.id)
            case orders.Finish(_, reason, failure):
                error = type(from_wire(failure, reason, None)) if failure else None
                halt = Halt(reason + (orders.COME_BACK if error else ""), error)
                own = self._departure.halt
                if error is not None and own is not None and own.error is not None:
                    halt = own  # such as a spent budget, which the run may have failed for
                if error is None and self._wants_last():
                    self._end = self._end or (now + self._plan.section.lease, halt)
                else:
                    step.effects.append(halt)
            case _:
                raise Malformed(f"a member takes no {type(order).__name__}")

    def _wants_last(self) -> bool:
        """Tells whether to pull the last version; has all groups pulled if every one is wanted."""
        last, groups = self._settings.last, self._plan.groups
        if last == "every" and self._model.published.keys() >= set(groups):
            self._model.pull_also(groups)
        sums = any(self._plan.is_sum(group) for group in self._groups)
        wants = bool(last) or (sums and not self._working)
        return wants and self._model.published.keys() >= self._model.groups.keys()

    def _settle(
        self,
        step: Step,
        id: SubmissionId,
        outcome: str,
        reason: str,
        until: int | None = None,
        burnt: bool = False,
    ) -> None:
        """Notes the fate of a submission; keeps it until after version `until`, if that is given.

        After a burnt cohort, a payload is only kept if it can be sealed anew, because the old one
        may be what did not open.
        """
        sealed = self._out.sealed.get(id)
        if sealed is None:
            return
        before = self._out.carried_update(id.group)
        self._write(step, SubmissionSettled(id, str(outcome)))
        if outcome in (Outcome.DROPPED, Outcome.LOST):
            step.say(f"{id} was {outcome}: {reason}")
        newest, dropped = self._model.published.get(id.group), outcome == Outcome.DROPPED
        current = newest is not None and newest.version == sealed.receipt.version
        if until is None and dropped and current and not burnt:
            until = sealed.receipt.version  # another round may ask for it
        keys = () if outcome == Outcome.INCLUDED else self._out.release(sealed, until)
        if keys := (*keys, *self._out.outdated_keys(id.group, before)):
            step.effects.append(Work(Prune(keys)))

    # --- pull, train, seal, evaluate ----------------------------------------------

    def _begin_next(self, now: float, step: Step) -> None:
        """Begins the next task that can begin: founding, pulling, sealing or training."""
        if self._end is not None:
            self._take_last(now, step, *self._end)
            return
        first, self._first_due, self._gathers_until = self._first_due, None, None
        if self._departure.away:
            self._retire(step)
        busy = self._pinned is None or self._working or self._departure.away
        if busy or self._follower.holds_back(step, self.name):
            return
        for group, invite in list(self._desk.open.items()):
            if invite.version == -1 and not self._desk.is_pending(group, FOUNDED):
                self._desk.follow(group)
                if group not in self._out.founded and group not in self._model.published:
                    self._begin(step, Offer(group, self._out.next.get(group, 0)))
                    return
                step.say(f"no founding model of {group} is sent: it is founded")
        self.committees.decline(step, self._plan, self._desk.open, self._model.published)
        self._decline_worn_out(step)
        if self._seal_again(step) or self._evaluate(step) or not (due := self._desk.due()):
            return
        self._first_due = now if first is None else first
        until = self._first_due + GATHER_SECONDS
        if self._desk.may_more_come(due) and now < until:
            self._gathers_until = until
            return
        if self._model.ask_for_absent(self.pinned, step):
            self._timing.begin_pull(now)
            return
        aims = tuple(self._aim(each.group, Base(each.version, each.step)) for each in due)
        for each in due:
            self._desk.follow(each.group)
        self._first_due = None
        within = min(each.seconds for each in due)
        part = portion(self._plan.section, self._timing.paces, within)
        self._timing.begin_training(now, part)
        self._begin(step, Contribute(*self._model.take(), aims, part))

    def _drop_training(self, now: float) -> None:
        """Sends nothing of a training that ended after the run, which did not wait for it.

        The time in which the last version must be pulled begins anew.
        """
        assert self._end is not None
        self._working = False
        self._end = (now + self._plan.section.lease, self._end[1])

    def _take_last(self, now: float, step: Step, until: float, halt: Halt) -> None:
        """Pulls the last version after the run has finished, while its shards still answer.

        It is asked for at once, and stored after the training that is under way.
        """
        absent = self._model.ask_for_absent(self.pinned, step)
        if self._working:
            return
        if not absent:
            self._begin(step, Contribute(*self._model.take(), ()))
        elif now >= until:
            text = "the last version could not be pulled from the shards"
            if self._settings.last == "every":
                then = "start this client again while they run, or ask their operator for an export"
                halt = Halt(f"{halt.reason}, but {text}: {then}", Unreachable)
            step.effects += [Say(text), halt]

    def _begin(self, step: Step, task: Task) -> None:
        self._working = True
        step.effects.append(Work(task))

    def _seal_again(self, step: Step) -> bool:
        """Begins to seal an update anew that is asked for and is still here."""
        task = self._out.next_reseal(self.name, self._desk, step)
        if task is None:
            return False
        if task.receipt.id.group in self._desk.open:
            self._desk.follow(task.receipt.id.group)
        self._begin(step, task)
        return True

    def _decline_worn_out(self, step: Step) -> None:
        """Declines rounds that ask for an update that was sealed too often."""
        for due in self._desk.asked():
            base = Base(due.version, due.step)
            if reason := self._out.why_worn_out(due.group, base):
                self._decline(step, self._desk.open.pop(due.group), base, reason)

    def _decline(self, step: Step, invite: orders.Invite, base: Base, reason: str) -> None:
        if self._plan.trails(invite.group):
            self._decline_evaluation(step, invite, reason)
            return
        of = f"version {base.version} of {invite.group}"
        step.say(f"sends no update from {of}: {reason}")
        asked = self.name, invite.group, invite.round
        step.tell(requests.Decline(*asked, reason, base.version, base.step))

    def _aim(self, group: str, base: Base) -> Aim:
        sequence = self._out.next.get(group, 0)
        return Aim(group, base.version, sequence, base.step, self._out.carried_update(group))

    def _leave(self, step: Step, halt: Halt) -> None:
        self._departure.begin(halt)
        self._retire(step)

    def _retire(self, step: Step) -> None:
        """Tells the coordinator not to wait for it, once all updates that it spent on have arrived.

        The coordinator drops later updates, and a later join takes the message back.
        """
        greeted = self._watching and not self._greeting and not self._departure.told
        if greeted and not self._desk.is_any_wanted():
            self._departure.tell(step)

    def _take_act(self, step: Step, act: OwnAct) -> None:
        if act.number > self._departure.acted and self._pinned is not None:
            self._write(step, act)
            if self._departure.follow():
                step.effects += self._greet().effects
            if (objection := self._budget.objection()) and self._departure.halt is None:
                self._leave(step, Halt(objection))

    def _evaluate(self, step: Step) -> bool:
        """Begins an evaluation that is due, or declines it; returns whether training waits."""
        if self.name == self._plan.evaluator:
            return self._judge(step)
        group = self._plan.trailing
        invite = self._desk.invite(group)
        objection = why_not_evaluated(self._plan, self._model.published, invite)
        if invite is None or objection is None:
            return False
        self._desk.evaluated, base = invite.evaluates, Base(invite.version, invite.step)
        if self._desk.is_pending(group, base):
            return False
        if self._budget.evaluation_objection():
            objection = DECLINES
        if objection:
            del self._desk.open[group]
            self._decline_evaluation(step, invite, objection)
            return False
        if (task := self._make_evaluation(step, self._aim(group, base))) is not None:
            self._desk.follow(group)
            self._begin(step, task)
        return True

    def _judge(self, step: Step) -> bool:
        """Begins the designated evaluator's task, if all groups are at a scheduled version."""
        plan, published = self._plan, self._model.published
        version, *others = {published[g].version if g in published else -1 for g in plan.groups}
        if others or version not in plan.schedule or version <= self._desk.evaluated:
            return False
        if objection := self._budget.evaluation_objection():
            step.effects.append(Halt(objection, PlanRefused))
        elif (task := self._make_evaluation(step)) is not None:
            self._desk.evaluated = version
            self._begin(step, task)
        return True

    def _make_evaluation(self, step: Step, aim: Aim | None = None) -> Evaluate | None:
        """Makes the task for the published version, once all of it is here; else asks for it."""
        if self._model.ask_for_absent(self.pinned, step):
            return None
        digests = tuple(map(self._model.digest, self._plan.groups))
        own = b"" if aim is None else self._model.digest(aim.group)
        return Evaluate(*self._model.take(), digests, aim, own)

    def _decline_evaluation(self, step: Step, invite: orders.Invite, reason: str) -> None:
        """Declines an invitation; tells the data holder, once, if no evaluation is ever sent."""
        if not self._has_told_why and (own := self._budget.evaluation_objection()):
            self._has_told_why = True
            step.say(own)
        step.tell(requests.Decline(self.name, invite.group, invite.round, reason))

    def _take_contribution(self, now: float, step: Step, event: Contributed) -> None:
        self._working = False
        if event.again:
            for group in {aim.group for aim in event.again}:
                self._desk.reopen(group)  # it may be back from a rest before it is asked anew
            self._departure.rest(step, now, event.rest, self._settings.terms.rest)
            return
        self._timing.end_training(now)
        for update in event.updates:
            self._write(step, update)
            self._out.keyed.add(update.receipt.id)
            send_blocks(step, self.pinned, self._out.begin_sending(now, update.receipt.id))
        if event.told and (sent := [update.receipt for update in event.updates]):
            step.say(self._budget.describe(self._ledger, event, sent))
        for aim, reason in event.unsent.items():
            base = Base(aim.version, aim.step)
            self._decline(step, self._desk.followed[aim.group], base, reason)
        left = [self._out.moving.get(update.receipt.id) for update in event.updates]
        if event.figures and (first := next(filter(None, left), None)) is not None:
            down = requests.Figure("bytes_down", float(self._model.take_account()))
            pulls = requests.Figure("pulling_seconds", self._timing.pulled)
            first.work = (*event.figures, down, pulls)  # sent with the receipt

    # --- push ---------------------------------------------------------------------

    def _take_answer(
        self, now: float, step: Step, request: requests.Request, reply: requests.Reply, length: int
    ) -> None:
        match request:
            case requests.Join():
                self._take_welcome(now, step, request, reply)
            case requests.GetBlock():
                assert isinstance(reply, requests.Payload)
                if said := self._model.take_block(request, reply.digest, length):
                    step.effects.append(said)
            case requests.PutBlock(header):
                receipt, transfer = self._out.take_stored(header), self._out.moving.get(header.id)
                if receipt is not None:
                    step.tell(requests.Submit(receipt))
                    if transfer is not None and receipt.purpose != FOUNDING:
                        step.tell(transfer.report(now, receipt))
            case requests.Heartbeat():
                self._beating = False
            case requests.Trouble():
                step.effects += self._disk.repeat_if_stale(request)
            case requests.Submit(receipt):
                transfer = self._out.take_arrived(receipt.id)
                self._desk.forget_answered(receipt)
                if transfer is not None and receipt.purpose != FOUNDING:
                    self._timing.note_transfer(now - transfer.since)

    def _take_welcome(
        self, now: float, step: Step, request: requests.Join, reply: requests.Reply
    ) -> None:
        self._greeting = isinstance(reply, requests.Proposal)
        try:
            if isinstance(reply, requests.Proposal):
                told = self._settings.make_join_again(self._pinned, request, reply)
                step.effects.append(Call(COORDINATOR, told))
                return
            assert isinstance(reply, requests.Welcome)
            self._settings.agree(reply, self._pinned, self._out)
        except TermsRefused as error:
            self._departure.refuse(step, error)
            return
        except SecurepsError as error:
            step.effects.append(Halt(str(error), type(error)))
            return
        if self._pinned is None:
            self._write(step, RunPinned(reply.run, reply.placement, reply.shards))
            if self._plan.has_committee:
                self._follower.resume(step)
            if any(at.version for at in reply.next):
                self._write(step, SequencesBegun(reply.next))
                if self._plan.section.privacy is not None:
                    step.say(STATE_GONE)
        if not self._warned:
            self._warned = True
            step.effects += map(Say, self._settings.warnings(self._plan))
        if request.groups != self._join.groups:
            step.effects += self._greet().effects  # the plan shows which groups it contributes to
            return
        if self._watching:
            return
        self._watching = True
        self._lease_at = now + self._plan.section.lease / 3
        self._follow(step, reply)
        step.effects.append(Watch())

    def _follow(self, step: Step, told: orders.Configure | requests.Welcome) -> None:
        """Follows the coordinator's word on where shards and blocks are.

        What is in transit is sent and asked for once more, where it is placed now. Word of another
        run changes nothing, nor do shards that are not on this client's roster yet: the coordinator
        tells them again, behind their roster.
        """
        if told.run.id != (before := self.pinned).run.id:
            return
        step.effects += [Locate(shard.name, shard.advertise) for shard in told.shards]
        self._pinned = before.follow_placement(told.placement, self._follower.roster)
        if self._pinned is before:
            return
        step.effects += self._pinned.call_off_left(before)
        self._model.ask_again()
        for id, transfer in self._out.moving.items():
            left = (h for h in self._out.blocks_of(id) if h.block not in transfer.stored)
            send_blocks(step, self._pinned, left)

    def _take_failure(self, step: Step, request: requests.Request, error: SecurepsError) -> None:
        match request:
            case requests.GetBlock():
                if said := self._model.take_failure(request, error):
                    step.effects.append(said)
            case requests.PutBlock(header):
                if (free := self._out.next_free_sequence(header.id, error)) is not None:
                    self._write(step, SequencesBegun((free,)))
                self._take_refusal(step, header.id, error)
            case requests.Submit(receipt):
                self._take_refusal(step, receipt.id, error, submitted=True)
            case requests.Heartbeat():
                self._beating = False
            case Evaluated(version=version):
                step.say(f"the evaluation of version {version} is lost: {error}")
            case _ if not isinstance(request, _IDLE):
                step.effects.append(Halt(str(error), type(error)))

    def _take_refusal(
        self, step: Step, id: SubmissionId, error: SecurepsError, submitted: bool = False
    ) -> None:
        """Gives up a submission that the coordinator or a shard refuses."""
        sealed = self._out.sealed.get(id)
        self._settle(step, id, Outcome.DROPPED, str(error))
        if sealed is None:
            return
        for message in self._out.make_refusal_messages(self._plan, sealed, error, submitted):
            step.tell(message)
        if sealed.receipt.purpose == FOUNDING and isinstance(error, InternalError):
            # otherwise all parties would wait for this model without a reason
            step.effects.append(Halt(f"its first model was not taken: {error}", InternalError))
        if isinstance(error, Conflict) and not submitted:
            self._desk.reopen(id.group)  # the name was used before its state was lost

    def _write(self, step: Step, record: MemberRecord) -> None:
        step.records.append(record)
        self.apply(0.0, record)


# --- leaving -----------------------------------------------------------------------

MODEL_LATER = "the last model is written after the run: start this client again when it has ended"

PAUSED = "its data holder has paused it"
LEFT = "left by its data holder's own act"
"""Reasons that the coordinator is told."""


@dataclass(slots=True)
class Departure:
    """Decision of a client to leave or to rest.

    Args:
        away: it does not train, for good or for a while.
        halt: how it ends, once the coordinator knows; None if it stays or rests.
        reason: why, as the coordinator is told.
        until: when it comes back from a rest, by the run's clock; None: not by itself.
        told: the coordinator was told.
        acted: the number of its data holder's newest act.
        wants: `PAUSE` or `LEAVE`, by that act; None for nothing.
    """

    client: str
    away: bool = False
    halt: Halt | None = None
    reason: str = ""
    until: float | None = None
    told: bool = False
    acted: int = 0
    wants: OwnDeed | None = None

    def begin(self, halt: Halt | None = None, reason: str = "", until: float | None = None) -> None:
        """Begins to leave if `halt` is given, otherwise to rest; `tell` informs the coordinator."""
        self.away, self.halt, self.reason, self.until = True, halt, reason, until
        self.told = False

    def _end_rest(self) -> bool:
        """Ends a rest; returns whether the coordinator must be told that the client is back."""
        told, self.away, self.until, self.told = self.told, False, None, False
        return told

    def apply(self, act: OwnAct) -> None:
        self.acted, what = act.number, OwnDeed(act.what)
        if what is OwnDeed.LEFT:
            self.wants = None
        elif self.wants is not OwnDeed.LEAVE and what is not OwnDeed.LOWER_BUDGET:
            self.wants = None if what is OwnDeed.GO_ON else what

    def follow(self) -> bool:
        """Leaves, rests or returns by the data holder's act; returns whether it must join again."""
        if self.wants is OwnDeed.LEAVE:
            if self.halt is None:
                self.begin(Halt(LEFT), LEFT)
        elif self.wants is OwnDeed.PAUSE:
            if not self.away or self.until is not None:
                self.begin(reason=PAUSED)
        elif self.away and self.halt is None and self.until is None:
            return self._end_rest()
        return False

    def take_lost_stream(self) -> bool:
        """Returns whether the client joins again after its stream of orders broke.

        A paused client does, to hear of the end of the run, and then says again that it is paused.
        """
        if self.wants is OwnDeed.PAUSE:
            self.told = False
        return not self.told

    def refuse(self, step: Step, error: TermsRefused) -> None:
        """Refuses a plan, and tells the coordinator at once, because it counts this client."""
        self.begin(Halt(str(error), type(error)), error.revealed)
        self.tell(step)

    def tell(self, step: Step) -> None:
        if self.away:
            self.told = True
            step.tell(requests.Retire(self.client, self.reason, self.halt is None))

    def rest(self, step: Step, now: float, seconds: float, reason: str) -> None:
        if self.away:
            return
        self.begin(reason=reason, until=now + seconds)
        text = "as many trainings as this site allows (updates_per_hour) have begun within an hour"
        step.say(f"{text}: the next one may begin in {duration(seconds)}")

    def end_rest_if_due(self, now: float) -> bool:
        """Ends a rest whose time has passed; returns whether the coordinator must be told."""
        return self.until is not None and now >= self.until and self._end_rest()
