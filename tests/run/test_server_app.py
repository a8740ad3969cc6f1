"""A Flower app's ServerApp runs once: what a plan takes over of it, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from secureps.client.flower.script import FlowerTrainer
from secureps.client.flower.served import KEY, MOST_BYTES, Served, Told, read_served, write_served
from secureps.client.script import Script
from secureps.client.trainer import FitConfig, Setting, Trainer
from secureps.config.plan import SyncSection
from secureps.config.sections import read_toml, toml_tables
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, OperatorError, PlanRefused
from secureps.policy.plan import load_plan
from secureps.run.check import Permit, check
from secureps.run.cli import app as cli
from secureps.run.server_app import Founding, found, prepare
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
    """What becomes of a ServerApp."""
    folder = folder / package
    folder.mkdir()
    path = project(folder, package, server=server)
    read = load_plan(plan_of(folder, path, **more))
    federation = read.section.federation
    assert federation is not None
    made = found(read, path, federation.settings, 10, UnsafeSeed(3))
    assert made is not None
    return made


def fates(made: Founding) -> dict[str, str]:
    return {fate.setting: fate.here for fate in made.fates}


def rule_of(made: Founding) -> SyncSection:
    rule = made.section.group[0].rule
    assert isinstance(rule, SyncSection)
    return rule


# --- what a plan takes over -------------------------------------------------------


def test_optimizers_fractions_and_minima_become_a_plans(tmp_path: Path) -> None:
    text = "FedAdam(fraction_train=0.6, min_available_nodes=8, eta=0.05, beta_1=0.8, tau=0.01)"
    made = served(tmp_path, "taken", strategy(text))
    optimizer = made.section.group[0].optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("fedadam", 0.05)
    assert (optimizer.betas, optimizer.tau) == ((0.8, 0.99), 0.01)
    rule = rule_of(made)
    assert (rule.fraction, rule.start, rule.quorum) == (0.6, 8, 5)
    told = fates(made)
    assert told["server optimizer"].startswith("optimizer: name = fedadam")
    assert told["fraction_train"] == "rule.fraction = 0.6, members drawn anew for each version"
    assert told["min_available_nodes"] == "rule.start = 8"
    assert told["num_rounds"] == "versions = 6: the plan's"
    assert told["evaluate_fn"].startswith("not called")
    assert "no [evaluation]" in told["fraction_evaluate"]


def test_what_a_plan_says_itself_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    path = project(folder, "own", server=strategy("FedYogi(fraction_train=0.6)"))
    plan = plan_of(folder, path)
    own = "rule = { quorum = 5, fraction = 0.9 }\noptimizer = { name = 'sgd' }\n"
    plan.write_text(plan.read_text().replace("rule = { quorum = 5 }\n", own))
    read = load_plan(plan)
    made = found(read, path, {}, 10, UnsafeSeed(3))
    assert made is not None
    assert made.section.group == read.section.group
    told = fates(made)
    assert told["server optimizer"] == "optimizer.name = sgd: the plan's"
    assert told["fraction_train"] == "rule.fraction = 0.9: the plan's"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FedAvgM(server_learning_rate=0.7, server_momentum=0.6)", ("momentum", 0.7, 0.6)),
        ("FedAvgM(server_learning_rate=0.7)", ("sgd", 0.7, 0.9)),
        ("FedAdagrad(eta=0.2)", ("fedadagrad", 0.2, 0.9)),
        ("FedProx(proximal_mu=0.1)", ("sgd", 1.0, 0.9)),
    ],
)
def test_strategies_are_the_plans_optimizers(
    text: str, expected: tuple[str, float, float], tmp_path: Path
) -> None:
    made = served(tmp_path, f"steps_{abs(hash(text))}", strategy(text))
    optimizer = made.section.group[0].optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.momentum) == expected


def test_a_minimum_above_the_fraction_counts_as_in_flower(tmp_path: Path) -> None:
    text = "FedAvg(fraction_train=0.1, min_train_nodes=7, min_available_nodes=7)"
    rule = rule_of(served(tmp_path, "least", strategy(text)))
    assert int(10 * rule.fraction) == 7
    text = "FedAvg(fraction_train=0.1, min_train_nodes=10, min_available_nodes=10)"
    assert rule_of(served(tmp_path, "everybody", strategy(text))).fraction == 1
    with pytest.raises(ConfigError, match=r"waits for 11 nodes .*, and 10 take part"):
        served(tmp_path, "toomany", strategy("FedAvg(min_available_nodes=11)"))


def test_those_who_evaluate_are_a_fraction_too(tmp_path: Path) -> None:
    more = "evaluation = { every = 2, metrics = { fits = 10.0 } }"
    made = served(tmp_path, "judging", strategy("FedAvg(fraction_evaluate=0.5)"), more=more)
    assert made.section.evaluation is not None
    assert made.section.evaluation.rule is not None
    assert made.section.evaluation.rule.fraction == 0.5
    assert rule_of(made).fraction == 1


# --- what cannot be had -----------------------------------------------------------

LOGGING = """
class Logging(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)
"""

WORST = """
def worst(replies, weight):
    return min(replies, key=lambda reply: reply["metrics"]["accuracy"])["metrics"]
"""

MEAN = """
def mean(replies, weight):
    records = [reply["metrics"] for reply in replies]
    total = sum(record[weight] for record in records)
    return MetricRecord({"acc": sum(r["acc"] * r[weight] for r in records) / total})
"""
MEAN = "from flwr.app import MetricRecord\n" + MEAN


@pytest.mark.parametrize(
    ("text", "more", "name", "reason"),
    [
        ("Krum(num_malicious_nodes=1)", "", "Krum", "needs every single update"),
        ("FedMedian()", "", "FedMedian", "needs every single update"),
        ("FedTrimmedAvg()", "", "FedTrimmedAvg", "needs every single update"),
        ("QFedAvg(client_learning_rate=0.1)", "", "QFedAvg", "losses in the clear"),
        (
            "DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5)",
            "",
            "DifferentialPrivacyServerSideFixedClipping",
            "at Flower's server: the plan's .*unit = \"client\"",
        ),
        ("Logging()", LOGGING, "aggregate_train", r"\(server_app.py, line \d+\) sees every"),
        (
            "FedAvg(evaluate_metrics_aggr_fn=worst)",
            WORST,
            "evaluate_metrics_aggr_fn",
            "no mean weighted by examples",
        ),
    ],
    ids=lambda value: value if str(value).isidentifier() else "",
)
def test_what_cannot_be_had_is_refused_by_name_and_may_be_given_up(
    text: str, more: str, name: str, reason: str, tmp_path: Path
) -> None:
    server = strategy(text, more)
    advice = rf'{name} .*{reason}.*\[federation\] drop = \["{name}"\]'
    with pytest.raises(ConfigError, match=advice):
        served(tmp_path, f"refused_{name.lower()}", server)
    package, drop = f"dropped_{name.lower()}", f'drop = ["{name}"]'
    made = served(tmp_path, package, server, federation=drop)
    assert fates(made)[name] == "given up: federation.drop"
    assert [fate.setting for fate in made.fates if fate.lost] == ["evaluate_fn", name]


def test_all_that_cannot_be_had_is_said_at_once(tmp_path: Path) -> None:
    both = r"FedXgbBagging puts trees together.*; configure_train fails in round 1: Incon"
    with pytest.raises(ConfigError, match=both):
        served(tmp_path, "boosted", strategy("FedXgbBagging()"))


def test_a_mean_of_the_apps_own_is_the_mean(tmp_path: Path) -> None:
    served(tmp_path, "weighted", strategy("FedAvg(train_metrics_aggr_fn=mean)", MEAN))
    with pytest.raises(ConfigError, match=r"no 'Krum' that is refused"):
        served(tmp_path, "nothing_to_drop", SERVER.replace("=20", "=5"), federation='drop=["Krum"]')


def test_the_whole_plan_is_still_judged(tmp_path: Path) -> None:
    path = project(tmp_path, "unsound", server=strategy("FedAvg(min_available_nodes=8)"))
    plan = plan_of(tmp_path, path)
    plan.write_text(plan.read_text().replace('name = "plain"', 'name = "plain", capacity = 5'))
    asked = r"with what FedAvg of the ServerApp asks for: at most 5 .* waits for 8"
    with pytest.raises(PlanRefused, match=asked):
        found(load_plan(plan), path, {}, 10, UnsafeSeed(3))


# --- what holders are given -------------------------------------------------------

FALLING = """
class Falling(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)
"""


def test_a_version_is_told_what_its_round_says(tmp_path: Path) -> None:
    folder = tmp_path / "falling"
    folder.mkdir()
    path = project(folder, "falling", server=strategy("Falling()", FALLING))
    initial = initial_of(path, tmp_path / "initial.safetensors")
    app = Script(path).make({"partition": 0, "initial": initial})
    start = app.parameters(1)
    rates = []
    for version in range(6):
        made = app.fit(start, FitConfig({"all": version}, 1, {})).parameters["body.bias"]
        rates.append(float(made[0]) / (version + 1))  # the app multiplies by its fits
    assert rates == [0.25, 0.125, 0.125, 0.0625, 0.0625, 0.0625], "the last one stays"


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
    assert trainer._context(trainer._states.newest()).run_config["num-server-rounds"] == 9


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
    given = Served(("b", "a"), "train.x", "", "w", "c", "n", {"k": True}, (Told(1, records),))
    write_served(path, model, given)
    tensors, again = read_served(path)
    assert again == given
    assert sorted(tensors) == ["a", "b"]
    write_state(path, model, {})
    assert read_served(path)[1] is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"names": [1]}',
        "x" * (MOST_BYTES + 1),
        json.dumps({"since": 0}),
        json.dumps(asdict(Served(("w",), "query"))),  # which no site has to allow
        json.dumps(asdict(Served(("w",), "train", "query.ages"))),
        json.dumps(asdict(Served(("w",), "evaluate"))),
    ],
)
def test_what_no_server_can_have_said_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    write_state(path, {"w": np.ones(2)}, {KEY: text})
    with pytest.raises(ConfigError, match="what it says of a ServerApp cannot be read"):
        read_served(path)


def test_records_of_another_kind_or_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    arrays = Told(1, json.dumps([["w", "arrays", {}]]))
    write_served(path, {"w": np.ones(2)}, Served(("w",), fits=(arrays,)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_served(path)
    write_served(path, {"w": np.ones(2)}, Served(("v",)))
    with pytest.raises(ConfigError, match="not those that its ServerApp named"):
        read_served(path)
    long = Served(("w",), fits=(Told(1, json.dumps([["c", "config", {"t": "x" * MOST_BYTES}]])),))
    with pytest.raises(ConfigError, match=r"tells its clients \d+ bytes"):
        write_served(path, {"w": np.ones(2)}, long)


# --- models -----------------------------------------------------------------------


def test_a_strategy_of_the_old_kind_has_initial_parameters(tmp_path: Path) -> None:
    server = """
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

def server_fn(context):
    start = ndarrays_to_parameters([np.full((30, 7), context.run_config["bonus"]), np.zeros(11)])
    return ServerAppComponents(
        strategy=FedAvg(initial_parameters=start), config=ServerConfig(num_rounds=3)
    )

app = ServerApp(server_fn=server_fn)
"""
    client = CLIENT_APP.replace("def get_parameters", "def nothing")
    path = project(tmp_path, "oldkind", client, server)
    initial = initial_of(path, tmp_path / "initial.safetensors", bonus=3)
    app = Script(path).make({"initial": initial})
    assert (app.parameters(1)["arr_0"] == 3).all()


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


# --- the command, check and plan files --------------------------------------------


def test_the_command_writes_what_federations_of_several_machines_need(tmp_path: Path) -> None:
    text = strategy("FedAdam(fraction_train=0.6, min_available_nodes=8)")
    path = project(tmp_path, "command", server=text)
    plan, out = plan_of(tmp_path, path), tmp_path / "out"
    assert "what became of the ServerApp: FedAdam" in said(cli, "flower", plan, "--out", out)
    made = load_plan(out / "plan.toml")
    assert made.section.group[0].optimizer.name == "fedadam"
    assert made.initial_digest
    assert made.section.initial == str(out / "initial.safetensors")
    federation = made.section.federation
    assert federation is not None
    assert found(made, path, {}, 10, UnsafeSeed(3)) is None, "it has run"
    with pytest.raises(ConfigError, match="is there already: name a new folder"):
        prepare(plan, out, UnsafeSeed(1), Console())
    with pytest.raises(ConfigError, match="there is no ServerApp to run"):
        prepare(out / "plan.toml", tmp_path / "again", UnsafeSeed(1), Console())
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="file: cannot write what the ServerApp says: "):
        prepare(plan, tmp_path / "file", UnsafeSeed(1), Console())


def test_check_says_what_becomes_of_a_strategy(tmp_path: Path) -> None:
    path = project(tmp_path, "checked", server=strategy("FedYogi()"))
    explanation = check(plan_of(tmp_path, path), permit=Permit(run_script=True))
    assert [group.values for group in explanation.groups] == [30 * 7 + 3 + 1]
    assert any("server optimizer (fedyogi): optimizer: name" in r for r in explanation.remarks)


def test_the_plans_of_the_page_are_plans(tmp_path: Path) -> None:
    """The least one, and that with what it may report."""
    page = (ROOT / "docs" / "flower.md").read_text()
    least, reports = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "quickstart-pytorch").mkdir()
    project(tmp_path / "quickstart-pytorch", "quickest", server=strategy("FedAvg()"))
    for text in (least, least + reports):
        explanation = check(write(tmp_path, text, "plan.toml"), permit=Permit(run_script=True))
        sizes = [group.values for group in explanation.groups if group.name != "evaluation"]
        assert sizes[-1:] == [30 * 7 + 3 + 1]
        assert any("the plan's" in remark for remark in explanation.remarks)


@pytest.mark.parametrize("name", ["digits", "digits_numpy", "ctr_up", "digits_client"])
def test_a_plan_that_is_written_is_the_plan_that_was_read(name: str, tmp_path: Path) -> None:
    path = ROOT / "policies" / f"{name}.toml"
    read = load_plan(path)
    body = read.section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    copy = write(tmp_path, toml_tables(body), "plan.toml")
    assert load_plan(copy) == read
    assert load_plan(copy).text == read.text
    assert tomllib.loads(copy.read_text()) == json.loads(json.dumps(read_toml(path)))
