"""The worker of a shard: stores, adds, opens and averages payloads, and steps the optimizer.

It works on as many blocks at a time as it has threads, and steps in pieces that fit the processor's
cache, so that memory does not grow with the number of members. `ShardNoise` protects clients
against everyone who sees the opened sum or the model, except those who know this shard's seed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.buffers import Buffers
from secureps.codec.chain import BlockCode
from secureps.crypto.cipher import Cipher, Opener, Opening
from secureps.crypto.sampling import Seed
from secureps.errors import (
    ClientError,
    DamagedStore,
    InternalError,
    KitError,
    Malformed,
    Refused,
)
from secureps.files.objects import initial_path, redact
from secureps.messages.encoding import DIGEST_BYTES, canonical, file_hasher, payload_digest
from secureps.messages.orders import WriteCheckpoint
from secureps.messages.requests import (
    Checkpointed,
    Figure,
    GetBlock,
    GetSum,
    Prepared,
    PutBlock,
    Request,
    Telemetry,
)
from secureps.messages.run import Task
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import FOUNDING, OPENED, UPDATE, Cohort, cohort_digest
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import OptimizerState, Values
from secureps.policy.block_deltas import FLOAT_BYTES, Codes, block_code, block_delta
from secureps.policy.plan import Plan, scale_mover, shares_in
from secureps.policy.rules.rule import common_version
from secureps.privacy.client_level import FIRST
from secureps.roles.machine import Done, Prune, Sweep
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
    ShardState,
    StepState,
    SumCohort,
    cohort_under,
    noise_key,
    state_key,
    sum_key,
)
from secureps.service.environment import Worker
from secureps.service.loop import in_order
from secureps.service.shard.states import (
    Allocate,
    GroupValues,
    ShardFolders,
    States,
    block_digest,
    in_memory,
    lay_out,
    merge,
)
from secureps.store.checkpoint import digest_of_file, map_state
from secureps.store.spool import Spool

log = logging.getLogger("secureps")

BUFFERS = 64 << 20
"""Bytes of buffers that are reused for payloads and sums of the next cohort."""

PASSED_ON = (UPDATE, FOUNDING, OPENED)
"""First words of the keys of blocks that came with a header."""


class ShardWorker(Worker):
    """The worker of one shard; results do not depend on the `limit` of memory and threads."""

    def __init__(
        self,
        state: ShardState,
        spool: Spool,
        folders: ShardFolders,
        noise: ShardNoise,
        limit: Limit = UNLIMITED,
    ) -> None:
        self._name = state.name
        self._state = state
        self._spool = spool
        self._noise = noise
        self._threads = limit.threads
        self._buffers = Buffers(BUFFERS)
        self._looked_at: tuple[int, int, int] | None = None
        self._own_initial = folders.initial
        self._states = States(state, folders, self._make, limit)
        self.adding: Callable[[int], float] = lambda blocks: 0.0

    def seconds(self, task: Task) -> float:
        """Virtual seconds of a task: `adding` gives them for a number of blocks to add."""
        return self.adding(sum(map(len, task.keys))) if isinstance(task, SumCohort) else 0.0

    # --- payloads -----------------------------------------------------------------

    def take(self, request: PutBlock, payload: bytes | memoryview) -> Callable[[], None]:
        header = request.header
        if len(payload) != header.length:
            raise Malformed(f"{len(payload)} bytes came, the header announced {header.length}")
        if payload_digest(payload) != header.digest:
            raise Malformed("the payload does not have the digest of its header; send it again")
        slots = self._layout(header.group).slots(header.block)
        # One coefficient out of range would spoil the whole cohort's sum.
        if header.purpose == UPDATE:
            self._cipher(header.group).adder().check(slots, payload)
        elif header.purpose == FOUNDING:
            values = np.frombuffer(payload, dtype="<f4")
            if not np.isfinite(values).all():
                raise Malformed("the founding model has a value that is not finite")
            if self._layout(header.group).apart(header.block) and values[-1] != FIRST:
                raise Malformed(f"the founding model's last value is the clip's scale: {FIRST:g}")
        else:
            if np.frombuffer(payload, dtype="<i8").min() < 0:
                raise Malformed("an opened sum is negative")
        return partial(self._spool.put, header.key, payload)

    def fetch(self, key: str) -> bytes | memoryview:
        """Reads a sum, a published block (float32 LE), its differences, or a block with state.

        If differences are lost, it reads the whole block instead.

        Raises:
            KeyError: the received block is gone or damaged.
            Refused: the sum or its noise is lost, or the version was deleted meanwhile.
            DamagedStore: the version is lost.
        """
        kind, group, number, block, *since = key.split("/")
        if kind in PASSED_ON:
            try:
                return self._block(key)
            except DamagedStore as damage:
                raise KeyError(key) from damage
        if since[:1] == ["noise"]:
            if (noise := self._noise.read(key)) is not None:
                return noise
            raise Refused(f"{self._name} does not have {key}")  # another shard may have it
        if kind == "state":
            return self._states.block(group, int(number), int(block))
        if kind == "sum":
            return self._read_sum(group, int(number), int(block))
        if since:
            with suppress(DamagedStore, KeyError):
                steps = range(int(since[0]) + 1, int(number) + 1)
                return b"".join(self._states.codes(group, at, int(block)) for at in steps)
        try:
            return self._states.published(group, int(number), int(block))
        except (DamagedStore, KeyError) as error:
            if isinstance(error, DamagedStore) and int(number) in self._state.group(group).states:
                raise
            raise Refused(f"version {number} of {group} is gone; pull the newest") from None

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes | None:
        """Keeps an answer of another shard: a block with its state, or noise."""
        match request:
            case GetBlock(group=group, version=version, block=block) if request.state:
                # No record has the digest of an optimizer's state, so it follows the bytes.
                self._spool.put(state_key(group, version, block), payload, digest)
            case GetSum(group=group, cohort=number, block=block, about=about):
                self._noise.take(noise_key(group, number, block, about), payload)
            case _:
                return super().keep(request, payload, digest)
        return None

    def _payload(self, key: str, digest: bytes) -> memoryview:
        """Reads the payload under a key; DamagedStore if it is gone or has another digest."""
        name = key.removesuffix(f"/{digest.hex()}")
        try:
            payload = self._spool.read(key, self._buffers)
        except (KeyError, OSError) as error:
            raise DamagedStore(f"{self._name}: {name} is gone") from error
        if payload_digest(payload) != digest:
            raise DamagedStore(f"{self._name}: {name} is damaged: its digest is another")
        return payload

    def _block(self, key: str) -> memoryview:
        return self._payload(key, bytes.fromhex(key.rpartition("/")[2]))

    # --- works --------------------------------------------------------------------

    def work(self, task: Task) -> Done | None:
        match task:
            case DrawNoise(cohort, blocks):
                self._noise.draw(cohort, blocks, self._threads)
                return Done(task)
            case SumCohort() | MakeState() | StepState():
                return self._try(task)
            case GatherState():
                return Done(task, self._states.gather(task, self._read_copies(task.copies)))
            case WriteCheckpoint():
                return Done(task, self._write_part(task))
            case Prune():
                for key in task.keys:
                    self._spool.delete(key)
                if task.group:
                    self._states.forget(task.group, task.version, task.keep)
                if task.group and self._state.pinned.plan.noisy_shards:
                    self._noise.forget(task.group)
            case Sweep(referenced):
                for key in self._spool.keys(""):
                    if not key.startswith("sum/") and key not in referenced:
                        self._spool.delete(key)
                self._noise.forget()
            case _:
                raise InternalError(f"a shard's worker does not know a {type(task).__name__}")
        return None

    def _try(self, task: SumCohort | MakeState | StepState) -> Done:
        """Does a task; raises PayloadsDamaged if payloads must first be sent again."""
        try:
            match task:
                case SumCohort():
                    return self._sum(task)
                case MakeState(group):
                    return Done(task, self._keep_version(group, self._make_first(task), -1))
                case StepState():
                    return self._step(task)
        except DoesNotOpen:
            raise
        except (DamagedStore, Refused) as error:
            damaged = self._find_damage(task)
            if not damaged:
                raise
            raise PayloadsDamaged(damaged) from error

    def _read_copies(self, copies: Sequence[str]) -> list[bytes]:
        given = {key: read_whole(self._spool, key) for key in copies}
        if damaged := frozenset(key for key, part in given.items() if part is None):
            raise PayloadsDamaged(damaged)
        return [bytes(part[:-DIGEST_BYTES]) for part in given.values() if part is not None]

    def _find_damage(self, task: SumCohort | MakeState | StepState) -> frozenset[str]:
        """Finds the keys of a task's damaged payloads that can be sent again."""
        match task:
            case SumCohort(cohort, keys):
                for block in self._state.own(cohort.group):  # unfinished sums of no record
                    self._spool.delete(sum_key(cohort.group, cohort.number, block))
                return self._find_broken(key for member in keys for key in member)
            case MakeState(_, keys):
                return self._find_broken(keys or ())
            case StepState(cohort, opened):
                broken = self._find_broken(opened or ())
                blocks = self._state.own(cohort.group) if broken or opened is None else ()
                return broken.union(*(self._find_unsummable(cohort, block) for block in blocks))

    def _find_broken(self, keys: Iterable[str]) -> frozenset[str]:
        broken = set()
        for key in keys:
            try:
                self._block(key)
            except DamagedStore as damage:
                log.warning("%s; it is asked for again", damage)
                broken.add(key)
        return frozenset(broken)

    # --- sums ---------------------------------------------------------------------

    def _sum(self, task: SumCohort) -> Done:
        began, cohort = time.perf_counter(), task.cohort
        self._states.values(cohort.group, cohort.version - 1)  # must be whole before keys are used
        noise = self._noise.reader(cohort)

        def add_block(at: tuple[int, int]) -> bytes:
            place, block = at
            data = self._add(cohort, block, [keys[place] for keys in task.keys], noise(block))
            # A lost sum can be made again from the members' blocks, so it need not be durable.
            self._spool.cache(sum_key(cohort.group, cohort.number, block), data)
            return payload_digest(data)

        own = enumerate(self._state.own(cohort.group))
        digests = tuple(in_order(self._threads, add_block, own))
        figures = (Figure("adding_seconds", time.perf_counter() - began),)
        report = Telemetry(self._name, cohort.group, cohort.version, figures)
        return Done(task, SumsMade(cohort, digests), report)

    def _add(
        self,
        cohort: Cohort,
        block: int,
        keys: Sequence[str | None],
        noise: bytes | memoryview | None,
    ) -> memoryview:
        """Adds a block over the members; DamagedStore if a member's payload is damaged."""
        adder = self._cipher(cohort.group).adder()
        slots = self._layout(cohort.group).slots(block)
        total = adder.zero(slots, self._buffers.lend(adder.total_bytes(slots)))
        for member, key in zip(cohort.members, keys, strict=True):
            if key is None:
                raise DamagedStore(f"{self._name}: block {block} of {member.id} is not here")
            adder.add(total, self._block(key), member.weight)
        if noise is not None:
            adder.add(total, noise, 1)
        return adder.total(total)

    def _read_sum(self, group: str, number: int, block: int) -> memoryview:
        """Reads a recorded sum or makes it again; Refused if it and its blocks are damaged."""
        name = f"the sum of block {block} of cohort {number} of {group}"
        made = self._state.group(group).sums.get(number)
        if made is None:
            raise Refused(f"{self._name}: {name} is not held any more")
        digest = made.sums[self._state.own(group).index(block)]
        key = sum_key(group, number, block)
        try:
            return self._payload(key, digest)
        except DamagedStore as damage:
            log.warning("%s; it is made again", damage)
        keys = [self._state.block_key(member.id, block) for member in made.cohort.members]
        try:
            noise = self._noise.for_recorded_sum(made.cohort, block)
            again = self._add(made.cohort, block, keys, noise)
        except DamagedStore as damage:
            raise Refused(f"{name} is lost: {damage}") from damage
        if payload_digest(again) != digest:
            raise Refused(f"{self._name}: {name} was damaged; made again, it came out different")
        self._spool.cache(key, again)
        return again

    def _find_unsummable(self, cohort: Cohort, block: int) -> frozenset[str]:
        """Finds the damaged members' blocks that a lost sum needs; none if the sum is whole."""
        try:
            self._read_sum(cohort.group, cohort.number, block)
        except Refused:
            keys = (self._state.block_key(member.id, block) for member in cohort.members)
            return self._find_broken(key for key in keys if key is not None)
        return frozenset()

    # --- versions -----------------------------------------------------------------

    def _make(self, task: MakeState | StepState, before: GroupValues | None) -> GroupValues:
        if isinstance(task, MakeState):
            return self._make_first(task)
        assert before is not None
        return self._make_next(task, before)[0]

    def _make_first(self, task: MakeState) -> GroupValues:
        group, layout = task.group, self._layout(task.group)
        own, init = self._state.own(group), self._state.pinned.plan.optimizer(group).init
        sizes = {block: layout.span(block)[1] - layout.span(block)[0] for block in own}
        allocate = self._states.tiers.allocate(FLOAT_BYTES * sum(sizes.values()))
        values = lay_out(sizes, allocate)
        if task.keys is not None:
            for block, key in zip(own, task.keys, strict=True):
                values[block][:] = np.frombuffer(self._block(key), dtype="<f4")
        else:
            flat = self._read_initial(group)
            for block in own:
                values[block][:] = flat[slice(*layout.span(block))]
        optimizer = {block: init(each) for block, each in values.items()}
        return GroupValues(0, values, optimizer, mapped=allocate is not in_memory)

    def _read_initial(self, group: str) -> Values:
        plan = self._state.pinned.plan
        if plan.is_sum(group):
            return np.zeros(self._layout(group).size, dtype=np.float32)
        place = self._own_initial or plan.section.initial or ""
        bring = (
            f"bring {self._name} the file of version 0, whose BLAKE2b-256 digest is "
            f'{plan.initial_digest}, and name it in its own file: initial = "PATH"'
        )
        try:
            path = initial_path(place)
            found = path.stat()
        except OSError as error:
            raise DamagedStore(f"{redact(place)}: {error.strerror}: {bring}") from None
        known = (found.st_ino, found.st_size, found.st_mtime_ns)
        if known != self._looked_at:  # hash it once for all groups: it may exceed the memory
            if (digest := digest_of_file(path, file_hasher).hex()) != plan.initial_digest:
                raise DamagedStore(
                    f"{redact(place)} is not the file that the run is founded on, for its digest "
                    f"is {digest}: {bring}"
                )
            self._looked_at = known
        return self._layout(group).flatten(map_state(path, None))

    def _step(self, task: StepState) -> Done:
        began, cohort = time.perf_counter(), task.cohort
        before = self._states.values(cohort.group, cohort.version - 1)
        made, squares = self._make_next(task, before)
        figures = (Figure("stepping_seconds", time.perf_counter() - began),)
        own = (*figures, *self._states.figures(made))
        report = Telemetry(self._name, cohort.group, cohort.version, own)
        prepared = self._keep_version(cohort.group, made, cohort.number)
        return Done(task, replace(prepared, squares=squares), report)

    def _make_next(
        self, task: StepState, before: GroupValues
    ) -> tuple[GroupValues, tuple[float, ...]]:
        """Returns the next version, and its blocks' squared norms if the plan bounds them."""
        cohort, own = task.cohort, self._state.own(task.cohort.group)
        plan, layout = self._state.pinned.plan, self._layout(cohort.group)
        opener = None if task.opened is not None else self._opener(task)
        allocate = self._states.tiers.allocate(before.nbytes)
        stepping = Stepping(plan, layout, cohort, before, allocate)

        def step_block(at: tuple[int, int]) -> GroupValues:
            place, block = at
            return stepping.step(block, self._open_sum(task, place, block, opener))

        parts = in_order(self._threads, step_block, enumerate(own))
        made = replace(merge(cohort.version, parts), mapped=allocate is not in_memory)
        bounded = plan.bounds_sums(cohort.group)
        return made, tuple(stepping.squares[block] for block in own if bounded)

    def _opener(self, task: StepState) -> Opener:
        """Makes the opener of a cohort's sums; DoesNotOpen if the sum of keys is not usable."""
        place = self._state.pinned.place(task.cohort.group)
        weights = [member.weight for member in task.cohort.members]
        try:
            kind = self._cipher(task.cohort.group)
            return kind.opener(place, task.key, weights)
        except ClientError as error:
            raise DoesNotOpen(str(error)) from error

    def _open_sum(
        self, task: StepState, place: int, block: int, opener: Opener | None
    ) -> NDArray[np.int64]:
        """Returns a block's opened sums; Refused if lost, DoesNotOpen if the key is bad."""
        group = task.cohort.group
        if opener is None:
            assert task.opened is not None
            opened = np.frombuffer(self._block(task.opened[place]), "<i8")
            return opened.astype(np.int64, copy=False)
        total = self._read_sum(group, task.cohort.number, block)
        slots = self._layout(group).slots(block)
        try:
            return opener.open(block, total, slots, self._buffers.lend(8 * slots))
        except Refused as error:
            raise DoesNotOpen(str(error)) from error

    def _keep_version(self, group: str, made: GroupValues, cohort: int) -> Prepared:
        state = self._states.keep(group, made)
        digests = tuple(block_digest(made.values[block]) for block in self._state.own(group))
        total: tuple[float, ...] = ()
        if cohort >= 0 and self._state.pinned.plan.trails(group):
            total = tuple(float(value) for block in made.values.values() for value in block)
        scaled = (block for block in made.values if self._layout(group).apart(block))
        scale = next((float(made.values[block][-1]) for block in scaled), None)
        made_of = (group, made.version, digests, state, scale, total)
        return Prepared(self._name, *made_of, cohort=cohort)

    def _write_part(self, task: WriteCheckpoint) -> Checkpointed:
        try:
            part = self._states.write_part(task.number, task.versions)
        except DamagedStore as error:
            if damaged := self._states.damaged_coming():
                raise ComingDamaged(damaged) from error
            raise
        self._states.prune_parts(task.number, task.kept)
        return part

    # --- small things -------------------------------------------------------------

    def _cipher(self, group: str) -> Cipher:
        return self._state.pinned.plan.cipher_of(self._layout(group))

    def _layout(self, group: str) -> GroupLayout:
        return self._state.pinned.layout.group(group)


# --- stepping ----------------------------------------------------------------------

PIECE = 1 << 15
"""Values that are stepped at a time."""


class Stepping:
    """Makes the version of one cohort; several threads may step blocks of it at once."""

    def __init__(
        self,
        plan: Plan,
        layout: GroupLayout,
        cohort: Cohort,
        before: GroupValues,
        allocate: Allocate = in_memory,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._cohort = cohort
        self._before = before
        sizes = {block: values.size for block, values in before.values.items()}
        self._values = lay_out(sizes, allocate)
        names = {name for state in before.optimizer.values() for name in state.slots}
        self._slots = {name: lay_out(sizes, allocate) for name in names}
        self.squares: dict[int, float] = {}
        """The squared norm of each block's opened sum, without a scale."""

    def step(self, block: int, opened: NDArray[np.int64]) -> GroupValues:
        """Steps a block, as a pure function of its opened sums and of the version before.

        Malformed or NotFinite if members that follow the plan cannot have sent these sums.
        """
        plan, cohort = self._plan, self._cohort
        optimizer = plan.optimizer(cohort.group)
        mover = scale_mover(plan, cohort.group, self._layout.sent)
        scale = None if mover is None else float(np.float32(mover.check(cohort.scale)))
        scaled = bool(self._layout.apart(block))
        values, before = self._before.values[block], self._before.optimizer[block]
        made, state = self._values[block], before
        slots = {name: blocks[block] for name, blocks in self._slots.items()}
        at, measured = 0, 0.0
        code = None if plan.chain(cohort.group).is_identity else self._code(block)
        for mean in self._means(block, opened, code):
            here = slice(at, at + len(mean))
            last = scaled and here.stop == values.size
            if last:
                measured = float(mean[-1])
            if scale is not None:
                mean *= scale
            if last:
                mean[-1] = 0  # the optimizer does not step the clip's scale
            part = OptimizerState(before.step, {n: v[here] for n, v in before.slots.items()})
            made[here], state = optimizer.apply(mean, values[here], part)
            for name, vector in state.slots.items():
                slots[name][here] = vector
            at = here.stop
        if mover is not None and scaled:
            made[-1] = mover.next_scale(float(values[-1]), measured)
        codes, difference = dict[int, Codes](), block_delta(plan, self._layout, block)
        if difference is not None:
            codes[block] = difference.publish(made, values, code)
        stepped = OptimizerState(state.step, slots)
        return GroupValues(cohort.version, {block: made}, {block: stepped}, codes)

    def _means(
        self, block: int, opened: NDArray[np.int64], code: BlockCode | None
    ) -> Iterator[Values]:
        means = self._average(block, opened)
        return means if code is None else _cut(code.decode(np.concatenate([*means])))

    def _average(self, block: int, opened: NDArray[np.int64]) -> Iterator[Values]:
        """Yields the mean, or in a sum group the total, of the members' values, in pieces."""
        plan, cohort, layout = self._plan, self._cohort, self._layout
        grid, terms = plan.grid(cohort.group, layout.sent), cohort.weight + plan.noisy_shards
        shares = shares_in(plan.group(cohort.group), cohort)
        if plan.is_sum(cohort.group):
            shares = Fraction(1)
        left, squares = opened.size - layout.apart(block), 0.0
        for sums in _cut(opened):
            total = grid.decode_sum(sums, terms)
            measured = total[:left]
            squares += float(np.dot(measured, measured))
            left -= measured.size
            yield grid.mean(total, shares)
        self.squares[block] = squares

    def _code(self, block: int) -> BlockCode:
        base = block_digest(self._before.values[block])
        version = common_version(self._plan.group(self._cohort.group).support_every, self._cohort)
        return block_code(self._plan, self._layout, block, version, base)


def _cut(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (values[start : start + PIECE] for start in range(0, values.size, PIECE))


# --- noise -------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardNoise:
    """The noise of cohorts on the disk of one shard, until their versions are made.

    Noise is drawn before the sum, and no record has its digest, so the digest is stored and sent
    behind the noise. It is sealed as clients seal, under the key in `holder_keys` if the cipher
    needs one. The shard's own `seed` gives a repeated sum the same noise, and each cohort another.
    """

    state: ShardState
    spool: Spool
    seed: Seed
    holder_keys: Mapping[str, bytes]

    def draw(self, cohort: Cohort, blocks: Sequence[int], threads: int) -> None:
        about = cohort_digest(self.state.run, cohort)

        def draw(block: int) -> None:
            key = noise_key(cohort.group, cohort.number, block, about)
            if self.read(key) is None:
                noise = self.seal(cohort, block)
                self.spool.put(key, noise, payload_digest(noise))

        for _ in in_order(threads, draw, blocks):
            pass

    def seal(self, cohort: Cohort, block: int) -> bytes:
        """Draws and seals a block of noise, as a client of weight 1 would send it.

        KitError if the cipher needs a holder's key, and the kit has none or several.
        """
        plan, layout = self.state.pinned.plan, self.state.pinned.layout.group(cohort.group)
        values = draw_noise(plan, layout, self.seed, cohort, block)
        kind = plan.cipher_of(layout)
        key = None
        if kind.opening is Opening.HOLDER:
            if len(self.holder_keys) != 1:
                raise KitError("noise on encrypted sums needs one holder's key in the shard's kit")
            (key,) = self.holder_keys.values()
        return kind.noise_sealer(key).seal(block, values)

    def reader(self, cohort: Cohort) -> Callable[[int], bytes | memoryview | None]:
        """Makes a function that reads a block's noise for a cohort's sum; None: the plan has none.

        The function raises NoiseDamaged if the noise is gone: other shards have the first draw.
        """
        if not self.state.pinned.plan.noisy_shards:
            return lambda block: None
        return partial(self._read_drawn, cohort, cohort_digest(self.state.run, cohort))

    def _read_drawn(self, cohort: Cohort, about: bytes, block: int) -> memoryview:
        noise = self.read(noise_key(cohort.group, cohort.number, block, about))
        if noise is None:
            what = f"the noise of block {block} of cohort {cohort.number} of {cohort.group}"
            raise NoiseDamaged(f"{self.state.name}: {what} is gone")
        return noise[:-DIGEST_BYTES]

    def for_recorded_sum(self, cohort: Cohort, block: int) -> bytes | memoryview | None:
        """Returns the noise for repeating a recorded sum, which must get the same digest.

        Lost noise in the clear is drawn again, with the same result, unless another shard may have
        drawn it. Encrypted noise would be another ciphertext: NoiseDamaged.
        """
        try:
            return self.reader(cohort)(block)
        except NoiseDamaged:
            if self.state.opened_by_holder or self.state.others(cohort.group, block):
                raise
            return self.seal(cohort, block)

    def read(self, key: str) -> memoryview | None:
        return read_whole(self.spool, key)

    def take(self, key: str, payload: bytes | memoryview) -> None:
        if not _is_whole(memoryview(payload)):
            raise Malformed(f"{self.state.name}: noise came without its digest, or with another")
        if self.read(key) is None:  # the first one may be in a sum already
            self.spool.put(key, payload)

    def forget(self, group: str = "") -> None:
        """Deletes sums and noise of finished cohorts: of all groups, or of one."""
        names: dict[tuple[str, int], str] = {}
        for key in self.spool.keys(f"sum/{group}/" if group else "sum/"):
            at, about = cohort_under(key)
            made = self.state.summed(*at)
            if made is not None and about is not None and at not in names:
                names[at] = cohort_digest(self.state.run, made.cohort).hex()
            another = about is not None and about != names.get(at, about)
            if another or (made is None and self.state.is_over(*at)):
                self.spool.delete(key)


def draw_noise(
    plan: Plan, layout: GroupLayout, seed: Seed, cohort: Cohort, block: int
) -> NDArray[np.int64]:
    """Draws a block's noise for a cohort's sum: integers on the grid, as a client of weight 1."""
    mechanism = plan.mechanism(cohort.group, layout.sent)
    if mechanism is None:
        raise InternalError("noise is added where the plan protects whole clients, only there")
    # The stream depends on the members too: if a cohort's number were used twice by mistake,
    # the same noise would cancel in the difference of two sums. All ciphers get the same noise.
    stream = seed.derive("aggregator-noise", canonical(replace(cohort, committee=None)), block)
    return mechanism.draw_noise(layout.slots(block), stream.words)


def read_whole(spool: Spool, key: str) -> memoryview | None:
    """Reads bytes that have their digest behind them; None if they are gone or damaged."""
    try:
        kept = memoryview(spool.get(key))
    except (KeyError, OSError):
        return None
    return kept if _is_whole(kept) else None


def _is_whole(kept: memoryview) -> bool:
    noise, digest = kept[:-DIGEST_BYTES], kept[-DIGEST_BYTES:]
    return payload_digest(noise) == digest
