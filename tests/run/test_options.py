"""Forks have their commands' modules; a message names no option that a command does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.client.runner import _parser
from secureps.run.cli import app
from secureps.run.options import Command
from secureps.run.up.programs import imports_of_all
from tests.kits.command import commands
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`?secureps ([a-z]+(?: [a-z]+)?)")

OF_OTHERS = {"--node-config", "--partition", "--head", "--from-literal"}
"""Of Flower's, Slurm's, Ray's and kubectl's own commands."""


def options() -> dict[str, set[str]]:
    """By command, as "join" or "keys issue"; and of a data holder's own script."""
    found = {n: {o for p in c.params for o in p.opts} | {"--help"} for n, c in commands()}
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


# --- modules ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["serve", "join"])
def test_forks_of_up_have_the_modules_of_their_commands(name: str) -> None:
    command = app.commands[name]
    assert isinstance(command, Command)
    module, _, _ = command.function.partition(":")
    assert f"secureps.{module}" in imports_of_all(small_plan())
