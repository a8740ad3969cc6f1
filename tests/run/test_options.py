"""Commands are made once a process; a message names no option that its command does not have."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from secureps.client.runner import _parser
from secureps.run import cli
from secureps.run.cli import app
from secureps.run.deploy.commands import deploy
from secureps.run.keys import keys
from secureps.run.options import Tool
from secureps.run.up.programs import imports_of_all
from tests.kits.command import said
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`?secureps ([a-z]+(?: [a-z]+)?)")

OF_OTHERS = {"--node-config", "--partition", "--head", "--from-literal"}
"""Of Flower's, Slurm's, Ray's and kubectl's own commands."""


def options() -> dict[str, set[str]]:
    """By command, as "join" or "keys issue"; and of a data holder's own script."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        found[name] = {o for p in getattr(command, "params", ()) for o in p.opts} | {"--help"}
        for each, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {each}".strip())

    walk(get_command(app), "")
    for lazy, name in ((keys, "keys"), (deploy, "deploy")):  # imported when they are called
        walk(get_command(lazy), name)
    found["script"] = {o for a in _parser()._actions for o in a.option_strings}
    return found


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


doubling = Tool()


@doubling.command()
def double(number: int) -> None:
    typer.echo(2 * number)


def test_its_commands_are_made_once_and_run_as_typers() -> None:
    assert doubling.commands() is doubling.commands()
    for number in (2, 3):
        assert said(doubling, str(number)) == f"{2 * number}\n"
    assert doubling(args=["4"], standalone_mode=False) is None


def test_forks_of_up_find_those_of_the_command_line() -> None:
    """By the name that they are imported by."""
    (named,) = (each for each in imports_of_all(small_plan()) if "commands" in each)
    assert pkgutil.resolve_name(named)() is cli.app.commands()
