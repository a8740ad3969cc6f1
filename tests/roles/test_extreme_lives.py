"""Every message, order and answer, to every role that can hear it, at every step of a run.

With a value far from where it was in each of its fields, a machine refuses with one of our errors
or takes it: then all that it journals is read again as it is, all that it sends arrives, whatever
it hears next leads to nothing else, and it starts again from its journal.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.crypto.identity import Identity, Role
from secureps.errors import Malformed, PlanRefused, SecurepsError
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR, Schema, TensorSpec
from secureps.policy.plan import Plan
from secureps.roles import permissions
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.state import MOST_AHEAD
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.machine import Answered, Tick, WatchLost
from secureps.roles.member.member import Member
from secureps.roles.permissions import MESSAGES
from secureps.roles.shard.shard import Shard
from secureps.roles.validation import check_part
from secureps.wire import msgpack
from secureps.wire.msgpack import encode
from tests.kits.evaluations import evaluated_plan, examined
from tests.kits.extremes import (
    UNSENDABLE,
    Moment,
    Watch,
    demand_kept,
    example,
    extremes,
    heard_of_each_class,
    sendable,
    signed_anew,
)
from tests.kits.federations import small_plan
from tests.kits.roles_kit import HOLDER, World, collecting, make_plan, refused
from tests.kits.unset import unset

ORDERS = frozenset(kind for kind in MESSAGES if kind.__module__ == orders.__name__)
ANSWERS = frozenset(msgpack.SENT[name] for name in msgpack.SENT) - MESSAGES
HEARD: dict[type, frozenset[type]] = {
    Coordinator: frozenset().union(*permissions.TO_COORDINATOR.values()),
    Shard: frozenset().union(*permissions.TO_SHARD.values()) | ORDERS,
    BfvHolder: ORDERS,
    CommitteeHolder: ORDERS,
    Member: ORDERS,
}
"""Who may hear what: a machine's stream brings any order, whoever it is for."""
PARTS = frozenset(
    {orders.KeyCommittee, orders.MemberBlocks}
    | {requests.Figure, requests.CohortSteps}
    | {requests.MemberStatus, requests.GroupStatus, requests.ServerStatus}
    | {requests.Holding, requests.Move, requests.JournalRow, requests.CopyPart}
)
"""Records that are parts of messages."""
LATER = 4
"""Messages of the run that a machine hears after what it took."""


class Played:
    """A run of two versions that are evaluated, with all that its machines heard."""

    def __init__(self, plan: Plan, folder: Path, skipped: tuple[type, ...]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(patch)
            simulation = examined(plan, folder)
            simulation.run()
        self.moments = {k: each for k, each in watch.moments.items() if k[0] not in skipped}
        self.identities: dict[str, Identity] = dict(simulation._kit.identities)
        self.roster = simulation._kit.public.roster
        self.known = heard_of_each_class(watch.lives)
        self.tried: Counter[tuple[type, type]] = Counter()
        self.taken: Counter[tuple[type, type]] = Counter()

    def senders(self, machine: type, kind: type) -> list[str]:
        """One party of each role that may send this; the coordinator for orders."""
        if machine not in (Coordinator, Shard):
            return [COORDINATOR]
        table = permissions.TO_COORDINATOR if machine is Coordinator else permissions.TO_SHARD
        named: dict[Role, str] = {each.role: each.name for each in self.roster.certificates}
        return [name for role, name in named.items() if kind in table[role]] or [COORDINATOR]

    def of(self, kind: type) -> list[Moment]:
        return [moment for (machine, _, _), moment in self.moments.items() if machine is kind]


@cache
def played(plan: str) -> Played:
    with TemporaryDirectory() as folder:
        return Played(PLANS[plan](), Path(folder), ALIKE.get(plan, ()))


def tries(run: Played, moment: Moment, sender: str, events: Iterator[Any]) -> None:
    machine, kind = moment.machine(), moment.life.kind
    for event in events:
        run.tried[kind, type(event)] += 1
        try:
            step = machine.handle(moment.now, sender, event)
        except SecurepsError:
            continue  # and nothing has changed
        run.taken[kind, type(event)] += 1
        demand_kept(step)
        goes_on(moment, machine, sender, event, list(step.records))
        machine = moment.machine()


def goes_on(moment: Moment, machine: Any, sender: str, said: Any, since: list[Any]) -> None:
    """Has a machine hear the next events, and the same message again; then all after a restart."""
    events = [*moment.later(LATER), (moment.now, sender, said), (moment.now + 100.0, "", Tick())]
    for now, who, event in events:
        with suppress(SecurepsError):
            step = machine.handle(now, who, event)
            demand_kept(step)
            since += step.records
    if not since:
        return
    again = moment.restarted(since)
    demand_kept(again.resume(moment.now))
    for now, who, event in (*events, (moment.now, "", WatchLost())):
        if isinstance(event, WatchLost) and moment.life.kind is Coordinator:
            continue
        with suppress(SecurepsError):
            demand_kept(again.handle(now, who, event))


def ways(run: Played, event: Any) -> Iterator[Any]:
    """A message's extremes; also signed anew by the party that each names."""
    for other in sendable(event):
        yield other
        if (signed := signed_anew(other, run.identities)) != other:
            yield signed


LARGEST = {"name": "priority", "buffer": 4, "minimum": 3, "power": 0.0, "score": "magnitude"}


GROUP = {"clip": 3.0, "range": 1.0, "most_examples": 32}


def streaming() -> Plan:
    return small_plan("rlwe", versions=2, group=[GROUP | {"rule": LARGEST}])


def designated() -> Plan:
    group = GROUP | {"rule": {"quorum": 5, "deadline": 10.0}}
    evaluation = {"evaluator": "client-05"}
    return evaluated_plan("bfv", versions=2, every=1, evaluation=evaluation, group=[group])


PLANS: dict[str, Callable[[], Plan]] = {
    "bfv": designated,
    "rlwe": partial(evaluated_plan, "rlwe", versions=2, every=1),
    "streaming": streaming,
}
ALIKE: dict[str, tuple[type, ...]] = {"streaming": (Shard, CommitteeHolder)}
"""Machines for which a plan is no other than that of `rlwe`."""


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_what_was_said_in_a_run(plan: str) -> None:
    run = played(plan)
    for (_, said, _), moment in run.moments.items():
        if said in MESSAGES:
            tries(run, moment, moment.sender, ways(run, moment.event))
    assert run.taken.total() > 300, "messages that are all refused show nothing"


@pytest.mark.parametrize("plan", PLANS)
def test_what_was_answered_in_a_run(plan: str) -> None:
    run = played(plan)
    for (_, said, _), moment in run.moments.items():
        if said is Answered:
            request = moment.event.request
            events = (Answered(request, other) for other in sendable(moment.event.reply))
            tries(run, moment, moment.sender, events)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_what_nobody_said_in_a_run(plan: str) -> None:
    run = played(plan)
    for machine, heard in HEARD.items():
        said = {kind for of, kind, _ in run.moments if of is machine}
        for moment in run.of(machine)[-1:]:
            for kind in sorted(heard - said, key=lambda kind: kind.__name__):
                for who in run.senders(machine, kind):
                    message = example(kind, run.known, who)
                    tries(run, moment, who, ways(run, message))


def test_nothing_is_left_out() -> None:
    """Every message is tried by each role that may send it, and every answer by each that asks."""
    assert {kind.__name__ for kind in MESSAGES | ANSWERS} == set(msgpack.SENT)
    kinds = {
        value
        for module in (orders, requests)
        for value in vars(module).values()
        if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    }
    assert kinds - MESSAGES - ANSWERS == PARTS


@pytest.mark.parametrize("name", sorted(msgpack.SENT))
def test_a_number_that_no_field_carries_is_not_sent(name: str) -> None:
    kind = msgpack.SENT[name]
    for other in extremes(unset(kind), kind, UNSENDABLE):
        reports = name in ("Status", "Telemetry") and math.inf in _floats(other)
        if not reports:
            with pytest.raises(Malformed):
                encode(other)


def _floats(value: Any) -> list[float]:
    if dataclasses.is_dataclass(value):
        return [x for f in dataclasses.fields(value) for x in _floats(getattr(value, f.name))]
    if isinstance(value, tuple):
        return [x for item in value for x in _floats(item)]
    return [abs(value)] if isinstance(value, float) else []


@pytest.mark.parametrize("party", ["shard-a", HOLDER])
@pytest.mark.parametrize("seen", [-1, MOST_AHEAD + 2, 2**63 - 2, 2**63 - 1])
def test_an_incarnation_that_cannot_have_been_is_not_believed(party: str, seen: int) -> None:
    """One holder's number was journalled, and then no order could be encoded any more."""
    world = collecting("bfv")
    event = requests.Register(party, "a:1", 1.0, seen)
    refused(world, party, event, Malformed, f"obeyed incarnation {seen}")
    world.give(party, requests.Register(party, "a:1", 1.0, 5))
    assert world.federation.incarnation == 6, "a journal that lost a few starts goes on above them"


def test_an_address_has_a_length() -> None:
    world = collecting("bfv")
    event = requests.Register("shard-a", "a" * 301, 1.0, 0)
    refused(world, "shard-a", event, Malformed, "an address has 300 letters")


@pytest.mark.parametrize("file", ["", "../f", "a/b", ".f", "x" * 129, "a\nb"])
def test_a_part_of_a_checkpoint_lies_in_its_folder(file: str) -> None:
    with pytest.raises(Malformed, match="shard-a: no file of a checkpoint"):
        check_part(requests.Checkpointed("shard-a", 0, file, 1, bytes(32)))
    with pytest.raises(Malformed, match="no file of a checkpoint"):
        check_part(requests.Checkpointed("shard-a", 0, "shard-a.safetensors", -1, bytes(32)))
    check_part(requests.Checkpointed("shard-a", 0, "shard-a.safetensors", 1, bytes(32)))


def test_a_model_of_billions_is_refused_before_it_is_laid_out() -> None:
    """Each such Join, with 2^33 values in blocks of 16, took the coordinator a minute."""
    world = World(make_plan())
    world.servers()
    schema = Schema((TensorSpec("w", (2**33,), "float32"),))
    text = "would have 536870912 blocks, and may have 16384: choose a larger block_size"
    refused(world, "c0", requests.Join("c0", schema), PlanRefused, text)
