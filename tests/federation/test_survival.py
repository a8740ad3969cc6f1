"""Survival: a client that is late, gone, or lost what it had holds nobody up.
Privacy: one update leaves for each run, group, version and step, even after a lost disk.
Exactness: little memory and disks that are slow or full change no bit.
Survival: a standby takes over by command, and nothing acknowledged is lost.

No training repeats its bits. The state is lost after each point between a training and the fate of
its update; what shards read of a place is counted, and held against the ledger.
"""

import dataclasses
import logging
import os
import re
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest

from secureps.client.sealing import OutboxSealer
from secureps.client.trainer import Array, FitConfig, FitResult
from secureps.client.worker import ClientWorker
from secureps.crypto.sampling import SecretSeed
from secureps.errors import ConfigError, DiskFailed, Refused, UnknownParty, Unreachable
from secureps.messages import coordinator_records, member_records
from secureps.messages.coordinator_records import RoundOpened, StandbyFollows
from secureps.messages.member_records import Sealed, SubmissionSettled, UpdateReleased
from secureps.messages.requests import AskStatus, Decline, Follow, PutBlock, Submit, TakeOver
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.policy.memory import footprint, sealing_memory
from secureps.policy.plan import Plan
from secureps.roles.coordinator import status
from secureps.roles.coordinator.reign import BEGINS
from secureps.roles.machine import Halt
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Contribute
from secureps.roles.shard.memory_report import memory_used
from secureps.run.check import assume_service
from secureps.run.simulate import simulation
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.service.metrics import Metrics, hide_names
from secureps.store import journal_rows
from secureps.store.backup import begin_from_copy, has_copy
from secureps.store.budget import MemoryLedger
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import Journal, MemoryJournal, SqliteJournal
from secureps.store.spool import DiskSpool, MemorySpool
from tests.kits.cheats import journalled
from tests.kits.federations import (
    OF_RECORDS,
    Tensors,
    Walker,
    ends_as_unharmed,
    events_of,
    finished,
    killed_at,
    layout_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.privacy_kit import PRIVACY, Restless, Still
from tests.kits.sealed_blocks import looked_at
from tests.kits.shoppers import SYNC, shopping, sparse_plan
from tests.kits.standbys import followed, follows, reach, take_over
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, SSP, stream, stream_plan
from tests.kits.thin_group import FED_BACK, THIN

LATE = "client-05"
DEADLINE, EXTENSIONS = 10.0, 1
TRAINING = 23.0
"""Seconds that the late client trains for: longer than deadline and extension together."""


class Late:
    """A federation of which one client is always late, and what that client keeps."""

    def __init__(self, folder: Path, versions: int) -> None:
        self.spools: dict[str, MemorySpool] = {}
        self.journals: dict[str, MemoryJournal] = {}
        conditions = Conditions(
            spool=lambda name: self.spools.setdefault(name, MemorySpool()),
            journal=lambda name: self.journals.setdefault(name, MemoryJournal()),
        )
        rule = {"quorum": 5, "deadline": DEADLINE, "extensions": EXTENSIONS}
        plan = small_plan(rule=rule, versions=versions, **OF_RECORDS)
        self.play = small_federation(plan, folder, conditions, cost=self.cost)

    @staticmethod
    def cost(name: str, task: object) -> float:
        return TRAINING if name == LATE and isinstance(task, Contribute) else 0.0

    def journalled(self, party: str, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journals[party].rows if isinstance(record, kind)]


def test_a_client_that_is_always_late_is_pulled_along_and_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions = 14
    late = Late(tmp_path, versions)
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(late.spools[LATE].keys()))
        return late.play._over()

    with caplog.at_level(logging.INFO, "secureps"):
        late.play.run(over)

    # Every round closes at its first deadline, by quorum, without it.
    closed = late.journalled("coordinator", coordinator_records.CohortClosed)
    assert [record.cohort.version for record in closed] == list(range(1, versions + 1))
    assert {record.reason for record in closed} == {"deadline: 5 of 6 have arrived, quorum 5"}
    assert late.journalled("coordinator", coordinator_records.RoundExtended) == []
    assert all(m.id.client != LATE for record in closed for m in record.cohort.members)
    assert late.play.loop.now() == pytest.approx(versions * DEADLINE)

    # Whatever it sends is dropped, with the reason, and it goes on from the newest version.
    bases = [record.receipt.version for record in late.journalled(LATE, member_records.Sealed)]
    told = [m for m in caplog.messages if m.startswith(f"{LATE}: {LATE}/all/")]
    pattern = (
        r"client-05: client-05/all/(\d+) was dropped: client-05/all/\1 was trained on version "
        r"(\d+), the open base is (\d+); pull and train again"
    )
    found = [re.fullmatch(pattern, line) for line in told]
    assert [int(match[2]) for match in found if match] == bases == [0, 2, 4, 6, 9, 11]
    assert all(int(match[3]) - int(match[2]) in (2, 3) for match in found if match)
    assert late.play.parties[LATE].halted.result().reason == f"all {versions} versions are made"

    # Its outbox never holds more than one update, and shards do not keep what nobody wants.
    assert most == layout_of(late.play).group("all").blocks
    assert late.spools[LATE].keys() == []

    # What it sealed it has spent, by its own record; what was summed is the coordinator's.
    member = late.play.parties[LATE].machine
    assert isinstance(member, Member)
    assert [charge.version for charge in member._ledger.facts] == bases
    ledger = late.play.coordinator.federation.ledger
    charges = Counter(charge.party for charge in ledger.facts)
    assert charges == dict.fromkeys(set(client_names(6)) - {LATE}, versions)


FIVE_WAIT = {"name": "sync", "quorum": 5}
EXPECTED = {
    "sync": r"\d of 6 have arrived; waits for client-\d\d(, client-\d\d)*( and \d more)?",
    "ssp": r"\d members have sent; cohort \d waits for client-\d\d(, client-\d\d)*( and \d more)?"
    r"( at clock \d|, \d clocks? behind, \d+ s left)",
    "buffered": r"\d of 5 updates are here, the minimum cohort is 5",
    "priority": r"\d of 6 updates are here(, the minimum cohort is 5|; \d members train)",
    "async": r"0 of 1 updates are here, the minimum cohort is 1",
}


def halfway(rule: dict[str, Any], folder: Path) -> Simulation:
    """Version 2 is there, and some train for the next."""
    play = stream(stream_plan("plain", rule), folder)
    group = play.coordinator.federation.groups
    play.run(
        lambda: (
            "all" in group
            and group["all"].version == 2
            and group["all"].phase.value == "collecting"
            and any(group["all"].awaits(name) for name in client_names(6))
        )
    )
    return play


@pytest.mark.parametrize(
    "rule", [FIVE_WAIT, SSP, BUFFERED, PRIORITY, ASYNC], ids=lambda rule: rule["name"]
)
def test_every_rule_says_what_it_waits_for(rule: dict[str, Any], tmp_path: Path) -> None:
    play = halfway(rule, tmp_path)
    machine, now = play.coordinator, play.loop.now()
    shown = status.status(machine._tx(now), (), machine.servers)
    (group,) = shown.groups
    assert re.fullmatch(EXPECTED[rule["name"]], group.reason), group.reason
    assert "\n" not in group.reason
    training = {name for name in client_names(6) if machine.federation.groups["all"].awaits(name)}
    assert set(group.late) == training
    assert {m.name for m in shown.members if m.state == "trains"} == training
    assert {m.state for m in shown.members} <= {"trains", "waits"}
    metrics = Metrics()
    metrics.on_state(machine, now)
    why = hide_names(group.reason, machine.federation.members)
    assert "client-0" not in why
    labels = {"group": "all", "why": why}
    assert metrics.registry.get_sample_value("secureps_group_waits", labels) == 1


@pytest.mark.parametrize("rule", [SSP, BUFFERED, PRIORITY], ids=lambda rule: rule["name"])
def test_a_stream_without_members_waits_for_members(rule: dict[str, Any], tmp_path: Path) -> None:
    play = stream(stream_plan("rlwe", rule), tmp_path, 4)
    group = play.coordinator.federation.groups
    play.run(lambda: play.loop.now() > 60)
    reason = group["all"].reason
    assert reason.endswith("; waits for members: 4 are live, a cohort needs 5")
    assert reason.count("waits for members") == 1


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("waits for ada, eve and 3 more at clock 2", "waits for clients at clock 2"),
        ("ada trains; eve.b.", "clients trains; clients."),
        ("waits for ada, 2 clocks behind, 17 s left", "waits for clients, 2 clocks behind"),
        ("adamant: shard-0 is away", "adamant: shard-0 is away"),
        ("5 of 6 are here; ada", "5 of 6 are here; clients"),
    ],
)
def test_metrics_name_no_client(reason: str, told: str) -> None:
    assert hide_names(reason, {"ada", "eve", "eve.b"}) == told


def test_who_went_before_a_restart_is_not_invited_for_its_lease(tmp_path: Path) -> None:
    """The journal does not say who has gone: nobody waits to a deadline to find that out."""
    rule, gone = FIVE_WAIT | {"deadline": 100.0}, "client-05"
    play = stream(stream_plan("plain", rule, versions=9, lease=20.0), tmp_path)

    def version() -> int:
        return play.versions().get("all", -1)

    play.run(lambda: version() == 1)
    play.kill(gone)
    play.run(lambda: gone not in play.coordinator.live(play.loop.now()) and version() >= 2)
    play.kill(COORDINATOR)
    play.start(COORDINATOR)
    play.run(lambda: play.coordinator.federation.incarnation == 2)
    at, reached = play.loop.now(), version()
    assert gone in play.coordinator.live(at), "for all that the journal says"
    before = len(journalled(play, RoundOpened))
    play.run(lambda: version() >= reached + 3)
    rounds = journalled(play, RoundOpened)[before:]
    assert [gone in each.invited for each in rounds] == [False] * len(rounds)
    assert all(len(each.invited) == 5 for each in rounds)
    assert play.loop.now() - at < 100.0


VICTIM = "client-02"
GROUP: dict[str, Any] = {"clip": 3.0, "range": 1.0, "weighting": "uniform"}
FIVE = {"quorum": 5, "minimum": 4, "deadline": 10.0}
ROUNDS = {"group": [GROUP | {"rule": FIVE}]}
OF_CLIENTS: dict[str, Any] = {
    "privacy": PRIVACY | {"placement": "local"},
    "group": [{"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": FIVE}],
}
KINDS = {"nothing": ROUNDS, "records": ROUNDS | OF_RECORDS, "clients": OF_CLIENTS}

Place = tuple[str, int, int]


class Dying(MemoryLedger):
    """A ledger whose client dies at its next update, before the row is written or after that."""

    dies: set[str]

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "dies", set[str]())

    def release(self, rows: Any, *given: Any) -> list[str]:
        if "before" in self.dies:
            raise Refused("killed before the ledger is written")
        said = super().release(rows, *given)
        if "after" in self.dies:
            raise Refused("killed after the ledger was written")
        return said


class Played:
    """A federation of six, and what leaves its victim."""

    def __init__(self, plan: Plan, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.sealed: dict[SubmissionId, tuple[Place, bytes]] = {}
        self.left: dict[Place, set[bytes]] = defaultdict(set)
        """By place, the different integers of which a block left for a shard."""
        self.declined: list[str] = []
        seal = OutboxSealer.seal

        def noted(sealer: Any, pinned: Any, receipt: Any, blocks: Any, *weight: Any) -> Any:
            made, again = looked_at(pinned.layout.group(receipt.id.group), blocks)
            place = (receipt.id.group, receipt.version, receipt.step)
            self.sealed[receipt.id] = (place, made.astype("<i8").tobytes())
            return seal(sealer, pinned, receipt, again, *weight)

        patch.setattr(OutboxSealer, "seal", noted)
        patch.setattr(OutboxSealer, "seal_again", self._again(OutboxSealer.seal_again))
        patch.setattr(simulation, "MemoryLedger", Dying)
        trainers = {name: Restless(i) for i, name in enumerate(client_names(6))}
        cast = Cast(trainers, SecretSeed(bytes(32)))
        self.play = Simulation(plan, cast, folder, Conditions(self._note))
        ledger = self.play._ledgers[VICTIM]
        assert isinstance(ledger, Dying)
        self.ledger = ledger

    def _again(self, seal_again: Callable[..., Any]) -> Callable[..., Any]:
        def noted(sealer: Any, pinned: Any, receipt: Any, *given: Any) -> Any:
            made = seal_again(sealer, pinned, receipt, *given)
            self.sealed[made.receipt.id] = self.sealed[receipt.id]
            return made

        return noted

    def _note(self, sender: str, to: str, message: Any) -> float:
        if sender == VICTIM and isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            place, integers = self.sealed[message.header.id]
            self.left[place].add(integers)
        if sender == VICTIM and isinstance(message, Decline):
            self.declined.append(message.reason)
        return 0.0

    def lose(self) -> None:
        """The victim dies, and begins anew with nothing but its keys and its ledger."""
        self.ledger.dies.clear()
        self.play.kill(VICTIM)
        self.play.lose(VICTIM, SecretSeed(bytes(range(32))))
        self.play.start(VICTIM)

    def holds(self) -> None:
        """What left is one update for each place, and the ledger counts no fewer."""
        assert all(len(different) == 1 for different in self.left.values()), "two for one place"
        rows = [row for _, row in self.ledger.rows() if isinstance(row, UpdateReleased)]
        places = {(row.group, row.version, row.step) for row in rows}
        assert places >= self.left.keys()
        (spent,) = self.ledger.spent()
        assert spent.facts + spent.exact >= len(self.left)

    def until(self, came: Callable[[], bool]) -> None:
        self.play.run(came)

    def reached(self, point: str) -> Callable[[], bool]:
        """Whether the victim's update from version 1 has come so far."""

        def ids() -> set[SubmissionId]:
            return {id for id, (place, _) in self.sealed.items() if place[1] == 1}

        def of(kind: type[Any], party: str) -> list[Any]:
            return journalled(self.play, kind, party)

        reached: dict[str, Callable[[], bool]] = {
            "before": lambda: self.play.parties[VICTIM].halted.done(),
            "after": lambda: self.play.parties[VICTIM].halted.done(),
            "its first block": lambda: ("all", 1, 0) in self.left,
            "sealed": lambda: bool(
                ids() & self.play.parties[VICTIM].machine._out.sealed.keys()  # type: ignore[attr-defined]
            ),
            "its receipt": lambda: any(
                record.receipt.id.client == VICTIM and record.receipt.version == 1
                for record in of(Submit, COORDINATOR)
            ),
            "settled": lambda: any(r.id in ids() for r in of(SubmissionSettled, VICTIM)),
        }
        return reached[point]


POINTS = ("before", "after", "its first block", "sealed", "its receipt", "settled")


@pytest.mark.parametrize(
    ("kind", "cipher", "point"),
    [
        *(("clients", "plain", point) for point in POINTS),
        *((kind, "plain", point) for kind in ("nothing", "records") for point in POINTS[1:3]),
        *(("clients", "rlwe", point) for point in POINTS[2:5]),
    ],
)
def test_wherever_the_state_is_lost_no_second_update_leaves(
    kind: str, cipher: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(small_plan(cipher, **KINDS[kind]), tmp_path, monkeypatch)
    played.until(lambda: played.play.versions() == {"all": 1})
    assert ("all", 1, 0) not in played.left
    if point in ("before", "after"):
        played.ledger.dies.add(point)
    played.until(played.reached(point))
    left = ("all", 1, 0) in played.left
    played.lose()
    played.until(lambda: finished(played.play))
    assert played.play.versions() == {"all": 4}
    played.holds()
    assert played.left.keys() > {("all", 0, 0), ("all", 3, 0)}, "it takes part in the next ones"
    # What is on record and had not left is lost with the state, and other integers never come.
    assert (("all", 1, 0) in played.left) is (left or point == "before")
    if point == "after":
        assert not left
        (reason,) = set(played.declined)
        assert reason.startswith("another update of version 1 of all is in the ledger")


@pytest.mark.parametrize("founder", ["has its ledger", "has an empty one"])
def test_a_run_that_is_founded_again_has_no_second_update(
    founder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same nonce and empty folders, and the ledgers of before."""
    played = Played(small_plan("plain", versions=3, **OF_CLIENTS), tmp_path, monkeypatch)
    played.until(lambda: finished(played.play))
    run, before = played.ledger.spent()[0].run, dict(played.left)
    parties = list(played.play.parties)
    for name in parties:
        played.play.kill(name)
        played.play.lose(name)
    if founder == "has an empty one":
        played.play._ledgers["client-00"] = Dying()
    for name in parties:
        played.play.start(name)
    if founder == "has its ledger":
        with pytest.raises(
            Refused, match="a founding model of a run to which this client has sent"
        ):
            played.until(lambda: finished(played.play))
    else:
        played.until(lambda: finished(played.play))
        found = played.play.coordinator.federation
        assert found.failure == "TooFew"
        assert "another update of version 0 of all is in the ledger" in found.finished
        assert played.play.versions() == {"all": 0}
    assert [each.run for each in played.ledger.spent()] == [run], "it is the same run"
    assert played.left == before
    assert len(played.ledger.facts()) == 3


@pytest.mark.parametrize(
    "plan",
    [
        small_plan("plain", **ROUNDS),
        small_plan("rlwe", **ROUNDS),
        stream_plan("plain", {"name": "buffered", "buffer": 5, "deadline": 10.0}),
        stream_plan("plain", SSP),
    ],
    ids=["plain", "rlwe", "buffered", "ssp"],
)
def test_a_model_that_did_not_move_ends_its_run_and_says_why(
    plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody trains twice from one model: two sums of it would tell the difference of cohorts."""
    trainers = {name: Still(i) for i, name in enumerate(client_names(6))}
    play = Simulation(plan, Cast(trainers, SecretSeed(bytes(32))), tmp_path)
    with caplog.at_level("INFO"):
        play.run(lambda: finished(play) or play.loop.now() > 1000.0)
    found = play.coordinator.federation
    assert found.failure == "TooFew"
    versions = 1 + plan.bounds("all").ahead  # steps of one version come of one model
    assert play.versions() == {"all": versions}
    why = f"version {versions} of all is the same model as version 0"
    assert why in found.finished
    assert "if training has come to rest, it is the result (secureps export)" in found.finished
    assert any(
        f"sends no update from version {versions} of all: {why}" in m for m in caplog.messages
    )
    assert play._ledgers[VICTIM].spent()[0].exact == trainers[VICTIM].fits == versions


LITTLE = 16 * 4 * 3
"""Bytes: the least for blocks of 16 values and Adam's two vectors; a group has seven or eight."""


def plan_of(cipher: str) -> Plan:
    return small_plan(cipher, versions=3, block_size=16)


@cache
def with_enough(cipher: str) -> Tensors:
    with TemporaryDirectory() as folder:
        play = small_federation(plan_of(cipher), Path(folder))
        play.run(lambda: finished(play))
        return play.model()


@pytest.mark.parametrize(
    ("cipher", "memory"), [("plain", LITTLE), ("rlwe", LITTLE), ("plain", 40 * LITTLE)]
)
def test_memory_changes_no_bit(cipher: str, memory: int, tmp_path: Path) -> None:
    play = small_federation(plan_of(cipher), tmp_path, Conditions(memory=memory))
    play.run(lambda: finished(play))
    assert same(play.model(), with_enough(cipher))
    used = memory_used(play.coordinator.telemetry)
    assert used.keys() == {"shard-0", "shard-1"}
    for each in used.values():
        assert each.memory == memory
        assert each.resident <= each.memory
        assert each.hits + each.waits > 0


def test_less_than_the_least_is_refused_with_the_least(tmp_path: Path) -> None:
    play = small_federation(plan_of("plain"), tmp_path, Conditions(memory=LITTLE - 1))
    with pytest.raises(Refused, match=r'is too little for what this shard holds: .*"1 KiB"'):
        play.run(lambda: finished(play))
    assert play.parties["shard-0"].halted.result(0).error is ConfigError


def test_killed_at_any_time_it_is_the_same_model(tmp_path: Path) -> None:
    conditions = Conditions(memory=LITTLE)
    events = events_of(small_federation(plan_of("plain"), tmp_path / "whole", conditions))
    for moment in range(events // 3, events, events // 3):
        play = small_federation(plan_of("plain"), tmp_path / str(moment), conditions)
        killed_at(play, "shard-0", moment)
        assert same(play.model(), with_enough("plain")), moment


def test_row_blocks_come_and_go(tmp_path: Path) -> None:
    """A limit within which one row-block of a shard's two or three is made in memory."""
    models = []
    for memory in (None, 68_000):
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path / str(memory), Conditions(memory=memory))
        play.run(partial(finished, play))
        models.append(play.model())
    assert same(*models)


@pytest.mark.parametrize(("sparse", "memory"), [(False, 68_000), (True, 300_000), (False, None)])
def test_check_predicts_what_is_in_memory_and_in_files(
    sparse: bool, memory: int | None, tmp_path: Path
) -> None:
    """Of the busiest shard, within 1.5 times."""
    conditions = Conditions(memory=memory)
    if sparse:
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path, conditions, [[0, 1, 2, 3]] * 8)
    else:
        plan = small_plan(block_size=1024, shards=1)
        play = small_federation(plan, tmp_path, conditions, kind=lambda i: Walker(i, (100, 100)))
    play.run(lambda: finished(play))
    groups = layout_of(play).groups
    used = footprint(plan, groups, replace(assume_service(plan), memory=memory))
    resident, files = [], []
    for shard in assume_service(plan).shards:
        states = play.parties[shard].worker._states  # type: ignore[attr-defined]
        held = [made.nbytes for made in states._kept.values() if not made.mapped]
        known = {each.name: states._state.group(each.name).states for each in groups}
        newest = [states.values(at, max(its)).nbytes for at, its in known.items() if its]
        most = max(newest) if memory is None else memory
        made = [each for each in newest if each <= most]
        resident.append(sum(held) + max(made, default=0))  # one more is being made
        files.append(sum(path.stat().st_size for path in (tmp_path / shard / "states").iterdir()))
    assert max(resident) / 1.5 <= used.state <= 1.5 * max(resident)
    assert max(files) / 1.5 <= used.files <= 1.5 * max(files)


RULE = {"quorum": 1, "minimum": 1}
VALUES = 1 << 20
MOST_ERROR = 1.25
"""Of the prediction, either way."""
CLIENT = PRIVACY | {"placement": "local"}


class Frozen(Walker):
    """Returns what it got, in memory of its own."""

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.full(VALUES, 0.5, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + np.float32(1e-5)}, 10, {}, 1)


def peak(patch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> tuple[float, int]:
    """What one client takes to make its second update, and what is said of it, in bytes."""
    plan = small_plan("plain", versions=2, shards=1, block_size=1 << 19, local=(), **changes)
    draft, seal, peaks = ClientWorker._draft_update, ClientWorker._seal, list[int]()

    def begun(self: ClientWorker, *given: Any) -> Any:
        tracemalloc.start()
        return draft(self, *given)

    def watched(self: ClientWorker, made: Any) -> Any:
        try:
            return seal(self, made)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    patch.setattr(ClientWorker, "_draft_update", begun)
    patch.setattr(ClientWorker, "_seal", watched)
    spools = Conditions(spool=lambda name: DiskSpool(folder / name / "spool"))
    small_federation(plan, folder, spools, clients=1, kind=Frozen).run()
    (group,) = plan.lay_out_sizes({"all": VALUES})
    return peaks[-1] + 2 * 4 * VALUES, sealing_memory(plan, group)  # pulled, and trained


PRIVATE = {"rule": RULE, "weighting": "uniform", "clip": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"group": [{"rule": RULE}]},
        {"group": [{"rule": RULE} | FED_BACK]},
        {"group": [{"rule": RULE} | FED_BACK | {"codec": ("rotate", "round")}]},
        {"group": [{"rule": RULE} | FED_BACK | {"feedback": False}]},
        {"group": [{"rule": RULE, "codec": ("rotate",), "clip": 1.0, "range": 1.0}]},
        {"group": [{"rule": RULE, "codec": THIN[:1], "clip": 1.0, "range": 1.0}]},
        {"group": [PRIVATE], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": ("rotate",)}], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": THIN[:2]}], "privacy": CLIENT},
    ],
)
def test_a_client_needs_what_is_said(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed, said = peak(monkeypatch, tmp_path, **changes)
    assert needed / MOST_ERROR < said < needed * MOST_ERROR


def test_a_version_waits_for_few_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three clients, a shard, the coordinator and three holders, with all that is on disk."""
    waits = list[Path]()

    def wait(file: int) -> None:
        waits.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    class Noted(SqliteJournal):
        def append(self, at: float, records: Sequence[Any]) -> None:
            waits.append(self._path)
            super().append(at, records)

    def journal(name: str) -> Journal:
        (tmp_path / name).mkdir()
        own = Noted(tmp_path / name / "journal.db")
        return ServedJournal(own, tmp_path / name / "runs") if name.startswith("holder") else own

    monkeypatch.setattr(os, "fsync", wait)
    monkeypatch.setattr(os, "fdatasync", wait)
    conditions = Conditions(
        journal=journal, spool=lambda name: DiskSpool(tmp_path / name / "spool")
    )
    changes = {"clients": 3, "shards": 1, "block_size": 1024, "checkpoint_every": 100}
    plan = small_plan("rlwe-2-of-3", **changes)
    simulation = small_federation(plan, tmp_path, conditions, clients=3)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    waits.clear()
    simulation.run(lambda: simulation.versions() == {"all": 3})
    simulation.close()
    parties = (place.relative_to(tmp_path).parts[0].partition("-")[0] for place in waits)
    assert Counter(parties) == {"client": 22, "shard": 16, "coordinator": 10, "holder": 9}


FIRST = client_names(6)[0]


class Watched:
    """A federation, and what its first client journals and sends in virtual time."""

    def __init__(self, cipher: str, folder: Path, versions: int = 2, **conditions: Any) -> None:
        self.journal = MemoryJournal()
        self.left: list[tuple[float, int, int]] = []
        """When which update's block left."""
        self.early = Counter[int]()
        """Blocks that left before their update was journalled, by sequence."""
        self.submitted: list[int] = []

        def journal(name: str) -> MemoryJournal:
            return self.journal if name == FIRST else MemoryJournal()

        own = Conditions(self._note, journal=journal, **conditions)
        self.play = small_federation(small_plan(cipher, versions=versions), folder, own)

    def records(self, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journal.replay() if isinstance(record, kind)]

    def _note(self, sender: str, to: str, message: Any) -> float:
        if sender == FIRST and isinstance(message, Submit) and message.receipt.purpose == UPDATE:
            self.submitted.append(message.receipt.id.sequence)
        if sender == FIRST and isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            header = message.header
            self.left.append((self.play.loop.now(), header.sequence, header.block))
            sealed = {record.receipt.id.sequence for record in self.records(Sealed)}
            self.early[header.sequence] += header.sequence not in sealed
        return 0.0


@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_no_block_leaves_before_its_update_is_journalled(cipher: str, tmp_path: Path) -> None:
    watched = Watched(cipher, tmp_path, 3)
    watched.play.run()
    assert watched.early.keys() == {1, 2, 3}
    assert not any(watched.early.values())
    assert same(watched.play.model(), unharmed(versions=3)[0])


class Failing(MemorySpool):
    """A spool whose disk refuses these blocks, by their number among all that are kept."""

    def __init__(self, fails: Iterable[int]) -> None:
        super().__init__()
        self._fails, self._kept = set(fails), 0

    def keep(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, bytes]:
        self._kept += 1
        if self._kept in self._fails:
            raise DiskFailed("no space left")
        return super().keep(name, pieces)


@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
def test_a_disk_that_fails_between_two_blocks_costs_a_second(cipher: str, tmp_path: Path) -> None:
    """The first block of one update, the third of another, and the last of a third.

    Sealed again they have other bytes and names, and nobody would delete the ones before.
    """
    spool = Failing((5, 12, 20))  # a founding model of four came before
    watched = Watched(cipher, tmp_path, 3, spool=lambda n: spool if n == FIRST else MemorySpool())
    watched.play.run()
    assert watched.submitted == [1, 2, 3]
    assert same(watched.play.model(), unharmed(versions=3)[0])
    assert {key.split("/")[3] for key in spool.keys("update")} == {"3"}
    assert len(spool.keys("update")) == 4


class Sharing(Walker):
    """Trains in the arrays of a model that all clients of the process share."""

    model: ClassVar[dict[str, Array]] = {}

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        for name, values in result.parameters.items():
            self.model.setdefault(name, np.empty_like(values))[...] = values
        return dataclasses.replace(result, parameters=dict(self.model))


def test_others_train_in_the_same_arrays_before_an_update_is_sealed(tmp_path: Path) -> None:
    play = small_federation(small_plan("rlwe", versions=2), tmp_path, kind=Sharing)
    play.run()
    assert same(play.model(), unharmed(versions=2)[0])


def test_who_is_killed_again_and_again_does_not_crowd_out_what_waits(tmp_path: Path) -> None:
    """Its acknowledged update waits for a slow client, while later ones are cut off in sending."""
    plan = small_plan("rlwe", {"name": "ssp", "slack": 2, "minimum": 6}, versions=2)
    submitted, sent, slow = list[int](), Counter[int](), client_names(6)[1]

    def cost(name: str, task: object) -> float:
        return 300.0 if name == slow and isinstance(task, Contribute) else 0.0

    def note(sender: str, to: str, message: Any) -> float:
        if sender == FIRST and isinstance(message, Submit) and message.receipt.purpose == UPDATE:
            submitted.append(message.receipt.id.sequence)
        if sender == FIRST and isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            sent[message.header.sequence] += 1
        return 0.0

    play = small_federation(plan, tmp_path, Conditions(note), cost=cost)
    play.run(lambda: bool(submitted))
    for _ in range(12):
        known, until = max(sent), play.loop.now() + 1.0
        play.run(lambda: sent[known + 1] > 1 or play.loop.now() > until)  # noqa: B023
        play.kill(FIRST)
        play.start(FIRST)
    play.run(lambda: finished(play) or len(submitted) > 20)
    assert finished(play)


@pytest.mark.slow
def test_a_standby_changes_nothing(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    ends_as_unharmed(simulation)
    assert simulation.ruler == COORDINATOR
    copy, own = (journalled(simulation, object, place) for place in (STANDBY, COORDINATOR))
    assert copy == own[: len(copy)]
    assert any(isinstance(record, StandbyFollows) and record.standby for record in copy)


def test_a_standby_with_another_plan_ends(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    plan, simulation.plan = simulation.plan, small_plan("rlwe", versions=5)
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    simulation.plan = plan
    party = simulation.parties[STANDBY]
    with pytest.raises(Refused, match="the coordinator's plan differs in versions from this"):
        simulation.run(party.halted.done)


def test_who_looks_for_the_coordinator_at_its_standby_is_sent_on(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    reach(simulation, 0)
    answer = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(answer.done)
    with pytest.raises(Unreachable, match="a standby is here: the coordinator rules elsewhere"):
        answer.result()
    for sender in ("client-00", "shard-0", "holder-0"):
        for message in (TakeOver(), Follow(b"", 0, b"")):
            answer = simulation.parties[STANDBY].request(sender, message)
            simulation.run(answer.done)
            with pytest.raises(UnknownParty):
                answer.result()


def test_a_coordinator_that_rules_takes_nothing_over(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    reach(simulation, 0)
    answer = simulation.parties[COORDINATOR].request(COORDINATOR, TakeOver())
    simulation.run(answer.done)
    with pytest.raises(Refused, match="it rules already"):
        answer.result()


def compacted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[dict[str, SqliteJournal], Conditions]:
    """Journals on disk that are compacted often, by party, and a federation's conditions."""
    monkeypatch.setattr(SqliteJournal, "is_due", property(lambda journal: journal._grown > 3_000))
    journals: dict[str, SqliteJournal] = {}

    def journal(name: str) -> SqliteJournal:
        (folder / name).mkdir(exist_ok=True)
        journals[name] = SqliteJournal(folder / name / "journal.db")
        return journals[name]

    return journals, Conditions(standby=True, delay=lambda *_: 0.01, journal=journal, **changes)


@pytest.mark.slow
def test_both_compact_their_journals_and_the_end_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals, conditions = compacted(tmp_path, monkeypatch)
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    reach(simulation, 1)
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    reach(simulation, 2)
    one, two = journals[COORDINATOR], journals[STANDBY]
    for each in (one, two):
        assert journal_rows.last_archived(each._path, each._base).seq > 10
    assert two.fold is not None
    assert len(two.fold.records) == 1, "its run"
    simulation.kill(COORDINATOR)
    take_over(simulation)
    ends_as_unharmed(simulation)
    simulation.close()


def test_one_that_begins_late_is_sent_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are compacted by then; it comes in parts, and the coordinator goes on."""
    monkeypatch.setattr("secureps.service.lead.ROWS", 10_000)
    journals, conditions = compacted(tmp_path, monkeypatch, late=frozenset({STANDBY}))
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    one = journals[COORDINATOR]
    assert journal_rows.last_archived(one._path, one._base).seq > 10
    simulation.start(STANDBY)
    party = simulation.parties[STANDBY]
    simulation.run(party.halted.done)
    assert party.halted.result() == Halt(BEGINS)
    assert has_copy(tmp_path / STANDBY)
    simulation.kill(STANDBY)
    simulation._stores.pop(STANDBY).journal.close()
    assert begin_from_copy(tmp_path / STANDBY, tmp_path) > 10
    simulation.start(STANDBY)
    simulation.run(lambda: follows(simulation))
    two = journals[STANDBY]
    assert two.fold is not None
    assert two.mark == one.mark or one.read_after(two.mark, 1 << 20), "bit for bit its beginning"
    simulation.kill(COORDINATOR)
    take_over(simulation)
    ends_as_unharmed(simulation)
    simulation.close()
