"""A ServerApp's first train message, taken without serving anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from secureps.client.flower_server import first_message, message
from secureps.errors import ConfigError

MODEL = ArrayRecord({"w": Array(np.arange(3.0))})


def served(main: Any) -> ServerApp:
    server = ServerApp()
    server.main()(main)
    return server


def first(main: Any) -> Message:
    found = first_message(served(main), {"rounds": 2})
    assert found is not None
    return found


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(arrayrecord_key="weights", configrecord_key="told"),
        FedAdam(fraction_train=0.5, min_available_nodes=100, arrayrecord_key="weights"),
    ],
    ids=["FedAvg", "FedAdam"],
)
def test_a_strategys_first_message_is_taken(strategy: FedAvg) -> None:
    start = Strategy.start

    def main(grid: Grid, context: Context) -> None:
        told = ConfigRecord({"lr": 0.5, "rounds": context.run_config["rounds"]})
        try:
            strategy.start(grid, MODEL, 3, 60.0, told, None, lambda number, arrays: 1 / 0)  # type: ignore[arg-type, return-value]
        except Exception as error:
            raise AssertionError("the app could go on") from error

    found = first(main)
    assert found.metadata.message_type == "train"
    assert found.content.array_records["weights"] == MODEL
    (told,) = found.content.config_records.values()
    assert dict(told) == {"lr": 0.5, "rounds": 2, "server-round": 1}
    assert Strategy.start is start
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1, "train")  # outside of a rehearsal as before


def test_a_loop_of_ones_own_is_rehearsed_too() -> None:
    def main(grid: Grid, context: Context) -> None:
        assert grid.run.run_id == context.run_id
        nodes = list(grid.get_node_ids())
        content = RecordDict({"model": MODEL})
        grid.push_messages(Message(content, node, "train.fast") for node in nodes)

    found = first(main)
    assert found.metadata.message_type == "train.fast"
    assert found.content.array_records["model"] == MODEL


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
    ],
)
def test_a_server_that_does_not_train_first_says_what_it_does(act: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        first(lambda grid, context: act(grid))


def test_what_a_server_raises_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        first(lambda grid, context: 1 / 0)


def test_strategies_of_the_old_kind() -> None:
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerAppComponents
    from flwr.server.strategy import FedAvg as OldFedAvg

    initial = ndarrays_to_parameters([np.arange(3.0), np.zeros(())])
    old = OldFedAvg(initial_parameters=initial)
    found = first_message(
        ServerApp(server_fn=lambda context: ServerAppComponents(strategy=old)), {}
    )
    assert found is not None
    (arrays,) = found.content.array_records.values()
    assert [array.numpy().tolist() for array in arrays.values()] == [[0.0, 1.0, 2.0], 0.0]
    empty = ServerApp(server_fn=lambda context: ServerAppComponents(strategy=OldFedAvg()))
    assert first_message(empty, {}) is None, "it would ask a client"
    assert first_message(ServerApp(), {}) is None


def test_messages_can_be_answered() -> None:
    asked = message(RecordDict({"arrays": MODEL}), "evaluate", 3)
    answer = Message(RecordDict(), reply_to=asked)
    assert answer.metadata.src_node_id == 3
    assert answer.metadata.ttl > 0
