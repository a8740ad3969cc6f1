"""Says in one line what code of somebody else's raised, and where."""

from __future__ import annotations

import faulthandler
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from secureps.errors import InternalError, SecurepsError

TEXT_LIMIT = 300
"""Characters of somebody else's error that are shown."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of libraries, also of an interpreter that this one's environment builds on."""
_DUMPED = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_OURS = Path(__file__).resolve().parent
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def describe_error(error: BaseException) -> str:
    """An error's class and its words, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} ..."


def with_fault(error: Exception) -> SecurepsError:
    """Returns an error that says whose fault it is; prints the traceback of a bug of ours."""
    if not isinstance(error, SecurepsError):
        traceback.print_exception(error)
        return InternalError(f"a bug of secureps: {describe_error(error)} ({find_place(error)})")
    if isinstance(error, InternalError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    return error


def find_place(error: BaseException) -> str:
    """FILE:LINE and function of the innermost frame whose code is neither ours nor a library's.

    If there is none, those of the innermost frame; of a SyntaxError, the line that does not parse.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if _is_foreign(Path(frame.filename))]
    frame = (foreign or frames)[-1]
    return _place(frame.filename, frame.lineno, frame.name)


def is_foreign(error: BaseException) -> bool:
    """Whether code that is neither ours nor a library's was running when an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(_is_foreign(Path(frame.filename)) for frame in frames)


def dump_crashes() -> None:
    """Has a native crash of this process say on stderr in which line of Python it was."""
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a notebook's own sys.stderr is no file


def locate_crash(lines: Iterable[str]) -> str:
    """Like `find_place`, for a native crash that `faulthandler` wrote down; "" if there is none.

    Frames of the thread that crashed count first, then those of the others.
    """
    here, current = False, list[re.Match[str]]()
    others = list[re.Match[str]]()
    for line in lines:
        if line.startswith(("Current thread ", "Thread ")):
            here = line.startswith("Current")
        elif (match := _DUMPED.match(line)) and _is_foreign(Path(match["file"])):
            (current if here else others).append(match)
    foreign = current + others
    return _place(*foreign[0].group("file", "line", "name")) if foreign else ""


def find_fatal_line(lines: Iterable[str]) -> str:
    """The line with which `faulthandler` begins; "" if it wrote nothing."""
    return next((line for line in lines if line.startswith("Fatal Python error: ")), "")


def _place(file: str, line: object, name: str) -> str:
    function = "" if name.startswith("<") else f" in {name}"
    return f"{Path(file).name}:{line}{function}"


def _is_foreign(file: Path) -> bool:
    file = file.resolve()
    if not file.is_file() or _INSTALLED.intersection(file.parts):
        return False
    return not any(file.is_relative_to(at) for at in (_OURS, *_LIBRARIES))
