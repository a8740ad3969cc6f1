"""When the data holder's own code fails: one line that says what raised, and where.

Its traceback is for whoever wrote the code, and goes to the log at DEBUG (`--verbose`). What
must not live here: what a trainer is asked, and whether its client goes on.
"""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secureps.errors import ClientError, ScriptFailed, SecurepsError

log = logging.getLogger("secureps")

TEXT_LIMIT = 300
"""Characters of somebody else's error that are shown."""

_OURS = Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Around code of the data holder, or what judges its results; `what` names it.

    Raises:
        ScriptFailed: in place of whatever is no SecurepsError, SystemExit included (it would end
            a thread, not the process), and of a ClientError, whose sender is this script.
        SecurepsError: any other as it is: it says whose fault it is.
    """
    try:
        yield
    except ClientError as error:
        raise ScriptFailed(f"{what}: {error}; nothing was sent: mend the script") from error
    except SecurepsError:
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", what, exc_info=error)
        said = " ".join(f"{type(error).__name__}: {error}".split())[:TEXT_LIMIT]
        raise ScriptFailed(
            f"{what} raised {said} ({_where(error)}); mend the script or its --set values, "
            "--verbose shows the traceback"
        ) from error


def _where(error: BaseException) -> str:
    """FILE:LINE of the innermost frame that is neither ours nor a library's, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if _is_the_holders(Path(frame.filename))]
    frame = (foreign or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _is_the_holders(file: Path) -> bool:
    file = file.resolve()
    return file.is_file() and not any(file.is_relative_to(at) for at in (_OURS, *_LIBRARIES))
