"""The extras of this package: which one to install for a missing library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from secureps.errors import ConfigError

EXTRAS = {
    "torch": ("torch", "opacus"),
    "bfv": ("tenseal",),
    "flower": ("flwr",),
    "report": ("matplotlib", "sklearn"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "alembic", "sqlalchemy"),
    "objects": ("fsspec", "s3fs"),
    "ray": ("ray",),
    "trace": ("opentelemetry",),
}
"""The modules that each extra of pyproject.toml brings."""


def command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'secureps[{extra}]'"


@contextmanager
def from_extras() -> Iterator[None]:
    """Turns a failed import of a module of EXTRAS into a ConfigError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        for extra, brought in EXTRAS.items():
            if module in brought:
                raise ConfigError(f"{module} is not installed: {command(extra)}") from None
        raise
