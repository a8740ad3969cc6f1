"""The program of a simulation's key holders: as `secureps serve` has them, but for the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.flower import simulated_holder
from secureps.store import durability


def test_it_waits_for_no_disk_and_says_what_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    served = list[tuple[str, Path, bool]]()

    def serve(role: str, config: Path) -> None:
        served.append((role, config, durability.waits()))
        raise ConfigError("another party's file")

    monkeypatch.setattr(simulated_holder, "serve", serve)
    with pytest.raises(SystemExit) as ended:
        simulated_holder.main(tmp_path / "holder-0.toml")
    assert served == [("keyholder", tmp_path / "holder-0.toml", False)]
    assert ended.value.code == 78
    assert capsys.readouterr().err == "error: another party's file (the operator's fault)\n"
    assert durability.waits()
