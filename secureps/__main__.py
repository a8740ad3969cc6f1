"""`python -m secureps` runs the command line."""

from __future__ import annotations

from secureps.run.cli import main
from secureps.run.processes.signals import without_teardown


def run() -> None:
    """Runs the command line and ends the process."""
    with without_teardown():
        main()


if __name__ == "__main__":
    run()
