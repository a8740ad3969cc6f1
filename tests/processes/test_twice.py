"""A kit is for one process at a time: who comes second is refused, or who came first ends."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from secureps.errors import MISCONFIGURED, OperatorError
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import default_state
from tests.kits.processes import PATIENCE, Processes


def test_who_is_replaced_ends_with_an_error(tmp_path: Path) -> None:
    """Elsewhere, with a state folder of its own: nobody can know before its stream is taken."""
    with Processes(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.wait(lambda: (tmp_path / "coordinator" / "address").is_file(), "the address")
        processes.start("shard-0")
        processes.wait(partial(processes.live, "shard-0"), "the stream")
        first = processes._running["shard-0"]
        (tmp_path / "elsewhere").mkdir()
        config = processes._server("shard-0")[-1]
        text = Path(config).read_text().replace('state = "shard-0"', 'state = "elsewhere/state"')
        other = tmp_path / "other.toml"
        other.write_text(text)
        command = ["-m", "secureps", "serve", "shard", "--config", str(other)]
        processes._running["elsewhere"] = processes._begin(command, tmp_path / "elsewhere.log")
        assert first.wait(PATIENCE) == MISCONFIGURED
        said = processes.log("shard-0")
        assert "another process with shard-0's kit has taken its orders over" in said
        assert "Traceback" not in said
        processes.wait(partial(processes.live, "shard-0"), "the stream of the one that is left")
        assert processes.alive("elsewhere")


def test_one_place_for_each_kit_from_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    here = default_state(Path("kit"), "ada")
    monkeypatch.chdir(tmp_path / "deep")
    assert default_state(Path("../kit"), "ada") == here == tmp_path / "kit" / "state" / "ada"
    here.mkdir(parents=True)
    first = SqliteJournal(here / "journal.db")
    try:
        with pytest.raises(OperatorError, match=rf"\(pid {os.getpid()} on "):
            SqliteJournal(here / "journal.db")
    finally:
        first.close()
    SqliteJournal(here / "journal.db").close()
