"""What is written for people to read is what a YAML parser reads."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from secureps.run.deploy.yaml_text import yaml_text

texts = st.text(st.characters(codec="utf-8").filter(lambda c: c.isprintable() or c in "\n\t"))
scalars = texts | st.integers(-(1 << 53), 1 << 53) | st.booleans()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(st.lists(values, min_size=1, max_size=3))
def test_a_parser_reads_what_was_written(documents: list[object]) -> None:
    assert list(yaml.safe_load_all(yaml_text(documents))) == documents


def test_a_text_of_several_lines_stands_as_it_is() -> None:
    script = "set -e\n\n  indented $x\nlast\n"
    assert yaml_text([{"run": ["sh", "-c", script]}]) == (
        '---\nrun:\n  - "sh"\n  - "-c"\n  - |\n    set -e\n\n      indented $x\n    last\n'
    )


def test_words_that_are_something_else_to_a_parser_stay_words() -> None:
    words = ["y", "No", "ON", "true", "null", "1e3", "0x1", "~", "a: b", "a #b", "-", "", ".inf"]
    value = {word: [word] for word in (*words, "name", "app.kubernetes.io/name")}
    assert yaml.safe_load(yaml_text([value])) == value
