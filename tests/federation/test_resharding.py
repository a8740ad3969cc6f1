"""Exactness: blocks that move, are copied or are lost leave the model as it would be."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import Refused, SecurepsError
from secureps.messages import coordinator_records
from secureps.messages.acts import Act, Deed, ShardDeed
from secureps.messages.coordinator_records import CohortBurnt, CohortReopened
from secureps.messages.requests import AskStatus, GetSum, Missing, PutBlock
from secureps.messages.run import COORDINATOR, Placement
from secureps.messages.submission import FOUNDING, UPDATE, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.coordinator import checkpointing
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import ShardState, model_key, sum_key
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.store.checkpoint import checkpoint_path
from secureps.store.journal import MemoryJournal
from secureps.store.spool import DiskSpool, MemorySpool, Spool
from tests.kits.cheats import journalled
from tests.kits.evaluations import evaluated_plan, examined, metrics_of
from tests.kits.faults_kit import FaultyNetwork, seen
from tests.kits.federations import (
    FEWER,
    Tensors,
    Walker,
    at_event,
    ends,
    events_of,
    finished,
    later,
    pinned_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.privacy_kit import adaptive_plan
from tests.kits.shoppers import SYNC, cohorts, shopping, sparse_plan
from tests.kits.streams import ASYNC, stream, stream_plan

NEW = "shard-2"
"""A spare one, of plans with two shards."""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS: list[Callable[[Path], None]] = [flip, Path.unlink]
harms = pytest.mark.parametrize("harm", HARMS, ids=["flipped", "gone"])


def sharded(cipher: str = "plain", **changes: object) -> Plan:
    return small_plan(cipher, **({"versions": 4, "clients": FEWER} | changes))


def federation(plan: Plan, folder: Path) -> Simulation:
    return small_federation(plan, folder, Conditions(spares=1), clients=FEWER)


def expected_model(versions: int = 4) -> Tensors:
    """Of these plans, whatever they seal with and wherever their blocks are."""
    return unharmed("plain", versions, clients=FEWER)[0]


def say(play: Simulation, what: ShardDeed | Deed, shard: str = "") -> Future[Any]:
    way = play.network.transport(COORDINATOR, (play.ruler,))
    return way.call(COORDINATOR, Act(what.value, shard))


def acted(play: Simulation, what: ShardDeed, shard: str, moment: int) -> None:
    """Plays to an event; there an operator has a shard added, drained or removed."""
    play.run(at_event(moment))
    if what is ShardDeed.ADD and not finished(play):
        play.start(shard)
        play.run(lambda: finished(play) or shard in play.coordinator.federation.shards)
    while not finished(play):  # one move at a time
        done = say(play, what, shard)
        play.run(done.done)
        if (error := done.exception()) is None:
            return
        assert "one move at a time" in str(error) or finished(play), error


def placement(play: Simulation) -> Placement:
    return pinned_of(play).placement


@cache
def moments(plan: Callable[[], Plan]) -> tuple[int, int]:
    """Events until version 0 is there on all shards, and until the end, where nothing moves."""
    with TemporaryDirectory() as folder:
        play, first = federation(plan(), Path(folder)), 0

        def made() -> bool:
            nonlocal first
            first += 1
            return bool(play.coordinator.federation.checkpoints)

        play.run(made)
        return first, first + events_of(play)


def soon(play: Simulation, done: Callable[[], bool]) -> None:
    """Plays on until it is done, for some thousand events at most."""
    over = at_event(5000)
    play.run(lambda: done() or over())
    assert done()


def whole(play: Simulation, copies: int = 1) -> None:
    """The move is over, and every block is where it belongs, nobody trained twice."""
    known = play.coordinator.federation
    assert (known.moving.what, known.coming) == ("", None)
    version = known.groups["all"].version
    for block, held in enumerate(placement(play).held["all"]):
        assert len(held) == len(set(held)) == copies
        keys = [play._shard(shard).fetch(f"model/all/{version}/{block}") for shard in held]
        assert len({bytes(each) for each in keys}) == 1
    versions = play.plan.section.versions
    trainers = play._cast.trainers.values()
    assert {trainer.fits for trainer in trainers if isinstance(trainer, Walker)} == {versions}
    assert not journalled(play, CohortBurnt, play.ruler)
    assert not journalled(play, CohortReopened, play.ruler), "nothing was asked for again"


MANY = 8
"""Versions, so that all of it is over before the run is."""


def test_a_removed_shard_that_is_added_is_waited_for_until_it_is_started(tmp_path: Path) -> None:
    """Its process ended when it was removed: the move says so, and what to do."""
    expected = expected_model(MANY)
    play = federation(sharded(versions=MANY), tmp_path)
    acted(play, ShardDeed.REMOVE, "shard-1", moments(sharded)[0])
    play.run(lambda: play.parties["shard-1"].halted.done())
    play.kill("shard-1")
    play.run(say(play, ShardDeed.ADD, "shard-1").done)
    asked = play.network.transport(COORDINATOR, (COORDINATOR,)).call(COORDINATOR, AskStatus())
    play.run(asked.done)
    told = "waits for shard-1 to come: start again what has ended"
    assert asked.result().move.reason == told
    play.start("shard-1")
    ends(play)
    assert same(play.model(), expected)
    assert placement(play).shards == ("shard-0", "shard-1")
    whole(play)


def alone(folder: Path) -> Simulation:
    return stream(stream_plan("plain", ASYNC), folder, conditions=Conditions(spares=1))


def clipped(folder: Path) -> Simulation:
    return small_federation(adaptive_plan("local", "plain"), folder, Conditions(spares=1))


def evaluated(folder: Path) -> Simulation:
    return examined(evaluated_plan("rlwe"), folder, Conditions(spares=1))


def shopped(folder: Path) -> Simulation:
    return shopping(sparse_plan("plain", SYNC), folder, Conditions(spares=1))[0]


PLANS: dict[str, Callable[[Path], Simulation]] = {
    "async": alone,
    "adaptive clip": clipped,
    "evaluated": evaluated,
    "sparse": shopped,
}


@pytest.mark.parametrize("name", PLANS)
def test_of_every_kind_of_plan_the_model_is_the_same(name: str, tmp_path: Path) -> None:
    """A shard is added, and later another one drained."""
    plain = PLANS[name](tmp_path / "whole")
    events, play = events_of(plain), PLANS[name](tmp_path / "moved")
    acted(play, ShardDeed.ADD, NEW, events * 4 // 10)
    acted(play, ShardDeed.DRAIN, "shard-0", 20)
    ends(play)
    assert same(play.model(), plain.model())
    if name == "evaluated":
        assert metrics_of(play) == metrics_of(plain)
    assert placement(play).shards == ("shard-1", NEW)
    assert not journalled(play, CohortBurnt)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secureps.roles.coordinator.resharding.SHARDS_WAIT", 5.0)


def doubled(**changes: Any) -> Plan:
    return sharded(**({"shards": 3, "replicas": 2} | changes))


@pytest.mark.parametrize(
    ("shard", "harm"), [(NEW, HARMS[0]), ("shard-0", HARMS[1])], ids=["gains", "loses"]
)
def test_a_damaged_file_for_the_coming_placement_is_made_again(
    shard: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """It has said that it has its blocks, and finds the damage at its part of the checkpoint."""
    play = federation(sharded(), tmp_path)
    known = play.coordinator.federation
    play.run(lambda: play.versions() == {"all": 1})
    acted(play, ShardDeed.ADD, NEW, 1)
    play.run(lambda: shard in known.moving.files.get("all", {}))
    path = tmp_path / shard / "states" / "all-000001.2.safetensors"
    harm(path)
    soon(play, lambda: known.coming is None)
    ends(play)
    assert same(play.model(), expected_model())
    assert NEW in placement(play).shards
    whole(play)


def test_copies_that_went_with_a_shard_are_made_again_and_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has of the run does not count: it is told so, and added with nothing."""
    monkeypatch.setattr("secureps.roles.coordinator.resharding.SHARDS_WAIT", 0.5)
    expected = expected_model(MANY)
    play = federation(doubled(versions=MANY), tmp_path)
    play.run(at_event(moments(doubled)[0]))
    play.kill("shard-1")
    play.run(lambda: "shard-1" not in placement(play).shards)
    play.run(lambda: placement(play).epoch == 3)
    assert all(len(each) == 2 for each in placement(play).held["all"])
    play.start("shard-1")
    with pytest.raises(SecurepsError, match=r"has left this run: away for .* add shard-1 takes"):
        play.run(lambda: finished(play))
    play.kill("shard-1")
    done = say(play, ShardDeed.ADD, "shard-1")
    play.run(done.done)
    assert done.exception() is None
    play.start("shard-1")
    ends(play)
    assert same(play.model(), expected)
    assert "shard-1" in placement(play).shards
    whole(play, copies=2)


def test_a_shard_that_was_to_leave_writes_its_part_if_the_move_is_given_up(tmp_path: Path) -> None:
    """Another one is away for good before the checkpoint that the move ends with is complete."""
    play = federation(doubled(), tmp_path)
    play.run(lambda: play.versions() == {"all": 1})
    acted(play, ShardDeed.DRAIN, "shard-0", 1)
    known = play.coordinator.federation
    play.run(lambda: known.coming is not None and not known.checkpoints[-1].complete)
    play.kill("shard-1")
    play.run(lambda: "shard-1" not in placement(play).shards)
    assert known.moving.what
    (last,) = (c for c in known.checkpoints if not c.complete)
    assert last.parts.keys() <= {"shard-2"}
    soon(play, lambda: last.complete)
    ends(play)
    assert same(play.model(), expected_model())


def test_what_versions_were_made_of_is_not_copied(tmp_path: Path) -> None:
    """It is kept for a checkpoint that is far away, and whoever has the version needs it not."""
    passed = list[tuple[int, SubmissionId]]()

    def delay(sender: str, to: str, message: Any) -> float:
        if to == NEW and isinstance(message, PutBlock) and sender.startswith("shard"):
            passed.append((play.versions()["all"], message.header.id))
        return 1.0 if sender == "client-00" else 0.0

    conditions = Conditions(spares=1, delay=delay)
    play = small_federation(sharded(clients=6, checkpoint_every=100), tmp_path, conditions)
    play.start(NEW)
    play.run(lambda: play.coordinator.federation.pinned is not None)
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: group.version == 2 and len(group.receipts) > 1)
    say(play, ShardDeed.ADD, NEW)
    ends(play)
    assert passed, "what waits for the next version is"
    for version, id in passed:
        made = [c.members for c in cohorts(play, "all") if c.version <= version]
        assert id not in {member.id for members in made for member in members}


def slow_copies(sender: str, to: str, message: Any) -> float:
    return 40.0 if isinstance(message, Missing) and message.epoch else 0.5


def test_versions_that_are_in_no_checkpoint_are_few_where_a_shard_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups without blocks there go on for a while."""
    monkeypatch.setattr(checkpointing, "LEAST_AHEAD", 2)
    plan = sparse_plan("plain", SYNC | {"quorum": 3}, SYNC | {"quorum": 3}, lease=1e5)
    groups = [group.model_copy(update={"versions": 6}) for group in plan.section.group]
    plan = Plan(plan.section.model_copy(update={"group": tuple(groups)}))
    play, _ = shopping(plan, tmp_path, None, [[0, 1, 2, 3], [0], [0]] + [[1, 2, 3]] * 2)
    known = play.coordinator.federation
    play.run(lambda: min(play.versions().values()) >= 1)
    away = placement(play).held["table.1"][0][0]
    play.kill(away)
    later(play, 500.0)
    kept = [each for each in known.checkpoints if each.complete][-1]
    ahead = {name: at - kept.version_of(name) for name, at in play.versions().items()}
    assert max(ahead.values()) == 2
    play.start(away)
    ends(play)


def test_all_that_is_evaluated_together_waits_together(tmp_path: Path) -> None:
    """Or no version would be evaluated, while one group is ahead of the other."""
    common = {"clip": 3.0, "range": 1.0, "most_examples": 32, "optimizer": {"name": "adam"}}
    head = {"name": "head", "pattern": "head.bias", "rule": {"quorum": 6, "deadline": 10.0}}
    rest = {"name": "rest", "rule": {"quorum": 5, "deadline": 10.0}}
    group = [head | common, rest | common]  # a drain of the third shard moves the second alone
    plan = evaluated_plan("plain", every=1, versions=6, group=group, shards=3)
    play = examined(plan, tmp_path, Conditions(delay=slow_copies))
    play.run(lambda: min(play.versions().values()) >= 2)
    say(play, ShardDeed.DRAIN, "shard-2")
    ends(play)
    assert "shard-2" not in placement(play).shards
    assert sorted(metrics_of(play)) == [1, 2, 3, 4, 5, 6]


SHARD = "shard-0"


class Ward:
    """A small federation whose shard-0 keeps its payloads on disk."""

    def __init__(self, folder: Path, cipher: str, clients: int = 6, **changes: Any) -> None:
        self.cipher = cipher
        self.folder = folder
        self.journals: dict[str, MemoryJournal] = {}
        conditions = Conditions(
            spool=self.spool,
            journal=lambda name: self.journals.setdefault(name, MemoryJournal()),
            network=FaultyNetwork,
        )
        plan = small_plan(cipher, clients=clients, **changes)
        self.play = small_federation(plan, folder, conditions, clients=clients)

    def spool(self, name: str) -> Spool:
        return DiskSpool(self.folder / "spool" / name) if name == SHARD else MemorySpool()

    # --- moments ------------------------------------------------------------------

    @property
    def group(self) -> GroupState:
        return self.play.coordinator.federation.groups["all"]

    def until(self, phase: Phase, version: int) -> None:
        """Plays up to the event in which the coordinator enters this step of the next version.

        Its orders have not arrived yet.
        """
        self.play.run(lambda: (self.group.phase, self.group.version) == (phase, version))

    # --- shard-0 ------------------------------------------------------------------

    @property
    def state(self) -> ShardState:
        machine = self.play.parties[SHARD].machine
        assert isinstance(machine, Shard)
        return machine.state

    @property
    def block(self) -> int:
        """The first block that shard-0 holds."""
        return self.state.own("all")[0]

    def file(self, key: str) -> Path:
        return DiskSpool(self.folder / "spool" / SHARD).path(key)

    def files(self, purpose: str) -> list[Path]:
        """The payloads on shard-0 that were sent for this purpose."""
        spooled = self.state.spooled.values()
        return [self.file(header.key) for header in spooled if header.purpose == purpose]

    @property
    def sum(self) -> Path:
        return self.file(sum_key("all", self.group.number, self.block))

    def wipe(self, where: str) -> None:
        """Deletes everything in a folder except the journal."""
        path = self.folder / "spool" / SHARD if where == "spool" else self.folder / SHARD / "states"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)

    # --- the end ------------------------------------------------------------------

    def ends_as_unharmed(self) -> None:
        self.play.run()
        assert same(self.play.model(), unharmed(self.cipher)[0])

    def journalled(self, party: str, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journals[party].rows if isinstance(record, kind)]

    def nothing_was_burnt(self) -> None:
        assert self.journalled("coordinator", coordinator_records.CohortBurnt) == []
        assert self.journalled("coordinator", coordinator_records.RoundGivenUp) == []
        assert {fate.outcome for fate in self.play.coordinator.federation.fates.values()} == {
            "durable"
        }


def test_a_sum_that_went_while_its_request_waited_is_refused_and_no_more(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "bfv")
    ward.until(Phase.OPENING, 2)
    worker, run = ward.play.parties[SHARD].worker, ward.state.pinned.run.id
    with pytest.raises(Refused, match="the sum of block 0 of cohort 9 of all is not held any more"):
        worker.fetch(sum_key("all", 9, 0))
    with pytest.raises(Refused, match="version 7 of all is gone; pull the newest"):
        worker.fetch(model_key("all", 7, ward.block))
    ward.sum.unlink()
    for path in ward.files(UPDATE):
        path.unlink()
    asked = ward.play.parties[SHARD].request("holder-0", GetSum(run, "all", 2, ward.block))
    ward.play.run(asked.done)
    assert isinstance(asked.exception(), Refused)
    assert not ward.play.parties[SHARD].halted.done()


@harms
@pytest.mark.parametrize("founder", ["there", "away"])
def test_a_founding_block_that_is_damaged_is_sent_again(
    founder: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    ward = Ward(tmp_path, "plain")
    ward.play.run(lambda: "all" in ward.play.versions() and bool(ward.group.receipts))
    harm(ward.files(FOUNDING)[0])
    if founder == "away":
        ward.play.kill("client-00")
        ward.play.loop.call_later(1.0, lambda: ward.play.start("client-00"))
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()
    assert seen(ward.play.network, "coordinator", "client-00", "SendAgain") >= 1


def lose_everything(ward: Ward) -> None:
    """Another disk: journal, payloads and states are gone, parts of checkpoints are not."""
    ward.play.kill(SHARD)
    ward.journals[SHARD].rows.clear()
    for where in ("spool", "states"):
        ward.wipe(where)


def to_part(ward: Ward, number: int) -> Path:
    """Plays until shard-0 has written its part of a checkpoint."""
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    ward.play.run(part.is_file)
    return part


@pytest.mark.slow
def test_without_its_seed_a_shard_adds_other_noise_and_the_cohort_is_begun_anew(
    tmp_path: Path,
) -> None:
    """Two sums with noise of two seeds would tell their mean, so neither steps the model."""
    privacy = {"unit": "client", "placement": "aggregator", "noise_multiplier": 1.0}
    privacy |= {"delta": 1e-5, "budget": 999.0}
    group = {"clip": 3.0, "weighting": "uniform", "rule": {"quorum": 6}}
    ward = Ward(tmp_path, "rlwe", checkpoint_every=1, privacy=privacy, group=[group])
    to_part(ward, 2)
    ward.until(Phase.PREPARING, 2)
    lose_everything(ward)
    ward.play.lose(SHARD, UnsafeSeed(99))
    ward.play.start(SHARD)
    ward.play.run()
    (burnt,) = ward.journalled("coordinator", coordinator_records.CohortBurnt)
    assert burnt.reason.startswith("shard-0 lost the sums, and made again from the same blocks")
    assert ward.group.version == 4


@pytest.mark.parametrize("damaged", [False, True], ids=["none so new", "damaged"])
def test_without_such_a_part_it_ends_before_anything_is_opened(
    damaged: bool, tmp_path: Path
) -> None:
    ward = Ward(tmp_path, "bfv", checkpoint_every=1 if damaged else 2)
    ward.until(Phase.HOLDING, 3)
    number = 3 if damaged else 1
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    lose_everything(ward)
    if damaged:
        flip(part)
    ward.play.start(SHARD)
    with pytest.raises(Refused) as ended:
        ward.play.run()
    said = f"no part of a checkpoint in {ward.play.checkpoints} has version 3 of all whole"
    assert said in str(ended.value)
    opened = ward.journalled("coordinator", coordinator_records.CohortOpened)
    assert len(opened) == 3
    assert ward.group.phase is Phase.HOLDING


def test_without_any_part_it_says_where_it_looked(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    ward.until(Phase.HOLDING, 2)
    lose_everything(ward)
    shutil.rmtree(ward.play.checkpoints)
    ward.play.start(SHARD)
    with pytest.raises(Refused, match=f"in {ward.play.checkpoints} has version 2 of all"):
        ward.play.run()
