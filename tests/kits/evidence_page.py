"""What is claimed, as a page shows it: made from the docstrings of test files.

A test file holds each claim that is a line of its docstring and begins with one of `SUBJECTS`.
`python -m tests.kits.evidence_page` writes docs/evidence.md.
"""

import ast
from collections.abc import Mapping

from tests.kits.nursery import ROOT

PAGE = ROOT / "docs" / "evidence.md"
SUBJECTS: Mapping[str, str] = {
    "Exactness": "The same bits",
    "Survival": "Kills, lost disks, restarts",
    "Secrecy": "Who can open what",
    "Privacy": "Noise, budgets, ledgers",
    "Rules": "Rounds, streams, evaluations, sums",
    "Membership": "Who comes and goes",
    "Flower": "Flower apps and Flower's engine",
    "Hostile input": "Hostile input",
    "Operation": "Operation",
}
"""The heading for each subject."""
HEAD = """# What is claimed, and what shows it

Each has a test that fails once it is false: `.venv/bin/pytest FILE` runs one, `make test` all.
[Numbers](benchmarks.md) have commands of their own.
"""


def claims() -> dict[str, list[tuple[str, str]]]:
    """By subject: what is claimed, and the file that shows it."""
    found: dict[str, list[tuple[str, str]]] = {subject: [] for subject in SUBJECTS}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in text.splitlines():
            subject, _, claim = line.partition(": ")
            if subject in found:
                found[subject].append((claim, str(path.relative_to(ROOT))))
    return found


def page() -> str:
    parts = [HEAD]
    for subject, rows in claims().items():
        lines = "".join(f"- {claim[0].upper()}{claim[1:]} `{path}`\n" for claim, path in rows)
        parts.append(f"## {SUBJECTS[subject]}\n\n{lines}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
