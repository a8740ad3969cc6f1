"""Plain values as YAML, for people to read: blocks, and texts line by line.

A map or a list is a block, and each scalar is JSON, which YAML 1.2 has in it; only a text of
several lines is a literal block. References: YAML 1.2.2, 8.1.2 (literal style). What must not live
here: what is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

_PLAIN = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE
)
"""Keys that need no quotes: a parser of YAML 1.1 takes some words for something else."""


def yaml_text(documents: Iterable[object]) -> str:
    """One document after another.

    Args:
        documents: of dicts with texts as keys, lists, texts, numbers and booleans; a text has
            printable characters, tabs and ends of lines alone.
    """
    return "".join("\n".join(("---", *_lines(each), "")) for each in documents)


def _lines(value: object) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, item in value.items():
                first, *rest = _lines(item)
                shown = key if _PLAIN.fullmatch(key) else json.dumps(key, ensure_ascii=False)
                nested = isinstance(item, dict | list) and bool(item)
                yield f"{shown}:" if nested else f"{shown}: {first}"
                yield from _indented((first, *rest)) if nested else rest
        case list() if value:
            for item in value:
                first, *rest = _lines(item)
                yield f"- {first}"
                yield from rest if isinstance(item, str) else _indented(rest)
        case str() if _is_block(value):
            yield "|" if value.endswith("\n") else "|-"
            yield from _indented(value.removesuffix("\n").split("\n"))
        case _:
            yield json.dumps(value, ensure_ascii=False)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _is_block(text: str) -> bool:
    """Whether its lines can stand as they are: how far they are indented is told by the first."""
    return (
        "\n" in text.rstrip("\n")
        and not text.startswith((" ", "\t", "\n"))
        and (not text.endswith("\n\n"))
    )
