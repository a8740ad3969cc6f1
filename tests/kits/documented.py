"""The messages that `docs/operate/errors.md` explains, and how a test finds one in a line.

A message in the documentation is a pattern: `...` stands for what differs.
"""

import re

from secureps.errors import SecurepsError
from tests.kits.nursery import ROOT

PAGE = ROOT / "docs" / "operate" / "errors.md"
_ROW = re.compile(r"^\| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def documented() -> dict[str, str]:
    """What to do, by the pattern of the message."""
    rows = _ROW.findall(PAGE.read_text().partition("\n## Classes\n")[0])
    assert len(rows) == len(dict(rows)), "a message is explained twice"
    return dict(rows)


def says(pattern: str, line: str) -> bool:
    """Whether the whole line is an instance of a pattern."""
    parts = map(re.escape, pattern.split("..."))
    return re.fullmatch(".+?".join(parts), line) is not None


def check_line(line: str, pattern: str) -> None:
    assert says(pattern, line), line


def check_error(error: SecurepsError, pattern: str) -> None:
    """The same of an error, with whose fault it is."""
    check_line(f"{error} ({error.fault} fault)", pattern)
