"""Flower: inside Flower's engine lost, repeated or changed messages change no bit."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import Bulyan, FedAdam, FedAvg, FedMedian, FedTrimmedAvg, Krum, Result
from safetensors.numpy import load_file

from secureps.client.flower.app import FlowerApp
from secureps.client.flower.trainer import FlowerTrainer
from secureps.client.trainer import Setting
from secureps.config.plan import SyncSection
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, InternalError, NotReady, PlanRefused
from secureps.flower import SecureFedAvg, post, secureps_mod, strategy
from secureps.flower.strategy import TRIES, Waves, found_run
from secureps.messages.requests import AskStatus, Submit
from secureps.messages.submission import UPDATE
from secureps.policy.plan import load_plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.shard.shard import Shard
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.service import one_wave
from secureps.service.executor import Executor
from secureps.service.loop import RealLoop
from secureps.store.journal import SqliteJournal, read_rows
from tests.kits.engine_apps import (
    CLIENTS,
    CONFIG,
    SEED,
    Tensors,
    initial,
    make_app,
    play,
    record,
    record_dict,
    same,
    simulated,
    tensors,
    train,
    write_plan,
)
from tests.kits.flower_grid import Fault, LocalGrid, Reply


def of_simulation(folder: Path) -> Tensors:
    """The model that the same plan comes to in our own simulation, of the same app."""
    told = folder / "told.toml"  # what the ServerApp of these tests tells its nodes
    told.write_text("training = { lr = 0.25 }\n" + (folder / "run" / "plan.toml").read_text())
    plan = load_plan(told)
    app = ClientApp()
    app.train()(train)
    trainers = {}
    for k, name in enumerate(client_names(CLIENTS)):
        own: dict[str, Setting] = {"partition": k, "initial": str(plan.section.initial)}
        trainers[name] = FlowerTrainer(FlowerApp("app", app), own, None, name)
    cast = Cast(trainers, UnsafeSeed(SEED))
    simulation = Simulation(plan, cast, folder / "simulated", initial=read_initial_schema(plan))
    simulation.run()
    return simulation.model()


Watched = tuple[Path, LocalGrid, Result]


def test_the_same_bits_as_in_our_own_simulation(watched_run: Watched, unharmed: Tensors) -> None:
    folder, _, result = watched_run
    same({name: unharmed[name] for name in sorted(unharmed)}, of_simulation(folder))
    assert list(result.arrays) == list(initial())


def test_a_run_is_called_as_its_plan_and_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    plan = write_plan(tmp_path).rename(tmp_path / "other.toml")
    strategy = SecureFedAvg(plan, unsafe_seed=SEED, fraction_evaluate=0.0)
    grid = simulated()
    strategy.start(grid, record(initial()), 1, train_config=CONFIG, timeout=60)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"{load_plan(plan).section.name}-2")
    assert f"the run's folder is {run}" in caplog.text


def lost(message: Message, play: Reply) -> list[Message]:
    play(message)
    return []


def never_came(message: Message, play: Reply) -> list[Message]:
    return []


def twice(message: Message, play: Reply) -> list[Message]:
    return [play(message)] * 2


def crashed(message: Message, play: Reply) -> list[Message]:
    return [Message(Error(code=3, reason="the SuperNode's app\nprocess died"), reply_to=message)]


def crashed_after(message: Message, play: Reply) -> list[Message]:
    play(message)
    return crashed(message, play)


def unavailable(message: Message, play: Reply) -> list[Message]:
    """What the SuperLink answers for a SuperNode that was killed, or whose link is cut."""
    return [Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)]


def changed(change: Any) -> Fault:
    def fault(message: Message, play: Reply) -> list[Message]:
        reply = play(message)
        data = reply.content.array_records[post.BATCH]["batch"].data
        reply.content[post.BATCH] = ArrayRecord({"batch": post.wrap_bytes(change(data))})
        return [reply]

    return fault


def tampered(message: Message, play: Reply) -> list[Message]:
    """The servers' batch is another when it comes to the node, which refuses it."""
    data = message.content.array_records[post.BATCH]["batch"].data
    message.content[post.BATCH] = ArrayRecord({"batch": post.wrap_bytes(flipped(data))})
    reply = play(message)
    assert post.BATCH not in reply.content
    assert "a signature in secureps-wave is wrong" in str(reply.content[post.MARKER])
    return [reply]


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


FAULTS: dict[str, Fault] = {
    "a reply is lost": lost,
    "a message is lost": never_came,
    "a reply comes twice": twice,
    "the app dies before it trains": crashed,
    "the app dies after it sealed": crashed_after,
    "the servers' batch is changed": tampered,
    "a byte of a block is another": changed(flipped),
    "a batch is cut off": changed(lambda data: data[:100]),
    "a batch is noise": changed(lambda data: bytes(len(data))),
    "a batch is too long": changed(lambda data: data + bytes(200_000)),
}


LOSSES = tuple(FAULTS)[:5]


@pytest.mark.parametrize(
    ("name", "wave"),
    [
        (name, wave)
        for wave in (0, 1)
        for number, name in enumerate(FAULTS)
        if name in LOSSES or number % 2 == wave  # other bytes are refused alike in each wave
    ],
)
def test_the_same_bits_after(
    tmp_path: Path, unharmed: Tensors, monkeypatch: pytest.MonkeyPatch, name: str, wave: int
) -> None:
    monkeypatch.setattr("secureps.flower.strategy.ROOM", 150_000)
    monkeypatch.setattr("secureps.flower.strategy.AGAIN", 0.5)
    grid = simulated(faults={(1, wave): FAULTS[name]})
    same(tensors(play(tmp_path, grid)), unharmed)
    assert grid.faults == {}
    if wave == 0 and FAULTS[name] in (lost, crashed):
        assert [len(node.seen) for node in grid.nodes.values()] == [3, 4, 3], "one message more"


def test_a_node_that_was_away_for_long_is_asked_again_for_each_message_that_it_lost(
    tmp_path: Path, unharmed: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than failures of an app that end a node's part in a round."""
    monkeypatch.setattr("secureps.flower.strategy.LOOK", 0.05)
    monkeypatch.setattr(Waves._repeat_later, "__defaults__", (0.05,))
    lost = range(1, TRIES + 3)
    away: dict[tuple[int, int], Fault] = {(1, wave): unavailable for wave in lost}
    grid = simulated(faults=away)
    same(tensors(play(tmp_path, grid)), unharmed)
    assert grid.faults == {}


def test_nobody_answers_with_anothers_batch(
    tmp_path: Path, unharmed: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    grid = simulated()
    grid.faults[1, 1] = changed(
        lambda _: grid.nodes[10].replies[-1].content.array_records[post.BATCH]["batch"].data
    )
    same(tensors(play(tmp_path, grid)), unharmed)
    assert "answered another wave" in caplog.text


def test_two_nodes_of_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = simulated()
    grid.nodes[12].config["partition-id"] = 0
    with pytest.raises(NotReady, match="nothing has come for 1 s"):
        play(tmp_path, grid, 1, timeout=1)
    assert "as another node does" in caplog.text


def test_a_node_that_never_answers(tmp_path: Path) -> None:
    never: dict[tuple[int, int], Fault] = {(2, wave): never_came for wave in range(99)}
    grid = simulated(faults=never)
    with pytest.raises(NotReady) as caught:
        play(tmp_path, grid, 1, timeout=2)
    assert "nothing has come for 2 s: all: " in str(caught.value)
    assert "no answer from 12; 3 nodes are there" in str(caught.value)


def test_a_run_goes_on_in_its_folder(tmp_path: Path, unharmed: Tensors) -> None:
    calls = 0

    def judge(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        nonlocal calls
        calls += 1
        if number == 1 and calls == 2:
            raise KeyboardInterrupt
        return None

    grid = simulated()
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, grid, judge=judge)
    other = {name: np.ones_like(values) for name, values in initial().items()}
    same(tensors(play(tmp_path, grid, judge=judge, model=other)), unharmed)


def test_nothing_of_the_apps_answer_is_in_what_leaves(watched_run: Watched) -> None:
    for node in watched_run[1].nodes.values():
        for reply in node.replies:
            assert set(reply.content) <= {post.MARKER, post.BATCH}
            assert not reply.content.metric_records


def test_the_apps_state_is_its_own(watched_run: Watched) -> None:
    for node in watched_run[1].nodes.values():
        assert dict(node.state) == {"fits": MetricRecord({"n": 2})}


def test_flowers_own_messages_evaluate(tmp_path: Path) -> None:
    grid = simulated()
    result = play(tmp_path, grid, rounds=2, fraction_evaluate=1.0)
    assert set(result.evaluate_metrics_clientapp) == {1, 2}
    first = next(iter(initial()))
    size = float(np.abs(tensors(result)[first]).sum())
    assert result.evaluate_metrics_clientapp[2]["size"] == pytest.approx(size)


def test_a_plain_train_message_is_refused(tmp_path: Path) -> None:
    grid = LocalGrid.simulated(make_app(), 1)
    strategy = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    sent = strategy.configure_train(1, record(initial()), ConfigRecord({"lr": 1.0}), grid)
    (reply,) = grid.send_and_receive(sent)
    assert "would answer in the clear" in str(reply.content.config_records["secureps"]["error"])
    assert not reply.content.array_records
    assert grid.nodes[10].state == {}


def test_the_mod_comes_first(tmp_path: Path) -> None:
    def other(message: Message, context: Any, call_next: Any) -> Message:
        answer: Message = call_next(message, context)
        return answer

    for mods, refused in (((other, secureps_mod), True), ((secureps_mod, other), False)):
        grid = LocalGrid.simulated(make_app(*mods), 1)
        sent = Message(record_dict(), 10, "train")
        (reply,) = grid.send_and_receive([sent])
        said = str(reply.content.config_records["secureps"]["error"])
        assert ("is not the first of the app's mods" in said) == refused


@pytest.mark.parametrize("strategy", [Krum(), Bulyan(), FedMedian(), FedTrimmedAvg()])
def test_strategies_that_need_single_updates(tmp_path: Path, strategy: Any) -> None:
    name = type(strategy).__name__
    with pytest.raises(ConfigError, match=f"{name} needs single updates"):
        SecureFedAvg(write_plan(tmp_path), strategy=strategy)


class Own(FedAvg):
    """Would see every reply."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        raise AssertionError("nobody has replies")


def test_an_aggregation_of_ones_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="aggregate_train of Own sees every single update; to see"
    ):
        SecureFedAvg(write_plan(tmp_path), strategy=Own())
    with pytest.raises(ConfigError, match="train_metrics_aggr_fn sees the metrics of single cl"):
        SecureFedAvg(write_plan(tmp_path), train_metrics_aggr_fn=lambda replies, weight: replies)


@pytest.mark.parametrize("bases", [(FedAdam, SecureFedAvg), (SecureFedAvg, FedAdam)])
def test_a_strategy_is_given_and_no_second_base(bases: tuple[type, ...]) -> None:
    with pytest.raises(ConfigError, match=r"SecureFedAvg\(plan=..., strategy=FedAdam\(...\)\)"):
        type("SecureAdam", bases, {})


def test_a_servers_optimizer_is_the_strategys(tmp_path: Path) -> None:
    grid = simulated()
    adam = FedAdam(eta=0.05, fraction_evaluate=0.0)
    play(tmp_path, grid, rounds=1, strategy=adam)
    plan = load_plan(tmp_path / "run" / "plan.toml")
    optimizer = plan.section.group[0].optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("fedadam", 0.05)


@pytest.mark.parametrize(
    ("fraction", "least", "members"), [(0.6, 2, 6), (0.1, 7, 7), (0.1, 10, 10), (1.0, 2, 10)]
)
def test_as_many_train_as_in_flower(
    tmp_path: Path, fraction: float, least: int, members: int
) -> None:
    own = load_plan(write_plan(tmp_path, clients=5)).section
    strategy = FedAvg(fraction_train=fraction, min_train_nodes=least)
    rule = found_run(tmp_path / "run", own, initial(), strategy, 1, 10, {}).section.group[0].rule
    assert isinstance(rule, SyncSection)
    assert int(10 * rule.fraction) == members


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("evaluation = { every = 1, metrics = { a = 1.0 } }", "evaluation: inside Flower"),
        ('local = ["head.*"]', "local: inside Flower"),
        ('frozen = ["head.*"]', "frozen: inside Flower"),
    ],
)
def test_plans_that_cannot_be(tmp_path: Path, more: str, why: str) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace("[[group]]", more + "\n[[group]]", 1))
    with pytest.raises(PlanRefused, match=why):
        play(tmp_path, simulated(), plan=path)


def test_flowers_own_log_says_rounds_metrics_and_results(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = simulated()
    play(tmp_path, grid, fraction_evaluate=1.0, train_metrics={"loss": 2.0})
    said = "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("flwr"))
    for words in (
        f"the run's folder is {tmp_path / 'run'}",
        "Starting SecureFedAvg strategy:",
        "[ROUND 1/2]",
        "configure_train: Sampled 3 nodes (out of 3)",
        "aggregate_train: version 2 is made of sealed updates",
        "Aggregated MetricRecord: {'loss': 0.5",
        "aggregate_evaluate: Received 3 results and 0 failures",
        "Aggregated MetricRecord: {'size': ",
        "Strategy execution finished in",
        "Final results:",
    ):
        assert words in said, words


def losing(message: Message, context: Any) -> Message:
    """A training that says a loss of its own each time, and more than is asked for."""
    reply = train(message, context)
    partition, number = (
        context.node_config["partition-id"],
        message.content["config"]["server-round"],
    )
    told = {"num-examples": 10 + partition, "loss": 1.0 * partition / number, "far": 9.0, "x": 1}
    reply.content["metrics"] = MetricRecord(told)
    return reply


def test_metrics_of_training_come_as_means_of_what_nobody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most, app = {"loss": 4.0, "far": 2.0}, ClientApp(mods=[secureps_mod])
    app.train()(losing)
    grid, plan = simulated(app), write_plan(tmp_path, "plain")
    result = play(tmp_path, grid, plan=plan, train_metrics=most)
    for number in (1, 2):
        assert result.train_metrics_clientapp[number] == {
            "loss": pytest.approx((10 * 0 + 11 * 1 + 12 * 2) / 33 / number, abs=1e-3),
            "far": pytest.approx(2.0, abs=1e-3),
        }
    assert [len(node.seen) for node in grid.nodes.values()] == [1 + 2] * CLIENTS
    for node in grid.nodes.values():
        assert not any(reply.content.metric_records for reply in node.replies)
    export(tmp_path / "run", tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors").keys() == initial().keys()
    assert "far is 9.0, more than the largest magnitude of 2.0" in caplog.text
    with pytest.raises(ConfigError, match="largest magnitude of loss is a number > 0"):
        SecureFedAvg(plan, train_metrics={"loss": 0.0})
    noisy = plan.read_text().replace("[[group]]", NOISE + "[[group]]", 1)
    plan.write_text(noisy.replace("range = 1.0\nmost_examples = 32", 'weighting = "uniform"'))
    with pytest.raises(
        PlanRefused, match=r"train_metrics: under \[privacy\] they would have noise"
    ):
        play(tmp_path / "noisy", grid, plan=plan, train_metrics=most)


NOISE = """[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 90.0
"""


def test_an_override_has_the_model_of_each_version_and_cannot_change_it(
    tmp_path: Path, unharmed: Tensors
) -> None:
    seen = []

    class Saving(SecureFedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            assert list(replies) == []
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            seen.append((server_round, arrays))
            return (zeros if changes else arrays), metrics

    zeros, changes = record({name: np.zeros_like(each) for name, each in initial().items()}), False
    same(tensors(play(tmp_path / "seen", simulated(), kind=Saving)), unharmed)
    assert [number for number, _ in seen] == [1, 2]
    same({name: each.numpy() for name, each in seen[-1][1].items()}, unharmed)
    changes = True
    for rounds in (1, 2):
        with pytest.raises(ConfigError, match="continues from another model than"):
            play(tmp_path / f"changed-{rounds}", simulated(), rounds, kind=Saving)


def test_fewer_nodes_than_flower_wants_go_on_while_the_quorum_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.flower.strategy.LOOK", 0.05)
    plan = write_plan(tmp_path)
    text = plan.read_text().replace("quorum = 3", "quorum = 2")
    plan.write_text(text.replace("shards = 2", "shards = 2\nlease = 600.0"))
    grid = simulated()
    now, looks, passed = RealLoop.now, grid.get_node_ids, 0.0

    def look() -> Iterable[int]:
        """Once a node is gone, time passes with each look, however fast this machine is."""
        nonlocal passed
        passed += 30.0 if grid.gone else 0.0
        return looks()

    monkeypatch.setattr(RealLoop, "now", lambda loop: now(loop) + passed)
    monkeypatch.setattr(grid, "get_node_ids", look)

    def leaves(number: int, arrays: ArrayRecord) -> None:
        if "fits" in grid.nodes[12].state:  # on a loaded machine it may miss the first round
            grid.gone.add(12)

    own: dict[str, Any] = {"min_available_nodes": 3, "fraction_evaluate": 1.0}
    result = play(tmp_path, grid, 3, plan, judge=leaves, **own)
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    *there, left = [node.state["fits"]["n"] for node in grid.nodes.values()]
    assert there == [3, 3]
    assert left in (1, 2), "it may have been asked for round 2 before it left"


def test_the_log_says_how_many_nodes_are_waited_for_and_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    monkeypatch.setattr("secureps.flower.strategy.NODES_LOOK", 0.01)
    monkeypatch.setattr("secureps.flower.strategy.QUIET", 0.1)
    monkeypatch.setattr("secureps.flower.strategy.AGAIN", 0.5)
    grid = simulated()
    grid.gone.add(12)
    grid.back[12] = 3  # looks until it is there
    grid.faults[1, 1] = never_came
    play(tmp_path, grid, rounds=1, min_available_nodes=3)
    assert "waits: all: 2 of 3 have arrived; waits for client-01; no answer from" in caplog.text
    assert "Waiting for nodes to connect: 2 connected (minimum required: 3)." in caplog.text


def failing(times: int, partition: int = 1) -> ClientApp:
    """An app whose training at one node fails at first, in words that quote its records."""
    left = times
    app = ClientApp(mods=[secureps_mod])

    @app.train()
    def fit(message: Message, context: Any) -> Message:
        nonlocal left
        if context.node_config["partition-id"] == partition and left:
            left -= 1
            raise ValueError("record 17 is Smith, 44")
        return train(message, context)

    return app


def test_an_app_that_fails_is_asked_again_and_its_words_stay(
    tmp_path: Path, unharmed: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    grid = simulated(failing(2))
    same(tensors(play(tmp_path, grid)), unharmed)
    warned = [line for line in caplog.messages if line.startswith("node 11 (client-01): ")]
    assert (
        warned == ["node 11 (client-01): the app's own code failed; the node's log says where"] * 2
    )
    for reply in grid.nodes[11].replies:
        assert "Smith" not in repr(reply.content)


def test_an_app_that_goes_on_failing_is_left_alone_in_that_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.flower.strategy.LOOK", 0.05)
    grid = simulated(failing(99))
    with pytest.raises(NotReady, match="nothing has come for 2 s"):
        play(tmp_path, grid, 1, timeout=2)
    # its first failure left it in the run: it greets anew, as no longer a newcomer
    assert len(grid.nodes[11].seen) == 1 + 1 + 1 + TRIES


def test_a_node_that_was_away_is_asked_again_at_once(
    tmp_path: Path, unharmed: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.flower.strategy.LOOK", 0.1)
    monkeypatch.setattr(
        "secureps.flower.strategy.AGAIN", 1e6
    )  # what was lost is not waited for once it is back
    grid = simulated()

    def killed(message: Message, play: Reply) -> list[Message]:
        grid.gone.add(11)
        grid.back[11] = 3  # looks until it is there again
        return []

    grid.faults[1, 1] = killed
    same(tensors(play(tmp_path, grid)), unharmed)
    assert len(grid.nodes[11].seen) == 1 + 1 + 2


@pytest.mark.parametrize(("kind", "name"), [(Coordinator, "coordinator"), (Shard, r"shard-\d")])
def test_a_server_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    handle, failed = kind.handle, []  # type: ignore[attr-defined]

    def fails(self: Any, now: float, sender: str, event: Any) -> Any:
        if sender == "client-01":
            failed.append(time.monotonic())
            raise OSError("the disk is gone")
        return handle(self, now, sender, event)

    monkeypatch.setattr(kind, "handle", fails)
    with pytest.raises(InternalError, match=f"{name} failed at"):
        play(tmp_path, simulated())
    assert time.monotonic() - failed[0] < 30


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Executor.request

    def silent(self: Executor, sender: str, message: Any) -> Future[Any]:
        if isinstance(message, AskStatus):
            return Future()
        return request(self, sender, message)

    monkeypatch.setattr(Executor, "request", silent)
    monkeypatch.setattr(strategy, "ANSWER", 0.05)
    monkeypatch.setattr(strategy, "LOOK", 0.01)
    with pytest.raises(NotReady, match="coordinator has not answered"):
        play(tmp_path, simulated())


def folded(run: Path) -> list[bool]:
    """Whether each node's journal was ever compacted."""
    found = []
    for path in sorted((run / "kit" / "state").glob("client-*/journal.db")):
        with closing(SqliteJournal(path)) as journal:
            found.append(journal.fold is not None)
    return found


def test_a_node_that_compacts_in_every_wave_comes_to_the_same(
    tmp_path: Path, watched_run: Watched, unharmed: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folded(watched_run[0] / "run") == [False] * CLIENTS
    monkeypatch.setattr(one_wave, "LEAST", 1)
    again = tensors(play(tmp_path / "again", simulated()))
    assert folded(tmp_path / "again" / "run") == [True] * CLIENTS
    same(again, unharmed)


def test_a_node_publishes_its_sites_number_and_others_their_own(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("records = 17\n")
    configs = [{"partition-id": k, "num-partitions": CLIENTS} for k in range(CLIENTS)]
    own: dict[str, int | str] = {
        "secureps-kit": str(tmp_path / "run" / "kit"),
        "secureps-name": "client-01",
        "secureps-site": str(tmp_path / "site.toml"),
        "secureps-unsafe-seed": SEED,
    }
    nodes = [{**config, **(own if k == 1 else {})} for k, config in enumerate(configs)]
    play(tmp_path, LocalGrid(make_app(), nodes), 1, write_plan(tmp_path, clients=CLIENTS))
    (journal,) = tmp_path.rglob("coordinator/journal.db")
    receipts = [row.record.receipt for row in read_rows(journal) if isinstance(row.record, Submit)]
    counted = {each.id.client: each.examples for each in receipts if each.purpose == UPDATE}
    assert counted == {"client-00": 10, "client-01": 17, "client-02": 12}
