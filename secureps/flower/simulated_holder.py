"""A key holder of Flower's simulation: `secureps serve keyholder`, without waiting for the disk.

    python -m secureps.flower.simulated_holder FILE

A simulation's ServerApp starts it. It is a program of its own, so that no configuration or message
can make a key holder of `secureps serve` acknowledge what is not on its disk.
"""

from __future__ import annotations

import sys
from pathlib import Path

from secureps.errors import SecurepsError, exit_status
from secureps.exhaustion import disable_core_dumps
from secureps.run.processes.signals import without_teardown
from secureps.store import durability


def main(config: Path) -> None:
    """Serves the key holder of a configuration file until a signal stops it."""
    from secureps.run.serve import serve

    disable_core_dumps()
    try:
        with durability.skip_waits():
            serve("keyholder", config)
    except SecurepsError as error:
        print(f"error: {error} ({error.fault} fault)", file=sys.stderr)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    with without_teardown():
        main(Path(sys.argv[1]))
