"""`secureps restore`: whose copy it takes, and what it says of a shard's before it starts."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.identity import Role
from secureps.errors import ConfigError
from secureps.messages.records import Dated, RunPinned
from secureps.run.cli import app
from secureps.run.own_script import run_client
from secureps.store.backup import JOURNAL, backup
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal, read_rows
from secureps.store.keyring import load_public
from tests.kits.audited import begin, play
from tests.kits.command import said
from tests.kits.federations import Walker
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

SHARD = "shard-0"


def restored(root: Path, role: Role = "shard", **keys: Any) -> list[str]:
    """Copies a party's state and brings it back; returns what is printed."""
    plan = make_plan(**keys)
    kit, state, copy = root / "kit", root / "state" / SHARD, root / "copy"
    create_kit(kit, plan.cipher_parameters)
    issue(kit, role, SHARD)
    state.mkdir(parents=True)
    journal = SqliteJournal(state / "journal.db")
    run = make_run(plan, roster=load_public(kit).roster.digest)
    pinned = RunPinned(run, make_placement(plan), ADDRESSES)
    journal.append(0.0, [Dated(0.0, SHARD, role), pinned])
    journal.close()
    backup(state, copy)
    words = ("restore", copy, "--state", state, "--kit", kit, "--name", SHARD)
    return said(app, *words).splitlines()


def test_where_a_shards_copy_may_be_too_old_it_is_said(tmp_path: Path) -> None:
    first, note = restored(tmp_path, checkpoint_every=5)
    assert first == f"restored {tmp_path / 'state' / SHARD}: 2 rows of its journal"
    assert note.startswith("note: with checkpoint_every = 5 and replicas = 1 the run goes on if it")
    assert "begin a new run from the newest checkpoint then" in note


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ("shard", {"checkpoint_every": 1}),
        ("shard", {"checkpoint_every": 5, "replicas": 2}),
        ("coordinator", {"checkpoint_every": 5}),
    ],
)
def test_nothing_is_said_where_any_copy_will_do_or_none(
    role: Role, keys: dict[str, int], tmp_path: Path
) -> None:
    assert len(restored(tmp_path, role, **keys)) == 1


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, run/, and another one of the same kit, later/; a copy of each party, in copies/."""
    root = tmp_path_factory.mktemp("copied")
    run, later = begin(root / "run"), root / "later"
    play(run)
    plan, roster = make_plan(), load_public(run / "kit").roster.digest
    for name, role in (("shard-0", "shard"), ("client-00", "client")):
        state = later / "state" / name
        state.mkdir(parents=True)
        with closing(SqliteJournal(state / "journal.db")) as journal:
            pinned = RunPinned(make_run(plan, roster=roster), make_placement(plan), ADDRESSES)
            journal.append(0.0, [Dated(0.0, name, role), pinned])
    issue(run / "kit", "shard", "shard-1")
    begin(root / "elsewhere")
    for folder in (run, later):
        for path in (folder / "state").glob("*/journal.db"):
            state = path.parent
            said(app, "backup", state, "--out", folder / "copies" / state.name)
    return root


def bring(root: Path, copy: str, state: str, name: str, kit: str = "run/kit") -> str:
    """What the command says."""
    words = ("restore", root / copy, "--state", root / state, "--kit", root / kit)
    return said(app, *words, "--name", name)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.db*") if path.suffix != ".lock"}


@pytest.mark.parametrize(
    ("copy", "name", "why"),
    [
        (
            "run/copies/coordinator",
            "client-00",
            "belongs to the coordinator coordinator, as its journal says, not to the client",
        ),
        (
            "run/copies/holder-0",
            "shard-0",
            "to the holder holder-0, .* not to the shard shard-0: n",
        ),
        ("run/copies/holder-1", "holder-0", "to the holder holder-1, .* or holder-1 by --name"),
        (
            "later/copies/shard-0",
            "shard-0",
            "is of run .*, and .*run/state/shard-0 of run .*: name",
        ),
        ("later/copies/client-00", "client-00", "is of run .*, and .*: name a copy of that run"),
    ],
)
def test_a_copy_of_another_party_or_run_is_refused_and_the_right_one_comes_back(
    copy: str, name: str, why: str, played: Path
) -> None:
    state = f"run/state/{name}"
    before = files(played / state)
    with pytest.raises(ConfigError, match=why) as refused:
        bring(played, copy, state, name)
    assert refused.value.fault == "this side's"
    assert files(played / state) == before
    assert f"restored {played / state}: " in bring(played, f"run/copies/{name}", state, name)


def test_into_an_empty_folder_no_copy_of_another_shard_or_kit_comes(played: Path) -> None:
    with pytest.raises(ConfigError, match=r"to the shard shard-0, .* not to the shard shard-1"):
        bring(played, "run/copies/shard-0", "fresh", "shard-1")
    with pytest.raises(ConfigError, match=r"another roster than this kit's.*: name by --kit the"):
        bring(played, "run/copies/shard-0", "fresh", "shard-0", "elsewhere/kit")
    assert not (played / "fresh").exists()


def test_no_copy_comes_into_the_folder_of_another_party(played: Path) -> None:
    before = files(played / "run/state/client-02")
    with pytest.raises(ConfigError, match="state/client-02 belongs to the client client-02, as"):
        bring(played, "run/copies/client-00", "run/state/client-02", "client-00")
    assert files(played / "run/state/client-02") == before


@pytest.mark.parametrize(("kit", "name"), [("nokit", "client-00"), ("kit", "east")])
def test_a_client_with_a_wrong_kit_or_name_leaves_no_folder(
    kit: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path / "run")
    words = ["--server", "127.0.0.1:9", "--kit", str(tmp_path / "run" / kit), "--name", name]
    with pytest.raises(SystemExit):
        run_client(lambda settings: Walker(0, (2, 2)), words)
    assert "(this side's fault)" in capsys.readouterr().err
    assert not (tmp_path / "run" / kit / "state").exists()


def test_no_party_goes_on_with_the_folder_of_another_one(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, kit = played / "run/state/client-00", played / "run/kit"
    before = list(read_rows(state / JOURNAL))
    words = ["--server", "127.0.0.1:9", "--kit", str(kit), "--name", "client-02"]
    with pytest.raises(SystemExit):
        run_client(lambda settings: Walker(0, (2, 2)), [*words, "--state", str(state)])
    why = "belongs to the client client-00, as its journal says, not to the client client-02: name"
    assert why in " ".join(capsys.readouterr().err.split())
    assert list(read_rows(state / JOURNAL)) == before
