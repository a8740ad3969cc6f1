"""A parameter server for training on data that may not leave its owner.

    import secureps as ps

Scripts and notebooks need only the names below. Each is imported when it is first used, so that
`import secureps` itself imports only the standard library.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
"""Type checkers read it as True. Importing `typing` for it would take longer than the rest here."""

__version__ = "0.3.0"

__all__ = [
    "Array",
    "ConfigError",
    "EvaluateResult",
    "FitConfig",
    "FitResult",
    "Parameters",
    "PlanCheck",
    "PlanRefused",
    "PulledModel",
    "RecordPrivacy",
    "RunResult",
    "SecurepsError",
    "Session",
    "Settings",
    "TorchTrainer",
    "Trainer",
    "check",
    "clicks",
    "datasets",
    "dirichlet",
    "errors",
    "join",
    "load_plan",
    "patch",
    "rules",
    "run_client",
    "run_flower",
    "simulate",
    "up",
]

if TYPE_CHECKING:
    from secureps import errors
    from secureps.client.patch import patch
    from secureps.client.session import PulledModel, Session, join
    from secureps.client.settings import Settings
    from secureps.client.torch import TorchTrainer
    from secureps.client.trainer import (
        Array,
        EvaluateResult,
        FitConfig,
        FitResult,
        Parameters,
        RecordPrivacy,
        Trainer,
    )
    from secureps.errors import ConfigError, PlanRefused, SecurepsError
    from secureps.policy.plan import load_plan
    from secureps.policy.rules import rule as rules
    from secureps.run.api import PlanCheck, RunResult, check, simulate, up
    from secureps.run.own_script import run_client, run_flower
    from secureps.scenario import clicks, datasets
    from secureps.scenario.datasets import dirichlet
else:
    _MODULES = {
        "clicks": "secureps.scenario.clicks",
        "datasets": "secureps.scenario.datasets",
        "errors": "secureps.errors",
        "rules": "secureps.policy.rules.rule",
    }
    _NAMES = {
        "secureps.client.patch": "patch",
        "secureps.client.settings": "Settings",
        "secureps.client.session": "PulledModel Session join",
        "secureps.client.torch": "TorchTrainer",
        "secureps.client.trainer": (
            "Array EvaluateResult FitConfig FitResult Parameters RecordPrivacy Trainer"
        ),
        "secureps.errors": "ConfigError PlanRefused SecurepsError",
        "secureps.policy.plan": "load_plan",
        "secureps.run.api": "PlanCheck RunResult check simulate up",
        "secureps.run.own_script": "run_client run_flower",
        "secureps.scenario.datasets": "dirichlet",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Imports a public name when it is first used; ConfigError if it needs an extra."""
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name not in _HOMES:
            raise AttributeError(f"module 'secureps' has no attribute {name!r}")
        from secureps.extras import from_extras

        with from_extras():
            home = import_module(_HOMES[name])
        found = globals()[name] = getattr(home, name)
        return found

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
