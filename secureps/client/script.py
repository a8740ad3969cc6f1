"""Loads a data holder's script by its path: one with `make(settings)`, or a Flower app."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from secureps.client.initial_model import ServerAppResult
from secureps.client.settings import TrackedSettings, only_importing
from secureps.client.trainer import (
    EvaluateResult,
    Evaluator,
    Setting,
    Trainer,
    blamed,
    convert_evaluation,
    record_privacy,
)
from secureps.errors import ConfigError, PlanRefused, ScriptFailed, SecurepsError, naming
from secureps.extras import from_extras
from secureps.policy.plan import Plan
from secureps.tracebacks import describe_error, find_place

if TYPE_CHECKING:
    from secureps.client.flower.script import FlowerScript


def is_flower_app(path: Path) -> bool:
    """Tells whether a script is a Flower app: a project's folder, or a file that imports flwr.

    The file is not run. If it defines `make`, it is no Flower app.
    """
    if path.is_dir():
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    if any(isinstance(node, ast.FunctionDef) and node.name == "make" for node in tree.body):
        return False
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module or "")
    return any(name.partition(".")[0] == "flwr" for name in imported)


def refuse_privacy(path: Path, plan: Plan) -> None:
    """Refuses a Flower app under a plan with record privacy, before anything starts."""
    # An app takes its own steps, without clip and noise, so an epsilon would be false.
    federation = plan.section.federation
    numbers = () if federation is None else federation.records
    if record_privacy(plan, *numbers[:1]) is not None and is_flower_app(path):
        from secureps.client.flower.script import NO_RECORD_PRIVACY

        raise PlanRefused(f"{path}: {NO_RECORD_PRIVACY}")


class Script:
    """A data holder's script, with `make(settings)` and perhaps `make_evaluator` and `central`.

    It may also be a Flower app, which has no `central`. Raises ConfigError if it is neither or
    lacks an extra, ScriptFailed if it does not import.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._app: FlowerScript | None = None
        self._functions: dict[str, Any] = {}
        if is_flower_app(path):
            # flwr is an extra, and takes half a second
            from secureps.client.flower.script import FlowerScript

            self._app = FlowerScript.at(path, _load)
            return
        self._functions = vars(_load(path))
        if not callable(self._functions.get("make")):
            raise ConfigError(
                f"{path}: has no function make(settings) that returns a trainer, and is no "
                "Flower app"
            )

    def make(
        self, settings: Mapping[str, Setting], state: Path | None = None, name: str = ""
    ) -> Trainer:
        """Makes one client's trainer, with its `state` in a folder, or in memory if None.

        Raises ConfigError for an unknown setting, ScriptFailed if the script raised.
        """
        with blamed("make(settings)"):
            if self._app is not None:
                return self._app.make(settings, state, name)
            asked = TrackedSettings(settings)
            with naming(self.path, ConfigError), naming(self.path, ScriptFailed):
                made: Trainer = self._functions["make"](asked)
        asked.refuse_misspelt()
        return made

    def run_server_app(
        self, settings: Mapping[str, Setting], versions: int, seed: int, clients: int
    ) -> ServerAppResult | None:
        """Runs a Flower app's ServerApp once, and returns its decisions; None if there is none."""
        return (
            None
            if self._app is None
            else self._app.run_server_app(settings, versions, seed, clients)
        )

    @property
    def own_code(self) -> str:
        """Why only clients may run the script; empty if anybody may."""
        return "" if self._app is None else self._app.own_code

    @property
    def why_not_central(self) -> str:
        """Why there is no `central` baseline; empty if the script has one."""
        if self._app is not None:
            return "a Flower app trains in its clients alone"
        return "" if self._functions.get("central") else "the script has no central(settings)"

    def make_evaluator(self, settings: Mapping[str, Setting]) -> Evaluator | None:
        """Makes the evaluator of the federation's held-out records; None if there is none."""
        build = self._functions.get("make_evaluator")
        if self._app is not None:
            build = self._app.make_evaluator
        with blamed("make_evaluator(settings)"):
            made: Evaluator | None = None if build is None else build(TrackedSettings(settings))
        return made

    def central(self, settings: Mapping[str, Setting]) -> EvaluateResult | None:
        """Trains the baseline on all records; None if the script has none."""
        train = self._functions.get("central")
        with blamed("central(settings)"):
            made = None if train is None else train(TrackedSettings(settings))
        with blamed("what central(settings) returned"):
            return None if made is None else convert_evaluation(made)


@contextmanager
def without_arguments(path: Path) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = before


class _Uncached(SourceFileLoader):
    """Always compiles the source, because only the source was checked, not a compiled file."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(f"{path} is compiled whenever it is loaded")


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such script")
    if path.suffix not in SOURCE_SUFFIXES:
        raise ConfigError(f"{path}: not a Python script")
    name = path.stem
    _refuse_name(path, name)
    loader = _Uncached(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # A script's own processes import it by this name, from the first folder of sys.path.
    sys.modules[name] = module
    beside = str(path.parent.resolve())
    if sys.path[:1] != [beside]:
        sys.path.insert(0, beside)
    try:
        with only_importing(), from_extras(), without_arguments(path):
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, SecurepsError):
            raise
        hint = "; what it needs comes as settings" if isinstance(error, SystemExit) else ""
        text = f"{path}: does not import: {describe_error(error)} ({find_place(error)}){hint}"
        raise ScriptFailed(f"{text}; mend the script, or install what it imports") from error
    return module


def _refuse_name(path: Path, name: str) -> None:
    """Refuses a name by which no other process could import the script (ConfigError)."""
    known = sys.modules.get(name)
    if known is not None and not isinstance(known.__loader__, _Uncached):
        file = getattr(known, "__file__", None)
        if file is None or not Path(file).exists() or not path.samefile(file):
            raise ConfigError(
                f"{path}: processes that this script starts import it as {name!r}, and Python has "
                f"another module of that name ({file or 'built in'}): rename the script"
            )
    if "." in name:
        raise ConfigError(
            f"{path}: processes that this script starts import it as {name!r}, and Python takes "
            f"the dot for a package: rename it to {name.replace('.', '_')}{path.suffix}"
        )
