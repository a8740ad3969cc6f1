"""The local socket of waves."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from secureps.errors import NotReady, OperatorError, SecurepsError, Unreachable, Unsigned
from secureps.service import one_wave
from secureps.service.one_wave import answer_batches, ask_party
from tests.kits import key_search
from tests.kits.users import playable


def doubled(batch: bytes) -> bytes:
    if batch == b"stranger":
        raise Unsigned("these are not the coordinator's bytes")
    return batch * 2


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Path]:
    """The socket of a key holder in a test."""
    with answer_batches("holder-0", tmp_path / "waves", doubled, test=True):
        yield tmp_path / "waves"
    assert not (tmp_path / "waves").exists()


def test_batches_go_there_and_back(holder: Path) -> None:
    for batch in (b"one", bytes(3 << 20)):
        assert ask_party(holder, batch) == batch * 2
    assert stat.S_IMODE(holder.stat().st_mode) == 0o660


def test_an_error_comes_back_in_words(holder: Path) -> None:
    with pytest.raises(NotReady, match="not the coordinator's bytes"):
        ask_party(holder, b"stranger")
    assert ask_party(holder, b"x") == b"xx"


def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="is the key holder up"):
        ask_party(tmp_path / "waves", b"x")


def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "waves"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with answer_batches("holder-0", path, doubled, test=True):
        assert ask_party(path, b"x") == b"xx"


def test_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "waves").write_text("mine")
    with (
        pytest.raises(OperatorError, match="cannot listen"),
        answer_batches("h", tmp_path / "waves", doubled, test=True),
    ):
        pass
    assert (tmp_path / "waves").read_text() == "mine"


def test_lengths_are_looked_at_first(holder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_wave, "MOST", 100)
    with pytest.raises(NotReady, match="at most 100"):
        ask_party(holder, bytes(101))
    with socket.socket(socket.AF_UNIX) as line:  # who goes away in the middle
        line.connect(str(holder))
        line.sendall(b"\0")
    assert ask_party(holder, b"x") == b"xx"


def test_half_a_batch_is_answered_by_nobody(tmp_path: Path) -> None:
    heard, whole = list[bytes](), one_wave._HEAD.pack(one_wave._BATCH, 5) + b"batch"

    def hears(batch: bytes) -> bytes:
        heard.append(batch)
        return batch

    with answer_batches("holder-0", tmp_path / "waves", hears, test=True):
        for cut in (1, one_wave._HEAD.size, len(whole) - 1):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(tmp_path / "waves"))
                line.sendall(whole[:cut])
                line.shutdown(socket.SHUT_WR)
                assert line.recv(1) == b""
    assert heard == []


HOLDER, APP, OTHER = 47_001, 47_002, 47_003
"""Users and groups, which need no names."""

two_users = pytest.mark.skipif(not playable(APP), reason="needs root: it plays two users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="waves-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def as_user(user: int, group: int, action: Callable[[], str]) -> str:
    """Returns the output of an action in a process of another user."""
    out, into = os.pipe()
    if (child := os.fork()) == 0:
        said = "it raised"
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            said = action()
        except SecurepsError as error:
            said = str(error)
        finally:
            os.write(into, said.encode())
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def test_an_app_of_the_same_user_is_refused_unless_it_is_a_test(folder: Path) -> None:
    path = folder / "waves"
    with answer_batches("holder-0", path, bytes.upper), pytest.raises(NotReady) as refused:
        ask_party(path, b"x")
    assert f"runs as user {os.geteuid()} and this key holder as {os.geteuid()}" in str(
        refused.value
    )
    with answer_batches("holder-0", path, bytes.upper, test=True):
        assert ask_party(path, b"x") == b"X"


@pytest.mark.slow
@two_users
def test_of_two_users_the_app_is_answered(folder: Path) -> None:
    room = folder / "run"
    room.mkdir()
    os.chown(room, 0, APP)
    room.chmod(0o2750)  # the socket in it is that group's
    path = room / "waves"

    def ask() -> str:
        return ask_party(path, b"x").decode()

    with answer_batches("holder-0", path, bytes.upper):
        assert as_user(APP, APP, ask) == "X"
        assert "nobody answers" in as_user(OTHER, OTHER, ask)
        assert "runs as user 0" in as_user(0, 0, ask)


@pytest.mark.slow
@two_users
def test_root_may_not_ask_a_key_holder_of_another_user(folder: Path) -> None:
    os.chown(folder, HOLDER, HOLDER)
    path = folder / "waves"
    began, begun = os.pipe()
    ends, end = os.pipe()

    def hold() -> str:
        with answer_batches("holder-0", path, bytes.upper):
            os.write(begun, b"x")
            os.read(ends, 1)
        return ""

    if (child := os.fork()) == 0:
        as_user(HOLDER, HOLDER, hold)
        os._exit(0)
    os.read(began, 1)
    try:
        with pytest.raises(NotReady, match=f"runs as user 0 and this key holder as {HOLDER}"):
            ask_party(path, b"x")
    finally:
        os.write(end, b"x")
        os.waitpid(child, 0)


@pytest.mark.slow
@two_users
def test_a_search_as_another_user_finds_the_public_kit_and_as_root_every_secret(
    folder: Path,
) -> None:
    secrets = {"identity.key": b"a key", "holder-0.toml": b"minimum = 5", "journal.db": b"ledger"}
    private, public = folder / "private", folder / "public"
    for place, mode in ((private, 0o700), (public, 0o755)):
        place.mkdir()
        place.chmod(mode)
    for name, data in secrets.items():
        (private / name).write_bytes(data)
        (private / name).chmod(0o600)
    (public / "roster.json").write_bytes(b"roster")
    wanted = {name: key_search.digested(data) for name, data in secrets.items()}
    wanted["public kit"] = key_search.digested(b"roster")
    pieces = {"a key in words": key_search.piece(b"abc")}

    def look() -> str:
        told = (os.environ, "nothing")
        own, relay = [str(os.getppid())], str(folder / "none")
        return "\n".join(key_search.search(wanted, [], [str(folder)], told, own, relay, pieces))

    assert as_user(APP, APP, look) == f"public kit: {public / 'roster.json'}"
    assert f"private: {private / 'journal.db'}" in key_search.search(
        {}, [str(private)], [str(folder)], [], [], "", {}
    )
    found = look()
    assert all(name in found for name in wanted)
    with_memory = key_search.search({}, [], [], ["xabcx"], [str(os.getpid())], "", pieces)
    assert [line.partition(":")[0] for line in with_memory] == [
        "memory of key holder",
        "a key in words",
    ]
