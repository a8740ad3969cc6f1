"""Flower: only a strategy as Flower has it is taken from a ServerApp; other code is refused."""

import json
from typing import Any

import flwr.serverapp.strategy as flowers
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

from secureps.client.flower.server import MEANS, read_server_app
from secureps.client.flower.trainer import message
from secureps.client.initial_model import RoundRecords, ServerAppResult
from secureps.config.plan import OptimizerSection
from secureps.errors import ConfigError
from secureps.model.optimizer import build_optimizer
from tests.kits.flower_grid import LocalGrid

MODEL = ArrayRecord({"w": Array(np.arange(3.0))})
OWN = r"its ServerApp has code of its own, which does not run here \(%s.*\): run the app inside"


def taken(main: Any, clients: int = 5) -> ServerAppResult:
    server = ServerApp()
    server.main()(main)
    return read_server_app(server, {"rounds": 2}, 3, clients)


def told(rounds: tuple[RoundRecords, ...]) -> list[dict[str, Any]]:
    return [items for each in rounds for _, _, items in json.loads(each.records)]


def started(strategy: Strategy, **arguments: Any) -> ServerAppResult:
    def main(grid: Grid, context: Context) -> None:
        try:
            strategy.start(grid, MODEL, **arguments)
        except Exception as error:
            raise AssertionError("the app could go on") from error
        raise AssertionError("what follows start() ran")

    return taken(main)


def made(name: str) -> Strategy:
    kind = getattr(flowers, name)
    needs: dict[str, Any] = {
        "FedProx": {"proximal_mu": 0.5},
        "QFedAvg": {"client_learning_rate": 0.1},
        "Krum": {"num_malicious_nodes": 1},
    }
    if name.startswith("DifferentialPrivacy"):
        return kind(FedAvg(), *((0.1, 5) if "Adaptive" in name else (1.0, 1.0, 5)))  # type: ignore[no-any-return]
    return kind(**needs.get(name, {}))  # type: ignore[no-any-return]


OTHERS = sorted({*flowers.__all__} - {*MEANS, "Result", "Strategy"})


@pytest.mark.parametrize("name", MEANS)
def test_a_strategy_of_flowers_is_taken_and_never_runs(name: str) -> None:
    start, strategy, asked = Strategy.start, made(name), ConfigRecord({"lr": 0.5})
    found = started(strategy, train_config=asked, evaluate_config=ConfigRecord({"batch": 7}))
    assert {own: each.tolist() for own, each in found.model.items()} == {"w": [0.0, 1.0, 2.0]}
    assert found.strategy == name
    more = {"proximal-mu": 0.5} if name == "FedProx" else {}
    assert told(found.served.fits) == [{"lr": 0.5, **more}]
    assert told(found.served.evaluations) == [{"batch": 7}]
    assert Strategy.start is start
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1, "train")  # outside as before


@pytest.mark.parametrize("name", OTHERS)
def test_a_strategy_that_does_not_step_along_the_mean_is_refused(name: str) -> None:
    noise = 'say \\[privacy\\] with unit = "client" in the plan'
    why = noise if name.startswith("DifferentialPrivacy") else "needs single updates, which nobody"
    with pytest.raises(ConfigError, match=rf"the strategy {name} .*{why}.*; there are FedAvg, Fed"):
        started(made(name))


# --- code of its own --------------------------------------------------------------


class Halving(FedAvg):
    def configure_train(self, *given: Any) -> Any:
        raise AssertionError("it was run on made-up numbers")


class OwnLoop(FedAvg):
    def start(self, grid: Grid, initial_arrays: ArrayRecord) -> Any:  # type: ignore[override]
        return self.configure_train(1, initial_arrays, ConfigRecord(), grid)


class Wrapped(FedAvg):
    def start(self, grid: Grid, *given: Any, **settings: Any) -> Any:
        return super().start(grid, *given, **settings)


def worst(replies: Any, weight: str) -> Any:
    raise AssertionError("it was run on made-up numbers")


def on_the_instance() -> FedAvg:
    strategy = FedAvg()
    strategy.aggregate_train = worst  # type: ignore[method-assign, assignment]
    return strategy


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        (Halving(), "the strategy Halving"),
        (OwnLoop(), "it starts no strategy"),
        (Wrapped(), "the strategy Wrapped"),
        (on_the_instance(), "aggregate_train of FedAvg"),
        (FedAvg(train_metrics_aggr_fn=worst), "train_metrics_aggr_fn, which may be left out"),
        (FedAvg(evaluate_metrics_aggr_fn=worst), "evaluate_metrics_aggr_fn, which may be left out"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FedAvg) else "",
)
def test_a_strategy_of_the_apps_own_is_refused(strategy: FedAvg, what: str) -> None:
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, MODEL)

    with pytest.raises(ConfigError, match=OWN % what):
        taken(main)


def test_a_method_that_the_app_assigns_to_flowers_class_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FedAvg, "configure_train", worst)
    with pytest.raises(ConfigError, match=OWN % "configure_train of FedAdam"):
        started(made("FedAdam"))


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda grid: None, "it starts no strategy"),
        (lambda grid: grid.send_and_receive([]), "it sends its clients messages itself"),
        (
            lambda grid: grid.push_messages(
                [Message(RecordDict({"arrays": MODEL}), n, "train") for n in grid.get_node_ids()]
            ),
            "it sends its clients messages itself",
        ),
        (lambda grid: grid.pull_messages(["x"]), "it sends its clients messages itself"),
        (
            lambda grid: FedAvg().start(LocalGrid.simulated(ClientApp(), 2), MODEL),
            "the grid LocalGrid",
        ),
    ],
)
def test_a_loop_or_a_grid_of_the_apps_own_is_refused(act: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=OWN % what):
        taken(lambda grid, context: act(grid))


def test_an_app_that_starts_again_whatever_is_raised_is_refused() -> None:
    def main(grid: Grid, context: Context) -> None:
        try:
            FedAvg().start(grid, MODEL)
        finally:
            FedAvg().start(grid, MODEL)

    with pytest.raises(ConfigError, match=OWN % "it trains more than once"):
        taken(main)


# --- nodes ------------------------------------------------------------------------


def test_an_app_sees_as_many_nodes_as_take_part() -> None:
    seen = []

    def main(grid: Grid, context: Context) -> None:
        seen.append(list(grid.get_node_ids()))
        assert grid.run.run_id == context.run_id
        FedAvg(min_available_nodes=1000).start(grid, MODEL)

    taken(main, clients=7)
    assert seen == [[1, 2, 3, 4, 5, 6, 7]]


def test_an_app_that_waits_for_more_nodes_is_not_waited_for() -> None:
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < 8:
            pass

    with pytest.raises(ConfigError, match="waits for more nodes than the 7 that take part"):
        taken(main, clients=7)


def test_what_a_server_raises_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        taken(lambda grid, context: 1 / 0)
    wrong: Any = {"w": 1}
    with pytest.raises(ConfigError, match="started without initial_arrays"):
        taken(lambda grid, context: FedAvg().start(grid, wrong))


# --- Flower's old kind ------------------------------------------------------------


def test_strategies_of_the_old_kind() -> None:
    from flwr.common import ndarrays_to_parameters
    from flwr.server import Server, ServerAppComponents, SimpleClientManager
    from flwr.server.strategy import FedAdam as OldFedAdam
    from flwr.server.strategy import FedAvg as OldFedAvg

    initial = ndarrays_to_parameters([np.arange(3.0), np.zeros(())])

    class Judging(OldFedAvg):
        def evaluate(self, server_round: int, parameters: Any) -> Any:
            raise AssertionError("it was run on made-up numbers")

    def components(strategy: Any, **more: Any) -> ServerAppResult:
        made = ServerAppComponents(strategy=strategy, **more)
        return read_server_app(ServerApp(server_fn=lambda context: made), {}, 2, 5)

    old = OldFedAdam(
        initial_parameters=initial,
        eta=0.5,
        on_fit_config_fn=lambda number: {"rate": 1.0 / number},
        on_evaluate_config_fn=lambda number: {"batches": number},
    )
    found = components(old)
    assert [array.tolist() for array in found.model.values()] == [[0.0, 1.0, 2.0], 0.0]
    assert told(found.served.fits) == [{"rate": 1.0}, {"rate": 0.5}]
    assert told(found.served.evaluations) == [{"batches": 1}, {"batches": 2}]
    optimizer = found.optimizer
    assert optimizer is not None
    assert (optimizer["name"], optimizer["learning_rate"]) == ("fedadam", 0.5)
    assert not components(OldFedAvg()).model, "it would ask a client"
    manager = SimpleClientManager()
    with pytest.raises(ConfigError, match=OWN % "Server"):
        components(old, server=Server(client_manager=manager, strategy=Judging()))
    with pytest.raises(ConfigError, match=OWN % "the strategy Judging"):
        components(Judging())
    with pytest.raises(
        ConfigError, match=OWN % "fit_metrics_aggregation_fn, which may be left out"
    ):
        components(OldFedAvg(fit_metrics_aggregation_fn=worst))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=OWN % "it has no main function"):
        read_server_app(ServerApp(), {}, 2, 5)


# --- its optimizer ------------------------------------------------------------------


ADAPTIVE: dict[str, Any] = {"eta": 0.05, "tau": 0.01}
BETAS: dict[str, Any] = {"beta_1": 0.8, "beta_2": 0.95}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (FedAdam(**ADAPTIVE, **BETAS), OptimizerSection(name="fedadam", learning_rate=0.05)),
        (FedYogi(**ADAPTIVE, **BETAS), OptimizerSection(name="fedyogi", learning_rate=0.05)),
        (FedAdagrad(**ADAPTIVE), OptimizerSection(name="fedadagrad", learning_rate=0.05)),
        (
            FedAvgM(server_learning_rate=0.5, server_momentum=0.7),
            OptimizerSection(name="momentum", learning_rate=0.5, momentum=0.7),
        ),
    ],
    ids=["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"],
)
def test_they_step_as_the_strategy_does(strategy: Any, settings: OptimizerSection) -> None:
    beta = 0.0 if settings.name == "fedadagrad" else 0.8
    own = OptimizerSection(
        name=settings.name,
        learning_rate=settings.learning_rate,
        momentum=0.7,
        betas=(beta, 0.95),
        tau=0.01,
    )
    optimizer, rng = build_optimizer(own, 8), np.random.default_rng(1)
    values = theirs = rng.standard_normal(40).astype(np.float32)
    state = optimizer.init(values)
    for number in range(1, 9):
        update = rng.standard_normal(40).astype(np.float32) * 10.0 ** rng.integers(-4, 1, 40)
        update = update.astype(np.float32)
        record = ArrayRecord({"w": Array(theirs)})
        strategy.current_arrays = record if isinstance(strategy, FedAvgM) else {"w": theirs}
        reply = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(theirs + update)}),
                "metrics": MetricRecord({"num-examples": 3}),
            }
        )
        aggregated = strategy.aggregate_train(number, [message(reply, "train")])[0]
        theirs = aggregated["w"].numpy().astype(np.float32)
        values, state = optimizer.apply(update, values, state)
        np.testing.assert_allclose(values, theirs, rtol=2e-4, atol=1e-4)
