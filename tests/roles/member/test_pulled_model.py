"""Which published blocks a client asks for, of which shards, and how many digests it looks at."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from secureps.errors import Malformed, Refused, Unreachable, WrongRun
from secureps.messages import orders, requests
from secureps.messages.encoding import digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import Sealed
from secureps.messages.records import RunPinned
from secureps.messages.run import GroupPlacement, GroupVersion, Placement
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.model.layout import GroupLayout
from secureps.roles.machine import Call, CallOff, Halt, Locate, Say, Step
from secureps.roles.member.member import Member
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.member.tasks import Evaluate, in_own_order
from secureps.roles.member.terms import MemberSettings
from secureps.roles.pinned_run import Pinned
from tests.kits.member_kit import Client
from tests.kits.roles_kit import (
    ADDRESSES,
    ROSTER,
    SCHEMA,
    SHARDS,
    configure,
    make_header,
    make_placement,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
    works,
)

looked = 0


class Counted(tuple[bytes, ...]):
    """Digests that count how often they are compared."""

    def __iter__(self) -> Iterator[bytes]:
        global looked
        for block in super().__iter__():
            looked += 1
            yield block

    def __getitem__(self, index: Any) -> Any:
        global looked
        looked += 1
        return super().__getitem__(index)


PLAN = make_plan("plain")


def pinned(blocks: dict[str, int]) -> Pinned:
    """A run of these groups; only the placement matters."""
    placed = tuple(
        GroupPlacement(group, tuple(SHARDS[b % 2] for b in range(count)))
        for group, count in blocks.items()
    )
    record = RunPinned(make_run(PLAN), Placement(1, SHARDS, placed), ADDRESSES)
    found = Pinned.of(record)
    groups = tuple(GroupLayout(group, (), count, 1) for group, count in blocks.items())
    return replace(found, layout=replace(found.layout, groups=groups))


def block(name: str) -> bytes:
    return digest("block", name.encode())


def publish(pulled: PulledModel, group: str, version: int, *names: str) -> None:
    blocks = Counted(block(name) for name in names)
    pulled.publish(orders.Published(1, group, version, blocks))


class Puller:
    """A client's model, and the blocks that it asks for."""

    def __init__(self, **blocks: int) -> None:
        self.run = pinned(blocks)
        self.pulled = PulledModel(dict.fromkeys(blocks, False))

    def asks(self) -> list[tuple[str, str, int, int]]:
        """Group, version and block of each request, in order of blocks."""
        step = Step()
        lacks = self.pulled.ask_for_absent(self.run, step)
        assert lacks or not step.effects
        asked: list[tuple[str, str, int, int]] = []
        for each in step.effects:
            assert isinstance(each, Call)
            assert isinstance(each.message, requests.GetBlock)
            wanted = each.message
            asked.append((each.to, wanted.group, wanted.version, wanted.block))
        return sorted(asked, key=lambda ask: ask[1:])

    @property
    def lacks(self) -> bool:
        return self.pulled.ask_for_absent(self.run, Step())

    def got(self, group: str, version: int, at: int, name: str, base: str = "") -> bool:
        """Whether the block is the published one."""
        ask = requests.GetBlock(b"", group, version, at, base=block(base) if base else b"")
        return self.pulled.take_block(ask, block(name), 4) is None


A, B = SHARDS


def test_clients_ask_each_from_a_block_of_its_own_on() -> None:
    run, first = pinned({"w": 4}), set[int]()
    for client in "abcdefgh":
        pulled, step = PulledModel({"w": False}, client=client), Step()
        publish(pulled, "w", 0, *"abcd")
        assert pulled.ask_for_absent(run, step)
        calls = [effect.message for effect in step.effects if isinstance(effect, Call)]
        asked = [ask.block for ask in calls if isinstance(ask, requests.GetBlock)]
        assert asked == in_own_order(client, range(4))
        first.add(asked[0])
    assert len(first) > 1


def test_what_is_published_is_asked_for_once_and_what_stays_is_kept() -> None:
    puller = Puller(w=3)
    publish(puller.pulled, "w", 0, "a", "b", "c")
    assert puller.asks() == [(A, "w", 0, 0), (B, "w", 0, 1), (A, "w", 0, 2)]
    assert puller.asks() == []
    for at, name in enumerate("abc"):
        assert puller.lacks
        assert puller.got("w", 0, at, name)
    assert not puller.lacks
    publish(puller.pulled, "w", 0, "a", "b", "c")
    assert not puller.lacks
    publish(puller.pulled, "w", 1, "a", "x", "c")
    assert puller.asks() == [(B, "w", 1, 1)]
    assert puller.got("w", 1, 1, "x")
    versions, blocks = puller.pulled.take()
    assert versions == (GroupVersion("w", 1),)
    assert blocks == tuple(map(block, "axc"))
    assert puller.pulled.take_account() == 16
    publish(puller.pulled, "w", 2, "a", "b", "c")
    assert puller.asks() == [(B, "w", 2, 1)], "nobody keeps what was published before"


def test_a_version_that_overtakes_asks_anew_for_what_is_on_its_way() -> None:
    puller = Puller(w=2)
    publish(puller.pulled, "w", 0, "a", "b")
    puller.asks()
    publish(puller.pulled, "w", 1, "a", "y")
    assert sorted(puller.asks()) == [(A, "w", 1, 0), (B, "w", 1, 1)]
    assert puller.got("w", 0, 0, "a"), "of an old version: not kept, and no fault"
    assert puller.asks() == []
    assert puller.lacks
    publish(puller.pulled, "w", 0, "a", "b")
    assert puller.asks() == [], "an older version changes nothing"
    assert not puller.got("w", 1, 1, "b"), "not the one that was published"
    assert puller.got("w", 1, 1, "y")
    assert puller.pulled.take_failure(requests.GetBlock(b"", "w", 1, 0), Unreachable("a")) is None
    assert puller.asks() == [(A, "w", 1, 0)]
    assert puller.got("w", 1, 0, "a")
    assert not puller.lacks


def with_bits(puller: Puller) -> Puller:
    puller.pulled.groups = dict.fromkeys(puller.pulled.groups, True)
    return puller


def bases(puller: Puller) -> list[tuple[int, int, bytes]]:
    step = Step()
    puller.pulled.ask_for_absent(puller.run, step)
    asks = [each.message for each in step.effects if isinstance(each, Call)]
    return [(a.version, a.block, a.base) for a in asks if isinstance(a, requests.GetBlock)]


def test_it_says_which_block_it_has_where_differences_are_pulled() -> None:
    """The newest block that came, even if versions between were never asked for."""
    puller = with_bits(Puller(w=2))
    publish(puller.pulled, "w", 0, "a", "b")
    assert bases(puller) == [(0, 0, b""), (0, 1, b"")]
    assert puller.got("w", 0, 0, "a")
    assert puller.got("w", 0, 1, "b")
    publish(puller.pulled, "w", 1, "c", "d")
    publish(puller.pulled, "w", 2, "e", "f")
    assert bases(puller) == [(2, 0, block("a")), (2, 1, block("b"))]
    assert puller.got("w", 2, 0, "e", "a")
    publish(puller.pulled, "w", 3, "g", "b")
    assert bases(puller) == [(3, 0, block("e"))], "b came last, and is here"
    assert puller.got("w", 2, 1, "f", "b"), "late, and of no use"
    assert puller.got("w", 3, 0, "g", "e")
    puller.pulled.take()
    publish(puller.pulled, "w", 4, "g", "h")
    assert bases(puller) == [(4, 1, block("b"))]
    without = Puller(w=1)
    publish(without.pulled, "w", 0, "a")
    bases(without)
    assert without.got("w", 0, 0, "a")
    publish(without.pulled, "w", 1, "b")
    assert bases(without) == [(1, 0, b"")], "the plan has no pull_bits"


@pytest.mark.parametrize("wrong", ["another digest", "another length"])
def test_what_differences_did_not_bring_is_asked_for_whole_and_once(wrong: str) -> None:
    puller = with_bits(Puller(w=1))
    publish(puller.pulled, "w", 0, "a")
    bases(puller)
    assert puller.got("w", 0, 0, "a")
    publish(puller.pulled, "w", 1, "b")
    found: list[object] = []
    for base in (block("a"), b""):
        assert bases(puller) == [(1, 0, base)]
        ask = requests.GetBlock(b"", "w", 1, 0, base=base)
        if wrong == "another digest":
            found.append(puller.pulled.take_block(ask, block("c"), 4))
        else:
            found.append(puller.pulled.take_failure(ask, Malformed("a wrong length")))
    said, halt = found
    assert isinstance(said, Say)
    assert said.text.endswith("differences were asked for, and now the whole block is")
    assert isinstance(halt, Halt)
    if wrong == "another digest":
        assert "is not the one that was published; tell the aggregator's operator" in halt.reason
    assert halt.error is (Refused if wrong == "another digest" else Malformed)


def test_a_version_that_is_published_again_is_not_asked_for_again() -> None:
    """As a coordinator does that began anew."""
    puller = Puller(w=2)
    publish(puller.pulled, "w", 0, "a", "b")
    puller.asks()
    assert puller.got("w", 0, 0, "a")
    publish(puller.pulled, "w", 0, "a", "b")
    assert puller.asks() == []
    assert puller.got("w", 0, 1, "b")
    publish(puller.pulled, "w", 0, "a", "b")
    assert not puller.lacks


def test_groups_that_are_no_concern_of_its_own_are_not_asked_for() -> None:
    puller = Puller(w=1)
    publish(puller.pulled, "elsewhere", 4, "a")
    publish(puller.pulled, "w", 0, "b")
    assert puller.pulled.published["elsewhere"].version == 4
    assert puller.asks() == [(A, "w", 0, 0)]


def test_a_client_that_pulls_looks_at_nothing_else_until_the_last_block_is_here() -> None:
    """Also for an evaluation, which names a model by all its digests."""
    metrics = {"metrics": {"accuracy": 1.0}, "every": 1, "rule": {"quorum": 3, "minimum": 2}}
    plan = make_plan("plain", evaluation=metrics)
    client = Client(plan).joined()
    blocks = model_blocks("all", 1, 4)
    client.order(orders.Published(1, EVALUATION, 0, model_blocks(EVALUATION, 0, 1)))
    client.order(orders.Published(1, "all", 1, Counted(blocks)))
    client.order(orders.Invite(1, EVALUATION, 1, 0, 10.0, 1))
    global looked
    looked = 0
    for block in range(3):
        assert client.got(1, block).effects == []
    assert looked == 3
    (task,) = works(client.got(1, 3))
    assert isinstance(task, Evaluate)


@pytest.mark.parametrize("groups", [1, 30])
def test_what_is_looked_at_grows_with_the_blocks_and_not_with_their_square(groups: int) -> None:
    def looks(blocks: int) -> int:
        """How often digests are compared until two versions have come, block by block."""
        global looked
        names = [f"g{number}" for number in range(groups)]
        each = blocks // groups
        puller = Puller(**dict.fromkeys(names, each))
        looked = 0
        for version in (0, 1):
            for group in names:
                publish(
                    puller.pulled, group, version, *(f"{group}/{version}/{b}" for b in range(each))
                )
                puller.asks()
            for group in names:
                for at in range(each):
                    assert puller.lacks
                    assert puller.got(group, version, at, f"{group}/{version}/{at}")
            assert not puller.lacks
            puller.pulled.take()
        return looked

    few, many = looks(30), looks(300)
    assert many <= 10 * few
    assert many <= 12 * 300


COPIED = make_plan("plain", replicas=2)
RUN = make_run(COPIED)
PLACEMENT = make_placement(COPIED)
STAYS, GOES = SHARDS
ID = SubmissionId("c0", "all", 1)


def placed() -> Pinned:
    return Pinned.of(RunPinned(RUN, PLACEMENT, ADDRESSES))


def outbox(id: SubmissionId = ID, stored: tuple[int, ...] = (1,)) -> Outbox:
    """Four blocks in transit, of which the second has arrived."""
    receipt = make_receipt(COPIED, RUN.id, id, 0, b"")
    headers = tuple(make_header(COPIED, RUN.id, id, block, purpose=UPDATE) for block in range(4))
    out = Outbox()
    out.add(Sealed(receipt, headers))
    out.begin_sending(0.0, id)
    out.moving[id].stored.update(stored)
    return out


def left() -> orders.Configure:
    """The second shard, the primary of odd blocks, has left."""
    return replace(configure(COPIED), placement=PLACEMENT.without(GOES), shards=ADDRESSES[:1])


def calls(step: Step) -> list[tuple[str, int]]:
    puts = ((e.to, e.message) for e in step.effects if isinstance(e, Call))
    return [(to, m.header.block) for to, m in puts if isinstance(m, requests.PutBlock)]


def pulls(step: Step) -> list[tuple[str, int]]:
    gets = ((e.to, e.message) for e in step.effects if isinstance(e, Call))
    return [(to, m.block) for to, m in gets if isinstance(m, requests.GetBlock)]


def follow(
    known: Pinned, told: orders.Configure, out: Outbox, model: PulledModel | None = None
) -> tuple[Step, Pinned]:
    member, step = Member(MemberSettings("c0", ROSTER, SCHEMA)), Step()
    member._pinned, member._out, member._model = known, out, model or PulledModel()
    member._follow(step, told)
    return step, member.pinned


def test_what_was_on_its_way_goes_where_it_is_placed_now() -> None:
    step, moved = follow(placed(), left(), outbox())
    assert sorted(calls(step)) == [(STAYS, 0), (STAYS, 2), (STAYS, 3)], "block 1 has arrived"
    assert moved.placement.epoch == 2
    assert [e.party for e in step.effects if isinstance(e, Locate)] == [STAYS]
    assert [e.to for e in step.effects if isinstance(e, CallOff)] == [GOES], "it is asked no more"


def test_what_is_sent_anew_is_sent_in_its_clients_own_order() -> None:
    id = SubmissionId("c1", "all", 1)
    step, _ = follow(placed(), left(), outbox(id, stored=()))
    assert calls(step) == [(STAYS, block) for block in in_own_order("c1", range(4))]


def test_an_older_placement_changes_nothing() -> None:
    known = replace(placed(), placement=PLACEMENT.without(GOES))
    step, moved = follow(known, configure(COPIED), outbox())
    assert (moved, calls(step)) == (known, [])


def test_what_was_asked_of_who_left_is_asked_again() -> None:
    model, known = PulledModel({"all": False}), placed()
    model.publish(orders.Published(1, "all", 0, model_blocks("all", 0, 4)))
    asked = Step()
    assert model.ask_for_absent(known, asked)
    first = [(e.to, e.others) for e in asked.effects if isinstance(e, Call)]
    assert first == [(STAYS, (GOES,)), (GOES, (STAYS,))] * 2
    assert model.is_pulling
    _, moved = follow(known, left(), Outbox(), model)
    again = Step()
    assert model.ask_for_absent(moved, again)
    assert [(e.to, e.others) for e in again.effects if isinstance(e, Call)] == [(STAYS, ())] * 4
    assert [block for _, block in pulls(again)] == [block for _, block in pulls(asked)]


def test_a_placement_that_is_none_is_refused() -> None:
    strange = replace(PLACEMENT, epoch=2, groups=(GroupPlacement("all", ("c1",) * 4),))
    with pytest.raises(WrongRun, match="no placement of this run's blocks"):
        follow(placed(), replace(left(), placement=strange), Outbox())
