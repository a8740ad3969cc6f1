"""Flower: unmodified Flower apps train under encryption to the same bits.
Flower: only a strategy as Flower has it is taken from a ServerApp; other code is refused.
Finding Flower apps in files and projects, and saying why one cannot be run.
Models as Flower's records, and `context.state` on disk: exactly what it was.
What a Flower app says beside its evaluation: of its training, and to queries of its own.
"""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flwr.serverapp.strategy as flowers
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy
from safetensors.numpy import load_file

from secureps.client.flower.app import FlowerApp, wrap_object
from secureps.client.flower.script import FlowerTrainer
from secureps.client.flower.server import MEANS, read_server_app
from secureps.client.flower.trainer import KEPT, FlowerModel, States, message, single_bytes
from secureps.client.initial_model import RoundRecords, ServerAppResult, initial_digest
from secureps.client.script import Script, is_flower_app, refuse_privacy
from secureps.client.trainer import EvaluateResult, FitConfig, Setting
from secureps.config.plan import OptimizerSection
from secureps.errors import (
    MISCONFIGURED,
    ConfigError,
    DamagedStore,
    Malformed,
    NotFinite,
    PlanRefused,
    ScriptFailed,
    WrongShape,
)
from secureps.messages.encoding import file_digest
from secureps.model.optimizer import build_optimizer
from secureps.run.own_script import run_flower
from secureps.run.up.folder import client_names
from secureps.store.checkpoint import write_state
from tests.kits.evaluations import FINE, metrics_of
from tests.kits.federations import Tensors, small_federation, small_plan
from tests.kits.flower_apps import (
    CLIENT,
    CLIENT_APP,
    CLIENT_FN,
    MESSAGES,
    PYPROJECT,
    founded,
    initial_of,
    project,
    write,
)
from tests.kits.flower_grid import LocalGrid
from tests.kits.nursery import ROOT
from tests.kits.roles_kit import make_plan, private_plan
from tests.kits.trainer_kit import check_trainer

CONFIG = FitConfig({"all": 3}, 99, {"lr": 0.25})


def trainer(path: Path, keep: Path | None = None, **settings: Setting) -> FlowerTrainer:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    made = Script(path).make({"partition": "2", "partitions": "6", **given}, keep)
    assert isinstance(made, FlowerTrainer)
    return made


def messages(folder: Path, state: Path | None = None, source: str = MESSAGES) -> FlowerTrainer:
    initial = folder / "initial.safetensors"
    write_state(initial, {"w": np.zeros((2, 3), np.float32)}, {})
    return trainer(write(folder, source), state, initial=str(initial), bonus=0)


# --- the contract -----------------------------------------------------------------


@pytest.mark.parametrize("source", [CLIENT_FN, CLIENT_APP], ids=["client_fn", "ClientApp"])
def test_numpy_clients_keep_the_contract(source: str, tmp_path: Path) -> None:
    check_trainer(lambda: trainer(write(tmp_path, source)), CONFIG)


def test_message_apps_keep_the_contract(tmp_path: Path) -> None:
    check_trainer(lambda: messages(tmp_path), CONFIG)


def test_projects_keep_the_contract(tmp_path: Path) -> None:
    path = project(tmp_path, "contract")
    initial = initial_of(path, tmp_path / "initial.safetensors")
    check_trainer(lambda: trainer(path, initial=initial), CONFIG)


@pytest.mark.slow
def test_torch_apps_draw_from_the_seed_too(tmp_path: Path) -> None:
    import torch

    source = CLIENT_APP.replace("import numpy as np", "import random, torch\nimport numpy as np")
    source = source.replace("np.random.standard_normal(bias.shape)", "DRAWN")
    drawn = "(torch.randn(11).numpy() + random.random())"
    torch.manual_seed(1)
    before = torch.get_rng_state()
    check_trainer(lambda: trainer(write(tmp_path, source.replace("DRAWN", drawn))), CONFIG)
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_is_bound_to_the_model_that_is_trained(tmp_path: Path) -> None:
    """Noise that an app adds must not be the same for another model."""
    app = trainer(write(tmp_path, CLIENT_APP))
    start = app.parameters(1)
    other = {name: array + 1 for name, array in start.items()}
    noise = [app.fit(each, CONFIG).parameters["arr_1"] - each["arr_1"] for each in (start, other)]
    assert not np.allclose(noise[0], noise[1])


# --- what goes in and what comes out ----------------------------------------------


def test_a_client_is_told_the_plans_settings_and_the_round(tmp_path: Path) -> None:
    app = trainer(write(tmp_path, CLIENT_APP))
    start = app.parameters(1)
    assert {n: (a.shape, a.dtype.name) for n, a in start.items()} == {
        "arr_0": ((30, 7), "float32"),
        "arr_1": ((11,), "float64"),
    }
    result = app.fit(start, CONFIG)
    goal = np.random.default_rng(2).standard_normal((30, 7))
    np.testing.assert_array_equal(result.parameters["arr_0"], (0.25 * goal).astype(np.float32))
    assert (result.examples, result.steps) == (12, 0)
    assert result.metrics == {"round": 4.0}, "text is no metric"
    told = app.evaluate(start)
    assert told.loss == pytest.approx(np.square(goal).mean())
    assert (told.examples, set(told.metrics)) == (6, {"accuracy"})


def test_more_than_ten_arrays_keep_their_order(tmp_path: Path) -> None:
    source = """
import numpy as np
from flwr.client import NumPyClient
class Holder(NumPyClient):
    def get_parameters(self, config): return [np.full(n + 1, n) * 1.0 for n in range(12)]
    def fit(self, parameters, config):
        assert [len(p) for p in parameters] == list(range(1, 13))
        return [p + n for n, p in enumerate(parameters)], 1, {}
"""
    app = trainer(write(tmp_path, source))
    start = app.parameters(1)
    given = {name: start[name] for name in sorted(start)}  # as the members' workers order them
    assert list(given) != list(start)
    trained = app.fit(given, CONFIG).parameters
    assert all((trained[f"arr_{n}"] == 2 * n).all() for n in range(12))


def test_a_message_app_has_its_names_and_is_told_as_its_server_would(tmp_path: Path) -> None:
    path = project(tmp_path, "told")
    app = trainer(path, initial=initial_of(path, tmp_path / "v0.safetensors"), bonus=2)
    start = app.parameters(7)
    assert list(start) == ["head.weight", "body.bias", "body.count"]
    drawn = founded(path, seed=8).model["head.weight"]
    assert not np.array_equal(start["head.weight"], drawn), "the ServerApp draws from the seed"
    config = FitConfig({"all": 0}, 1, {})
    result = app.fit(start, config)
    np.testing.assert_array_equal(result.parameters["body.bias"], np.full(3, 2.25, np.float32))
    assert result.parameters["body.count"] == 0, "counters stay as they came"
    assert result.parameters["body.count"].dtype == np.int64
    assert result.metrics == {"fits": 1.0, "round": 1.0}
    plan = app.fit(start, FitConfig({"all": 0}, 1, {"lr": 1.0}))
    assert (plan.parameters["body.bias"] == 3).all(), "the plan's setting comes before the app's"
    assert app.evaluate(start).loss == 2.0


def test_the_initial_model_may_come_from_a_file(tmp_path: Path) -> None:
    app = messages(tmp_path)
    assert {name: array.shape for name, array in app.parameters(1).items()} == {"w": (2, 3)}
    write_state(tmp_path / "n.safetensors", {f"arr_{i}": np.full(i, i) for i in range(12)}, {})
    nameless = trainer(tmp_path / "client.py", initial=str(tmp_path / "n.safetensors"))
    assert list(nameless.parameters(1)) == [f"arr_{i}" for i in range(12)]
    named = {"fc.weight": np.zeros((30, 7)), "fc.bias": np.zeros(11)}
    write_state(tmp_path / "named.safetensors", named, {})
    ordered = trainer(write(tmp_path, CLIENT), initial=str(tmp_path / "named.safetensors"))
    with pytest.raises(ConfigError, match="order and no names: call its 2 tensors arr_0, arr_1, "):
        ordered.parameters(1)


def test_settings_reach_node_config_and_run_config(tmp_path: Path) -> None:
    path = project(tmp_path, "settings", MESSAGES)
    app = trainer(path, learning_rate=1, data_path="here")
    assert app._settings.node == {"partition-id": 2, "num-partitions": 6, "data-path": "here"}
    assert app._settings.run == {"learning-rate": 1.0, "bonus": 0, "deep.name": "x"}
    with pytest.raises(ConfigError, match="learning-rate must be of type float, got 'fast'"):
        trainer(path, learning_rate="fast")
    with pytest.raises(ConfigError, match="partition must be of type int"):
        trainer(path, partition="first")
    with pytest.raises(ConfigError, match=r"'learning-rat' is not known; did you mean"):
        trainer(path, learning_rat=0.5)
    for each in (path, write(tmp_path, MESSAGES)):
        assert trainer(each, unheard=1)._settings.node["unheard"] == 1
    bare = messages(tmp_path)
    assert bare._settings.run == {"bonus": 0}, "without a project a setting may be for either"


def test_mods_are_run_around_the_app(tmp_path: Path) -> None:
    mod = """
def doubled(message, context, call_next):
    message.content["config"]["lr"] = 2 * message.content["config"]["lr"]
    return call_next(message, context)
def shouting(message, context, call_next):
    reply = call_next(message, context)
    reply.content["metrics"]["shout"] = 1
    return reply
"""
    source = mod + MESSAGES.replace("ClientApp()", "ClientApp(mods=[doubled])")
    app = messages(tmp_path, source=source.replace("@app.train()", "@app.train(mods=[shouting])"))
    result = app.fit(app.parameters(1), CONFIG)
    assert (result.parameters["w"] == 0.5).all()
    assert result.metrics == {"fits": 1.0, "round": 4.0, "shout": 1.0}


# --- context.state ----------------------------------------------------------------


def fits_of(folder: Path, version: int) -> float:
    """How often a client that was just started has fitted."""
    app = messages(folder, folder / "state")
    result = app.fit(app.parameters(1), FitConfig({"all": version}, 1, {"lr": 1.0}))
    assert (result.parameters["w"] == result.metrics["fits"]).all()
    return result.metrics["fits"]


def test_state_survives_and_a_repeated_version_finds_what_was_before_it(tmp_path: Path) -> None:
    fits = partial(fits_of, tmp_path)
    assert [fits(v) for v in (0, 1, 2)] == [1, 2, 3]
    assert fits(2) == 3, "killed after training, before the next version"
    assert fits(3) == 4
    assert [fits(v) for v in (2, 3)] == [3, 4], "a run that went back"
    assert fits(9) == 5, "nothing was asked in between"
    assert messages(tmp_path, tmp_path / "state").evaluate({"w": np.zeros((2, 3))}).metrics == {
        "fits": 5.0,
        "eval_loss": 2.0,
    }
    assert fits(10) == 6, "what evaluate did to the state is forgotten"


def test_what_an_evaluation_leaves_is_there_for_the_next_fit(tmp_path: Path) -> None:
    """Of a client that is started anew before each call, and repeats what it was killed in."""

    fits = partial(fits_of, tmp_path)

    def evaluated(version: int) -> float:
        app = messages(tmp_path, tmp_path / "state")
        return app.evaluate_at(app.parameters(1), {"all": version}).metrics["fits"]

    assert fits(0) == 1
    assert [evaluated(1), evaluated(1)] == [1, 1], "it finds what the fit left, twice"
    assert [fits(1), fits(1)] == [1001, 1001], "and the fit what it left"
    assert evaluated(2) == 1001
    assert fits(1) == 1001, "a run that went back"
    assert fits(2) == 1002, "what was evaluated later is of the run that went back"


def test_groups_of_their_own_versions_count_together(tmp_path: Path) -> None:
    app = messages(tmp_path, tmp_path / "state")
    start = app.parameters(1)
    for versions, fits, number in (((0, 0), 1, 1), ((1, 0), 2, 2), ((1, 1), 3, 2), ((1, 1), 3, 2)):
        config = FitConfig(dict(zip("ab", versions, strict=True)), 1, {"lr": 1.0})
        assert app.fit(start, config).metrics == {"fits": fits, "round": number}


# --- refusals ---------------------------------------------------------------------


NUMPY_FIT = "return [weights, bias + noise], 10 + self.partition, told"
REPLY = 'content = RecordDict({"arrays"'


@pytest.mark.parametrize(
    ("old", "new", "error", "reason"),
    [
        (NUMPY_FIT, "return [weights.T, bias], 1, {}", WrongShape, r"'arr_0' has shape \(7, 30\)"),
        (NUMPY_FIT, "return [weights], 1, {}", WrongShape, "'arr_1' is missing"),
        (NUMPY_FIT, "return [weights, bias, bias], 1, {}", WrongShape, "'arr_2' is not one"),
        (NUMPY_FIT, "return [weights, bias.astype(int)], 1, {}", WrongShape, "'arr_1' is int64"),
        (NUMPY_FIT, "return [weights * 1e300, bias], 1, {}", NotFinite, "'arr_0' NaN or infinite"),
        (NUMPY_FIT, "return [weights, bias], -1, {}", Malformed, "num-examples is -1, and must be"),
        (NUMPY_FIT, "return [weights, bias]", ScriptFailed, "TypeError: NumPyClient.fit did not"),
        (NUMPY_FIT, "return 1 / 0", ScriptFailed, r"ZeroDivisionError: .* \(client.py:18 in fit\)"),
        ("def fit", "def train", ScriptFailed, "was not OK: FIT_NOT_IMPLEMENTED"),
    ],
)
def test_answers_of_clients_that_cannot_be_used(
    old: str, new: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    assert old in CLIENT_APP
    app = trainer(write(tmp_path, CLIENT_APP.replace(old, new)))
    with pytest.raises(error, match=reason) as raised:
        app.fit(app.parameters(1), CONFIG)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "error", "reason"),
    [
        (REPLY, 'content = RecordDict({"more": ArrayRecord(), "arrays"', WrongShape, "2 ArrayRec"),
        ('"num-examples": 5, "fits"', '"fits"', Malformed, "num-examples is None, and must be"),
        ("return Message(content", "raise KeyError('x')#", ScriptFailed, "train failed: KeyError"),
        (
            "return Message(content,",
            "from flwr.app import Error\n    return Message(Error(7, 'no\\ndata'),",
            ScriptFailed,
            "train failed: no data",
        ),
        ("ArrayRecord(arrays)", "ArrayRecord([np.zeros(3)])", WrongShape, "'w' is missing"),
    ],
)
def test_answers_of_message_apps_that_cannot_be_used(
    old: str, new: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    assert old in MESSAGES
    app = messages(tmp_path, source=MESSAGES.replace(old, new))
    with pytest.raises(error, match=reason):
        app.fit(app.parameters(1), CONFIG)
    assert app._states.load_newest() == {}, "a fit that failed leaves no state"


def test_a_status_that_is_not_ok_is_an_error(tmp_path: Path) -> None:
    source = """
from flwr.client import Client
from flwr.common import Code, FitRes, GetParametersRes, Parameters, Status, ndarrays_to_parameters
import numpy as np
MODEL = ndarrays_to_parameters([np.zeros(2)])
class Holder(Client):
    def get_parameters(self, ins): return GetParametersRes(Status(Code.OK, ""), MODEL)
    def fit(self, ins):
        return FitRes(Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, "ill"), MODEL, 1, {})
"""
    app = trainer(write(tmp_path, source))
    reason = "fit was not OK: GET_PROPERTIES_NOT_IMPLEMENTED: ill"
    with pytest.raises(ScriptFailed, match=reason):
        app.fit(app.parameters(1), CONFIG)
    unread = write(
        tmp_path, source.replace("([np.zeros(2)])", '([np.zeros(2)])\nMODEL.tensor_type = "torch"')
    )
    with pytest.raises(WrongShape, match="serialized as 'torch'"):
        trainer(unread).parameters(1)


def test_a_model_of_another_run_is_refused(tmp_path: Path) -> None:
    app = trainer(write(tmp_path, CLIENT_APP))
    calls: list[Callable[[Tensors], object]] = [lambda each: app.fit(each, CONFIG), app.evaluate]
    for call in calls:
        with pytest.raises(WrongShape, match=r"not a state of this app's model: tensor 'arr_1'"):
            call({"arr_0": np.zeros((30, 7))})


def test_a_missing_partition_is_explained(tmp_path: Path) -> None:
    app = Script(write(tmp_path, CLIENT_APP)).make({})
    with pytest.raises(
        ConfigError, match=r"KeyError: 'partition-id' .*settings partition and partitions say it"
    ):
        app.parameters(1)


def test_evaluation_that_is_not_there_or_of_no_use(tmp_path: Path) -> None:
    silent = CLIENT_APP.replace("def evaluate", "def judge")
    assert Script(write(tmp_path, silent)).make_evaluator({"partitions": "3"}) is None
    app = trainer(tmp_path / "client.py")
    with pytest.raises(ConfigError, match="no evaluate function"):
        app.evaluate(app.parameters(1))
    nan = write(tmp_path, CLIENT_APP.replace("loss = float(", "loss = float('nan') * float("))
    with pytest.raises(NotFinite, match="the loss is nan"):
        trainer(nan).evaluate(trainer(nan).parameters(1))
    mute = messages(tmp_path, source=MESSAGES.replace("eval_loss", "score"))
    told = mute.evaluate(mute.parameters(1))
    assert (told.loss, told.metrics["score"]) == (None, 2.0), "an evaluation without a loss"


def test_a_file_is_judged_by_all_its_holders(tmp_path: Path) -> None:
    script = Script(write(tmp_path, CLIENT_APP))
    panel = script.make_evaluator({"partitions": "3"})
    assert panel is not None
    start = script.make({"partition": "0"}).parameters(1)
    own = [script.make({"partition": str(i)}).evaluate(start) for i in range(3)]
    told = panel.evaluate(start)
    assert told.examples == 4 + 5 + 6
    assert told.loss == pytest.approx(sum((r.loss or 0.0) * r.examples for r in own) / 15)
    assert script.central({}) is None


# --- nothing dials out ------------------------------------------------------------

OFFLINE = """
import pathlib, socket, sys
def refuse(*arguments, **more): raise SystemExit(f"dials out: {arguments}")
for name in ("connect", "connect_ex", "sendto"): setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse

from secureps.client.initial_model import write_served
from secureps.client.script import Script
from secureps.client.trainer import FitConfig
for path in sys.argv[1:]:
    script, settings = Script(pathlib.Path(path)), {"partition": 0}
    founded = script.run_server_app({}, 3, 1, 1)
    if founded is not None:
        settings["initial"] = str(pathlib.Path(path) / "initial.safetensors")
        write_served(settings["initial"], founded.model, founded.served)
    trainer = script.make(settings, None)
    start = trainer.parameters(1)
    trainer.evaluate(trainer.fit(start, FitConfig({"all": 0}, 1, {})).parameters)
assert not list(pathlib.Path.home().iterdir()), "Flower wrote into the home folder"
assert "flwr.compat.client.app" not in sys.modules, "what nobody may call takes a second to import"
from flwr.common import EventType, event
assert event(EventType.START_CLIENT_ENTER).result() == "disabled"
"""


def test_nothing_of_flower_dials_out_or_writes_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "project").mkdir()
    paths = [write(tmp_path, CLIENT_APP), project(tmp_path / "project", "offline")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE, *map(str, paths)],
        env={**os.environ, "HOME": str(home), "FLWR_TELEMETRY_ENABLED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


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


FIRST = FitConfig({"all": 0}, 1, {"lr": 1.0})


def fitted(path: Path) -> int:
    """The examples that an app counts after a fit: whose data it was."""
    trainer = Script(path).make({"partition": "3"})
    return trainer.fit(trainer.parameters(1), FIRST).examples


@pytest.mark.parametrize(
    ("source", "examples"),
    [
        (CLIENT_APP, 13),
        (CLIENT_FN, 13),
        (CLIENT_FN.replace(".to_client()", ""), 13),
        (CLIENT_FN.replace("def client_fn(context)", "def client_fn(context: 'Context')"), 13),
        (CLIENT, 10),
        (CLIENT + "holder = Holder(5)\n", 15),
        (CLIENT + "holder = Holder(6).to_client()\n", 16),
        (
            CLIENT + "import flwr as fl\nfl.client.start_client(\n"
            "    server_address='127.0.0.1:8080', client=Holder(7).to_client())\n",
            17,
        ),
        (
            CLIENT + "from flwr.client import start_numpy_client\n"
            "start_numpy_client(server_address='[::]:8080', client=Holder(8))\n",
            18,
        ),
        (CLIENT + "def client_fn(cid): return Holder(int(cid)).to_client()\n", 13),
    ],
)
def test_a_file_may_have_it_in_any_of_flowers_ways(
    source: str, examples: int, tmp_path: Path
) -> None:
    assert fitted(write(tmp_path, source)) == examples


def test_a_file_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path, CLIENT, "beside_it.py")
    source = "import flwr\nfrom beside_it import Holder\nholder = Holder(4)\n"
    assert fitted(write(tmp_path, source)) == 14


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import flwr\n", "neither ours, with make.settings., nor Flower's"),
        ("import flwr\nraise OSError('no data')\n", "does not import: OSError: no data"),
        (CLIENT_APP + "second = ClientApp(client_fn)\n", r"has 2 ClientApps \(app, second\)"),
        (CLIENT + "a = Holder(1)\nb = Holder(2)\n", r"has 2 clients \(a, b\)"),
        (CLIENT.replace("partition=0", "partition"), "class Holder needs arguments: define cl"),
        (CLIENT + "def client_fn(): return Holder()\n", "client_fn must take one argument"),
        (CLIENT + "client_fn = 5\nclass Other(NumPyClient): pass\n", "has 2 clients"),
        (MESSAGES.replace("@app.train()", ""), "has no train function: give it a client_fn"),
        (MESSAGES + CLIENT_FN, "a client_fn, and a ClientApp that does not use it"),
        (CLIENT_APP + "@app.train()\ndef train(message, context): pass\n", "mixes Flower's two A"),
    ],
)
def test_what_is_no_app_says_why(source: str, reason: str, tmp_path: Path) -> None:
    kind = ScriptFailed if "does not import" in reason else ConfigError
    with pytest.raises(kind, match=reason) as raised:
        Script(write(tmp_path, source))
    assert "client.py" in str(raised.value)


# --- projects ---------------------------------------------------------------------


def test_a_project_is_found_by_its_pyproject(tmp_path: Path) -> None:
    path = project(tmp_path, "found")
    assert is_flower_app(path)
    app = Script(path).make({"partition": "1"})
    assert isinstance(app, FlowerTrainer)
    assert app._app.config == {"learning-rate": 0.25, "bonus": 0, "deep.name": "x"}
    assert "found.server_app" not in sys.modules, "imported before anybody needs it"


@pytest.mark.parametrize(
    ("package", "old", "new", "reason"),
    [
        ("faulty_a", "clientapp", "clientap", "needs clientapp"),
        ("faulty_b", "[tool.flwr.app.components]", "[tool.other]", "no Flower project"),
        ("faulty_c", "client_app:app", "client_app:application", "has no 'application'"),
        ("faulty_d", "faulty_d.client_app", "json", "json is not the project's"),
        ("faulty_e", "faulty_e.client_app", "faulty_e.nothing", "does not import: ModuleNotFound"),
        ("faulty_f", "client_app:app", "client_app:train", "is a function, no ClientApp"),
        ("faulty_g", "bonus = 0", "bonus = [1]", "bonus is no plain value"),
    ],
)
def test_a_project_that_is_none_says_why(
    package: str, old: str, new: str, reason: str, tmp_path: Path
) -> None:
    path = project(tmp_path, package)
    text = PYPROJECT.format(package=package)
    assert old in text
    write(path, text.replace(old, new), "pyproject.toml")
    kind = ScriptFailed if "does not import" in reason else ConfigError
    with pytest.raises(kind, match=reason):
        Script(path)


def test_an_empty_folder_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pyproject\.toml: no such file"):
        Script(tmp_path)


# --- mods -------------------------------------------------------------------------

MODS = "from flwr.client.mod import secaggplus_mod, secagg_mod, adaptiveclipping_mod\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (CLIENT_APP.replace("=client_fn)", "=client_fn, mods=[secaggplus_mod])"), "secaggplus_mod"),
        (CLIENT_APP.replace("=client_fn)", "=client_fn, mods=[secagg_mod])"), "mod secagg_mod nee"),
        (
            MESSAGES.replace("ClientApp()", "ClientApp(mods=[secaggplus_mod])"),
            "Flower's own server",
        ),
        (MESSAGES.replace("train()", "train(mods=[print, secagg_mod])"), "encrypts every update"),
        (
            "import functools\n"
            + MESSAGES.replace("train()", "train(mods=[functools.partial(secagg_mod)])"),
            "secagg_mod",
        ),
        (
            MESSAGES.replace("train()", "train(mods=[adaptiveclipping_mod])"),
            "the plan's `clip` bou",
        ),
    ],
)
def test_mods_that_need_flowers_server_are_refused(
    source: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Script(write(tmp_path, MODS + source))


LOCAL = "LocalDpMod(1.0, 0.1, 10.0, 1e-5)"


def test_local_noise_stays_and_is_not_accounted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = "from flwr.client.mod import LocalDpMod\n" + CLIENT_APP
    path = write(tmp_path, source.replace("=client_fn)", f"=client_fn, mods=[{LOCAL}])"))
    with caplog.at_level(logging.WARNING, "secureps"):
        trainer = Script(path).make({"partition": "0"})
    assert [r.getMessage() for r in caplog.records if "not accounted" in r.message] == [
        f"{path}: LocalDpMod stays, but its noise is not accounted: no epsilon is claimed"
    ]
    start = trainer.parameters(1)
    first, again = (trainer.fit(start, FIRST).parameters["arr_0"] for _ in range(2))
    assert (first == again).all()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flwr.client.mod", MESSAGES.replace("ClientApp()", f"ClientApp(mods=[{LOCAL}])")),
        ("flwr.clientapp.mod", CLIENT_APP.replace("=client_fn)", f"=client_fn, mods=[{LOCAL}])")),
    ],
)
def test_local_noise_of_the_other_api_is_refused(module: str, source: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mixes Flower's two APIs"):
        Script(write(tmp_path, f"from {module} import LocalDpMod\n{source}"))


# --- ours or Flower's -------------------------------------------------------------


def test_a_script_with_make_is_ours_whatever_it_imports(tmp_path: Path) -> None:
    assert not is_flower_app(write(tmp_path, "import flwr\ndef make(settings): return 7\n"))
    assert Script(tmp_path / "client.py").make({}) == 7  # type: ignore[comparison-overlap]
    assert not is_flower_app(write(tmp_path, "import torch\n"))
    with pytest.raises(ConfigError, match=r"no function make\(settings\).* and is no Flower app"):
        Script(tmp_path / "client.py")
    assert not is_flower_app(write(tmp_path, "import flwr as\n"))
    with pytest.raises(ScriptFailed, match="does not import: SyntaxError"):
        Script(tmp_path / "client.py")
    assert not is_flower_app(tmp_path / "nobody.py")


def test_a_private_plan_refuses_an_app_before_anything_starts(tmp_path: Path) -> None:
    path = write(tmp_path, CLIENT_APP)
    refuse_privacy(path, make_plan())
    rule = {"quorum": 3, "minimum": 2}
    whole = {"unit": "client", "placement": "local", "noise_multiplier": 1.0}
    group = [{"weighting": "uniform", "rule": rule}]
    refuse_privacy(path, make_plan(group=group, privacy=whole | {"delta": 1e-5, "budget": 9.0}))
    with pytest.raises(PlanRefused, match=r"client\.py: the plan's record privacy is a promise"):
        refuse_privacy(path, private_plan())
    refuse_privacy(write(tmp_path, "def make(settings): return 7\n"), private_plan())


def test_run_flower_tells_in_one_line_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--server", "127.0.0.1:1", "--kit", str(tmp_path), "--name", "me"]
    with pytest.raises(SystemExit) as ended:
        run_flower(5, arguments)
    assert ended.value.code == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this script: neither ours, ")
    assert "(this side's" in line
    assert isinstance(wrap_object(lambda context: None, "here"), FlowerApp)


def test_a_first_model_may_be_given_by_its_url(tmp_path: Path) -> None:
    write_state(tmp_path / "v0.safetensors", {"w": np.ones((2, 3), np.float32)}, {})
    path = write(tmp_path, MESSAGES)
    given: dict[str, Setting] = {"initial": f"file://{tmp_path}/v0.safetensors", "bonus": 0}
    app = Script(path).make(given)
    assert np.array_equal(app.parameters(1)["w"], np.ones((2, 3), np.float32))
    digest = file_digest((tmp_path / "v0.safetensors").read_bytes()).hex()
    assert initial_digest(app) == digest
    with pytest.raises(ConfigError, match=r"initial: file:///.*v1\.safetensors: absent"):
        Script(path).make({**given, "initial": f"file://{tmp_path}/v1.safetensors"}).parameters(1)


def test_functions_under_names_of_their_own_are_found(tmp_path: Path) -> None:
    initial = tmp_path / "initial.safetensors"
    write_state(initial, {"w": np.zeros((2, 3), np.float32)}, {})
    given: dict[str, Setting] = {"initial": str(initial), "bonus": 0}
    named = MESSAGES.replace("app.train()", 'app.train("mine")')
    named = named.replace("app.evaluate()", 'app.evaluate("ours")')
    app = Script(write(tmp_path, named)).make(given)
    start = app.parameters(1)
    assert app.fit(start, FIRST).metrics["fits"] == 1
    assert app.evaluate(start).loss == 2.0
    two = named + '\n@app.train("other")\ndef other(message, context): ...\n'
    app = Script(write(tmp_path, two)).make(given)
    with pytest.raises(ConfigError, match=r"2 functions to train \(train.mine, train.other\)"):
        app.fit(start, FIRST)


def state(number: float) -> RecordDict:
    arrays = {
        "w": Array(np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32)),
        "n": Array(np.array(7, np.int16)),
        "odd": Array("", (), "other", b"\x00any bytes"),
        "none": Array(np.zeros((0, 3))),
    }
    config: dict[str, Any] = {
        "text": "ä",
        "yes": True,
        "raw": b"\xff\x00",
        "raws": [b"", b"x"],
        "names": ["a", "b"],
        "empty": [],
    }
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"x": number, "many": [1, 2], "huge": 2**62, "tiny": 5e-324}),
            "config": ConfigRecord(config),
            "nothing": ConfigRecord(),
        }
    )


@pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])
def test_a_state_comes_back_as_it_was(disk: bool, tmp_path: Path) -> None:
    folder = tmp_path / "state" if disk else None
    states = States(folder)
    states.keep(0, state(0.1))
    again = States(folder) if disk else states
    found = again.load_before(1)
    assert found == state(0.1)
    assert list(found) == list(state(0.1))
    assert [type(record) for record in found.values()] == [type(r) for r in state(0.1).values()]
    assert type(found["config"]["yes"]) is bool
    found.metric_records["metrics"]["x"] = 5.0
    assert again.load_before(1) == state(0.1), "a fit that fails must not change what is kept"


@pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])
def test_a_fit_finds_the_newest_state_before_it(disk: bool, tmp_path: Path) -> None:
    states = States(tmp_path if disk else None)
    assert states.load_before(9) == states.load_newest() == {}
    for version in (0, 1, 4, 6):
        states.keep(version, state(version))
    at = {n: dict(states.load_before(n)["metrics"])["x"] for n in (2, 4, 5, 6, 7, 99)}
    assert at == {2: 1.0, 4: 1.0, 5: 4.0, 6: 4.0, 7: 6.0, 99: 6.0}
    assert states.load_before(1) == {}, f"{KEPT} are kept"
    states.keep(4, state(40))
    assert states.load_newest() == states.load_before(99) == state(40), "what came later is gone"
    states.keep(7, RecordDict())
    assert states.load_before(8) == {}, "a state may become empty"


def test_states_that_are_empty_make_no_file(tmp_path: Path) -> None:
    States(tmp_path / "state").keep(0, RecordDict())
    assert not (tmp_path / "state").exists()


def test_a_state_is_a_safetensors_file_that_damage_does_not_pass(tmp_path: Path) -> None:
    states = States(tmp_path)
    states.keep(0, state(1.0))
    (path,) = tmp_path.iterdir()
    assert path.name == "state-000000000001.safetensors"
    assert {array.dtype for array in load_file(path).values()} == {np.dtype(np.uint8)}
    path.write_bytes(
        path.read_bytes().replace(b'\\"nothing\\", \\"config', b'\\"nothing\\", \\"c0nfig')
    )
    with pytest.raises(DamagedStore, match="not a state"):
        states.load_before(1)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DamagedStore, match=path.name):
        states.load_before(1)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((), np.float32),
        np.zeros((0, 3)),
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12, dtype=np.float32)[::2],
        np.arange(5, dtype=">i4"),
        np.array([True, False]),
    ],
    ids=lambda each: f"{each.dtype.str}{each.shape}",
)
def test_a_record_is_the_one_that_flower_makes(values: np.ndarray[Any, Any]) -> None:
    (found,) = FlowerModel({"w": values}, nameless=False).record({"w": values}).values()
    by_flower = Array(values)
    assert found == by_flower
    assert found.data == by_flower.data
    assert bytes(single_bytes(values)) == values.tobytes()


def test_names_that_flower_makes_up_are_told_apart_from_real_ones() -> None:
    arrays = [np.full(n, n) for n in range(1, 4)]
    nameless = FlowerModel.of_record(ArrayRecord(arrays))
    assert list(nameless.tensors) == ["arr_0", "arr_1", "arr_2"]
    assert list(nameless.record(nameless.tensors)) == ["0", "1", "2"]
    record = ArrayRecord({"1": Array(arrays[0]), "0": Array(arrays[1])})
    assert list(FlowerModel.of_record(record).tensors) == ["1", "0"]
    named = FlowerModel.of_file({"b": arrays[0], "arr_0": arrays[1]})
    assert list(named.record(named.tensors)) == ["b", "arr_0"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ArrayRecord(), "has no arrays"),
        (ArrayRecord({"_empty": Array("", (), "numpy.ndarray", b"")}), "has no arrays"),
        (ArrayRecord({"w": Array("", (), "torch", b"x")}), "'w' .* serialized as 'torch'"),
        (ArrayRecord({"w": Array("", (), "numpy.ndarray", b"x")}), "'w' .* only arrays of numb"),
    ],
)
def test_what_is_no_model_is_refused(record: ArrayRecord, reason: str) -> None:
    with pytest.raises(WrongShape, match=reason):
        FlowerModel.of_record(record)


def test_widths_of_floats_are_cast_and_other_types_are_not() -> None:
    model = FlowerModel.of_file({"w": np.zeros(2, np.float32), "n": np.zeros(2, np.int64)})
    given = {"w": Array(np.array([0.1, 2.0])), "n": Array(np.array([1, 2]))}
    before = {name: array + 4 for name, array in model.tensors.items()}
    read = model.read(ArrayRecord(given), before)
    assert read["n"].tolist() == [4, 4], "counters stay as they came"
    assert read["w"].dtype == np.float32
    assert read["w"].tolist() == np.array([0.1, 2.0], np.float32).tolist()
    for dtype in (np.int32, np.float64):
        with pytest.raises(WrongShape, match=rf"'n' is {np.dtype(dtype)}, the model's is int64"):
            model.read(ArrayRecord({**given, "n": Array(np.zeros(2, dtype))}), before)


def test_a_model_of_integers_alone_is_averaged() -> None:
    model = FlowerModel.of_file({"counts": np.zeros(2, np.int64)})
    read = model.read(ArrayRecord({"counts": Array(np.array([1, 2]))}), model.tensors)
    assert read["counts"].tolist() == [1, 2]


APP = (
    MESSAGES
    + """
@app.query("ages")
def ages(message, context):
    own = context.node_config["partition-id"]
    context.state["asked"] = ConfigRecord({"secret": own})
    fits = context.state["seen"]["fits"]
    told = {"num-examples": 10 * (1 + own), "mean": 30.0 + own, "fits": fits}
    content = RecordDict({"metrics": MetricRecord(told), "rows": ConfigRecord({"names": ["Ada"]})})
    return Message(content, reply_to=message)

@app.query()
def silent(message, context):
    return Message(RecordDict(), reply_to=message)
"""
)


AGE = float(np.average(np.arange(30, 36), weights=np.arange(1, 7)))
"""The mean of six clients' ages, weighted by their examples."""


def app(folder: Path, state: Path | None = None, partition: int = 2) -> FlowerTrainer:
    package = f"{folder.name.replace('-', '_')}_app"
    if not (folder / package).exists():
        initial_of(project(folder, package, APP), folder / "v0.safetensors")
    given: dict[str, Setting] = {"partition": partition, "initial": str(folder / "v0.safetensors")}
    made = Script(folder).make(given, state, "client-02")
    assert isinstance(made, FlowerTrainer)
    return made


def test_a_report_of_training_is_of_the_version_that_was_trained(tmp_path: Path) -> None:
    state = tmp_path / "state"
    start = app(tmp_path, state).parameters(1)

    def told(version: int) -> EvaluateResult | None:
        return app(tmp_path, state).report_at(start, {"all": version}, "train")

    assert told(0) is None
    app(tmp_path, state).fit(start, FitConfig({"all": 3}, 1, {}))
    expected = EvaluateResult(None, 5, {"fits": 1.0, "round": 4.0})
    assert told(4) == told(4) == expected
    assert told(5) is None, "it was passed over: another version's training is not this one's"
    app(tmp_path, state).evaluate_at(start, {"all": 4})
    assert told(4) == expected, "whichever is asked first"
    assert app(tmp_path, state).fit(start, FitConfig({"all": 4}, 1, {})).metrics["fits"] == 1001


def test_a_query_is_answered_with_numbers_alone(tmp_path: Path) -> None:
    own = app(tmp_path, tmp_path / "state")
    start = own.parameters(1)
    own.fit(start, FitConfig({"all": 0}, 1, {}))
    expected = EvaluateResult(None, 30, {"mean": 32.0, "fits": 1.0})
    assert own.report_at(start, {"all": 1}, "query.ages") == expected
    again = app(tmp_path, tmp_path / "state")
    assert "asked" not in again._states.load_newest(), "what it did to the state is dropped"
    with pytest.raises(ConfigError, match=r"no function for query\.other"):
        own.report_at(start, {"all": 1}, "query.other")
    alike = EvaluateResult(None, 1, {})
    assert own.report_at(start, {"all": 1}, "query") == alike, "it says of how many: of one"
    legacy = Script(write(tmp_path, CLIENT_APP)).make({"partition": 1})
    assert isinstance(legacy, FlowerTrainer)
    with pytest.raises(ConfigError, match="no function for query"):
        legacy.report_at(legacy.parameters(1), {"all": 1}, "query")


def test_reports_of_an_app_are_opened_as_means_alone(tmp_path: Path) -> None:
    evaluation = {
        "every": 1,
        "metrics": {"eval_loss": 8.0},
        "reports": {"train": {"fits": 4000.0}, "query.ages": {"mean": 120.0}},
        "most_examples": 60,
    }
    plan = small_plan("rlwe", versions=2, local=[], evaluation=evaluation, group=FINE)
    own = [tmp_path / "run" / name for name in client_names(6)]
    simulation = small_federation(plan, tmp_path / "run", kind=lambda i: app(tmp_path, own[i], i))
    simulation.run()
    assert metrics_of(simulation) == {
        1 + at: {
            "eval_loss": pytest.approx(2.0, abs=0.01),
            "query.ages.mean": pytest.approx(AGE, abs=0.1),
            "train.fits": pytest.approx(fits, rel=1e-3, abs=0.1),
        }
        for at, fits in enumerate((1.0, 1001.0))
    }


ASKING = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def histogram(message, context):
    own = context.node_config["partition-id"]
    told = {"width": [i + own for i in range(9)], "length": [0] * 9}
    return Message(RecordDict({"query_results": MetricRecord(told)}), reply_to=message)

@app.query("ages")
def ages(message, context):
    own = context.node_config["partition-id"]
    told = {"num-examples": 1 + own, "mean": 30.0 + own}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)
"""


def test_an_app_that_only_asks_is_told_how_its_answers_are_summed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no train function: .*queries.*docs/flower.md, Analy"):
        Script(write(tmp_path, ASKING))
    page = (ROOT / "docs" / "flower.md").read_text()
    (added,) = re.findall(r"### Analytics.*?```python\n(.*?)```", page, re.DOTALL)
    initial = tmp_path / "count.safetensors"
    write_state(initial, {"count": np.zeros(1, np.float32)}, {})
    script = Script(write(tmp_path, ASKING + added))
    bins = {f"{name}.{i}": 20.0 for name in ("width", "length") for i in range(9)}
    reports = {"query": bins, "query.ages": {"mean": 120.0}}
    evaluation = {"every": 1, "metrics": {"asked": 1.0}, "reports": reports}
    plan = small_plan("plain", versions=2, local=[], evaluation=evaluation, group=FINE)
    given: list[dict[str, Setting]]
    given = [{"partition": i, "initial": str(initial)} for i in range(6)]
    simulation = small_federation(plan, tmp_path / "run", kind=lambda i: script.make(given[i]))
    simulation.run()
    for version in (1, 2):
        told = metrics_of(simulation)[version]
        assert told["query.ages.mean"] == pytest.approx(AGE, abs=0.1)
        widths = [told[f"query.width.{i}"] for i in range(9)]
        assert widths == [pytest.approx(2.5 + i, abs=0.1) for i in range(9)], "all count alike"
