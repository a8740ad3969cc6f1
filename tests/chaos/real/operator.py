"""The operator of real processes: says what is to be done until somebody has heard it.

In threads of its own, for whoever is asked may be dead, stand still, or be far away.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.preflight import take_over
from secureps.run.status_client import StatusClient
from tests.chaos.operator import AGAINST
from tests.chaos.real.takeover import taken_over
from tests.chaos.schedule import TAKEOVERS, Fault
from tests.chaos.shards import DEEDS

if TYPE_CHECKING:
    from tests.chaos.real.federation import Machines

AGAIN = 0.5
"""Seconds after which it is said once more."""


class Operator:
    """Acts on one run.

    `wanted` are shards that were added last, and whose processes are to run; `wrong` is what was
    answered that no operator should hear.
    """

    def __init__(self, machines: Machines) -> None:
        self.wanted, self.wrong = set[str](), list[str]()
        self._machines, self._over = machines, False
        self._acts = queue.SimpleQueue[Act]()
        threading.Thread(target=self._speak, daemon=True).start()

    def demand(self, fault: Fault) -> None:
        """Does it, once all is done that was demanded before: an act says no more than its name."""
        if fault.kind in TAKEOVERS:
            threading.Thread(target=self._command, daemon=True).start()
        else:
            self._acts.put(Act(DEEDS[fault.kind].value, fault.who, "chaos"))

    def end(self) -> None:
        self._over = True

    def _speak(self) -> None:
        machines, client = self._machines, None
        while True:
            act = self._acts.get()
            client = client or StatusClient(machines.kit(COORDINATOR), COORDINATOR, machines.server)
            if act.what == ShardDeed.ADD:
                self.wanted.add(act.party)
            while not self._over and not self._heard(client, act):
                time.sleep(AGAIN)
            if act.what == ShardDeed.REMOVE:
                self.wanted.discard(act.party)

    def _heard(self, client: StatusClient, act: Act) -> bool:
        try:
            client.act(act)
        except (Refused, UnknownParty) as error:
            return AGAINST not in str(error)
        except Malformed as error:
            self.wrong.append(f"an operator said {act} and heard {error!r}")
        except SecurepsError:
            return False
        return True

    def _command(self) -> None:
        while not self._over and not taken_over(self._machines):
            with suppress(OSError, SecurepsError):  # it is not there, or does not follow yet
                take_over(self._machines.folder / f"{STANDBY}.toml")
            time.sleep(AGAIN)
