"""Code of somebody else's that raised: what it said, and where, in one line.

What must not live here: whose fault it is, and what becomes of it.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

TEXT_LIMIT = 300
"""Characters of somebody else's error that are shown."""

_OURS = Path(__file__).resolve().parent
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def told(error: BaseException) -> str:
    """Its class and its words, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:TEXT_LIMIT]


def where(error: BaseException) -> str:
    """FILE:LINE of the innermost frame that is neither ours nor a library's, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if _is_foreign(Path(frame.filename))]
    frame = (foreign or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _is_foreign(file: Path) -> bool:
    file = file.resolve()
    return file.is_file() and not any(file.is_relative_to(at) for at in (_OURS, *_LIBRARIES))
