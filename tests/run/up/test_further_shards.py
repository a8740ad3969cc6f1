"""A further shard gets keys, and a file once its coordinator knows it; then it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from secureps.config.sections import read_toml
from secureps.errors import Malformed, OperatorError, SecurepsError, UnknownParty, Unreachable
from secureps.messages.requests import Status
from secureps.messages.run import ShardAddress
from secureps.run.up import programs
from secureps.run.up.folder import RunFolder, write_config
from secureps.run.up.programs import EVERY_LOOK, WITHIN, bring_shard, demand_shard
from secureps.store.issuing import create_kit, issue_all
from secureps.store.keyring import load_public
from tests.kits.federations import small_plan

NEW = "shard-1"
FIRST = "aux"
"""A new name that comes before all others on the roster."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    create_kit(made.kit, small_plan().cipher_parameters, hours=0)
    issue_all(made.kit, [("coordinator", "coordinator"), ("shard", "shard-0")])
    settings = {"listen": "127.0.0.1:0", "coordinator": "127.0.0.1:1", "checkpoints": "here"}
    write_config(made, "shard-0", settings)
    return made


def bring(
    folder: RunFolder,
    name: str,
    pause: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    with patch.object(programs, "time", SimpleNamespace(sleep=pause, monotonic=clock)):
        return bring_shard(folder.root, name)


def status(*shards: str) -> Status:
    here = tuple(ShardAddress(name, f"{name}:1", 1.0) for name in shards)
    return Status(b"", 1, "", (), (), here, ())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Status | SecurepsError]:
    """What the coordinator answers, one after another, and the last one again."""
    found: list[Status | SecurepsError] = []

    class Client:
        def __init__(self, kit: Path, name: str, server: str) -> None:
            assert name in (NEW, FIRST)

        def status(self) -> Status:
            answer = found.pop(0) if len(found) > 1 else found[0]
            if isinstance(answer, SecurepsError):
                raise answer
            return answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(programs, "StatusClient", Client)
    return found


def test_it_has_keys_and_then_a_file_and_then_it_is_there(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers += [UnknownParty("nobody"), Unreachable("away"), status("shard-0")]
    seen = list[bool]()

    def pause(seconds: float) -> None:
        assert seconds == EVERY_LOOK
        seen.append(folder.config(NEW).exists())
        if seen[-1]:
            answers[:] = [status("shard-0", NEW)]

    bring(folder, NEW, pause)
    assert seen == [False, False, True]
    assert load_public(folder.kit).roster.find(NEW).role == "shard"
    own, other = read_toml(folder.config(NEW)), read_toml(folder.config("shard-0"))
    assert own == other | {"name": NEW, "state": str(folder.state(NEW))}
    bring(folder, NEW, pause)  # it is there


def test_no_process_is_begun_of_a_run_that_is_over_meanwhile(
    folder: RunFolder, answers: list[Any]
) -> None:
    over = replace(status("shard-0"), finished="all is made")
    answers += [UnknownParty("nobody"), over]
    assert bring(folder, NEW, lambda seconds: None) is over
    assert not folder.config(NEW).exists()
    answers[:] = [status("shard-0"), over]
    assert bring(folder, NEW, lambda seconds: None) is over, "nobody starts it any more"


def test_one_that_does_not_come_is_an_error_that_says_where_to_look(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers.append(UnknownParty("nobody is called shard-1"))
    waited = list[float]()

    def clock() -> float:
        return sum(waited)

    with pytest.raises(OperatorError, match="not on its roster yet: nobody is called shard-1"):
        bring(folder, NEW, waited.append, clock)
    assert sum(waited) == WITHIN
    answers[:] = [status("shard-0")]
    with pytest.raises(OperatorError, match=r"it has not come; see .*shard-1.log"):
        bring(folder, NEW, waited.append, clock)


def test_said_again_it_has_the_file_of_another_shard_whatever_its_name(
    folder: RunFolder, answers: list[Any]
) -> None:
    waited = list[float]()
    answers.append(UnknownParty("nobody is called aux"))
    with pytest.raises(OperatorError, match="not on its roster yet"):
        bring(folder, FIRST, waited.append, lambda: sum(waited))
    answers[:] = [status("shard-0"), status("shard-0", FIRST)]
    bring(folder, FIRST, waited.append, lambda: 0.0)
    own, other = read_toml(folder.config(FIRST)), read_toml(folder.config("shard-0"))
    assert own == other | {"name": FIRST, "state": str(folder.state(FIRST))}


def test_a_coordinator_that_takes_long_to_be_asked_is_not_waited_for_longer(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers.append(Unreachable("no answer"))
    asked = list[float]()

    def clock() -> float:
        return 20.0 * len(asked)  # each question takes as long

    with pytest.raises(OperatorError, match=r"the run was given 60 seconds: .* no answer"):
        bring(folder, NEW, asked.append, clock)
    assert len(asked) == 3


def test_a_name_of_another_party_or_of_none_is_refused(
    folder: RunFolder, answers: list[Any]
) -> None:
    issue_all(folder.kit, [("client", "client-00")])
    with pytest.raises(UnknownParty, match="client-00 is a client of this run, and no shard"):
        demand_shard(folder.root, "client-00")
    for name in ("coordinator", "standby", "observer"):
        with pytest.raises(UnknownParty, match=f"{name} names another party in every run"):
            demand_shard(folder.root, name)
    with pytest.raises(Malformed, match=r"'\.\./b' is no name: 1 to 63 of a-z 0-9"):
        demand_shard(folder.root, "../b")
