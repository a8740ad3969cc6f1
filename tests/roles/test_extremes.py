"""Whatever a party of the roster says, in any field: it is refused, or it can be written and sent.

What the coordinator journals comes back at every start, and what it makes of it goes to everybody:
one number that no order can carry would end a run for good.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from secureps.errors import Malformed, PlanRefused, SecurepsError
from secureps.messages import requests
from secureps.messages.acts import Act
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import Evaluated
from secureps.messages.following import Follow, TakeOver
from secureps.messages.run import COORDINATOR
from secureps.messages.schema import Schema, TensorSpec
from secureps.messages.submission import SubmissionId
from secureps.roles import permissions
from secureps.roles.coordinator.state import MOST_AHEAD
from secureps.roles.machine import WORKER, Answer, Order, Tick
from secureps.roles.validation import check_part
from secureps.wire import msgpack
from secureps.wire.msgpack import encode
from tests.kits.extremes import UNSENDABLE, demand_sent, extremes, sendable
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    IDENTITIES,
    SCHEMA,
    SHARDS,
    World,
    collecting,
    holding,
    make_cohort,
    make_plan,
    opened_header,
    preparing,
    refused,
    sign,
)
from tests.kits.shard_kit import Desk
from tests.kits.unset import unset


class Checked(World):
    """Every step that it makes can be journalled, read again, and sent."""

    def _take(self, step: Any) -> Any:
        for record in step.records:
            assert from_plain(type(record), to_plain(record)) == record
        for effect in step.effects:
            if isinstance(effect, Order | Answer) and not isinstance(effect.message, SecurepsError):
                demand_sent(effect.message)
        return super()._take(step)

    def try_(self, sender: str, event: Any) -> bool:
        """Whether it was taken; a refusal is one of our errors."""
        try:
            self.give(sender, event)
        except SecurepsError:
            return False
        return True


CIPHERS = ("plain", "bfv")


@cache
def played(cipher: str) -> tuple[tuple[str, Any, Checked], ...]:
    """One message of each kind that a party said in a run of two versions, and the world before."""
    found: dict[Any, tuple[str, Any, Checked]] = {}
    before = Checked(make_plan(cipher))
    for sender, event in _all(before):
        key = (type(event), getattr(event, "cohort", -1) >= 0, sender in SHARDS)
        if sender != WORKER and key not in found:
            found[key] = (sender, event, copy.deepcopy(before))
        before.give(sender, event)
    return tuple(found.values())


def _all(world: Checked) -> Iterator[tuple[str, Any]]:
    for shard in SHARDS:
        yield shard, requests.Register(shard, f"{shard}:1", 1.0, 0)
    yield HOLDER, requests.Register(HOLDER, "", 1.0, 0)
    for server in (*SHARDS, HOLDER):
        yield server, requests.Subscribe(server, ())
    for client in CLIENTS:
        yield client, requests.Join(client, SCHEMA)
        yield client, requests.Subscribe(client, ())
        yield client, requests.Heartbeat(client)
    while world.due and world.group().version < 2:
        due = world.due.pop(0)
        yield due.sender, due.reply


def goes_on(world: Checked) -> None:
    """What follows can be sent; so can all of it after a restart, and how the run stands."""
    for _ in range(12):
        if not world.due:
            break
        due = world.due.pop(0)
        world.try_(due.sender, due.reply)
    world.now += 1000.0
    world.give("coordinator", Tick())
    again = Checked(world.plan, journal=tuple(world.journal))
    for server in (*SHARDS, HOLDER):
        address = "" if server == HOLDER else f"{server}:1"
        again.try_(server, requests.Register(server, address, 1.0, 0))
        again.try_(server, requests.Subscribe(server, ()))
    for client in CLIENTS:
        again.try_(client, requests.Join(client, SCHEMA))
        again.try_(client, requests.Subscribe(client, ()))
    for _ in range(6):
        if not again.due:
            break
        due = again.due.pop(0)
        again.try_(due.sender, due.reply)
    assert again.try_("c0", requests.AskStatus())


@pytest.mark.parametrize("cipher", CIPHERS)
def test_whatever_is_said_to_the_coordinator_can_be_written_and_sent(cipher: str) -> None:
    taken = journalled = 0
    for sender, event, before in played(cipher):
        world = copy.deepcopy(before)
        for other in sendable(event):
            length = len(world.journal)
            if world.try_(sender, other):  # what is refused has changed nothing
                taken += 1
                if len(world.journal) > length:
                    journalled += 1
                    goes_on(world)
                world = copy.deepcopy(before)
    assert taken > journalled > 20, "messages that are all refused show nothing"


def test_every_message_of_a_run_is_among_them() -> None:
    said = {type(event) for _, event, _ in played("bfv")}
    rare = {requests.Decline, requests.Withdraw, requests.Missing, requests.Spoilt}
    rare |= {requests.OpenRefused, requests.Retire, requests.Telemetry, requests.Trouble, Evaluated}
    committee = {requests.Examined, requests.KeyShare, EnvelopeKeyAnnounced}
    asked = {requests.AskRun, requests.AskStatus, Act, Follow, TakeOver}
    heard = frozenset().union(*permissions.TO_COORDINATOR.values())
    assert said == heard - rare - committee - asked


RARE: tuple[tuple[str, Any], ...] = (
    ("c0", requests.Decline("c0", "all", 1, "no")),
    ("c0", requests.Withdraw("c0", SubmissionId("c0", "all", 1), 0, 0, "no")),
    ("c0", requests.Missing("c0", "all", -1, (SubmissionId("c0", "all", 1),))),
    ("shard-a", requests.Missing("shard-a", "all", 0, (SubmissionId("c0", "all", 1),))),
    ("shard-a", requests.Spoilt("shard-a", "all", 0, "no")),
    ("shard-a", requests.Trouble("shard-a", "no space left")),
    (HOLDER, requests.OpenRefused(HOLDER, "all", 0, "no", b"")),
    ("c0", requests.Retire("c0")),
    (COORDINATOR, Act("leave-out", "c0", "no")),
    ("c0", requests.Telemetry("c0", "all", 1, (requests.Figure("seconds", 1.0),))),
)


@pytest.mark.parametrize("at", [collecting, holding, preparing])
@pytest.mark.parametrize("said", RARE, ids=lambda said: type(said[1]).__name__)
def test_what_is_rarely_said_can_be_written_and_sent(
    at: Callable[[], World], said: tuple[str, Any]
) -> None:
    sender, event = said
    reached = at()
    for other in (event, *sendable(event)):
        world = Checked(reached.plan, journal=tuple(reached.journal))
        world.journal[:0] = reached.journal
        world.servers(reached.federation.incarnation)
        length = len(world.journal)
        if world.try_(sender, other) and len(world.journal) > length:
            goes_on(world)


def test_whatever_is_said_to_a_shard_can_be_written_and_sent() -> None:
    desk = Desk("bfv").founded()
    cohort = make_cohort(number=0, version=1)
    desk.holding(cohort)
    opened = opened_header(desk.plan, desk.run, "all", cohort.number, 0)
    said = (
        ("c0", requests.PutBlock(desk.header())),
        ("c0", requests.AskBlock(desk.header())),
        (HOLDER, requests.PutBlock(opened)),
        (HOLDER, requests.GetSum(desk.run, "all", 0, 0)),
        ("c0", requests.GetBlock(desk.run, "all", 0, 0)),
    )
    taken = 0
    for sender, event in said:
        for other in (event, *sendable(event)):
            header = getattr(other, "header", None)
            if header is not None and header.author in IDENTITIES:
                header = sign(header, header.author)  # what its author may sign
                other = dataclasses.replace(other, header=header)
            try:
                if isinstance(other, requests.PutBlock) and not desk.shard.inspect(sender, other):
                    continue
                step = desk.give(sender, other)
            except SecurepsError:
                continue
            taken += 1
            for record in step.records:
                assert from_plain(type(record), to_plain(record)) == record
            for effect in step.effects:
                if isinstance(effect, Answer):
                    demand_sent(effect.message)
    assert taken > 5
    desk.restarted().shard.resume(0.0)


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


# --- those that were found --------------------------------------------------------


@pytest.mark.parametrize("party", ["shard-a", HOLDER])
@pytest.mark.parametrize("seen", [-1, MOST_AHEAD + 2, 2**63 - 2, 2**63 - 1])
def test_an_incarnation_that_cannot_have_been_is_not_believed(party: str, seen: int) -> None:
    """One holder's word was journalled, and no order could be encoded from then on."""
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
    """2^33 values in blocks of 16 took the coordinator a minute, of each such Join."""
    world = World(make_plan())
    world.servers()
    schema = Schema((TensorSpec("w", (2**33,), "float32"),))
    text = "would have 536870912 blocks, and may have 16384: choose a larger block_size"
    refused(world, "c0", requests.Join("c0", schema), PlanRefused, text)
