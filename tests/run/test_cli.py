"""The command line: quick, helpful, and one line for every error."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.text import Text

from secureps import __version__
from secureps.client.runner import Joining
from secureps.errors import InternalError, Unreachable
from secureps.run import cli
from secureps.run.cli import app
from secureps.run.options import Command
from secureps.run.report.version_metrics import Extras
from secureps.run.up.programs import Order, imports_of_all
from tests.kits.command import commands, typed
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT
from tests.kits.party_kits import descriptor, phrase

COMMANDS = (
    *("new", "check", "audit", "up"),
    *("runs", "status", "dashboard", "log", "shards", "stop", "resume", "export"),
    *("simulate", "study"),
    *("keys", "serve", "join", "flower", "preflight", "warm", "backup", "restore", "budget"),
)
"""In the order in which one needs them, a panel of `--help` a line."""


def test_help_names_every_command_in_order() -> None:
    shown = typed("--help").out
    found = [shown.index(f"│ {command} ") for command in COMMANDS]
    assert found == sorted(found)
    assert shown.count("╭─") == 5, "options, and four panels of commands"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    shown = typed(command, "--help").out
    assert f"secureps {command}" in shown
    assert "None" not in shown, "of an option without an environment variable"


@pytest.mark.parametrize(
    "words", [("export", "run"), ("keys", "init", "kit"), ("audit-log", "export", "state")]
)
def test_a_missing_option_is_named_without_a_variable_that_it_does_not_have(
    words: tuple[str, ...],
) -> None:
    said = typed(*words, status=2).err
    assert "Missing option '--" in said
    assert "None" not in said


def test_preflight_holds_no_site_policy_against_a_servers_file() -> None:
    words = ("preflight", "--config", "shard.toml", "--plan", "plan.toml", "--site", "site.toml")
    assert "are for data holders" in typed(*words, status=2).err


def test_help_shows_the_words_that_stand_in_brackets() -> None:
    """Without a backslash a plan's [scaling] is taken for a style, and left out."""
    for name, command in commands():
        for text in (command.help, *(getattr(each, "help", None) for each in command.params)):
            styles = {str(span.style) for span in Text.from_markup(text or "").spans}
            assert styles <= {"red"}, name


def test_version() -> None:
    assert typed("--version").out == f"secureps {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "nowhere.toml"),
        ("resume", "nowhere"),
        ("runs", "nowhere"),
        ("simulate", "nowhere.toml"),
        ("join", "nowhere.py", "--server", "127.0.0.1:1", "--kit", "kit", "--name", "me"),
        ("serve", "shard", "--config", "nowhere.toml"),
        ("export", "nowhere", "--out", "model.safetensors"),
        ("log", "nowhere"),
        ("stop", "nowhere"),
        ("keys", "show", "nowhere"),
        ("status", "--server", "127.0.0.1:1", "--kit", "nowhere", "--name", "me"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_not_there_is_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    told = typed(*arguments, status=78 if arguments[0] in ("join", "serve") else 1)
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith("error: ")
    assert "nowhere" in told.err
    assert told.err.endswith("(this side's fault)\n")
    assert list(tmp_path.iterdir()) == []


def test_join_counts_by_the_records_that_are_told_on_the_node_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int | None, str]] = []

    def take_part(script: Path, joining: Joining, settings: object, pin: str) -> str:
        seen.append((joining.records, pin))
        return "over"

    monkeypatch.setattr("secureps.run.join.join", take_part)
    who = ("join", "script.py", "--server", "127.0.0.1:1", "--kit", "kit", "--name", "me")
    typed(*who, "--records", "250", "--pin", "1")
    typed(*who)
    assert seen == [(250, "1"), (None, "off")]
    typed(*who, "--pin", "both", status=2)


def test_join_has_its_passphrase_before_the_script_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    number, seen = descriptor("six words"), list[bytes]()

    def take_part(script: Path, joining: Joining, settings: object, pin: str) -> str:
        with pytest.raises(OSError):
            os.fstat(number)
        seen.append(joining.passphrases.lock(b"a key"))
        assert "six words" not in repr(joining)
        return "over"

    monkeypatch.setattr("secureps.run.join.join", take_part)
    who = ("join", "script.py", "--server", "127.0.0.1:1", "--kit", "kit", "--name", "me")
    typed(*who, "--passphrase-fd", str(number))
    assert phrase("six words").unlock(Path("me"), seen[0]) == b"a key"


def test_join_says_itself_again_for_the_client_that_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its words look like, and without --hold and --passphrase-fd."""
    again, seen = list[list[str]](), list[object]()

    def hold(joining: Joining, words: list[str], log_format: str, passphrase: bytes) -> str:
        again.append(words)
        seen.append(passphrase)
        return "over"

    def take_part(script: Path, joining: Joining, settings: object, pin: str) -> str:
        seen.extend((script, joining.ledger, joining.insecure, settings, pin))
        return "over"

    monkeypatch.setattr("secureps.run.join.join_and_hold", hold)
    monkeypatch.setattr("secureps.run.join.join", take_part)
    who = ("join", "--server", "127.0.0.1:1", "--kit", "kit", "--name=me", "--insecure")
    own = ("--set", "a= --hold", "--set=b=2", "--ledger", "--hold", "--pin=1", "--hold")
    typed(*who, *own, "--passphrase-fd", str(descriptor("four words")), "--", "--x.py")
    typed(*again[0])
    given = (Path("--x.py"), Path("--hold"), True, {"a": " --hold", "b": 2}, "1")
    assert seen == [b"four words", *given]


def test_an_error_of_many_lines_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **given: object) -> None:
        raise Unreachable("no\n  connection")

    monkeypatch.setattr(cli, "app", fail)
    assert typed(status=1).err == "error: no connection (the other side's fault)\n"


def test_a_bug_of_ours_is_a_traceback_and_a_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(error: Exception, *words: object, **given: object) -> None:
        raise error

    bug = InternalError("client-00 failed at Tick")
    bug.__cause__ = KeyError("x")
    for error, line in (
        (KeyError("x"), "error: a bug of secureps: KeyError: 'x' (test_cli.py:"),
        (bug, "error: client-00 failed at Tick (our own fault)"),
    ):
        monkeypatch.setattr(cli, "app", partial(fail, error))
        *traceback, last = typed(status=1).err.splitlines()
        assert last.startswith(line)
        assert last.endswith("(our own fault)")
        assert traceback[-1] == "KeyError: 'x'"


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("secureps.run.serve.serve", interrupt)
    told = typed("serve", "shard", "--config", "x.toml", status=130)
    assert (told.out, told.err) == ("", "")


@pytest.mark.parametrize(
    ("command", "module"), [("up", "up.up"), ("simulate", "simulate.simulation")]
)
@pytest.mark.parametrize(("wanted", "threads"), [(None, "1"), ("3", "3")])
def test_one_thread_unless_told_otherwise(
    command: str, module: str, wanted: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known before the script, and torch with it, is loaded."""
    monkeypatch.setenv("OMP_NUM_THREADS", wanted or "")
    if wanted is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    seen: list[str | None] = []

    def play(*_: object, **__: object) -> None:
        seen.append(os.environ.get("OMP_NUM_THREADS"))

    monkeypatch.setattr(f"secureps.run.{module}.{command}", play)
    typed(command, "x.toml")
    assert seen == [threads]


@pytest.mark.parametrize("wanted", [None, "false"])
def test_extras_are_handed_on_and_mlflow_keeps_to_itself(
    wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow reports its use to its makers, unless the environment says otherwise."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", wanted or "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if wanted is None:
        monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    seen: list[object] = []

    def play_up(order: Order, console: object) -> None:
        seen.append((order.extras, os.environ["MLFLOW_DISABLE_TELEMETRY"]))

    def play_simulate(scenario: Path, out: Path | None, extras: Extras, **more: object) -> None:
        assert more == {"engine": "here", "copies": None}
        seen.append((extras, os.environ["MLFLOW_DISABLE_TELEMETRY"]))

    monkeypatch.setattr("secureps.run.up.up.up", play_up)
    monkeypatch.setattr("secureps.run.simulate.simulation.simulate", play_simulate)
    for command in ("up", "simulate"):
        typed(command, "x.toml", "--tensorboard", "tb", "--mlflow", "ml")
        typed(command, "x.toml")
    told = wanted or "true"
    assert seen == [(Extras(Path("tb"), "ml"), told), (Extras(), told)] * 2


def test_usage_errors_end_with_2() -> None:
    assert "king" in typed("serve", "king", "--config", "x.toml", status=2).err
    typed("dance", status=2)
    for words in (
        ("up", "plan.toml", "--unsafe-seed", "-1"),
        ("study", "x.toml", "--workers", "0"),
    ):
        assert "env var" not in typed(*words, status=2).err


@pytest.mark.parametrize(("wanted", "found"), [(None, "NONE"), ("DEBUG", "DEBUG")])
def test_grpc_writes_no_lines_of_its_own_unless_it_is_asked_to(
    wanted: str | None, found: str
) -> None:
    """Of a process of its own: what counts is what is set before grpc is imported."""
    code = (
        "import os, sys; from secureps.run import cli; assert 'grpc' not in sys.modules; "
        "import secureps.wire.grpc.client; print(os.environ['GRPC_VERBOSITY'])"
    )
    own = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
    own |= {} if wanted is None else {"GRPC_VERBOSITY": wanted}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`?secureps ([a-z]+(?: [a-z]+)?)")

OF_OTHERS = {"--node-config", "--partition", "--head", "--from-literal"}
"""Of Flower's, Slurm's, Ray's and kubectl's own commands."""


def options() -> dict[str, set[str]]:
    """By command, as "join" or "keys issue"; and of a data holder's own script."""
    found = {n: {o for p in c.params for o in p.opts} | {"--help"} for n, c in commands()}
    return found | {"script": found["join"] | {"--profile", "--kernels"}}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module, f-strings as one; without docstrings."""
    tree = ast.parse(path.read_text())
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    inner = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in inner:
            inner |= {id(each) for each in ast.walk(node) if each is not node}
            parts = (v.value if isinstance(v, ast.Constant) else "..." for v in node.values)
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        own = id(node) not in silent | inner
        if own and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def wrong(text: str, known: dict[str, set[str]]) -> set[str]:
    """Options in a text that the command which it names does not have; or no command, if none."""
    named = set(OPTION.findall(text)) - OF_OTHERS
    if not named or " " not in text:  # an argument, no sentence
        return set()
    if (command := COMMAND.search(text)) is None:
        return named - set().union(*known.values())
    words = command[1].split()
    return named - (known.get(" ".join(words)) or known.get(words[0]) or set())


@pytest.mark.slow
def test_options_that_are_named_are_there() -> None:
    known = options()
    assert wrong("by `secureps join --set a=1`", known) == set()
    assert wrong("by `secureps check --set a=1`", known) == {"--set"}
    found = [
        (path, line, absent)
        for path in sorted((ROOT / "secureps").rglob("*.py"))
        for line, text in texts(path)
        for said in text.split("\n")
        if (absent := wrong(said, known))
    ]
    assert not found


@pytest.mark.parametrize("name", ["serve", "join"])
def test_forks_of_up_have_the_modules_of_their_commands(name: str) -> None:
    command = app.commands[name]
    assert isinstance(command, Command)
    module, _, _ = command.function.partition(":")
    assert {f"secureps.{module}", f"secureps.run.{name}"} <= set(imports_of_all(small_plan()))
