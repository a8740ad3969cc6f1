"""A ServerApp is run once, without serving anybody: its model, and what it would say when."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Strategy

from secureps.client.flower.server import Heard, Round, message, rehearse
from secureps.errors import ConfigError

MODEL = ArrayRecord({"w": Array(np.arange(3.0))})


def served(main: Any) -> ServerApp:
    server = ServerApp()
    server.main()(main)
    return server


def heard(main: Any, versions: int = 3) -> Heard:
    return rehearse(served(main), {"rounds": 2}, versions)


def told(rounds: tuple[Round, ...]) -> list[dict[str, Any]]:
    """The config of each round."""
    found = []
    for each in rounds:
        records = {name: items for name, _, items in json.loads(each.records)}
        found.append(records[each.config])
    return found


def started(strategy: Strategy, **arguments: Any) -> Heard:
    """A ServerApp that starts a strategy."""

    def main(grid: Grid, context: Context) -> None:
        try:
            strategy.start(grid, MODEL, **arguments)
        except Exception as error:
            raise AssertionError("the app could go on") from error

    return heard(main)


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(arrayrecord_key="weights", configrecord_key="told"),
        FedAdam(fraction_train=0.5, min_available_nodes=2000, arrayrecord_key="weights"),
    ],
    ids=["FedAvg", "FedAdam"],
)
def test_a_strategy_is_asked_and_never_started(strategy: FedAvg) -> None:
    start = Strategy.start
    settings = ConfigRecord({"lr": 0.5})
    found = started(
        strategy, num_rounds=7, timeout=60.0, train_config=settings, evaluate_fn=lambda n, a: 1 / 0
    )
    assert found.arrays == MODEL
    assert found.strategy is strategy
    assert (found.rounds, found.timeout, found.judges, found.own) == (7, 60.0, True, ())
    assert {(each.type, each.arrays) for each in found.fits} == {("train", "weights")}
    assert told(found.fits) == [{"lr": 0.5}] * 3
    assert [each.type for each in found.evaluations] == ["evaluate"] * 3
    assert Strategy.start is start
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1, "train")  # outside of a rehearsal as before


class Falling(FedProx):
    """Halves the rate in every second round, as Flower's own tutorial does."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        if server_round % 2 == 0:
            config["lr"] = float(config["lr"]) / 2  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)


def test_every_round_is_told_what_configure_train_says_of_it() -> None:
    strategy = Falling(proximal_mu=0.1)
    found = started(strategy, train_config=ConfigRecord({"lr": 0.8}))
    prox = {"proximal-mu": 0.1}
    assert told(found.fits) == [{"lr": 0.8, **prox}, {"lr": 0.4, **prox}, {"lr": 0.4, **prox}]
    evaluated = started(FedAvg(), evaluate_config=ConfigRecord({"batch": 7}))
    assert told(evaluated.evaluations) == [{"batch": 7}] * 3
    assert started(FedAvg(fraction_evaluate=0.0)).evaluations == ()


class Unequal(FedAvg):
    """Tells every node something of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        for node in grid.get_node_ids():
            own = ConfigRecord({"node": node})
            yield Message(RecordDict({"arrays": arrays, "config": own}), node, "train")


class OwnLoop(FedAvg):
    """Has a loop of its own."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, extra: int = 1) -> Any:  # type: ignore[override]
        raise AssertionError("it was run")


def test_what_no_plan_can_do_is_named() -> None:
    (named,) = started(Unequal()).own
    assert named == ("configure_train", "configure_train tells nodes of one round different things")
    (named,) = started(OwnLoop(), extra=3).own
    assert named == ("start", "OwnLoop.start is the app's own loop")


def test_a_loop_without_a_strategy_is_heard_up_to_its_first_message() -> None:
    def main(grid: Grid, context: Context) -> None:
        assert grid.run.run_id == context.run_id
        nodes = list(grid.get_node_ids())
        content = RecordDict({"model": MODEL})
        grid.push_messages(Message(content, node, "train.fast") for node in nodes)

    found = heard(main)
    assert found.arrays == MODEL
    assert [(each.type, each.arrays) for each in found.fits] == [("train.fast", "model")]
    assert [name for name, _ in found.own] == ["main"]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda grid: None, "ends before it trains"),
        (lambda grid: grid.send_and_receive([]), "sends nobody anything"),
        (
            lambda grid: grid.send_and_receive([Message(RecordDict(), 1, "query.age")]),
            "asks its clients to query.age before it trains",
        ),
        (lambda grid: grid.pull_messages(["x"]), "waits for answers"),
        (lambda grid: FedAvg(fraction_train=0.0).start(grid, MODEL), "nobody train in round 1"),
    ],
)
def test_a_server_that_does_not_train_first_says_what_it_does(act: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        heard(lambda grid, context: act(grid))


def test_what_a_server_raises_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        heard(lambda grid, context: 1 / 0)


def test_strategies_of_the_old_kind() -> None:
    from flwr.common import ndarrays_to_parameters
    from flwr.server import Server, ServerAppComponents, ServerConfig, SimpleClientManager
    from flwr.server.strategy import FedAvg as OldFedAvg

    initial = ndarrays_to_parameters([np.arange(3.0), np.zeros(())])
    old = OldFedAvg(
        initial_parameters=initial,
        min_available_clients=30,
        on_fit_config_fn=lambda number: {"rate": 1.0 / number, "server-round": number},
        on_evaluate_config_fn=lambda number: {"batches": number},
    )

    def components(strategy: Any, **more: Any) -> ServerApp:
        made = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=9), **more)
        return ServerApp(server_fn=lambda context: made)

    found = rehearse(components(old), {}, 2)
    assert found.arrays is not None
    assert [array.numpy().tolist() for array in found.arrays.values()] == [[0.0, 1.0, 2.0], 0.0]
    assert told(found.fits) == [{"rate": 1.0}, {"rate": 0.5}]
    assert told(found.evaluations) == [{"batches": 1}, {"batches": 2}]
    assert (found.rounds, found.own) == (9, ())
    assert rehearse(components(OldFedAvg()), {}, 2).arrays is None, "it would ask a client"
    own = rehearse(components(old, server=Server(client_manager=SimpleClientManager())), {}, 1).own
    assert [name for name, _ in own] == ["server"]
    assert rehearse(ServerApp(), {}, 2).strategy is None


def test_messages_can_be_answered() -> None:
    asked = message(RecordDict({"arrays": MODEL}), "evaluate", 3)
    answer = Message(RecordDict(), reply_to=asked)
    assert answer.metadata.src_node_id == 3
    assert answer.metadata.ttl > 0
