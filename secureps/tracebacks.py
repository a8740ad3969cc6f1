"""Describes errors of user code in one line: what was raised, and where."""

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
"""The most characters of an error of user code that are shown."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folder names of libraries, in this environment and in the interpreter that it builds on."""
_DUMPED = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_OURS = Path(__file__).resolve().parent
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def describe_error(error: BaseException) -> str:
    """An error's class and text, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} ..."


def with_fault(error: Exception) -> SecurepsError:
    """Returns an error that says whose fault it is; prints the traceback if it is a bug of ours."""
    if not isinstance(error, SecurepsError):
        traceback.print_exception(error)
        return InternalError(f"a bug of secureps: {describe_error(error)} ({find_place(error)})")
    if isinstance(error, InternalError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    return error


def find_place(error: BaseException) -> str:
    """FILE:LINE and function of the innermost frame of user code, or else of the innermost frame.

    User code is neither ours nor a library's. For a SyntaxError it is the line that does not parse.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if _is_foreign(Path(frame.filename))]
    frame = (foreign or frames)[-1]
    return _place(frame.filename, frame.lineno, frame.name)


def is_foreign(error: BaseException) -> bool:
    """True if user code, neither ours nor a library's, was running when an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(_is_foreign(Path(frame.filename)) for frame in frames)


def dump_crashes() -> None:
    """Makes a native crash of this process print its line of Python to stderr."""
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # sys.stderr of a notebook is not a file


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
    """The first line that `faulthandler` wrote; "" if it wrote nothing."""
    return next((line for line in lines if line.startswith("Fatal Python error: ")), "")


def _place(file: str, line: object, name: str) -> str:
    function = "" if name.startswith("<") else f" in {name}"
    return f"{Path(file).name}:{line}{function}"


def _is_foreign(file: Path) -> bool:
    file = file.resolve()
    if not file.is_file() or _INSTALLED.intersection(file.parts):
        return False
    return not any(file.is_relative_to(at) for at in (_OURS, *_LIBRARIES))
