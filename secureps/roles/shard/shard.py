"""A shard stores sealed blocks, adds them, and makes the next version of its part of the model.

Theory of operation. `Shard` is a machine (`roles.machine`) that makes no decisions of its own. It
takes blocks that are signed, of the right size and for this run, and obeys the coordinator's
orders, each of which may come twice. `state.ShardState` is the fold of its journal. `peers` has
what shards give each other. The worker (`service.shard.worker`) does all that touches payloads.

What happens to one block, and to the version that it ends in:

    spooled    `inspect` checks the header before the payload is received, the worker checks and
               stores the payload, and `_put` journals the header. `peers.Forwarding` passes the
               block on to the other shards that hold it, and only then is the client answered.
    held       `_hold` checks the cohort, looks up every member's block, and begins `SumCohort`.
               `_take_result` journals the digests of the sums, and tells the coordinator.
    prepared   `_prepare` gets the sum of keys, or the sums that a `bfv` holder opened. The task
               `StepState` opens, averages and steps; `_take_result` journals the version.
    committed  `_commit` journals the order, and deletes what no later step needs.
    pulled     `_serve` answers clients and other shards that ask for a block of a version.

What survives a kill. The journal has headers, sums, sums of keys and versions, and the disk their
payloads. `resume` registers, and deletes payloads that are not on record. Tasks and transfers are
forgotten: the coordinator repeats its orders, and senders ask again. A damaged payload is asked
for again from other shards, and then from clients (`_forget`). A sum is made again, and a
lost version comes from a checkpoint or from other shards (`peers.Fetcher`).

Guards. `_check_cohort` stops a coordinator that would have a single update summed, or choose the
divisor. `_is_stored` stops a sender that would replace bytes which may be summed already. Where
shards add noise, `_serve` gives clients no uncommitted version: after a burnt cohort they would
have two noised sums for one charge. `_obey` refuses the orders of a coordinator that was replaced.
`_is_another` finds a coordinator whose journal is an older copy.

Look first at `_carry_out` for orders, `handle` for requests, and `state` for records and tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn, assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    Conflict,
    DamagedStore,
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
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import COORDINATOR, ShardAddress, Task, wrong_run
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
from secureps.roles.pinned_run import LATER, check_run
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
"""In the last log line of a shard that the coordinator dismissed; its exit status is then 0."""


def work_name(task: Task) -> tuple[str, str, int] | None:
    """Returns a name for a task that must run only once at a time; None for other tasks."""
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


class Shard:
    """The machine of one shard.

    Args:
        unsafe: whether others may know the seed of its noise.
        limit: of its memory.
    """

    def __init__(
        self, address: ShardAddress, roster: Roster, unsafe: bool = False, limit: Limit = UNLIMITED
    ) -> None:
        self._name = address.name
        self._follower = RosterFollower(roster)
        self.state = ShardState(address.name)
        self._address, self._unsafe, self._limit = address, unsafe, limit
        self._disk = DiskReports(address.name)
        self.report_trouble = self._disk.report_trouble
        self._busy: set[tuple[str, str, int] | None] = set()
        self._watches = False
        self._forwarding = Forwarding()
        self._noise = NoiseCopies(self.state)
        self._peers = Peers(self.state)
        self._fetcher = Fetcher(self.state)
        self._damaged: list[WorkFailed] = []
        self._asks_at = 0.0

    def apply(self, at: float, record: Record) -> None:
        if isinstance(record, RosterFollowed):
            self._follower.apply(record)
        else:
            self.state.apply(record)

    def make_fold(self) -> Fold:
        records = (*self.state.record, *self._follower.records)
        return Fold(records, to_plain(self.state.make_fold()))

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        self.state.unfold(from_plain(ShardFold, fold.state))

    def subscription(self) -> requests.Subscribe:
        own = self._roster
        return requests.Subscribe(self._name, self.state.submissions(), own.number, own.expires)

    def inspect(self, sender: str, message: requests.Request) -> bool:
        """Checks a block's header, before its payload is received.

        Raises:
            Malformed, Oversized, WrongRun, UnknownParty, Unsigned, Conflict: the sender's fault.
            NotReady: the run is not founded yet.
        """
        if not isinstance(message, requests.PutBlock):
            raise Malformed(f"a shard takes no payload with a {type(message).__name__}")
        permissions.check(self._name, permissions.TO_SHARD, self._roster, sender, message)
        self._check_run(message.header.run)
        return self._is_wanted(sender, message.header)

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
        """Registers, and deletes payloads from the spool that are not on record."""
        referenced = frozenset(header.key for header in self.state.spooled.values())
        step = Step(effects=[Work(Sweep(referenced))])
        self._greet(step)
        return step

    def _greet(self, step: Step) -> None:
        self._watches = False
        step.effects.append(self._registration)

    @property
    def _registration(self) -> Call:
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
        step = Step()
        match event:
            case requests.AskBlock(header):
                if self.inspect(sender, requests.PutBlock(header)):
                    step.effects.append(Answer(requests.Stored(header.digest, 0)))
                else:
                    self._put(step, sender, header)
            case requests.PutBlock(header):
                self._put(step, sender, header)
            case requests.GetBlock() | requests.GetSum():
                self._check_run(event.run)
                shard = sender != COORDINATOR and self._roster.find(sender).role == "shard"
                if shard and type(event) is requests.GetSum:
                    return self._noise.serve(sender, event)
                return self._serve(sender, event, shard)
            case requests.Missing():
                found = self._peers.find_blocks(sender, event)
                self._forwarding.supply(step, sender, event, found)
            case Answered(requests.PutBlock(header)):
                self._forwarding.end_copy(step, (sender, header.key))
            case Failed(requests.PutBlock(header), error):
                if isinstance(error, DamagedStore) and block_name(header) in self.state.spooled:
                    self._forget(step, frozenset({header.key}))
                self._forwarding.failed(step, sender, header, error)
            case Answered(requests.Missing() as missing) | Failed(
                requests.Missing() as missing
            ) if sender != COORDINATOR:
                if missing.epoch:
                    self._fetcher.take_answer(step, sender, missing)
                elif self._peers.is_last(sender, missing):
                    self._greet(step)  # so that the order comes again
            case Answered(requests.GetBlock() as ask):
                self._fetcher.take_block(step, ask)
            case Failed(requests.GetBlock() as ask) if not self._fetcher.is_waiting_for(ask):
                pass
            case Answered(requests.GetSum() as noise) | Failed(requests.GetSum() as noise):
                refusal = event.error if isinstance(event, Failed) else None
                self._retry_hold(step, self._noise.take_noise(step, now, sender, noise, refusal))
            case Answered(requests.Register()) if not self._watches:
                self._watches = True
                step.effects.append(Watch())
            case Answered():
                step.effects += self._disk.repeat_if_stale(event.request)
            case Failed(request, error):
                step.effects.append(Halt(f"{type(request).__name__}: {error}", type(error)))
            case WatchLost():
                self._greet(step)
            case Tick():
                self._noise.ask_again(step, now)
                self._retry_damaged(step, now)
            case orders.Finish(reason=reason) if sender == COORDINATOR and self.state.is_apart:
                text = f"{IDLE}: {reason}"
                step.effects += [Say(text), Halt(f"{self._name} {text}")]
            case orders.Finish():
                pass
            case WorkFailed(error=PayloadsDamaged()) if sender == WORKER:
                self._damaged.append(event)
                self._retry_damaged(step, now)
            case WorkFailed() if sender == WORKER:
                self._take_failure(step, event)
            case KitRead() if sender == WORKER:
                step.watch_if(self._follower.read(step, event))
            case Done() if sender == WORKER:
                self._take_result(step, event)
            case _ if sender == COORDINATOR and isinstance(event, orders.ShardOrder):
                self._obey(step, event)
            case _:
                raise Malformed(f"a shard has no answer to a {type(event).__name__}")
        return step

    # --- blocks in and out --------------------------------------------------------

    def _put(self, step: Step, sender: str, header: BlockHeader) -> None:
        known = self._is_stored(header)
        others = self._find_takers(header)[1:] if sender == header.author else ()
        self._forwarding.begin(step, header, others)
        if not known:
            self._write(step, header)
            self._discard(step, self.state.surplus(header))

    def _serve(self, sender: str, asked: requests.GetBlock | requests.GetSum, shard: bool) -> Step:
        """Answers a request for a payload; `shard` tells whether another shard asks."""
        state, group, block = self.state, asked.group, asked.block
        what = f"block {block} of {group}"
        if block not in (own := state.own(group)):
            self._refuse_elsewhere(asked, what)
        held, place = state.group(group), own.index(block)
        if isinstance(asked, requests.GetSum):
            if not state.opened_by_holder:
                raise UnknownParty("only a key holder that decrypts sums may ask for one")
            made = held.sums.get(asked.cohort)
            if made is None:
                raise NotReady(f"cohort {asked.cohort} of {group} is not held here")
            key = sum_key(group, asked.cohort, block)
            return Step(effects=[Answer(requests.Payload(made.sums[place]), attach=key)])
        if asked.state and sender not in state.pinned.takers(group, block):
            if not shard:
                raise UnknownParty(f"{sender} does not hold {what}")
            text = f"by the placement that {self._name} knows {sender} does not hold {what}"
            raise NotReady(text, LATER)
        found, early = held.states.get(asked.version), asked.version > held.committed
        # The cohort of an uncommitted version may still be burnt, and its updates summed again with
        # other noise. A party that pulled this version would have two noised sums for one charge.
        if found is None or (early and not shard and state.pinned.plan.noisy_shards):
            if early:
                raise NotReady(f"version {asked.version} of {group} is not made yet")
            raise WrongVersion(f"version {asked.version} of {group} is gone; pull the newest")
        if asked.state:
            key = state_key(group, asked.version, block)
            return Step(effects=[Answer(requests.Payload(b""), attach=key)])
        since = state.base_version(asked) if asked.base else None
        key = model_key(group, asked.version, block, since)
        digest = found.blocks[place] if since is None else b""
        return Step(effects=[Answer(requests.Payload(digest), attach=key)])

    def _refuse_elsewhere(self, asked: requests.GetBlock | requests.GetSum, what: str) -> NoReturn:
        """Raises why a block is not here: it does not exist, comes here, or is elsewhere."""
        if not 0 <= asked.block < self.state.pinned.layout.group(asked.group).blocks:
            raise Malformed(f"{what} is not placed on {self._name}: there is none")
        if asked.block in self.state.coming(asked.group):
            raise NotReady(f"{what} is on its way to {self._name}", LATER)
        if isinstance(asked, requests.GetBlock) and not asked.state:
            raise WrongVersion(f"{what} is with another shard: pull it where it is placed now")
        text = f"{what} is not placed on {self._name}, by the placement that it knows"
        raise NotReady(text, LATER)

    def _is_wanted(self, sender: str, header: BlockHeader) -> bool:
        """Checks a block's header; returns False if the block is stored already.

        The author sends a block to its primary, which passes it on to the other shards that hold
        it.
        """
        own, placed = self._name, self._find_takers(header)
        what, first = f"block {header.block} of {header.group}", sender == header.author
        if not first and self._roster.find(sender).role != "shard":
            raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
        if not placed:
            raise Malformed(f"{what} is not placed: there is none")
        if own != placed[0] if first else not {own, sender} <= {*placed}:
            raise NotReady(  # any other error would make the client drop its update
                f"{own} does not take {what} from {sender}: by the placement that it knows "
                f"{placed[0]} takes it in, and passes it on to others that hold it",
                LATER,
            )
        author, pinned = self._roster.find(header.author), self.state.pinned
        check_header(pinned.plan, pinned.layout.group(header.group), header, author.role)
        author.identity.verify(*signing_bytes(header), header.signature)
        new = not self._is_stored(header)
        founded = self.state.group(header.group).committed >= 0
        if new and header.purpose == FOUNDING and founded:
            raise WrongVersion(f"{header.group} has its founding model already")
        return new

    def _is_stored(self, header: BlockHeader) -> bool:
        """True if a block is stored; Conflict if other bytes are stored under its name.

        Other bytes must not replace those that are summed. The error has the next free sequence for
        a client that lost its state, and may have sent many updates that were never settled.
        """
        found = self.state.spooled.get(block_name(header))
        if found is not None and found.digest != header.digest:
            free = self.state.next_sequence(header.author, header.group)
            raise Conflict(f"{header.name} is known with other bytes; begin a new sequence", free)
        return found is not None

    def _find_takers(self, header: BlockHeader) -> tuple[str, ...]:
        """Returns the shards that take a block in, its primary first; empty for no such block.

        Malformed if there is no such group.
        """
        self.state.group(header.group)
        there = 0 <= header.block < self.state.pinned.layout.group(header.group).blocks
        return self.state.pinned.takers(header.group, header.block) if there else ()

    # --- orders -------------------------------------------------------------------

    def _obey(self, step: Step, order: orders.ShardOrder) -> None:
        before = self.state.incarnation
        if order.incarnation < before:
            raise Fenced(f"an order of incarnation {order.incarnation}, {before} rules")
        if order.incarnation > before:
            self._write(step, Incarnated(order.incarnation))
        try:
            self._carry_out(step, order)
        except SecurepsError:
            self.state.incarnation = before
            raise
        if order.incarnation > before:  # tells the coordinator that it is obeyed
            step.effects.append(self._registration)

    def _carry_out(self, step: Step, order: orders.ShardOrder) -> None:
        always = orders.Configure | orders.RosterChanged
        if not isinstance(order, always) and not self.state.is_pinned:
            raise NotReady(f"{self._name} is not configured yet")
        match order:
            case orders.Configure():
                self._configure(step, order)
            case orders.RosterChanged(text=text):
                step.watch_if(self._follower.follow(step, text))
            case orders.Found():
                self._make_founding(step, order)
            case orders.Hold():
                self._hold(step, order)
            case orders.Prepare():
                self._prepare(step, order)
            case orders.Commit(group=group, version=version):
                known = version in self.state.group(group).states
                if order.blocks and not order.state:
                    self._fetcher.gain(step, order)
                elif order.state and not known:  # the shard lost its journal
                    self._fetcher.recover(step, order)
                else:
                    self._commit(step, order)
            case orders.WriteCheckpoint():
                if not self._fetcher.bring(step, order):  # else the order comes again later
                    self._begin(step, order)
            case orders.Discard(ids=ids):
                self._discard(step, ids)
            case _:
                assert_never(order)

    def _configure(self, step: Step, order: orders.Configure) -> None:
        if not self.state.is_pinned:
            check_run(order.run, order.placement, self._roster)
        elif self.state.pinned.run.id != order.run.id:
            raise WrongRun(wrong_run(self._name, self.state.run, order.run.id))
        pins = RunPinned(order.run, order.placement, order.shards, order.coming)
        if halts := self._limit.refusal(self._name, pins):
            step.effects += halts
            return
        if not self.state.is_pinned:
            self._write(step, replace(pins, coming=None))
        known = self.state.pinned
        if known.follow_placement(order.placement, self._roster, order.coming) is not known:
            self._replace(step, pins)
        if order.placement.replicas is not None or order.coming is not None:
            peers = (shard for shard in order.shards if shard.name != self._name)
            step.effects += [Locate(shard.name, shard.advertise) for shard in peers]

    def _replace(self, step: Step, pins: RunPinned) -> None:
        """Follows newer placements, and ends waits for shards that hold no blocks any more."""
        before, groups = self.state.pinned, self.state.pinned.plan.all_groups
        held = {group: self.state.group(group) for group in groups}
        coming = {group: each.coming for group, each in held.items()}
        step.effects.append(Work(Prune(self._write_listing_past(step, pins, groups))))
        for group, now in ((group, self.state.group(group)) for group in groups):
            if now is not held[group] or now.coming is not coming[group]:  # its files are past
                step.effects.append(Work(Prune((), group, now.committed, now.keep)))
        gone = self.state.pinned.call_off_left(before)
        step.effects += gone
        self._forwarding.follow_placement(step, self._name, self.state.pinned)
        self._noise.left()
        self._fetcher.left()
        if self._peers.left(frozenset(each.to for each in gone)):
            self._greet(step)
        self._peers.forget_answers()

    def _make_founding(self, step: Step, order: orders.Found) -> None:
        group, receipt = order.group, order.receipt
        state, keys = self.state.founded_state(group, receipt), None
        if receipt is not None:
            digests = self.state.founding_digests(group, receipt)
            keys = self.state.keys(receipt.id, FOUNDING, digests)
        if state is not None:
            step.tell(state)
        elif receipt is not None and keys is None:
            missing = requests.Missing.of_founding(self._name, group, (receipt.id,))
            self._peers.ask_others(step, missing)
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
            return  # a sum must not be opened without its base; once that is here, it registers
        keys = [self.state.keys(m.id, UPDATE, m.blocks) for m in order.members]
        missing = tuple(m.id for m, found in zip(order.members, keys) if found is None)
        if missing:
            self._peers.ask_others(step, requests.Missing.of_cohort(self._name, cohort, missing))
            return
        if not self._noise.is_ready(step, order):
            return
        found = tuple(k for k in keys if k is not None)
        self._begin(step, SumCohort(cohort, found))

    def _tell_held(self, step: Step, made: records.SumsMade) -> None:
        step.tell(Held(self._name, made.cohort.group, made.cohort.number, made.sums))

    def _is_another(self, step: Step, cohort: Cohort) -> bool:
        """True if this shard knows another cohort of this number; if so, it registers again.

        From the registration, the coordinator finds that its journal is an older copy.
        """
        made = self.state.summed(cohort.group, cohort.number)
        if made is None or made.cohort == cohort:
            return False
        text = f"cohort {cohort.number} of {cohort.group} was another one before: nothing is done"
        step.effects += [Say(f"{self._name}: {text}"), self._registration]
        return True

    def _check_cohort(self, cohort: Cohort) -> None:
        """Refuses a cohort that this shard's own plan does not open, whatever the coordinator says.

        Otherwise a coordinator alone could have a single update added, opened and published.
        """
        plan = self.state.pinned.plan
        own, sealed = plan.bounds(cohort.group), plan.holders > 0
        check_members(cohort, own.minimum, own.most_weight, sealed)
        check_divisor(plan, cohort)

    def _retry_hold(self, step: Step, order: orders.Hold | None) -> None:
        if order is not None and order.incarnation == self.state.incarnation:
            self._hold(step, order)

    def _prepare(self, step: Step, order: orders.Prepare) -> None:
        cohort, held = order.cohort, self.state.group(order.cohort.group)
        self._check_cohort(cohort)
        state = held.states.get(cohort.version)
        if state is not None and state.cohort == cohort.number:
            step.tell(state)
            return
        if self._is_another(step, cohort):
            return
        if cohort.number not in held.sums:
            raise Refused(f"cohort {cohort.number} of {cohort.group} is not held here")
        keys, key, lacking = None, None, self.state.lacking(cohort)
        absent = bool(lacking)  # a sum that is lost with them cannot be made again
        if self.state.opened_by_holder:
            keys = self.state.opened_keys(cohort, order.opened)
            absent = keys is None
        if absent:
            missing = requests.Missing.of_cohort(self._name, cohort, lacking)
            self._peers.ask_others(step, missing)
            return
        pinned = self.state.pinned
        if pinned.plan.has_committee:
            key = check_key_sum(pinned.plan, pinned.layout.group(cohort.group), cohort, order.key)
        self._begin(step, StepState(cohort, keys, key))

    def _commit(self, step: Step, order: orders.Commit) -> None:
        group, version, keep = order.group, order.version, order.keep
        held = self.state.group(group)
        if version < held.committed or version not in held.states:
            return
        if (version, keep) == (held.committed, held.keep):
            return
        gone = self._write_listing_past(step, order, (group,))
        self._noise.over(group, version)
        step.effects.append(Work(Prune(gone, group, version, keep)))

    def _write_listing_past(
        self, step: Step, record: orders.Commit | RunPinned, groups: Iterable[str]
    ) -> tuple[str, ...]:
        """Writes a record; returns the keys of payloads that are not needed any more after it."""
        state, before = self.state, dict(self.state.spooled)
        sums = [(name, each, state.own(name)) for name in groups for each in state.group(name).sums]
        self._write(step, record)
        gone = [header.key for name, header in before.items() if name not in state.spooled]
        past = (sum for sum in sums if sum[1] not in state.group(sum[0]).sums)
        gone += [sum_key(name, number, block) for name, number, own in past for block in own]
        return tuple(gone)

    def _discard(self, step: Step, ids: tuple[SubmissionId, ...]) -> None:
        if not ids:  # the usual case, in which the many spooled blocks are not looked through
            return
        wanted = set(ids)
        gone = tuple(h.key for n, h in self.state.spooled.items() if submission_of(n) in wanted)
        if gone:
            self._write(step, records.Discarded(ids))
            step.effects.append(Work(Prune(gone)))

    # --- results of tasks ---------------------------------------------------------

    def _take_result(self, step: Step, event: Done) -> None:
        self._busy.discard(work_name(event.task))
        match event:
            case Done(GatherState() as task, requests.Prepared() as made):
                self._record_gathered(step, task, made)
            case Done(DrawNoise() as task):
                self._retry_hold(step, self._noise.take_drawn(step, task))
            case Done(_, records.SumsMade() as made):
                self._write(step, made)
                self._tell_held(step, made)
            case Done(task, requests.Prepared() as state):
                if isinstance(task, StepState) and task.key is not None:
                    self._write(step, records.KeySumTaken(state.group, state.cohort, task.key))
                self._write(step, state)  # with its key, in one transaction
                step.tell(state)
            case Done(_, requests.Checkpointed() as part):
                step.tell(part)
            case _:
                raise InternalError(f"a shard hears of no {type(event.made).__name__}")
        if event.telemetry is not None:
            step.tell(event.telemetry)

    def _record_gathered(self, step: Step, task: GatherState, made: requests.Prepared) -> None:
        if self._fetcher.finish(task):
            self._write(step, made)
            if made.epoch:
                step.tell(made)
            else:
                self._commit(step, task.order)
                if not self._fetcher.recovers:
                    self._greet(step)  # so that orders that waited come again
        step.effects.append(self._fetcher.make_prune(task))

    def _retry_damaged(self, step: Step, now: float) -> None:
        """Has damaged payloads sent again, at most once in `AGAIN` seconds, for a bad disk."""
        if now < self._asks_at or not self._damaged:
            return
        damaged, self._damaged, self._asks_at = self._damaged, [], now + AGAIN
        for event in damaged:
            self._take_failure(step, event)

    def _forget(self, step: Step, keys: frozenset[str]) -> None:
        """Forgets damaged payloads, since known ones are not accepted again."""
        names = {name_under(key) for key in keys}
        ids = tuple(sorted({id for id in map(submission_of, names) if id is not None}))
        known = self.state.spooled.items()
        gone = [h for name, h in known if name in names or submission_of(name) in ids]
        self._forwarding.refuse_damaged(step, gone)
        self._discard(step, ids)
        if opened := sorted(name for name in names if name[0] == OPENED):
            _, _, group, cohort, _ = opened[0]
            blocks = tuple(name[4] for name in opened)
            self._write(step, records.OpenedForgotten(group, cohort, blocks))
        self._peers.forget_answers()

    def _take_failure(self, step: Step, event: WorkFailed) -> None:
        """Takes a task's error: has payloads sent again, blames the cohort's sum, or ends."""
        self._busy.discard(work_name(event.task))
        match event:
            case WorkFailed(MakeState() | SumCohort() | StepState(), PayloadsDamaged(keys=keys)):
                self._forget(step, keys)
                if self._registration not in step.effects:
                    self._greet(step)  # so that the orders come again, and find what is missing
            case WorkFailed(SumCohort(cohort), NoiseDamaged()):
                self._retry_hold(step, self._noise.forget(cohort))
            case WorkFailed(StepState() as task, DoesNotOpen() as error):
                self._blame(step, task.cohort, error, payload_digest(task.key or b""))
            case WorkFailed(StepState(cohort), ClientError() | Refused() as error):
                self._blame(step, cohort, error)
            case WorkFailed(orders.WriteCheckpoint(), ComingDamaged(groups=groups)):
                self._fetcher.gain_damaged_again(step, groups)
            case WorkFailed(GatherState() as task) if self._fetcher.failed(step, task, event.error):
                pass
            case WorkFailed(_, error):
                step.effects.append(Halt(str(error), type(error)))

    def _blame(
        self, step: Step, cohort: Cohort, error: SecurepsError, key: bytes | None = None
    ) -> None:
        """Reports that a cohort's sum is of no use, or only the sum of keys of this digest."""
        step.tell(requests.Spoilt(self._name, cohort.group, cohort.number, str(error), key))

    def _begin(self, step: Step, task: Task) -> None:
        """Begins a task, unless an earlier order has begun the same one."""
        if (name := work_name(task)) not in self._busy:
            self._busy.add(name)
            step.effects.append(Work(task))
