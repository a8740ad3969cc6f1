"""Sets up the log of a process, for people or, one JSON object a line, for programs.

    {"ts": "2026-01-01T12:00:00.123456Z", "level": "INFO", "party": "coordinator",
     "event": "VersionCommitted", "message": "version 3 is committed",
     "group": "all", "version": 3}

No other module sets up logging; the logger `secureps` has its own handler. A process goes on when
its stdout or stderr is closed or on a full disk, because results are in files.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Literal

from secureps.errors import SecurepsError, exit_status
from secureps.exhaustion import naming_limits
from secureps.wording import one_line

LogFormat = Literal["text", "json"]


PLAIN = "Log"
"""The default event of a line."""

_LOG = logging.getLogger("secureps")
_EXTRA = "secureps"


def tell(
    party: str,
    event: str,
    text: str,
    level: int = logging.INFO,
    fields: Mapping[str, str | int | float] | None = None,
) -> None:
    extra = {_EXTRA: {"party": party, "event": event, "message": text, **(fields or {})}}
    _LOG.disabled = False  # a script's `logging.config` disables all loggers but its own
    _LOG.log(level, "%s: %s", party, text, extra=extra)


def complain(party: str, event: object, error: Exception) -> None:
    text = f"{type(event).__name__}: {error}"
    tell(party, "Complaint", text, logging.WARNING, {"error": type(error).__name__})


class JsonFormatter(logging.Formatter):
    """Formats a line as JSON: ts, level, party, event, message and the event's fields."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = getattr(record, _EXTRA, {})
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname,
            "party": self._party,
            "event": PLAIN,
            "message": record.getMessage(),
        } | told
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Drops the traceback of a gRPC line about text that is not UTF-8: any caller can cause it."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


@contextmanager
def _handle_alone(logger: logging.Logger, handler: logging.Handler, level: int) -> Iterator[None]:
    """Gives a logger one handler only while the `with` lasts."""
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


@contextmanager
def logging_as(
    form: LogFormat, party: str, verbose: bool = False, ours: bool = True
) -> Iterator[None]:
    """Sets up logging on stderr for the process of one party; `verbose` shows DEBUG lines too.

    Inside the `with` an exhausted limit of the operating system becomes an OperatorError. With
    "json" an error that leaves the `with` is logged, and the process ends with `exit_status`.

    Args:
        ours: whether the process runs one of our commands; a script keeps its own configuration.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_drop_traceback)
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(message)s")
    handler.setFormatter(text if form == "text" else JsonFormatter(party))
    with ExitStack() as stack:
        stack.enter_context(
            _handle_alone(_LOG, handler, logging.DEBUG if verbose else logging.INFO)
        )
        if ours:  # a library may have configured the root at its import, as opacus does
            stack.enter_context(_handle_alone(logging.getLogger(), handler, logging.INFO))
        else:
            logging.basicConfig(level=logging.INFO, handlers=[handler])
        with naming_limits() if form == "text" else _log_errors(party):
            yield


@contextmanager
def _log_errors(party: str) -> Iterator[None]:
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_error
    try:
        with naming_limits():
            yield
    except SecurepsError as error:
        text = one_line(error)
        fields = {"error": type(error).__name__, "fault": error.fault}
        tell(party, "Error", text, logging.ERROR, fields)
        raise SystemExit(exit_status(error)) from None
    except Exception as error:
        _log_unexpected(error)
        raise SystemExit(1) from None


def _log_unexpected(error: BaseException) -> None:
    fields = {"event": "Error", "error": type(error).__name__}
    _LOG.critical("%s", error, exc_info=error, extra={_EXTRA: fields})


def _log_thread_error(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        _log_unexpected(failed.exc_value)


class _Lossy(io.FileIO):
    """An open file whose writes always succeed; bytes that the system refuses are lost."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            if (written := super().write(data)) is not None:
                return written
        return memoryview(data).nbytes


def ignore_output_errors() -> None:
    """Makes every later print of this process succeed, unless a stream was replaced."""
    for number in (0, 1, 2):  # otherwise the next file that is opened would become stdout
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream, first = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is first and isinstance(stream, io.TextIOWrapper | None):  # no notebook's stream
            lossy = _lossy(number, stream)
            setattr(sys, name, lossy)
            setattr(sys, f"__{name}__", lossy)


def _lossy(number: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    if stream is not None:
        with suppress(OSError):
            stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lossy(number, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=stream.line_buffering if stream else True,
        write_through=stream.write_through if stream else False,
    )
