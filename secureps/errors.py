"""Every error that crosses a border of secureps, in one tree that says whose fault it is.

The branches are ClientError, OperatorError, PeerError and InternalError. `status` is the name of
the gRPC status code that `wire.grpc.client` maps a class to. Messages never contain secrets.

Examples:
    >>> issubclass(ps.errors.BudgetSpent, ps.PlanRefused)
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar


class SecurepsError(Exception):
    """Base of all errors; `str(error)` is one line that says what happened and what to do.

    Examples:
        >>> try:
        ...     ps.load_plan("nowhere.toml")
        ... except ps.SecurepsError as error:
        ...     print(f"{type(error).__name__}, {error.fault} fault")
        ConfigError, this side's fault
    """

    status: ClassVar[str] = "UNKNOWN"
    fault: ClassVar[str] = "nobody knows whose"


class ClientError(SecurepsError):
    """A request that is refused as it stands: its sender has to mend it."""

    status = "INVALID_ARGUMENT"
    fault = "the sender's"


class Malformed(ClientError):
    """Bytes or fields that cannot be read, or are out of range."""


class Oversized(ClientError):
    """Something longer than the plan allows."""

    status = "OUT_OF_RANGE"


class WrongShape(ClientError):
    """Tensors that do not match the run's layout."""


class NotFinite(ClientError):
    """NaN or infinity in an update."""


class Unsigned(ClientError):
    """A signature or certificate that does not verify."""

    status = "UNAUTHENTICATED"


class UnknownParty(ClientError):
    """A name that is not on the roster, or may not say this."""

    status = "PERMISSION_DENIED"


class WrongRun(ClientError):
    """Something that was made for another run."""

    status = "FAILED_PRECONDITION"


class WrongVersion(ClientError):
    """A base version that is not open, or no longer."""

    status = "FAILED_PRECONDITION"


class Conflict(ClientError):
    """Other bytes under an id that is already known.

    `free` is the lowest sequence number of this client from which on the refusing party has seen
    none; 0 if it does not say.
    """

    status = "ALREADY_EXISTS"

    def __init__(self, text: str, free: int = 0) -> None:
        super().__init__(text)
        self.free = free


class OperatorError(SecurepsError):
    """A fault in a file, key or setting of the person who runs this process."""

    status = "FAILED_PRECONDITION"
    fault = "this side's"


class ConfigError(OperatorError):
    """A file that does not parse, or a setting with a bad value.

    Examples:
        >>> raise ps.ConfigError("partition must be 0 to 5, got 9")
        Traceback (most recent call last):
        secureps.errors.ConfigError: partition must be 0 to 5, got 9
    """


class PlanRefused(OperatorError):
    """A plan that is unsound, or that a trainer cannot train under; says why.

    Examples:
        >>> raise ps.PlanRefused("this trainer has no DP-SGD: use a plan without [privacy]")
        Traceback (most recent call last):
        secureps.errors.PlanRefused: this trainer has no DP-SGD: use a plan without [privacy]
    """


class BudgetSpent(PlanRefused):
    """A plan that would spend more privacy than a data holder's records have left."""


class TermsRefused(PlanRefused):
    """A plan that breaks the terms of a site, of its key holder, or of a client's own options.

    Its text names keys and values. `revealed` is the part of it that the coordinator may read.
    """

    fault = "the plan's or the site's"

    def __init__(self, text: str, revealed: str = "") -> None:
        super().__init__(text)
        self.revealed = revealed


@contextmanager
def naming(
    where: Path | str, kind: type[OperatorError] = PlanRefused, script: Path | None = None
) -> Iterator[None]:
    """Puts a name, such as the file's, before the text of errors that are raised inside.

    Args:
        where: the name; empty: errors stay as they are.
        kind: the errors that get the name.
        script: a file that is run meanwhile: errors that begin with its name stay as they are.
    """
    try:
        yield
    except kind as error:
        if script is not None and str(error).startswith(f"{script}: "):
            raise
        raise type(error)(f"{where}: {error}" if where else str(error)) from None


class RuleFailed(OperatorError):
    """A user's rule that raised an error, or gave an answer that is not allowed."""

    fault = "the rule's"


class KitError(OperatorError):
    """A start-up kit that is missing, damaged or for someone else."""


class ScriptFailed(OperatorError):
    """A data holder's script that raised an error, or returned a value that is not allowed."""

    fault = "the script's"


class Diverged(ScriptFailed):
    """A training that ended in NaN or infinity, because of its records, learning rate or code."""

    fault = "the records', the learning rate's or the script's"


class DiskFailed(OperatorError):
    """A disk that is full or fails; trying again later may work."""

    status = "UNAVAILABLE"


class DamagedStore(OperatorError):
    """A journal, spool or checkpoint that fails its own digests."""

    status = "DATA_LOSS"


class PeerError(SecurepsError):
    """A fault of another party; `retry_after` (seconds) is None when trying again cannot help."""

    status = "UNAVAILABLE"
    fault = "the other side's"

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Unreachable(PeerError):
    """The other side cannot be reached, or the connection broke."""

    def __init__(self, text: str, retry_after: float | None = 0.2) -> None:
        super().__init__(text, retry_after)


class Busy(PeerError):
    """The other side has too much in flight; try again after `retry_after` seconds."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(self, text: str, retry_after: float | None = 0.2) -> None:
        super().__init__(text, retry_after)


class NotReady(PeerError):
    """The other side is still waiting for something; try again after `retry_after` seconds."""

    def __init__(self, text: str, retry_after: float | None = 0.2) -> None:
        super().__init__(text, retry_after)


class Fenced(PeerError):
    """An order from an older incarnation of the coordinator, which a newer one has replaced."""

    status = "ABORTED"


class Refused(PeerError):
    """The other side decided against a request, and says why."""

    status = "FAILED_PRECONDITION"


class TooFew(PeerError):
    """Too few members are left to make the next version."""

    status = "FAILED_PRECONDITION"
    fault = "the members'"


class InternalError(SecurepsError):
    """A fault of secureps itself."""

    status = "INTERNAL"
    fault = "our own"


def _tree(base: type[SecurepsError]) -> dict[str, type[SecurepsError]]:
    table = {base.__name__: base}
    for child in base.__subclasses__():
        table |= _tree(child)
    return table


ERRORS: dict[str, type[SecurepsError]] = _tree(SecurepsError)
"""Every class of the tree by its name, with which an error crosses the wire."""


MISCONFIGURED = 78
"""Exit status EX_CONFIG of sysexits.h: a restart fails again until somebody mends the setup."""

UNFINISHED = 75
"""Exit status EX_TEMPFAIL of sysexits.h: the run of this client failed, and may be resumed."""


def exit_status(error: SecurepsError) -> int:
    """The exit status of a party's process that ended with this error."""
    if isinstance(error, TooFew | RuleFailed):  # these end the whole run
        return UNFINISHED
    mend = isinstance(error, ConfigError | PlanRefused | KitError)
    return MISCONFIGURED if mend else 1


def split_fault(line: str) -> tuple[str, type[SecurepsError]]:
    """Splits the last line of a process into its text, and a kind of error with the same fault.

    Faults of scripts, trainings, rules, sites and secureps are kept. Any other fault becomes an
    OperatorError, because the caller started the process.
    """
    faults = {kind.fault for kind in ERRORS.values()}
    text, bracket, ending = line.rpartition(" (")
    fault = ending.removesuffix(" fault)")
    if not bracket or fault == ending or fault not in faults:
        return line, OperatorError
    own = (ScriptFailed, Diverged, RuleFailed, TermsRefused, InternalError)
    return text, next((kind for kind in own if kind.fault == fault), OperatorError)


def from_wire(name: str, text: str, retry_after: float | None) -> SecurepsError:
    """Makes the error that another process raised; an unknown name becomes `InternalError`."""
    kind = ERRORS.get(name, InternalError)
    if issubclass(kind, PeerError):
        return kind(text, retry_after)
    return kind(text)
