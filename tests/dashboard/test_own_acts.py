"""Acts from a dashboard: signed, on disk first, and a data holder's of its own client alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from secureps.crypto.identity import ROLES, Identity
from secureps.dashboard import Json, access
from secureps.dashboard.access import RUN_ENDS, SAID, OwnActs, RunActs, Viewer
from secureps.dashboard.holder_view import OwnLedger, holder_view
from secureps.errors import ConfigError, DamagedStore, NotReady, SecurepsError
from secureps.messages.acts import Act, Deed
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.run.up.folder import RunFolder
from secureps.store.act_lines import ActLine
from secureps.store.budget import BudgetLedger
from secureps.store.issuing import issue
from secureps.store.journal_rows import Row
from secureps.store.keyring import load_private
from tests.kits.audited import begin

ME = Identity(bytes(range(32)))


def seen(rows: list[Row], *acts: OwnAct) -> Json:
    more = [replace(rows[-1], record=act) for act in acts]
    view = holder_view("client-00", [*rows, *more], OwnLedger(), ())
    assert view is not None
    return view


def acting(folder: Path, view: Json | None, budget: float | None = 8.0) -> OwnActs:
    ledger = BudgetLedger(folder / "ledger.db", budget)
    return OwnActs("client-00", ME, folder, ledger, lambda: view)


def test_each_act_is_a_line_that_the_client_reads(rows: list[Row], tmp_path: Path) -> None:
    acts = acting(tmp_path, seen(rows))
    assert set(acts.offered) == set(OwnDeed) - {OwnDeed.LEFT} == set(SAID)
    for what in ("pause", "go-on", "leave"):
        assert acts.do(what, {"budget": "1"})
    assert acts.do("lower-budget", {"budget": "2.5"}).startswith("the budget is 2.5 from now on")
    known = [act.what for act in acts.done]
    assert known == ["pause", "go-on", "leave", "lower-budget 2.5"]
    assert BudgetLedger(tmp_path / "ledger.db").limit == 2.5


@pytest.mark.parametrize("budget", ["", "x", "0", "-1", "nan", "inf", "1e999", "8", "8.5"])
def test_no_budget_is_raised_and_none_is_no_number(
    budget: str, rows: list[Row], tmp_path: Path
) -> None:
    acts = acting(tmp_path, seen(rows))
    with pytest.raises(ConfigError, match=r"a budget is a finite|is never raised here"):
        acts.do("lower-budget", {"budget": budget})
    assert acts.done == ()
    acts.do("lower-budget", {"budget": "3"})
    with pytest.raises(ConfigError, match="the budget is 3 already, and is never raised here"):
        acts.do("lower-budget", {"budget": "3"})


def test_a_budget_is_lowered_over_all_runs_before_its_line_is_there(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = acting(tmp_path, seen(rows))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("secureps.store.act_lines.write_durably", dies)
        with pytest.raises(KeyboardInterrupt):
            acts.do("lower-budget", {"budget": "2.5"})
    assert acts.done == ()
    assert BudgetLedger(tmp_path / "ledger.db").limit == 2.5


def test_before_a_run_and_where_privacy_is_not_planned_nothing_is_begun(
    rows: list[Row], tmp_path: Path
) -> None:
    with pytest.raises(NotReady, match="takes part in no run yet"):
        acting(tmp_path, None).do("pause", {})
    plain = seen(rows) | {"budget": None}
    with pytest.raises(ConfigError, match="trains without privacy, and no budget bounds that"):
        acting(tmp_path, plain).do("lower-budget", {"budget": "1"})
    with pytest.raises(DamagedStore, match=r"acts\.jsonl has 0 acts, and client-00 has done 2"):
        acting(tmp_path, seen(rows, OwnAct(2, "pause"))).do("leave", {})
    assert acting(tmp_path, seen(rows)).done == ()


def test_its_own_page_alone_acts(rows: list[Row], tmp_path: Path) -> None:
    acts = acting(tmp_path, seen(rows))
    assert acts.may(Viewer("client-00", "client"))
    for role in ROLES:
        assert not acts.may(Viewer("client-01", role))
        assert not acts.may(Viewer("client-00", role)) or role == "client"


def test_the_page_says_how_its_client_stands(rows: list[Row]) -> None:
    assert seen(rows)["standing"] == ""
    for acts, standing in (
        ((OwnAct(1, "pause"),), "paused"),
        ((OwnAct(1, "pause"), OwnAct(2, "go-on")), ""),
        ((OwnAct(1, "leave"), OwnAct(2, "go-on")), "leaves"),
        ((OwnAct(1, "leave"), OwnAct(1, "left")), ""),
        ((OwnAct(1, "pause"), OwnAct(2, "lower-budget", 1.0)), "paused"),
    ):
        view = seen(rows, *acts)
        assert (view["standing"], view["acted"]) == (standing, acts[-1].number)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = begin(tmp_path / "run")
    issue(run / "kit", "observer", "observer")
    return RunFolder(run)


@pytest.fixture
def heard() -> list[Act]:
    """The acts that the coordinator received."""
    return []


@pytest.fixture
def acts(folder: RunFolder, heard: list[Act]) -> RunActs:
    own = load_private(folder.kit, "observer")
    return RunActs(folder, "observer", own, heard.append)


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

    monkeypatch.setattr(access, "stop", stop)
    assert acts.do("end", {}) == "stopped"
    (act,) = seen[0]
    assert (act.number, act.who, act.what) == (1, "observer", "end")
    with pytest.raises(SecurepsError):
        acts.do("export", {})  # there is no checkpoint
    assert [act.what for act in acts.done] == ["end", "export"]
    assert set(RUN_ENDS) == {"end", "export"}


def test_what_the_coordinator_does_is_said_to_it_and_on_record_there(
    acts: RunActs, heard: list[Act]
) -> None:
    assert acts.offered == (*Deed, "end", "export")
    for deed in Deed:
        text = acts.do(deed.value, {"client": "client-00", "reason": "why", "other": "x"})
        assert text
    assert [(act.what, act.party, act.reason) for act in heard] == [
        (deed.value, "client-00", "why") for deed in Deed
    ]
    assert acts.done == (), "its journal has them"


def test_of_a_run_elsewhere_there_is_no_end_and_no_export(
    folder: RunFolder, heard: list[Act]
) -> None:
    acts = RunActs(None, "coordinator", load_private(folder.kit, "coordinator"), heard.append)
    assert acts.offered == tuple(Deed)
    with pytest.raises(ConfigError, match="is nothing that can be done here"):
        acts.do("end", {})
    acts.do("pause", {})
    assert (heard, acts.done) == ([Act("pause")], ())
