"""`secureps study`: rules judged by virtual time, over several seeds."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from secureps.errors import ConfigError, OperatorError, PlanRefused, RuleFailed
from secureps.run.simulate.scenario_file import load_scenario
from secureps.run.simulate.simulation import simulate
from secureps.run.study import (
    CHECKPOINT_EVERY,
    ENDLESS,
    Outcome,
    Point,
    StudyResults,
    Trial,
    _candidates,
    _found_variant,
    find_crossing,
    make_plan,
    markdown,
    play,
    section_of,
    study,
)
from tests.kits.flower_apps import SERVER, project
from tests.kits.nursery import ROOT
from tests.kits.polling import until

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np
from secureps import EvaluateResult, FitResult

X = np.random.default_rng(7).normal(size=(600, 30))
Y = X.sum(axis=1) > 0

class Line:
    def __init__(self, mine):
        self.x, self.y = X[mine], Y[mine]

    def parameters(self, seed):
        return {"coef": np.zeros(30, np.float32)}

    def fit(self, parameters, config):
        chances = 1 / (1 + np.exp(-self.x @ parameters["coef"]))
        step = config.settings["lr"] * (self.x.T @ (self.y - chances)).astype(np.float32)
        return FitResult({"coef": parameters["coef"] + step}, len(self.y))

    def evaluate(self, parameters):
        right = (self.x @ parameters["coef"] > 0) == self.y
        return EvaluateResult(None, len(self.y), {"accuracy": float(right.mean())})

def make(settings):
    return Line(slice(settings["partition"], 500, settings["partitions"]))

def make_evaluator(settings):
    return Line(slice(500, 600))
"""
"""A data holder that imports nothing: a study's workers are interpreters of their own."""
PLAN = """
name = "few"
versions = 5
block_size = 4096
[cipher]
name = "rlwe"
capacity = 32
[[group]]
clip = 4.0
most_examples = 512
rule = { quorum = 4, minimum = 4 }
[training]
lr = 0.01
local_epochs = 1
"""
SCENARIO = """
name = "few"
plan = "plan.toml"
script = "holder.py"
clients = 6
downtime = 10.0
[settings]
partitions = 6
[delays]
device = { kind = "lognormal", median = 1.0, sigma = 0.5 }
train = { kind = "lognormal", median = 8.0, sigma = 0.3 }
network = 0.1
dropout = 0.1
[study]
target = 0.6
hold = 2
every = 5.0
seconds = 200.0
seeds = [1, 2]
baseline = "rounds"
[[study.variant]]
name = "rounds"
rules = [
    { quorum = 4, minimum = 4, deadline = 10.0 },
    { quorum = 4, minimum = 4, deadline = 30.0 },
]
[[study.variant]]
name = "alone"
rates = [0.5]
rules = [{ name = "async" }]
"""


def scenario(folder: Path, old: str = "", new: str = "") -> Path:
    (folder / "plan.toml").write_text(PLAN)
    (folder / "holder.py").write_text(SCRIPT)
    assert old in SCENARIO
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.replace(old, new, 1) if old else SCENARIO)
    return path


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def points(*scores: float) -> tuple[Point, ...]:
    return tuple(Point(5.0 * (i + 1), score, i) for i, score in enumerate(scores))


def test_a_study_is_one_table_and_one_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = scenario(tmp_path), tmp_path / "out"
    rounds, alone = study(path, out, 2)
    lines = [line for line in said(capsys) if line.startswith("[")]
    assert len(lines) == 6, "2 tuned, 2 + 2 judged: all counted; one has no choice"
    assert (rounds.variant, rounds.times) == ("rounds", 1.0)
    assert alone.settings == "rate 0.5"
    assert len(rounds.seconds) == len(alone.seconds) == 2, "a target that all reach"
    assert rounds.median is not None
    assert alone.median is not None
    assert alone.times == rounds.median / alone.median
    assert rounds.settings in ("deadline 10.0", "deadline 30.0")
    assert (out / "study.png").read_bytes().startswith(b"\x89PNG")
    table = (out / "table.md").read_text()
    assert table.count("\n") == 6
    assert "| rounds | deadline" in table
    assert len(list(out.iterdir())) == 2
    with pytest.raises(ConfigError, match="is not empty"):
        simulate(path, out)


def test_a_trial_is_a_function_of_its_seed_and_ends_at_its_target(tmp_path: Path) -> None:
    path = scenario(tmp_path, "target = 0.6", "target = 0.9")
    one, same = (play(path, Trial("rounds", 1, seed=1, limit=200.0)) for _ in range(2))
    assert one.points == same.points
    assert one.reached is not None
    assert [p.score >= 0.9 for p in one.points[-2:]] == [True, True]
    assert one.points[-2].seconds == one.reached, "the first of two in a row, and then no more"
    late = play(path, Trial("rounds", 1, seed=1, limit=one.reached - 5.0))
    assert late.reached is None, "given up"
    assert late.points == one.points[: len(late.points)]


def test_what_a_trial_without_an_end_keeps_does_not_grow_with_its_versions(tmp_path: Path) -> None:
    plan = make_plan(load_scenario(scenario(tmp_path)), Trial("rounds", 1)).section
    assert (plan.versions, plan.checkpoint_every) == (ENDLESS, CHECKPOINT_EVERY)
    assert plan.cipher.name == "plain", "no bytes take time"


def test_the_time_is_of_the_first_of_enough_in_a_row() -> None:
    scores = points(0.5, 0.9, 0.8, 0.9, 0.95)
    assert find_crossing(scores, 0.9, 1) == 10.0
    assert find_crossing(scores, 0.9, 2) == 20.0
    assert find_crossing(scores, 0.9, 3) is None
    assert find_crossing((), 0.9, 1) is None


def test_rows_compare_medians_and_who_never_arrives_counts(tmp_path: Path) -> None:
    own = section_of(load_scenario(scenario(tmp_path, "seeds = [1, 2]", "seeds = [1, 2, 3]")))
    results = StudyResults(own)
    rounds, alone = Trial("rounds", 0), Trial("alone", 0, rate=0.5)
    for seed, sooner, later in ((1, 10.0, None), (2, 5.0, 40.0), (3, 20.0, 60.0)):
        results.take(replace(alone, seed=seed, limit=200.0), Outcome(sooner, points(0.1, 0.7), 1.0))
        results.take(replace(rounds, seed=seed, limit=200.0), Outcome(later, points(0.1, 0.7), 1.0))
    base, sooner_row = results.rows()
    assert (base.seconds, base.median, base.times) == ((40.0, 60.0), 60.0, 1.0)
    even = StudyResults(own.model_copy(update={"seeds": (2, 3)}))
    for seed, reached in ((2, 65.0), (3, 90.0)):
        for candidate in (rounds, alone):
            even.take(
                replace(candidate, seed=seed, limit=200.0), Outcome(reached, points(0.1, 0.7), 1.0)
            )
    assert even.rows()[0].median == 77.5
    assert (sooner_row.median, sooner_row.times) == (10.0, 6.0)
    table = markdown(own, results.rows()).splitlines()
    assert "| 60 | 40 - 60 | 2 of 3 | 1.00 |" in table[4]
    assert results.cpu == 6.0

    results.take(replace(rounds, seed=2, limit=200.0), Outcome(None, points(0.1), 1.0))
    base, sooner_row = results.rows()
    assert (base.median, base.times, sooner_row.times) == (None, None, None)
    assert "| not in 200 |" in markdown(own, results.rows())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('baseline = "rounds"', 'baseline = "sync"', "no variant 'sync'"),
        ('name = "alone"', 'name = "rounds"', "two have the same name"),
        ("seeds = [1, 2]", "seeds = [0, 1]", "seed 0 would be tuned on and judged on"),
        ("seeds = [1, 2]", "seeds = []", "study.seeds"),
        ("seeds = [1, 2]", "seeds = [1, 2, 1]", "study.seeds: 1 is there twice"),
        ("seconds = 200.0", "seconds = inf", "study.seconds: must be a finite number"),
        ("rates = [0.5]", "rates = [0]", "study.variant 2.rates"),
        ('name = "async"', 'name = "asynch"', r"no such rule, .asynch.; did you mean async\?"),
        ("deadline = 30.0", "start = 7", "6 take part, but a version waits for 7"),
        ("quorum = 4, minimum = 4, d", "quorum = 4, minimum = 5, d", "variant rounds-1: "),
        ("clients = 6", "clients = 6\n[delays.dropping]", "delays"),
        ('name = "alone"', 'name = "alone"\ndeadlines = [0]', "study.variant 2.deadlines"),
        ('name = "alone"', 'name = "alone"\nplan = "none.toml"', "none.toml: no such file"),
    ],
)
def test_a_study_that_is_not_right_is_refused(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, PlanRefused), match=reason):
        study(scenario(tmp_path, old, new), tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_a_scenario_without_a_study_compares_nothing(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().split("[study]")[0])
    with pytest.raises(ConfigError, match=r"no section \[study\]"):
        study(path, tmp_path / "out", 2)


RULE = """
from secureps.policy.rules.rule import Admit
class Raises:
    def __init__(self, minimum): pass
    def enter(self, state): return 0
    def admit(self, now, member, state): return Admit("come")
    def decide(self, now, arrivals, state): raise KeyError("oops")
"""


def test_a_rule_that_fails_is_no_trial_and_no_report_of_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising.py").write_text(RULE)
    monkeypatch.syspath_prepend(tmp_path)  # of the workers, too
    path = scenario(tmp_path, '{ name = "async" }', '{ name = "raising:Raises", minimum = 4 }')
    raised = r"decide raised KeyError: 'oops' \(raising.py:7 in decide\)$"
    failed = f"the rule failed: raising:Raises: {raised}"
    out, text = tmp_path / "out", path.read_text()
    path.write_text(text[: text.index("[[study.variant]]")].replace('"rounds"', '"alone"'))
    path.write_text(path.read_text() + text[text.rindex("[[study.variant]]") :])
    with pytest.raises(RuleFailed, match=f"^variant alone: {failed}"):
        study(path, out, 1)
    assert not list(out.iterdir())
    with pytest.raises(RuleFailed, match=f"^{failed}"):
        play(path, Trial("alone", 0, seed=1, limit=200.0))
    plan = (tmp_path / "plan.toml").read_text()
    rule = "{ quorum = 4, minimum = 4 }"
    assert rule in plan
    (tmp_path / "plan.toml").write_text(plan.replace(rule, '{ name = "raising:Raises" }'))
    with pytest.raises(RuleFailed, match=f"^{failed}"):
        simulate(path, tmp_path / "report", lambda line: None)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert (summary["failure"], summary["versions"]) == ("RuleFailed", {"all": 0})


def test_a_measure_that_the_script_does_not_have_is_named(tmp_path: Path) -> None:
    path = scenario(tmp_path, "target = 0.6", 'target = 0.6\nmeasure = "auc"')
    with pytest.raises(ConfigError, match="no 'auc'; the script has accuracy"):
        play(path, Trial("alone", 0, seed=1, limit=50.0))


PLANS = """
baseline = "rounds"
[[study.variant]]
name = "rounds"
deadlines = [20.0, 30.0]
[[study.variant]]
name = "large"
plan = "large.toml"
"""


def test_variants_are_whole_plans_and_bytes_take_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the plan's own cipher, whose bytes they are."""
    path = scenario(tmp_path, "network = 0.1", "bandwidth = 2e4\nnetwork = 0.1")
    text = path.read_text().replace("seconds = 200.0", "seconds = 60.0")
    path.write_text(text[: text.index("baseline =")] + PLANS)
    (tmp_path / "large.toml").write_text(PLAN.replace("capacity = 32", "capacity = 64"))
    loaded = load_scenario(path)
    (first, second), (large,) = (list(_candidates(v)) for v in section_of(loaded).variant)
    assert [each.name for each in (first, second, large)] == [
        "rounds-within-20",
        "rounds-within-30",
        "large",
    ]
    plans = [make_plan(loaded, each).section for each in (first, second, large)]
    assert [plan.group[0].rule.deadline for plan in plans] == [20.0, 30.0, 60.0]
    assert [plan.cipher.capacity for plan in plans] == [32, 32, 64]
    assert {plan.cipher.name for plan in plans} == {"rlwe"}
    study(path, tmp_path / "out", 1)
    lines = [line for line in said(capsys) if line.startswith("[")]
    assert len(lines) == 6, "2 tuned, 2 + 2 judged"
    assert any("large-seed-1: accuracy 0.6 after " in line for line in lines)


def test_a_trial_whose_process_ends_is_told_of(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    script = tmp_path / "holder.py"
    script.write_text(script.read_text() + "\nimport os\ndef make(settings):\n    os._exit(9)\n")
    died = r"-seed-\d died with exit status 9; see "
    with pytest.raises(OperatorError, match=died):
        study(path, tmp_path / "out", 2)


def test_a_server_app_founds_every_trial_as_it_founds_a_run(tmp_path: Path) -> None:
    own = "FedAdam(eta=0.5, min_available_nodes=4)"
    server = SERVER.replace("FedAvg(fraction_evaluate=0.5, min_available_nodes=20)", own)
    server = server.replace("import FedAvg", "import FedAdam")
    app = project(tmp_path, "studied", server=server)
    path = scenario(tmp_path, 'script = "holder.py"', f'script = "{app}"')
    text = path.read_text().replace("target = 0.6", 'measure = "eval_loss"\ntarget = 1.5')
    path.write_text(text.replace("[settings]\npartitions = 6\n", ""))
    assert play(path, Trial("rounds", 0, seed=1, limit=200.0)).reached == 0.0
    played, one = load_scenario(path), Trial("rounds", 0, None, 0.25)
    folder = tmp_path / "founded"
    folder.mkdir()
    plan = make_plan(_found_variant(played, replace(one, seed=1, limit=200.0), str(folder)), one)
    optimizer = plan.section.group[0].optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("fedadam", 0.25)
    assert plan.initial_digest


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_worker_outlives_its_study(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path, temporary = scenario(tmp_path, "target = 0.6", "target = 2.0"), tmp_path / "temporary"
    path.write_text(path.read_text().replace("seconds = 200.0", "seconds = 1e9"))
    temporary.mkdir()
    options = ("--out", tmp_path / "out", "--workers", "1")
    played = subprocess.Popen(
        [sys.executable, "-m", "secureps", "study", path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    )
    until(lambda: list(temporary.glob("tmp*/*")))  # its trial is being played
    workers = psutil.Process(played.pid).children(recursive=True)
    assert len(workers) >= 2, "what starts trials, and one trial"
    played.send_signal(number)
    _, alive = psutil.wait_procs(workers, timeout=20)
    for each in alive:
        each.kill()
    said = played.communicate(timeout=20)[0]
    assert not alive
    assert played.returncode == code, said
    assert "plays 6 trials at most, 1 at a time; up to 1e+09 virtual seconds each\n" in said
    if number != signal.SIGKILL:
        assert "Traceback" not in said
    assert not list(temporary.glob("tmp*")), "its trial's files"
