"""`secureps audit-log` over the state folders of a played run: what it says, and what it finds."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import AuditLog, Entry, dump, load
from secureps.audit.page import build_page
from secureps.errors import ConfigError, DamagedStore, KitError, SecurepsError
from secureps.messages.format import FORMAT
from secureps.policy.plan import Plan
from secureps.policy.spending import total_epsilon
from secureps.privacy.ledger import Ledger
from secureps.run.audit_log import export, verify
from secureps.run.cli import app
from secureps.store.issuing import approve, issue, rotate
from secureps.store.journal import read_rows
from secureps.store.keyring import load_private, load_public
from tests.kits.audited import PARTIES, begin, exported, play
from tests.kits.command import invoked


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped and went on; logs of all parties, exported at the stop and after."""
    folder = begin(tmp_path_factory.mktemp("audited") / "run")
    now = play(folder, 1)
    for name in PARTIES:
        shutil.copy(exported(folder, name), folder / f"{name}.early.jsonl")
    play(folder, None, now)
    for name in PARTIES:
        exported(folder, name)
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "run"))


def forged(folder: Path, name: str, signer: str = "", **others: Any) -> Path:
    """The party's log with another `begin`, `entries` or `end`, signed as if it were so."""
    path = folder / f"{name}.jsonl"
    log = load(path.read_bytes())
    parts: dict[str, Any] = {"begin": log.begin, "entries": log.entries, "end": log.end} | others
    parts["end"] = replace(parts["end"], entries=len(parts["entries"]))
    path.write_bytes(dump(b"", **parts, me=load_private(folder / "kit", signer or name)))
    return path


def log_of(folder: Path, name: str) -> AuditLog:
    return load((folder / f"{name}.jsonl").read_bytes())


def entries_of(folder: Path, name: str, without: str = "") -> list[Entry]:
    return [each for each in log_of(folder, name).entries if each.what != without]


def check(folder: Path, name: str) -> None:
    verify([folder / f"{name}.jsonl"], folder / "kit", folder / "state" / name)


@pytest.mark.parametrize("name", PARTIES)
def test_a_log_grows_and_is_complete(name: str, played: Path) -> None:
    early = (played / f"{name}.early.jsonl").read_bytes()
    late = (played / f"{name}.jsonl").read_bytes()
    assert late.startswith(early)
    assert len(load(late).ends) == 2
    check(played, name)
    verify([played / f"{name}.early.jsonl"], played / "kit", played / "state" / name)
    again = exported(played, name).read_bytes()
    assert again == late, "nothing new is written where nothing happened"
    assert (played / f"{name}.jsonl").stat().st_mode & 0o77 == 0


def test_all_logs_agree(played: Path) -> None:
    logs = verify([played / f"{name}.jsonl" for name in PARTIES], played / "kit")
    assert [log.begin.party for log in logs] == list(PARTIES)
    (closed, *_) = [e for e in logs[0].entries if e.what == "cohort closed"]
    assert closed.facts["clients"] == ["client-00", "client-01", "client-02"]
    assert closed.facts["count"] == 3


def test_epsilon_is_what_the_ledger_comes_to(played: Path) -> None:
    log = log_of(played, "coordinator")
    rows = [row.record for row in read_rows(played / "state" / "coordinator" / "journal.db")]
    ledger = Ledger(record for record in rows if type(record).__name__ == "Release")
    plan = Plan.from_text(log.begin.run.plan)
    assert log.end.epsilon is not None
    assert len(log.end.epsilon) == 3
    for each in log.end.epsilon:
        assert each.epsilon == round(total_epsilon(plan, ledger.tally(each.client)), 3) > 1
    own = log_of(played, "client-01").end.epsilon
    assert own == log.end.epsilon[1:2]


def test_a_party_that_forges_its_own_log_is_found_out_by_its_journal(folder: Path) -> None:
    whole = entries_of(folder, "coordinator")
    at = next(n for n, each in enumerate(whole) if each.what == "cohort closed")
    tries: dict[str, list[Entry]] = {
        f"entry {at + 1} is cohort opened": [*whole[:at], *whole[at + 1 :]],
        f"entry {at + 2} is cohort closed": [*whole[: at + 1], whole[at], *whole[at + 1 :]],
        f"entry {at + 1} is cohort opened .row {whole[at + 1].row}": [
            *whole[:at],
            whole[at + 1],
            whole[at],
            *whole[at + 2 :],
        ],
        f"entry {len(whole)} is not there; by the journal it is run over": whole[:-1],
        f"entry {len(whole) + 1} is key holders from now on .* by the journal it is not there": [
            *whole,
            whole[0],
        ],
    }
    for text, entries in tries.items():
        verify([forged(folder, "coordinator", entries=entries)], folder / "kit")
        with pytest.raises(DamagedStore, match=text):
            check(folder, "coordinator")


def test_an_edited_count_is_found_by_the_journal(folder: Path) -> None:
    entries = entries_of(folder, "holder-1")
    entries[3].facts["count"] = 30
    forged(folder, "holder-1", entries=entries)
    with pytest.raises(DamagedStore, match=r'entry 4 is share given .*"count": 30'):
        check(folder, "holder-1")


def test_a_party_that_forges_log_and_journal_is_found_out_by_the_others(folder: Path) -> None:
    closed = entries_of(folder, "coordinator", "cohort closed")
    path = forged(folder, "coordinator", entries=closed)
    honest = folder / "holder-2.jsonl"
    text = "the log of holder-2 has, in row .*, share given .cohort 0 of all., and that of coor"
    with pytest.raises(DamagedStore, match=text):
        verify([path, honest], folder / "kit")
    own = entries_of(folder, "client-02", "update sealed")
    end = replace(log_of(folder, "client-02").end, epsilon=())
    client = forged(folder, "client-02", entries=own, end=end)
    with pytest.raises(DamagedStore, match=r"update received .client-02/all/0., and that of clie"):
        verify([path, client], folder / "kit")


def test_holders_that_a_coordinator_names_say_so_too(folder: Path) -> None:
    path = forged(folder, "holder-1", entries=entries_of(folder, "holder-1", "share given"))
    with pytest.raises(DamagedStore, match=r"cohort opened .cohort 0 of all., and .* holder-1"):
        verify([folder / "coordinator.jsonl", path], folder / "kit")


def test_a_log_that_nobody_can_have_signed(folder: Path) -> None:
    begin = replace(log_of(folder, "client-00").begin, role="holder")
    unspent = entries_of(folder, "coordinator", "privacy spent")
    for name, changed, why in (
        ("coordinator", {"signer": "holder-0"}, "the last line is not signed by coordinator"),
        ("client-00", {"begin": begin}, "no holder called 'client-00' is on the roster; of who"),
        ("coordinator", {"entries": unspent}, "the epsilon that it ends with is not what its ent"),
    ):
        path = forged(folder, name, **changed)
        with pytest.raises(DamagedStore, match=why):
            verify([path], folder / "kit")


def test_another_epsilon_than_what_the_entries_come_to(folder: Path) -> None:
    log = log_of(folder, "client-00")
    (spent,) = log.end.epsilon or ()
    assert spent.epsilon is not None

    def sign(version: int, epsilon: float) -> Path:
        end = replace(log.end, epsilon=(replace(spent, epsilon=epsilon),))
        return forged(folder, "client-00", begin=replace(log.begin, format=version), end=end)

    loose = sign(4, spent.epsilon + 0.015)  # a version that counted by a looser bound
    verify([loose], folder / "kit")
    for version, epsilon in ((4, spent.epsilon - 0.001), (FORMAT, spent.epsilon + 0.015)):
        path = sign(version, epsilon)
        with pytest.raises(DamagedStore, match="the epsilon that it ends with is not"):
            verify([path], folder / "kit")


def test_another_run_another_kit_another_party(folder: Path, tmp_path: Path) -> None:
    other = begin(tmp_path / "other")
    with pytest.raises(DamagedStore, match="another roster than this kit's"):
        verify([folder / "coordinator.jsonl"], other / "kit")
    play(other, 0)
    log = exported(other, "coordinator")
    with pytest.raises(DamagedStore, match=r"is of run .*, and the journal of run"):
        verify([log], other / "kit", folder / "state" / "coordinator")
    with pytest.raises(ConfigError, match="the log of another party or run"):
        export(folder / "state" / "coordinator", folder / "kit", "coordinator", log)
    kit, out = folder / "kit", folder / "holder-0.jsonl"
    with pytest.raises(ConfigError, match="the log of another party or run"):
        export(folder / "state" / "holder-1", kit, "holder-1", out)
    with pytest.raises(DamagedStore):
        verify([folder / "holder-0.jsonl"], folder / "kit", folder / "state" / "holder-1")
    with pytest.raises(ConfigError, match="verify its log alone"):
        verify([log, log], other / "kit", other / "state" / "coordinator")


def test_what_was_exported_is_never_rewritten(folder: Path) -> None:
    path = forged(folder, "coordinator", entries=entries_of(folder, "coordinator")[:-1])
    before = path.read_bytes()
    with pytest.raises(DamagedStore, match="by the journal it is run over"):
        exported(folder, "coordinator")
    path.write_bytes(before[:-10])
    with pytest.raises(DamagedStore, match="cut short"):
        exported(folder, "coordinator")
    assert path.read_bytes() == before[:-10]


def test_an_end_that_names_another_row_than_the_journal_has(folder: Path) -> None:
    end = replace(log_of(folder, "coordinator").end, journal=b"x" * 32)
    forged(folder, "coordinator", end=end)
    with pytest.raises(DamagedStore, match=r"its row 9. is not the journal's"):
        check(folder, "coordinator")


def test_logs_of_two_runs_are_not_compared(folder: Path) -> None:
    begin = log_of(folder, "holder-0").begin
    run = replace(begin.run, nonce=b"another run".ljust(32))
    path = forged(folder, "holder-0", begin=replace(begin, run=run, id=run.id))
    with pytest.raises(DamagedStore, match=r"holder-0 is of run .*, and that of coordinator of"):
        verify([folder / "coordinator.jsonl", path], folder / "kit")
    with pytest.raises(DamagedStore, match="and the journal of run"):
        check(folder, "holder-0")


def test_an_older_journal_is_known_by_what_was_exported(folder: Path) -> None:
    state = folder / "state" / "holder-0"
    with closing(sqlite3.connect(state / "journal.db")) as base:
        base.execute("DELETE FROM journal WHERE seq > 5")
        base.execute(
            "UPDATE head SET (seq, chain) = (SELECT seq, chain FROM journal WHERE seq = 5)"
        )
        base.commit()
    with pytest.raises(DamagedStore, match="a ledger never goes back"):
        check(folder, "holder-0")
    (state / "journal.db.height").unlink()
    with pytest.raises(DamagedStore, match="by the journal it is not there"):
        check(folder, "holder-0")


def test_no_state_no_run_no_key(folder: Path, tmp_path: Path) -> None:
    kit, out = folder / "kit", tmp_path / "log"
    with pytest.raises(ConfigError, match="is no state folder"):
        export(tmp_path, kit, "holder-0", out)
    with pytest.raises(KitError, match="`secureps keys request"):
        export(folder / "state" / "holder-0", kit, "nobody", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("state", "name", "why"),
    [
        (
            "holder-0",
            "holder-1",
            "belongs to the holder holder-0, as its journal says, not to the holder holder-1: "
            "name the folder of holder-1, or holder-0 by --name",
        ),
        ("coordinator", "client-00", "belongs to the coordinator coordinator, .* client client-00"),
    ],
)
def test_nobody_signs_what_another_party_did(
    state: str, name: str, why: str, played: Path, tmp_path: Path
) -> None:
    words = ("audit-log", "export", played / "state" / state, "--kit", played / "kit")
    out = tmp_path / "log.jsonl"
    with pytest.raises(ConfigError, match=why):
        invoked(app, *words, "--name", name, "--out", out, catch=False)
    assert not out.exists()


def test_the_page_answers_in_order_and_loads_nothing(folder: Path) -> None:
    out, printed = folder / "new.jsonl", folder / "page.html"
    kit = folder / "kit"
    export(folder / "state" / "coordinator", kit, "coordinator", out, printed)
    text = printed.read_text()
    found = [text.index(each) for each in ("2 of 3 key holders", "Who took part", "for how many")]
    found += [text.index(each) for each in ("What was spent", "refused or came", "<h2>The plan")]
    assert found == sorted(found)
    assert "count 3; clients client-00, client-01, client-02" in text
    log = load(out.read_bytes())
    assert log.end.epsilon is not None
    assert f"<td>{log.end.epsilon[0].epsilon:.3f}</td>" in text
    assert "http" not in text
    assert "<script" not in text


def commanded(*arguments: object) -> Any:
    return invoked(app, "audit-log", *map(str, arguments))


def test_the_commands(folder: Path) -> None:
    kit, state, out = folder / "kit", folder / "state" / "coordinator", folder / "log.jsonl"
    done = commanded("export", state, "--kit", kit, "--name", "coordinator", "--out", out)
    assert done.exit_code == 0, done.output
    assert "42 entries" in done.output.replace("\n", " ")
    done = commanded("verify", out, "--kit", kit, "--state", state)
    assert "signed, complete against the journal" in done.output
    assert "client-00  epsilon 9." in done.output
    out.write_bytes(out.read_bytes().replace(b'"count":3', b'"count":9', 1))
    failed = commanded("verify", out, "--kit", kit)
    assert isinstance(failed.exception, SecurepsError)
    assert "cohort closed" in str(failed.exception)


def test_a_page_of_a_hostile_reason_is_text(folder: Path) -> None:
    log = log_of(folder, "coordinator")
    log.entries[0].facts["client"] = "<script>alert(1)</script>"
    assert "<script" not in build_page(log, "")


def test_a_kit_that_went_on_to_later_rosters_knows_the_one_of_the_run(folder: Path) -> None:
    before = load_public(folder / "kit").roster
    issue(folder / "kit", "client", "late")
    assert load_public(folder / "kit").roster.number > before.number
    check(folder, "coordinator")


def test_a_log_from_before_new_keys_is_signed_anew(folder: Path, tmp_path: Path) -> None:
    """And nobody is called a forger for them: the kit of before verifies what was signed then."""
    kit, log = folder / "kit", folder / "client-00.jsonl"
    shutil.copytree(kit, before := tmp_path / "kit-of-before")
    asked = rotate(kit, "client-00")
    assert asked is not None
    approve(kit, [asked])
    assert rotate(kit, "client-00") is None
    with pytest.raises(
        DamagedStore, match=r"not signed by client-00: .* has other keys since then"
    ):
        verify([log], kit)
    was = log.read_bytes()
    assert verify([log], before)
    exported(folder, "client-00")
    assert verify([log], kit, folder / "state" / "client-00")
    now = log.read_bytes()
    assert now.startswith(was)
    exported(folder, "client-00")
    assert log.read_bytes() == now, "once is enough"
