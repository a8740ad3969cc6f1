"""The worker of a client trains, clips, rounds and seals, and fills the outbox.

    trained - pulled -> clip -> codec -> times the share -> integers (and noise) -> seal -> outbox

Theory of operation. `ClientWorker` does the tasks of a client's machine (`roles.member`), on a
thread beside its loop. `Site` has what belongs to the data holder: trainer, keys, seed and ledger.
The trainer is the data holder's own code (`client.trainer`); `client.update` makes integers, and
`client.sealing` encrypts them.

What happens to one update:

    pulled     `keep` caches a published block, or makes it of a difference
    allowed    `_find_repeats` and `_explain_excess` ask the ledger whether an update may leave;
               `_seconds_to_rest` keeps to the site's updates per hour
    trained    `_fit` assembles the model, calls the trainer, and checks what it returned; where
               groups take turns, `_recall` finds the training of the earlier turns
    drafted    `_draft_update` makes the clipped update, and `_draft` its integers with noise
    charged    `_release` writes the updates to the ledger before any of them is sealed
    sealed     `_seal` seals block after block into the outbox; none leaves before all are sealed
    returned   `work` returns `Contributed`, which the machine journals

What survives a kill. Except for keys and encryption errors, all randomness derives from the
client's seed and (client, group, base version, purpose), so a killed client that trains again makes
the same integers, under every cipher. The ledger then knows them, and charges nothing. What was
half sealed is deleted. Metrics of held-out records are sealed like updates, except those of the
plan's evaluator, which are signed (`_evaluate`).

Guards. `_release` lets one update leave for each place: a second one from the same model, made
after a lost state folder, could be subtracted. `_name_update` names an update by a keyed digest, so
that nobody can test guesses of it. `_check_start` stops a run that begins with another model than
the data holder was given. After an error nothing of the task stays in the outbox, and everything
is sealed again under new keys, because one key must not seal a block twice.

Look first at `work` for the tasks, `prepare_fit` for what a trainer gets, and `client.update` for
the arithmetic.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from secureps.buffers import Buffers
from secureps.client.initial_model import (
    LocalTensors,
    Tensors,
    add_ties,
    conform,
    initial_digest,
    initial_parameters,
    refuse_changed,
    refuse_other_start,
    take_frozen,
)
from secureps.client.sealing import OutboxSealer, draft_receipt
from secureps.client.trainer import (
    LOOK,
    SECRET_BYTES,
    FitConfig,
    FitResult,
    Trainer,
    TrainingLeft,
    blamed,
    convert_fit,
    count_persons,
    judge,
    kinds_of,
    ties_of,
    trainable_privacy,
)
from secureps.client.update import (
    Integers,
    Update,
    UpdateIntegers,
    clip_update,
    declared_magnitude,
    difference,
    keep,
    load_kept,
    load_trained,
    load_training,
    save_training,
)
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import NO_PRIVACY, Label, Seed, Stream
from secureps.errors import (
    BudgetSpent,
    ConfigError,
    InternalError,
    Malformed,
    NotFinite,
    PlanRefused,
    Refused,
    ScriptFailed,
    SecurepsError,
)
from secureps.exhaustion import is_disk_fault
from secureps.messages.charge import Charge, Fact
from secureps.messages.encoding import digest, payload_digest
from secureps.messages.evaluation import EVALUATION, Evaluated, evaluated_bytes, evaluated_digest
from secureps.messages.member_records import Sealed, UpdateReleased
from secureps.messages.requests import Decline, Figure, GetBlock, Request
from secureps.messages.run import Task
from secureps.messages.submission import UPDATE, UPDATE_BYTES, Receipt, SubmissionId, model_digest
from secureps.model.layout import GroupLayout, Layout
from secureps.policy.block_deltas import block_codes, block_delta
from secureps.policy.checks.sections import check_addends
from secureps.policy.plan import (
    Plan,
    check_counted,
    counts_by_public_number,
    digest_round_models,
    most_counted,
    protects_persons,
    public_number,
    scale_mover,
    weight_remarks,
)
from secureps.policy.spending import make_fact, mark_unit
from secureps.policy.tensor_kinds import Kind, refuse_statistics
from secureps.privacy.ledger import OWN_DELTA, Ledger, to_row
from secureps.privacy.mechanism import clip_in_place, clip_l2
from secureps.roles.machine import Done, Leave, Prune, Sweep
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import (
    COMES_LATE,
    DECLINES,
    NO_EXAMPLES,
    Aim,
    Contribute,
    Contributed,
    Evaluate,
    Offer,
    Pulled,
    Reseal,
    block_key,
)
from secureps.roles.member.terms import Budget
from secureps.service.environment import Worker
from secureps.service.logs import tell
from secureps.service.malloc import give_back_free
from secureps.store.backup import TRAINING
from secureps.store.budget import BudgetLedger, MemoryLedger
from secureps.store.checkpoint import write_state
from secureps.store.spool import Spool

_BUFFERS = Buffers(8 << 20)
"""Buffers for sealed blocks, shared by all clients of this process."""

LARGE = 1 << 20
"""From this many values on, free memory is returned before a pulled model is copied."""

_PULLED: WeakValueDictionary[str, NDArray[np.float32]] = WeakValueDictionary()
"""Published blocks by key; the clients of this process share one read-only copy."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A client's trainer, keys and settings; only public keys and sealed updates ever leave it.

    Args:
        holder_keys: the key holders' public cipher keys, by name.
        local: the folder of tensors that are never sent (the plan's `local` patterns).
        threads: how many threads seal blocks.
        records: the public number that the client counts by; None for the plan's.
        model: the file to which the last version is written after the run, with local tensors and
            without frozen ones.
    """

    name: str
    trainer: Trainer
    identity: Identity
    seed: Seed
    holder_keys: Mapping[str, bytes]
    local: Path
    threads: int = 1
    records: int | None = None
    ledger: BudgetLedger = dataclasses.field(default_factory=MemoryLedger)
    model: Path | None = None


@dataclasses.dataclass(frozen=True)
class _Draft:
    """An update that may be sealed once its row is in the ledger.

    `rest` is what its integers left out, float32 (values of the group,), under feedback.
    """

    aim: Aim
    row: UpdateReleased
    receipt: Receipt
    blocks: Sequence[tuple[int, Integers]]
    rest: NDArray[np.float32] | None


def make_addends(plan: Plan, layout: GroupLayout, tensors: Mapping[str, Any]) -> Update:
    """Makes what a client adds to a sum, its tensors; Malformed if an exact sum cannot hold one."""
    section, values = plan.group(layout.name), layout.flatten(tensors)
    if plan.is_exact(layout.name):
        check_addends(section, layout, values)
        return Update(values, float(np.linalg.norm(values)))
    return Update(values, clip_in_place(values, section.clip))


class ClientWorker(Worker):
    """The worker of one client; `pulled` has cached blocks by `block_key`, read-only."""

    def __init__(
        self,
        site: Site,
        machine: Member,
        outbox: Spool,
        cost: Callable[[object], float] = lambda task: 0.0,
    ) -> None:
        self._site = site
        self._machine = machine
        self._outbox = outbox
        self._cost = cost
        self.pulled: dict[str, NDArray[np.float32]] = {}
        self._early: tuple[Contribute, FitResult, float] | None = None
        self._ahead: Any = site.trainer if hasattr(site.trainer, "begin_fit") else None
        """A trainer in another process, which can begin before its result is needed. The client
        then calls `fit` or `evaluate` with the same arguments, or not at all."""
        self._noted = set[str]()
        self._buffers = _BUFFERS
        self._frozen: Tensors = {}
        self._sealer = OutboxSealer(
            site.identity,
            site.holder_keys,
            lambda group, version: machine.committees.due_for_made(group, version),
            outbox,
            site.threads,
            lambda: machine.committees.keys.newest,
        )

    def seconds(self, task: Task) -> float:
        """Returns the virtual seconds of a task, and starts it now if the trainer can run ahead."""
        if self._ahead is not None:
            held = self.pulled
            try:
                self._begin(task)
            except SecurepsError:
                pass  # `work` will raise it
            finally:
                self.pulled = held  # `work` may still need all blocks
        known = isinstance(task, Contribute) and self._recall(task) is not None
        return 0.0 if known else self._cost(task)

    def _begin(self, task: Task) -> None:
        match task:
            case Contribute():
                if self._recall(task) is None and not self._is_trained(task):
                    self._ahead.begin_fit(*self.prepare_fit(task, self._load_staying(task)))
            case Evaluate():
                model = self._assemble(task, self._load_staying(task))
                self._ahead.begin_evaluate(model, {at.group: at.version for at in task.model})

    # --- payloads -----------------------------------------------------------------

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes:
        """Caches a published block, or makes it of a difference; returns its digest."""
        if not isinstance(request, GetBlock):
            raise Malformed(f"no payload is expected with a {type(request).__name__}")
        layout = self._layout().group(request.group)
        first, last = layout.span(request.block)
        if len(payload) != 4 * (last - first):
            payload = self._apply_changes(layout, request, payload)
            digest = payload_digest(payload)
        values = np.frombuffer(payload, dtype="<f4").astype(np.float32, copy=False)
        self.pulled[block_key(digest)] = _PULLED.setdefault(block_key(digest), values)
        return digest

    def _apply_changes(
        self, layout: GroupLayout, request: GetBlock, changes: bytes | memoryview
    ) -> memoryview:
        """Applies a difference to the pulled block that it starts from."""
        delta = block_delta(self._machine.pinned.plan, layout, request.block)
        base = self.pulled.get(block_key(request.base))
        if delta is None or base is None:
            raise Malformed(f"block {request.block} of {request.group} has a wrong length")
        made = delta.follow(base, changes, request.version).astype("<f4", copy=False)
        return made.data.cast("B")

    def fetch(self, key: str) -> memoryview:
        return self._outbox.read(key, self._buffers)

    def work(self, task: Task) -> Done | Contributed | Leave | None:
        with self._sealer.all_or_none():
            return self._work(task)

    def _work(self, task: Task) -> Done | Contributed | Leave | None:
        match task:
            case Offer(group, sequence):
                return self._offer(group, sequence)
            case Contribute(aims=()):
                self._keep_last(task)
                return Done(task)
            case Contribute():
                if (kept := self._recall(task)) is not None:
                    task = kept
                    if not self._is_trained(kept):
                        self._early = (kept, load_trained(self._kept_file), 0.0)
                elif self._is_late(task):
                    return Contributed((), (), dict.fromkeys(task.aims, COMES_LATE))
                if unsent := self._find_repeats(task):
                    return Contributed((), (), unsent)
                if excess := self._explain_excess(task):
                    return Leave(excess)
                if seconds := self._seconds_to_rest(task):
                    return Contributed((), (), again=task.aims, rest=seconds)
                try:
                    return self._contribute(task)
                except TrainingLeft as left:
                    return Leave(str(left))
            case Evaluate():
                return self._evaluate(task)
            case Reseal():
                past = (task.receipt, task.headers, task.sequence)
                return Contributed((self._sealer.seal_again(self._machine.pinned, *past),), ())
            case Prune(keys):
                self._sealer.drop(keys)
                return None
            case Sweep(kept):
                for key in set(self._outbox.keys("")) - kept:
                    self._outbox.delete(key)
                return None
        raise InternalError(f"a client's worker does not know a {type(task).__name__}")

    # --- the last version -----------------------------------------------------------

    def _keep_last(self, task: Contribute) -> None:
        """Gives the last version to the trainer, and writes it to the data holder's file."""
        site, run = self._site, self._machine.pinned.run
        takes = getattr(site.trainer, "take_totals", None)
        if takes is None and site.model is None:
            return
        tensors = self._assemble(task, self._load_staying(task))
        if site.model is not None:
            left_out = {spec.name for spec in self._layout().frozen or ()}
            metadata = {"run": run.id.hex(), **ties_of(site.trainer)}
            metadata |= {f"version.{at.group}": str(at.version) for at in task.model}
            if not site.seed.private:
                metadata["privacy"] = NO_PRIVACY
            kept = {name: each for name, each in tensors.items() if name not in left_out}
            write_state(site.model, kept, metadata)
            made = sorted({at.version for at in task.model})
            version = str(made[0]) if len(made) == 1 else f"{made[0]} to {made[-1]}"
            tell(site.name, "ModelWritten", f"the last model, version {version}, is {site.model}")
        if takes is not None:
            with blamed("take_totals"):
                takes(tensors)

    # --- founding -----------------------------------------------------------------

    def _offer(self, group: str, sequence: int) -> Contributed:
        site, layout = self._site, self._layout().group(group)
        if site.ledger.has_trained(self._machine.pinned.run.id, site.name):
            raise Refused(
                "the coordinator asks for a founding model of a run to which this client has sent "
                "updates already; a model that may have been trained never leaves in the clear"
            )
        initial, kinds = initial_parameters(site.trainer, site.seed), kinds_of(site.trainer)
        with blamed("what parameters returned"):
            layout.refuse_inexact(initial, [n for n, kind in kinds.items() if kind == "constant"])
            values = layout.flatten(initial)
        id, unsafe = SubmissionId(site.name, group, sequence), not site.seed.private
        return Contributed((self._sealer.offer(self._machine.pinned, id, values, unsafe),), ())

    # --- training -----------------------------------------------------------------

    def _contribute(self, task: Contribute) -> Contributed:
        pinned = self._machine.pinned
        kinds = kinds_of(self._site.trainer)
        refuse_statistics(pinned.plan, pinned.run.schema, kinds)
        staying = self._load_staying(task)
        result, training = self._train(task, staying)
        if self._machine.is_over:  # nobody waits for this update: charge nothing for it
            return Contributed((), ())
        if not result.examples and not counts_by_public_number(pinned.plan.section):
            return Contributed((), (), dict.fromkeys(task.aims, NO_EXAMPLES))
        trained = time.perf_counter()
        try:
            if pinned.plan.takes_turns(task.aims[0].group):
                frozen = {spec.name for spec in self._layout().frozen or ()}
                moved = {n: each for n, each in result.parameters.items() if n not in frozen}
                kept = dataclasses.replace(result, parameters=moved)
                save_training(self._site.name, self._kept_file, pinned.run.id, task, kept)
            drafts = [self._draft_update(aim, result, task, kinds) for aim in task.aims]
            leave, unsent = self._release(drafts)
            made = tuple(self._seal(own_draft) for own_draft in leave)
            sealed = time.perf_counter()
            own = {s.name: np.asarray(result.parameters[s.name]) for s in self._layout().local}
            LocalTensors(self._site.local).save(task.model, staying, own)
        except Exception as error:
            if is_disk_fault(error):  # try again later without training again
                self._early = (task, result.copied(), training)
            raise
        figures = (
            Figure("training_seconds", training),
            Figure("encryption_seconds", sealed - trained),
        )
        # Only for the data holder's own terminal, because no noise covers these numbers.
        loss = result.metrics.get("loss")
        what = "persons" if protects_persons(pinned.plan.section) else "records"
        told = f"{result.examples:,} {what}" + ("" if loss is None else f", loss {loss:.4g}")
        standing = self._site.ledger.describe_spent(self._delta)
        return Contributed(made, figures, unsent, told, standing)

    def _seconds_to_rest(self, task: Contribute) -> float:
        """Returns the seconds until the site lets a training begin; 0 if it is done already."""
        ledger = self._site.ledger
        if ledger.updates_per_hour is None or self._is_trained(task):
            return 0.0
        self._check_budget(task)  # if the budget is spent, leave instead of resting
        return ledger.begin_training(self._machine.pinned.run.id)

    @property
    def _delta(self) -> float:
        """The delta at which the ledger accounts for this run."""
        privacy = self._machine.pinned.plan.section.privacy
        return OWN_DELTA if privacy is None else privacy.delta

    def _explain_excess(self, task: Pulled) -> str:
        """Says why a task would exceed this run's budget of this client; empty if it would not.

        The ledger tells what the run has spent, because it outlives a lost state folder.
        """
        pinned, name, ledger = self._machine.pinned, self._site.name, self._site.ledger
        if pinned.plan.section.privacy is None:
            return ""
        budget, run = Budget(pinned.plan, name, ledger.limit), pinned.run.id
        own = [each for of, each in ledger.facts() if (of, each.party) == (run, name)]
        places = {(each.group, each.version, each.step) for each in own}
        ahead = budget.planned(pinned.layout, task.aims)
        new = [each for each in ahead if (each.group, each.version, each.step) not in places]
        excess = budget.excess(Ledger(own), new)
        return excess and f"another version {excess}: this client stops"

    def _check_budget(self, task: Pulled) -> None:
        """Raises BudgetSpent if the budget over all runs does not cover a task."""
        pinned, ledger = self._machine.pinned, self._site.ledger
        if pinned.plan.section.privacy is None:
            ledger.refuse_unprotected()
            return
        ahead = Budget(pinned.plan, self._site.name, None).planned(pinned.layout, task.aims)
        counted = [mark_unit(pinned.plan, each) for each in ahead]
        ledger.refuse_spent(pinned.run.id, counted, self._delta)

    def _is_trained(self, task: Contribute) -> bool:
        """Tells whether this training is done, and only the disk refused its update."""
        return self._early is not None and self._labels(self._early[0]) == self._labels(task)

    def _recall(self, task: Contribute) -> Contribute | None:
        """Returns the task of the training that these aims are parts of, if it is kept.

        Groups that take turns send parts of one training, which began with one model of all of
        them: so each cohort sums what it would if they were sent together.
        """
        pinned = self._machine.pinned
        if not (task.aims and pinned.plan.takes_turns(task.aims[0].group)):
            return None
        past = load_training(self._site.name, self._kept_file, pinned.run.id)
        if past is None:
            return None
        now, then = self._bases(task), self._bases(past)
        if any(now[aim.group] != then.get(aim.group) for aim in task.aims):
            return None
        return dataclasses.replace(past, aims=task.aims)

    def _is_late(self, task: Contribute) -> bool:
        """True if other clients have trained for this version, and sent its first groups.

        This client would train from newer models of these groups, and would be charged for updates
        that no cohort takes.
        """
        turns = self._machine.pinned.plan.takes_turns(task.aims[0].group)
        return turns and len({at.version for at in task.model}) > 1

    def _train(self, task: Contribute, staying: Tensors) -> tuple[FitResult, float]:
        self._check_budget(task)
        self._note(filter(None, (self._site.ledger.warning(),)))
        early, self._early = (self._early if self._is_trained(task) else None), None
        if early is not None:
            return early[1:]
        began = time.perf_counter()
        result = self._fit(task, staying)
        return result, time.perf_counter() - began

    def _load_staying(self, task: Pulled) -> Tensors:
        """Loads the local and frozen tensors, as they are before the task."""
        layout = self._layout()
        tensors = self._load_local(task) if layout.local else {}
        if layout.frozen and not self._frozen:
            initial = initial_parameters(self._site.trainer, self._site.seed)
            with blamed("what parameters returned"):
                self._frozen = take_frozen(initial, layout.frozen)
        return tensors | self._frozen

    def _assemble(self, task: Pulled, staying: Tensors) -> Tensors:
        """Makes the pulled model in the order of the schema; copies all tensors but `staying`."""
        layout, blocks = self._layout(), self._blocks(task)
        wanted = {block_key(digest) for digest in task.blocks}
        self.pulled = {key: values for key, values in self.pulled.items() if key in wanted}
        if sum(map(len, self.pulled.values())) >= LARGE:
            self._buffers.free_kept()
            give_back_free()
        self._check_start(task)

        def values(group: GroupLayout) -> list[NDArray[np.float32]]:
            if group.name not in blocks:  # this client's records touch none of its rows
                return [np.zeros(group.size, np.float32)]
            return self._pulled_blocks(blocks[group.name])

        tensors = layout.assemble(values) | staying
        run = self._machine.pinned.run.schema.untied
        model = {spec.name: tensors[spec.name] for spec in run.tensors}
        return add_ties(model, ties_of(self._site.trainer))

    def _pulled_blocks(self, blocks: Iterable[bytes]) -> list[NDArray[np.float32]]:
        return [self.pulled[block_key(each)] for each in blocks]

    def _check_start(self, task: Pulled) -> None:
        """Raises WrongRun if version 0 is not the model of the file that the client was given."""
        trainer, pulled = self._site.trainer, self._blocks(task)
        plan = self._machine.pinned.plan
        own = [at for at in task.model if at.group in pulled and not plan.is_sum(at.group)]
        first = [at.group for at in own if at.version == 0]
        if first and initial_digest(trainer):
            initial = initial_parameters(trainer, self._site.seed)
            for group in map(self._layout().group, first):
                refuse_other_start(group, initial, self._pulled_blocks(pulled[group.name]))

    def _blocks(self, task: Pulled) -> dict[str, tuple[bytes, ...]]:
        layout, blocks = self._layout(), iter(task.blocks)
        return {
            at.group: tuple(itertools.islice(blocks, layout.group(at.group).blocks))
            for at in task.model
        }

    def _bases(self, task: Pulled) -> dict[str, tuple[int, tuple[bytes, ...]]]:
        """Returns the version and the blocks' digests of each of a task's groups."""
        blocks = self._blocks(task)
        return {at.group: (at.version, blocks[at.group]) for at in task.model}

    @property
    def _kept_file(self) -> Path:
        return self._site.local / TRAINING

    def prepare_fit(self, task: Contribute, staying: Tensors) -> tuple[Tensors, FitConfig]:
        site, plan = self._site, self._machine.pinned.plan
        stream = self._stream("fit", site.name, *self._labels(task))
        config = FitConfig(
            versions={at.group: at.version for at in task.model},
            seed=stream.integer(63),
            settings=plan.section.training,
            privacy=trainable_privacy(plan, site.trainer, site.records),
            work=task.work,
            secret=stream.words(SECRET_BYTES // 4).tobytes(),
        )
        # Copies, because the trainer may change what it gets.
        return self._assemble(task, {n: each.copy() for n, each in staying.items()}), config

    def _fit(self, task: Contribute, staying: Tensors) -> FitResult:
        given, config = self.prepare_fit(task, staying)
        with blamed("fit"):
            result = self._site.trainer.fit(given, config)
        with blamed("what fit returned"):
            schema, ties = self._machine.pinned.run.schema, ties_of(self._site.trainer)
            result = conform(convert_fit(result), schema, ties)
            for group in self._layout().groups:
                group.refuse_inexact(result.parameters)
            refuse_changed(staying, result.parameters, self._layout().frozen or ())
        if result.examples and protects_persons(self._machine.pinned.plan.section):
            # The number of persons may be published, and the number of their records may not.
            return dataclasses.replace(result, examples=count_persons(self._site.trainer))
        return result

    def _labels(self, task: Contribute) -> tuple[Label, ...]:
        """The labels that a training's randomness derives from, beside the client's name."""
        labels: list[Label] = [part for at in task.model for part in (at.group, at.version)]
        labels += [part for aim in task.aims if aim.step for part in (aim.group, aim.step)]
        return (*labels, self._digest_model(task))

    def _digest_model(self, task: Pulled) -> bytes:
        """Computes a digest of a task's model, which does not depend on the version's number.

        Totals of sums are no part of a model. If there is nothing else, the version counts, because
        each sum is a new question.
        """
        pulled, plan = self._blocks(task), self._machine.pinned.plan
        model = [each for group in pulled if not plan.is_sum(group) for each in pulled[group]]
        versions = [f"{at.group} {at.version}".encode() for at in task.model]
        return digest("secureps-base", *(model or (*task.blocks, *versions)))

    def _find_repeats(self, task: Pulled) -> dict[Aim, str]:
        """Returns the ledger's objections, if all aims had this model before as other versions."""
        rows = {aim: self._make_row(aim, b"", task, None) for aim in task.aims}
        said = {aim: self._site.ledger.explain_repeat(row) for aim, row in rows.items()}
        return said if all(said.values()) else {}

    def _make_row(
        self, aim: Aim, update: bytes, task: Pulled, spends: Fact | None
    ) -> UpdateReleased:
        return UpdateReleased(
            self._machine.pinned.run.id,
            self._site.name,
            aim.group,
            aim.version,
            aim.step,
            update,
            self._digest_model(task),
            *to_row(None if spends is None else mark_unit(self._machine.pinned.plan, spends)),
        )

    def _draft_update(
        self, aim: Aim, result: FitResult, task: Contribute, kinds: Mapping[str, Kind]
    ) -> _Draft:
        plan, layout = self._machine.pinned.plan, self._layout().group(aim.group)
        blocks = self._blocks(task)[aim.group]
        model = model_digest(aim.group, aim.version, blocks)
        scale = self._read_scale(aim.group, blocks[-1])
        with blamed("what fit returned"):
            try:
                published = self._pulled_blocks(blocks)
                update = self._make_update(aim, published, result.parameters, scale, kinds)
            except NotFinite as error:
                loss = result.metrics.get("loss")
                of = "" if loss is None else f", of loss {loss}"
                text = f"{error} after {result.steps} steps{of}: {LOOK}"
                raise NotFinite(text) from error
            counted = self._count_publicly(aim, result.examples)
            spends = make_fact(plan, self._site.name, aim.group, layout.sent, aim.version)
            # If a trainer took other steps than are charged, epsilon would be wrong.
            if isinstance(spends, Charge) and result.steps != spends.steps:
                raise Malformed(
                    f"it took {result.steps!r} private steps, and the plan allows {spends.steps}"
                )
        return self._draft(task, aim, model, update, counted)

    def _make_update(
        self,
        aim: Aim,
        published: Sequence[NDArray[np.float32]],
        trained: Mapping[str, Any],
        scale: float | None,
        kinds: Mapping[str, Kind],
    ) -> Update:
        """Makes the clipped update of a group; NotFinite if a value is not finite."""
        plan, layout = self._machine.pinned.plan, self._layout().group(aim.group)
        if plan.is_sum(aim.group):
            return make_addends(plan, layout, trained)
        delta = difference(layout, published, trained)
        kept = load_kept(self._site.name, self._outbox, aim, layout.size)
        if kept is not None:
            delta += kept
        return clip_update(plan, layout, delta, scale, kinds)

    def _draft(self, task: Pulled, aim: Aim, base: bytes, update: Update, examples: int) -> _Draft:
        """Rounds an update and adds the plan's noise, ready to be sealed if it may leave."""
        site, plan = self._site, self._machine.pinned.plan
        layout = self._layout().group(aim.group)
        spends = make_fact(plan, site.name, aim.group, layout.sent, aim.version, aim.step)
        pulled = self._blocks(task)
        codes = block_codes(plan, layout, aim.version, pulled.get(aim.group, ()))
        integers = UpdateIntegers(site.name, plan, layout, aim, self._stream)
        share = examples / most_counted(plan.group(aim.group))
        own, blocks = integers.make(codes, update, examples, share)
        id = SubmissionId(site.name, aim.group, aim.sequence)
        run, unsafe = self._machine.pinned.run.id, not site.seed.private
        receipt = dataclasses.replace(
            draft_receipt(run, id, UPDATE, aim.version, base, spends, unsafe),
            step=aim.step,
            magnitude=declared_magnitude(plan, aim.group, update),
            update=self._name_update(aim, own),
            beside=digest_round_models(plan, aim.group, task.model, pulled),
            examples=examples,
        )

        rest = update.values if plan.group(aim.group).feedback else None
        scale = None if rest is None else self._read_scale(aim.group, pulled[aim.group][-1])
        if rest is not None and scale is not None:  # the next update will have another scale
            rest *= np.float32(scale)
            rest[-1] = 0
        return _Draft(aim, self._make_row(aim, own, task, spends), receipt, blocks, rest)

    def _release(self, drafts: Sequence[_Draft]) -> tuple[list[_Draft], dict[Aim, str]]:
        """Records updates in the ledger before they are sealed; returns those that may leave.

        Also returns the objection to each of the others. The ledger accepts one update for each
        place: an update that came out differently, because this client's state was lost or a
        training does not repeat its bits, never leaves. All are recorded together, because each
        write waits for the disk. A kill afterwards may waste budget, but leaves no update
        uncharged. Raises BudgetSpent beyond this client's budget over all runs.
        """
        said = self._site.ledger.release([each.row for each in drafts], self._delta)
        both = list(zip(drafts, said, strict=True))
        leave = [each for each, objection in both if not objection]
        return leave, {each.aim: objection for each, objection in both if objection}

    def _seal(self, made: _Draft) -> Sealed:
        sealed = self._sealer.seal(self._machine.pinned, made.receipt, made.blocks)
        if made.rest is not None:
            keep(self._outbox, made.aim.group, made.receipt.update, made.rest)
        return sealed

    def _name_update(self, aim: Aim, integers: bytes) -> bytes:
        """Names an update by a keyed digest, so that nobody can test guesses of its integers."""
        labels = (self._site.name, aim.group, aim.version, aim.step, integers)
        return self._stream("update", *labels).words(UPDATE_BYTES // 4).tobytes()

    def _read_scale(self, group: str, last: bytes) -> float | None:
        """Reads a group's scale, if it has one, from the last pulled block; Malformed if wrong."""
        mover = scale_mover(self._machine.pinned.plan, group)
        return None if mover is None else mover.check(float(self.pulled[block_key(last)][-1]))

    # --- evaluating ---------------------------------------------------------------

    def _evaluate(self, task: Evaluate) -> Contributed | Done:
        """Evaluates the pulled model on held-out records; seals the metrics, or signs them."""
        site, pinned = self._site, self._machine.pinned
        section = pinned.plan.section.evaluation
        assert section is not None
        if unsent := self._find_repeats(task):
            return Contributed((), (), unsent)
        try:
            if excess := self._explain_excess(task):
                raise BudgetSpent(excess)
            self._check_budget(task)
            model = self._assemble(task, self._load_staying(task))
            of = task.aim and pinned.plan.group(task.aim.group).weighting
            metrics, vector, examples = judge(
                site.trainer, model, section, task.model, of == "uniform"
            )
        except (ConfigError, PlanRefused, ScriptFailed) as error:  # training can continue
            self._note((f"sends no evaluation: {error}",))
            if task.aim is not None:
                return Contributed((), (), {task.aim: DECLINES})
            return Done(task, Decline(site.name, EVALUATION, task.model[0].version, DECLINES))
        if task.aim is None:
            message = Evaluated(
                run=pinned.run.id,
                party=site.name,
                version=task.model[0].version,
                model=task.digests,
                metrics=metrics,
                examples=examples,
            )
            signature = site.identity.sign(*evaluated_bytes(message))
            return Done(task, dataclasses.replace(message, signature=signature))
        aim = task.aim
        with blamed("what evaluate returned"):
            counted = self._count_publicly(aim, examples)
        update = Update(*clip_l2(vector, pinned.plan.group(aim.group).clip))
        base = evaluated_digest(task.own, task.digests)
        leave, unsent = self._release([self._draft(task, aim, base, update, counted)])
        updates = tuple(self._seal(made) for made in leave)
        told, standing = f"{examples:,} records", site.ledger.describe_spent(self._delta)
        at = task.model[0].version
        return Contributed(updates, (), unsent, told, standing, evaluated=at)

    def _stream(self, purpose: str, *labels: Label) -> Stream:
        """Derives random words for one purpose; under a secret seed they differ between runs."""
        seed, run = self._site.seed, self._machine.pinned.run.id
        return seed.derive(purpose, *labels, *((run,) if seed.private else ()))

    def _count_publicly(self, aim: Aim, examples: int) -> int:
        """Returns the public number that an update counts by; logs remarks about it."""
        plan = self._machine.pinned.plan
        section = plan.group(aim.group)
        if section.weighting == "uniform":
            return 1
        number = public_number(plan.section, self._site.records) or int(examples)
        counted = min(number, most_counted(section))
        check_counted(section, self._site.name, counted)
        self._note(weight_remarks(section, plan.of(aim.group), number))
        return counted

    def _note(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                tell(self._site.name, "Note", note)

    def _layout(self) -> Layout:
        return self._machine.pinned.layout

    # --- tensors that never leave -------------------------------------------------

    def _load_local(self, task: Pulled) -> Tensors:
        """Loads the local tensors that a training starts from: saved ones, or initial ones."""
        site, kept = self._site, LocalTensors(self._site.local)
        own = kept.load(task.model) or initial_parameters(site.trainer, site.seed)
        return {spec.name: own[spec.name] for spec in self._layout().local}
