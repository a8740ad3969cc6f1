"""The last model, as a client writes it to its data holder's file when the run ends."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.runner import Joining, join
from secureps.client.trainer import FitConfig, FitResult, Trainer
from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ConfigError, Unreachable
from secureps.messages import orders, requests
from secureps.messages.records import RunPinned
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.machine import WORKER, Answered, Call, Done, Halt, Leave, Say, Tick, Work
from secureps.roles.member.member import MODEL_LATER
from secureps.roles.member.tasks import Contribute
from secureps.roles.member.terms import MemberSettings
from secureps.store.checkpoint import read_metadata, read_state
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import Tensors, Walker, small_plan
from tests.kits.member_kit import Client
from tests.kits.roles_kit import ROSTER, SCHEMA
from tests.kits.shoppers import Shopper, sparse_plan

CLIENTS = 3
LAST = "client-02"
RULE = {"quorum": 3, "minimum": 3, "deadline": 60.0}


def last_joins(federation: DiskFederation, trainer: Trainer, file: Path) -> Halt:
    state = federation.folder / LAST
    own: dict[str, Any] = {"insecure_for_tests": True, "model": file}
    joining = Joining(federation.server, federation.directory, LAST, state, 3, **own)
    return join(joining, trainer)


def published(federation: DiskFederation) -> Tensors:
    found = federation.model()
    assert found is not None
    return found[1]


def bits(tensors: Tensors) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in tensors.items()}


@pytest.mark.slow
def test_a_client_writes_the_last_version_with_its_own_local_tensors(tmp_path: Path) -> None:
    file, plan = tmp_path / "model.safetensors", small_plan(clients=CLIENTS)
    with DiskFederation(plan, tmp_path, CLIENTS, Walker) as federation:
        halt = last_joins(federation, Walker(2), file)
        wanted = published(federation)
        assert halt.reason == "all 4 versions are made"
        written, told = read_state(file)[0], read_metadata(file)
        # once more, after the end: the model is pulled by a client that has nothing to train
        again = tmp_path / "again.safetensors"
        assert last_joins(federation, Walker(2), again).reason == halt.reason
    assert written.pop("body.count") == 2 * 4, "its local counter, and no other client's"
    assert bits(written) == bits(wanted)
    assert told["version.all"] == "4"
    assert told["privacy"] == NO_PRIVACY
    assert again.read_bytes() == file.read_bytes()


class Late(Walker):
    """Its last training ends after the run."""

    def __init__(self, federation: DiskFederation) -> None:
        super().__init__(2)
        self.federation = federation

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        self.federation.until(self.federation.over)
        return super().fit(parameters, config)


@pytest.mark.slow
def test_a_client_that_trains_at_the_end_writes_the_last_version_too(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    plan = small_plan(clients=CLIENTS, versions=2, rule={"quorum": 2, "minimum": 2, "start": 3})
    with DiskFederation(plan, tmp_path, CLIENTS, Walker) as federation:
        assert last_joins(federation, Late(federation), file).reason == "all 2 versions are made"
        wanted, status = published(federation), federation.status()
    written = read_state(file)[0]
    assert bits({name: written[name] for name in wanted}) == bits(wanted)
    (own,) = (each for each in status.members if each.name == LAST)
    assert own.submissions == 0


@pytest.mark.slow
def test_row_blocks_that_its_records_do_not_touch_are_in_the_file(tmp_path: Path) -> None:
    """`fit` has zeros there, which would be no model for other records."""
    file = tmp_path / "model.safetensors"
    plan = sparse_plan("plain", {**RULE, "minimum": 2, "quorum": 2}, RULE)
    tastes = [[0, 1, 2, 3], [0, 1, 2, 3], [0]]
    with DiskFederation(plan, tmp_path, CLIENTS, lambda i: Shopper(i, tastes[i])) as federation:
        last_joins(federation, trainer := Shopper(2, tastes[2]), file)
        wanted = published(federation)
    assert not trainer.seen[-1]["table"][-1].any()
    assert wanted["table"][-1].any()
    assert bits(read_state(file)[0]) == bits(wanted)


def test_a_file_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")  # a file that is replaced is no pipe, and no device, then
    for file in (tmp_path, tmp_path / "absent" / "model.safetensors", pipe):
        with pytest.raises(
            ConfigError, match=r"--model: .* must be a file in a folder that exists"
        ):
            Joining("127.0.0.1:9", tmp_path, LAST, tmp_path, model=file)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ConfigError, match="this user may not write there"):
        Joining("127.0.0.1:9", tmp_path, LAST, tmp_path, model=tmp_path / "model.safetensors")


# --- by its machine ---------------------------------------------------------------------

OVER = orders.Finish(1, "all 2 versions are made")


def keeping(plan: Plan | None = None) -> Client:
    kit = MemberSettings("c0", ROSTER, SCHEMA, last="every")
    return (Client(kit=kit) if plan is None else Client(plan, kit=kit)).joined()


def test_a_training_that_the_run_does_not_wait_for_is_not_sent() -> None:
    client = keeping()
    client.ready(0)
    client.publish(1)
    assert any(isinstance(e, Call) for e in client.order(OVER).effects), "asked for at once"
    client.now = 2 * client.plan.section.lease
    client.give("c0", Tick())
    wake = client.machine.wake()
    assert wake is not None
    assert wake > client.now, "it does not wake again and again while it trains"
    assert client.contributed(client.sealed(0, 0)).effects == []
    assert isinstance(client.journal[-1], RunPinned), "nothing newer: no update is charged or sent"
    (work,) = client.pull(1).effects
    assert isinstance(work, Work)
    assert isinstance(work.task, Contribute)
    assert work.task.aims == ()
    assert client.give(WORKER, Done(work.task)).effects == [Halt("all 2 versions are made")]


def test_a_client_fails_if_no_shard_gives_it_the_last_version() -> None:
    client = keeping()
    client.publish(1)
    client.order(OVER)
    client.now = client.plan.section.lease
    said, halt = client.give("c0", Tick()).effects[-2:]
    assert said == Say("the last version could not be pulled from the shards")
    assert isinstance(halt, Halt)
    assert halt.error is Unreachable
    assert "all 2 versions are made, but the last version could not be pulled" in halt.reason
    assert "start this client again" in halt.reason


def test_a_client_that_leaves_early_says_when_it_can_write_the_model() -> None:
    client = keeping()
    client.give(WORKER, Leave("its budget is spent"))
    end = client.give(COORDINATOR, Answered(requests.Retire("c0", "", False), requests.Noted()))
    assert end.effects == [Say(MODEL_LATER), Halt("its budget is spent")]


def test_a_client_without_a_file_ends_at_once() -> None:
    client = Client().joined()
    client.ready(0)
    client.publish(1)
    assert client.order(OVER).effects == [Halt("all 2 versions are made")]
