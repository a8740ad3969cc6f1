"""Acts from a dashboard are signed and on disk before they are done."""

from pathlib import Path

import pytest

from secureps.dashboard import actions
from secureps.dashboard.actions import KINDS, RunActs
from secureps.errors import ConfigError, SecurepsError
from secureps.messages.acts import Act, Deed
from secureps.run.up.folder import RunFolder
from secureps.store.act_lines import ActLine
from secureps.store.issuing import issue
from secureps.store.keyring import load_private
from tests.kits.audited import begin


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = begin(tmp_path / "run")
    issue(run / "kit", "observer", "observer")
    return RunFolder(run)


@pytest.fixture
def acts(folder: RunFolder) -> RunActs:
    own = load_private(folder.kit, "observer")
    return RunActs(folder, "observer", own, HEARD.append)


HEARD: list[Act] = []
"""The acts that the coordinator received."""


@pytest.mark.parametrize("what", ["", "paused", "../end", "leave"])
def test_what_cannot_be_done_leaves_no_line(acts: RunActs, what: str) -> None:
    with pytest.raises(ConfigError, match="is nothing that can be done here"):
        acts.do(what, {})
    assert acts.done == ()


def test_an_act_is_on_the_disk_before_it_is_done(
    acts: RunActs, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ActLine, ...]] = []

    def stop(root: Path) -> str:
        assert root == folder.root
        seen.append(acts.done)
        return "stopped"

    monkeypatch.setattr(actions, "stop", stop)
    assert acts.do("end", {}) == "stopped"
    (act,) = seen[0]
    assert (act.number, act.who, act.what) == (1, "observer", "end")
    with pytest.raises(SecurepsError):
        acts.do("export", {})  # there is no checkpoint
    assert [act.what for act in acts.done] == ["end", "export"]
    assert set(KINDS) == {"end", "export"}


def test_what_the_coordinator_does_is_said_to_it_and_on_record_there(acts: RunActs) -> None:
    HEARD.clear()
    assert acts.offered == (*Deed, "end", "export")
    for deed in Deed:
        text = acts.do(deed.value, {"client": "client-00", "reason": "why", "other": "x"})
        assert text
    assert [(act.what, act.party, act.reason) for act in HEARD] == [
        (deed.value, "client-00", "why") for deed in Deed
    ]
    assert acts.done == (), "its journal has them"


def test_of_a_run_elsewhere_there_is_no_end_and_no_export(folder: RunFolder) -> None:
    HEARD.clear()
    acts = RunActs(None, "coordinator", load_private(folder.kit, "coordinator"), HEARD.append)
    assert acts.offered == tuple(Deed)
    with pytest.raises(ConfigError, match="is nothing that can be done here"):
        acts.do("end", {})
    acts.do("pause", {})
    assert (HEARD, acts.done) == ([Act("pause")], ())
