"""Secure aggregation inside Flower's own engine: the same parties, over Flower's messages.

    secureps_mod    a mod of a ClientApp: seals the updates that the app trains
    SecureFedAvg    a strategy of a ServerApp: aggregates them

A process imports only the one that it uses. See docs/flower.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secureps.flower.mod import secureps_mod
    from secureps.flower.strategy import SecureFedAvg

__all__ = ["SecureFedAvg", "secureps_mod"]

_HOMES = {"SecureFedAvg": "strategy", "secureps_mod": "mod"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
