"""What is written for people to read is what a YAML parser reads."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from secureps.run.deploy.deployment import yaml_text

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
        "---\nrun:\n- sh\n- -c\n- |\n  set -e\n\n    indented $x\n  last\n"
    )


def test_words_that_are_something_else_to_a_parser_stay_words() -> None:
    words = ["y", "No", "ON", "true", "null", "1e3", "0o7", "1_000", "0x1", "2026-11-24", "~", ""]
    others = [
        "a: b",
        "a #b",
        "-",
        ".inf",
        "=",
        "<<",
        "1:30",
        "+.5",
        "name",
        "app.kubernetes.io/name",
    ]
    value = {word: [word] for word in (*words, *others)}
    text = yaml_text([value])
    assert yaml.safe_load(text) == value
    assert all(f'- "{word}"\n' in text for word in words), "1.2 readers know other words than 1.1"
    assert "- name\n" in text


def test_what_is_there_twice_is_written_twice() -> None:
    same = {"cpu": "1"}
    assert yaml_text([{"limits": same, "requests": same}]).count('cpu: "1"') == 2
