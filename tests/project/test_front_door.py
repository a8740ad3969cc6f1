"""`import secureps as ps`: what it has, what it costs, and that its examples run."""

import ast
import asyncio
import doctest
import importlib
import operator
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secureps as ps
from secureps.client.script import Script
from tests.kits.disk_federation import DiskFederation
from tests.kits.nursery import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()

ALIASES = ("Array", "Parameters")
"""Names of types, which have no docstring of their own."""

WITH_A_SERVER = ("Session", "join")

_FENCE = re.compile(r"^```(python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'\A(?:"""|# )([\w.]+\.(?:py|toml))')


def test_importing_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import secureps; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - sys.stdlib_module_names), 'typing' in new, secureps.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"['secureps'] False {ps.__version__}"


def typed() -> dict[str, str]:
    tree = ast.parse(Path(ps.__file__).read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If))
    return {
        alias.asname or alias.name: f"{each.module}.{alias.name}"
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }


@pytest.mark.slow
def test_every_public_name_is_what_type_checkers_are_told() -> None:
    names = typed()
    assert ps.__all__ == sorted(names, key=lambda n: (not n[0].isupper(), n))
    for name, home in names.items():
        module, _, attribute = home.rpartition(".")
        found = getattr(importlib.import_module(module), attribute, None)
        assert getattr(ps, name) is (found or importlib.import_module(home)), name
    assert set(dir(ps)) == {*ps.__all__, "__version__"}


WHO = {"server": "h:1", "name": "me", "initial": {}, "examples": 9}


@pytest.mark.parametrize(
    ("name", "given", "named", "text"),
    [
        ("check", [5], {}, "plan must be Path | str, got 5"),
        ("check", ["p"], {"epsilon": "3"}, "epsilon must be float | None, got '3'"),
        ("up", ["p"], {"unsafe_seed": 1.5}, "unsafe_seed must be int | None, got 1.5"),
        ("simulate", ["p"], {"quiet": [1]}, "quiet must be bool, got a list"),
        ("load_plan", [None], {}, "path must be Path | str, got a NoneType"),
        ("run_client", [5], {}, "make must be Callable[[Mapping[str, Any]], Trainer], got 5"),
        ("dirichlet", [np.zeros(9), True, 1.0, 1], {}, "parties must be int, got True"),
        ("join", ["kit", "p"], {**WHO, "examples": "9"}, "examples must be int, got '9'"),
        ("join", ["kit"], WHO, "missing a required argument: 'plan'"),
        ("join", ["kit", "p"], {**WHO, "sealing": 1}, "got an unexpected keyword argument 'seal"),
    ],
)
def test_a_wrong_argument_is_named_at_the_front_door(
    name: str, given: list[Any], named: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match="^" + re.escape(f"{name}: {text}")):
        getattr(ps, name)(*given, **named)


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'secureps' has no attribute 'runclient'"):
        ps.runclient  # type: ignore[attr-defined]  # noqa: B018


def test_errors_are_called_on_the_page_as_a_script_catches_them() -> None:
    """A script that writes `except ps.NAME` of a name that is not there hides its own error."""
    named = re.findall(r"`((?:\w+\.)*\w+)`", PAGE)
    errors = [name for name in named if hasattr(ps.errors, name.split(".")[-1])]
    assert "ps.errors.ScriptFailed" in errors
    for name in errors:
        assert name.startswith("ps."), name
        assert operator.attrgetter(name.removeprefix("ps."))(ps), name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files of docs/python.md."""
    monkeypatch.chdir(tmp_path)
    for _, block in _FENCE.findall(PAGE):
        if name := _FILE.match(block):
            (tmp_path / name[1]).write_text(block)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """The coordinator of a run of the page's plan, in which `client-03` may take part."""
    script = Script(folder / "client.py")
    federation = DiskFederation(
        ps.load_plan("plan.toml"), folder, 4, lambda number: script.make({"partition": number})
    )
    with federation:
        yield federation.server


@pytest.mark.parametrize("name", [name for name in ps.__all__ if name not in ALIASES])
def test_every_name_has_an_example_that_runs(
    name: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    public = getattr(ps, name)
    text = public.__doc__ or ""
    assert "Examples:" in text, f"{name} has no example"
    scope: dict[str, Any] = {"ps": ps, "np": np, "__name__": "examples"}
    if name in WITH_A_SERVER:
        scope["server"] = request.getfixturevalue("server")
    example = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)
    assert not said, "".join(said)


def run_page(scope: dict[str, Any]) -> None:
    for language, block in _FENCE.findall(PAGE):
        if language == "python" and not _FILE.match(block):
            exec(compile(block, "docs/python.md", "exec"), scope)


@pytest.mark.slow
def test_the_page_runs_as_it_stands_in_a_notebook(folder: Path, server: str) -> None:
    """Cells run inside an event loop, and what they print goes to no terminal or file."""
    scope: dict[str, Any] = {"__name__": "page", "server": server}
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def cell() -> None:
        run_page(scope)

    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()):
        asyncio.run(cell())
    assert "version" in said.getvalue()
    assert "\x1b" not in said.getvalue(), "no live panel"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert scope["result"]._repr_html_().startswith("<table><tr><th>run</th><td>line</td>")
    assert scope["checked"]._repr_html_().startswith("<pre>line: sound.")


@pytest.mark.slow
def test_a_simulation_runs_in_any_thread(folder: Path) -> None:
    with ThreadPoolExecutor(1) as beside:
        result = beside.submit(ps.simulate, "scenario.toml", quiet=True).result()
    assert result.versions == {"all": 3}
    assert result.score == {"loss": result.history[-1]["loss"]}
    assert (result.folder, result.model_path.parent) == (folder / "runs" / "line",) * 2


def test_a_folder_without_a_finished_run_has_no_result(folder: Path) -> None:
    with pytest.raises(ps.ConfigError, match=r"no run has ended here: there is no summary\.json"):
        ps.RunResult.read(folder)


def test_crashes_are_dumped_where_a_notebook_has_no_stderr_of_its_own() -> None:
    code = (
        "import faulthandler, io, sys; sys.stderr = io.StringIO(); "
        "from secureps.tracebacks import dump_crashes; dump_crashes(); "
        "print(faulthandler.is_enabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def deeper(code: str) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("secureps.")}


@pytest.mark.parametrize("path", sorted((ROOT / "clients").rglob("*.py")), ids=lambda p: p.name)
def test_clients_import_from_the_front_door_alone(path: Path) -> None:
    assert deeper(path.read_text()) == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_code_of_the_docs_imports_from_the_front_door_alone(path: Path) -> None:
    blocks = [code for language, code in _FENCE.findall(path.read_text()) if language == "python"]
    assert set().union(*map(deeper, blocks)) == set()
