"""A shard: holds blocks of the model, stores ciphertexts, adds them, opens the sum, steps.

It decides nothing of its own: it takes in blocks that are signed, of the right size and
for this run, and obeys the coordinator's orders, each of which may come twice.
"""

from __future__ import annotations

from typing import NoReturn, assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    Fenced,
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
from secureps.messages.requests import Prepared
from secureps.messages.run import COORDINATOR, ShardAddress, other_run
from secureps.messages.submission import OPENED, UPDATE, BlockHeader, Cohort, Held, SubmissionId
from secureps.policy.cohorts.overlap import check_clients, check_weights
from secureps.roles import permissions
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    DiskReports,
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
    Task,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import LATER, Pinned, behind, check_run
from secureps.roles.roster_follower import RosterFollower
from secureps.roles.shard import intake
from secureps.roles.shard.adoption import Adoption
from secureps.roles.shard.forwarding import Forwarding
from secureps.roles.shard.keys import model_key, name_under, state_key, submission_of, sum_key
from secureps.roles.shard.memory_limit import UNLIMITED, Limit
from secureps.roles.shard.noise_copies import NoiseCopies
from secureps.roles.shard.peers import Peers
from secureps.roles.shard.state import ShardFold, ShardState
from secureps.roles.shard.state_copies import StateCopies
from secureps.roles.shard.tasks import (
    AdoptState,
    Damaged,
    MakeState,
    NoiseDrawn,
    PartWritten,
    ShardResult,
    StateReady,
    StepState,
    SumCohort,
    SumsReady,
    Unopened,
    WritePart,
)
from secureps.roles.validation import check_divisor, check_key_sum

ALL = 1 << 62
"""Older than every version."""


IDLE = "holds nothing of this run"
"""What the log of a shard says last that the coordinator had end; then its exit status is 0."""


def work_name(task: MakeState | SumCohort | StepState) -> tuple[str, str, int]:
    """The name under which a work is done, once at a time."""
    match task:
        case MakeState(group):
            return ("state", group, 0)
        case SumCohort(cohort):
            return ("sum", cohort.group, cohort.number)
        case StepState(cohort):
            return ("state", cohort.group, cohort.version)


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
    if asked.state and sender not in state.pinned.placement.holders(asked.group, asked.block):
        if not shard:
            raise UnknownParty(f"{sender} does not hold {what}")
        raise NotReady(f"by the placement that {name} knows {sender} does not hold {what}", LATER)
    found = held.states.get(asked.version)
    if found is None:
        if asked.version > held.committed:
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
    if asked.block in state.placed(asked.group):
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
        self._busy: set[tuple[str, str, int]] = set()
        self._watches = False
        self._forwarding = Forwarding()
        self._noise = NoiseCopies(address.name, self.state)
        self._peers = Peers(address.name, self.state)
        self._states = StateCopies(self.state)
        self._adoption = Adoption(address.name, self.state)
        self._tried: dict[tuple[str, int], list[bytes]] = {}  # sums of keys: in work, and newest

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
        return intake.wanted(self._name, self.state, self._roster, sender, message.header)

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
        said = requests.Register(*here, obeyed, *own, self._unsafe, known.held, known.epoch)
        return Call(COORDINATOR, said)

    def wake(self) -> float | None:
        return self._noise.wake

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
                    self._adoption.heard(step, sender, missing)
                    return step
                return self._try_again(step, sender, missing)
            case Answered(requests.GetBlock() as ask):
                step = Step()
                if self._adoption.wants(ask):
                    self._adoption.fetched(step, ask)
                return self._states.fetched(step, ask)
            case Failed(requests.GetBlock() as ask) if not (
                self._adoption.wants(ask) or self._states.wants(ask)
            ):
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
                return step
            case orders.Finish(reason=reason) if sender == COORDINATOR and self.state.apart:
                text = f"{IDLE}: {reason}"
                return Step(effects=[Say(text), Halt(f"{self._name} {text}")])
            case orders.Finish():
                return Step()
            case WorkFailed() if sender == WORKER:
                return self._failed(event)
            case KitRead() if sender == WORKER:
                step = Step()
                return self._followed(step, self._follower.read(step, event))
            case _ if sender == WORKER and isinstance(event, ShardResult):
                return self._done(event)
            case _ if sender == COORDINATOR and isinstance(event, orders.ShardOrder):
                return self._obey(event)
        raise Malformed(f"a shard has no answer to a {type(event).__name__}")

    # --- blocks in and out --------------------------------------------------------

    def _put(self, sender: str, header: BlockHeader) -> Step:
        step, known = Step(), intake.known(self.state, header)
        others = intake.holders(self.state, header)[1:] if sender == header.author else ()
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
                    self._adoption.begin(step, order)
                elif order.state and not known:  # it lost its journal
                    self._begin(step, ("adopt", group, version), AdoptState(order))
                else:
                    self._commit(step, order)
            case orders.WriteCheckpoint(number=number, versions=versions, kept=kept):
                if self._adoption.busy:  # what it writes is on record after that
                    self._adoption.postponed = True
                elif not self._states.bring(step, order, self._busy):
                    self._begin(step, ("part", "", number), WritePart(number, versions, kept))
            case orders.Discard(ids=ids):
                self._discard(step, ids)
            case _:
                assert_never(order)

    def _configure(self, step: Step, order: orders.Configure) -> None:
        if not self.state.founded:
            check_run(order.run, order.placement, self._roster)
        elif self.state.pinned.run.id != order.run.id:
            raise WrongRun(other_run(self._name, self.state.run, order.run.id))
        pins = RunPinned(order.run, order.placement, order.shards)
        if halts := self._limit.refuses(self._name, pins):
            step.effects += halts
            return
        if not self.state.founded:
            self._write(step, pins)
        known = self.state.pinned
        if known.waits(order.placement, self._roster):  # by another roster it is told again
            step.effects.append(behind(self._name, order.placement))
        if known.moved(order.placement, self._roster) is not known:
            self._write(step, pins)
            self._replaced(step, known)
        if order.placement.replicas is not None:
            peers = (shard for shard in order.shards if shard.name != self._name)
            step.effects += self.state.pinned.located(order.run, peers)

    def _replaced(self, step: Step, before: Pinned) -> None:
        """Gives up what this shard and others waited for by the placement before."""
        placement, gone = self.state.pinned.placement, self.state.pinned.left(before)
        step.effects += gone
        step.effects += self._forwarding.placed(self._name, placement)
        self._noise.left()
        self._adoption.left()
        for shard, missing in self._peers.left(frozenset(each.to for each in gone)):
            self._try_again(step, shard, missing)
        for group in self.state.pinned.plan.all_groups:
            if not self.state.placed(group) and self.state.holds(group):
                nothing = records.BlocksAdopted(group, -1, placement.epoch, (), b"")
                self._forget(step, nothing, ALL)

    def _followed(self, step: Step, newer: bool) -> Step:
        """Subscribes anew, so that the coordinator hears which roster it goes by."""
        if newer:
            step.effects.append(Watch())
        return step

    def _found(self, step: Step, order: orders.Found) -> None:
        group, receipt = order.group, order.receipt
        state = self.state.of_founding(group, receipt)
        keys = None if receipt is None else self.state.founding_keys(group, receipt)
        if state is not None:
            step.tell(state)
        elif receipt is not None and keys is None:
            missing = requests.Missing.of_founding(self._name, group, (receipt.id,))
            self._peers.lack(step, missing, order)
        else:
            self._begin(step, ("state", group, 0), MakeState(group, keys))

    def _hold(self, step: Step, order: orders.Hold) -> None:
        cohort, sums = order.cohort, self.state.group(order.cohort.group).sums
        self._check_cohort(cohort)
        if [member.id for member in order.members] != [member.id for member in cohort.members]:
            raise Refused(f"cohort {cohort.number} of {cohort.group}: blocks of other updates")
        if self.state.moves(cohort.group):
            self._adoption.postponed = True
            return
        if self._is_another(step, cohort):
            return
        if cohort.number in sums:
            self._tell_held(step, sums[cohort.number])
            return
        if cohort.version - 1 not in self.state.group(cohort.group).states:
            return  # nothing may be opened that cannot be stepped from; once adopted, it greets
        keys = [self.state.keys(m.id, UPDATE, m.blocks) for m in order.members]
        missing = tuple(m.id for m, found in zip(order.members, keys) if found is None)
        if missing:
            self._peers.lack(step, requests.Missing.of_cohort(self._name, cohort, missing), order)
            return
        if not self._noise.ready(step, order):
            return
        found = tuple(k for k in keys if k is not None)
        self._begin(step, ("sum", cohort.group, cohort.number), SumCohort(cohort, found))

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
        check_clients(cohort, plan.bounds(cohort.group).minimum)
        if plan.holders:  # without encryption each shard reads every update anyway
            check_weights(
                [member.weight for member in cohort.members], plan.bounds(cohort.group).minimum
            )
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
            name, work = (cohort.group, cohort.number), ("state", cohort.group, cohort.version)
            in_work = self._tried.get(name, [])[:1] if work in self._busy else []
            self._tried[name] = [*in_work, key]
        self._begin(step, ("state", cohort.group, cohort.version), StepState(cohort, keys, key))

    def _commit(self, step: Step, order: orders.Commit) -> None:
        group, version, keep = order.group, order.version, order.keep
        held = self.state.group(group)
        if version < held.committed or version not in held.states:
            return
        if (version, keep) == (held.committed, held.keep):
            return
        self._forget(step, records.StateCommitted(group, version, keep), keep)

    def _forget(
        self, step: Step, record: records.StateCommitted | records.BlocksAdopted, keep: int
    ) -> None:
        """What nobody needs any more by a record, and states older than `keep`."""
        group, before = record.group, dict(self.state.spooled)
        sums, own = dict(self.state.group(group).sums), self.state.own(group)
        self._write(step, record)
        self._noise.over(group, record.version)
        gone = tuple(h.key for name, h in before.items() if name not in self.state.spooled)
        past = [number for number in sums if number not in self.state.group(group).sums]
        gone += tuple(sum_key(group, number, block) for number in past for block in own)
        step.effects.append(Work(Prune(gone, group, record.version, keep)))

    def _discard(self, step: Step, ids: tuple[SubmissionId, ...]) -> None:
        if not ids:  # as after almost every block, while very many lie here
            return
        wanted = set(ids)
        gone = tuple(h.key for n, h in self.state.spooled.items() if submission_of(n) in wanted)
        if gone:
            self._write(step, records.Discarded(ids))
            step.effects.append(Work(Prune(gone)))

    # --- the end of works ---------------------------------------------------------

    def _done(self, event: ShardResult) -> Step:
        step = Step()
        match event:
            case SumsReady(made, report):
                self._busy.discard(("sum", made.cohort.group, made.cohort.number))
                self._write(step, made)
                self._tell_held(step, made)
                step.tell(report)
            case NoiseDrawn():
                self._hold_now(step, self._noise.drawn(step, event))
            case Damaged(task, keys):
                self._ask_again(step, task, keys)
            case StateReady(state, telemetry):
                self._busy.discard(("state", state.group, state.version))
                for key in self._tried.pop((state.group, state.cohort), [])[:1]:
                    self._write(step, records.KeySumTaken(state.group, state.cohort, key))
                self._write(step, state)  # with its key: until then the order comes again
                step.tell(state)
                if telemetry is not None:
                    step.tell(telemetry)
            case Unopened(task, reason):
                group, cohort = task.cohort.group, task.cohort
                self._busy.discard(("state", group, cohort.version))
                tried = payload_digest(task.key or b"")
                step.tell(requests.Spoilt(self._name, group, cohort.number, reason, tried))
                newest = self._tried.pop((group, cohort.number), [task.key])[-1]
                if newest and newest != task.key:  # it came while the one before was tried
                    self._tried[group, cohort.number] = [newest]
                    again = StepState(cohort, task.opened, newest)
                    self._begin(step, ("state", group, cohort.version), again)
            case AdoptState(order, copies) if event.epoch:
                if not self._adoption.current(event):
                    step.effects.append(self._adoption.past(event))
                else:
                    self._forget(step, self._adoption.made(event), order.version)
                    step.effects.append(Work(Prune(copies)))
                    if self._adoption.done(step, order.group):
                        step.effects += self._greet().effects
            case AdoptState(at, copies):
                self._busy.discard(("adopt", at.group, at.version))
                self._write(step, Prepared(self._name, at.group, at.version, at.blocks, at.state))
                step.effects += [Work(Prune(copies))] if copies else []
                self._commit(step, at)
                if not any(kind == "adopt" for kind, _, _ in self._busy):
                    step.effects += self._greet().effects  # orders that had to wait come again
            case PartWritten(part):
                self._busy.discard(("part", "", part.number))
                step.tell(part)
            case _:
                assert_never(event)
        return step

    def _ask_again(
        self, step: Step, task: MakeState | SumCohort | StepState, keys: frozenset[str]
    ) -> None:
        """Forgets what is damaged, for nothing known is taken in, and says that it is missing."""
        names = {name_under(key) for key in keys}
        ids = tuple(sorted({id for id in map(submission_of, names) if id is not None}))
        self._discard(step, ids)
        self._busy.discard(work_name(task))
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
        """Ends this shard for an error, unless a cohort's sum is to blame.

        A version that no checkpoint here has may be on other shards.
        """
        step = Step()
        adopts = event.task if isinstance(event.task, AdoptState) else None
        if adopts is not None and self._adopts_again(step, adopts):
            return step
        mendable = isinstance(event.error, ClientError | Refused)
        if not (isinstance(event.task, StepState) and mendable):
            return Step(effects=[Halt(str(event.error), type(event.error))])
        cohort = event.task.cohort
        self._busy.discard(("state", cohort.group, cohort.version))
        step.tell(requests.Spoilt(self._name, cohort.group, cohort.number, str(event.error)))
        return step

    def _adopts_again(self, step: Step, task: AdoptState) -> bool:
        """Whether it does not matter, or others are asked for what is not here."""
        if task.epoch and not self._adoption.current(task):
            step.effects.append(self._adoption.past(task))
            return True
        return not task.epoch and not task.copies and self._states.fetch(step, task.order)

    def _begin(self, step: Step, name: tuple[str, str, int], task: Task) -> None:
        """Hands out a work, once at a time; an order that comes twice changes nothing."""
        if name not in self._busy:
            self._busy.add(name)
            step.effects.append(Work(task))
