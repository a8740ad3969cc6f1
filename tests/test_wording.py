"""A misspelt name is met with the one that was meant; all that there are are listed."""

import pytest

from secureps.wording import counted, duration, nearest, one_line, suggest

NAMES = ("sgd", "momentum", "adam", "yogi")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("adma", "did you mean adam? "),
        ("momentun", "did you mean momentum? "),
        ("SGD", "did you mean sgd? "),
        ("lion", ""),
        ("", ""),
        (3, ""),
    ],
)
def test_the_name_that_is_close_comes_first(given: object, hint: str) -> None:
    assert suggest(given, NAMES) == f"{hint}known are sgd, momentum, adam, yogi"


def test_a_name_that_is_far_off_is_not_suggested() -> None:
    assert suggest("encryption", ("federation", "group")) == "known are federation, group"


def test_of_many_names_the_nearest_is_told_alone() -> None:
    names = ["conv.weight", "norm.num_batches_tracked", "head.bias"]
    assert nearest("*num_batch_tracked", names) == "the nearest is 'norm.num_batches_tracked'"
    assert nearest("x", []) == "there are no names at all"


@pytest.mark.parametrize(
    ("text", "whole", "first"),
    [
        ("out of memory", "out of memory", "out of memory"),
        ("\nno device:  2\n\tset it\n", "no device: 2 set it", "no device: 2"),
        ("", "", ""),
        (" \n", "", ""),
    ],
)
def test_an_error_is_told_on_one_line(text: str, whole: str, first: str) -> None:
    error = RuntimeError(text)
    assert (one_line(error), one_line(error, lines=1)) == (whole, first)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (4e-7, "less than 1 us"),
        (3.4e-4, "340 us"),
        (0.0125, "12.5 ms"),
        (7.214, "7.21 s"),
        (726.0, "12.1 min"),
        (12_240.0, "3.4 h"),
    ],
)
def test_seconds_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_is_no_plural() -> None:
    assert (counted(1, "client"), counted(2, "client")) == ("1 client", "2 clients")
