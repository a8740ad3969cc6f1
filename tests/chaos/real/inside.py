"""Runs a command line in a network namespace: `python -m tests.chaos.real.inside NAME ARGUMENT...`.

To be spawned by `tests.kits.nursery`, whose arguments the rest is.
"""

import faulthandler
import signal
import sys

from tests.kits.links import NAMESPACES, enter
from tests.kits.nursery import _run

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # says into its log what each thread does
    enter(NAMESPACES / sys.argv[1])
    _run(sys.argv[2:])
