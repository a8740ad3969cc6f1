"""What pages show exists: commands, options, files, words, messages, TOML that loads."""

import ast
import json
import math
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

import secureps as ps
from secureps.config import plan, sections
from secureps.config.scenario import (
    DelaysSection,
    LawSection,
    ScenarioSection,
    ShardsSection,
    StaySection,
    StudySection,
    VariantSection,
)
from secureps.config.sections import parse, read_toml
from secureps.config.site_files import ProfileSection, ProfilesSection, ServeSection, SiteSection
from secureps.crypto.ring import ETA, GUIDELINES_LOG_Q, RINGS, SIGMA
from secureps.errors import ERRORS
from secureps.policy.explain.visibility import advised_threshold, count_withstood
from secureps.policy.plan import load_plan
from secureps.run.cli import app
from secureps.run.simulate.scenario_file import load_scenario
from tests.kits import evidence_page
from tests.kits.command import Tool
from tests.kits.documented import PAGE, documented
from tests.kits.nursery import ROOT

PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md"))),
    "secureps/run/templates/every/README.md",
)
FOLDERS = ("aggregator", "clients", "policies", "simulations")
PLACES = (*FOLDERS, "secureps", "docs", "examples", "tests", "benchmarks")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[\s;(])(?:\.venv/bin/)?secureps ([a-z-][^;&|<>#\n]*)", re.MULTILINE)
_INLINE = re.compile(r"`secureps ([^`\n]+)`")
_PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(PLACES)})/[\w./*-]*(?:::\w+)?")
_MAKE = re.compile(r"(?:^ {4}|`)make (\w+)", re.MULTILINE)
_KEY = re.compile(
    r"^\| `(\w+)` \| (required|none|its defaults|`.*?`)(?: \w+| \(\w+\))? \| .+ \|$", re.MULTILINE
)
"""A row of the plan's reference: the key, and its default, without the type that may follow."""
_CLASS = re.compile(r"`([A-Z][a-z]\w+)`")


def fences(text: str, *languages: str) -> list[str]:
    return [code for language, code in _FENCE.findall(text) if language in languages]


def commands(text: str) -> list[list[str]]:
    shells = (code.replace("\\\n", " ") for code in fences(text, "sh", "bash", "console", ""))
    return [shlex.split(line) for shell in shells for line in _COMMAND.findall(shell)]


def files(text: str) -> set[str]:
    return {found.rstrip(".") for found in _PATH.findall(text)}


def parses(arguments: list[str]) -> None:
    """Reads a command line as `secureps` would, without doing anything; it raises if it cannot."""
    command: Tool = app
    while isinstance(command, TyperGroup):
        name, *arguments = arguments
        command = cast(Tool, command.commands[name])
    command.make_context(name, arguments)


def pages() -> list[Path]:
    paths = [ROOT / page for page in PAGES] + [ROOT / folder / "README.md" for folder in FOLDERS]
    assert all(path.is_file() for path in paths)
    return paths


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", pages(), ids=named)


@every_page
def test_every_command_parses(page: Path) -> None:
    for arguments in commands(page.read_text()):
        parses(arguments)


@every_page
def test_every_command_in_a_sentence_is_one(page: Path) -> None:
    for line in _INLINE.findall(page.read_text()):
        assert line.split()[0] in app.commands, line


@every_page
def test_every_file_and_test_exists(page: Path) -> None:
    for name in files(page.read_text()):
        path, _, test = name.partition("::")
        assert any(ROOT.glob(path)), f"{named(page)} names {path}"
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(), name


def test_every_class_that_the_architecture_names_exists() -> None:
    named = set(_CLASS.findall((ROOT / "docs" / "architecture.md").read_text()))
    code = "".join(path.read_text() for path in ROOT.glob("secureps/**/*.py"))
    assert named
    assert {
        name for name in named if not re.search(rf"^class {name}\b", code, re.MULTILINE)
    } == set()


@every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(_MAKE.findall(page.read_text())) <= set(targets)


def test_the_threat_models_parameters_are_the_codes() -> None:
    page = " ".join((ROOT / "docs" / "threat-model.md").read_text().split())
    for ring in RINGS:
        bits = ring.modulus.bit_length()
        assert f"N = {ring.degree} with q < 2^{bits}" in page
        assert bits <= GUIDELINES_LOG_Q[ring.degree]
    assert f"eta = {ETA}, sigma = {SIGMA:.2f}" in page
    assert f"sigma / sqrt(2) = {SIGMA / math.sqrt(2):.1f}" in page
    assert "3 of 4, which withstands a malicious aggregator with one corrupt" in page
    assert (count_withstood(3, 4), count_withstood(2, 3), count_withstood(4, 5)) == (1, 0, 2)


def test_what_committees_of_sites_withstand_is_what_is_computed() -> None:
    page = (ROOT / "docs" / "guide" / "privacy-officer.md").read_text()
    rows = re.findall(r"^  \| (\d+) \| (\d+) \| (\d+) \| (\d+|none) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        n = int(row[0])
        t = advised_threshold(n)
        assert row == (str(n), str(t), str(count_withstood(t, n)), str(n - t or "none"))


@pytest.mark.parametrize("page", ["README.md", "docs/guide/data-holder.md"])
def test_the_script_of_a_page_makes_a_trainer(page: str, tmp_path: Path) -> None:
    import numpy as np

    from secureps.client.torch import TorchTrainer

    (script,) = fences((ROOT / page).read_text(), "python")
    scope: dict[str, Any] = {"__name__": "hospital"}
    exec(compile(script, page, "exec"), scope)
    np.savez(tmp_path / "mine.npz", x=np.zeros((120, 30)), y=np.arange(120) % 2)
    trainer = scope["make"]({"data": str(tmp_path / "mine.npz")})
    assert isinstance(trainer, TorchTrainer)
    assert trainer.evaluate(trainer.parameters(1)).examples == 100
    if "make_evaluator" in scope:
        judge = scope["make_evaluator"]({"public": str(tmp_path / "mine.npz")})
        assert judge.evaluate(trainer.parameters(1)).examples == 100


def test_the_trainer_of_the_page_of_trainers_learns() -> None:
    """With a Dataset and a model in place of the reader's own."""
    from tests.client.test_torch import CONFIG, mlp
    from tests.client.test_torch_records import Augmented

    (script,) = fences((ROOT / "docs" / "trainers.md").read_text(), "python")
    scope: dict[str, Any] = {"Scans": lambda _: Augmented(), "net": mlp}
    exec(compile(script, "trainers.md", "exec"), scope)
    trainer = scope["make"]({"train": "", "held_out": ""})
    start = trainer.parameters(1)
    assert trainer.fit(start, CONFIG).steps == 5


def test_the_page_of_claims_is_made_from_the_tests() -> None:
    assert evidence_page.PAGE.read_text() == evidence_page.page()


# --- TOML -------------------------------------------------------------------------


def tomls(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).glob("*.toml"))
    assert found, f"no TOML in {folder}"
    return found


@pytest.mark.parametrize("path", tomls("policies"), ids=named)
def test_policies_load(path: Path) -> None:
    federation = load_plan(path).section.federation
    assert federation is None or (path.parent / federation.script).is_file()


@pytest.mark.parametrize("path", tomls("simulations"), ids=named)
def test_simulations_load(path: Path) -> None:
    assert load_scenario(path).section.clients > 0


@pytest.mark.parametrize("path", tomls("aggregator"), ids=named)
def test_servers_load(path: Path) -> None:
    section = parse(ServeSection, read_toml(path), str(path))
    assert section.name == path.stem
    # what each role needs besides, see `run.serve`
    needed = {
        "coordinator": ("plan", "checkpoints"),
        "shard": ("coordinator", "checkpoints"),
        "holder": ("coordinator",),
    }[section.name.partition("-")[0]]
    assert all(getattr(section, key) is not None for key in needed)


def test_the_servers_fit_the_plan_that_operations_give_them() -> None:
    plan = load_plan(ROOT / "policies" / "digits.toml")
    names = {path.stem for path in tomls("aggregator")}
    assert names == {
        "coordinator",
        *(f"shard-{i}" for i in range(plan.section.shards)),
        *(f"holder-{i}" for i in range(plan.holders)),
    }
    for path in (ROOT / "aggregator").glob("holder-*.toml"):
        holder = parse(ServeSection, read_toml(path), path.name)
        assert all(holder.minimum <= plan.bounds(group).minimum for group in plan.groups)


def test_holders_open_no_port_and_share_nothing() -> None:
    """Each on a machine of its own: it dials out, and has a state of its own."""
    files = [read_toml(path) for path in sorted((ROOT / "aggregator").glob("holder-*.toml"))]
    assert len({holder["state"] for holder in files}) == len(files) == 4
    assert all({"listen", "advertise", "checkpoints"}.isdisjoint(holder) for holder in files)


# --- the checks can fail ----------------------------------------------------------


SECTIONS: dict[str, type[sections.Section]] = {
    "The plan": plan.PlanSection,
    "`[cipher]`": plan.CipherSection,
    "`[[group]]`": plan.GroupSection,
    '`[[group.codec]]`, name = "support"': plan.SupportSection,
    '`[[group.codec]]`, name = "rotate"': plan.RotateSection,
    '`[[group.codec]]`, name = "round"': plan.RoundSection,
    '`[group.rule]`, name = "sync"': plan.SyncSection,
    '`[group.rule]`, name = "ssp"': plan.SspSection,
    '`[group.rule]`, name = "buffered"': plan.BufferedSection,
    '`[group.rule]`, name = "async"': plan.AsyncSection,
    '`[group.rule]`, name = "priority"': plan.PrioritySection,
    "`[group.rule]`, a class of your own": plan.OwnRuleSection,
    "`[work]`": plan.WorkSection,
    "`[scaling]`": plan.ScalingSection,
    "`[group.optimizer]`": plan.OptimizerSection,
    "`[group.optimizer.schedule]`": plan.ScheduleSection,
    "`[group.sparse]`": plan.SparseSection,
    "`[group.adaptive]`": plan.AdaptiveSection,
    '`[privacy]`, unit = "record" or "person"': plan.RecordPrivacySection,
    '`[privacy]`, unit = "client"': plan.ClientPrivacySection,
    "`[evaluation]`": plan.EvaluationSection,
    "`[evaluation.best]`": plan.BestSection,
    "`[evaluation.stop]`": plan.StopSection,
    "`[federation]`": plan.FederationSection,
    "A scenario, for `secureps simulate`": ScenarioSection,
    "`[study]` of a scenario": StudySection,
    "`[[study.variant]]`": VariantSection,
    "`[[stay]]` of a scenario": StaySection,
    "`[shards]` of a scenario": ShardsSection,
    "A server's file, for `secureps serve`": ServeSection,
    "A site's policy, for `--site`": SiteSection,
}


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, sections.Section):
        return "its defaults"
    return f"`{json.dumps(field.default)}`"


def leaves(section: type[sections.Section]) -> set[type[sections.Section]]:
    """The sections that a file may have: those that no other one extends."""
    below = section.__subclasses__()
    return set[type[sections.Section]]().union(*map(leaves, below)) if below else {section}


def test_the_plans_reference_has_every_key_and_its_default() -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    own = {s for s in leaves(sections.Table) if s.__module__.startswith("secureps.config.")}
    # operate/install.md has profiles, and a paragraph the delays of a scenario
    elsewhere = {ProfileSection, ProfilesSection, DelaysSection, LawSection}
    assert set(SECTIONS.values()) == own - elsewhere
    parts = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for title, section in SECTIONS.items():
        rows = _KEY.findall(parts[title])
        wanted = [(name, default(field)) for name, field in section.model_fields.items()]
        assert sorted(rows) == sorted(wanted), title


def test_the_plans_reference_has_all_training_options_of_torch() -> None:
    from secureps.client.torch_sgd import LocalSgd

    page = (ROOT / "docs" / "plan.md").read_text()
    _, _, part = page.partition("\n## `[training]`, of a `TorchTrainer`\n")
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", part.partition("\n## ")[0], re.MULTILINE)
    wanted = LocalSgd.model_fields.items()
    assert rows == [(name, json.dumps(each.default)) for name, each in wanted]


# --- messages ---------------------------------------------------------------------


FAULT = re.compile(r" \([a-z ',]+ fault\)$")


def phrases(pattern: str) -> Iterator[str]:
    for piece in FAULT.sub("", pattern).split("..."):
        words = piece.split(" ")
        yield from (" ".join(words[i : i + 3]).strip(" :;,.") for i in range(len(words) - 2))


OFTEN = Counter(phrase for pattern in documented() for phrase in set(phrases(pattern)))
CONTRACT = ROOT / "tests" / "kits" / "transport_kit.py"
"""Tests that every transport's test file inherits."""
TESTS = "\n".join(path.read_text() for path in (CONTRACT, *(ROOT / "tests").rglob("test_*.py")))


@pytest.mark.parametrize("pattern", documented())
def test_a_test_asserts_words_of_a_documented_message(pattern: str) -> None:
    """Three words at least that next to no other message has."""
    assert any(OFTEN[phrase] <= 2 and phrase in TESTS for phrase in phrases(pattern))


def test_the_table_of_classes_is_made_from_the_code() -> None:
    _, _, table = PAGE.read_text().partition("\n## Classes\n")
    rows = re.findall(r"^\| (.+) \| (`.+`) \|$", table, re.MULTILINE)
    told = [(fault, name) for fault, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(told) == sorted((kind.fault, name) for name, kind in ERRORS.items())


def test_a_term_is_explained_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE)
    assert len(words) == len({word.casefold() for word in words})


# --- what newcomers and CI are told -----------------------------------------------


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_newest_changes_and_the_citation_are_of_this_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == ps.__version__
    assert read("CITATION.cff")["version"] == ps.__version__
    minor, _, _ = ps.__version__.rpartition(".")
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()


# --- what is run on every kind of machine -----------------------------------------


LISTED = (ROOT / "tests" / "portable.txt").read_text("utf-8").split()
FILES = [
    path
    for each in LISTED
    for path in (
        sorted((ROOT / each).glob("test_*.py")) if (ROOT / each).is_dir() else [ROOT / each]
    )
]
"""What GitHub calls its machines, https://docs.github.com/actions/reference/runners."""

BROUGHT = {"blake3", "cryptography", "numpy", "safetensors", "secureps", "tests"}
"""By the package alone."""
BESIDE = {"hypothesis", "pytest"}
"""What the workflow installs besides."""


def clients() -> dict[str, object]:
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    job: dict[str, object] = yaml.safe_load(text)["jobs"]["clients"]
    return job


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_listed_test_imports_only_what_is_installed_there(path: Path) -> None:
    """At its beginning; a single test skips itself where a library is missing."""
    for name in imported(path):
        first = name.partition(".")[0]
        assert first in BROUGHT | BESIDE or first in sys.stdlib_module_names, name
        assert first not in ("fcntl", "grp", "pwd", "resource", "termios"), name
        own = ROOT / f"{name.replace('.', '/')}.py"
        if first == "tests" and own.is_file() and own != path:
            test_a_listed_test_imports_only_what_is_installed_there(own)


def imported(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text("utf-8")).body:
        match statement:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                if module.startswith("tests."):
                    yield from (f"{module}.{each.name}" for each in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_listed_test_reads_text_in_one_encoding(path: Path) -> None:
    """Windows would read it in that of the user's language."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            least = {"read_text": 1, "write_text": 2}.get(node.func.attr, 0)
            named = any(each.arg == "encoding" for each in node.keywords)
            assert named or len(node.args) >= least, f"{path.name}:{node.lineno}"
