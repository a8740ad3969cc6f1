"""Settings keep their types from a plan to a script, and a misspelt one is refused."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from secureps.client.runner import Joining
from secureps.client.script import Script
from secureps.client.settings import TrackedSettings, read_run_config, read_settings
from secureps.config.plan import FederationSection
from secureps.config.sections import toml_value
from secureps.errors import ConfigError, ScriptFailed
from secureps.policy.plan import load_plan
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import Cast, RunFolder
from secureps.run.up.programs import Order, Programs

VALUES: dict[str, Any] = {
    "flag": False,
    "count": 3,
    "rate": 1e-05,
    "whole": 2.0,
    "name": "two words",
    "digits": "007",
    "number": "12",
    "truth": "true",
    "odd": 'a "quoted" \\ line\nä \x7f',
    "minus": -1,
}


@pytest.mark.parametrize(
    "text", ["[1, 2]", "2026-11-22", "1\nother = 2", "{a = 1}", "nan", "inf", ""]
)
def test_what_is_no_plain_value_is_text(text: str) -> None:
    assert toml_value(text) == text


def test_a_command_line_says_types_too() -> None:
    given = ["flag=false", "rate=0.5", "data=mine.npz", 'code="12"', "sum=a=b"]
    expected = {"flag": False, "rate": 0.5, "data": "mine.npz", "code": "12", "sum": "a=b"}
    assert read_settings(given) == expected


def test_a_clients_command_has_a_plans_settings_of_their_types(tmp_path: Path) -> None:
    """`settings = { flag = false }` once came as the text "False", which is true."""
    path = tmp_path / "plan.toml"
    path.write_text('name = "a"\nversions = 1\n[[group]]\nrule = { quorum = 5 }\n')
    federation = FederationSection(script="script.py", clients=5, settings=VALUES)
    plan = load_plan(path)
    order = Order(path, None, None, {})
    programs = Programs(order, RunFolder(tmp_path), plan, federation, Cast.of(plan, 5))
    arguments = list(programs._client("client-03", "here:1", 3).arguments)
    told = [after for at, after in itertools.pairwise(arguments) if at == "--set"]
    found = read_settings(told)
    assert found == {**VALUES, "partition": 3, "partitions": 5}
    assert [type(found[name]) for name in VALUES] == [type(value) for value in VALUES.values()]


def loaded(folder: Path, text: str) -> Script:
    path = folder / "script.py"
    path.write_text(text)
    return Script(path)


def test_a_misspelt_setting_of_a_script_is_refused(tmp_path: Path) -> None:
    script = loaded(tmp_path, "def make(settings): return settings.get('alpha', 1.0)\n")
    assert script.make({"alpha": 2.0, "unheard": 1}) == 2.0  # type: ignore[comparison-overlap]
    with pytest.raises(ConfigError, match=r"setting 'aplha' is not known; did you mean alpha\?"):
        script.make({"aplha": 2.0})


def test_whoever_looks_at_all_settings_knows_them_all() -> None:
    asked = TrackedSettings({"aplha": 1, "beta": 2})
    assert {**asked} == {"aplha": 1, "beta": 2}
    assert "alpha" not in asked
    asked.refuse_misspelt()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"row": 3}, "'rows' is not given; did you mean row? given are row"),
        ({"partition": 0}, "'rows' is not given; given are partition"),
        ({}, "'rows' is not given; no setting is"),
    ],
)
def test_a_setting_that_a_script_misses_is_named_with_the_nearest(
    given: dict[str, Any], text: str, tmp_path: Path
) -> None:
    names = "make", "make_evaluator", "central"
    asks = "def {}(settings):\n    return settings['rows']\n"
    script = loaded(tmp_path, "".join(map(asks.format, names)))
    for line, call in ((2, script.make), (4, script.make_evaluator), (6, script.central)):
        with pytest.raises(ScriptFailed) as raised:
            call(given)
        where = "give it by `secureps join --set rows=...`, or in the settings of [federation]"
        assert f"MissingSetting: {text}; {where} or of a scenario (script.py:{line} in " in str(
            raised.value
        )


def test_a_missing_setting_is_a_key_error_of_its_key() -> None:
    """A script may ask for one that it can do without, as of any dictionary."""
    with pytest.raises(KeyError) as raised:
        TrackedSettings({"row": 1})["rows"]
    assert raised.value.args == ("rows",)


@pytest.mark.parametrize(
    ("server", "right"),
    [
        ("ps.example", "ps.example:PORT"),
        ("ps.example:0", "ps.example:PORT"),
        ("ps.example:70000", "ps.example:PORT"),
        (":7600", "HOST:7600"),
        ("7600", "HOST:7600"),
        ("a,ps.example:1", "a:PORT"),
        ("http://ps.example:7600", "ps.example:7600"),
        ("https://ps.example/run:1", "ps.example:PORT"),
        ("ps.example:7600/", "ps.example:7600"),
    ],
)
def test_a_server_has_a_host_and_a_port(server: str, right: str, tmp_path: Path) -> None:
    """Whoever joins and whoever asks for the status hears the right form."""
    told = f"^server {server}: expected HOST:PORT, the coordinator's, as in {right}$"
    with pytest.raises(ConfigError, match=told):
        Joining(server, tmp_path, "me", tmp_path)
    with pytest.raises(ConfigError, match=told):
        StatusClient(tmp_path, "me", server)


# --- as Flower spells them --------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], {}),
        (["lr=0.1 rounds=3 deep.on=true"], {"lr": 0.1, "rounds": 3, "deep.on": True}),
        (["name='two words' other=\"x\"", "lr=2"], {"name": "two words", "other": "x", "lr": 2}),
    ],
)
def test_run_config_is_read_as_flwr_run_reads_it(
    given: list[str], meant: dict[str, object]
) -> None:
    assert read_run_config(given) == meant
    assert {k: type(v) for k, v in meant.items()} == {
        k: type(v) for k, v in read_run_config(given).items()
    }
    flowers = pytest.importorskip("flwr.common.config").parse_config_args
    assert flowers(given) == meant


def test_run_config_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('lr = 0.1\n[deep]\nname = "x"\n')
    assert read_run_config([str(file)]) == {"lr": 0.1, "deep.name": "x"}
    file.write_text("lr = [1]\n")
    with pytest.raises(ConfigError, match="lr is no plain value"):
        read_run_config([str(file)])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("lr", "expected KEY=VALUE"),
        ("lr=1 and", "expected KEY=VALUE"),
        ("name=x", "quote a text: name='x'"),
        ("lr=[1]", "quote a text"),
    ],
)
def test_run_config_that_flower_would_not_read_is_refused(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_run_config([given])
