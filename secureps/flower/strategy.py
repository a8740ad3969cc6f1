"""`SecureFedAvg`: a strategy of Flower's that sees only the mean of all updates.

    strategy = SecureFedAvg(plan="plan.toml")
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=3)

Flower's own loop runs, and logs what it always logs; its train messages become waves of sealed
updates (`flower.waves`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore.run import Run

from secureps.client.flower.records import FlowerModel
from secureps.client.flower.server import flowers_name
from secureps.errors import ConfigError, OperatorError, naming
from secureps.flower.aggregator import Aggregator, Holders
from secureps.flower.federation import find_plan, found_run, simulated_kit
from secureps.flower.post import FORM, TOLD_KIT, TOLD_SEED, ModelForm, Said, log
from secureps.flower.waves import Waves
from secureps.messages.requests import Status
from secureps.messages.schema import TRAIN_METRICS
from secureps.policy.plan import load_plan
from secureps.store.keyring import demand_host

LISTEN = "127.0.0.1:0"
"""The default address that key holders dial: they are on this machine then."""


class SecureFedAvg(FedAvg):
    """Federated averaging of sealed updates, inside Flower's engine.

    The plan's rule makes the rounds, and the server's optimizer is the plan's or that of
    `strategy`. Evaluation is Flower's own: its metrics are not encrypted. A subclass may override
    `aggregate_train` to see the model of each version.

    Args:
        plan: its file, in the working folder or among the app's files.
        strategy: another strategy of Flower's whose step follows from the mean alone (FedAdam,
            FedYogi, FedAdagrad, FedAvgM, FedProx), or a subclass of one; it configures rounds.
        kit: folder with the keys of coordinator and shards; None in Flower's simulation, which
            makes one for all its nodes.
        run: the run's folder; a run that was begun there continues. Default: runs/NAME-DATE-TIME.
        holders: "service": key holders dial the coordinator, and cost no wave; "nodes": nodes relay
            to them (`secureps-holder` in their --node-config), one more wave a round.
        listen: HOST:PORT at which key holders of other machines reach the coordinator.
        unsafe_seed: makes a simulation repeatable: tests alone, there is no privacy.
        train_metrics: names of metrics that the app returns from training, and the largest
            magnitude of each: their means, weighted by examples, travel encrypted as the updates
            do.
        settings: of `FedAvg`.

    Raises:
        ConfigError: a strategy that needs single updates, or metrics of single clients; or
            arguments that contradict each other.

    Examples:
        >>> strategy = SecureFedAvg(plan="plan.toml", strategy=FedAdam(eta=0.01))
        >>> result = strategy.start(grid, initial_arrays=arrays, num_rounds=3)
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for base in (each for each in cls.__mro__ if each not in SecureFedAvg.__mro__):
            if issubclass(base, Strategy) and not issubclass(base, SecureFedAvg):
                raise ConfigError(
                    f"{cls.__name__}: {base.__name__} would aggregate what nobody can read; "
                    f"say SecureFedAvg(plan=..., strategy={base.__name__}(...)) instead"
                )

    def __init__(
        self,
        plan: str | Path,
        *,
        strategy: Strategy | None = None,
        kit: str | Path | None = None,
        run: str | Path | None = None,
        holders: Literal["service", "nodes"] = "service",
        listen: str = LISTEN,
        unsafe_seed: int | None = None,
        train_metrics: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.plan = find_plan(plan, tuple(Path(place) for place in sys.path if place))
        self.strategy: Strategy = self if strategy is None else strategy
        if strategy is not None and settings:
            raise ConfigError(f"{min(settings)}: say it to the strategy that is given")
        self.kit = None if kit is None else Path(kit)
        self.run = None if run is None else Path(run)
        self.listen, self.unsafe_seed, self.holders = listen, unsafe_seed, holders
        if holders == "nodes" and kit is None:
            raise ConfigError('holders = "nodes": in a simulation there are no nodes of theirs')
        if kit is not None and unsafe_seed is not None:
            raise ConfigError("unsafe_seed: it is for simulations, which make a kit of their own")
        self.train_metrics = dict(train_metrics or {})
        if wrong := [name for name, most in self.train_metrics.items() if not 0 < most < math.inf]:
            raise ConfigError(f"train_metrics: the largest magnitude of {wrong[0]} is a number > 0")
        self.waves = 0
        """How many messages the last run sent."""
        self._rounds: _Rounds | None = None
        with naming("SecureFedAvg", ConfigError):
            _refuse_aggregation(self.strategy)

    @property
    def _flowers(self) -> Strategy:
        """The strategy that was given, or Flower's own FedAvg."""
        return cast(Strategy, super()) if self.strategy is self else self.strategy

    def summary(self) -> None:
        log.info("\t├──> secureps: %s by plan %s", flowers_name(self.strategy), self.plan)
        self._flowers.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._flowers.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configures evaluation as the strategy does; skips rounds made before this start."""
        if self._rounds is not None and server_round < self._rounds.first:
            return []
        return self._flowers.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self._flowers.aggregate_evaluate(server_round, replies)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns what the shards made in a round: the model, and means of training metrics.

        There are no replies. An override sees the model of each version here, and cannot change it.

        Raises:
            ConfigError: the round has no version.
        """
        if self._rounds is None:
            raise ConfigError("SecureFedAvg aggregates by its own `start`: call that")
        return self._rounds.made(server_round)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the federation in Flower's own loop of rounds.

        Args:
            grid: of the ServerApp.
            initial_arrays: version 0.
            num_rounds: how many versions.
            timeout: seconds without any reply or version, after which it ends with an error.
            train_config, evaluate_config: what nodes are told, beside the plan's settings.
            evaluate_fn: called here with the number and the model of each version, from 0 on;
                returns metrics or None.

        Returns:
            Flower's result; its arrays are the model of the last version.

        Raises:
            NotReady: nothing has come for too long; it says what was waited for.
            SecurepsError: whatever else ended the run.
        """
        model = FlowerModel.of_record(initial_arrays)
        model.refuse_unsummable("initial_arrays")
        rounds = _Rounds(self, grid, model, initial_arrays, timeout)
        self._rounds = rounds

        def judged(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            """Skips rounds that were made before this start: their models are gone."""
            again = 0 < number < rounds.first
            return None if again or evaluate_fn is None else evaluate_fn(number, arrays)

        with rounds.begun(num_rounds):
            result = super().start(
                rounds,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else judged,
            )
            rounds.finish()
        if num_rounds:
            rounds.refuse_other(result.arrays)
        result.arrays = rounds.newest
        self.waves = rounds.sent
        return result


def _refuse_aggregation(strategy: Strategy) -> None:
    flowers_name(strategy)
    aggregate = strategy.aggregate_train
    if not isinstance(strategy, SecureFedAvg) and not aggregate.__module__.startswith("flwr."):
        raise ConfigError(
            f"aggregate_train of {type(strategy).__name__} sees every single update; to see the "
            "model of each version, override it in a subclass of SecureFedAvg"
        )
    own = getattr(strategy, "train_metrics_aggr_fn", None)
    if own is not None and not own.__module__.startswith("flwr."):
        raise ConfigError("train_metrics_aggr_fn sees the metrics of single clients: leave it out")


class _Rounds(Grid):
    """The rounds of one run: the grid to which Flower's loop sends its messages.

    Train messages become waves until the next version is made; all others go to the nodes.
    """

    def __init__(
        self,
        owner: SecureFedAvg,
        grid: Grid,
        model: FlowerModel,
        initial: ArrayRecord,
        timeout: float,
    ) -> None:
        self._owner, self._grid, self._model, self._timeout = owner, grid, model, timeout
        self._seen, self._round = frozenset[int](), 0
        self.first = 1
        """The first round without a version."""
        self.newest = initial
        """The model that the next round begins from."""
        self._metrics = np.zeros(0)
        self._servers: Aggregator
        self._holders: Holders
        self._waves: Waves

    @contextmanager
    def begun(self, rounds: int) -> Iterator[None]:
        """Starts servers and key holders, and ends them."""
        owner, clients = self._owner, self._nodes()
        own = load_plan(owner.plan).section
        name = time.strftime(f"{own.name}-%Y%m%d-%H%M%S")
        root = (owner.run or Path("runs") / name).resolve()
        log.info("secureps: the run's folder is %s", root)
        settings = (owner.strategy, rounds, clients, owner.train_metrics)
        plan = found_run(root, own, self._model.tensors, *settings)
        kit = owner.kit.resolve() if owner.kit else simulated_kit(root, plan, clients)
        listen = owner.listen if owner.holders == "service" else ""
        simulated = owner.kit is None
        self._servers = Aggregator(plan, kit, root, listen, simulated, owner.unsafe_seed)
        demand_host(self._servers.kit.roster, kit)
        # Holders start before the servers, which have threads: no process is forked beside them.
        self._holders = Holders(plan, root, kit, self._servers.address, simulated)
        with self._holders, self._servers:
            self._waves = Waves(self._grid, self._servers, self._said(kit), self._timeout)
            self.first = max(0, self._version(self._servers.status())) + 1
            if self.first > 1:
                self.newest = self._arrays()
            yield

    def _nodes(self) -> int:
        plan = load_plan(self._owner.plan)
        own = int(getattr(self._owner.strategy, "min_available_nodes", 1))
        least = max(own, *(plan.bounds(group.name).start for group in plan.section.group))
        until = time.monotonic() + self._timeout
        while (found := len(list(self.get_node_ids()))) < least:
            if time.monotonic() > until:
                raise OperatorError(f"{found} nodes are there, and {least} are waited for")
            words = "Waiting for nodes to connect: %d connected (minimum required: %d)."
            log.info(words, found, least)
            time.sleep(NODES_LOOK)
        return found

    def _said(self, kit: Path) -> Said:
        owner, known = self._owner, self._owner.strategy
        names = (getattr(known, key, default) for key, default in FORM_KEYS.items())
        arrays, config, weighted_by = names
        zeros = {name: np.zeros_like(each) for name, each in self._model.tensors.items()}
        model = FlowerModel(zeros, self._model.nameless)
        form = ModelForm(model, arrays, config, weighted_by, owner.train_metrics)
        said: dict[str, str | int] = {FORM: form.text()}
        if owner.kit is None:
            said[TOLD_KIT] = str(kit)
            if owner.unsafe_seed is not None:
                said[TOLD_SEED] = owner.unsafe_seed
        return said

    # --- rounds -------------------------------------------------------------------

    def made(self, number: int) -> tuple[ArrayRecord, MetricRecord | None]:
        """The model of a round's version, and means of metrics; ConfigError if nobody trained."""
        if self._round < number:
            raise ConfigError(f"the strategy has nobody train in round {number}")
        if number < self.first:
            return self.newest, None
        parts = zip(self._owner.train_metrics.items(), self._metrics.tolist(), strict=True)
        told: dict[str, Any] = {name: part * most for (name, most), part in parts}
        return self.newest, MetricRecord(told) if told else None

    def _train(self, sent: list[Message]) -> None:
        """Waits for the next version; ConfigError if nodes get other things, or another model."""
        self._round += 1
        if self._round < self.first:
            log.info("secureps: version %s was made before", self._round)
            return
        first = sent[0].content
        if any(each.content != first for each in sent if each.content is not first):
            raise ConfigError(
                "configure_train tells nodes of one round different things: the plan's rule says "
                "who trains, and all are told the same"
            )
        models = first.array_records
        self.refuse_other(*models.values())
        kept = {name: record for name, record in first.items() if name not in models}

        def over() -> bool:
            self._holders.look()
            return self._version(self._servers.status()) >= self._round

        self._waves.until(over, RecordDict(kept), sent[0].metadata.message_type)
        self.newest = self._arrays()
        log.info("aggregate_train: version %s is made of sealed updates", self._round)

    def refuse_other(self, *models: ArrayRecord) -> None:
        """Raises ConfigError if the app continues from another model than the newest version."""
        if list(models) != [self.newest]:
            raise ConfigError(
                "the app goes on from another model than the newest version: shards make each "
                "version, and no code of the app changes it"
            )

    def _arrays(self) -> ArrayRecord:
        found = self._servers.model()
        tensors = self._model.tensors if found is None else found
        self._metrics = np.asarray(tensors.get(TRAIN_METRICS, np.zeros(0)))
        return self._model.record({name: tensors[name] for name in self._model.tensors})

    def finish(self) -> None:
        """Waits until the run is over and durable."""
        until = time.monotonic() + self._timeout
        while not self._servers.status().finished and time.monotonic() < until:
            time.sleep(0.05)

    @property
    def sent(self) -> int:
        return self._waves.sent

    @staticmethod
    def _version(status: Status) -> int:
        return min((group.version for group in status.groups), default=-1)

    # --- Grid ---------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(self, *given: Any, **settings: Any) -> Message:
        return self._grid.create_message(*given, **settings)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that were ever there.

        Flower must not wait for a node that is away: the plan's rule may make a version without it.
        """
        self._seen |= frozenset(self._grid.get_node_ids())
        return sorted(self._seen)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Trains, without replies; sends any other message to the nodes that are there."""
        sent = list(messages)
        if sent and sent[0].metadata.message_type.partition(".")[0] == "train":
            self._train(sent)
            return []
        here = frozenset(self._grid.get_node_ids())
        away = [each.metadata.dst_node_id for each in sent if each.metadata.dst_node_id not in here]
        if away:
            log.info("away, and not asked: %s", ", ".join(f"node {node}" for node in sorted(away)))
        present = [each for each in sent if each.metadata.dst_node_id in here]
        return self._grid.send_and_receive(present, timeout=timeout) if present else []


NODES_LOOK = 1.0
"""Seconds between two looks at which nodes there are, before the run begins."""

FORM_KEYS = {
    "arrayrecord_key": "arrays",
    "configrecord_key": "config",
    "weighted_by_key": "num-examples",
}
"""A strategy's names of records, and Flower's own."""
