"""Membership: a run continues with one key holder away, and replaces a lost one."""

import math
from pathlib import Path

import pytest

from secureps.crypto.envelope import SECRET_BYTES
from secureps.messages.coordinator_records import CohortBurnt
from secureps.messages.holder_records import KeyReplaced
from tests.kits.federations import same, unharmed
from tests.kits.needles import Needles
from tests.kits.processes import PLAN, Processes


def keys_of(processes: Processes, holder: str) -> list[Path]:
    return sorted((processes.kit(holder) / "private" / holder).glob("**/envelope*.key"))


def erased(processes: Processes) -> None:
    for holder in processes.holders:
        processes.wait(lambda name=holder: not keys_of(processes, name), "erased keys")  # type: ignore[misc]


@pytest.mark.timeout(240)
def test_parties_killed_one_after_another_end_in_the_simulated_model(tmp_path: Path) -> None:
    """SIGKILL of every kind of process; and no holder's key is in the aggregator's files."""
    with Processes(tmp_path / "run", "rlwe", versions=6) as processes:
        assert len(processes.holders) == 4
        processes.pace = 0.15
        processes.start_all()
        processes.kill_in_turn(*processes.holders, "shard-0")
        secrets = {name: keys_of(processes, name)[-1].read_bytes() for name in processes.holders}
        processes.kill_in_turn("client-03", "coordinator")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        status = processes.seen
        assert status.incarnation == 2
        marks = {m.name: (m.unsafe, m.epsilon) for m in status.members}
        assert marks == dict.fromkeys(processes.clients, (True, math.inf))
        erased(processes)
    assert versions == {"all": 6}
    assert same(model, unharmed(versions=6)[0])
    folder = tmp_path / "run"
    kept = [
        path.read_bytes()
        for party in ("coordinator", "shard-0", "shard-1", "checkpoints")
        for path in (folder / party).rglob("*")
        if path.is_file()
    ]
    for secret in secrets.values():
        needles = Needles(secret[-SECRET_BYTES:])
        assert [needles.found(data) for data in kept] == [set()] * len(kept)
        assert needles.found(b"x" + secret)


@pytest.mark.timeout(240)
def test_runs_of_one_kit_at_once_and_afterwards_have_keys_of_their_own(tmp_path: Path) -> None:
    """All end in the simulated model: two though holders are killed, and a third after them."""
    rotating = PLAN.replace("[cipher]", "[cipher]\nenvelope_versions = 1")
    first = Processes(tmp_path / "first", "rlwe", versions=3, plan=rotating)
    kit = first.kit("")
    second = Processes(tmp_path / "second", "rlwe", versions=3, plan=rotating, kit=kit)
    with first, second:
        for processes in (first, second):
            processes.pace = 0.3
            processes.start_all()
        for processes in (first, second):
            processes.kill_in_turn("holder-0", "holder-1")
        for processes in (first, second):
            processes.wait(processes.finished, "the end")
            assert same(processes.model()[1], unharmed(versions=3)[0])
        erased(first)
    with Processes(tmp_path / "third", "rlwe", versions=3, plan=rotating, kit=kit) as third:
        third.start_all()
        third.wait(third.finished, "the end")
        assert same(third.model()[1], unharmed(versions=3)[0])
        erased(third)
    for processes in (first, second, third):
        assert processes.journal("coordinator", CohortBurnt) == []
        (replaced, *_) = processes.journal("holder-0", KeyReplaced)[::-1]
        assert replaced.announced.number >= 3
