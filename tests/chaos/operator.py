"""The operator of a run of chaos: says an act until it is heard, and takes it back later."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty
from secureps.messages.acts import Act, Deed
from secureps.messages.requests import Noted
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.wire.transport import Clock, InProcessNetwork
from tests.chaos.evidence import Evidence
from tests.chaos.schedule import OMITS, SAVES, STANDS, Fault

AGAIN = 1.0
"""Seconds after which an act is said once more that nobody heard."""
PATIENCE = 3.0
"""The same, of one that may be done later."""
AGAINST = "again"
"""In the words of a refusal of what may be done later."""

ACTS = {
    STANDS: (Deed.PAUSE, Deed.GO_ON),
    SAVES: (Deed.CHECKPOINT, None),
    OMITS: (Deed.LEAVE_OUT, Deed.TAKE_BACK),
}
"""What is done, and what takes it back."""


class Operator:
    """Acts on one run; `over` says that it is played no more."""

    def __init__(
        self, network: InProcessNetwork, clock: Clock, evidence: Evidence, over: Callable[[], bool]
    ) -> None:
        self._way = network.transport(COORDINATOR, (COORDINATOR, STANDBY))
        self._clock = clock
        self._evidence, self._over = evidence, over

    def act(self, fault: Fault) -> None:
        """Does it, and takes it back after the fault's seconds."""
        does, undoes = ACTS[fault.kind]
        client = fault.who if fault.kind == OMITS else ""
        back = None if undoes is None else partial(self._say, Act(undoes.value, client))
        self._say(Act(does.value, client, "chaos"), fault.seconds, back)

    def demand(self, act: Act, then: Callable[[], None] | None = None) -> None:
        """Does it, again and again while it is told to say it again, and `then` what follows."""
        self._say(act, then=then, demanded=True)

    def _say(
        self,
        act: Act,
        seconds: float = 0.0,
        then: Callable[[], None] | None = None,
        demanded: bool = False,
    ) -> None:
        answer = self._way.call(COORDINATOR, act)
        answer.add_done_callback(lambda done: self._heard(act, seconds, then, demanded, done))

    def _heard(
        self,
        act: Act,
        seconds: float,
        then: Callable[[], None] | None,
        demanded: bool,
        done: Future[Any],
    ) -> None:
        reply = done.exception() or done.result()
        if isinstance(reply, Refused | UnknownParty) and demanded and AGAINST in str(reply):
            if not self._over():
                again = partial(self._say, act, then=then, demanded=True)
                self._clock.call_later(PATIENCE, again)
            return
        if isinstance(reply, Noted | Refused | UnknownParty):
            if then is not None:
                self._clock.call_later(seconds, then)
            return
        if isinstance(reply, SecurepsError) and not isinstance(reply, Malformed):
            if not self._over():
                self._clock.call_later(AGAIN, lambda: self._say(act, seconds, then, demanded))
            return
        self._evidence.broken(f"an operator said {act} and heard {reply!r}")
