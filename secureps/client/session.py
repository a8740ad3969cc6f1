"""Sessions for data holders' own training loops: pull the model, train, push the update.

A client runs on a second thread. Its trainer hands the model to the caller's thread, and waits for
the update.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secureps.arguments import check_types
from secureps.client.initial_model import shared_names
from secureps.client.runner import Joining, make_member
from secureps.client.runner import join as take_part
from secureps.client.site_policy import NO_POLICY, read_site
from secureps.client.trainer import (
    Array,
    EvaluateResult,
    FitConfig,
    FitResult,
    Parameters,
    TrainingLeft,
    convert_tensors,
    find_mismatch,
    number,
    record_privacy,
    to_whole_number,
    trainable_privacy,
)
from secureps.errors import Malformed, PlanRefused, ScriptFailed, WrongShape
from secureps.messages.member_records import Sealed, SubmissionSettled
from secureps.messages.run import Task
from secureps.policy.plan import Plan, load_plan
from secureps.policy.tensor_kinds import Kind
from secureps.roles.machine import WORKER, Halt, Leave, Record, TaskResult
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Contribute, Contributed
from secureps.roles.member.terms import Terms
from secureps.service.environment import Meter, Meters
from secureps.service.executor import Executor
from secureps.service.pinning import pin_process
from secureps.store.keyring import default_state
from secureps.store.kit_files import Passphrases
from secureps.wording import named

LEFT = "this client left the run"

LEAVE_SECONDS = 30.0
"""Seconds that an ending session waits until its updates and its leaving have arrived."""


@dataclass(frozen=True, eq=False)
class PulledModel(Mapping[str, Array]):
    """A published model: its tensors by name, read-only, in the dtypes of the first parameters.

    Args:
        parameters: the tensors as a dict.
        config: what the run asks of this training: settings, seed, part of the work, privacy.

    Examples:
        >>> config = ps.FitConfig({"all": 3}, seed=7, settings={"lr": 0.5})
        >>> model = ps.PulledModel({"slope": np.ones(1, np.float32)}, config)
        >>> model.version, model["slope"], model.config.settings["lr"]
        (3, array([1.], dtype=float32), 0.5)
    """

    parameters: Parameters = field(repr=False)
    config: FitConfig

    @property
    def version(self) -> int:
        """The model's version; the lowest, if its groups are at several versions."""
        return min(self.config.versions.values())

    def __getitem__(self, name: str) -> Array:
        return self.parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)


class Session:
    """A client of a run for your own training loop, used in a `with`; made by `join`.

    It joins when the `with` begins. If the block ends before the run does, the client sends what
    was pushed, and tells the coordinator not to wait for it. It may join again later with the same
    state. An exception that leaves the block stops the client at once, as if it had been killed;
    join again with the same state, and it continues where it was.

    Call its methods from one thread. Each raises the error that ended the client, which says whose
    fault it is.

    Examples:
        >>> with ps.join("kit", "plan.toml", server=server, name="client-03",
        ...              initial={"slope": np.zeros(1, "f4"), "height": np.zeros(1, "f4")},
        ...              examples=50) as session:
        ...     for model in session:
        ...         trained = {name: array + np.float32(0.1) for name, array in model.items()}
        ...         sealed = session.push(parameters=trained)
        >>> session.finished
        'all 3 versions are made'
    """

    def __init__(self, joining: Joining, trainer: ExchangeTrainer, frozen: Sequence[str]) -> None:
        self._joining, self._exchange = joining, trainer.exchange
        self._trainer, self._frozen = trainer, frozen
        self._executor: Executor | None = None
        self._begun = threading.Event()
        """Set once there is an executor, or the client has ended without one."""
        self._thread = threading.Thread(target=self._run, name=joining.name, daemon=True)
        self._pulled: PulledModel | None = None
        self._entered = self._raised = False

    def __enter__(self) -> Session:
        if self._entered:
            raise ScriptFailed("a session is for one `with`: join once more")
        self._entered = True
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C: there is no __exit__ yet
            self._stop()
            raise
        self._raise_end()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._leave()
            self._raise_end()
        else:
            self._stop()

    def __iter__(self) -> Iterator[PulledModel]:
        """Yields every model that this client is asked to train from, until the run ends."""
        while (model := self.pull()) is not None:
            yield model

    @property
    def finished(self) -> str:
        """Why the client ended; empty while it takes part."""
        end = self._exchange.end
        return end.reason if isinstance(end, Halt) else str(end or "")

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Maps the name that `push` returned to the outcome of that update.

        "included" in a version, "durable" once a checkpoint has that version; or "dropped" or
        "lost", for reasons that the log has.
        """
        return dict(self._exchange.outcomes)

    @property
    def totals(self) -> Mapping[str, Array]:
        """The newest totals that this client has pulled, by the name of the summed tensor.

        Read-only arrays, in the shapes and dtypes of the first parameters; zeros before a sum is
        opened, empty before the first pull. After the run they are the last totals, unless this
        client left early.
        """
        pulled = self._exchange.newest
        return {name: pulled[name] for name in sorted(self._summed_names())} if pulled else {}

    @property
    def model(self) -> Mapping[str, Array]:
        """The newest model that this client has pulled: read-only tensors by name.

        Empty before the first pull. After the run it is the last version, unless this client left
        early.
        """
        return dict(self._exchange.newest)

    def pull(self) -> PulledModel | None:
        """Waits until the federation asks this client to train, and returns the model.

        The same version may come again after its updates were lost. The same update can then be
        pushed again, without spending more privacy.

        Returns:
            the model; None once the run has finished or this client's budget is spent; `finished`
            says which.

        Raises:
            ScriptFailed: nothing was pushed for the model that was pulled before.
            SecurepsError: whatever ended the client.
        """
        self._demand_inside()
        if self._pulled is not None:
            raise ScriptFailed(
                f"pull: version {self._pulled.version} was pulled before, and nothing was pushed: "
                "push what came of it first"
            )
        self._pulled = self._exchange.take()
        self._raise_end()
        return self._pulled

    def push(
        self,
        delta: Mapping[str, ArrayLike] | None = None,
        *,
        parameters: Mapping[str, ArrayLike] | None = None,
        sums: Mapping[str, ArrayLike] | None = None,
        examples: int | None = None,
        metrics: Mapping[str, float] | None = None,
        steps: int = 1,
    ) -> tuple[str, ...]:
        """Clips, noises and seals an update of the pulled model, as the plan says.

        Returns when the sealed update is durable in this client's outbox, and its cost in its
        journal and ledger. From then on the client sends the same bytes until the coordinator has
        them, also after a kill. The rule decides whether the update becomes part of a version;
        `outcomes` tells later.

        Args:
            delta: the difference to the model: a finite array for each tensor, of its shape.
                Tensors that the plan has frozen may be left out, here and in `parameters`.
            parameters: the whole new model, in place of `delta`.
            sums: what this client adds to each tensor that the plan sums: whole numbers within the
                plan's `bits`, of the tensor's shape. `delta` and `parameters` may not
                have these tensors.
            examples: how many records it comes from; default: the number given to `join`.
            metrics: numbers about the training, for this client's terminal alone.
            steps: optimizer steps taken.

        Returns:
            the names of the updates, one for each group; none if the update is not needed any more.

        Raises:
            ScriptFailed: nothing was pulled, or the update does not fit the model; nothing was
                sent, and another one may be pushed.
            SecurepsError: whatever ended the client.
        """
        self._demand_inside()
        if self._pulled is None:
            raise ScriptFailed("push: there is no pulled model: call pull() before each push")
        whole = delta, parameters, sums or {}
        trained = _make_model(self._pulled, self._frozen, self._summed_names(), *whole)
        count = _count("examples", self._trainer.examples() if examples is None else examples)
        result = FitResult(trained, count, _demand_finite(metrics or {}), _count("steps", steps))
        if self._pulled.config.privacy is not None:
            _demand_private(self._pulled.config, result)
        self._pulled = None
        sealed = self._exchange.give(result)
        self._raise_end()
        return sealed

    def push_sum(
        self, sums: Mapping[str, ArrayLike], *, examples: int | None = None
    ) -> tuple[str, ...]:
        """Pushes what this client adds to the sums of a plan that trains no model; see `push`.

        After the next pull `totals` has the result.
        """
        return self.push({}, sums=sums, examples=examples)

    def _summed_names(self) -> frozenset[str]:
        """The names of the tensors that the run sums, once a model was pulled."""
        assert self._executor is not None
        machine = self._executor.machine
        assert isinstance(machine, Member)
        layout, plan = machine.pinned.layout, machine.pinned.plan
        sums = (group for group in layout.groups if plan.is_sum(group.name))
        return frozenset(spec.name for group in sums for spec in group.tensors)

    # --- the client -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            end: Halt | BaseException = take_part(self._joining, self._trainer, self._make)
        except BaseException as error:
            end = error
        self._exchange.note_end(end)
        self._begun.set()

    def _make(self, *parts: Any, terms: Terms) -> Executor:
        kit, site, stores, around = parts
        metered = replace(around, meter=Meters(self._exchange, around.meter))
        executor = make_member(kit, site, stores, metered, terms=terms)
        self._executor = executor
        if self._exchange.is_over:  # `_stop` was called before there was an executor
            executor.stop()
        self._begun.set()
        return executor

    def _leave(self) -> None:
        """Leaves the run, if the client has joined it; then stops the client."""
        executor = self._executor
        try:
            if executor is not None and executor.run and self._exchange.end is None:
                executor.later(partial(executor.post, WORKER, Leave(LEFT)))
                self._exchange.close()
                self._thread.join(LEAVE_SECONDS)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._exchange.close()
        if self._executor is not None:
            self._executor.stop()
        self._thread.join()

    def _raise_end(self) -> None:
        """Raises the error that ended the client, once."""
        end = self._exchange.end
        if isinstance(end, BaseException) and not self._raised:
            self._raised = True
            raise end

    def _demand_inside(self) -> None:
        if not self._entered:
            raise ScriptFailed("a session joins in a `with`: with ps.join(...) as session:")


@check_types
def join(
    kit: Path | str,
    plan: Plan | Path | str,
    *,
    server: str,
    name: str,
    initial: Parameters | Callable[[int], Parameters],
    examples: int,
    evaluate: Callable[[Parameters], EvaluateResult] | None = None,
    touches: Mapping[str, NDArray[np.int64]] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    private_steps: bool = False,
    persons: int = 0,
    state: Path | str | None = None,
    budget: float | None = None,
    threshold: int | None = None,
    records: int | None = None,
    ledger: Path | str | None = None,
    threads: int = 1,
    ca_fingerprint: str | None = None,
    unsafe_seed: int | None = None,
    insecure_for_tests: bool = False,
    insecure: bool = False,
    passphrase_fd: int | None = None,
    site: Path | str | None = None,
    pin: str = "off",
) -> Session:
    """Takes part in a run with your own training loop; to be used in a `with`.

    Otherwise the client is the same as that of `run_client`.

    Args:
        kit: the start-up kit's folder.
        plan: the plan that this client agrees to; it refuses a run of any other plan.
        server: HOST:PORT of the coordinator.
        name: this client's name on the kit's roster.
        initial: version 0, every tensor by name, or a function of a seed that makes it. Its values
            are used only if this client founds the run. Views of one memory (tied weights, as in a
            `state_dict`) are sent once.
        examples: how many records it trains on; public if the plan weights by examples.
        evaluate: evaluates a model on held-out records, if the plan asks for it; called in another
            thread, between a push and the next pull.
        touches: rows of sparse tensors that its records touch, by name: int64, ascending. The
            operator of the coordinator sees their row-blocks.
        kinds: by name, tensors that are "statistics" (running means and variances) or "constant".
            Client-level privacy, whose noise would ruin statistics, refuses to average them.
        private_steps: confirms that the loop takes the private steps of a plan with record-level
            privacy: it samples records, clips each gradient, and adds noise from `config.secret`.
        persons: the number of persons whose records these are, if the plan protects persons: then
            the loop samples persons, and clips the sum of the gradients of all records of each.
        state: the folder of journal, outbox and seed; default: KIT/state/NAME.
        budget: the epsilon at which this client stops, whatever the plan says.
        threshold: the least number of key holders who must agree to open a sum.
        records: the number of records to count by and to publish, whatever the true number is.
        ledger: the file of what its records spend over all runs; default: beside the kit.
        threads: how many threads seal updates.
        ca_fingerprint: the CA that must have signed the kit.
        unsafe_seed: makes the run repeatable, without privacy; needs `insecure_for_tests`.
        insecure_for_tests: confirms that no real data is at stake.
        insecure: connect without TLS, to a coordinator and shards on loopback.
        passphrase_fd: an open file whose first line is the passphrase of its private keys; without
            one the client asks for it at a terminal, if the keys have a passphrase.
        site: the file of what this site allows, whatever the plan says (docs/site.md). The
            stricter of its limits and these options apply.
        pin: "auto", "off" or a NUMA node, whose CPUs and memory this process then uses
            (docs/tuning.md).

    Raises:
        ConfigError: the plan does not parse, or an option is wrong.
        PlanRefused: the plan trains with record-level privacy, and the loop takes no private steps.
        ScriptFailed: the plan protects persons, and `persons` is 0.

    Examples:
        >>> start = {"slope": np.zeros(1, np.float32), "height": np.zeros(1, np.float32)}
        >>> with ps.join("kit", "plan.toml", server=server, name="client-03",
        ...              initial=start, examples=50) as session:
        ...     while (model := session.pull()) is not None:
        ...         half_way = {"slope": (2 - model["slope"]) / 2, "height": 0 * model["height"]}
        ...         sealed = session.push(half_way)
        >>> session.finished
        'all 3 versions are made'
    """
    agreed = plan if isinstance(plan, Plan) else load_plan(plan)
    policy = NO_POLICY if site is None else read_site(Path(site))
    records = policy.choose_records(records)
    if not private_steps and record_privacy(agreed, records) is not None:
        raise PlanRefused(
            "the plan trains with record-level privacy: a loop that clips each record's gradient "
            "and adds the noise itself says so by private_steps=True; or use TorchTrainer, which "
            "does, with run_client"
        )
    pin_process(pin, name, threads)
    policy.demand_running()
    joining = Joining(
        server,
        Path(kit),
        name,
        default_state(Path(kit), name) if state is None else Path(state),
        unsafe_seed,
        Terms(budget, threshold, agreed.text),
        threads,
        ca_fingerprint,
        records,
        insecure_for_tests,
        None if ledger is None else Path(ledger),
        insecure,
        Passphrases(passphrase_fd),
        policy,
    )
    trainer = ExchangeTrainer(Exchange(), initial, examples, evaluate, touches, kinds, persons)
    trainable_privacy(agreed, trainer, records)
    return Session(joining, trainer, agreed.section.frozen)


# --- what is pushed -----------------------------------------------------------------


def _make_model(
    model: PulledModel,
    frozen: Sequence[str],
    summed: frozenset[str],
    delta: Mapping[str, ArrayLike] | None,
    parameters: Mapping[str, ArrayLike] | None,
    sums: Mapping[str, ArrayLike],
) -> Parameters:
    """Makes the new model from the delta or the parameters; ScriptFailed if they do not fit."""
    if summed ^ sums.keys():
        raise ScriptFailed(
            f"push: the plan sums {named(sorted(summed)) or 'nothing'}, and sums= has "
            f"{named(sorted(sums)) or 'nothing'}"
        )
    pushed = delta if parameters is None else parameters
    if pushed is None or (delta is not None and parameters is not None):
        raise ScriptFailed("push: give the delta, or parameters= of the whole new model")
    whole = parameters is not None
    given = {
        name: base if whole else np.zeros_like(base)
        for name, base in model.items()
        if any(fnmatchcase(name, pattern) for pattern in frozen)
    }
    try:
        own = convert_tensors(pushed)
        given |= own | convert_tensors(sums)
    except WrongShape as error:
        raise ScriptFailed(f"push: {error}") from None
    if both := sorted(summed & own.keys()):
        raise ScriptFailed(f"push: {named(both)} is summed: give it in sums= alone")
    if wrong := find_mismatch(given, {name: array.shape for name, array in model.items()}):
        raise ScriptFailed(f"push: {wrong}")
    trained = dict[str, Array]()
    for name, base in model.items():
        array = given[name]
        if not np.can_cast(array.dtype, base.dtype, "same_kind"):
            text = f"push: tensor {name!r} is {array.dtype}, the model's is {base.dtype}"
            raise ScriptFailed(text)
        cast = array.astype(base.dtype)
        trained[name] = cast if whole or name in summed else base + cast
        if not np.isfinite(trained[name]).all():
            raise ScriptFailed(f"push: tensor {name!r} has values that are NaN or infinite")
    return trained


def _count(key: str, given: object) -> int:
    try:
        count = to_whole_number(key, given)
    except Malformed as error:
        raise ScriptFailed(f"push: {error}") from None
    if count < 1:
        raise ScriptFailed(f"push: {key} is 0: an update comes from 1 or more")
    return count


def _demand_finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    found = dict[str, float]()
    for name, value in metrics.items():
        plain = number(value)
        if plain is None or not math.isfinite(plain):
            raise ScriptFailed(f"push: metric {name!r} is no finite number: leave it out")
        found[name] = plain
    return found


def _demand_private(config: FitConfig, result: FitResult) -> None:
    """Refuses an update that breaks record-level privacy, while the session can still continue."""
    if result.steps != config.settings["local_steps"]:
        raise ScriptFailed(
            f"push: the plan charges for {config.settings['local_steps']} private steps, and "
            f"steps={result.steps} were taken"
        )
    if result.metrics:
        raise ScriptFailed(
            "push: metrics of a private training are computed without noise: leave them out"
        )


class Exchange(Meter):
    """Hands models and updates between the client's worker thread and the caller's thread.

    It is also the client's meter, to hear which records are durable.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: PulledModel | None = None
        self._pushed: FitResult | None = None
        self._sealed: set[str] | None = None
        self._durable = set[str]()
        self._closed = False
        self.outcomes: dict[str, str] = {}
        self.newest: Mapping[str, Array] = {}
        self.end: Halt | BaseException | None = None

    # --- the client's side ----------------------------------------------------------

    def ask(self, model: PulledModel) -> FitResult:
        """Hands out a model, and waits for the pushed update; TrainingLeft if none comes."""
        with self._changed:
            self._asked, self._pushed, self._sealed = model, None, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pushed is not None or self.is_over)
            if self._pushed is None:
                raise TrainingLeft(LEFT)
            return self._pushed

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        """Notes which updates were sealed; `give` returns once all of them are journalled."""
        match task, result:
            case Contribute(), Contributed(updates, again=()):
                with self._changed:
                    self._sealed = {str(update.receipt.id) for update in updates}
                    self._changed.notify_all()

    def on_records(self, records: Sequence[Record]) -> None:
        """Notes from durable records which updates are sealed, and which are settled."""
        with self._changed:
            for record in records:
                match record:
                    case Sealed(receipt):
                        self._durable.add(str(receipt.id))
                    case SubmissionSettled(id, outcome):
                        self.outcomes[str(id)] = outcome
            self._changed.notify_all()

    def note_end(self, end: Halt | BaseException) -> None:
        with self._changed:
            self.end = end
            self._changed.notify_all()

    # --- the caller's side ----------------------------------------------------------

    def take(self) -> PulledModel | None:
        """Waits for the next model to train from; None once the run has finished."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked is not None or self.is_over)
            model, self._asked = self._asked, None
            return None if self.is_over else model

    def give(self, result: FitResult) -> tuple[str, ...]:
        """Hands an update over, waits until it is durable, and returns the ids of durable ones."""
        with self._changed:
            if self.is_over:
                return ()
            self._pushed = result
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.is_over or (self._sealed is not None and self._sealed <= self._durable)
            )
            return tuple(sorted((self._sealed or set()) & self._durable))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """True if the session was closed, or its client has ended."""
        return self._closed or self.end is not None


class ExchangeTrainer:
    """The `Trainer` of a session; its `fit` is the caller's code between `pull` and `push`."""

    def __init__(
        self,
        exchange: Exchange,
        initial: Parameters | Callable[[int], Parameters],
        examples: int,
        evaluate: Callable[[Parameters], EvaluateResult] | None = None,
        touches: Mapping[str, NDArray[np.int64]] | None = None,
        kinds: Mapping[str, Kind] | None = None,
        persons: int = 0,
    ) -> None:
        self._persons = persons
        self.exchange, self._initial, self._examples = exchange, initial, examples
        self._judge, self._touches = evaluate, touches or {}
        self._kinds = {} if kinds is None else kinds
        self._ties: Mapping[str, str] = {}

    def parameters(self, seed: int) -> Parameters:
        initial = self._initial
        made = initial(seed) if callable(initial) else dict(initial)
        self._ties = shared_names(made)
        return made

    def tied(self) -> Mapping[str, str]:
        return self._ties

    def kinds(self) -> Mapping[str, Kind]:
        return self._kinds

    def examples(self) -> int:
        return self._examples

    def persons(self) -> int:
        return self._persons

    def touches(self) -> Mapping[str, NDArray[np.int64]]:
        return self._touches

    def fit(self, parameters: Parameters, config: FitConfig) -> FitResult:
        self.take_totals(parameters)
        return self.exchange.ask(PulledModel(parameters, config))

    def take_totals(self, parameters: Parameters) -> None:
        for array in parameters.values():
            array.flags.writeable = False
        self.exchange.newest = parameters

    def evaluate(self, parameters: Parameters) -> EvaluateResult:
        if self._judge is None:
            raise ScriptFailed("the plan evaluates, and join was called without evaluate=: give it")
        return self._judge(parameters)
