"""Takes from a ServerApp what a plan can say: version 0, what clients are told, the optimizer.

The ServerApp runs once, where the plan is made, until it starts its strategy. That strategy must be
one of six of Flower's, as Flower has it: then all that it would do follows from its settings. Any
other code of the app's would alter the training, and is refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import flwr.server.strategy as old
import flwr.serverapp.strategy as new
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from secureps.client.flower.trainer import RUN
from secureps.client.trainer import Setting
from secureps.errors import ConfigError

MEANS = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
"""Flower's strategies that step along the mean of all updates; Flower has each in two kinds."""

KINDS: tuple[type[Any], ...] = tuple(getattr(home, name) for home in (new, old) for name in MEANS)


def _methods(kind: type[Any]) -> dict[str, Any]:
    return {name: each for name, each in vars(kind).items() if callable(each)}


_FLOWERS = {base: _methods(base) for kind in KINDS for base in kind.__mro__[:-1]}
"""The methods of these classes as they are before an app is imported, which may assign others."""

MEAN = new.FedAvg().train_metrics_aggr_fn
"""Flower's own function that puts metrics together: their mean, weighted by examples."""

METRICS = (
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
    *("fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn"),
)
"""A strategy's functions that put the metrics of single clients together."""

LOOKS = 10
"""A ServerApp that counts its nodes more often than this, and has not started, waits for more."""


OTHERS = ("secureps.", "flwr.", "contextlib")
"""Prefixes of the names of modules that are not part of the app."""


@dataclass(frozen=True, eq=False)
class Taken:
    """A ServerApp's decisions, as Flower's own objects.

    Args:
        arrays: version 0; None if it would ask a client.
        strategy: one of KINDS.
        train, evaluate: what clients are told, for each round at which that changes.
    """

    arrays: ArrayRecord | None
    strategy: Any
    train: tuple[ConfigRecord, ...]
    evaluate: tuple[ConfigRecord, ...]


def take(server: ServerApp, config: Mapping[str, Setting], versions: int, clients: int) -> Taken:
    """Runs a ServerApp until it starts its strategy.

    Args:
        config: the app's run_config.
        versions: of the plan; clients: how many take part, and so how many nodes the app sees.

    Raises:
        ConfigError: it has code of its own, or a strategy that needs single updates.
        Exception: whatever the ServerApp raises.
    """
    context, grid = Context(RUN, 0, {}, RecordDict(), dict(config)), _Nowhere(clients)
    if server._server_fn is not None:
        return _of_components(server._server_fn(context), versions)
    if server._main is None:
        raise own_code("it has no main function")
    with _stopped_at_start():
        try:
            server(grid, context)
        except _Stopped as stopped:
            end = stopped
        else:
            raise own_code("it starts no strategy")
    if end.error is not None:
        raise end.error
    given = end.arguments
    strategy, arrays = given["self"], given["initial_arrays"]
    refuse_own_code(strategy)
    _refuse_second_start(end.__traceback__)
    if given["grid"] is not grid:
        raise own_code(f"the grid {type(given['grid']).__name__}")
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError("its strategy is started without initial_arrays")
    more = {"proximal-mu": strategy.proximal_mu} if hasattr(strategy, "proximal_mu") else {}
    train, evaluate = (dict(given[f"{action}_config"] or {}) for action in ("train", "evaluate"))
    return Taken(arrays, strategy, (ConfigRecord({**train, **more}),), (ConfigRecord(evaluate),))


def _of_components(made: Any, versions: int) -> Taken:
    """Reads a ServerApp of Flower's old kind, which names its strategy and runs nothing."""
    for each in (made.server, made.client_manager):
        if each is not None:
            raise own_code(type(each).__name__)
    strategy: Any = old.FedAvg() if made.strategy is None else made.strategy
    refuse_own_code(strategy)
    more = {"proximal_mu": strategy.proximal_mu} if hasattr(strategy, "proximal_mu") else {}
    first, train, evaluate = strategy.initial_parameters, list[ConfigRecord](), list[ConfigRecord]()
    for number in range(1, versions + 1):
        fit, judge = strategy.on_fit_config_fn, strategy.on_evaluate_config_fn
        train.append(ConfigRecord(dict(fit(number) if fit else {}) | more))
        evaluate.append(ConfigRecord(judge(number) if judge else {}))
    tensors = {} if first is None else dict(enumerate(first.tensors))
    arrays = {str(i): Array("", (), first.tensor_type, data) for i, data in tensors.items()}
    return Taken(ArrayRecord(arrays) if arrays else None, strategy, (*train,), (*evaluate,))


# --- what is Flower's, and what is the app's own ----------------------------------


def own_code(what: str) -> ConfigError:
    """The refusal of a ServerApp that does more than a plan can say."""
    return ConfigError(
        f"its ServerApp has code of its own, which does not run here ({what}): run the app inside "
        "Flower's engine, as docs/flower.md says"
    )


def flowers_name(strategy: Any) -> str:
    """The name of Flower's class that a strategy is, or is derived from.

    Raises:
        ConfigError: the class steps along anything but the mean of all updates.
    """
    bases = type(strategy).__mro__
    name = next((each.__name__ for each in bases if each.__module__.startswith("flwr.")), "")
    if name in ("", "Strategy", *MEANS):
        return name
    why = "needs single updates, which nobody here sees"
    if name.startswith(("DifferentialPrivacy", "DPFedAvg")):
        why = 'adds noise at Flower\'s server: say [privacy] with unit = "client" in the plan'
    raise ConfigError(f"the strategy {name} {why}; there are {', '.join(MEANS)}")


def refuse_own_code(strategy: Any) -> None:
    """Refuses a strategy unless it is one of KINDS with Flower's own methods and metrics."""
    flowers_name(strategy)
    kind = type(strategy)
    if kind not in KINDS:
        raise own_code(f"the strategy {kind.__name__}")
    own = [name for name in vars(strategy) if hasattr(kind, name)]
    for base in kind.__mro__[:-1]:
        own += [n for n, method in _methods(base).items() if _FLOWERS[base].get(n) is not method]
    if own:
        raise own_code(f"{own[0]} of {kind.__name__}")
    for name in METRICS:
        if getattr(strategy, name, None) not in (None, MEAN):
            raise own_code(f"{name}, which may be left out: means are the plan's [evaluation]")


def optimizer_of(strategy: Any) -> dict[str, Any] | None:
    """The strategy's optimizer in the plan's words; None for the mean itself."""
    kind = flowers_name(strategy)
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


class _Stopped(BaseException):
    """Ends a ServerApp: its strategy starts, or it wants an answer that nobody gives.

    A BaseException, because a ServerApp that catches Exception must not go on after it.
    """

    def __init__(self, arguments: Mapping[str, Any], error: ConfigError | None = None) -> None:
        super().__init__()
        self.arguments, self.error = arguments, error


class _Nowhere(Grid):
    """A grid of as many nodes as take part, which never answer."""

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
            raise _Stopped({}, ConfigError(text))
        return range(1, self._nodes + 1)

    def _ask(self, *given: Any, **settings: Any) -> NoReturn:
        raise _Stopped({}, own_code("it sends its clients messages itself"))

    create_message = push_messages = pull_messages = send_and_receive = _ask


@contextmanager
def _stopped_at_start() -> Iterator[None]:
    """Stops every strategy at its start, silences Flower's log, and lets the app make messages."""
    stopped: Any = Strategy
    flowers = Strategy.start

    @functools.wraps(flowers)
    def start(*args: Any, **settings: Any) -> NoReturn:
        bound = inspect.signature(flowers).bind(*args, **settings)
        bound.apply_defaults()
        raise _Stopped(bound.arguments)

    logger, identity = logging.getLogger("flwr"), ("_task_id", "_run_id", "_node_id")
    level, before = logger.level, [getattr(TaskIdentity, name) for name in identity]
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 0
    logger.setLevel(logging.ERROR)
    stopped.start = start
    try:
        yield
    finally:
        stopped.start = flowers
        logger.setLevel(level)
        for name, value in zip(identity, before, strict=True):
            setattr(TaskIdentity, name, value)


# --- a second start ---------------------------------------------------------------


def _refuse_second_start(trace: TracebackType | None) -> None:
    """Refuses a start in a loop, or one that another start follows: no plan trains twice.

    Raises:
        ConfigError: says where it would train again.
    """
    calls = list[tuple[Path, int]]()
    while trace is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith(OTHERS):
            calls.append((Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno))
        trace = trace.tb_next
    starts = {"start"}
    for file, line in reversed(calls):
        functions = _functions(file)
        starts |= {each.name for each in functions if _calls(each, starts)}
        around = [each for each in functions if _spans(each, line)]
        innermost = max(around, key=lambda each: each.lineno, default=ast.Module([], []))
        for each in _later(innermost, line):
            if _calls(each, starts):
                raise own_code(f"it trains more than once: {file.name}, line {each.lineno}")


def _functions(file: Path) -> list[ast.FunctionDef]:
    """The functions of a file; none of one that nobody can read."""
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return []
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def _later(block: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements of a block that run after the one at a line, and the loops around it."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        statements = getattr(block, name, [])
        for at, each in enumerate(statements):
            if _spans(each, line):
                yield from _later(each, line)
                if isinstance(each, ast.For | ast.While):
                    yield each
                yield from statements[at + 1 :]
                return


def _spans(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= node.end_lineno)


def _calls(block: ast.AST, names: set[str]) -> bool:
    """Returns whether a block calls one of these; a `start` only if it looks like a strategy's."""
    calls = (node for node in ast.walk(block) if isinstance(node, ast.Call))
    named = ((getattr(each.func, "attr", getattr(each.func, "id", "")), each) for each in calls)
    return any(_trains(each) if name == "start" else name in names for name, each in named)


def _trains(call: ast.Call) -> bool:
    """Returns whether a call of `start` passes a grid and arrays; a profiler's passes none."""
    words = {each.arg for each in call.keywords}
    return len(call.args) > 1 or bool(words & {"grid", "initial_arrays", None})
