"""TOML files: a wrong value of any key is reported in plain words, with its line."""

import math
import re
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from secureps.config.plan import FederationSection, PlanSection
from secureps.config.scenario import ScenarioSection
from secureps.config.sections import (
    MEMORY,
    Section,
    Table,
    memory_bytes,
    memory_text,
    parse,
    read_toml,
    resolve_paths,
)
from secureps.config.site_files import ProfilesSection, ServeSection, SiteSection
from secureps.errors import ConfigError
from secureps.policy.plan import load_plan
from secureps.run.simulate.scenario_file import load_scenario

RULE = {"name": "ssp", "slack": 0}
PLAN = {"name": "demo", "versions": 1, "group": [{"rule": RULE}]}
SERVE = {"name": "shard-0", "kit": "kit", "state": "state"}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("kind", "of", "key"),
    [
        (PlanSection, lambda x: PLAN | {"lease": x}, "lease"),
        (PlanSection, lambda x: PLAN | {"training": {"rate": x}}, "training.rate"),
        (
            PlanSection,
            lambda x: PLAN | {"group": [{"rule": RULE, "optimizer": {"betas": [x, 0.9]}}]},
            "group 1.optimizer.betas 1",
        ),
        (ServeSection, lambda x: SERVE | {"weight": x}, "weight"),
    ],
)
def test_no_number_is_infinite_or_none(
    kind: type[Section], of: Callable[[float], dict[str, Any]], key: str, number: float
) -> None:
    assert parse(kind, of(0.5), "demo.toml")
    with pytest.raises(ConfigError) as caught:
        parse(kind, of(number), "demo.toml")
    (complaint,) = str(caught.value).split("; ")
    assert complaint.startswith(f"demo.toml: {key}: must be a finite number")


def test_settings_that_begin_with_a_dot_are_paths_from_their_file(tmp_path: Path) -> None:
    settings = {"data": "./a.npz", "up": "../b", "name": "c", "lr": 0.5, "dots": ".hidden"}
    settings |= {"here": ".", "above": "..", "more": "..more", "none": ""}
    assert resolve_paths(settings, tmp_path / "plans") == {
        "data": str(tmp_path / "plans" / "a.npz"),
        "up": str(tmp_path / "b"),
        "name": "c",
        "lr": 0.5,
        "dots": ".hidden",
        "here": ".",
        "above": str(tmp_path),
        "more": "..more",
        "none": "",
    }


def test_a_plan_and_a_scenario_place_their_settings(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    (tmp_path / "plan.toml").write_text(
        'name = "p"\nversions = 1\n[[group]]\nrule = { quorum = 5 }\n'
        '[federation]\nscript = "script.py"\nclients = 5\nsettings = { data = "./mine" }\n'
    )
    federation = load_plan(tmp_path / "plan.toml").section.federation
    assert federation is not None
    assert federation.settings == {"data": str(tmp_path / "mine")}
    moved = load_plan(tmp_path / "plan.toml", tmp_path / "elsewhere").section.federation
    assert moved is not None
    assert moved.settings == {"data": str(tmp_path / "elsewhere" / "mine")}
    scenario = 'name = "s"\nplan = "plan.toml"\nscript = "script.py"\nclients = 5\n'
    (tmp_path / "s.toml").write_text(scenario + 'settings = { data = "./mine" }\n')
    assert load_scenario(tmp_path / "s.toml").settings(0)["data"] == str(tmp_path / "mine")


def test_one_table_where_a_list_of_them_is_wanted_shows_its_double_brackets() -> None:
    plan = {"name": "a", "versions": 1, "group": {"rule": {"quorum": 5}}}
    with pytest.raises(ConfigError, match=r"\(of tables: \[\[group\]\]\), and is a table"):
        parse(PlanSection, plan, "plan.toml")


def test_a_key_that_is_gone_names_what_to_do() -> None:
    wrong = {"name": "shard-0", "kit": "kit", "state": "state", "sealing": "gpu"}
    with pytest.raises(ConfigError, match="sealing: this key is gone: leave it out; servers open"):
        parse(ServeSection, wrong, "shard-0.toml")
    federation = {"script": "app", "clients": 2, "drop": ["aggregate_train"]}
    with pytest.raises(ConfigError, match=r"drop: this key is gone: .* inside Flower's engine"):
        parse(FederationSection, federation, "plan.toml")
    with pytest.raises(ConfigError, match="sealing: unknown key"):
        parse(FederationSection, {**federation, "drop": [], "sealing": "gpu"}, "plan.toml")
    with pytest.raises(ConfigError, match=r"shards_wait: this key is gone: .* 600\.0 in every"):
        parse(PlanSection, PLAN | {"shards_wait": 5.0}, "plan.toml")


@pytest.mark.parametrize("records", ["many", 300.0, 0])
def test_a_wrong_number_of_records_is_an_error_of_privacy_alone(records: object) -> None:
    """The groups' bound is filled in from it."""
    rest = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "sample_rate": 0.1}
    privacy = {"records": records, **rest, "delta": 1e-5, "budget": 8.0}
    with pytest.raises(ConfigError, match=r"privacy\.records: must be") as caught:
        parse(PlanSection, PLAN | {"privacy": privacy}, "plan.toml")
    assert "most_examples" not in str(caught.value)


def test_a_sections_keys_are_listed_once() -> None:
    """In a file of another kind all keys are unknown."""
    rule = {"name": "sync", "quorum": 5, "patience": 1}
    wrong = {"name": "demo", "more": 1, "shrads": 2, "zzz": 3, "group": [{"rule": rule}]}
    with pytest.raises(ConfigError) as caught:
        parse(PlanSection, wrong, "demo.toml")
    told = str(caught.value)
    assert told.count("known are name, versions") == 1
    assert "; shrads: unknown key; did you mean shards?; zzz: unknown key" in told
    assert "patience: unknown key; known are name, quorum" in told, "another section's are others"


def test_names_that_others_give_to_a_key_are_understood() -> None:
    group = {"rule": {"quorum": 5, "min_clients": 5}, "clip_norm": 1.0}
    privacy = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "budget": 8.0}
    with pytest.raises(ConfigError) as caught:
        parse(PlanSection, {"name": "a", "rounds": 5, "group": [group], "privacy": privacy}, "x")
    told = str(caught.value)
    assert "rounds: unknown key; did you mean versions?" in told
    assert "min_clients: unknown key; did you mean quorum?" in told
    assert "clip_norm: unknown key; did you mean clip?" in told
    assert "privacy.clip_norm: unknown key; did you mean max_grad_norm?" in told


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2 GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("3 kB", 3000),
        ("1 TiB", 1 << 40),
    ],
)
def test_bytes_have_a_unit(text: str, count: int) -> None:
    assert re.fullmatch(MEMORY, text)
    assert memory_bytes(text) == count


@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_a_wrong_key_of_privacy_is_named_whatever_its_unit(unit: str) -> None:
    """Both units of records have one section, and a location of pydantic has its tag."""
    with pytest.raises(ConfigError, match=r"privacy\.sigma: unknown key.*known are unit"):
        parse(PlanSection, {"privacy": {"unit": unit, "sigma": 1.0}}, "it")
    with pytest.raises(ConfigError, match=r"privacy\.delta: must be below 1"):
        parse(PlanSection, {"privacy": {"unit": unit, "delta": 1.0}}, "it")


@pytest.mark.parametrize("text", ["", "2", "GiB", "-1 GiB", "2 gib", "1e3 MB", "2 GiBs", "2  GB"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    assert re.fullmatch(MEMORY, text) is None


@pytest.mark.parametrize("count", [1, 1023, 1024, 5000, 3 << 20, (7 << 30) + 1, 1 << 42])
def test_bytes_are_told_as_they_may_be_written(count: int) -> None:
    assert count <= memory_bytes(memory_text(count)) < 2 * count + 1024


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_may_have_the_byte_order_mark_that_windows_writes(
    encoding: str, tmp_path: Path
) -> None:
    mark = "\ufeff" if encoding.startswith("utf-16-") else ""
    (tmp_path / "plan.toml").write_bytes(
        f"{mark}name = 'Zürich'\r\nversions = 3\r\n".encode(encoding)
    )
    read = read_toml(tmp_path / "plan.toml")
    assert read == {"name": "Zürich", "versions": 3}
    assert read.line(("versions",)) == 2


# --- where a key stands, and what is said of it ---------------------------------------

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
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("name",), 2),
        (("list", 2, "y", 0), 3),
        (("quoted key",), 6),
        (("dotted", "key", "a", "b"), 9),
        (("group",), 11),
        (("group", 0, "name"), 12),
        (("group", 0, "rule", "minimum"), 13),
        (("group", 0, "rule", "maximum"), 13),
        (("group", 1), 14),
        (("group", 1, "rule", "quorum"), 16),
        (("group", 1, "rule", "item", 0), 17),
        (("table",), 18),
        (("table", "in it", "z"), 19),
        (("table", "late"), 21),
        (("other",), None),
        ((), None),
    ],
)
def test_a_key_has_the_line_of_what_writes_it(
    key: tuple[str | int, ...], line: int | None, end: str, tmp_path: Path
) -> None:
    (tmp_path / "file.toml").write_bytes(TEXT.replace("\n", end).encode())
    assert read_toml(tmp_path / "file.toml").line(key) == line


def test_tables_that_lie_too_deep_are_the_plans_fault(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(f"{'.'.join(3000 * ['a'])} = 1")
    with pytest.raises(ConfigError, match="too deep in one another"):
        load_plan(tmp_path / "plan.toml")


WRONG_PLAN = """
name = "demo"
versions = 0

[privacy]
unit = "client"
noise_multiplier = 1.0
delta = 1e-5
budget = 8.0

[[group]]
rule = { quorum = 5, deadline = "long" }
[[group]]
codec = [
  "rotate",
  { name = "support", one_in = 1 },
]
[group.rule]
name = "buffered"
bufer = 8

[evaluation]
every = 1
metrics = { loss = 10.0 }
rule = { quorum = 0.5 }
"""


def test_every_wrong_key_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(WRONG_PLAN)
    with pytest.raises(ConfigError) as caught:
        load_plan(tmp_path / "plan.toml")
    told = str(caught.value).removeprefix(f"{tmp_path / 'plan.toml'}: ")
    for complaint in (
        "versions: must be 1 or more, and is 0 (line 3)",
        "privacy.placement: is missing (line 5)",
        'group 1.rule.deadline: must be a number, and is "long" (line 12)',
        "group 2.codec 2.one_in: must be 2 or more, and is 1 (line 14)",
        "group 2.rule.buffer: is missing (line 18)",
        "evaluation.rule.quorum: must be a whole number, and is 0.5 (line 25)",
    ):
        assert complaint in told
    assert re.search(
        r"group 2\.rule\.bufer: unknown key; did you mean buffer\? .* \(line 20\)", told
    )


def sections(kind: type[Section]) -> Iterator[type[Section]]:
    """Yields every section of every file that users write."""
    for each in kind.__subclasses__():
        yield each
        yield from sections(each)


FILES: list[type[Section]] = [PlanSection, ProfilesSection, ScenarioSection, ServeSection]
KINDS: dict[type[Section], None] = dict.fromkeys([*FILES, SiteSection, *sections(Table)])
KEYS = [(kind, key) for kind in KINDS for key in kind.model_fields]
WRONG: tuple[Any, ...] = (True, -7, 0.5, "7", [True], {"a": 1}, date(1979, 5, 27))
"""Values of every TOML type; no key accepts more than three of them."""

JARGON = re.compile(r"\b([Ii]nput|pydantic|Python|instance|tuple|dict\w*|parse|string|datetime)\b")
"""Words of a library, which do not tell a user what to do."""


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=lambda of: getattr(of, "__name__", of))
def test_whatever_is_wrong_is_told_in_plain_words(kind: type[Section], key: str) -> None:
    told = list[str]()
    for wrong in WRONG:
        try:
            parse(kind, {key: wrong}, "file")
        except ConfigError as error:
            told.append(str(error).removeprefix("file: "))
    assert not JARGON.search(" ".join(told))
    own = [[each for each in text.split("; ") if each.startswith(key)] for text in told]
    assert sum(not all(each.endswith("is missing") for each in named) for named in own) > 3
