"""`secureps check`: a page for people, JSON for programs, one line for what is unsound."""

import io
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from secureps.errors import ConfigError, PlanRefused, ScriptFailed
from secureps.policy.explain.explanation import Explanation
from secureps.policy.memory import MemoryUse
from secureps.policy.plan import load_plan
from secureps.run.check import Permit, assume_service, check, record, tables
from secureps.run.cli import app
from secureps.run.initial_schema import read_values
from secureps.run.simulate.scenario_file import load_scenario
from tests.kits.command import invoked
from tests.kits.nursery import ROOT, supervise_children

SCENARIOS = sorted((ROOT / "simulations").glob("*.toml"))
PLAN = """
name = "small"
versions = 3
[cipher]
name = "bfv"
capacity = 8
[[group]]
rule = { quorum = 6 }
"""

FLOWER = find_spec("flwr") is not None
"""Not beside the newest of other libraries: `make ranges`."""


@pytest.fixture(autouse=True)
def forked_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's process begins where torch is imported: most of what a check takes here."""
    supervise_children(
        monkeypatch,
        *("secureps.run.script.scoring", "secureps.client.torch", "sklearn.datasets"),
        *("opacus.validators", *(["secureps.client.flower.script"] if FLOWER else [])),
    )


RUN = Permit(run_script=True)


def write(folder: Path, text: str = PLAN) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def printed(explanation: Explanation, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for part in tables(explanation):
        console.print(part)
    return console.export_text()


def shard(explained: Explanation) -> MemoryUse:
    assert explained.shard is not None
    return explained.shard


@pytest.mark.slow
def test_the_place_of_an_indicator_counts_as_a_value(tmp_path: Path) -> None:
    private = """
weighting = "uniform"
adaptive = {}
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 100.0
"""
    explained = check(write(tmp_path, PLAN + private), 1000)
    assert explained.groups[0].values == 1001
    assert any("the clip begins at 1 " in remark for remark in explained.remarks)


def test_a_plan_that_names_no_script_says_that_none_was_run(tmp_path: Path) -> None:
    assert "--run-script ran none" in check(write(tmp_path), permit=RUN).unknown[-1]
    assert "--run-script" not in "".join(check(write(tmp_path)).unknown)


@pytest.mark.slow
def test_the_models_size_comes_from_the_option_the_file_or_the_script(tmp_path: Path) -> None:
    assert check(write(tmp_path), 1000).groups[0].values == 1000
    save_file({"a": np.zeros((3, 4), np.float32)}, tmp_path / "start.safetensors")
    path = write(tmp_path, 'initial = "start.safetensors"\n' + PLAN)
    assert check(path).groups[0].values == 12
    (tmp_path / "shapes.json").write_text('{"a": [5, 4], "b": []}')
    assert check(path, schema=tmp_path / "shapes.json").groups[0].values == 21
    digits = ROOT / "policies" / "digits_plain.toml"
    assert check(digits, permit=RUN).groups[0].values == 9610
    with pytest.raises(ConfigError, match=r"^--values, --run-script: each says how large"):
        check(digits, 10, permit=RUN)


def test_what_nobody_said_is_unknown_and_the_rest_is_said(tmp_path: Path) -> None:
    """Epsilon of records needs no size, and of clients it does."""
    records = check(ROOT / "policies" / "digits.toml")
    whole = check(ROOT / "policies" / "digits.toml", 9610)
    assert records.price is not None
    assert whole.price is not None
    assert records.price.epsilon_run == whole.price.epsilon_run == pytest.approx(7.860, abs=1e-3)
    assert (records.collusion, records.rules, records.digest) == (
        *(whole.collusion, whole.rules),
        whole.digest,
    )
    assert (records.shard, records.committee, records.groups[1].values) == (None, None, None)
    assert records.groups[1].cohort == (5, 32)
    size_is, script_is = records.unknown
    assert size_is.startswith("how large the model is, and so what an update costs, what servers")
    assert "give --values N, or --schema FILE" in size_is
    assert size_is.endswith("; or have --run-script run the plan's script, which makes the model")
    assert script_is.startswith(f"whether {ROOT / 'policies' / '../clients/digits_torch.py'} takes")
    assert [text in whole.unknown for text in records.unknown] == [False, True]
    text = (ROOT / "policies" / "digits.toml").read_text()
    (*_, gone) = check(write(tmp_path, text)).unknown
    assert gone.startswith(
        f"whether {tmp_path / '../clients/digits_torch.py'}, which is not there,"
    )
    clients = check(ROOT / "policies" / "digits_client.toml")
    assert clients.price is not None
    assert (clients.price.epsilon_run, clients.price.versions) == (None, None)
    assert "what privacy spends" in clients.unknown[0]
    page = printed(clients, 200)
    assert re.search(r"\u2502 budget +\u2502 9 +\u2502", page), (
        "how many versions follows from the size"
    )
    for line in ("epsilon of the run", "values", "up per update"):
        (row,) = [row for row in page.splitlines() if row.startswith(f"\u2502 {line} ")]
        assert "unknown" in row
    assert "unknown: how large the model is" in page
    assert ": sound, but for what is unknown (see the end). 10 versions" in page


@pytest.mark.slow
@pytest.mark.skipif(not FLOWER, reason="Flower is not installed")
def test_a_flower_app_is_measured_and_has_no_record_privacy(tmp_path: Path) -> None:
    flower = ROOT / "policies" / "digits_numpy.toml"
    assert check(flower, permit=RUN).groups[0].values == 650
    text = (ROOT / "policies" / "digits.toml").read_text().replace("alpha = 0.5", "")
    script = str(ROOT / "clients" / "digits_numpy.py")
    path = write(tmp_path, text.replace("../clients/digits_torch.py", script))
    with pytest.raises(PlanRefused, match="a promise about every training step"):
        check(path, permit=RUN)


@pytest.mark.slow
def test_the_page_says_what_the_record_says(tmp_path: Path) -> None:
    explanation = check(ROOT / "policies" / "digits.toml", permit=RUN)
    page = printed(explanation, 400)
    assert "digits: sound. 15 versions under rlwe, 2 shards." in page
    assert explanation.price is not None
    for said in ("key holder", "7.860", "1.06 x", "enough for 15 versions", *explanation.collusion):
        assert said in page
    for said in (explanation.price.against, explanation.opened, "6 clients connected", "+- 1 "):
        assert said in page
    read = json.loads(json.dumps(record(explanation)))
    assert read["price"]["epsilon_run"] == explanation.price.epsilon_run
    assert read["price"]["deviation"] == explanation.price.deviation
    assert read["shard"]["memory"] == shard(explanation).memory
    assert read["collusion"] == list(explanation.collusion)
    assert read["opened"] == explanation.opened


def test_what_a_shards_memory_holds_is_said_before_a_run(tmp_path: Path) -> None:
    plan = write(tmp_path)
    free, tight = shard(check(plan, 1_000_000)), shard(check(plan, 1_000_000, "12 MiB"))
    assert (free.limit, tight.limit) == (None, 12 << 20)
    assert tight.state < free.state
    assert tight.files == free.files
    inside = plan.read_text() + '[federation]\nscript = "x.py"\nclients = 6\nmemory = "9 MB"\n'
    assert assume_service(load_plan(write(tmp_path, inside))).memory == 9_000_000
    with pytest.raises(ConfigError, match='it works with "2 MiB" or more'):
        check(write(tmp_path), 1_000_000, "1 MiB")
    with pytest.raises(ConfigError, match="--memory: 'much' is not a number with kB"):
        check(plan, 1_000_000, "much")


def test_what_is_needed_when_the_load_has_left_the_fewest_shards_is_on_the_page(
    tmp_path: Path,
) -> None:
    scaled = 'shards = 4\nblock_size = 65536\n[scaling]\npolicy = "rule"\nleast_shards = 2\n'
    explanation = check(write(tmp_path, PLAN.replace("[cipher]", scaled + "[cipher]")), 1_000_000)
    assert shard(explanation).shards == 2
    page = printed(explanation, 400).splitlines()
    assert any("needs at its peak, about, with 2 shards and" in line for line in page)


def test_the_page_of_a_committee(tmp_path: Path) -> None:
    explanation = check(write(tmp_path, PLAN.replace("bfv", "rlwe")), 100_000)
    page = printed(explanation, 400)
    cost = explanation.committee
    assert cost is not None
    for said in (
        "3 of 4",
        "a malicious aggregator with 1 corrupt key holder",
        f"N = {cost.degree}, q of {cost.modulus_bits} bits",
        "128 bits, classical",
        "table 5.2",
        f"the ring: {cost.core_svp[1]:.0f} bits of core-SVP against a quantum computer",
        "ML-KEM-768 in envelopes and TLS: 160",
        f"bits up to {cost.bits}, or capacity {cost.capacity}",
        "key holder, each of 4",
        *explanation.collusion,
    ):
        assert said in page, said
    read = json.loads(json.dumps(record(explanation)))
    assert read["committee"]["down"] == cost.down
    bfv = check(write(tmp_path), 100_000)
    assert json.loads(json.dumps(record(bfv)))["committee"] is None
    assert shard(explanation).program > shard(bfv).program


@pytest.mark.slow
def test_every_preset_is_explained() -> None:
    """A plan with a script by itself, one without by the scenario that plays it."""
    played = {load_scenario(path).plan.section.name: path for path in SCENARIOS}
    for path in sorted((ROOT / "policies").glob("*.toml")):
        plan = load_plan(path)
        assert plan.section.federation is not None or plan.section.name in played, path
        if len(plan.groups) == 1:
            explanation = check(path, 1000)
        else:
            source = path if plan.section.federation else played[plan.section.name]
            explanation = check(source, permit=RUN)
        assert printed(explanation, 100)
    fifty = check(ROOT / "simulations" / "digits.toml", permit=RUN)
    assert (fifty.name, fifty.groups[0].values, shard(fifty).clients) == ("digits-50", 9610, 50)


def test_it_says_how_long_an_update_takes_on_a_client_s_link(tmp_path: Path) -> None:
    link = ("--values", "1000", "--up", "0.5", "--down", "0.25")
    result = invoked(app, "check", write(tmp_path), *link, "--json")
    (group, *_) = json.loads(result.output)["groups"]
    assert group["seconds_up"] == pytest.approx(8 * group["bytes_up"] / 0.5e6)
    assert group["seconds_down"] == pytest.approx(8 * group["bytes_down"] / 0.25e6)
    twice = check(write(tmp_path), 2000).groups[0]
    assert twice.client_cpu == pytest.approx(2 * group["client_cpu"])
    assert twice.server_cpu == pytest.approx(2 * group["server_cpu"])
    page = invoked(app, "check", write(tmp_path), *link).output
    assert "time up, 0.5 Mbit/s" in page
    assert "client's CPU, about" in page
    unknown = check(write(tmp_path)).groups[0]
    assert (unknown.seconds_up, unknown.client_cpu) == (None, None)
    for wrong in ("0", "nan", "-1"):
        refused = invoked(app, "check", write(tmp_path), "--values", "1000", "--up", wrong)
        assert refused.exit_code == 1
        assert "--down 100: a link carries more than 0 Mbit/s" in str(refused.exception)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("lr = 4.0", "learning_rate = 4.0", "training: learning_rate: unknown key"),
        ("lr = 4.0", 'lr = "fast"', 'training: lr: must be a number, and is "fast"'),
        (
            "start = 6",
            "start = 9",
            r"6 take part, but .* waits for 9: raise it, or lower start, quorum and minimum",
        ),
    ],
)
def test_what_would_fail_at_the_clients_fails_here(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    text = (ROOT / "policies" / "digits.toml").read_text()
    assert old in text
    path = tmp_path / "digits.toml"
    path.write_text(text.replace(old, new).replace("../clients", str(ROOT / "clients")))
    with pytest.raises(ConfigError, match=reason):
        check(path, permit=RUN)
    if "start" not in old:  # who knows only the plan is told what cannot be said
        explained = check(path, 10_000)
        assert explained.price is not None
        assert not explained.price.noise
        assert any("training.lr is no number above 0" in text for text in explained.remarks)
        assert "nan" not in "".join(map(str, explained.remarks))


BATCH_NORM = """
import numpy as np
from torch import nn
from secureps.client.torch import TorchTrainer

def model():
    first = nn.Linear(6, 60)
    first.requires_grad_(False)
    return nn.Sequential(first, nn.BatchNorm1d(60), nn.Linear(60, 2))

def make(settings):
    x = np.zeros((4, 6), np.float32)
    y = np.zeros(4, np.int64)
    return TorchTrainer(model, (x, y), (x, y), device="cpu")
"""
BUDGET = "noise_multiplier = 3.0\ndelta = 1e-5\nbudget = 1000.0\n"
RECORDS = f"[privacy]\n{BUDGET}max_grad_norm = 1.0\nsample_rate = 0.5\nrecords = 200\n"
CLIENTS = f'[privacy]\n{BUDGET}unit = "client"\nplacement = "local"\n'


@pytest.mark.parametrize(
    ("privacy", "reason"),
    [
        (RECORDS, r"layer '1' \(BatchNorm1d\) cannot be trained: it mixes the records.*GroupNorm"),
        (
            CLIENTS,
            r"'1\.running_mean' and 1 more: .* local = \[\"\*running_mean\", \"\*running_var\"\]",
        ),
        ("", ""),
    ],
)
def test_batch_norm_under_privacy_is_refused_before_anything_trains(
    tmp_path: Path, privacy: str, reason: str
) -> None:
    (tmp_path / "script.py").write_text(BATCH_NORM)
    rule = "rule = { quorum = 6 }\n"
    uniform = 'weighting = "uniform"\n' if privacy == CLIENTS else ""
    federation = '[federation]\nscript = "script.py"\nclients = 6\n'
    training = "[training]\nlr = 0.1\nlocal_steps = 2\n"
    text = PLAN.replace(rule, f"{uniform}{rule}{privacy}{training}{federation}")
    path = write(tmp_path, text)
    if reason:
        with pytest.raises(PlanRefused, match=reason):
            check(path, permit=RUN)
        return
    (told,) = [each for each in check(path, permit=RUN).remarks if "train together" in each]
    assert "only 362 of the model's 783 values train together" in told
    assert "'0.bias' for one" in told


REFUSES = """
import secureps as ps
def make(settings):
    raise ps.ConfigError(f"{settings['rows']} rows are too few")
"""


def test_what_a_script_refuses_names_the_script_and_what_a_plan_sets_the_plan(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(REFUSES)
    federation = '[federation]\nscript = "script.py"\nclients = 6\nsettings = { rows = 3 }\n'
    path = write(tmp_path, PLAN + federation)
    with pytest.raises(ConfigError) as refused:
        check(path, permit=RUN)
    assert str(refused.value) == f"{tmp_path / 'script.py'}: 3 rows are too few"
    (tmp_path / "script.py").write_text("def make(settings): return settings.get('row')\n")
    with pytest.raises(ConfigError, match=f"^{path}: setting 'rows' is not known"):
        check(path, permit=RUN)


NOISY = """
[evaluation]
every = 1
metrics = { accuracy = 1.0, loss = 10.0 }
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 3.0
delta = 1e-5
budget = 1000.0
"""


def page(path: Path, values: int) -> str:
    return printed(check(path, values), 200)


def test_the_page_says_noise_in_a_metrics_unit_and_warns_where_there_is_little(
    tmp_path: Path,
) -> None:
    sound = PLAN + 'weighting = "uniform"\n' + NOISY
    text = page(write(tmp_path, sound), 1000)
    for metric, noise in (("accuracy", "1.9"), ("loss", "19")):
        (line,) = [line for line in text.splitlines() if f"noise on metric {metric}" in line]
        assert f"+- {noise} (standard deviation" in line
    assert "coordinate of evaluation" not in text
    assert "WARNING" not in text
    weak = sound.replace("noise_multiplier = 3.0", "noise_multiplier = 0.4").replace("1e-5", "0.01")
    found = page(write(tmp_path, weak), 1000)
    assert "\nWARNING: the plan's delta is 0.01, above 1e-05" in found
    assert "\nWARNING: the plan's noise_multiplier is 0.4, below 0.5" in found


def test_a_folder_and_a_text_are_no_plans() -> None:
    with pytest.raises(ConfigError, match="policies: Is a directory; name a file in it"):
        check(ROOT / "policies")
    with pytest.raises(ConfigError, match=r"README\.md: no TOML file: "):
        check(ROOT / "README.md")


LINE = """
import numpy as np
import secureps as ps

class Line:
    def __init__(self, count):
        self.count = count

    def examples(self):
        return self.count

    def parameters(self, seed):
        return {"weight": np.zeros(4, np.float32)}

    def fit(self, parameters, config):
        assert config.privacy is None or config.privacy.noise_multiplier < 1e-6
        moved = {"weight": parameters["weight"] + np.float32(0.25)}
        return ps.FitResult(moved, self.count, {}, int(config.settings["local_steps"]))

    def evaluate(self, parameters):
        return ps.EvaluateResult(LOSS, self.count, {"accuracy": 0.25})

def make(settings):
    return Line(40 + 100 * settings["partition"])
"""
FEDERATED = '[training]\nlr = 0.5\nlocal_steps = 2\n[federation]\nscript = "line.py"\nclients = 6\n'
EVALUATED = "[evaluation]\nevery = 1\nmetrics = { accuracy = 1.0, loss = 10.0 }\n"
PRIVATE = "[privacy]\nmax_grad_norm = 1.0\nsample_rate = 0.2\nrecords = 300\ndelta = 1e-5\n"


def lined(folder: Path, more: str, loss: object = 0.5) -> Path:
    (folder / "line.py").write_text(LINE.replace("LOSS", str(loss)))
    return write(folder, PLAN + more + FEDERATED)


def test_the_lines_for_an_epsilon_may_be_written_as_they_are(tmp_path: Path) -> None:
    """The command finds noise where the plan has none; with its lines the plan spends so much."""
    path = lined(tmp_path, PRIVATE)
    with pytest.raises(ConfigError, match=r"noise_multiplier: is missing; .* --epsilon 3 finds it"):
        check(path)
    command = [sys.executable, "-m", "secureps", "check", str(path), "--epsilon", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    assert lines[0] == "[privacy]"
    written = path.read_text().replace("[privacy]", "\n".join(lines))
    path.write_text(written)
    price = check(path).price
    assert price is not None
    assert price.epsilon_run is not None
    assert 2.9 < price.epsilon_run <= 3.0 == price.budget
    more = check(path, epsilon=3.0).choice
    assert more is not None
    assert more.versions >= 3, "the noise is stated now, and lasts for as many"
    less = subprocess.run([*command[:-1], "2.8"], capture_output=True, text=True, check=True)
    assert "    versions = 2\n" in less.stdout
    assert re.search(r"\nOr: noise_multiplier = [\d.]+ lasts for all versions", less.stdout)


def test_an_epsilon_of_clients_needs_the_models_size(tmp_path: Path) -> None:
    path = write(tmp_path, PLAN + NOISY.replace("noise_multiplier = 3.0\n", ""))
    with pytest.raises(ConfigError, match="--epsilon: under client-level privacy it depends"):
        check(path, epsilon=3.0)
    choice = check(path, 1000, epsilon=3.0).choice
    assert choice is not None
    assert choice.spends <= 3.0
    with pytest.raises(ConfigError, match=r"--epsilon: the plan has no \[privacy\]"):
        check(write(tmp_path), 1000, epsilon=3.0)


def test_the_noise_is_held_against_an_update_of_the_script(tmp_path: Path) -> None:
    path = lined(tmp_path, PRIVATE)
    tried, longest = check(path, permit=RUN, epsilon=8.0).price, check(path, 4, epsilon=8.0).price
    assert tried is not None
    assert longest is not None
    assert tried.update == {
        "all": "an update that was tried (0.5, of real records and without noise: keep it here)"
    }
    assert longest.update == {"all": "the longest update (lr x local_steps x max_grad_norm = 1)"}
    assert tried.noise["all"] == pytest.approx(2 * longest.noise["all"], rel=1e-6)


def test_evaluate_is_called_and_held_against_the_plan(tmp_path: Path) -> None:
    check(lined(tmp_path, EVALUATED), permit=RUN)
    path = lined(tmp_path, EVALUATED.replace("accuracy", "acuracy"))
    text = r"evaluation\.metrics: .* nothing called 'acuracy'; did you mean accuracy\?"
    with pytest.raises(PlanRefused, match=text):
        check(path, permit=RUN)
    check(path)
    (told,) = (
        each
        for each in check(lined(tmp_path, EVALUATED, loss=23.0), permit=RUN).remarks
        if each.startswith("evaluation.metrics")
    )
    assert told.startswith("evaluation.metrics: loss of version 0 is 23, and a client sends 10 at ")
    coarse = "evaluation: a mean of "
    fine = [r for r in check(path, permit=RUN).remarks if r.startswith(coarse)]
    assert fine == []
    path = lined(tmp_path, EVALUATED.replace("10.0", "1e6"))
    (told_so,) = (r for r in check(path, permit=RUN).remarks if r.startswith(coarse))
    members, bits = 5, 16
    text = (
        f"{members} clients like the one tried keeps {bits:.1f} of {bits} bits: loss, 0.5 of "
        f"version 0, is told in steps of {2e6 / 2**bits:.2g}; take a magnitude smaller than 1e+06"
    )
    assert told_so.startswith(coarse + text)
    few = EVALUATED + "most_examples = 1000000\n"
    (told_so,) = (r for r in check(lined(tmp_path, few), permit=RUN).remarks if coarse in r)
    assert "take a most_examples nearer to " in told_so
    with pytest.raises(ScriptFailed, match=r"metric 'loss' is nan"):
        check(lined(tmp_path, EVALUATED, loss='float("nan")'), permit=RUN)


def test_what_a_script_may_return_it_may_return_to_check(tmp_path: Path) -> None:
    """Lists for arrays and None for metrics, as in a run."""
    path = lined(tmp_path, PRIVATE + EVALUATED.replace("accuracy = 1.0, ", ""))
    loose = LINE.replace("LOSS", "0.5").replace('{"accuracy": 0.25}', "None")
    loose = loose.replace("FitResult(moved", "FitResult({n: a.tolist() for n, a in moved.items()}")
    (tmp_path / "line.py").write_text(loose.replace("self.count, {}, int", "self.count, None, int"))
    price = check(path, permit=RUN, epsilon=8.0).price
    assert price is not None
    assert price.update["all"].startswith("an update that was tried (0.5, ")


def test_how_clients_sizes_suit_the_bound_is_said(tmp_path: Path) -> None:
    path = lined(tmp_path, "")
    (alike,) = (each for each in check(path, permit=RUN).remarks if "count alike" in each)
    assert alike == (
        "all clients count alike, with 40 to 540 examples: most_examples = 540 weighs them by these"
    )
    path.write_text(path.read_text().replace("[[group]]", "[[group]]\nmost_examples = 300"))
    (capped,) = (each for each in check(path, permit=RUN).remarks if "(most_examples)" in each)
    assert capped == (
        "a client counts as 300 examples at most (most_examples), and the largest has 540"
    )


NOISED = PRIVATE + "noise_multiplier = 2.0\nbudget = 100.0\n"


def test_a_public_number_far_from_what_clients_have_is_said(tmp_path: Path) -> None:
    path = lined(tmp_path, NOISED)
    (far,) = (each for each in check(path, permit=RUN).remarks if "privacy.records, " in each)
    assert far.startswith(
        "the client that was tried counts by privacy.records, 300, and has 40 records: no epsilon"
    )
    line = LINE.replace("LOSS", "0.5").replace("40 + 100 *", "250 + 10 *")
    (tmp_path / "line.py").write_text(line)
    assert not any("privacy.records, " in each for each in check(path, permit=RUN).remarks)


def test_rows_that_are_numbered_in_place_of_persons_are_said(tmp_path: Path) -> None:
    path = lined(tmp_path, NOISED.replace("[privacy]", '[privacy]\nunit = "person"'))
    counted = "    def persons(self):\n        return {}\n\n    def examples(self):"
    for count, told in (("self.count", 1), ("self.count // 4", 0)):
        line = LINE.replace("    def examples(self):", counted.format(count))
        (tmp_path / "line.py").write_text(line.replace("LOSS", "0.5"))
        remarks = check(path, permit=RUN).remarks
        assert sum(each.startswith("each of the 40 records") for each in remarks) == told


def test_nobody_is_told_to_weigh_clients_of_a_sum(tmp_path: Path) -> None:
    path = lined(tmp_path, "")
    line = LINE.replace("LOSS", "0.5").replace("np.float32(0.25)", "np.float32(1)")
    (tmp_path / "line.py").write_text(line)
    path.write_text(path.read_text().replace("[[group]]", '[[group]]\noutcome = "sum"'))
    told = check(path, permit=RUN)
    assert not [each for each in told.remarks if "most_examples" in each]
    page = printed(told, 200)
    assert "bits left in a mean" not in page, "a total is no mean"
    assert "no privacy: totals may give records away" in page


def test_clients_of_up_may_have_records_of_their_own(tmp_path: Path) -> None:
    budget = "noise_multiplier = 2.0\nbudget = 8.0\n"
    path = lined(tmp_path, PRIVATE + budget)
    noise = check(path, permit=RUN).price
    path.write_text(path.read_text() + "records = [100, 200, 300, 400, 500, 600]\n")
    told = check(path, permit=RUN)
    assert noise is not None
    assert told.price is not None
    assert told.price.deviation["all"] > noise.deviation["all"], "of the smallest of them"
    assert any("counts as 300 examples at most" in each for each in told.remarks)
    path.write_text(path.read_text().replace(", 600]", "]"))
    with pytest.raises(ConfigError, match=r"federation\.records: 5 numbers for 6 clients: state"):
        check(path)


ROW = re.compile(r"\| (?:nothing|`(.+?)`) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")


def test_the_numbers_of_the_page_on_choosing_are_those_of_the_command(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    text = (ROOT / "policies" / "digits.toml").read_text()
    text = re.sub(r"(?m)^noise_multiplier.*\n", "", text)
    rows = ROW.findall(page)
    assert len(rows) == 6
    for changed, *numbers in rows:
        key, _, value = changed.partition(" = ")
        made = re.sub(rf"(?m)^{key} = \S+", changed, text) if value else text
        assert (made != text) == bool(value)
        epsilon = float(changed.split()[1]) if changed.startswith("--epsilon") else 8.0
        found = check(write(tmp_path, made), 9610, epsilon=epsilon)
        assert found.choice is not None
        assert found.price is not None
        noise, lasting = found.price.noise["all"], found.price.noise_run["all"]
        told = [f"{found.choice.noise_multiplier:.2f}", f"{noise:.3f}", f"{lasting:.3f}"]
        assert told == numbers, changed
    demo = check(ROOT / "policies" / "digits.toml", permit=RUN).price
    assert demo is not None
    assert (
        f"noise is\n   {demo.noise['all']:.3g} times as long as {demo.update['all']}, and" in page
    )
    assert f"over all versions {demo.noise_run['all']:.3g} times" in page


SHOP = """
import numpy as np


class Shop:
    def __init__(self, partition):
        self.rows = np.arange(8 if partition == 0 else 4)

    def touches(self):
        return {"table": self.rows}

    def parameters(self, seed):
        return {"table": np.zeros((12, 2), np.float32)}

    def fit(self, parameters, config):
        raise AssertionError("nobody trains here")

    evaluate = fit


def make(settings):
    return Shop(settings["partition"])
"""


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_row_blocks_that_nobody_will_train_are_counted(weighting: str, tmp_path: Path) -> None:
    """Of three the first is touched by all, the second by one client, the third by nobody."""
    (tmp_path / "shop.py").write_text(SHOP)
    text = PLAN.replace("bfv", "plain").replace("quorum = 6", "quorum = 3, minimum = 2")
    text += "most_examples = 16\n" if weighting == "examples" else ""
    text += f'weighting = "{weighting}"\nsparse = {{ rows = 12, block = 4 }}\n'
    text += '[federation]\nscript = "shop.py"\nclients = 3\n'
    remarks = check(write(tmp_path, text), permit=RUN).remarks
    told = [remark for remark in remarks if "row-blocks" in remark]
    assert len(told) == 1
    assert told[0].startswith("2 of 3 row-blocks of all are touched by fewer than 3 clients")


TWO = PLAN.replace("[[group]]\n", '[[group]]\nname = "a"\npattern = "a*"\n')
TWO += '[[group]]\nname = "b"\nrule = { quorum = 6 }\nsparse = { rows = 10, block = 4 }\n'


def test_sizes_of_several_groups_are_given_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, TWO.replace("bfv", "plain"))
    explained = check(path, read_values(["a=100", "b=30"]))
    sizes = {group.name: group.values for group in explained.groups}
    assert sizes == {"a": 100, "b.0": 12, "b.1": 12, "b.2": 6}
    assert explained.unknown == ()
    for given, reason in (
        (10, "^--values: the plan has 2 groups: --values a=N --values b=N$"),
        ({"a": 100}, "^--values: says nothing of b: --values a=N --values b=N$"),
        ({"a": 1, "b": 10, "c": 1}, "no group is called 'c'; known are a, b"),
        ({"a": 1, "b": 31}, "b has 10 rows, and 31 values are not as many for each"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check(path, given)
    for text in ("0", "-1", "many", "a=", "a=1.5", "=", "a=\u0661"):
        with pytest.raises(ConfigError, match="is no number of values from 1 on, or GROUP=N once"):
            read_values([text])
    with pytest.raises(ConfigError, match="one number for all of the model, or GROUP=N of each"):
        read_values(["3", "a=3"])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a": 3}', '{"a": [-1]}', '{"a": [true]}', '{"a": "12"}', "[" * 9999]
)
def test_a_file_that_has_no_shapes_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text(text)
    with pytest.raises(ConfigError, match=r"shapes\.json: no shapes of a model's tensors"):
        check(write(tmp_path), schema=tmp_path / "shapes.json")
