"""All that machines can order and hear, and which of it a run of chaos never saw."""

from collections.abc import Mapping
from typing import Any, get_args

from secureps.errors import NotReady
from secureps.messages.orders import AnyOrder, WriteCheckpoint
from secureps.messages.requests import Reply, Request, Rows, Subscribe
from secureps.messages.run import Task
from secureps.roles.coordinator import state as coordinator_tasks
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.holder import bfv, committee
from secureps.roles.holder.bfv import OpenSum
from secureps.roles.machine import Effect, Event, TaskResult
from secureps.roles.member import tasks as member_tasks
from secureps.roles.member.tasks import Contribute, Evaluate
from secureps.roles.shard import state as shard_tasks
from secureps.roles.shard.state import (
    ComingDamaged,
    DoesNotOpen,
    DrawNoise,
    GatherState,
    MakeState,
    PayloadsDamaged,
    StepState,
    SumCohort,
)

ROLES = ("coordinator", "shard", "holder", "client")

MODULES = (coordinator_tasks, bfv, committee, member_tasks, shard_tasks)
"""Where tasks and their results are: imported, so that all of them are known."""

_OBSERVER = "asked by observers, who are no party: tests/processes/test_every_key.py"
_WIRE = "asked by gRPC itself, of a block that was cut off: tests/wire/grpc/test_client.py"
_OPERATOR = "said by operators, who are no party: tests/federation/test_acts.py"

_LEAD = "answered by the executor: tests/service/test_lead.py"
_COMMAND = "said by an operator's command: tests/processes/test_federation.py"
_LAST = "of clients that keep the last model, as none does here: tests/client/test_last_model.py"

KNOWN: dict[str, str] = {
    **dict.fromkeys(("hears Follow", "orders Answer Rows"), _LEAD),
    "orders Call TakeOver": _COMMAND,
    **dict.fromkeys(("orders Call AskRun", "orders Call AskStatus"), _OBSERVER),
    **dict.fromkeys(("hears AskBlock", "orders Call AskBlock"), _WIRE),
    "orders Call Act": _OPERATOR,
    "hears Done Contribute": _LAST,
}
"""What chaos does not play, and why."""


ENDS = {
    "Done": Contribute
    | Evaluate
    | DrawNoise
    | SumCohort
    | MakeState
    | StepState
    | GatherState
    | OpenSum
    | WriteCheckpoint
    | WriteManifest
    | Rows,
    "WorkFailed": PayloadsDamaged | ComingDamaged | DoesNotOpen,
}
"""The tasks that are done, and the errors that say what is missing for one."""


def _within(root: type[Any]) -> set[str]:
    """The classes that are made of this one."""
    own = [each for each in root.__subclasses__() if each.__module__.startswith("secureps")]
    return {each.__name__ for each in own}.union(*map(_within, own))


def _names(union: Any) -> set[str]:
    return {each.__name__ for each in get_args(union)}


def all_kinds() -> tuple[str, ...]:
    """Every event and effect by class, as `Evidence.kinds` names them without the role."""
    inner = {
        "Answer": _names(Reply) | {NotReady.__name__},
        "Order": _names(AnyOrder),
        "Call": _names(Request) - {Subscribe.__name__},  # the executor opens streams
        "Work": _within(Task),
    }
    orders = {f"{effect} {name}" for effect, names in inner.items() for name in names}
    orders |= _names(Effect) - inner.keys()
    heard = (_names(Event) - {TaskResult.__name__}) | _within(TaskResult)
    heard |= {f"{end} {name}" for end in ENDS for name in _names(ENDS[end])}
    return (*(f"hears {n}" for n in sorted(heard)), *(f"orders {n}" for n in sorted(orders)))


def table(seen: Mapping[str, int]) -> str:
    """How often each role heard and ordered what, one kind a line."""
    wide = max(map(len, all_kinds()))
    lines = [" ".join([" " * wide, *(f"{role:>11}" for role in ROLES)])]
    for kind in all_kinds():
        counts = (seen.get(f"{role} {kind}", 0) for role in ROLES)
        row = [f"{kind:{wide}}", *(f"{count or '':>11}" for count in counts)]
        lines.append(" ".join(row).rstrip() + (f"  {KNOWN[kind]}" if kind in KNOWN else ""))
    return "\n".join(lines)


def never(seen: Mapping[str, int]) -> list[str]:
    """What no party ever heard or ordered, and no exception names."""
    met = {kind.partition(" ")[2] for kind in seen}
    return [kind for kind in all_kinds() if kind not in met | KNOWN.keys()]


def stale(seen: Mapping[str, int]) -> list[str]:
    """Exceptions that are none any more."""
    met = {kind.partition(" ")[2] for kind in seen}
    return sorted(kind for kind in KNOWN if kind in met or kind not in all_kinds())
