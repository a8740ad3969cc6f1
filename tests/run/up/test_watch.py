"""What a watched run has started, and until when."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secureps.messages.requests import Status
from secureps.run.report.totals import Totals
from secureps.run.up.folder import RunFolder
from secureps.run.up.watch import Watch, Watched
from tests.kits.federations import small_plan


def test_nobody_is_started_once_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards end then, in order: they would be started anew, and find nobody."""
    said, goes_on = list[str](), Status(b"", 1, "", (), (), (), ())
    statuses = [goes_on, goes_on, *[replace(goes_on, finished="all 2 versions are made")] * 2]
    folder, further = RunFolder(tmp_path), lambda: said.append("starts")
    watch: Any = object.__new__(Watch)
    watch._watched = Watched(small_plan(), folder, "", (), 0.0, False, further)
    watch._supervisor = SimpleNamespace(
        expect_end=lambda: said.append("ends"), poll=tuple, running=tuple
    )
    watch._observer = SimpleNamespace(status=lambda: statuses.pop(0))
    watch._metrics = SimpleNamespace(totals=Totals(), take=len, settle=tuple)
    watch._echo = SimpleNamespace(news=tuple, notes=lambda: ("range cut off 2 updates",))
    watch._deaths = SimpleNamespace(tell=len)
    watch._progress = SimpleNamespace(show=lambda view: said.append("looks"))
    watch._gone, watch._scored, watch._judged = {}, (None, ""), {}
    watch._moved_at = time.monotonic()

    def notice(watch: Any, status: Status) -> None:
        watch._status = status

    monkeypatch.setattr(Watch, "_notice", notice)
    for name in ("_tell_leavers", "_judge_newest", "_view"):
        monkeypatch.setattr(Watch, name, lambda watch, status: None)
    monkeypatch.setattr(Watch, "_train_ahead", lambda watch: None)
    monkeypatch.setattr("secureps.run.up.watch.POLL", 0.0)
    outcome = watch.until_over()
    assert outcome.finished == "all 2 versions are made"
    assert outcome.cuts == ("range cut off 2 updates",), "after the last look"
    assert said == ["looks", "starts", "looks", "starts", "looks", "ends", "looks"]
