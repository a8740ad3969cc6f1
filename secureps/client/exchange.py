"""Passes models and updates between a client's worker thread and the data holder's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import shared_names
from secureps.client.trainer import Array, EvaluateResult, FitConfig, FitResult, Parameters
from secureps.errors import ScriptFailed
from secureps.messages.member_records import Sealed, SubmissionSettled
from secureps.roles.machine import Halt, Leave, Record, Task, TaskResult
from secureps.roles.member.tasks import Contribute, Contributed, SealOn
from secureps.service.environment import Meter, Worker

LEFT = "this client left the run"


@dataclass(frozen=True, eq=False)
class PulledModel(Mapping[str, Array]):
    """A published model: its tensors by name, read-only, in the dtypes of the first parameters.

    Args:
        parameters: the same as a dict.
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
        """The model's version; the lowest, where its groups are at several versions."""
        return min(self.config.versions.values())

    def __getitem__(self, name: str) -> Array:
        return self.parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)


@dataclass(frozen=True)
class LoopSite:
    """What describes a data holder's own training loop: arguments of `join`, and patterns of the
    tensors that its plan has frozen.
    """

    initial: Parameters | Callable[[int], Parameters]
    examples: int
    evaluate: Callable[[Parameters], EvaluateResult] | None = None
    touches: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    frozen: Sequence[str] = ()


class Left(BaseException):
    """Ends a training whose session is closed.

    A BaseException, because `blamed` would report an Exception as a fault of the script.
    """


class Exchange(Meter):
    """The rendezvous of the client's worker thread and the caller's: each waits for the other.

    As the client's meter it hears which records are durable.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: PulledModel | None = None
        self._pushed: FitResult | None = None
        self._sealed: set[str] | None = None
        self._durable = set[str]()
        self._closed = self._started = False
        self.outcomes: dict[str, str] = {}
        self.end: Halt | BaseException | None = None

    # --- the client's side ----------------------------------------------------------

    def ask(self, model: PulledModel) -> FitResult:
        """Hands out a model, and waits for the update that is pushed.

        Raises:
            Left: the session was closed, or the client ended.
        """
        with self._changed:
            self._asked, self._pushed, self._sealed = model, None, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pushed is not None or self.over)
            if self._pushed is None:
                raise Left
            return self._pushed

    def sealed(self, ids: set[str]) -> None:
        """Notes the ids of the sealed updates; `give` returns once all of them are journalled."""
        with self._changed:
            self._sealed = ids
            self._changed.notify_all()

    def journalled(self, records: Sequence[Record]) -> None:
        """Reads durable records of the client: which updates are sealed, which are settled."""
        with self._changed:
            for record in records:
                match record:
                    case Sealed(receipt):
                        self._durable.add(str(receipt.id))
                    case SubmissionSettled(id, outcome):
                        self.outcomes[str(id)] = outcome
            self._changed.notify_all()

    def started(self) -> None:
        """Says that the client is put together; it may still have to join."""
        with self._changed:
            self._started = True
            self._changed.notify_all()

    def ended(self, end: Halt | BaseException) -> None:
        """Says that the client ended, and why."""
        with self._changed:
            self.end = end
            self._changed.notify_all()

    # --- the caller's side ----------------------------------------------------------

    def wait_for_start(self) -> None:
        """Waits until the client is put together, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self.over)

    def take(self) -> PulledModel | None:
        """The next model to train from; None once the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked is not None or self.over)
            model, self._asked = self._asked, None
            return None if self.over else model

    def give(self, result: FitResult) -> tuple[str, ...]:
        """Hands an update over, and waits until it is durable; returns the ids of what is."""
        with self._changed:
            if self.over:
                return ()
            self._pushed = result
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.over or (self._sealed is not None and self._sealed <= self._durable)
            )
            return tuple(sorted((self._sealed or set()) & self._durable))

    def close(self) -> None:
        """Ends all training: whoever waits for a model or an update goes on without."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether the session was closed, or its client ended."""
        return self._closed or self.end is not None


class ExchangeTrainer:
    """The `Trainer` of a session; its `fit` is the caller's code between `pull` and `push`."""

    def __init__(self, site: LoopSite, exchange: Exchange) -> None:
        self._site, self._exchange = site, exchange
        self._ties: Mapping[str, str] = {}

    def parameters(self, seed: int) -> Parameters:
        """Version 0 as it was given to `join`; see `Trainer`."""
        initial = self._site.initial
        made = initial(seed) if callable(initial) else dict(initial)
        self._ties = shared_names(made)
        return made

    def tied(self) -> Mapping[str, str]:
        """Names that share memory in version 0; see `Trainer`."""
        return self._ties

    def examples(self) -> int:
        """The number of records that was given to `join`; see `Trainer`."""
        return self._site.examples

    def touches(self) -> Mapping[str, NDArray[np.int64]]:
        """The rows that were given to `join`; see `Trainer`."""
        return self._site.touches

    def fit(self, parameters: Parameters, config: FitConfig) -> FitResult:
        """Lets the caller train; see `Trainer.fit`."""
        for array in parameters.values():
            array.flags.writeable = False
        return self._exchange.ask(PulledModel(parameters, config))

    def evaluate(self, parameters: Parameters) -> EvaluateResult:
        """Calls the function that was given to `join`; see `Evaluator`."""
        if self._site.evaluate is None:
            raise ScriptFailed("the plan evaluates, and join was called without evaluate=: give it")
        return self._site.evaluate(parameters)


class ExchangeWorker:
    """A client's worker that tells an exchange which updates it sealed."""

    def __init__(self, worker: Worker, exchange: Exchange) -> None:
        self._worker, self._exchange = worker, exchange
        self.take, self.keep, self.fetch = worker.take, worker.keep, worker.fetch
        self.seconds = worker.seconds

    def work(self, task: Task) -> TaskResult | None:
        """Does a task; returns `Leave` in place of a training that the session gave up."""
        try:
            done = self._worker.work(task)
        except Left:
            return Leave(LEFT)
        sealing = isinstance(task, Contribute | SealOn)
        if sealing and isinstance(done, Contributed) and not done.again:  # else it is sealed anew
            self._exchange.sealed({str(update.receipt.id) for update in done.updates})
        return done
