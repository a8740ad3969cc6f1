"""Plain values as YAML, for people to read, by PyYAML: blocks, and texts line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SOMETHING_ELSE = re.compile(
    r"y|n|yes|no|on|off|true|false|null|[-+]?\.(inf|nan)|[-+.]?[0-9].*|[~=]|<<|", re.I | re.S
)
"""Texts that a reader of YAML 1.1 or 1.2 takes, or may take, for something else than a text."""


def yaml_text(documents: Iterable[object]) -> str:
    """One document after another.

    Args:
        documents: of dicts with texts as keys, lists, texts, numbers and booleans.
    """
    import yaml  # 13 ms, for manifests alone

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        quotes = '"' if _SOMETHING_ELSE.fullmatch(text) else None
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, "|" if "\n" in text else quotes
        )

    own = {
        "ignore_aliases": lambda dumper, value: True,
        "yaml_representers": {**yaml.SafeDumper.yaml_representers, str: represent},
    }
    kind = type("Dumper", (yaml.SafeDumper,), own)
    options = {"sort_keys": False, "explicit_start": True, "allow_unicode": True, "width": 1 << 20}
    return str(yaml.dump_all(documents, Dumper=kind, **options))
