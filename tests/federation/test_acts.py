"""An operator, or the load, acts while a run is played: acts are on record and change no bit."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secureps.config.scenario import ShardsSection
from secureps.errors import Malformed, Refused
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import PlacementMoved
from secureps.messages.member_records import OwnAct
from secureps.messages.requests import AskStatus, Figure, Status, Submit, Telemetry
from secureps.messages.run import COORDINATOR
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Receipt
from secureps.policy.plan import Plan
from secureps.roles.coordinator.scaling import UP, Load, find_bytes_at_once
from secureps.roles.machine import WORKER
from secureps.roles.member.member import LEFT, Member
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.scenario.delays import Delays, Links
from tests.kits.cheats import cohorts, journalled
from tests.kits.evaluations import evaluated_plan, examined
from tests.kits.federations import (
    OF_RECORDS,
    Tensors,
    at_event,
    finished,
    later,
    pinned_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.folding import differing
from tests.kits.loads import decided
from tests.kits.shoppers import SYNC, Shopper, sparse_plan
from tests.kits.streams import BUFFERED, stream_plan

LONG = 300.0
"""Seconds that a pause takes: many deadlines of the plans."""


def say(play: Simulation, act: Act) -> Future[Any]:
    return play.network.transport(COORDINATOR).call(COORDINATOR, act)


def slow(sender: str, to: str, message: object) -> float:
    return 0.05


def say_and_wait(play: Simulation, act: Act) -> Any:
    done = say(play, act)
    play.run(done.done)
    return done.result()


def test_a_checkpoint_is_made_in_a_pause_too(tmp_path: Path) -> None:
    play = small_federation(small_plan("plain", checkpoint_every=4), tmp_path)
    federation = play.coordinator.federation
    play.run(lambda: federation.groups["all"].version == 1)
    say_and_wait(play, Act("pause"))
    say_and_wait(play, Act("checkpoint"))
    play.run(lambda: federation.checkpoints[-1].complete)
    assert federation.checkpoints[-1].version_of("all") >= 1
    say_and_wait(play, Act("go-on"))
    play.run(lambda: finished(play))
    assert same(play.model(), unharmed()[0])


def test_who_is_left_out_while_the_run_is_paused_and_taken_back_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """Its update was refused meanwhile: the open round closes without it."""
    plan = small_plan(rule={"minimum": 3})
    play = small_federation(plan, tmp_path, Conditions(delay=slow))
    federation = play.coordinator.federation
    own = federation.groups["all"]
    play.run(lambda: own.version == 1 and own.awaits("client-02"))
    say_and_wait(play, Act("pause"))
    say_and_wait(play, Act("leave-out", "client-02"))
    later(play, LONG)
    say_and_wait(play, Act("take-back", "client-02"))
    say_and_wait(play, Act("go-on"))
    began = play.loop.now()
    play.run(lambda: own.version == 2)
    assert play.loop.now() - began < 5.0
    play.run(lambda: finished(play))
    assert federation.included == dict.fromkeys(client_names(6), 4) | {"client-02": 3}


NAME = "client-02"


def played(folder: Path, **changes: Any) -> Simulation:
    plan = small_plan(rule={"quorum": 5, "minimum": 3}, **changes)
    return small_federation(plan, folder, Conditions(delay=slow))


def act(play: Simulation, number: int, what: str, budget: float | None = None) -> None:
    """As the process hears of a line in its state folder; its ledger was lowered before."""
    ledger = play._ledgers[NAME]
    if budget is not None and budget < (ledger.limit or math.inf):
        ledger.lower(budget)
    play.parties[NAME].post(WORKER, OwnAct(number, what, budget))


def until_version(play: Simulation, version: int) -> None:
    play.run(lambda: play.coordinator.federation.groups["all"].version == version)


def journal_of(play: Simulation) -> list[OwnAct]:
    rows = play._stores[NAME].journal.replay()
    return [record for _, record in rows if isinstance(record, OwnAct)]


def member(play: Simulation) -> Member:
    machine = play.parties[NAME].machine
    assert isinstance(machine, Member)
    return machine


def test_a_client_that_leaves_ends_and_one_that_is_started_again_joins_again(
    tmp_path: Path,
) -> None:
    play = played(tmp_path, versions=6)
    until_version(play, 1)
    act(play, 1, "leave")
    act(play, 2, "pause")  # it leaves, whatever comes
    play.run(play.parties[NAME].halted.done)
    assert play.parties[NAME].halted.result().reason == LEFT
    assert play.parties[NAME].halted.result().error is None
    assert play.coordinator.federation.retired == {NAME}
    assert journal_of(play) == [OwnAct(1, "leave"), OwnAct(2, "pause"), OwnAct(2, "left")]
    before = play.coordinator.federation.included[NAME]
    until_version(play, 3)
    assert play.coordinator.federation.included[NAME] == before
    play.kill(NAME)
    play.start(NAME)
    act(play, 1, "leave")
    act(play, 2, "pause")
    play.run()
    assert play.coordinator.federation.included[NAME] > before


@pytest.mark.slow
def test_a_lower_budget_holds_without_a_restart_and_after_one(tmp_path: Path) -> None:
    play = played(tmp_path, versions=6, **OF_RECORDS)
    until_version(play, 2)
    act(play, 1, "lower-budget", 0.001)
    act(play, 2, "lower-budget", 40.0)  # it is never raised
    play.run(lambda: bool(journal_of(play)))
    assert member(play)._budget.budget == 0.001
    play.run(play.parties[NAME].halted.done)
    halted = play.parties[NAME].halted.result()
    assert "the budget is 0.001" in halted.reason
    charged = play.coordinator.federation.ledger.count(NAME)
    assert charged <= 3
    play.kill(NAME)
    play.start(NAME)
    play.run(play.parties[NAME].halted.done)
    assert "the budget is 0.001" in play.parties[NAME].halted.result().reason
    play.run(lambda: finished(play))
    assert play.coordinator.federation.ledger.count(NAME) == charged
    assert not differing(play, seed=1, points=3), "it holds after a compaction, too"


def test_a_budget_under_a_plan_without_privacy_means_to_leave(tmp_path: Path) -> None:
    play = played(tmp_path)
    until_version(play, 1)
    act(play, 1, "lower-budget", 1.0)
    play.run(play.parties[NAME].halted.done)
    assert "the plan trains without privacy" in play.parties[NAME].halted.result().reason


SKEWED = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], *[[1, 2, 3]] * 5]
"""Row-blocks of each of eight shoppers: three of four are on one shard, and all touch them."""


VERSIONS = 12


class Loaded:
    """A federation whose shards' links, and clients' training, take virtual time."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        bandwidth: float = 20_000.0,
        cost: Callable[[str, object], float] = lambda name, task: 1.0,
        **trainers: Any,
    ) -> None:
        links = Links(
            Delays.model_validate({"network": 0.01}),
            1,
            ShardsSection(bandwidth=bandwidth),
        )

        def delay(sender: str, to: str, message: Any) -> float:
            now, slowest = self.play.loop.now(), 0.01
            for name, sends in ((sender, True), (to, False)):
                if name.startswith("shard-"):
                    slowest = max(slowest, links.shard_seconds(name, sends, message, now))
            return slowest

        def seconds(name: str, task: object) -> float:
            return cost(name, task) if getattr(task, "aims", None) else 0.0

        conditions = Conditions(delay=delay)
        self.play = small_federation(plan, folder, conditions, cost=seconds, **trainers)

    @property
    def decided(self) -> list[ScalingDecided]:
        return journalled(self.play, ScalingDecided)

    @property
    def shards(self) -> tuple[str, ...]:
        return pinned_of(self.play).placement.shards

    def status(self) -> Status:
        asked = self.play.network.transport(COORDINATOR).call(COORDINATOR, AskStatus())
        self.play.run(asked.done)
        answer = asked.result()
        assert isinstance(answer, Status)
        return answer

    def act(self, what: str, reason: str = "", party: str = "") -> None:
        act = Act(what, party, reason)
        done = self.play.network.transport(COORDINATOR).call(COORDINATOR, act)
        self.play.run(done.done)
        done.result()

    def end(self) -> Simulation:
        self.play.run(lambda: finished(self.play))
        return self.play


def scaled_plan(policy: str, **changes: Any) -> Plan:
    scaling = {"policy": policy, "every": 3.0, "most_shards": 3, **changes}
    return small_plan(versions=VERSIONS, scaling=scaling)


def expected() -> Tensors:
    """The model of servers that follow nothing, wherever blocks lie."""
    return unharmed(versions=VERSIONS)[0]


@pytest.mark.parametrize("policy", ["rule", "fitted"])
def test_a_shard_comes_where_updates_take_long_on_their_way(policy: str, tmp_path: Path) -> None:
    at = Loaded(scaled_plan(policy, most_shards=4), tmp_path, bandwidth=400.0)
    ended = at.end()
    adds = [each for each in at.decided if each.what == "add-shard"]
    assert adds
    assert adds[0].shard == "shard-2"
    assert "shards" in adds[0].reason
    acts = journalled(ended, Act)
    assert acts[0] == Act("add-shard", "shard-2", f"scaling: {adds[0].reason}")
    assert "shard-2" in journalled(ended, PlacementMoved)[0].placement.shards
    assert same(ended.model(), expected())


def test_a_shard_that_has_little_to_do_goes_and_never_the_last(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule"), tmp_path, bandwidth=1e9)
    ended = at.end()
    assert at.shards == ("shard-0",)
    assert [each.what for each in at.decided].count("drain-shard") == 1
    assert same(ended.model(), expected())


def test_a_shard_that_an_operator_drained_comes_back_by_an_operator_alone(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule"), tmp_path, bandwidth=400.0)
    at.play.run(lambda: at.play.versions()["all"] >= 0)
    at.act("add-shard", "", "shard-2")
    at.play.run(lambda: len(at.shards) == 3 and not at.play.coordinator.federation.moving.what)
    at.act("drain-shard", "its machine goes", "shard-2")
    at.end()
    assert at.shards == ("shard-0", "shard-1")
    assert any("above 40%" in each.reason for each in at.decided), "another would be of use"


def test_an_operator_keeps_out_a_shard_that_the_load_has_drained(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule"), tmp_path, bandwidth=1e9)
    at.play.run(lambda: at.play.versions()["all"] >= 0)
    at.play.run(lambda: len(at.shards) == 1 and not at.play.coordinator.federation.moving.what)
    scaled = at.play.coordinator.federation.scaled
    assert scaled.drained == set(), "it went by itself"
    at.act("drain-shard", "its machine goes", "shard-1")
    at.act("drain-shard", "its machine goes", "shard-1")
    assert scaled.drained == {"shard-1"}
    assert journalled(at.play, Act)[1:] == [Act("drain-shard", "shard-1", "its machine goes")]
    assert not at.play.coordinator.federation.moving.what, "nothing is to move"
    at.end()


def test_no_operator_speaks_for_the_load(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule"), tmp_path)
    at.play.run(lambda: at.play.versions()["all"] >= 0)
    with pytest.raises(Malformed) as raised:
        at.act("drain-shard", "scaling: less to do", "shard-1")
    assert 'a reason that begins with "scaling: " is the coordinator\'s own' in str(raised.value)


def test_one_that_says_a_thousand_times_how_slow_it_is_has_one_voice() -> None:
    load = Load()
    for party, seconds in (*[("client-00", 1e15)] * 1000, ("client-01", 1.0), ("client-02", 2.0)):
        load.take(Telemetry(party, "all", 1, (Figure("network_seconds", seconds),)), ())
    assert load.transfer == 2.0


def test_what_trails_the_model_says_nothing_of_how_slow_clients_are(tmp_path: Path) -> None:
    plan = evaluated_plan(scaling={"policy": "fixed", "every": 3.0, "most_shards": 3})
    coordinator = examined(plan, tmp_path).coordinator
    for group, known in ((plan.trailing, {}), ("all", {"client-00": 9.0})):
        figures = (Figure("network_seconds", 9.0),)
        coordinator.handle(0.0, "client-00", Telemetry("client-00", group, 1, figures))
        assert coordinator._load._ways[UP] == known


def test_a_status_has_the_newest_decisions_with_their_reasons(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule"), tmp_path, bandwidth=400.0)
    at.play.run(lambda: bool(at.play.coordinator.federation.scaled.decided))
    known = at.status().scaling
    assert known is not None
    (step,) = known.steps
    assert (known.policy, known.off, step.what) == ("rule", "", "add-shard shard-2")
    assert step.reason == at.decided[0].reason
    assert {load.shard for load in known.loads} == {"shard-0", "shard-1"}
    assert all(load.bytes_per_second > 0 for load in known.loads)
    plain = Loaded(small_plan(), tmp_path / "plain")
    plain.play.run(lambda: plain.play.coordinator.federation.pinned is not None)
    assert plain.status().scaling is None


def test_a_killed_coordinator_decides_nothing_twice(tmp_path: Path) -> None:
    plan = scaled_plan("fitted", least_deadline=0.25)
    at = Loaded(plan, tmp_path, bandwidth=400.0)
    at.play.run(lambda: at.play.versions().get("all") == 6)
    before, known = at.decided, at.play.coordinator.federation.scaled
    assert before
    at.play.kill(COORDINATOR)
    at.play.loop.call_later(1.0, partial(at.play.start, COORDINATOR))
    at.play.run(lambda: COORDINATOR in at.play.network._endpoints)
    at.play.run(at_event(3))
    again = at.play.coordinator.federation.scaled
    assert again == known, "what was decided is on record, and is not decided anew"
    at.end()
    assert at.decided[: len(before)] == before


def test_off_ends_it_at_once_and_on_begins_anew(tmp_path: Path) -> None:
    at = Loaded(scaled_plan("rule", least_deadline=0.25), tmp_path, bandwidth=1e9)
    at.play.run(lambda: at.play.coordinator.federation.scaled.deadline < 1)
    at.act("scaling-off", "a visit")
    scaled = at.play.coordinator.federation.scaled
    assert (scaled.deadline, scaled.buffer) == (1.0, 1.0)
    known = at.status().scaling
    assert known is not None
    assert known.off == "switched off by the operator, a visit"
    count, version = len(at.decided), at.play.versions()["all"]
    at.play.run(lambda: at.play.versions()["all"] >= version + 4)
    assert len(at.decided) == count
    acts = journalled(at.play, Act)
    at.act("scaling-off")
    assert journalled(at.play, Act) == acts, "it is so already"
    at.act("scaling-on")
    at.end()
    assert at.play.coordinator.federation.scaled.off == ""


def test_a_plan_without_scaling_has_none_to_switch_off(tmp_path: Path) -> None:
    at = Loaded(small_plan(), tmp_path)
    at.play.run(lambda: at.play.coordinator.federation.pinned is not None)
    with pytest.raises(Refused) as raised:
        at.act("scaling-off")
    assert "plan has no [scaling]: nothing follows the load" in str(raised.value)


FOUR = {"quorum": 4, "minimum": 3}


def slow_last(name: str, task: object) -> float:
    return 9.0 if name == "client-05" else 1.0


def test_a_deadline_is_shortened_for_one_that_is_always_late(tmp_path: Path) -> None:
    scaling = {"policy": "fitted", "every": 10.0, "least_deadline": 0.25}
    plan = small_plan(rule=FOUR, versions=30, scaling=scaling)
    at = Loaded(plan, tmp_path, bandwidth=1e9, cost=slow_last)
    ended = at.end()
    assert min(each.deadline for each in at.decided) < 0.5
    sizes = [len(cohort.members) for cohort in cohorts(ended)]
    assert min(sizes) >= 3, "never below the minimum cohort"
    assert sizes[-1] == 5


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_an_open_round_keeps_the_deadline_that_its_members_were_told(
    factor: float, tmp_path: Path
) -> None:
    """Of the first round client-05 needs all but a second, and of the second all but half of one"""
    seconds = {1: 9.0, 2: 10.0 * factor - 0.5}
    last = "client-05"

    def cost(name: str, task: Any) -> float:
        return seconds.get(task.aims[0].version + 1, 99.0) if name == last else 1.0

    plan = small_plan(rule=FOUR, versions=3, scaling={"every": 1e6})
    at = Loaded(plan, tmp_path, 1e9, cost)
    open_group = at.play.coordinator.federation.groups["all"]
    at.play.run(lambda: open_group.version == 0 and len(open_group.receipts) == 5)
    at.play.coordinator.federation.apply(at.play.loop.now(), decided(deadline=factor))
    assert at.play.coordinator._tx(at.play.loop.now()).deadline("all") == 10.0
    sizes = [len(cohort.members) for cohort in cohorts(at.end()) if cohort.version > 0]
    assert sizes == [6, 6, 5]


def shops(scaling: dict[str, Any] | None, folder: Path, bandwidth: float = 20_000.0) -> Loaded:
    changes = {} if scaling is None else {"scaling": scaling}
    rule = SYNC | {"quorum": 3, "deadline": 1000.0}
    plan = sparse_plan("plain", rule, lease=1e5, **changes)
    groups = [g.model_copy(update={"versions": 14}) for g in plan.section.group]
    plan = Plan(plan.section.model_copy(update={"group": tuple(groups)}))
    kind, clients = (lambda i: Shopper(i, SKEWED[i])), len(SKEWED)
    return Loaded(plan, folder, bandwidth, lambda name, task: 0.5, kind=kind, clients=clients)


def test_blocks_do_not_move_in_place_of_a_shard_that_is_waited_for(tmp_path: Path) -> None:
    at = shops({"every": 2.0, "most_shards": 3}, tmp_path)
    at.play.run(lambda: min(at.play.versions().values()) >= 0)
    at.play.kill("shard-2")
    at.act("add-shard", "", "shard-2")
    moving = at.play.coordinator.federation.moving
    at.play.run(lambda: min(at.play.versions().values()) >= 7)
    assert (moving.what, moving.shard) == ("add-shard", "shard-2"), "an operator's word stands"
    assert at.decided == []
    at.play.start("shard-2")
    at.end()
    assert "shard-2" in at.shards


def test_a_hot_row_block_moves_before_its_shard_is_late(tmp_path: Path) -> None:
    at = shops({"every": 2.0}, tmp_path / "follows")
    ended = at.end()
    moved = [block for each in at.decided for block in each.blocks]
    assert moved, "row-blocks that all touch lie on one shard"
    assert "times the work of an even spread" in at.decided[0].reason
    stays = shops(None, tmp_path / "stays").end()
    assert same(ended.model(), stays.model())


@pytest.mark.parametrize("bandwidth", [5_000.0, 1e9])
def test_what_is_on_its_way_at_once_is_a_round_however_late_its_shard_is(
    bandwidth: float, tmp_path: Path
) -> None:
    """Of a link that is full less comes in a second, and as much in a round."""
    at = shops({"every": 1e6}, tmp_path, bandwidth)
    at.play.run(lambda: min(at.play.versions().values()) >= 3)
    tx = at.play.coordinator._tx(at.play.loop.now())
    update = max(block.size for block in received(at.play, "table.0"))
    sizes = {f"table.{k}": sum(k in own for own in SKEWED) * update for k in range(4)}
    known = find_bytes_at_once(tx)
    assert {group: known[group] for group in sizes} == sizes


def received(play: Simulation, group: str) -> list[Receipt]:
    receipts = (record.receipt for record in journalled(play, Submit))
    return [each for each in receipts if each.id.group == group and each.version >= 0]


def test_without_rounds_an_update_of_each_member_is_on_its_way(tmp_path: Path) -> None:
    plan = stream_plan("plain", BUFFERED, versions=12, scaling={"every": 1e6})
    at = Loaded(plan, tmp_path)
    at.play.run(lambda: at.play.versions()["all"] >= 4)
    tx = at.play.coordinator._tx(at.play.loop.now())
    update = received(at.play, "all")[-1].size
    assert find_bytes_at_once(tx) == {"all": 6 * update}
    at.end()
    assert find_bytes_at_once(tx) == {}, "it makes no more versions"
