"""How large a model is, by numbers and by shapes that are typed beside a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.run.check import check
from secureps.run.initial_schema import read_values
from tests.run.test_check import PLAN, write

TWO = PLAN.replace("[[group]]\n", '[[group]]\nname = "a"\npattern = "a*"\n')
TWO += '[[group]]\nname = "b"\nrule = { quorum = 6 }\nsparse = { rows = 10, block = 4 }\n'


def test_sizes_of_several_groups_are_given_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, TWO.replace("bfv", "plain"))
    explained = check(path, read_values(["a=100", "b=30"]))
    sizes = {group.name: group.values for group in explained.groups}
    assert sizes == {"a": 100, "b.0": 12, "b.1": 12, "b.2": 6}
    assert explained.unknown == ()
    for given, reason in (
        (10, "^--values: the plan has 2 groups: --values a=N --values b=N$"),
        ({"a": 100}, "^--values: says nothing of b: --values a=N --values b=N$"),
        ({"a": 1, "b": 10, "c": 1}, "no group is called 'c'; known are a, b"),
        ({"a": 1, "b": 31}, "b has 10 rows, and 31 values are not as many for each"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check(path, given)
    for text in ("0", "-1", "many", "a=", "a=1.5", "=", "a=\u0661"):
        with pytest.raises(ConfigError, match="is no number of values from 1 on, or GROUP=N once"):
            read_values([text])
    with pytest.raises(ConfigError, match="one number for all of the model, or GROUP=N of each"):
        read_values(["3", "a=3"])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"a": 3}', '{"a": [-1]}', '{"a": [true]}', '{"a": "12"}', "[" * 9999]
)
def test_a_file_that_has_no_shapes_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text(text)
    with pytest.raises(ConfigError, match=r"shapes\.json: no shapes of a model's tensors"):
        check(write(tmp_path), schema=tmp_path / "shapes.json")
