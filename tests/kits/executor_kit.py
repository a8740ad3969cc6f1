"""An executor on a stage: its machine, its worker, its line and its journal do what a test says."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from secureps.errors import Malformed, SecurepsError
from secureps.messages.requests import Heartbeat, PutBlock, Subscribe
from secureps.roles.machine import Effect, Step, Tick
from secureps.service.environment import Environment, Meter
from secureps.service.executor import Executor
from secureps.service.loop import VirtualLoop
from secureps.store.journal import MemoryJournal

TASK: Any = "task"
ORDER: Any = "order"
"""Stand-ins: an executor looks into neither."""


class Recording(MemoryJournal):
    def __init__(self, log: list[Any], broken: bool = False) -> None:
        super().__init__()
        self._log = log
        self._broken = broken

    def append(self, at: float, records: Sequence[Any]) -> None:
        if self._broken:
            raise OSError("no space left")
        self._log.append(("journal", tuple(r.number for r in records)))
        super().append(at, records)


class Puppet:
    """A machine that does what the test says to each event."""

    def __init__(self, react: Callable[[str, Any], Step]) -> None:
        self._react = react
        self.heard: list[tuple[str, Any]] = []
        self.applied: list[Any] = []
        self.wants = True
        self.troubles: list[str] = []
        self.alarm: float | None = None

    def apply(self, at: float, record: Any) -> None:
        self.applied.append(record)

    def resume(self, now: float) -> Step:
        return Step()

    def handle(self, now: float, sender: str, event: Any) -> Step:
        self.heard.append((sender, event))
        if isinstance(event, Tick):
            self.alarm = None
        return self._react(sender, event)

    def inspect(self, sender: str, message: Any) -> bool:
        if not isinstance(message, PutBlock):
            raise Malformed("no")
        return self.wants

    def report_trouble(self, reason: str) -> list[Any]:
        self.troubles.append(reason)
        return []

    def wake(self) -> float | None:
        return self.alarm

    def subscription(self) -> Subscribe:
        return Subscribe("me", ())


class Line:
    """A transport whose answers the test gives."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Future[Any]]] = []
        self.lost: list[Callable[[SecurepsError], None]] = []

    def call(self, to: str, message: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((to, message, future))
        return future

    def watch(self, message: Subscribe, deliver: Any, lost: Any) -> Callable[[], None]:
        self.lost.append(lost)
        return lambda: None

    def locate(self, party: str, address: str) -> None:
        pass

    def bind_run(self, run: bytes) -> None:
        self.run = run

    def close(self) -> None:
        pass


class DictWorker:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {"k": b"abc"}
        self.result: Any = None

    def work(self, task: Any) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def take(self, request: Any, payload: bytes | memoryview) -> Callable[[], None]:
        if payload == b"bad":
            raise Malformed("bad payload")
        return lambda: self.kept.update(kept=bytes(payload))

    def keep(self, request: Any, payload: bytes | memoryview, digest: bytes) -> None:
        self.take(request, payload)()

    def fetch(self, key: str) -> bytes:
        return self.kept[key]

    def seconds(self, task: Any) -> float:
        return 5.0


class Stage:
    def __init__(
        self, react: Callable[[str, Any], Step] = lambda s, e: Step(), meter: Meter | None = None
    ) -> None:
        self.meter: Meter = meter if meter is not None else Meter()
        self.log, self.loop, self.line = list[Any](), VirtualLoop(), Line()
        self.machine, self.worker = Puppet(react), DictWorker()
        self.journal = Recording(self.log)
        self.executor = self.build(self.journal)

    def build(self, journal: Recording) -> Executor:
        around = Environment(self.line, self.loop, lambda: 1.0, self.meter)
        return Executor("me", self.machine, journal, around, self.worker)

    def play(self) -> None:
        self.loop.run(lambda: False)

    def ask(self, party: str = "a") -> Future[Any]:
        """A party's request, once all that follows from it is done."""
        answer = self.executor.request(party, Heartbeat(party))
        self.play()
        return answer


def spoken(*effects: Effect) -> Stage:
    """A stage on which "a" has a request under way, at which the machine does this."""
    stage = Stage(lambda s, e: Step([], list(effects) if s == "a" else []))
    stage.executor.request("a", Heartbeat("a"))
    return stage
