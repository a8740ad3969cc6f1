"""`secureps act`, `secureps shards`: what is said to which coordinator, and what is told of it."""

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secureps.crypto.cipher import CipherParameters
from secureps.errors import (
    Malformed,
    OperatorError,
    Refused,
    SecurepsError,
    UnknownParty,
    Unreachable,
)
from secureps.messages.acts import OF_A_CLIENT, Act, Deed, ShardDeed
from secureps.messages.requests import GroupStatus, Holding, Move, Status
from secureps.messages.run import ShardAddress
from secureps.run.act import EVERY, SAID, RunOver, describe, follow
from secureps.run.status_client import StatusClient
from secureps.run.up import programs
from secureps.run.up.folder import ORIGIN, RunFolder, claim_folder
from secureps.store.issuing import create_kit
from tests.kits.command import typed

ORIGIN_TEXT = '{"plan": "plan.toml", "directory": ".", "unsafe_seed": null, "began": 0.0}'


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def made(self: StatusClient, kit: Path, name: str | None, server: str, *more: Any) -> None:
        found.append((kit.name, name, server))

    after = {
        "add-shard": status(shard_1=2),
        "drain-shard": status(shard_1=0),
        "remove-shard": status(shard_0=2),
    }
    monkeypatch.setattr(StatusClient, "__init__", made)
    monkeypatch.setattr(StatusClient, "act", lambda self, act: found.append(act))
    monkeypatch.setattr(
        StatusClient, "status", lambda self: after.get(getattr(found[-1], "what", ""), status())
    )
    monkeypatch.setattr(StatusClient, "close", lambda self: None)
    return found


def test_every_act_is_told_in_a_line() -> None:
    assert SAID.keys() == set(Deed)
    assert describe(Act("leave-out", "a")) == "a takes no part until it is taken back"
    assert {deed for deed in Deed if "{client}" in SAID[deed]} == OF_A_CLIENT


def test_an_act_is_said_by_the_coordinators_own_key(said: list[Any], tmp_path: Path) -> None:
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path / "kit", "--insecure")
    more = ("--client", "client-00", "--reason", "its data is broken")
    told = typed("act", "leave-out", *where, *more).out
    assert told == "client-00 takes no part until it is taken back\n"
    assert said == [
        ("kit", "coordinator", "127.0.0.1:9"),
        Act("leave-out", "client-00", "its data is broken"),
    ]


def test_what_is_refused_is_one_line(
    said: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[SecurepsError] = [Refused("the run is over: all is made")]

    def refuses(self: StatusClient, act: Act) -> None:
        raise answers[0]

    monkeypatch.setattr(StatusClient, "act", refuses)
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path)
    told = typed("act", "pause", *where, status=1).err
    assert told == "error: the run is over: all is made (this side's fault)\n"
    for error in (Malformed("leave-out is of a client: name one"), Refused("no [scaling]")):
        answers[0] = error
        told = typed("act", "leave-out", *where, status=1).err
        assert told == f"error: {error} (this side's fault)\n"
    typed("act", "stop", *where, status=2)
    assert "give --server and --kit, or RUN" in typed("act", "pause", status=1).err


def test_of_a_run_of_up_its_folder_is_enough_while_it_is_played(
    said: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ORIGIN).write_text(ORIGIN_TEXT)
    told = typed("act", "pause", tmp_path, status=1).err
    assert f"error: {tmp_path} has no coordinator now: stopped; sec" in told
    assert said == [], "nobody plays it"
    with claim_folder(tmp_path):
        told = typed("act", "pause", tmp_path, status=1).err
        assert "the coordinator is being started" in told
        monkeypatch.setattr(RunFolder, "address", lambda self, party: "127.0.0.1:9")
        typed("act", "pause", tmp_path)
    assert said[-1] == Act("pause")


PARTS = tuple(Move("drain-shard", "shard-1", moved, 4, 256 * moved, 1024) for moved in (0, 1, 4))


def status(move: Move | None = None, finished: str = "", **blocks: int) -> Status:
    names = [name.replace("_", "-") for name in blocks]
    here = tuple(ShardAddress(name, f"{name}:1", 1.0) for name in names)
    held = tuple(Holding(name, n, 256 * n) for name, n in zip(names, blocks.values()))
    return Status(bytes(32), 1, finished, (), (), here, (), holdings=held, move=move)


def asks(*answers: Status | Exception) -> Callable[[], Status]:
    left: Iterator[Status | Exception] = iter(answers)

    def ask() -> Status:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def followed(act: Act, *answers: Status | Exception) -> tuple[str, list[str]]:
    out, waited = io.StringIO(), list[float]()
    told = follow(asks(*answers), act, Console(file=out, width=200), pause=waited.append)
    assert waited == [EVERY] * (len(answers) - 1)
    return told, out.getvalue().splitlines()


DRAIN, ADD = Act("drain-shard", "shard-1"), Act("add-shard", "shard-1")
REMOVE = Act("remove-shard", "shard-1")


def test_a_move_is_followed_to_its_end() -> None:
    under_way = [status(move, shard_0=1, shard_1=4) for move in PARTS]
    told, lines = followed(DRAIN, *under_way, status(shard_0=5, shard_1=0))
    assert told.startswith(
        "shard-1 holds nothing: it may be stopped, and added again later; 4 blocks moved, 1.0 kB, "
        "within "
    )
    assert lines == [
        "drain-shard shard-1: 0 of 4 blocks, 0 B of 1.0 kB",
        "drain-shard shard-1: 1 of 4 blocks, 256 B of 1.0 kB",
        "drain-shard shard-1: 4 of 4 blocks, 1.0 kB of 1.0 kB",
    ]


@pytest.mark.parametrize(
    ("act", "after", "told"),
    [
        (ADD, status(shard_0=3, shard_1=1), "shard-1 holds 1 block, 256 B of the model"),
        (ADD, status(shard_0=2, shard_1=0), "shard-1 holds nothing: 2 blocks are too few for it"),
        (DRAIN, status(shard_0=4, shard_1=0), "shard-1 holds nothing: it may be stopped, and"),
        (REMOVE, status(shard_0=4), "shard-1 has left the run, and its process ends"),
    ],
)
def test_what_is_so_already_is_told_at_once(act: Act, after: Status, told: str) -> None:
    found, lines = followed(act, after)
    assert found.startswith(told)
    assert "moved" not in found
    assert lines == []


def test_another_shards_move_is_not_followed() -> None:
    other = Move("drain-shard", "shard-0", 1, 2, 1, 2)
    told, lines = followed(ADD, status(other, shard_0=1, shard_1=3))
    assert (told, lines) == ("shard-1 holds 3 blocks, 768 B of the model", [])


@pytest.mark.parametrize(
    ("act", "after", "why"),
    [
        (ADD, status(shard_0=4), "nothing came of it: shard-1 is as it was"),
        (DRAIN, status(shard_0=1, shard_1=3), "nothing came of it: shard-1 is as it was"),
        (REMOVE, status(shard_0=1, shard_1=3), "nothing came of it: shard-1 is as it was"),
    ],
)
def test_a_move_that_was_given_up_is_an_error(act: Act, after: Status, why: str) -> None:
    with pytest.raises(OperatorError, match=why):
        followed(act, status(PARTS[0], shard_0=1, shard_1=3) if act is DRAIN else after, after)


def test_a_run_that_is_over_first_is_nobodys_fault() -> None:
    under_way = status(PARTS[0], shard_0=1, shard_1=3)
    with pytest.raises(RunOver, match=r"the run is over \(all is made\)"):
        followed(DRAIN, under_way, status(None, "all is\nmade", shard_0=1, shard_1=3))


def test_a_coordinator_that_is_started_again_is_asked_on() -> None:
    gone = Unreachable("nobody listens there")
    under_way = status(PARTS[1], shard_0=1, shard_1=4)
    told, lines = followed(DRAIN, gone, gone, under_way, status(shard_0=5, shard_1=0))
    assert told.startswith("shard-1 holds nothing")
    assert lines[0] == "no answer: nobody listens there; this goes on asking, Ctrl-C ends it"
    assert len(lines) == 2


def test_a_move_is_not_followed_when_its_run_has_ended() -> None:
    ask = asks(status(PARTS[0], shard_0=1, shard_1=3), Unreachable("nobody listens there"))
    told = "what came of it is not known: stopped; secureps resume goes on"
    with pytest.raises(OperatorError, match=told):
        follow(
            ask,
            DRAIN,
            Console(file=io.StringIO()),
            lambda: "stopped; secureps resume goes on",
            lambda seconds: None,
        )


@pytest.mark.parametrize("deed", ShardDeed)
def test_it_is_said_by_the_coordinators_own_key(
    deed: ShardDeed, said: list[Any], tmp_path: Path
) -> None:
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path / "kit", "--reason", "a new rack")
    word = deed.value.removesuffix("-shard")
    assert typed("shards", word, "shard-1", *where).out.startswith("shard-1 ")
    assert said == [("kit", "coordinator", "127.0.0.1:9"), Act(deed, "shard-1", "a new rack")]
    assert type(said[1].what) is str


def test_ctrl_c_ends_the_looking_alone(
    said: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(self: StatusClient) -> Status:
        raise KeyboardInterrupt

    monkeypatch.setattr(StatusClient, "status", interrupted)
    where = ("--server", "127.0.0.1:9", "--kit", tmp_path)
    told = typed("shards", "drain", "shard-1", *where, status=130)
    assert told.err == "the move goes on without this: secureps status shows it\n"


def test_of_a_run_of_up(said: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`resume` starts the shards of its plan, so none leaves for good; a new one is begun."""
    (tmp_path / ORIGIN).write_text(ORIGIN_TEXT)
    monkeypatch.setattr(RunFolder, "address", lambda self, party: "127.0.0.1:9")
    with claim_folder(tmp_path):
        typed("shards", "drain", "shard-1", tmp_path)
        assert said[-1] == Act("drain-shard", "shard-1")
        told = typed("shards", "remove", "shard-1", tmp_path, status=1)
        assert f"secureps shards drain shard-1 {tmp_path}" in told.err

        def new(self: StatusClient, act: Act) -> None:
            if ("brought", tmp_path, "shard-9") not in said:
                raise UnknownParty("no shard named shard-9 is here")
            said.append(act)

        monkeypatch.setattr(StatusClient, "act", new)
        told = typed("shards", "drain", "shard-9", tmp_path, status=1)
        assert "no shard named shard-9 is here" in told.err

        def bring(root: Path, name: str) -> Status:
            said.append(("brought", root, name))
            return status(shard_9=0)

        monkeypatch.setattr(programs, "bring_shard", bring)
        for name, why in (
            ("coordinator", "coordinator names another party in every run of `secureps up`"),
            ("../x", "'../x' is no name: 1 to 63 of a-z 0-9"),
        ):
            told = typed("shards", "add", name, tmp_path, status=1)
            assert told.out == "", "nothing is said to be done before the name is found to be good"
            assert f"error: {why}" in told.err
        create_kit(RunFolder(tmp_path).kit, CipherParameters("plain", 8, 14))
        told = typed("shards", "add", "shard-9", tmp_path, status=1)
        assert told.out.startswith("shard-9 is new: it gets keys, and whoever plays the run")
        assert said[-1] == Act("add-shard", "shard-9")


DONE = GroupStatus("all", 3, "done", "all 3 versions are made", ())


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([replace(status(), groups=(DONE,))], "the run is at its end (all 3 versions are made)"),
        ([status(), status(None, "all is made")], "the run is over (all is made)"),
        ([status(), status(), status(None, "all is made")], "the run is over (all is made)"),
    ],
)
def test_a_new_shard_that_comes_too_late(
    answers: list[Status],
    told: str,
    said: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It gets no keys of a run at its end, and where that comes meanwhile nobody is at fault."""
    (tmp_path / ORIGIN).write_text(ORIGIN_TEXT)
    ask, keys = asks(*answers), len(answers) > 1

    def act(self: StatusClient, act: Act) -> None:
        if "brought" in said:
            raise Refused("the run is over: all is made")
        raise UnknownParty("no shard named shard-9 is here")

    def bring(root: Path, name: str) -> Status:
        said.append("brought")
        return ask()

    monkeypatch.setattr(RunFolder, "address", lambda self, party: "127.0.0.1:9")
    monkeypatch.setattr(StatusClient, "act", act)
    monkeypatch.setattr(StatusClient, "status", lambda self: ask())
    monkeypatch.setattr(programs, "bring_shard", bring)
    create_kit(RunFolder(tmp_path).kit, CipherParameters("plain", 8, 14))
    with claim_folder(tmp_path):
        out, err = typed("shards", "add", "shard-9", tmp_path, status=1)
    assert err == f"{told}: nothing came of it, shard-9 is as it was\n"
    assert out.startswith("shard-9 is new") == ("brought" in said) == keys
