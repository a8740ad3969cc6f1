"""`python -m secureps`: the command line, in a process of its own."""

from __future__ import annotations

from secureps.run.cli import main
from secureps.run.processes.signals import without_teardown


def run() -> None:
    """Runs `secureps.run.cli.main`, and ends the process with it."""
    with without_teardown():
        main()


if __name__ == "__main__":
    run()
