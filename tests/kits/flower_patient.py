"""`python -m tests.kits.flower_patient PROGRAM ...`: one of Flower's own, patient with its tasks.

Whoever has a task's process started gives the task up after 30 s without a word of it. On a busy
machine the process has not imported its modules by then, and the run fails for nobody's fault.
"""

import sys
from importlib.metadata import entry_points

from flwr.supercore.corestate import in_memory_corestate, sql_corestate

PATIENCE = 600
"""Seconds until a task whose process has not begun is given up; in place of Flower's 30. Nodes that
are gone are missed after a minute, as ever."""


def main() -> None:
    for module in (in_memory_corestate, sql_corestate):
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = PATIENCE
    sys.argv[:] = sys.argv[1:]
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
