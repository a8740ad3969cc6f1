"""A shard: holds blocks of the model, stores ciphertexts, adds them, opens the sum, steps.

It decides nothing of its own: it takes in blocks that are signed, of the right size and
for this run, and obeys the coordinator's orders, each of which may come twice.

Which blocks a shard takes in, and of whom: all that can be said of one without its payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn, assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    Conflict,
    Fenced,
    InternalError,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    UnknownParty,
    WrongRun,
    WrongVersion,
)
from secureps.messages import orders, requests
from secureps.messages import shard_records as records
from secureps.messages.encoding import from_plain, payload_digest, to_plain
from secureps.messages.orders import Task
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Prepared
from secureps.messages.run import COORDINATOR, ShardAddress, other_run
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    UPDATE,
    BlockHeader,
    Cohort,
    Held,
    SubmissionId,
    signing_bytes,
)
from secureps.policy.cohorts.suspicion import check_members
from secureps.roles import permissions
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    DiskReports,
    Done,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Prune,
    Record,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import LATER, behind, check_run
from secureps.roles.roster_follower import RosterFollower
from secureps.roles.shard.peers import AGAIN, Fetcher, Forwarding, NoiseCopies, Peers
from secureps.roles.shard.state import (
    UNLIMITED,
    ComingDamaged,
    DoesNotOpen,
    DrawNoise,
    GatherState,
    Limit,
    MakeState,
    NoiseDamaged,
    PayloadsDamaged,
    ShardFold,
    ShardState,
    StepState,
    SumCohort,
    block_name,
    model_key,
    name_under,
    state_key,
    submission_of,
    sum_key,
)
from secureps.roles.validation import check_divisor, check_header, check_key_sum

IDLE = "holds nothing of this run"
"""What the log of a shard says last that the coordinator had end; then its exit status is 0."""


def work_name(task: Task) -> tuple[str, str, int] | None:
    """The name under which a work is done, once at a time; None for works that may be many."""
    match task:
        case MakeState(group):
            return ("state", group, 0)
        case SumCohort(cohort):
            return ("sum", cohort.group, cohort.number)
        case StepState(cohort):
            return ("state", cohort.group, cohort.version)
        case orders.WriteCheckpoint(number=number):
            return ("part", "", number)
    return None


def serve(
    name: str,
    state: ShardState,
    sender: str,
    asked: requests.GetBlock | requests.GetSum,
    shard: bool,
) -> Step:
    """The answer of the shard of this name to one request for a payload, of another `shard` or not.

    Raises:
        Malformed: there is no such block.
        UnknownParty: no sum, or state, is for this party.
        NotReady, WrongVersion: there is none here yet, or it is gone, or with another shard.
    """
    own, what = state.own(asked.group), f"block {asked.block} of {asked.group}"
    if asked.block not in own:
        _refuse_elsewhere(name, state, asked, what)
    held, place = state.group(asked.group), own.index(asked.block)
    if isinstance(asked, requests.GetSum):
        if not state.opened_by_holder:
            raise UnknownParty("only a key holder that decrypts sums may ask for one")
        made = held.sums.get(asked.cohort)
        if made is None:
            raise NotReady(f"cohort {asked.cohort} of {asked.group} is not held here")
        key = sum_key(asked.group, asked.cohort, asked.block)
        return Step(effects=[Answer(requests.Payload(made.sums[place]), attach=key)])
    if asked.state and sender not in state.pinned.takers(asked.group, asked.block):
        if not shard:
            raise UnknownParty(f"{sender} does not hold {what}")
        raise NotReady(f"by the placement that {name} knows {sender} does not hold {what}", LATER)
    found, early = held.states.get(asked.version), asked.version > held.committed
    # Its cohort may still be burnt. Then its updates are summed again with other noise, and whoever
    # pulled this version would have two noised sums of them for one charge.
    if found is None or (early and not shard and state.pinned.plan.noisy_shards):
        if early:
            raise NotReady(f"version {asked.version} of {asked.group} is not made yet")
        raise WrongVersion(f"version {asked.version} of {asked.group} is gone; pull the newest")
    if asked.state:
        key = state_key(asked.group, asked.version, asked.block)
        return Step(effects=[Answer(requests.Payload(b""), attach=key)])
    since = state.since(asked) if asked.base else None
    key = model_key(asked.group, asked.version, asked.block, since)
    digest = found.blocks[place] if since is None else b""
    return Step(effects=[Answer(requests.Payload(digest), attach=key)])


def _refuse_elsewhere(
    name: str, state: ShardState, asked: requests.GetBlock | requests.GetSum, what: str
) -> NoReturn:
    """A block is not here: there is none, it is on its way, or it is with another shard."""
    if not 0 <= asked.block < state.pinned.layout.group(asked.group).blocks:
        raise Malformed(f"{what} is not placed on {name}: there is none")
    if asked.block in state.coming(asked.group):
        raise NotReady(f"{what} is on its way to {name}", LATER)
    if isinstance(asked, requests.GetBlock) and not asked.state:
        raise WrongVersion(f"{what} is with another shard: pull it where it is placed now")
    raise NotReady(f"{what} is not placed on {name}, by the placement that it knows", LATER)


class Shard:
    """The machine of one shard; its noise's seed may be `unsafe`, and its memory have a `limit`."""

    def __init__(
        self, address: ShardAddress, roster: Roster, unsafe: bool = False, limit: Limit = UNLIMITED
    ) -> None:
        self._name = address.name
        self._follower = RosterFollower(roster)
        self.state = ShardState(address.name)
        self._address, self._unsafe, self._limit = address, unsafe, limit
        self._disk = DiskReports(address.name)
        self.troubled = self._disk.troubled
        self._busy: set[tuple[str, str, int] | None] = set()
        self._watches = False
        self._forwarding = Forwarding()
        self._noise = NoiseCopies(address.name, self.state)
        self._peers = Peers(address.name, self.state)
        self._fetcher = Fetcher(address.name, self.state)
        self._tried: dict[tuple[str, int], list[bytes]] = {}  # sums of keys: in work, and newest
        self._damaged: list[WorkFailed] = []
        self._asks_at = 0.0

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

    def subscription(self) -> requests.Subscribe:
        own = self._roster
        return requests.Subscribe(self._name, self.state.submissions(), own.number, own.expires)

    def inspect(self, sender: str, message: requests.Request) -> bool:
        """Checks all that can be checked of a block without its payload.

        Raises:
            Malformed, Oversized, WrongRun, UnknownParty, Unsigned, Conflict: the sender's fault.
            NotReady: the run is not founded yet.
        """
        if not isinstance(message, requests.PutBlock):
            raise Malformed(f"a shard takes no payload with a {type(message).__name__}")
        permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, message)
        self._check_run(message.header.run)
        return takes_in(self._name, self.state, self._roster, sender, message.header)

    @property
    def _roster(self) -> Roster:
        return self._follower.roster

    def _check_run(self, run: bytes) -> None:
        if run != self.state.pinned.run.id:
            raise WrongRun("made for another run; join this one first")

    def _write(self, step: Step, record: records.ShardRecord) -> None:
        step.records.append(record)
        self.apply(0.0, record)

    def resume(self, now: float) -> Step:
        """Says that it is up, and deletes from the spool what is not on record."""
        referenced = frozenset(header.key for header in self.state.spooled.values())
        return Step(effects=[Work(Sweep(referenced)), *self._greet().effects])

    def _greet(self) -> Step:
        self._watches = False
        return Step(effects=[self._registering])

    @property
    def _registering(self) -> Call:
        known, here = self.state, (self._name, self._address.advertise, self._address.weight)
        obeyed, own = known.incarnation, (known.run, known.reached)
        coming = bool(known.run) and known.pinned.coming is not None
        held, epoch = known.held, known.epoch
        said = requests.Register(*here, obeyed, *own, self._unsafe, held, epoch, coming)
        return Call(COORDINATOR, said)

    def wake(self) -> float | None:
        times = (self._noise.wake, self._asks_at if self._damaged else None)
        return min((at for at in times if at is not None), default=None)

    def handle(self, now: float, sender: str, event: Event) -> Step:
        if type(event) in permissions.SAID:
            permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, event)
        match event:
            case requests.AskBlock(header):
                if self.inspect(sender, requests.PutBlock(header)):
                    return Step(effects=[Answer(requests.Stored(header.digest, 0))])
                return self._put(sender, header)
            case requests.PutBlock(header):
                return self._put(sender, header)
            case requests.GetBlock() | requests.GetSum():
                self._check_run(event.run)
                shard = sender != COORDINATOR and self._roster.find(sender).role == "shard"
                if shard and type(event) is requests.GetSum:
                    return self._noise.serve(sender, event)
                return serve(self._name, self.state, sender, event, shard)
            case requests.Missing():
                return self._forwarding.supply(sender, event, self._peers.has(sender, event))
            case Answered(requests.PutBlock(header)):
                return self._forwarding.stored(sender, header)
            case Failed(requests.PutBlock(header), error):
                return self._forwarding.failed(sender, header, error)
            case Answered(requests.Missing() as missing) | Failed(
                requests.Missing() as missing
            ) if sender != COORDINATOR:
                step = Step()
                if missing.epoch:
                    self._fetcher.heard(step, sender, missing)
                    return step
                return self._try_again(step, sender, missing)
            case Answered(requests.GetBlock() as ask):
                self._fetcher.fetched(step := Step(), ask)
                return step
            case Failed(requests.GetBlock() as ask) if not self._fetcher.wants(ask):
                return Step()
            case Answered(requests.GetSum() as noise) | Failed(requests.GetSum() as noise):
                step, refusal = Step(), event.error if isinstance(event, Failed) else None
                order = self._noise.answered(step, now, sender, noise, refusal)
                return self._hold_now(step, order)
            case Answered(requests.Register()) if not self._watches:
                self._watches = True
                return Step(effects=[Watch()])
            case Answered():
                return Step(effects=self._disk.heard(event.request))
            case Failed(request, error):
                return Step(effects=[Halt(f"{type(request).__name__}: {error}", type(error))])
            case WatchLost():
                return self._greet()
            case Tick():
                self._noise.ask_again(step := Step(), now)
                self._ask_for_damaged(step, now)
                return step
            case orders.Finish(reason=reason) if sender == COORDINATOR and self.state.apart:
                text = f"{IDLE}: {reason}"
                return Step(effects=[Say(text), Halt(f"{self._name} {text}")])
            case orders.Finish():
                return Step()
            case WorkFailed(error=PayloadsDamaged()) if sender == WORKER:
                self._damaged.append(event)
                self._ask_for_damaged(step := Step(), now)
                return step
            case WorkFailed() if sender == WORKER:
                return self._failed(event)
            case KitRead() if sender == WORKER:
                step = Step()
                return self._followed(step, self._follower.read(step, event))
            case Done() if sender == WORKER:
                return self._done(event)
            case _ if sender == COORDINATOR and isinstance(event, orders.ShardOrder):
                return self._obey(event)
        raise Malformed(f"a shard has no answer to a {type(event).__name__}")

    # --- blocks in and out --------------------------------------------------------

    def _put(self, sender: str, header: BlockHeader) -> Step:
        step, known = Step(), is_stored(self.state, header)
        others = takers_of(self.state, header)[1:] if sender == header.author else ()
        self._forwarding.begin(step, header, others)
        if not known:
            self._write(step, header)
            self._discard(step, self.state.surplus(header))
        return step

    # --- orders -------------------------------------------------------------------

    def _obey(self, order: orders.ShardOrder) -> Step:
        step, before = Step(), self.state.incarnation
        if order.incarnation < before:
            raise Fenced(f"an order of incarnation {order.incarnation}, {before} rules")
        if order.incarnation > before:
            self._write(step, Incarnated(order.incarnation))
        self._peers.note(order)
        try:
            self._carry_out(step, order)
        except SecurepsError:
            self.state.incarnation = before
            raise
        if order.incarnation > before:  # whoever gave it waits to be obeyed, whatever came first
            step.effects.append(self._registering)
        return step

    def _carry_out(self, step: Step, order: orders.ShardOrder) -> None:
        always = orders.Configure | orders.RosterChanged
        if not isinstance(order, always) and not self.state.founded:
            raise NotReady(f"{self._name} is not configured yet")
        match order:
            case orders.Configure():
                self._configure(step, order)
            case orders.RosterChanged(text=text):
                self._followed(step, self._follower.follow(step, text))
            case orders.Found():
                self._found(step, order)
            case orders.Hold():
                self._hold(step, order)
            case orders.Prepare():
                self._prepare(step, order)
            case orders.Commit(group=group, version=version):
                known = version in self.state.group(group).states
                if order.blocks and not order.state:
                    self._fetcher.gain(step, order)
                elif order.state and not known:  # it lost its journal
                    self._fetcher.recover(step, order)
                else:
                    self._commit(step, order)
            case orders.WriteCheckpoint():
                if not self._fetcher.bring(step, order):  # else it is ordered again
                    self._begin(step, order)
            case orders.Discard(ids=ids):
                self._discard(step, ids)
            case _:
                assert_never(order)

    def _configure(self, step: Step, order: orders.Configure) -> None:
        if not self.state.founded:
            check_run(order.run, order.placement, self._roster)
        elif self.state.pinned.run.id != order.run.id:
            raise WrongRun(other_run(self._name, self.state.run, order.run.id))
        pins = RunPinned(order.run, order.placement, order.shards, order.coming)
        if halts := self._limit.refuses(self._name, pins):
            step.effects += halts
            return
        if not self.state.founded:
            self._write(step, replace(pins, coming=None))
        known, placements = self.state.pinned, (order.placement, self._roster, order.coming)
        if known.waits(*placements):  # by another roster it is told again
            step.effects.append(behind(self._name, order.coming or order.placement))
        if known.moved(*placements) is not known:
            self._replace(step, pins)
        if order.placement.replicas is not None or order.coming is not None:
            peers = (shard for shard in order.shards if shard.name != self._name)
            step.effects += self.state.pinned.located(order.run, peers)

    def _replace(self, step: Step, pins: RunPinned) -> None:
        """Goes by newer placements: what others and this shard waited for may come to nothing."""
        before, groups = self.state.pinned, self.state.pinned.plan.all_groups
        held = {group: self.state.group(group) for group in groups}
        coming = {group: each.coming for group, each in held.items()}
        step.effects.append(Work(Prune(self._write_over(step, pins, groups))))
        for group, now in ((group, self.state.group(group)) for group in groups):
            if now is not held[group] or now.coming is not coming[group]:  # files go, too
                step.effects.append(Work(Prune((), group, now.committed, now.keep)))
        gone = self.state.pinned.left(before)
        step.effects += gone
        step.effects += self._forwarding.placed(self._name, self.state.pinned)
        self._noise.left()
        self._fetcher.left()
        for shard, missing in self._peers.left(frozenset(each.to for each in gone)):
            self._try_again(step, shard, missing)

    def _followed(self, step: Step, newer: bool) -> Step:
        """Subscribes anew, so that the coordinator hears which roster it goes by."""
        if newer:
            step.effects.append(Watch())
        return step

    def _found(self, step: Step, order: orders.Found) -> None:
        group, receipt = order.group, order.receipt
        state, keys = self.state.of_founding(group, receipt), None
        if receipt is not None:
            digests = self.state.founding_digests(group, receipt)
            keys = self.state.keys(receipt.id, FOUNDING, digests)
        if state is not None:
            step.tell(state)
        elif receipt is not None and keys is None:
            missing = requests.Missing.of_founding(self._name, group, (receipt.id,))
            self._peers.lack(step, missing, order)
        else:
            self._begin(step, MakeState(group, keys))

    def _hold(self, step: Step, order: orders.Hold) -> None:
        cohort, sums = order.cohort, self.state.group(order.cohort.group).sums
        self._check_cohort(cohort)
        if [member.id for member in order.members] != [member.id for member in cohort.members]:
            raise Refused(f"cohort {cohort.number} of {cohort.group}: blocks of other updates")
        if self._is_another(step, cohort):
            return
        if cohort.number in sums:
            self._tell_held(step, sums[cohort.number])
            return
        if cohort.version - 1 not in self.state.group(cohort.group).states:
            return  # nothing may be opened that cannot be stepped from; once it is here, it greets
        keys = [self.state.keys(m.id, UPDATE, m.blocks) for m in order.members]
        missing = tuple(m.id for m, found in zip(order.members, keys) if found is None)
        if missing:
            self._peers.lack(step, requests.Missing.of_cohort(self._name, cohort, missing), order)
            return
        if not self._noise.ready(step, order):
            return
        found = tuple(k for k in keys if k is not None)
        self._begin(step, SumCohort(cohort, found))

    def _tell_held(self, step: Step, made: records.SumsMade) -> None:
        step.tell(Held(self._name, made.cohort.group, made.cohort.number, made.sums))

    def _is_another(self, step: Step, cohort: Cohort) -> bool:
        """Whether a cohort's number was another one's: then it says again which sums it has.

        From that a coordinator that closed the cohort again finds that its journal is too old.
        """
        made = self.state.summed(cohort.group, cohort.number)
        if made is None or made.cohort == cohort:
            return False
        text = f"cohort {cohort.number} of {cohort.group} was another one before: nothing is done"
        step.effects += [Say(f"{self._name}: {text}"), self._registering]
        return True

    def _check_cohort(self, cohort: Cohort) -> None:
        """Refuses a cohort that this shard's own plan does not open, whoever asks.

        Else a coordinator alone could have a single update added, opened and published.
        """
        plan = self.state.pinned.plan
        own, sealed = plan.bounds(cohort.group), plan.holders > 0  # else it reads every update
        check_members(cohort, own.minimum, own.most_weight, sealed)
        check_divisor(plan, cohort)

    def _hold_now(self, step: Step, order: orders.Hold | None) -> Step:
        if order is not None and order.incarnation == self.state.incarnation:
            self._hold(step, order)
        return step

    def _prepare(self, step: Step, order: orders.Prepare) -> None:
        cohort, key, held = order.cohort, order.key, self.state.group(order.cohort.group)
        self._check_cohort(cohort)
        state = held.states.get(cohort.version)
        if state is not None and state.cohort == cohort.number:
            step.tell(state)
            return
        if self._is_another(step, cohort):
            return
        if cohort.number not in held.sums:
            raise Refused(f"cohort {cohort.number} of {cohort.group} is not held here")
        keys: tuple[str, ...] | None = None
        if self.state.opened_by_holder:
            keys = self.state.opened_keys(cohort, order.opened)
            if keys is None:
                missing = requests.Missing.of_cohort(self._name, cohort, self.state.lacking(cohort))
                self._peers.lack(step, missing, order)
                return
        elif self.state.opened_by_key_sum:
            pinned = self.state.pinned
            key = check_key_sum(pinned.plan, pinned.layout.group(cohort.group), cohort, key)
            name, busy = (cohort.group, cohort.number), work_name(StepState(cohort, keys))
            in_work = self._tried.get(name, [])[:1] if busy in self._busy else []
            self._tried[name] = [*in_work, key]
        self._begin(step, StepState(cohort, keys, key))

    def _commit(self, step: Step, order: orders.Commit) -> None:
        group, version, keep = order.group, order.version, order.keep
        held = self.state.group(group)
        if version < held.committed or version not in held.states:
            return
        if (version, keep) == (held.committed, held.keep):
            return
        gone = self._write_over(step, order, (group,))
        self._noise.over(group, version)
        step.effects.append(Work(Prune(gone, group, version, keep)))

    def _write_over(
        self, step: Step, record: orders.Commit | RunPinned, groups: Iterable[str]
    ) -> tuple[str, ...]:
        """Writes a record; returns the keys of payloads that nobody needs any more by it."""
        state, before = self.state, dict(self.state.spooled)
        sums = [(name, each, state.own(name)) for name in groups for each in state.group(name).sums]
        self._write(step, record)
        gone = [header.key for name, header in before.items() if name not in state.spooled]
        past = (sum for sum in sums if sum[1] not in state.group(sum[0]).sums)
        gone += [sum_key(name, number, block) for name, number, own in past for block in own]
        return tuple(gone)

    def _discard(self, step: Step, ids: tuple[SubmissionId, ...]) -> None:
        if not ids:  # as after almost every block, while very many lie here
            return
        wanted = set(ids)
        gone = tuple(h.key for n, h in self.state.spooled.items() if submission_of(n) in wanted)
        if gone:
            self._write(step, records.Discarded(ids))
            step.effects.append(Work(Prune(gone)))

    # --- the end of works ---------------------------------------------------------

    def _done(self, event: Done) -> Step:
        step = Step()
        self._busy.discard(work_name(event.task))
        match event:
            case Done(GatherState() as task, Prepared() as made):
                self._gathered(step, task, made)
            case Done(DrawNoise() as task):
                self._hold_now(step, self._noise.drawn(step, task))
            case Done(_, records.SumsMade() as made):
                self._write(step, made)
                self._tell_held(step, made)
            case Done(_, Prepared() as state):
                for key in self._tried.pop((state.group, state.cohort), [])[:1]:
                    self._write(step, records.KeySumTaken(state.group, state.cohort, key))
                self._write(step, state)  # with its key: until then the order comes again
                step.tell(state)
            case Done(_, requests.Checkpointed() as part):
                step.tell(part)
            case _:
                raise InternalError(f"a shard hears of no {type(event.made).__name__}")
        if event.telemetry is not None:
            step.tell(event.telemetry)
        return step

    def _gathered(self, step: Step, task: GatherState, made: Prepared) -> None:
        """Puts a version that was lost, or that moves here, on record."""
        if self._fetcher.done(task):
            self._write(step, made)
            if made.epoch:
                step.tell(made)
            else:
                self._commit(step, task.order)
                if not self._fetcher.recovers:
                    step.effects += self._greet().effects  # orders that had to wait come again
        step.effects.append(self._fetcher.tidied(task))

    def _ask_for_damaged(self, step: Step, now: float) -> None:
        """Has damaged payloads sent again; a disk that damages those too is given them rarely."""
        if now < self._asks_at or not self._damaged:
            return
        damaged, self._damaged, self._asks_at = self._damaged, [], now + AGAIN
        for event in damaged:
            failed = self._failed(event)
            step.records += failed.records
            step.effects += failed.effects

    def _ask_again(
        self, step: Step, task: MakeState | SumCohort | StepState, keys: frozenset[str]
    ) -> None:
        """Forgets what is damaged, for nothing known is taken in, and says that it is missing."""
        names = {name_under(key) for key in keys}
        ids = tuple(sorted({id for id in map(submission_of, names) if id is not None}))
        self._discard(step, ids)
        opened = tuple(sorted(name[4] for name in names if name[0] == OPENED))
        if isinstance(task, StepState) and opened:
            cohort = task.cohort
            self._write(step, records.OpenedForgotten(cohort.group, cohort.number, opened))
        ids = self.state.lacking(task.cohort) if isinstance(task, StepState) else ids
        if isinstance(task, MakeState):
            missing = requests.Missing.of_founding(self._name, task.group, ids)
        else:
            missing = requests.Missing.of_cohort(self._name, task.cohort, ids)
        self._peers.lack(step, missing, self._peers.order_of(task))

    def _try_again(self, step: Step, sender: str, missing: requests.Missing) -> Step:
        """Carries an order out again when other shards have sent what they have.

        It raises nothing: the step may have records of its own.
        """
        order = self._peers.heard(sender, missing)
        try:
            if isinstance(order, orders.Prepare) and (ids := self.state.lacking(order.cohort)):
                step.tell(requests.Missing.of_cohort(self._name, order.cohort, ids))
            elif order is not None and order.incarnation == self.state.incarnation:
                self._carry_out(step, order)
        except SecurepsError as error:
            step.effects.append(Say(f"{self._name} cannot do what it was told: {error}"))
        finally:
            self._peers.tried(missing)
        return step

    def _failed(self, event: WorkFailed) -> Step:
        """Has what is missing sent again, or ends this shard for an error.

        A cohort's sum may be to blame; a version that no checkpoint here has may be on other
        shards.
        """
        step = Step()
        self._busy.discard(work_name(event.task))
        match event:
            case WorkFailed(
                MakeState() | SumCohort() | StepState() as task, PayloadsDamaged(keys=keys)
            ):
                self._ask_again(step, task, keys)
            case WorkFailed(SumCohort(cohort), NoiseDamaged()):
                self._hold_now(step, self._noise.forget(cohort))
            case WorkFailed(StepState() as task, DoesNotOpen() as error):
                self._try_newest(step, task, str(error))
            case WorkFailed(StepState(cohort), ClientError() | Refused() as error):
                spoilt = (self._name, cohort.group, cohort.number, str(error))
                step.tell(requests.Spoilt(*spoilt))
            case WorkFailed(orders.WriteCheckpoint(), ComingDamaged(groups=groups)):
                self._fetcher.gain_again(step, groups)
            case WorkFailed(GatherState() as task) if self._fetcher.failed(step, task, event.error):
                pass
            case WorkFailed(_, error):
                step.effects.append(Halt(str(error), type(error)))
        return step

    def _try_newest(self, step: Step, task: StepState, reason: str) -> None:
        """Says that a sum of keys does not open the cohort; tries the one that came meanwhile."""
        group, cohort = task.cohort.group, task.cohort
        tried = payload_digest(task.key or b"")
        step.tell(requests.Spoilt(self._name, group, cohort.number, reason, tried))
        newest = self._tried.pop((group, cohort.number), [task.key])[-1]
        if newest and newest != task.key:
            self._tried[group, cohort.number] = [newest]
            self._begin(step, StepState(cohort, task.opened, newest))

    def _begin(self, step: Step, task: Task) -> None:
        """Hands out a work, once at a time; an order that comes twice changes nothing."""
        if (name := work_name(task)) not in self._busy:
            self._busy.add(name)
            step.effects.append(Work(task))


# --- intake ------------------------------------------------------------------------


def takes_in(own: str, state: ShardState, roster: Roster, sender: str, header: BlockHeader) -> bool:
    """Whether a block is to be stored; it need not be if it is here.

    Its author brings it to the primary, and who takes it in to all others that do.

    Raises:
        Malformed, Oversized, UnknownParty, Unsigned, Conflict, WrongVersion: the sender's fault.
        NotReady: it is sent by a placement of another epoch: passed on to a shard that does not
            hold it, or by its author to one that is its primary no more, or not yet.
    """
    role, placed = roster.find(sender).role, takers_of(state, header)
    if role == "shard" and not {own, sender} <= {*placed}:
        raise NotReady(
            f"{sender} passes on block {header.block} of {header.group}, and one of {sender} and "
            f"{own} does not hold it: by another placement than here",
            LATER,
        )
    if sender != header.author and sender not in placed:
        raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
    if not placed:
        raise Malformed(f"block {header.block} of {header.group} is not placed: there is none")
    if own not in placed:
        raise NotReady(  # a client that was refused would drop its update
            f"block {header.block} of {header.group} is not placed on {own}, by the placement that "
            f"it knows: {placed[0]} takes it in",
            LATER,
        )
    if sender == header.author and own != placed[0]:
        raise NotReady(  # a client that was refused would drop its update
            f"{own} holds a copy of block {header.block} of {header.group}, and by the placement "
            f"that it knows {placed[0]} takes it in and passes it on",
            LATER,
        )
    author, pinned = roster.find(header.author), state.pinned
    check_header(pinned.plan, pinned.layout.group(header.group), header, author.role)
    author.identity.verify(*signing_bytes(header), header.signature)
    new = not is_stored(state, header)
    founded = state.group(header.group).committed >= 0
    if new and header.purpose == FOUNDING and founded:
        raise WrongVersion(f"{header.group} has its founding model already")
    return new


def is_stored(state: ShardState, header: BlockHeader) -> bool:
    """Whether a block is stored; Conflict if other bytes are under its name.

    They would take the place of those that are summed. A client that lost its state may have sent
    very many that came to nothing: it hears after which of its own to go on, and nobody else does.
    """
    found = state.spooled.get(block_name(header))
    if found is not None and found.digest != header.digest:
        free = state.free(header.author, header.group)
        raise Conflict(f"{header.name} is known with other bytes; begin a new sequence", free)
    return found is not None


def takers_of(state: ShardState, header: BlockHeader) -> tuple[str, ...]:
    """The shards that take a block in, its primary first; empty for one that does not exist.

    Malformed: no such group.
    """
    state.group(header.group)
    there = 0 <= header.block < state.pinned.layout.group(header.group).blocks
    return state.pinned.takers(header.group, header.block) if there else ()
