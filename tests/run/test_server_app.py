"""A Flower app's ServerApp runs once: what is taken of it, and what is refused."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.flower.script import FlowerTrainer
from secureps.client.initial_model import (
    KEY,
    MOST_BYTES,
    RoundRecords,
    ServerAppRecords,
    read_served,
    write_served,
)
from secureps.client.script import Script
from secureps.client.trainer import FitConfig, Setting, Trainer
from secureps.config.sections import read_toml, toml_tables
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, OperatorError
from secureps.policy.plan import load_plan
from secureps.run.check import Permit, check
from secureps.run.cli import app as cli
from secureps.run.server_app import Founding, flower, run_server_app
from secureps.store.checkpoint import write_state
from tests.kits.command import said
from tests.kits.flower_apps import CLIENT_APP, MESSAGES, SERVER, founded, initial_of, project, write
from tests.kits.nursery import ROOT

PLAN = """
name = "app"
versions = 6
cipher = {{ name = "plain" }}
{more}
[federation]
script = "{script}"
clients = 10
{federation}
[[group]]
clip = 10.0
rule = {{ quorum = 5 }}
"""


def plan_of(folder: Path, script: Path, more: str = "", federation: str = "") -> Path:
    text = PLAN.format(script=script, more=more, federation=federation)
    return write(folder, text, "plan.toml")


def strategy(text: str, more: str = "") -> str:
    """A ServerApp with another strategy."""
    old = "FedAvg(fraction_evaluate=0.5, min_available_nodes=20)"
    assert old in SERVER
    server = SERVER.replace(old, text)
    imported = "from flwr.serverapp.strategy import *\n"
    return server.replace("app = ServerApp()", imported + more + "\napp = ServerApp()")


def served(folder: Path, package: str, server: str, **more: str) -> Founding:
    folder = folder / package
    folder.mkdir()
    path = project(folder, package, server=server)
    read = load_plan(plan_of(folder, path, **more))
    federation = read.section.federation
    assert federation is not None
    made = run_server_app(read, path, federation.settings, 10, UnsafeSeed(3))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FedAdam(eta=0.05, beta_1=0.8, tau=0.01)", ("fedadam", 0.05, 0.9)),
        ("FedAvgM(server_learning_rate=0.7, server_momentum=0.6)", ("momentum", 0.7, 0.6)),
        ("FedAvgM(server_learning_rate=0.7)", ("sgd", 0.7, 0.9)),
        ("FedAdagrad(eta=0.2)", ("fedadagrad", 0.2, 0.9)),
        ("FedProx(proximal_mu=0.1)", ("sgd", 1.0, 0.9)),
    ],
)
def test_the_strategys_optimizer_is_the_plans(
    text: str, expected: tuple[str, float, float], tmp_path: Path
) -> None:
    made = served(tmp_path, f"steps_{abs(hash(text))}", strategy(text))
    optimizer = made.section.group[0].optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.momentum) == expected
    if optimizer.name == "fedadam":
        assert (optimizer.betas, optimizer.tau) == ((0.8, 0.99), 0.01)


def test_rounds_and_who_takes_part_are_the_plans(tmp_path: Path) -> None:
    text = "FedYogi(fraction_train=0.6, min_available_nodes=2000, fraction_evaluate=0.1)"
    folder = tmp_path / "own"
    folder.mkdir()
    path = project(folder, "own", server=strategy(text))
    plan = plan_of(folder, path)
    plan.write_text(
        plan.read_text().replace("[[group]]\n", "[[group]]\noptimizer = { name = 'sgd' }\n")
    )
    read = load_plan(plan)
    made = run_server_app(read, path, {}, 10, UnsafeSeed(3))
    assert made is not None
    assert made.section == read.section
    first, second = made.notes
    assert first.startswith(
        "of the ServerApp (FedYogi) are taken what clients are told and version"
    )
    assert "not its optimizer (name = fedyogi, " in first
    assert first.endswith(", because the plan says sgd")
    assert second.startswith("number of rounds, fractions, minima, timeout and weights are the")
    assert second.endswith("; without most_examples all clients count alike")
    assert (
        "what follows start(), a second start() too, do not run: `secureps export` gives" in second
    )


def test_code_of_the_apps_own_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """No file appears that nobody measured, and nothing is given up by a key of the plan."""
    own = """
class Logging(FedAvg):
    def aggregate_train(self, server_round, replies):
        open("metrics.csv", "w")
"""
    advice = (
        r"app: its ServerApp has code of its own, which does not run here "
        r"\(the strategy Logging\): run the app inside Flower's engine, or leave the ServerApp out "
        r"and give version 0 as a file, as docs/flower.md says$"
    )
    with pytest.raises(ConfigError, match=advice):
        served(tmp_path, "logging_app", strategy("Logging()", own))
    with pytest.raises(ConfigError, match="drop"):
        served(tmp_path, "dropped_app", SERVER, federation='drop = ["aggregate_train"]')


OLD_SERVER = """
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

def server_fn(context):
    bonus = float(context.run_config["bonus"])
    start = ndarrays_to_parameters([np.full((30, 7), bonus), np.zeros(11)])
    strategy = FedAvg(STRATEGY)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=3))

app = ServerApp(server_fn=server_fn)
"""


def test_a_version_is_told_what_its_round_says(tmp_path: Path) -> None:
    rates = "on_fit_config_fn=lambda number: {'lr': 0.5 ** (number // 2)}"
    server = OLD_SERVER.replace("STRATEGY", f"initial_parameters=start, {rates}")
    path = project(tmp_path, "falling", CLIENT_APP, server)
    app = Script(path).make(
        {"partition": 0, "initial": initial_of(path, tmp_path / "initial.safetensors", bonus=3)}
    )
    start, goal = app.parameters(1), np.random.default_rng(0).standard_normal((30, 7))
    assert (start["arr_0"] == 3).all(), "initial_parameters are version 0"
    for version, rate in enumerate((1.0, 0.5, 0.5, 0.25, 0.25, 0.25)):  # the last one stays
        trained = app.fit(start, FitConfig({"all": version}, 1, {})).parameters["arr_0"]
        np.testing.assert_allclose(trained, 3 + rate * (goal - 3), rtol=1e-5)


def test_the_old_template_has_num_partitions_under_the_pages_plan(tmp_path: Path) -> None:
    """Its ServerApp has no model: a client is asked, and reads num-partitions to make one."""
    client = CLIENT_APP.replace(
        "return Holder(", 'assert context.node_config["num-partitions"] == 5\n    return Holder('
    )
    (tmp_path / "quickstart-pytorch").mkdir()
    project(tmp_path / "quickstart-pytorch", "oldest", client, OLD_SERVER.replace("STRATEGY", ""))
    (least, *_) = plans_of_the_page()
    explanation = check(write(tmp_path, least, "plan.toml"), permit=Permit(run_script=True))
    assert [group.values for group in explanation.groups][-1:] == [30 * 7 + 11]


def test_settings_of_a_loop_are_the_plans_versions(tmp_path: Path) -> None:
    path = project(tmp_path, "counted")
    declared = path / "pyproject.toml"
    declared.write_text(declared.read_text() + "num-server-rounds = 3\n")
    made = founded(path, versions=9)
    assert made.served.run == {"num-server-rounds": 9}
    initial = tmp_path / "initial.safetensors"
    write_served(initial, made.model, made.served)
    trainer = Script(path).make({"initial": str(initial)})
    assert isinstance(trainer, FlowerTrainer)
    trainer.parameters(1)
    assert trainer._context(trainer._states.load_newest()).run_config["num-server-rounds"] == 9


def test_the_server_runs_once_and_in_no_holders_process(tmp_path: Path) -> None:
    """Its side effects are `wandb.init`, folders, downloads."""
    ran = tmp_path / "ran"
    effect = f"    pathlib.Path({str(ran)!r}).touch(exist_ok=False)\n    arrays ="
    server = "import pathlib\n" + SERVER.replace("    arrays =", effect)
    path = project(tmp_path, "aside", server=server)
    initial = initial_of(path, tmp_path / "initial.safetensors")
    assert ran.exists()
    for partition in range(3):
        app = Script(path).make({"partition": partition, "initial": initial})
        app.fit(app.parameters(1), FitConfig({"all": 0}, 1, {}))


def test_what_is_given_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "given" / "initial.safetensors"
    model: dict[str, Any] = {"b": np.ones(3, np.float32), "a": np.zeros((2, 2))}
    records = json.dumps([["config", "config", {"lr": 0.5, "raw": {"bytes": "00ff"}, "l": [1]}]])
    given = ServerAppRecords(("b", "a"), "w", "c", "n", {"k": True}, (RoundRecords(1, records),))
    write_served(path, model, given)
    tensors, _, again = read_served(path)
    assert again == given
    assert sorted(tensors) == ["a", "b"]
    write_state(path, model, {})
    assert read_served(path)[2] is None


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"names": [1]}', "x" * (MOST_BYTES + 1), json.dumps({"since": 0})]
)
def test_what_no_server_can_have_said_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    write_state(path, {"w": np.ones(2)}, {KEY: text})
    with pytest.raises(ConfigError, match="what it says of a ServerApp cannot be read"):
        read_served(path)


def test_records_of_another_kind_or_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    arrays = RoundRecords(1, json.dumps([["w", "arrays", {}]]))
    write_served(path, {"w": np.ones(2)}, ServerAppRecords(("w",), fits=(arrays,)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_served(path)
    write_served(path, {"w": np.ones(2)}, ServerAppRecords(("v",)))
    with pytest.raises(ConfigError, match="not those that its ServerApp named"):
        read_served(path)
    long = ServerAppRecords(
        ("w",), fits=(RoundRecords(1, json.dumps([["c", "config", {"t": "x" * MOST_BYTES}]])),)
    )
    with pytest.raises(ConfigError, match=r"tells its clients \d+ bytes"):
        write_served(path, {"w": np.ones(2)}, long)


def made(path: Path, **settings: Setting) -> Trainer:
    return Script(path).make({"partition": 2, "partitions": 6, **settings})


def test_an_app_without_an_initial_model_says_how_to_give_one(tmp_path: Path) -> None:
    advice = r"no initial model: .*`secureps flower PLAN`.*the setting initial"
    with pytest.raises(ConfigError, match=advice):
        made(write(tmp_path, MESSAGES)).parameters(1)
    with pytest.raises(ConfigError, match=advice):
        made(project(tmp_path, "runs_nowhere")).parameters(1)
    without = CLIENT_APP.replace("def get_parameters", "def nothing")
    with pytest.raises(ConfigError, match=advice):
        made(write(tmp_path, without)).parameters(1)
    (tmp_path / "broken").mkdir()
    broken = SERVER.replace('["learning-rate"]', '["rate"]')
    with pytest.raises(ConfigError, match=r"ServerApp failed: KeyError: 'rate' \(server_app.py"):
        founded(project(tmp_path / "broken", "unfounded", server=broken))
    with pytest.raises(ConfigError, match=r"initial: .*nowhere"):
        made(write(tmp_path, MESSAGES), initial="nowhere").parameters(1)


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ('np.frombuffer(b"", dtype=np.uint8)', r"0 \(uint8, 0 values\)"),
        ('np.frombuffer(b"trees", dtype=np.uint8)', r"0 \(uint8, 5 values\)"),
    ],
)
def test_a_model_of_bytes_is_refused_before_anything_starts(
    model: str, listed: str, tmp_path: Path
) -> None:
    """Group 'all' had no tensors, or the run aborted."""
    package = f"bytes_{len(model)}"
    server = SERVER.replace(
        "    strategy =", f"    arrays = ArrayRecord([{model}])\n    strategy ="
    )
    with pytest.raises(ConfigError, match=rf"no numbers to average: arr_{listed}.*XGBoost"):
        founded(project(tmp_path, package, server=server))


def test_the_command_writes_what_federations_of_several_machines_need(tmp_path: Path) -> None:
    path = project(tmp_path, "command", server=strategy("FedAdam()"))
    plan, out = plan_of(tmp_path, path), tmp_path / "out"
    assert "of the ServerApp (FedAdam) are taken" in said(cli, "flower", plan, "--out", out)
    made = load_plan(out / "plan.toml")
    assert made.section.group[0].optimizer.name == "fedadam"
    assert made.initial_digest
    assert made.section.initial == str(out / "initial.safetensors")
    federation = made.section.federation
    assert federation is not None
    assert run_server_app(made, path, {}, 10, UnsafeSeed(3)) is None, "it has run"
    with pytest.raises(ConfigError, match="is there already: name a new folder"):
        flower(plan, out)
    with pytest.raises(ConfigError, match="there is no ServerApp to run"):
        flower(out / "plan.toml", tmp_path / "again")
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="file: cannot write what the ServerApp says: "):
        flower(plan, tmp_path / "file")


def plans_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "flower.md").read_text()
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


def test_the_plans_of_the_page_are_plans(tmp_path: Path) -> None:
    least, reports = plans_of_the_page()
    (tmp_path / "quickstart-pytorch").mkdir()
    project(tmp_path / "quickstart-pytorch", "quickest", server=strategy("FedAvg()"))
    for text in (least, least + reports):
        explanation = check(write(tmp_path, text, "plan.toml"), permit=Permit(run_script=True))
        sizes = [group.values for group in explanation.groups if group.name != "evaluation"]
        assert sizes[-1:] == [30 * 7 + 3 + 1]
        assert any("of the ServerApp (FedAvg) are taken" in each for each in explanation.remarks)


@pytest.mark.parametrize("name", ["digits", "digits_numpy", "ctr_up", "digits_client"])
def test_a_plan_that_is_written_is_the_plan_that_was_read(name: str, tmp_path: Path) -> None:
    path = ROOT / "policies" / f"{name}.toml"
    read = load_plan(path)
    body = read.section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    copy = write(tmp_path, toml_tables(body), "plan.toml")
    assert load_plan(copy) == read
    assert load_plan(copy).text == read.text
    written, stated = tomllib.loads(copy.read_text()), json.loads(json.dumps(read_toml(path)))
    records = stated.get("privacy", {}).get("records")
    for group in stated["group"]:  # that clients count by their examples is written out
        if most := group.get("most_examples", records):
            group |= {"weighting": "examples", "most_examples": most}
    assert written == stated
