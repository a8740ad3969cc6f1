"""`secureps profile`: phases of one update, on this machine and a link; no time is asserted."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secureps.errors import ConfigError, OperatorError, PlanRefused
from secureps.run import profile as profiling
from secureps.run.check import Permit
from secureps.run.cli import app
from secureps.run.phases import Named, Stopwatch
from secureps.run.profile import FUNCTIONS, TRAINS, Question, draw, profile, shown, table
from tests.kits.command import invoked
from tests.kits.nursery import ROOT

PLAN = """
name = "small"
versions = 7
block_size = 1024
[cipher]
name = "{cipher}"
{committee}
capacity = 16
[[group]]
rule = {{ quorum = 5 }}
{more}
"""
NOISE = """
weighting = "uniform"
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 1.0
"""
CODEC = 'codec = ["rotate"]\npull_bits = 4'
TWO = """
name = "body"
pattern = "body"
[[group]]
name = "head"
pattern = "head"
rule = { quorum = 5 }
"""
SCRIPT = """
import numpy as np

class Trainer:
    fit = evaluate = None

    def parameters(self, seed):
        return {name: np.zeros(3, np.float32) for name in ("body", "head")}

def make(settings):
    return Trainer()
"""
VALUES = 3000


def write(folder: Path, cipher: str = "plain", more: str = "") -> Path:
    committee = "holders = 4\nthreshold = 3" if cipher == "rlwe" else ""
    path = folder / "plan.toml"
    path.write_text(PLAN.format(cipher=cipher, committee=committee, more=more))
    return path


def silent(line: str) -> None:
    pass


def test_the_phases_of_an_update(tmp_path: Path) -> None:
    question = Question(values=VALUES, up=0.0008, down=0.008)
    found = profile(write(tmp_path), question, silent)
    assert (found.name, found.cipher, found.values, found.clients) == ("small", "plain", VALUES, 5)
    steps = list(dict.fromkeys((p.party, p.step) for p in found.phases))
    assert steps == [
        *(("shard", "serves"), ("wire", "down")),
        *(("client", "pulls"), ("client", "makes update"), ("client", "sends")),
        *(("wire", "up"), ("client", "decides")),
        *(("shard", "takes it in"), ("shard", "adds"), ("shard", "opens, steps")),
        *(("shard", "checkpoint"), ("shard", "decides"), ("coordinator", "decides")),
    ]
    assert all(p.seconds >= 0 and p.cpu >= 0 for p in found.phases)
    assert TRAINS not in {p.part for p in found.phases}
    wire = {p.step: p for p in found.phases if p.party == "wire"}
    assert wire["down"].seconds == pytest.approx(4 * VALUES / 1000)
    assert wire["up"].seconds * 100 == pytest.approx(2 * VALUES), "two bytes each"
    assert found.seconds == pytest.approx(sum(p.seconds for p in shown(found.phases)))
    assert f"An update of {VALUES:,} values takes" in found.told()


def test_it_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    monkeypatch.setattr(profiling, "QUIET", 0.0)
    script = tmp_path / "client.py"
    script.write_text(SCRIPT)
    profile(write(tmp_path, more=TWO), Question(script), lines.append)
    first, *rest = [line for line in lines if not line.startswith("compiles")]
    assert first == (
        "plays 2 versions, the last of which counts: 20 updates of 5 clients with 2 groups or "
        "row-blocks each; --clients N plays more or fewer"
    )
    made = [line for line in rest if "made" in line]
    assert made == ["version 1 is made", "version 2 is made"]
    assert [line for line in rest if line not in made] == [
        f"{sent} of 20 updates" for sent in range(1, 21)
    ]


def test_of_a_large_plan_fewer_clients_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[str]()
    monkeypatch.setattr(profiling, "MOST_UPDATES", 6)
    many = write(tmp_path)
    many.write_text(many.read_text().replace("quorum = 5", "quorum = 12, minimum = 3"))
    assert profile(many, Question(values=VALUES), lines.append).clients == 6
    assert "12 updates of 6 clients, of the plan's 12, with 1 group or row" in "".join(lines)
    assert profile(many, Question(values=VALUES, clients=9), silent).clients == 9
    monkeypatch.setattr(profiling, "MOST_UPDATES", 1)
    assert profile(many, Question(values=VALUES), silent).clients == 3, "the rule's minimum"


def test_no_function_that_is_timed_has_another_name_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = set[Named]()

    class Watched(Stopwatch):
        def _begin(self, named: Named) -> None:
            met.add(named)
            super()._begin(named)

    monkeypatch.setattr(profiling, "Stopwatch", Watched)
    for cipher, more in (("rlwe", ""), ("rlwe", NOISE), ("plain", CODEC)):
        profile(write(tmp_path, cipher, more), Question(values=VALUES), silent)
    gone = [named.pattern for named in FUNCTIONS if named not in met]
    assert not gone, "secureps.run.profile.FUNCTIONS names what is not there: say where it is now"


def test_holders_take_part_under_a_committee(tmp_path: Path) -> None:
    found = profile(write(tmp_path, "rlwe"), Question(values=VALUES, clients=6), silent)
    assert found.clients == 6
    assert {p.step for p in found.phases if p.party == "holder"} == {"adds keys", "decides"}
    console = Console(record=True, width=80)
    console.print(table(found))
    page = console.export_text()
    assert "small: one update of 3,000 values, rlwe, 6 clients" in page
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("name", ["digits_numpy.toml", "ssp.toml"])
def test_the_model_is_that_of_the_plans_script(name: str) -> None:
    question = Question(clients=5, permit=Permit(run_script=True))
    found = profile(ROOT / "policies" / name, question, silent)
    assert found.values == {"digits_numpy.toml": 650, "ssp.toml": 9610}[name]


def test_another_script_may_make_it(tmp_path: Path) -> None:
    script = ROOT / "clients" / "digits_numpy.py"
    assert profile(write(tmp_path), Question(script), silent).values == 650


def test_the_command_prints_a_table_and_draws_a_timeline(tmp_path: Path) -> None:
    out = tmp_path / "timeline.png"
    result = invoked(app, "profile", write(tmp_path), "--values", str(VALUES), "-o", out)
    assert result.exit_code == 0, result.output
    assert "small: one update of 3,000 values" in result.output
    assert f"timeline: {out}" in result.output.replace("\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_timeline_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    found = profile(write(tmp_path), Question(values=10), silent)
    (tmp_path / "x.png").mkdir()
    with pytest.raises(OperatorError, match=r"x\.png: cannot draw the timeline: .*Is a directory"):
        draw(found, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question(), "nothing says how large the model is: give --values N, or --script SCRIPT"),
        (Question(values=10, up=0.0), "--up and --down: a link carries more than 0 Mbit/s"),
        (Question(values=10, down=float("nan")), "--up and --down"),
        (Question(script=Path("no.py")), "no.py: no such script"),
        (Question(values=10, clients=17), "a round waits for 17"),
        (Question(values=10, out=Path("no/such/x.png")), "its folder does not exist"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, question: Question, reason: str) -> None:
    with pytest.raises((ConfigError, PlanRefused), match=reason):
        profile(write(tmp_path), question, silent)


def test_without_a_plan_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: no such file"):
        profile(tmp_path / "no.toml", Question(values=10), silent)


def test_a_size_is_of_one_group(tmp_path: Path) -> None:
    two = '[[group]]\nname = "other"\npattern = "b*"\nrule = { quorum = 5 }'
    path = write(tmp_path, more=two)
    with pytest.raises(ConfigError, match=r"--values: .*2 groups"):
        profile(path, Question(values=10), silent)


def test_before_anything_is_played_the_extra_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("no matplotlib", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ConfigError, match=r"--out: .*pip install 'secureps\[report\]'"):
        profile(write(tmp_path), Question(values=10, out=tmp_path / "x.png"), silent)
