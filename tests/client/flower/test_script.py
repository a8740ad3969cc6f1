"""Flower: unmodified Flower apps train under encryption to the same bits."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from secureps.client.flower.script import FlowerTrainer
from secureps.client.script import Script
from secureps.client.trainer import FitConfig, Setting
from secureps.errors import ConfigError, Malformed, NotFinite, ScriptFailed, WrongShape
from secureps.store.checkpoint import write_state
from tests.kits.federations import Tensors
from tests.kits.flower_apps import (
    CLIENT,
    CLIENT_APP,
    CLIENT_FN,
    MESSAGES,
    founded,
    initial_of,
    project,
    write,
)
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
    path = project(tmp_path, "settings", MESSAGES.replace("told =", "'data-path'; told ="))
    app = trainer(path, learning_rate=1, data_path="here")
    assert app._settings.node == {"partition-id": 2, "num-partitions": 6, "data-path": "here"}
    assert app._settings.run == {"learning-rate": 1.0, "bonus": 0, "deep.name": "x"}
    with pytest.raises(ConfigError, match="learning-rate must be of type float, got 'fast'"):
        trainer(path, learning_rate="fast")
    with pytest.raises(ConfigError, match="partition must be of type int"):
        trainer(path, partition="first")
    with pytest.raises(ConfigError, match=r"'learning-rat' is not known; did you mean"):
        trainer(path, learning_rat=0.5)
    known = "known are learning-rate, bonus, deep.name, partition, partitions, initial"
    with pytest.raises(ConfigError, match=f"setting 'unheard' is not known; {known}"):
        trainer(path, unheard=1)
    bare = trainer(write(tmp_path, MESSAGES), unheard=1)
    assert bare._settings.node["unheard"] == 1, "a file declares nothing: who knows what it reads"
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
