"""Where keys stand in a file, and that a wrong value of any key is told in plain words, there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from secureps.config.plan import PlanSection
from secureps.config.positions import positions
from secureps.config.scenario import ScenarioSection
from secureps.config.sections import Section, parse, read_toml, toml_text
from secureps.config.serve import ServeSection
from secureps.errors import ConfigError
from tests.kits.nursery import ROOT

TEXT = """# a comment with [brackets] and key = 1
name = "a # no comment ] \\" }"   # one
list = [ 1, # first
  2,
  { x = 1, y = [3] } ]
"quoted key" = '''
[not a table]
'''
dotted.key = { a = {b = 1} }

[[group]]
name = "one"
rule = { quorum = 5, minimum = 2 }
[[group]]
[group.rule]
quorum = 6
[[group.rule.item]]
[table."in it"]
z = 1
[table]
late = 'x' # 'y'
last = 1979-05-27
"""

LINES = {
    ("name",): 2,
    ("list",): 3,
    ("list", 0): 3,
    ("list", 1): 4,
    ("list", 2): 5,
    ("list", 2, "x"): 5,
    ("list", 2, "y"): 5,
    ("list", 2, "y", 0): 5,
    ("quoted key",): 6,
    ("dotted",): 9,
    ("dotted", "key"): 9,
    ("dotted", "key", "a"): 9,
    ("dotted", "key", "a", "b"): 9,
    ("group",): 11,
    ("group", 0): 11,
    ("group", 0, "name"): 12,
    ("group", 0, "rule"): 13,
    ("group", 0, "rule", "quorum"): 13,
    ("group", 0, "rule", "minimum"): 13,
    ("group", 1): 14,
    ("group", 1, "rule"): 15,
    ("group", 1, "rule", "quorum"): 16,
    ("group", 1, "rule", "item"): 17,
    ("group", 1, "rule", "item", 0): 17,
    ("table",): 18,
    ("table", "in it"): 18,
    ("table", "in it", "z"): 19,
    ("table", "late"): 21,
    ("table", "last"): 22,
}


def test_every_key_has_its_line() -> None:
    assert dict(positions(TEXT)) == LINES


@pytest.mark.parametrize("quotes", ['"""', "'''"])
@pytest.mark.parametrize("end", ["", "\n", " # the end"])
def test_texts_of_many_lines(quotes: str, end: str) -> None:
    text = f"a = {quotes}\nb = 1\n{quotes[0]}{quotes}\nc = [[], {{}}, 2]{end}"
    assert set(tomllib.loads(text)) == {"a", "c"}
    assert dict(positions(text)) == {
        ("a",): 1,
        ("c",): 4,
        ("c", 0): 4,
        ("c", 1): 4,
        ("c", 2): 4,
    }


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/*.toml")), ids=lambda path: path.name)
def test_all_that_is_in_a_file_has_a_line(path: Path) -> None:
    """The same keys as the parser of the library finds, each where it is written."""
    text = path.read_text()
    lines, found = text.splitlines(), positions(text)
    assert set(found) == set(paths(tomllib.loads(text)))
    for place, line in found.items():
        assert isinstance(place[-1], int) or place[-1] in lines[line - 1]


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield (*path, key)
        yield from paths(each, (*path, key))


# --- every key, with a value of every wrong type -----------------------------------

RULES: dict[str, dict[str, Any]] = {
    "sync": {
        "name": "sync",
        "quorum": 5,
        "minimum": 5,
        "start": 5,
        "most": 8,
        "deadline": 9.0,
        "extensions": 1,
    },
    "ssp": {"name": "ssp", "slack": 1, "minimum": 5, "most": 8, "deadline": 9.0},
    "buffered": {
        "name": "buffered",
        "buffer": 5,
        "minimum": 5,
        "max_staleness": 3,
        "power": 0.5,
        "concurrency": 9,
        "deadline": 9.0,
    },
    "async": {"name": "async", "max_staleness": 3, "concurrency": 9, "deadline": 9.0},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 9,
        "score": "freshness",
        "ageing": 9.0,
        "minimum": 5,
        "max_staleness": 3,
        "power": 0.5,
        "concurrency": 9,
        "deadline": 9.0,
    },
    "own": {
        "name": "package.module:Rule",
        "minimum": 5,
        "most": 8,
        "most_weight": 2,
        "max_staleness": 3,
        "deadline": 9.0,
        "settings": {"alpha": 0.5},
    },
}
GROUP: dict[str, Any] = {
    "name": "all",
    "pattern": "*",
    "clip": 1.0,
    "adaptive": {"quantile": 0.5, "rate": 0.2, "weight": 0.5, "least": 0.5, "most": 2.0},
    "bits": 16,
    "range": 1.0,
    "weighting": "examples",
    "versions": 3,
    "sparse": {"rows": 9, "block": 3},
    "optimizer": {
        "name": "sgd",
        "learning_rate": 1.0,
        "momentum": 0.9,
        "betas": [0.9, 0.99],
        "tau": 0.1,
        "schedule": {
            "name": "constant",
            "total_steps": 9,
            "floor": 0.1,
            "decay": 0.9,
            "warmup_steps": 3,
        },
    },
}
RECORD = {
    "unit": "record",
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "sample_rate": 0.1,
    "delta": 1e-5,
    "budget": 8.0,
}
CLIENT = {
    "unit": "client",
    "placement": "local",
    "noise_multiplier": 1.0,
    "honest": 5,
    "delta": 1e-5,
    "budget": 8.0,
}
PLAN: dict[str, Any] = {
    "name": "all-keys",
    "versions": 3,
    "shards": 2,
    "block_size": 64,
    "checkpoint_every": 1,
    "keep": 3,
    "lease": 20.0,
    "initial": "model.safetensors",
    "local": ["head.*"],
    "cipher": {"name": "rlwe", "capacity": 32, "holders": 4, "threshold": 3},
    "privacy": RECORD,
    "training": {"lr": 0.1, "label": "x"},
    "work": {"target_seconds": 9.0, "least": 0.5},
    "group": [GROUP | {"rule": rule} for rule in RULES.values()],
    "evaluation": {
        "every": 1,
        "metrics": {"loss": 10.0},
        "bits": 16,
        "most_examples": 99,
        "rule": RULES["sync"],
        "evaluator": "client-00",
        "best": {"metric": "loss", "goal": "min"},
        "stop": {"patience": 3, "least": 0.1, "target": 0.5},
    },
    "federation": {"script": "script.py", "clients": 6, "settings": {"alpha": 1.0}},
}
SERVE: dict[str, Any] = {
    "name": "shard-0",
    "kit": "kit",
    "ca_fingerprint": "0" * 64,
    "state": "state",
    "listen": "here:1",
    "advertise": "here:1",
    "coordinator": "here:2",
    "plan": "plan.toml",
    "plan_base": ".",
    "checkpoints": "checkpoints",
    "weight": 1.0,
    "minimum": 5,
    "threshold": 3,
    "metrics": "here:3",
    "threads": 2,
    "memory": "2 GiB",
    "unsafe_seed": 5,
}
SCENARIO: dict[str, Any] = {
    "name": "trial",
    "plan": "plan.toml",
    "script": "script.py",
    "clients": 6,
    "seed": 1,
    "settings": {"alpha": 1.0},
    "downtime": 9.0,
    "stay": [{"first": 0, "count": 1, "comes": 0.0, "leaves": 9.0}],
    "study": {
        "measure": "accuracy",
        "target": 0.9,
        "hold": 1,
        "every": 1.0,
        "seconds": 9.0,
        "tuning": 0,
        "seeds": [1, 2],
        "sealed": 1,
        "baseline": "one",
        "variant": [
            {
                "name": "one",
                "plan": "other.toml",
                "rules": [RULES["ssp"]],
                "deadlines": [1.0],
                "rates": [1.0],
            }
        ],
    },
}
KINDS: tuple[tuple[type[Section], dict[str, Any]], ...] = (
    (PlanSection, PLAN),
    (PlanSection, PLAN | {"privacy": CLIENT}),
    (ServeSection, SERVE),
    (ScenarioSection, SCENARIO),
)
WRONG: tuple[Any, ...] = (
    True,
    -7,
    0.5,
    "7",
    [True],
    {"a": 1},
    date(1979, 5, 27),
)
"""Of every type that TOML has; what one of them means is refused at least where it is another."""

JARGON = re.compile(r"\b([Ii]nput|pydantic|Python|instance|tuple|dict\w*|parse|string|datetime)\b")
"""Words of a library, none of which tells a user what to do."""


def replaced(value: Any, path: tuple[str | int, ...], other: Any) -> Any:
    if not path:
        return other
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


def dump(value: Any) -> str:
    """As TOML in one line: a value, a list, a table."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {dump(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(dump, value)) + "]"
    return str(value) if isinstance(value, date) else toml_text(value)


def tables(values: Mapping[str, Any], head: str = "") -> Iterator[str]:
    """The lines of a TOML file, a key each, with a head for every table."""
    nested = {key: each for key, each in values.items() if isinstance(each, Mapping)}
    arrays = {k: v for k, v in values.items() if isinstance(v, list) and v and is_table(v)}
    for key, each in values.items():
        if key not in nested and key not in arrays:
            yield f"{key} = {dump(each)}"
    for key, each in nested.items():
        yield f"[{head}{key}]"
        yield from tables(each, f"{head}{key}.")
    for key, array in arrays.items():
        for each in array:
            yield f"[[{head}{key}]]"
            yield from tables(each, f"{head}{key}.")


def is_table(array: list[Any]) -> bool:
    return all(isinstance(each, Mapping) for each in array)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values"), KINDS, ids=["record", "client", "serve", "scenario"])
def test_whatever_is_wrong_is_told_in_plain_words_with_its_line(
    kind: type[Section], values: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "file.toml"
    path.write_text("\n".join(tables(values)))
    assert parse(kind, read_toml(path), str(path)), "what the wrong values are put into is right"
    refused = 0
    places = [place for place in paths(values) if not told_elsewhere(place, values)]
    for place in places:
        for wrong in WRONG:
            path.write_text("\n".join(tables(replaced(values, place, wrong))))
            read = read_toml(path)
            try:
                parse(kind, read, "file")
            except ConfigError as error:
                check(str(error), place, read.lines)
                refused += 1
    assert refused > 3 * len(places)


def told_elsewhere(place: tuple[str | int, ...], values: dict[str, Any]) -> bool:
    """Groups differ in their rules, the second plan in its privacy: the rest is tried once."""
    if values.get("privacy") is CLIENT:
        return place[0] != "privacy"
    return place[0] == "group" and len(place) > 2 and place[1] != 0 and place[2] != "rule"


def check(told: str, place: tuple[str | int, ...], lines: Mapping[Any, int]) -> None:
    """Every complaint is about this key or what is in it, with the line."""
    if place[-1] in ("name", "unit"):  # which of several tables it is: the table is named
        place = place[:-1]
    key = "".join(f" {part + 1}" if isinstance(part, int) else f".{part}" for part in place)
    inside = {f"(line {line})" for own, line in lines.items() if own[: len(place)] == place}
    assert told.startswith("file: "), told
    assert key.removeprefix(".") in told, told
    assert any(line in told for line in inside or {f"(line {min(lines.values())})"}), told
    assert not JARGON.search(told), told
