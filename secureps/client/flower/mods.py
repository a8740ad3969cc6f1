"""Refuses Flower mods that do not work without Flower's server.

All others run as they are, around the app.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterator
from typing import Any

from flwr.clientapp import ClientApp

from secureps.errors import ConfigError

log = logging.getLogger("secureps")

_SUMS = (
    "needs Flower's own server; remove it: secureps encrypts every update and sums without "
    "seeing one"
)
_CLIPS = (
    "is one half of Flower's central privacy, and its server has the other; remove it: the plan's "
    "`clip` bounds every update"
)
NEEDS_SERVER = {
    "secagg_mod": _SUMS,
    "secaggplus_mod": _SUMS,
    "fixedclipping_mod": _CLIPS,
    "adaptiveclipping_mod": _CLIPS,
}
"""Flower's mods that are refused, and why; and all others for its secure aggregation."""


def check_mods(app: ClientApp, where: str, legacy: bool) -> None:
    """Refuses mods that cannot do their work here (ConfigError, which says why).

    In a `legacy` app a client_fn answers, instead of functions that take messages.
    """
    for mod in {id(mod): mod for mod in _mods(app)}.values():
        _refuse(where, mod, legacy)


def has_mods(app: ClientApp) -> bool:
    """Whether an app or one of its functions has a mod."""
    return next(_mods(app), None) is not None


def _mods(app: ClientApp) -> Iterator[Any]:
    """Yields all mods of an app and of its functions, from outside in."""
    yield from app._mods
    functions: list[Any] = list(app._registered_funcs.values())
    for function in functions:
        while inspect.isfunction(function):
            inside = inspect.getclosurevars(function).nonlocals
            if "_mod" in inside:  # as flwr.client.mod.make_ffn names them
                yield inside["_mod"]
            function = inside.get("_ffn")


def _refuse(where: str, mod: Any, legacy: bool) -> None:
    while isinstance(mod, functools.partial):
        mod = mod.func
    kind = mod if hasattr(mod, "__name__") else type(mod)
    name, module = kind.__name__, kind.__module__
    sums = "secagg" in name.lower() or "secure_aggregation" in module
    if why := NEEDS_SERVER.get(name, _SUMS if sums else ""):
        raise ConfigError(f"{where}: mod {name} {why}")
    if name != "LocalDpMod" or not module.startswith("flwr."):
        return
    if legacy != module.startswith("flwr.client."):
        own, other = ("flwr.client", "client_fn") if legacy else ("flwr.clientapp", "@app.train()")
        raise ConfigError(
            f"{where}: mixes Flower's two APIs: an app of {other} takes LocalDpMod from {own}.mod"
        )
    log.warning(
        "%s: LocalDpMod stays, but its noise is not accounted: no epsilon is claimed", where
    )
