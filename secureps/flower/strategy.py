"""`SecureFedAvg`: a strategy of Flower's whose training nobody sees, but for its mean.

    strategy = SecureFedAvg(plan="plan.toml")
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=3)

What must not live here: waves (`flower.waves`), and servers (`flower.aggregator`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from secureps.client.flower.records import FlowerModel
from secureps.client.flower.server import Heard
from secureps.client.flower.strategy import examine
from secureps.errors import ConfigError, OperatorError, naming
from secureps.flower.aggregator import Aggregator
from secureps.flower.federation import Founder, find_plan, simulated_kit
from secureps.flower.holders import Holders
from secureps.flower.node_settings import TOLD_KIT, TOLD_SEED
from secureps.flower.post import Said
from secureps.flower.trainer import FORM, ModelForm
from secureps.flower.waves import Waves
from secureps.messages.requests import Status
from secureps.store.kit_host import demand_host

log = logging.getLogger("secureps")

LISTEN = "127.0.0.1:0"
"""Where key holders dial, unless it is said: they are on this machine then."""


FLOWERS_OWN = (
    "aggregate_evaluate",
    "num_evaluation_clients",
    "evaluate_metrics_aggr_fn",
    "accept_failures",
)
"""What a strategy says of evaluation, which Flower itself does here."""


class SecureFedAvg(FedAvg):
    """Federated averaging of sealed updates, inside Flower's engine.

    Rounds are made by the plan's rule, the server's optimizer is the plan's or that of `strategy`,
    and evaluation is Flower's own: its metrics are not encrypted.

    Args:
        plan: its file, in the working folder or among the app's files.
        strategy: another strategy of Flower's whose step follows from the mean alone (FedAdam,
            FedYogi, FedAdagrad, FedAvgM, FedProx), or a subclass of one; it configures rounds.
        kit: folder with the keys of coordinator and shards; None in Flower's simulation, which
            makes one for all its nodes.
        run: the run's folder: one that was begun goes on. Default: runs/NAME-DATE-TIME.
        holders: "service": key holders dial the coordinator, and cost no wave; "nodes": nodes relay
            to them (`secureps-holder` in their --node-config), one more wave a round.
        listen: HOST:PORT at which key holders of other machines reach the coordinator.
        unsafe_seed: makes a simulation repeatable: tests alone, there is no privacy.
        settings: of `FedAvg`.

    Raises:
        ConfigError: a strategy that needs single updates, or does what no plan can say.

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
        self.waves = 0
        """Messages that the last run took."""
        if type(self).aggregate_train is not SecureFedAvg.aggregate_train:
            raise ConfigError(f"aggregate_train of {type(self).__name__} sees every single update")
        with naming("SecureFedAvg", ConfigError):
            own = FedAvg(**settings) if strategy is None else strategy
            self._examined = examine(Heard(None, own), (), FLOWERS_OWN)

    def summary(self) -> None:
        """Logs what the plan and the strategy say."""
        log.info("secureps: plan %s, strategy %s", self.plan, self._examined.name)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Never asked: shards aggregate what nobody can read.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("SecureFedAvg aggregates by its own `start`: call that")

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
        """Runs the federation, as `Strategy.start` of Flower's does.

        Args:
            timeout: seconds without any reply or version, after which it ends with an error.

        Raises:
            NotReady: nothing has come for too long; it says what was waited for.
            SecurepsError: whatever else ended the run.
        """
        self.summary()
        model = FlowerModel.of_record(initial_arrays)
        model.refuse_unsummable("initial_arrays")
        rounds = _Rounds(self, grid, model, train_config or ConfigRecord(), timeout)
        result = Result()
        if evaluate_fn is not None and (found := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = found
        with rounds.begun(num_rounds):
            for number in range(rounds.first, num_rounds + 1):
                result.arrays = rounds.version(number)
                log.info("secureps: version %s is made", number)
                own = evaluate_config or ConfigRecord()
                sent = self.strategy.configure_evaluate(number, result.arrays, own, grid)
                if messages := list(sent):
                    replies = grid.send_and_receive(messages, timeout=timeout)
                    metrics = self.strategy.aggregate_evaluate(number, replies)
                    if metrics is not None:
                        result.evaluate_metrics_clientapp[number] = metrics
                if evaluate_fn is not None:
                    found = evaluate_fn(number, result.arrays)
                    if found is not None:
                        result.evaluate_metrics_serverapp[number] = found
            rounds.finish()
            if not result.arrays:
                result.arrays = rounds.arrays()
        self.waves = rounds.sent
        return result


class _Rounds:
    """The rounds of one run: a context begins it, `version` waits for the next."""

    def __init__(
        self,
        owner: SecureFedAvg,
        grid: Grid,
        model: FlowerModel,
        config: ConfigRecord,
        timeout: float,
    ) -> None:
        self._owner, self._grid, self._model = owner, grid, model
        self._config, self._timeout = config, timeout
        self._open = ExitStack()
        self.first = 1
        self._servers: Aggregator
        self._holders: Holders
        self._waves: Waves

    def begun(self, rounds: int) -> ExitStack:
        """Starts servers and key holders; the context that ends them."""
        owner = self._owner
        clients = self._nodes()
        founder = Founder(owner.plan, rounds, owner._examined.wishes, clients)
        name = time.strftime(f"{founder.name}-%Y%m%d-%H%M%S")
        root = (owner.run or Path("runs") / name).resolve()
        log.info("secureps: the run's folder is %s", root)
        plan = founder.found(root, self._model.tensors)
        kit = owner.kit.resolve() if owner.kit else simulated_kit(root, plan, clients)
        with self._open:
            listen = owner.listen if owner.holders == "service" else ""
            simulated = owner.kit is None
            self._servers = Aggregator(plan, kit, root, listen, simulated, owner.unsafe_seed)
            demand_host(self._servers.kit.roster, kit)
            # First: no process is forked beside a server's threads, and they start meanwhile.
            self._holders = Holders(plan, root, kit, self._servers.address, simulated)
            self._open.enter_context(self._holders)
            self._open.enter_context(self._servers)
            self._waves = Waves(self._grid, self._servers, self._said(kit), self._timeout)
            self.first = max(0, self._version(self._servers.status())) + 1
            self._newest = self.arrays()
            return self._open.pop_all()

    def _nodes(self) -> int:
        """How many nodes there are, once there are as many as the strategy waits for."""
        least = int(getattr(self._owner.strategy, "min_available_nodes", 1))
        until = time.monotonic() + self._timeout
        while (found := len(list(self._grid.get_node_ids()))) < least:
            if time.monotonic() > until:
                raise OperatorError(f"{found} nodes are there, and {least} are waited for")
            time.sleep(0.2)
        return found

    def _said(self, kit: Path) -> Said:
        owner, known = self._owner, self._owner.strategy
        names = [getattr(known, key, default) for key, default in FORM_KEYS.items()]
        zeros = {name: np.zeros_like(each) for name, each in self._model.tensors.items()}
        form = ModelForm(FlowerModel(zeros, self._model.nameless), *names)
        said: dict[str, str | int] = {FORM: form.text()}
        if owner.kit is None:
            said[TOLD_KIT] = str(kit)
            if owner.unsafe_seed is not None:
                said[TOLD_SEED] = owner.unsafe_seed
        return said

    def version(self, number: int) -> ArrayRecord:
        """Waits for a version, and returns it."""
        records, kind = self._order(number, self._newest)

        def made() -> bool:
            self._holders.look()
            return self._version(self._servers.status()) >= number

        self._waves.until(made, records, kind)
        self._newest = self.arrays()
        return self._newest

    def _order(self, number: int, arrays: ArrayRecord) -> tuple[RecordDict, str]:
        """What the strategy tells nodes in a round, without the model; and its messages' type.

        Raises:
            ConfigError: it tells nodes of one round different things.
        """
        strategy = self._owner.strategy
        sent = list(strategy.configure_train(number, arrays, self._config, self._grid))
        if not sent:
            raise ConfigError(f"the strategy has nobody train in round {number}")
        first = sent[0]
        if any(each.content != first.content for each in sent if each.content is not first.content):
            raise ConfigError(
                "configure_train tells nodes of one round different things: the plan's rule says "
                "who trains, and all are told the same"
            )
        kept = {n: r for n, r in first.content.items() if n not in first.content.array_records}
        return RecordDict(kept), first.metadata.message_type

    def arrays(self) -> ArrayRecord:
        """The newest version as the app has it."""
        found = self._servers.model()
        tensors = self._model.tensors if found is None else found
        return self._model.record({name: tensors[name] for name in self._model.tensors})

    def finish(self) -> None:
        """Waits until the run is over and durable."""
        until = time.monotonic() + self._timeout
        while not self._servers.status().finished and time.monotonic() < until:
            time.sleep(0.05)

    @property
    def sent(self) -> int:
        """Messages of all waves."""
        return self._waves.sent

    @staticmethod
    def _version(status: Status) -> int:
        return min((group.version for group in status.groups), default=-1)


FORM_KEYS = {
    "arrayrecord_key": "arrays",
    "configrecord_key": "config",
    "weighted_by_key": "num-examples",
}
"""A strategy's names of records, and Flower's own."""
