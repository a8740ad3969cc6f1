"""What is synced to the disk, and when a file takes its place, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def durably(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files and folders that are synced meanwhile, and "rename" where one is renamed."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def renamed(source: Any, target: Any) -> None:
        done.append("rename")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        patched.setattr(os, "replace", renamed)
        yield done
