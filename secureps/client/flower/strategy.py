"""Translates a Flower strategy's settings into a plan's, or refuses them by name.

Every setting ends in a `Fate`. A setting that needs single updates, which nobody sees, or that
changes the sum in ways that no plan can say, is refused; a plan's `federation.drop` gives it up by
name. What must not live here: running a ServerApp (`client.flower.server`), and plans.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from secureps.client.flower.served import Fate, Wishes
from secureps.client.flower.server import Heard
from secureps.errors import ConfigError

SINGLE = "needs every single update, which nobody here sees"
TREES = "puts trees together, which are no tensors that can be added"
NOISE = (
    "adds noise or clips at Flower's server: the plan's words for that are [privacy] with "
    'unit = "client", clip and noise_multiplier'
)
LOSSES = "weighs clients by their losses in the clear"

REFUSED = {
    "Krum": SINGLE,
    "MultiKrum": SINGLE,
    "Bulyan": SINGLE,
    "FedMedian": SINGLE,
    "FedTrimmedAvg": SINGLE,
    "QFedAvg": LOSSES,
    "FedXgbBagging": TREES,
    "FedXgbCyclic": TREES,
    "FedXgbNnAvg": "puts trees beside a network, which are no tensors that can be added",
    "DPFedAvgFixed": NOISE,
    "DPFedAvgAdaptive": NOISE,
}
"""Flower's strategies that are refused, and why; also all that begin with DifferentialPrivacy."""

MEANS = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
"""Flower's strategies that step along the mean of all updates."""

REPLACED = {
    "aggregate_train": "sees every single update",
    "aggregate_fit": "sees every single update",
    "aggregate_evaluate": "sees every client's metrics",
    "num_fit_clients": "chooses how many train",
    "num_evaluation_clients": "chooses how many evaluate",
}
"""Methods that an app's strategy may override, but that no plan can call; and why."""

NAMES = {
    "fraction": ("fraction_train", "fraction_fit"),
    "least": ("min_train_nodes", "min_fit_clients"),
    "start": ("min_available_nodes", "min_available_clients"),
    "evaluate_fraction": ("fraction_evaluate",),
    "evaluate_least": ("min_evaluate_nodes", "min_evaluate_clients"),
}
"""The fields of `Wishes`, by their names in the two kinds of strategies."""

MEAN_METRICS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
OLD_MEAN_METRICS = ("fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn")


@dataclass(frozen=True)
class Examined:
    """The result of `examine`: the strategy's name, its wishes, and the fates of the rest."""

    name: str
    wishes: Wishes
    fates: tuple[Fate, ...]
    weighted_by: str


def examine(heard: Heard, drop: Collection[str], kept: Collection[str] = ()) -> Examined:
    """Translates a ServerApp's settings into a plan's words.

    Args:
        heard: its rehearsal; drop: the settings to give up, by name.
        kept: settings that the host follows itself, by name.

    Raises:
        ConfigError: settings that secureps cannot follow, all by name; or `drop` names one that
            is not refused.
    """
    strategy, refused = heard.strategy, dict(heard.own)
    if strategy is not None:
        found = dict(_refusals(strategy)).items()
        refused |= {name: why for name, why in found if name not in kept}
    given_up = sorted(refused.keys() & set(drop))
    lost = tuple(Fate(name, refused[name], "given up: federation.drop", True) for name in given_up)
    if unknown := sorted(set(drop) - refused.keys()):
        raise ConfigError(
            f"federation.drop: the ServerApp has no {unknown[0]!r} that is refused"
            + (f"; there are {', '.join(sorted(refused))}" if refused else "")
        )
    if left := {name: why for name, why in refused.items() if name not in drop}:
        listed = "; ".join(f"{name} {why}" for name, why in sorted(left.items()))
        raise ConfigError(
            f"the ServerApp asks for what cannot be had here: {listed}. Change the app, or take "
            "means weighted by examples, of updates and of metrics, in its place: [federation] "
            f"drop = {json.dumps(sorted(left))}"
        )
    inner = getattr(strategy, "strategy", strategy)  # of a wrapper that was given up
    wishes = Wishes(
        optimizer=_optimizer(inner),
        rounds=heard.rounds,
        timeout=heard.timeout,
        **{wish: _first(inner, names) for wish, names in NAMES.items()},
    )
    name = "a loop of its own" if strategy is None else type(strategy).__name__
    weighted = str(getattr(inner, "weighted_by_key", "num-examples"))
    return Examined(name, wishes, lost, weighted)


def _first(strategy: Any, names: tuple[str, ...]) -> Any:
    found = [getattr(strategy, name) for name in names if hasattr(strategy, name)]
    return found[0] if found else None


def flowers_own(strategy: Any) -> str:
    """The name of the nearest of Flower's classes that a strategy is derived from."""
    kinds = type(strategy).__mro__
    return next(kind.__name__ for kind in kinds if kind.__module__.startswith("flwr."))


def _refusals(strategy: Any) -> Iterator[tuple[str, str]]:
    kind = flowers_own(strategy)
    if kind.startswith("DifferentialPrivacy"):
        yield kind, NOISE
        yield from _refusals(strategy.strategy)
        return
    if kind in REFUSED:
        yield kind, REFUSED[kind]
    elif kind not in (*MEANS, "Strategy"):
        yield kind, "is a strategy that is not known here"
    for base in type(strategy).__mro__:
        if base.__module__.startswith("flwr."):
            break
        for name in REPLACED.keys() & base.__dict__.keys():
            yield name, f"({_at(base.__dict__[name])}) {REPLACED[name]}"
    for names, old in ((MEAN_METRICS, False), (OLD_MEAN_METRICS, True)):
        for name in names:
            function = getattr(strategy, name, None)
            if function is not None and not _is_mean(function, old):
                yield name, f"({_at(function)}) is no mean weighted by examples"
    if getattr(strategy, "accept_failures", True) is False:
        yield "accept_failures", "= False: a version is made of those who answered"


def _at(function: Any) -> str:
    """The file and line of a function."""
    try:
        code = inspect.unwrap(function).__code__
        return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
    except AttributeError:
        return type(function).__name__


def _optimizer(strategy: Any) -> dict[str, Any] | None:
    """The strategy's optimizer in the plan's words; None for the mean itself."""
    kind = "" if strategy is None else flowers_own(strategy)
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


# --- functions that put metrics together ------------------------------------------

PROBES = ((3, {"accuracy": 0.25, "loss": 2.0}), (9, {"accuracy": 0.75, "loss": 5.0}))
"""Made-up replies: examples and metrics; any other metric is 0.1 of the examples."""


def _is_mean(function: Callable[..., Any], old: bool) -> bool:
    """Whether an app's function is the mean weighted by examples, for made-up replies."""
    if getattr(function, "__module__", "").startswith("flwr."):
        return True
    try:
        if old:
            found = function([(count, _AnyMetrics(count, metrics)) for count, metrics in PROBES])
        else:
            replies = [RecordDict({"metrics": _AnyRecord(n, metrics)}) for n, metrics in PROBES]
            found = function(replies, "num-examples")
        return all(
            key == "num-examples" or math.isclose(float(value), _mean(key))
            for key, value in dict(found).items()
        )
    except Exception:
        return False


def _mean(key: str) -> float:
    total = sum(count for count, _ in PROBES)
    return sum(count * metrics.get(key, count / 10) for count, metrics in PROBES) / total


class _AnyMetrics(dict[str, float]):
    """Metrics that have a value for every name."""

    def __init__(self, count: int, metrics: dict[str, float]) -> None:
        super().__init__(metrics)
        self._count = count

    def __missing__(self, key: str) -> float:
        return self._count / 10

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


class _AnyRecord(MetricRecord):
    """A record that has a value for every name."""

    def __init__(self, count: int, metrics: dict[str, float]) -> None:
        super().__init__({**metrics, "num-examples": count})

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) if key in self else self["num-examples"] / 10
