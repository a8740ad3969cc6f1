"""One tree of errors: complete, and the same after crossing the wire."""

import inspect
import re
from pathlib import Path

import grpc
import pytest

from secureps import errors
from secureps.errors import ERRORS, InternalError, PeerError, SecurepsError, from_wire

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, SecurepsError)
}


def test_the_table_is_complete() -> None:
    assert ERRORS == CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_each_says_whose_fault_it_is_and_has_a_status(name: str) -> None:
    kind = CLASSES[name]
    assert kind.status in grpc.StatusCode.__members__
    assert kind.status not in ("OK", "CANCELLED")
    if kind is not SecurepsError:
        assert kind.fault != SecurepsError.fault
        assert kind.status != SecurepsError.status


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_crosses_the_wire(name: str) -> None:
    error = from_wire(name, "what happened", 1.5)
    assert type(error) is CLASSES[name]
    assert str(error) == "what happened"
    if isinstance(error, PeerError):
        assert error.retry_after == 1.5
        again = from_wire(name, "what happened", None)
        assert isinstance(again, PeerError)
        assert again.retry_after is None
    else:
        assert not hasattr(error, "retry_after")


@pytest.mark.parametrize("name", ["", "Exception", "KeyError", "errors.Malformed", "malformed"])
def test_an_unknown_name_is_our_fault(name: str) -> None:
    error = from_wire(name, "text", None)
    assert type(error) is InternalError
    assert str(error) == "text"


def test_what_may_be_tried_again() -> None:
    defaults = {
        name: kind("x").retry_after for name, kind in CLASSES.items() if issubclass(kind, PeerError)
    }
    assert defaults == {
        "PeerError": None,
        "Unreachable": 0.2,
        "Busy": 0.2,
        "NotReady": 0.2,
        "Fenced": None,
        "Refused": None,
        "TooFew": None,
    }


def test_every_class_at_the_end_of_a_branch_is_raised_somewhere() -> None:
    """Or journalled by its name: an error that nobody raises is a promise that nobody keeps."""
    leaves = {name for name, kind in CLASSES.items() if not kind.__subclasses__()}
    sources = Path(errors.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text() for path in sources if path.name != "errors.py")
    assert {name for name in leaves if not re.search(rf"\b{name}(\(|\.__name__)", text)} == set()
