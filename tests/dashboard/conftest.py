"""One run on disk for all tests of the dashboard that read one; none of them changes it."""

from pathlib import Path

import pytest

from secureps.store.journal import read_rows
from secureps.store.journal_rows import Row
from tests.kits.audited import begin, exported, play


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """plan.toml, kit/, state/NAME/, and the coordinator's audit log: three versions, three
    holders of whom two must agree, three clients with noise of their own."""
    folder = begin(tmp_path_factory.mktemp("dashboard") / "run")
    play(folder)
    exported(folder, "coordinator")
    return folder


@pytest.fixture(scope="session")
def rows(run: Path) -> list[Row]:
    return list(read_rows(run / "state" / "client-00" / "journal.db"))
