"""Shards that an operator moves blocks between, or that stay away, and what follows for blocks."""

from dataclasses import replace
from typing import Any

import pytest

from secureps.errors import Malformed, NotReady, Refused, SecurepsError, UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import PlacementMoved
from secureps.messages.encoding import digest
from secureps.messages.orders import WriteCheckpoint
from secureps.messages.records import RunPinned
from secureps.messages.requests import Move, Prepared, Register, Subscribe
from secureps.messages.run import COORDINATOR, GroupVersion, Placement
from secureps.messages.submission import Held, SubmissionId
from secureps.roles.coordinator import checkpointing
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import Moving, WriteManifest
from secureps.roles.machine import WORKER, Order, Say, Step, WatchLost
from tests.kits.roles_kit import (
    CLIENTS,
    SHARDS,
    World,
    collecting,
    configure,
    halts,
    make_plan,
    orders_of,
    state_of,
)
from tests.kits.streams import ASYNC

FIRST, SPARE = SHARDS
ADD, DRAIN, REMOVE = (Act(f"{what}-shard", SPARE) for what in ("add", "drain", "remove"))
PATIENT: dict[str, Any] = {"lease": 1e4, "rule": {"deadline": 1e4}}


class OneShard(World):
    """Four blocks on one shard; the other shard comes when the run is founded."""

    def servers(self, seen: int = 0) -> None:
        for shard in self.federation.shards or (FIRST,):
            self.come(shard, seen)

    def come(self, shard: str = SPARE, seen: int = 0) -> list[str]:
        """A shard comes; returns its orders."""
        self.give(shard, Register(shard, f"{shard}:1", 1.0, seen))
        return ordered(self.give(shard, Subscribe(shard, ())), shard)

    def has(self) -> list[Any]:
        """Has shards report all their blocks, and a checkpoint made; returns the records."""
        coming = self.federation.coming
        assert coming is not None
        said = [record for shard in coming.shards for record in self.says(shard)]
        while kept := [d for d in self.due if isinstance(d.order, WriteCheckpoint | WriteManifest)]:
            self.due.remove(kept[0])
            said += self.give(kept[0].sender, kept[0].reply).records
        return said

    def says(self, shard: str = SPARE) -> list[Any]:
        """A shard reports all its coming blocks; returns the records that follow."""
        own = (shard, "all", self.group().version, blocks_of(self, shard), digest("s"))
        return self.give(shard, Prepared(*own, epoch=placement(self).epoch)).records


def placement(at: World) -> Placement:
    """The newest placement, coming or in force."""
    pinned = at.federation.pinned
    assert pinned is not None
    return pinned.coming or pinned.placement


def blocks_of(at: World, shard: str) -> tuple[bytes, ...]:
    """The digests of a shard's blocks by the newest placement."""
    return tuple(at.group().blocks[block] for block in placement(at).blocks_of("all", shard))


def ordered(step: Step, to: str) -> list[str]:
    return [type(order).__name__ for order in orders_of(step, to)]


def world(**changes: Any) -> OneShard:
    made = OneShard(make_plan("plain", shards=1, **(PATIENT | changes)))
    made.found()
    made.come()
    return made


def moving() -> OneShard:
    """Blocks are to move to the other shard."""
    made = world()
    made.act(ADD)
    return made


def gained() -> OneShard:
    """Each shard has reported its coming blocks, and no checkpoint of them is made."""
    made = moving()
    for shard in SHARDS:
        made.says(shard)
    return made


def kept(at: World, kind: type[WriteCheckpoint | WriteManifest]) -> Step:
    """Has the shards write their parts, or the manifest written."""
    for due in [each for each in at.due if isinstance(each.order, kind)]:
        at.due.remove(due)
        step = at.give(due.sender, due.reply)
    return step


def placed(at: World) -> dict[str, int]:
    return {each.shard: each.blocks for each in at.status().holdings}


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (Act("add-shard", "nobody"), UnknownParty, "no shard called 'nobody' has come to this run"),
        (Act("add-shard", "c0"), UnknownParty, "no shard called 'c0' has come"),
        (Act("remove-shard", COORDINATOR), UnknownParty, "no shard called 'coordinator'"),
        (Act("drain-shard", "x" * 9000), UnknownParty, "no shard called 'xxx"),
        (Act("drain-shard", FIRST), Refused, "without shard-a there are 0 shards"),
        (Act("remove-shard", FIRST), Refused, "without shard-a there are 0 shards"),
    ],
)
def test_what_is_not_possible_changes_nothing(
    act: Act, error: type[SecurepsError], text: str
) -> None:
    at = world()
    before = state_of(at.federation)
    with pytest.raises(error, match=text) as raised:
        at.give(COORDINATOR, act)
    assert len(str(raised.value)) < 300
    assert state_of(at.federation) == before
    assert at.status().move is None


def test_a_shard_that_is_away_with_the_only_copies_is_not_given_up() -> None:
    at = moving()
    at.has()
    at.give(SPARE, WatchLost())
    only = ", ".join(f"block {block} of all" for block in placement(at).blocks_of("all", SPARE))
    with pytest.raises(Refused, match=f"is away, and nobody else who is here has {only}: they"):
        at.give(COORDINATOR, REMOVE)
    with pytest.raises(Refused, match="shard-b is away: start it, and it hands its blocks over"):
        at.give(COORDINATOR, DRAIN)


def test_nothing_moves_before_there_is_a_run() -> None:
    with pytest.raises(NotReady):
        OneShard(make_plan("plain", shards=1)).give(COORDINATOR, ADD)


@pytest.mark.parametrize("act", [DRAIN, Act("add-shard", FIRST)])
def test_what_is_so_already_writes_nothing(act: Act) -> None:
    at = world()
    assert at.act(act) == []
    assert at.status().move is None


def test_a_shard_takes_its_share_over_and_gives_it_back() -> None:
    at = world()
    first = at.act(ADD)
    assert first[0] == ADD
    assert [type(record) for record in first[1:]] == [PlacementMoved]
    assert at.status().move == Move("add-shard", SPARE, 0, 2, 0, at.status().move.bytes)  # type: ignore[union-attr]
    assert at.act(ADD) == [], "it is under way"
    assert placed(at) == {FIRST: 4}, "until it is over the old shard has them"
    assert PlacementMoved in [type(record) for record in at.has()]
    assert (placed(at), at.status().move) == ({FIRST: 2, SPARE: 2}, None)
    assert at.act(ADD) == [], "it is so already"
    at.act(DRAIN)
    at.has()
    assert (placed(at), at.status().move) == ({FIRST: 4}, None)
    assert {each.name for each in at.status().shards} == {FIRST, SPARE}, "it stays, as a spare"


def test_a_move_of_the_only_copies_ends_with_a_checkpoint_of_them() -> None:
    at = gained()
    move = at.status().move
    assert move is not None
    assert (move.moved, move.reason) == (2, "waits for the checkpoint that is being made of it")
    assert placed(at) == {FIRST: 4}, "the old shard has them until it is made"
    parts = [each.to for each in at.due if isinstance(each.order, WriteCheckpoint)]
    assert parts == [FIRST, SPARE]
    again = OneShard(at.plan, journal=tuple(at.journal))
    again.servers(again.federation.incarnation)
    for each in (at, again):
        each.has()
        assert (placed(each), each.status().move) == ({FIRST: 2, SPARE: 2}, None)
        assert each.federation.checkpoints[-1].number == 1


def test_what_waits_for_a_move_has_waited_no_longer_for_it() -> None:
    """All streams wait, also those whose blocks do not move."""
    own = {"rule": ASYNC, "most_examples": 32}
    groups = [{"name": "moves", "pattern": "body.*"} | own, {"name": "stays"} | own]
    plan, pinned = make_plan("plain", group=groups), configure(make_plan("plain"))
    before = Placement.by_block(1, "ab", {"moves": [("a",)], "stays": [("a",)]})
    after = Placement.by_block(2, "ab", {"moves": [("b",)], "stays": [("a",)]})
    record = RunPinned(replace(pinned.run, plan=plan.text), before, pinned.shards)
    moves, stays = (GroupState(name, 0, opened_at=40.0, rounds=False) for name in plan.groups)
    for group, *moments in ((moves, 40.0), (stays, 40.0, 65.0)):
        waits = {SubmissionId("c0", group.name, n): at for n, at in enumerate(moments)}
        group.members.arrived.update(waits)
    moving, both = Moving(), (moves, stays)
    record = moving.apply(60.0, PlacementMoved(after), record, both)
    moving.files = {"moves": {"b": digest("s")}}
    moving.apply(90.0, PlacementMoved(after, in_force=True), record, both)
    found = (*moves.members.arrived.values(), *stays.members.arrived.values())
    assert (found, moves.opened_at, stays.opened_at) == ((70.0, 70.0, 90.0), 70.0, 70.0)


def test_a_move_that_has_begun_takes_no_time_in_a_pause() -> None:
    moving = Moving(since=1.0)
    moving.stand_still(4.0, 9.0)
    assert moving.since == 6.0


def test_who_is_here_is_not_waited_for_with_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    at = world()
    tx, due = at.coordinator._tx(at.now), [FIRST]
    monkeypatch.setattr(checkpointing, "AHEAD", 0)
    monkeypatch.setattr(checkpointing, "LEAST_AHEAD", 0)
    monkeypatch.setattr(checkpointing, "parts_due", lambda tx: due)
    assert checkpointing.why_cohorts_wait(tx) == ""
    due.append("shard-away")
    assert checkpointing.why_cohorts_wait(tx).startswith("waits for shard-away: too many versions")


def test_one_move_at_a_time() -> None:
    at = moving()
    for act in (DRAIN, Act("drain-shard", FIRST), Act("remove-shard", FIRST)):
        with pytest.raises(Refused, match="one move at a time: blocks move to shard-b"):
            at.give(COORDINATOR, act)


def test_a_move_to_a_shard_that_is_removed_is_taken_back() -> None:
    at = moving()
    at.act(REMOVE)
    assert (placed(at), at.status().move) == ({FIRST: 4}, None)
    (gone,) = (each for each in at.status().servers if each.name == SPARE)
    assert gone.trouble.startswith("has left: removed by the operator")
    assert at.act(REMOVE) == []
    assert "Finish" in at.come()


def test_the_checkpoint_of_a_move_that_is_taken_back_has_no_file_of_who_was_sent_away() -> None:
    """All parts are there; a manifest for the move does not complete the checkpoint."""
    at = gained()
    kept(at, WriteCheckpoint)
    at.act(REMOVE)
    before, after = (d for d in at.due if isinstance(d.order, WriteManifest))
    parts = [[part.shard for part in each.order.parts] for each in (before, after)]
    assert parts == [[FIRST, SPARE], [FIRST]]
    assert after.order.placement.shards == (FIRST,)
    at.give(WORKER, before.reply)
    assert not at.federation.checkpoints[-1].complete
    at.give(WORKER, after.reply)
    assert at.federation.checkpoints[-1].complete


def test_a_spare_shard_that_is_removed_has_left_at_once() -> None:
    at = world()
    assert at.act(REMOVE) == [REMOVE]
    assert SPARE not in [each.name for each in at.status().shards]
    assert "Finish" in at.come()
    at.act(ADD)  # an operator may want it back
    at.come()
    assert at.status().move is not None


def test_a_spare_shard_that_is_removed_ends_no_other_move() -> None:
    pinned = configure(make_plan("plain"))
    record = RunPinned(pinned.run, pinned.placement, pinned.shards, pinned.placement)
    moving = Moving(what=ADD.what, shard=SPARE)
    assert moving.apply(0.0, Act("remove-shard", "shard-c"), record, ()) == record
    assert (moving.what, moving.shard) == (ADD.what, SPARE)
    assert "shard-c" in moving.removed


def test_no_cohort_closes_while_blocks_move_and_the_round_closes_afterwards() -> None:
    at = moving()
    at.pump()
    group = at.group()
    assert (group.phase, group.version) == (Phase.COLLECTING, 0)
    assert len(group.open_receipts.clients) == len(CLIENTS), "what is sent is acknowledged"
    at.has()
    assert group.phase is Phase.HOLDING
    at.pump()
    assert at.group().version >= 1


def test_nothing_moves_while_a_version_is_in_the_making() -> None:
    at = world()
    at.until(Phase.HOLDING)
    assert at.act(ADD) == [ADD]
    while at.federation.coming is None:
        at.pump(1)
    assert (at.group().making, at.group().version) == (None, 1)


def test_nothing_moves_while_a_checkpoint_is_in_the_making() -> None:
    """A shard that has written its part would not have the blocks that it gains in it."""
    at = world()
    while at.federation.checkpoint_in_making is None:
        at.pump(1)
    assert at.act(ADD) == [ADD]
    while at.federation.coming is None:
        at.pump(1)
    assert at.federation.checkpoints[-1].complete


@pytest.mark.parametrize(("coming", "ends"), [(True, False), (False, True)])
def test_a_journal_that_does_not_know_that_a_move_is_over_is_refused(
    coming: bool, ends: bool
) -> None:
    """The shards that gave blocks away have deleted them, so this journal is an older copy."""
    at = moving()
    told = Register(FIRST, f"{FIRST}:1", 1.0, 0, at.run, epoch=2, coming=coming)
    ended = halts(at.give(FIRST, told))
    assert bool(ended) is ends
    for halt in ended:
        assert "ends at placement 2 (not in force) of the blocks, and " in halt.reason


def test_what_another_shard_says_ends_no_move() -> None:
    at = moving()
    wrong = Prepared(SPARE, "all", 0, (bytes(32), bytes(32)), digest("s"), epoch=2)
    right = replace(wrong, blocks=blocks_of(at, SPARE))
    past = replace(right, epoch=1), replace(right, version=1)
    for event in (wrong, replace(wrong, shard=FIRST), *past):
        assert at.give(event.shard, event).records == []
        assert at.status().move is not None
    with pytest.raises(UnknownParty):
        at.give("c0", wrong)


@pytest.mark.parametrize("back", [False, True], ids=["away", "here again"])
def test_no_placement_is_in_force_while_who_gains_blocks_may_have_lost_them(back: bool) -> None:
    """The shard reported its blocks and wrote its part, but may have a new disk since."""
    at = gained()
    kept(at, WriteCheckpoint)
    at.give(SPARE, WatchLost())
    if back:
        at.come()
    kept(at, WriteManifest)
    assert at.federation.checkpoints[-1].complete
    assert (placed(at), at.federation.moving.what) == ({FIRST: 4}, ADD.what)
    if not back:
        at.come()
    at.has()
    assert placed(at) == {FIRST: 2, SPARE: 2}


def test_who_has_its_blocks_again_is_told_again_to_write_its_part() -> None:
    """The order came while blocks were in transit to the shard, so it wrote none."""
    at = gained()
    at.come()
    at.told.clear()
    at.says()
    assert [(to, type(order)) for to, order in at.told] == [(SPARE, WriteCheckpoint)]


@pytest.mark.parametrize("act", [DRAIN, REMOVE])
def test_who_lost_all_its_blocks_hears_that_it_has_none(act: Act) -> None:
    at = moving()
    at.has()
    at.act(act)
    for shard in (FIRST, SPARE):
        if placement(at).blocks_of("all", shard):
            at.says(shard)
    kept(at, WriteCheckpoint)
    said = ordered(kept(at, WriteManifest), SPARE)
    assert said[0] == "Configure"
    assert ("Finish" in said) == (act is REMOVE)


@pytest.mark.parametrize("more", [{"total": (1.0,) * 1000}, {"scale": 2.0}, {"squares": (1.0,)}])
def test_what_nobody_checks_of_a_moved_block_is_not_journalled(more: dict[str, Any]) -> None:
    at = moving()
    known, *_ = at.says()
    with pytest.raises(Malformed, match="moved blocks come without a scale, metrics and squared"):
        at.give(SPARE, replace(known, state=digest("other"), **more))


@pytest.mark.parametrize("moment", ["moving", "over"])
def test_a_coordinator_that_is_started_again_moves_on(moment: str) -> None:
    at = moving()
    if moment == "over":
        at.has()
    again = OneShard(at.plan, journal=tuple(at.journal))
    assert again.federation.pinned == at.federation.pinned
    assert again.federation.moving == at.federation.moving
    again.servers(again.federation.incarnation)
    if moment == "moving":
        assert again.status().move is not None
        again.has()
    assert (placed(again), again.status().move) == ({FIRST: 2, SPARE: 2}, None)


def test_shards_hear_of_the_coming_placement_and_others_once_it_is_in_force() -> None:
    at = world()
    step = at.give(COORDINATOR, ADD)
    assert [ordered(step, party) for party in SHARDS] == [["Configure", "Commit"]] * 2
    assert not any(ordered(step, client) for client in CLIENTS)
    told = {FIRST, SPARE, *CLIENTS}
    for shard in SHARDS:
        at.says(shard)
    kept(at, WriteCheckpoint)
    step = kept(at, WriteManifest)
    assert {party for party in told if "Configure" in ordered(step, party)} == told


STAYS, GOES = SHARDS


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secureps.roles.coordinator.resharding.SHARDS_WAIT", 50.0)


def doubled() -> World:
    patient: dict[str, Any] = {"lease": 1e4, "rule": {"deadline": 1e4}}
    return collecting("plain", replicas=2, **patient)


def left(world: World) -> list[str]:
    records = (record for transaction in world.journal for record in transaction)
    return [r.shard for r in records if isinstance(r, coordinator_records.ShardLeft)]


def passes(world: World, seconds: float) -> Step:
    return world.at(world.now + seconds)


def test_who_stays_away_leaves() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    assert world.coordinator.wake() == 50.0
    passes(world, 49.0)
    assert left(world) == []
    step = passes(world, 1.0)
    assert left(world) == [GOES]
    pinned = world.federation.pinned
    assert pinned is not None
    assert (pinned.placement.epoch, pinned.placement.shards) == (2, (STAYS,))
    told = [
        e.to
        for e in step.effects
        if isinstance(e, Order) and isinstance(e.message, orders.Configure)
    ]
    assert {*CLIENTS, STAYS} <= {*told}
    assert told.index(STAYS) < min(map(told.index, CLIENTS)), "clients send by it at once"
    assert world.federation.addresses == (world.federation.shards[STAYS],)


def test_who_comes_back_in_time_stays() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 49.0)
    world.give(GOES, requests.Subscribe(GOES, ()))
    passes(world, 100.0)
    assert left(world) == []


def test_without_copies_nobody_leaves() -> None:
    world = collecting("plain")
    assert world.give(GOES, WatchLost()).effects == [Say(f"{GOES} is away")]
    passes(world, 10_000.0)
    assert left(world) == []


def test_nobody_leaves_while_the_other_is_away_too() -> None:
    world = doubled()
    for shard in SHARDS:
        world.give(shard, WatchLost())
    passes(world, 60.0)
    assert left(world) == []
    world.give(STAYS, requests.Subscribe(STAYS, ()))
    assert left(world) == [GOES]


@pytest.mark.parametrize("version", [0, 2], ids=["an empty disk", "an older version"])
def test_nobody_leaves_while_the_other_lacks_the_newest_version(version: int) -> None:
    """Only the absent shard has it: the other one's disk is new, or an older copy."""
    world = doubled()

    def comes_with(run: bytes, *reached: GroupVersion) -> None:
        world.give(STAYS, requests.Register(STAYS, f"{STAYS}:1", 1.0, 1, run, reached))

    if version:
        world.until(version)
        comes_with(world.run, GroupVersion("all", 0))
    else:
        comes_with(b"")
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    assert left(world) == []
    comes_with(world.run, GroupVersion("all", version))
    assert left(world) == [GOES]


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.HOLDING, Phase.PREPARING])
def test_the_run_goes_on_from_whatever_step(phase: Phase) -> None:
    world = doubled()
    world.until(phase)
    world.due = [due for due in world.due if due.sender != GOES]
    world.give(GOES, WatchLost())
    world.due = [due for due in world.due if due.sender != GOES]
    world.pump()
    assert world.group().version == 0
    passes(world, 60.0)
    world.pump()
    assert left(world) == [GOES]
    assert world.group().version == world.plan.section.versions
    assert world.federation.checkpoints[-1].complete


def test_who_has_left_is_refused_and_shown() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    with pytest.raises(UnknownParty, match="shard-b has left this run: away for 50 seconds"):
        world.give(GOES, requests.Register(GOES, f"{GOES}:1", 1.0, 1, world.run))
    seen = world.status()
    (shown,) = (server for server in seen.servers if server.name == GOES)
    assert shown.trouble == "has left: away for 50 seconds; others hold its blocks"
    assert f"{GOES} is away" not in seen.groups[0].reason


def test_a_restarted_coordinator_waits_anew_and_knows_who_left() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    again = World(world.plan, journal=tuple(world.journal))
    assert again.federation.moving.left.keys() == {GOES}
    assert again.federation.pinned == world.federation.pinned
    compacted = World(world.plan).coordinator
    compacted.unfold(world.coordinator.make_fold())
    assert compacted.federation.moving.left == world.federation.moving.left
    assert compacted.federation.pinned == world.federation.pinned


def test_what_was_said_before_leaving_is_not_what_others_say() -> None:
    world = doubled()
    world.until(Phase.HOLDING)
    number = world.group().number
    sums = world.sums(GOES, "all", number)
    world.give(GOES, Held(GOES, "all", number, sums))
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    assert left(world) == [GOES]
    assert world.group().phase is Phase.HOLDING
    world.give(STAYS, Held(STAYS, "all", number, sums))
    assert world.group().phase is Phase.PREPARING
