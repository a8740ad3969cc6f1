"""Key holders beside a ServerApp: each a `secureps serve keyholder` process that dials it.

Those whose private keys are in the run's kit are started here; the others are somebody else's
processes, on other machines, and dial the coordinator's address. In a simulation all are started
here, by a program that waits for no disk (`flower.simulated_holder`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from secureps.flower.names import log
from secureps.policy.plan import Plan
from secureps.run.processes.spawning import Program
from secureps.run.processes.supervisor import Died, Supervisor
from secureps.run.up.folder import RunFolder, write_holders
from secureps.run.up.programs import SECUREPS
from secureps.store.keyring import load_public

DEPLOYED = (*SECUREPS, "serve", "keyholder", "--config")
SIMULATED = (sys.executable, "-P", "-m", "secureps.flower.simulated_holder")
"""What the command of a key holder begins with; its configuration's file follows."""


class Holders:
    """The key holders of one run that are processes of this machine; a context, which ends them.

    Args:
        root: the run's folder; address: HOST:PORT of the coordinator, empty where nodes relay to
            key holders: then none is started here.
        simulated: all parties are of this machine, and the run is over with it.
    """

    def __init__(self, plan: Plan, root: Path, kit: Path, address: str, simulated: bool) -> None:
        self._folder, self._kit, self._address = RunFolder(root), kit, address
        self._plan, self._program = plan, SIMULATED if simulated else DEPLOYED
        self._supervisor = Supervisor(self._folder.logs)

    def __enter__(self) -> Holders:
        self._supervisor.__enter__()
        roster = load_public(self._kit).roster
        holders = [each.name for each in roster.holders()] if self._address else []
        own = [name for name in holders if (self._kit / "private" / name).is_dir()]
        write_holders(self._folder, self._plan, tuple(own), self._address, self._kit)
        for name in own:
            command = (*self._program, str(self._folder.config(name)))
            self._supervisor.start(Program(name, command, dict(os.environ), may_finish=True))
        for name in sorted(set(holders) - set(own)):
            log.info("waits for key holder %s, which dials %s", name, self._address)
        return self

    def __exit__(self, *ended: object) -> None:
        self._supervisor.stop()
        self._supervisor.__exit__(None, None, None)

    def look(self) -> None:
        """Starts again what has died; OperatorError if that does not help."""
        for each in self._supervisor.poll():
            if isinstance(each, Died):
                log.warning("%s died (%s), and is started again", each.name, each.how)
