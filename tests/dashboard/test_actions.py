"""What is done from a dashboard is signed and on the disk before it is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secureps.dashboard import actions
from secureps.dashboard.actions import DOMAIN, KINDS, ActLine, RunActs, read_acts
from secureps.errors import ConfigError, DamagedStore, Refused, SecurepsError
from secureps.messages.acts import Act, Deed
from secureps.messages.encoding import file_digest
from secureps.run.up.folder import RunFolder
from secureps.store.issuing import issue
from secureps.store.keyring import load_private, load_public
from tests.kits.audited import begin


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = begin(tmp_path / "run")
    issue(run / "kit", "observer", "observer")
    return RunFolder(run)


@pytest.fixture
def acts(folder: RunFolder) -> RunActs:
    own = load_private(folder.kit, "observer")
    return RunActs(folder, "observer", own, SAID.append, lambda: 1_700_000_000.0)


SAID: list[Act] = []
"""What the coordinator was told."""


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
    told = (act.number, act.date, act.who, act.what)
    assert told == (1, "2023-11-14T22:13:20Z", "observer", "end")
    with pytest.raises(SecurepsError):
        acts.do("export", {})  # there is no checkpoint
    assert [act.what for act in acts.done] == ["end", "export"]
    assert set(KINDS) == {"end", "export"}


def test_a_line_that_was_changed_moved_or_added_is_found(
    acts: RunActs, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "stop", lambda root: "stopped")
    for _ in range(3):
        acts.do("end", {})
    path, key = folder.root / "acts.jsonl", load_public(folder.kit).roster.identity("observer")
    one, two, three = path.read_bytes().splitlines()
    assert len(read_acts(b"\n".join((one, two, three)), key)) == 3
    later = json.dumps(json.loads(two) | {"date": "2024-01-01T00:00:00Z"}).encode()
    for lines in ((one, later, three), (one, three), (two, three), (one, two, two), (one, b"{}")):
        with pytest.raises(DamagedStore, match=r"acts\.jsonl: act \d is not"):
            read_acts(b"\n".join(lines), key)
    path.write_bytes(one + b"\n" + three + b"\n")
    with pytest.raises(DamagedStore):
        acts.do("end", {})
    with pytest.raises(DamagedStore):
        read_acts(one, load_public(folder.kit).roster.identity("coordinator"))


def test_a_line_of_another_history_is_found(folder: RunFolder) -> None:
    """Signed by the same key, and the second of its own file."""
    me = load_private(folder.kit, "observer")

    def line(number: int, what: str, previous: bytes = b"") -> bytes:
        of = {"number": number, "date": "2024-01-01T00:00:00Z", "who": "observer", "what": what}
        of |= {"previous": file_digest(previous).hex() if previous else "", "signature": ""}
        bare = json.dumps(of, separators=(",", ":")).encode()
        signed = of | {"signature": me.sign(DOMAIN, bare).hex()}
        return json.dumps(signed, separators=(",", ":")).encode()

    one, other = line(1, "end"), line(1, "export")
    two = line(2, "end", other)
    assert len(read_acts(other + b"\n" + two, me.public)) == 2
    with pytest.raises(DamagedStore, match="act 2 is not what was signed, or not in its place"):
        read_acts(one + b"\n" + two, me.public)


def test_what_the_coordinator_does_is_said_to_it_and_on_record_there(acts: RunActs) -> None:
    SAID.clear()
    assert acts.offered == (*Deed, "end", "export")
    for deed in Deed:
        text = acts.do(deed.value, {"client": "client-00", "reason": "why", "other": "x"})
        assert text
    assert [(act.what, act.client, act.reason) for act in SAID] == [
        (deed.value, "client-00", "why") for deed in Deed
    ]
    assert acts.done == (), "its journal has them"


def test_of_a_run_elsewhere_there_is_no_end_and_no_export(folder: RunFolder) -> None:
    SAID.clear()
    acts = RunActs(None, "coordinator", load_private(folder.kit, "coordinator"), SAID.append)
    assert acts.offered == tuple(Deed)
    with pytest.raises(ConfigError, match="is nothing that can be done here"):
        acts.do("end", {})
    acts.do("pause", {})
    assert (SAID, acts.done) == ([Act("pause")], ())


def test_what_the_coordinator_refuses_is_said_as_it_says_it(folder: RunFolder) -> None:
    def refuses(act: Act) -> None:
        raise Refused("the run is over")

    acts = RunActs(folder, "observer", load_private(folder.kit, "observer"), refuses)
    with pytest.raises(Refused, match="the run is over"):
        acts.do("pause", {})
