"""Finding Flower apps in files and projects, and saying why one cannot be run."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from secureps.client.flower.app import FlowerApp, wrap_object
from secureps.client.flower.script import FlowerTrainer
from secureps.client.initial_model import initial_digest
from secureps.client.script import Script, is_flower_app, refuse_privacy
from secureps.client.trainer import FitConfig, Setting
from secureps.errors import MISCONFIGURED, ConfigError, PlanRefused, ScriptFailed
from secureps.messages.encoding import file_digest
from secureps.run.own_script import run_flower
from secureps.store.checkpoint import write_state
from tests.kits.flower_apps import (
    CLIENT,
    CLIENT_APP,
    CLIENT_FN,
    MESSAGES,
    PYPROJECT,
    project,
    write,
)
from tests.kits.roles_kit import make_plan, private_plan

CONFIG = FitConfig({"all": 0}, 1, {"lr": 1.0})


def fitted(path: Path) -> int:
    """The examples that an app counts after a fit: whose data it was."""
    trainer = Script(path).make({"partition": "3"})
    return trainer.fit(trainer.parameters(1), CONFIG).examples


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
    first, again = (trainer.fit(start, CONFIG).parameters["arr_0"] for _ in range(2))
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
    assert app.fit(start, CONFIG).metrics["fits"] == 1
    assert app.evaluate(start).loss == 2.0
    two = named + '\n@app.train("other")\ndef other(message, context): ...\n'
    app = Script(write(tmp_path, two)).make(given)
    with pytest.raises(ConfigError, match=r"2 functions to train \(train.mine, train.other\)"):
        app.fit(start, CONFIG)
