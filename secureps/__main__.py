"""`python -m secureps`: the command line, in a process of its own."""

from __future__ import annotations

from secureps.run.cli import main
from secureps.run.processes.signals import without_teardown


def run() -> None:
    """As `secureps.run.cli.main`; the process ends with it."""
    with without_teardown():
        main()


if __name__ == "__main__":
    run()
