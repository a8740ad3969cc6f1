"""Privacy: one update leaves for each run, group, version and step, even after a lost disk.

No training repeats its bits. The state is lost after each point between a training and the fate of
its update; what shards read of a place is counted, and held against the ledger.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secureps.client.sealing import OutboxSealer
from secureps.crypto.sampling import SecretSeed
from secureps.errors import Refused
from secureps.messages.member_records import SubmissionSettled, UpdateReleased
from secureps.messages.requests import Decline, PutBlock, Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.policy.plan import Plan
from secureps.run.simulate import simulation
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.store.budget import MemoryLedger
from tests.kits.cheats import journalled
from tests.kits.federations import OF_RECORDS, finished, small_plan
from tests.kits.privacy_kit import PRIVACY, Restless, Still
from tests.kits.sealed_blocks import looked_at
from tests.kits.streams import SSP, stream_plan

VICTIM = "client-02"
GROUP: dict[str, Any] = {"clip": 3.0, "range": 1.0, "weighting": "uniform"}
RULE = {"quorum": 5, "minimum": 4, "deadline": 10.0}
ROUNDS = {"group": [GROUP | {"rule": RULE}]}
OF_CLIENTS: dict[str, Any] = {
    "privacy": PRIVACY | {"placement": "local"},
    "group": [{"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": RULE}],
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
