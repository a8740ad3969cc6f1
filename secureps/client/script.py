"""Loads a data holder's script by its path, for those who play several holders at once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

from secureps.client.trainer import EvaluateResult, Trainer
from secureps.errors import ConfigError

Make = Callable[[Mapping[str, str]], Trainer]


class Script:
    """A script with `make(settings)`; `make_evaluator` and `central` are optional.

    Raises:
        ConfigError: no such file, it does not import, or it has no `make`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module = _load(path)
        if not callable(getattr(self._module, "make", None)):
            raise ConfigError(f"{path}: has no function make(settings) that returns a trainer")

    def make(self, settings: Mapping[str, str]) -> Trainer:
        """One data holder's trainer."""
        return cast(Trainer, self._module.make(settings))

    def make_evaluator(self, settings: Mapping[str, str]) -> Trainer | None:
        """The trainer that judges on the federation's own held-out set, if the script has one."""
        build = getattr(self._module, "make_evaluator", None)
        return None if build is None else cast(Trainer, build(settings))

    def central(self, settings: Mapping[str, str]) -> EvaluateResult | None:
        """What one party that held everything would reach, if the script can tell."""
        train = getattr(self._module, "central", None)
        return None if train is None else cast(EvaluateResult, train(settings))


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such script")
    name = f"secureps_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass of the script looks itself up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path}: does not import: {type(error).__name__}: {error}") from error
    return module
