"""Reads from a ServerApp what a plan can say: version 0, clients' settings, the optimizer.

The ServerApp runs once, where the plan is made, until it starts its strategy. The strategy must be
one of six of Flower's, unchanged, so that its settings define it. Code of the app's own could
change the training, so it is refused.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import flwr.server.strategy as old
import flwr.serverapp.strategy as new
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from secureps.client.flower.trainer import RUN, FlowerModel, to_plain
from secureps.client.initial_model import (
    RoundRecords,
    ServerAppRecords,
    ServerAppResult,
    shared_names,
)
from secureps.client.trainer import Array as NumpyArray
from secureps.client.trainer import Setting
from secureps.errors import ConfigError

MEANS = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
"""Flower's strategies that step along the mean of all updates; Flower has each in two kinds."""

KINDS: tuple[type[Any], ...] = tuple(getattr(home, name) for home in (new, old) for name in MEANS)


def _methods(kind: type[Any]) -> dict[str, Any]:
    return {name: each for name, each in vars(kind).items() if callable(each)}


_FLOWERS = {base: _methods(base) for kind in KINDS for base in kind.__mro__[:-1]}
"""The methods of Flower's classes, before an app is imported that may replace them."""

MEAN = new.FedAvg().train_metrics_aggr_fn
"""Flower's own function for means of metrics, weighted by examples."""

METRICS = (
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
    *("fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn"),
)
"""A strategy's functions that see the metrics of single clients."""

LOOKS = 10
"""A ServerApp that counts its nodes more often than this before it starts needs more nodes."""


def read_server_app(
    server: ServerApp, config: Mapping[str, Setting], versions: int, clients: int
) -> ServerAppResult:
    """Runs a ServerApp, with its run_config, until it starts its strategy.

    Raises ConfigError if it has code of its own, or a strategy that needs single updates, and
    passes on what the ServerApp raises.
    """
    context, grid = Context(RUN, 0, {}, RecordDict(), dict(config)), _SilentGrid(clients)
    if server._server_fn is not None:
        return _read_components(server._server_fn(context), versions)
    if server._main is None:
        raise own_code_error("it has no main function")
    with _stop_at_start():
        try:
            server(grid, context)
        except _AppStopped as stopped:
            end = stopped
        else:
            raise own_code_error("it starts no strategy")
    if end.error is not None:
        raise end.error
    given = end.arguments
    strategy, arrays = given["self"], given["initial_arrays"]
    refuse_own_code(strategy)
    if given["grid"] is not grid:
        raise own_code_error(f"the grid {type(given['grid']).__name__}")
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError("its strategy is started without initial_arrays")
    more = {"proximal-mu": strategy.proximal_mu} if hasattr(strategy, "proximal_mu") else {}
    train, evaluate = (dict(given[f"{action}_config"] or {}) for action in ("train", "evaluate"))
    return _make_result(strategy, arrays, [{**train, **more}], [evaluate])


def _read_components(made: Any, versions: int) -> ServerAppResult:
    """Reads a ServerApp of Flower's older API, which only names its strategy."""
    for each in (made.server, made.client_manager):
        if each is not None:
            raise own_code_error(type(each).__name__)
    strategy: Any = old.FedAvg() if made.strategy is None else made.strategy
    refuse_own_code(strategy)
    more = {"proximal_mu": strategy.proximal_mu} if hasattr(strategy, "proximal_mu") else {}
    first, train, evaluate = strategy.initial_parameters, list[Any](), list[Any]()
    for number in range(1, versions + 1):
        fit, judge = strategy.on_fit_config_fn, strategy.on_evaluate_config_fn
        train.append(dict(fit(number) if fit else {}) | more)
        evaluate.append(judge(number) if judge else {})
    tensors = {} if first is None else dict(enumerate(first.tensors))
    arrays = {str(i): Array("", (), first.tensor_type, data) for i, data in tensors.items()}
    return _make_result(strategy, ArrayRecord(arrays) if arrays else None, train, evaluate)


def _make_result(
    strategy: Any, arrays: ArrayRecord | None, train: Sequence[Any], evaluate: Sequence[Any]
) -> ServerAppResult:
    model, ties = dict[str, NumpyArray](), dict[str, str]()
    if arrays is not None:
        model = FlowerModel.of_record(arrays).tensors
        ours = dict(zip(arrays, model, strict=True))
        ties = {ours[name]: ours[own] for name, own in vars(arrays).get(TIES, {}).items()}
    records, config, weighted_by = record_keys(strategy)
    served = ServerAppRecords(
        names=tuple(model),
        arrays=records,
        config=config,
        weighted_by=weighted_by,
        fits=_list_changes(config, train),
        evaluations=_list_changes(config, evaluate),
    )
    return ServerAppResult(model, ties, served, type(strategy).__name__, optimizer_of(strategy))


def record_keys(strategy: Any) -> tuple[str, str, str]:
    """Returns a strategy's names of arrays, config and number of examples, else Flower's own."""
    return (
        getattr(strategy, "arrayrecord_key", "arrays"),
        getattr(strategy, "configrecord_key", "config"),
        getattr(strategy, "weighted_by_key", "num-examples"),
    )


def _list_changes(key: str, rounds: Sequence[Any]) -> tuple[RoundRecords, ...]:
    """Lists the settings of rounds, without those that equal the round before."""
    found = list[RoundRecords]()
    for number, each in enumerate(rounds, 1):
        records = to_plain(RecordDict({key: ConfigRecord(each)}))[1]
        if not found or found[-1].records != records:
            found.append(RoundRecords(number, records))
    return tuple(found)


# --- what is Flower's, and what is the app's own ----------------------------------


def own_code_error(what: str) -> ConfigError:
    """Makes the error for a ServerApp that does more than a plan can say."""
    return ConfigError(
        f"its ServerApp has code of its own, which does not run here ({what}): run the app inside "
        "Flower's engine, or leave the ServerApp out and give version 0 as a file, as "
        "docs/flower.md says"
    )


def strategy_name(strategy: Any) -> str:
    """Returns the name of a strategy's class in Flower; ConfigError if it needs single updates."""
    bases = type(strategy).__mro__
    name = next((each.__name__ for each in bases if each.__module__.startswith("flwr.")), "")
    if name in ("", "Strategy", *MEANS):
        return name
    why = "needs single updates, which nobody here sees"
    if name.startswith(("DifferentialPrivacy", "DPFedAvg")):
        why = 'adds noise at Flower\'s server: say [privacy] with unit = "client" in the plan'
    raise ConfigError(f"the strategy {name} {why}; there are {', '.join(MEANS)}")


def refuse_own_code(strategy: Any) -> None:
    """Raises ConfigError unless a strategy is one of KINDS, with Flower's methods and metrics."""
    strategy_name(strategy)
    kind = type(strategy)
    if kind not in KINDS:
        raise own_code_error(f"the strategy {kind.__name__}")
    own = [name for name in vars(strategy) if hasattr(kind, name)]
    for base in kind.__mro__[:-1]:
        own += [n for n, method in _methods(base).items() if _FLOWERS[base].get(n) is not method]
    if own:
        raise own_code_error(f"{own[0]} of {kind.__name__}")
    for name in METRICS:
        if getattr(strategy, name, None) not in (None, MEAN):
            raise own_code_error(
                f"{name}, which may be left out: means are the plan's [evaluation]"
            )


def optimizer_of(strategy: Any) -> dict[str, Any] | None:
    """Returns the strategy's optimizer as a plan's section; None for the mean itself."""
    kind = strategy_name(strategy)
    if kind in ("FedAdam", "FedYogi", "FedAdagrad"):
        return {
            "name": kind.lower(),
            "learning_rate": float(strategy.eta),
            "betas": (float(strategy.beta_1), float(strategy.beta_2)),
            "tau": float(strategy.tau),
        }
    if kind != "FedAvgM":
        return None
    rate, momentum = float(strategy.server_learning_rate), float(strategy.server_momentum)
    if momentum:
        return {"name": "momentum", "learning_rate": rate, "momentum": momentum}
    return {"name": "sgd", "learning_rate": rate}


# --- the one run ------------------------------------------------------------------


class _AppStopped(BaseException):
    """Ends a ServerApp when its strategy starts, or when it waits for an answer.

    It is a BaseException, because an app may catch Exception and continue.
    """

    def __init__(self, arguments: Mapping[str, Any], error: ConfigError | None = None) -> None:
        super().__init__()
        self.arguments, self.error = arguments, error


class _SilentGrid(Grid):
    """A grid of nodes that never answer."""

    def __init__(self, nodes: int) -> None:
        self._nodes, self._looks = nodes, 0

    def set_run(self, run: Run) -> None:
        pass

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN)

    def get_node_ids(self) -> Iterable[int]:
        self._looks += 1
        if self._looks > LOOKS:
            text = f"its ServerApp waits for more nodes than the {self._nodes} that take part"
            raise _AppStopped({}, ConfigError(text))
        return range(1, self._nodes + 1)

    def _ask(self, *given: Any, **settings: Any) -> NoReturn:
        raise _AppStopped({}, own_code_error("it sends its clients messages itself"))

    create_message = push_messages = pull_messages = send_and_receive = _ask


TIES = "secureps_ties"
"""An attribute that we give an ArrayRecord, with further names of its arrays."""

MAKERS = ("from_torch_state_dict", "from_numpy_ndarrays")


def _notice_ties(make: Any) -> Any:
    """Wraps a constructor of ArrayRecord to note tied tensors, because it copies each array."""

    def made(cls: type[ArrayRecord], *given: Any, **settings: Any) -> ArrayRecord:
        tensors = next(iter((*given, *settings.values())))
        if not isinstance(tensors, Mapping):
            tensors = {str(i): each for i, each in enumerate(tensors)}
        ties = shared_names(tensors)
        record: ArrayRecord = make.__func__(cls, *given, **settings)
        vars(record)[TIES] = ties
        return record

    return classmethod(made)


@contextmanager
def _stop_at_start() -> Iterator[None]:
    """Stops strategies when they start, silences Flower's log, and lets apps make messages."""
    stopped: Any = Strategy
    flowers, before_this = Strategy.start, itertools.count()

    @functools.wraps(flowers)
    def start(*args: Any, **settings: Any) -> NoReturn:
        if next(before_this):  # called from a bare `except`, or a `finally`
            raise _AppStopped({}, own_code_error("it trains more than once"))
        bound = inspect.signature(flowers).bind(*args, **settings)
        bound.apply_defaults()
        raise _AppStopped(bound.arguments)

    logger, identity = logging.getLogger("flwr"), ("_task_id", "_run_id", "_node_id")
    level, before = logger.level, [getattr(TaskIdentity, name) for name in identity]
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
    logger.setLevel(logging.ERROR)
    stopped.start = start
    makers = {name: vars(ArrayRecord)[name] for name in MAKERS}
    for name, maker in makers.items():
        setattr(ArrayRecord, name, _notice_ties(maker))
    try:
        yield
    finally:
        stopped.start = flowers
        for name, maker in makers.items():
            setattr(ArrayRecord, name, maker)
        logger.setLevel(level)
        for name, value in zip(identity, before, strict=True):
            setattr(TaskIdentity, name, value)
