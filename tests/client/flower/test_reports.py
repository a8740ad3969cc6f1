"""What a Flower app says beside its evaluation: of its training, and to queries of its own."""

import re
from pathlib import Path

import numpy as np
import pytest

from secureps.client.flower.script import FlowerTrainer
from secureps.client.script import Script
from secureps.client.trainer import EvaluateResult, FitConfig, Setting
from secureps.errors import ConfigError
from secureps.run.up.folder import client_names
from secureps.store.checkpoint import write_state
from tests.kits.evaluations import FINE, metrics_of
from tests.kits.federations import small_federation, small_plan
from tests.kits.flower_apps import CLIENT_APP, MESSAGES, initial_of, project, write
from tests.kits.nursery import ROOT

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
