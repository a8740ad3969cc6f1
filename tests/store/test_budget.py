"""Privacy: a data holder's ledger counts once over all runs and forgets nothing."""

import dataclasses
import math
import shutil
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from secureps.client.worker import ClientWorker, Site
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import (
    BudgetSpent,
    ConfigError,
    DamagedStore,
    OperatorError,
    PlanRefused,
)
from secureps.messages.charge import Charge, Release
from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import UpdateReleased
from secureps.messages.records import RunPinned
from secureps.privacy.accountant import epsilon
from secureps.privacy.ledger import OWN_DELTA, PersonCharge, from_row
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Aim, Contribute
from secureps.roles.pinned_run import Pinned
from secureps.run.cli import app
from secureps.store import journal_rows
from secureps.store.budget import BudgetLedger
from secureps.store.journal import last_row
from secureps.store.spool import MemorySpool
from tests.kits.command import said
from tests.kits.federations import Walker
from tests.kits.ledgers import charge, expose, row
from tests.kits.nursery import ROOT
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

ONE, TWO = bytes([1]) * 32, bytes([2]) * 32


def spent(version: int) -> Charge:
    return Charge("client-00", "all", version, 1.1, 0.05, 20)


def cost(updates: int) -> float:
    return epsilon([spent(version) for version in range(updates)], OWN_DELTA)


@pytest.mark.slow
def test_a_second_run_spends_what_the_first_left(tmp_path: Path) -> None:
    """The same client and records, in another run with the same version numbers."""
    ledger = BudgetLedger(tmp_path / "ledgers" / "client-00.db", cost(4) * 1.0001)
    for version in range(3):
        charge(ledger, ONE, spent(version))
    charge(ledger, TWO, spent(0))
    with pytest.raises(PlanRefused, match=r"over all runs that .*client-00.db counts"):
        charge(ledger, TWO, spent(1))
    with pytest.raises(PlanRefused, match=r"budget is .*, of one record, added or removed"):
        charge(ledger, TWO, spent(1))
    assert [(run.run, run.facts) for run in ledger.spent()] == [(ONE, 3), (TWO, 1)]


def test_a_look_refuses_what_a_charge_would_and_writes_nothing(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "ledgers" / "own.db", cost(2) * 1.0001)
    ledger.refuse_spent(ONE, [spent(0), spent(1)])
    with pytest.raises(PlanRefused, match="nothing more is sealed"):
        ledger.refuse_spent(ONE, [spent(version) for version in range(3)])
    assert not ledger.path.parent.exists()
    for version in range(2):
        charge(ledger, ONE, spent(version))
    ledger.refuse_spent(ONE, [spent(1)])
    for run, version in ((ONE, 2), (TWO, 1)):
        with pytest.raises(PlanRefused, match="nothing more is sealed"):
            ledger.refuse_spent(run, [spent(version)])
    BudgetLedger(ledger.path).refuse_spent(TWO, [spent(1)])
    assert len(ledger.facts()) == 2


def test_what_is_on_record_costs_nothing_more(tmp_path: Path) -> None:
    """A client that was killed between charge and seal seals the same, and is charged once."""
    ledger = BudgetLedger(tmp_path / "own.db", cost(1) * 1.0001)
    for _ in range(3):
        charge(ledger, ONE, spent(0))
    assert ledger.facts() == [(ONE, spent(0))]
    with pytest.raises(PlanRefused):
        charge(ledger, ONE, dataclasses.replace(spent(0), step=1))


def test_a_smaller_delta_of_the_plan_counts_and_a_larger_makes_nothing_cheaper(
    tmp_path: Path,
) -> None:
    poor, ledger = (BudgetLedger(tmp_path / f"{x}.db", cost(1) * x) for x in (0.9999, 1.0001))
    with pytest.raises(PlanRefused):
        charge(poor, ONE, spent(0), delta=0.1)
    assert poor.facts() == []
    with pytest.raises(PlanRefused):
        charge(ledger, ONE, spent(0), delta=1e-9)
    charge(ledger, ONE, spent(0), delta=0.1)


def test_units_do_not_add_up(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db", 100.0)
    charge(ledger, ONE, spent(0))
    with pytest.raises(PlanRefused, match="no epsilon is the sum of both"):
        charge(ledger, TWO, Release("client-00", "all", 0, 1.0, 2.0, 50.0, 1, 0.0))


def of_persons(version: int) -> PersonCharge:
    return PersonCharge(*dataclasses.astuple(spent(version)))


KINDS: dict[str, Charge | Release] = {
    "persons": of_persons(0),
    "single records": spent(0),
    "whole clients": Release("client-00", "all", 0, 1.0, 2.0, 50.0, 1, 0.0),
}


@pytest.mark.parametrize("budget", [None, 1000.0])
@pytest.mark.parametrize("other", ["single records", "whole clients"])
@pytest.mark.parametrize("first", ["persons", "other"])
def test_persons_are_never_mixed_with_others(
    first: str, other: str, budget: float | None, tmp_path: Path
) -> None:
    """Without a budget too: how much of what records spent was one person's, nobody knows."""
    before, after = KINDS["persons"], KINDS[other]
    if first == "other":
        before, after = after, before
    charge(BudgetLedger(tmp_path / "own.db", budget), ONE, before)
    ledger = BudgetLedger(tmp_path / "own.db", budget)  # what a file keeps, not what is in memory
    told = "counts (persons|single records) in some runs and (persons|whole clients) in others"
    with pytest.raises(PlanRefused, match=told):
        charge(ledger, TWO, after)
    with pytest.raises(PlanRefused, match=told):
        ledger.refuse_spent(TWO, [after])
    assert BudgetLedger(tmp_path / "own.db").facts() == [(ONE, before)]


def test_a_ledger_says_that_it_counts_persons(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db", cost(2) * 1.0001)
    for version in range(2):
        charge(ledger, ONE, of_persons(version))
        charge(ledger, ONE, of_persons(version))  # the same update again costs nothing
    ledger.refuse_spent(ONE, [of_persons(1)])
    with pytest.raises(BudgetSpent, match=r"budget is .*, of all records of one person, added"):
        charge(ledger, TWO, of_persons(0))
    with pytest.raises(BudgetSpent, match=r"budget is .*, of all records of one person, added"):
        ledger.refuse_spent(TWO, [of_persons(0)])
    assert [(run.facts, run.epsilon) for run in ledger.spent()] == [(2, cost(2))]
    told = said(app, "budget", "show", tmp_path / "own.db")
    assert "of all records of one person, added or removed or replaced by nothing" in told
    assert "one record" not in told


def test_a_version_that_knows_no_persons_refuses_to_add_them_to_records(tmp_path: Path) -> None:
    """It takes a row of persons for one of both of its units, which it never adds up."""
    ledger = BudgetLedger(tmp_path / "own.db")
    charge(ledger, ONE, of_persons(0))
    ((_, found),) = ledger.rows()
    assert isinstance(found, UpdateReleased)
    assert type(found.charge) is Charge
    assert found.charge == spent(0)
    assert found.release == Release("client-00", "all", 0, 0.0, 0.0, 0.0, 1, 0.0)
    real = dataclasses.replace(found.release, l2=1.0, l1=1.0)
    assert from_row(found.charge, real) == (spent(0), real), "no charge of persons, but of both"


def test_a_charge_reads_what_is_new_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading ten thousand rows for each charge would take too long."""
    path, read, real = tmp_path / "ledgers" / "own.db", list[int](), journal_rows.read_row
    ledger, other = BudgetLedger(path, cost(23) * 1.0001), BudgetLedger(path)
    for version in range(20):
        charge(ledger, ONE, spent(version))

    def reads(where: Path, before: bytes, seq: int, *columns: Any) -> Any:
        read.append(seq)
        return real(where, before, seq, *columns)

    monkeypatch.setattr(journal_rows, "read_row", reads)
    charge(other, TWO, spent(0))
    assert read == list(range(1, 21))
    read.clear()
    charge(ledger, ONE, spent(20))
    assert read == [20, 21]
    assert ledger.facts() == other.facts() == BudgetLedger(path).facts()
    charge(other, TWO, spent(1))
    with pytest.raises(BudgetSpent):
        charge(ledger, ONE, spent(21))


def test_it_never_goes_back(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db", 100.0)
    charge(ledger, ONE, spent(0))
    shutil.copy(ledger.path, tmp_path / "older")
    charge(ledger, ONE, spent(1))
    shutil.copy(tmp_path / "older", ledger.path)
    with pytest.raises(DamagedStore, match="ends at row 1, and 2 rows were written"):
        charge(ledger, ONE, spent(2))


def test_where_it_cannot_be_kept_nothing_is_sealed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="name another file by --ledger"):
        charge(BudgetLedger(tmp_path / "file" / "own.db"), ONE, spent(0))
    with pytest.raises(OperatorError, match="name another file by --ledger"):
        expose(BudgetLedger(tmp_path / "file" / "own.db"), ONE, range(1))


SPENDER = """
import sys
from pathlib import Path
from secureps.errors import PlanRefused
from secureps.messages.charge import Charge
from secureps.store.budget import BudgetLedger
from tests.kits.ledgers import charge
ledger = BudgetLedger(Path(sys.argv[1]), float(sys.argv[2]))
made = 0
try:
    for version in range(12):
        fact = Charge("client-00", "all", version, 1.1, 0.05, 20)
        charge(ledger, bytes([int(sys.argv[3])]) * 32, fact)
        made += 1
        print(made, flush=True)
except PlanRefused:
    print("refused", flush=True)
"""


def test_a_clock_that_was_wrong_keeps_nobody_resting_for_long(tmp_path: Path) -> None:
    now = [1e9]
    ledger = BudgetLedger(tmp_path / "ledger.db", updates_per_hour=2, clock=lambda: now[0])
    for at, waits in (
        *((1e9, 0.0), (1e9 + 10, 0.0), (1e9 + 20, 3580.0), (1e9 + 3600, 0.0)),
        *((1e9 + 3605, 5.0), (1e9 + 3000, 600.0 + 10.0), (1e9 - 86_400, 0.0)),
    ):
        now[0] = at
        assert ledger.begin_training(bytes(32)) == waits, at
    assert len(ledger.rows()) == 4


def test_two_clients_at_once_spend_no_more_than_one_after_the_other(tmp_path: Path) -> None:
    path, budget = tmp_path / "own.db", cost(8) * 1.0001
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SPENDER, str(path), str(budget), str(run)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for run in (1, 2)
    ]
    said = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(words[-1] == "refused" for words in said)
    assert sum(len(words) - 1 for words in said) == 8
    assert len(BudgetLedger(path).facts()) == 8


def pinned_by(**keys: Any) -> Pinned:
    plan = make_plan("plain", **keys)
    return Pinned.of(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))


def worker_of(pinned: Pinned, ledger: BudgetLedger) -> ClientWorker:
    """The worker of a client in a run, with nobody around it."""
    seed, machine = UnsafeSeed(1), cast(Member, SimpleNamespace(pinned=pinned))
    site = Site("client-00", Walker(0), Identity.generate(), seed, {}, Path(), ledger=ledger)
    return ClientWorker(site, machine, MemorySpool())


def release(worker: ClientWorker, *rows: UpdateReleased) -> None:
    drafts: Any = [SimpleNamespace(row=each, aim=None) for each in rows]
    assert worker._release(drafts) == (drafts, {})


def test_a_worker_refuses_what_its_ledger_does_not_afford(tmp_path: Path) -> None:
    pinned, ledger = pinned_by(**PRIVATE), BudgetLedger(tmp_path / "own.db", 1e-9)
    with pytest.raises(PlanRefused, match="nothing more is sealed"):
        release(worker_of(pinned, ledger), row(pinned.run.id, spent(0)))
    assert ledger.facts() == []
    pinned = pinned_by()
    update = UpdateReleased(pinned.run.id, "c0", "all", 0, 0, b"", b"")
    with pytest.raises(BudgetSpent, match="trains without privacy"):
        release(worker_of(pinned, ledger), update)


def test_the_plans_budget_holds_by_the_ledger_alone(tmp_path: Path) -> None:
    """A client that lost its state still has the ledger."""
    privacy = PRIVATE["privacy"] | {"budget": cost(2)}
    pinned = pinned_by(**PRIVATE | {"privacy": privacy})
    worker = worker_of(pinned, BudgetLedger(tmp_path / "own.db"))
    own = [row(pinned.run.id, spent(version)) for version in (0, 1)]
    others = [row(TWO, spent(2)), row(pinned.run.id, dataclasses.replace(spent(2), party="b"))]
    release(worker, *own[:1], *others)
    tasks = [Contribute((), (), (Aim("all", version, 0),)) for version in range(3)]
    assert worker._explain_excess(tasks[1]) == ""
    release(worker, own[1])
    assert worker._explain_excess(tasks[1]) == "", "it is on record"
    reason = f"epsilon to {cost(3):.2f}, the budget is {cost(2):g} (one record added or removed)"
    wanted = f"another version would bring {reason}: this client stops"
    assert worker._explain_excess(tasks[2]) == wanted
    poor = worker_of(pinned, BudgetLedger(tmp_path / "poor.db", cost(1) * 1.0001))
    release(poor, own[0])
    assert "the budget is 1.9" in poor._explain_excess(tasks[1]), "of its own"


PRIVATE: dict[str, Any] = {
    "privacy": {
        "noise_multiplier": 1.1,
        "sample_rate": 0.05,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
        "budget": 8.0,
    },
    "training": {"local_steps": 20},
}


def test_it_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = BudgetLedger(path)
    charge(ledger, ONE, spent(0))
    charge(ledger, TWO, spent(0))
    first, second, total = said(app, "budget", "show", path).splitlines()
    assert first == f"run {ONE.hex()[:16]}  1 updates  epsilon {cost(1):.3f}"
    assert second == f"run {TWO.hex()[:16]}  1 updates  epsilon {cost(1):.3f}"
    assert total == (
        f"together  epsilon {cost(2):.3f} at delta 1e-05, of one record, added or removed or "
        "replaced by nothing as the plan of each run says"
    )
    clients = tmp_path / "clients.db"
    charge(BudgetLedger(clients), ONE, Release("client-00", "all", 0, 1.0, 2.0, 50.0, 1, 0.0))
    assert said(app, "budget", "show", clients).endswith(
        ", of one client's updates replaced by zeros\n"
    )
    with pytest.raises(ConfigError, match="no ledger"):
        said(app, "budget", "show", tmp_path / "none")


def test_a_client_whose_budget_is_spent_ends_and_does_not_rest(tmp_path: Path) -> None:
    """After a rest it would be asked, and could not train."""
    ledger = BudgetLedger(tmp_path / "own.db", cost(1) * 1.0001, updates_per_hour=1)
    worker = worker_of(pinned_by(**PRIVATE), ledger)
    release(worker, row(TWO, spent(0)))
    assert ledger.begin_training(TWO) == 0.0
    with pytest.raises(BudgetSpent, match="over all runs"):
        worker.work(Contribute((), (), (Aim("all", 0, 0),)))


def test_a_ledger_that_is_taken_away_is_missed_before_a_training_in_vain(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "own.db", 4.0)
    charge(ledger, ONE, spent(0))
    assert len(ledger.rows()) == 1
    ledger.path.unlink()
    with pytest.raises(DamagedStore, match="missing or empty, and 1 rows were written"):
        ledger.refuse_spent(ONE, [spent(1)])


def test_of_a_folder_its_ledgers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledgers" / "client-00.db"
    charge(BudgetLedger(path), ONE, spent(0))
    with pytest.raises(ConfigError, match=rf"is a folder: name one of its ledgers, such as {path}"):
        said(app, "budget", "show", tmp_path / "run")


# --- updates with no privacy -------------------------------------------------------


def exact(path: Path) -> list[tuple[bytes, int, int]]:
    return [(run.run, run.facts, run.exact) for run in BudgetLedger(path).spent()]


def test_updates_with_no_privacy_are_on_record_before_they_leave(tmp_path: Path) -> None:
    """A repeated update adds none, and metrics of held-out records do not count."""
    path = tmp_path / "own.db"
    ledger = BudgetLedger(path)
    for version in range(3):
        expose(ledger, ONE, [version])
        assert exact(path) == [(ONE, 0, version + 1)]
    before = last_row(path)
    expose(BudgetLedger(path), ONE, range(3))
    assert last_row(path) == before
    expose(ledger, ONE, range(3), group="head")
    expose(ledger, ONE, [0], group=EVALUATION)
    expose(ledger, TWO, [0])
    assert exact(path) == [(ONE, 0, 6), (TWO, 0, 1)]


def test_the_updates_of_many_groups_wait_for_the_disk_once(tmp_path: Path) -> None:
    times = count()
    ledger = BudgetLedger(tmp_path / "own.db", clock=lambda: next(times))

    def rows(version: int) -> list[UpdateReleased]:
        of = (ONE, "a", version, 0, b"its integers", bytes([version]))
        return [UpdateReleased(of[0], of[1], f"table.{n}", *of[2:]) for n in range(40)]

    for version in (0, 0, 1):
        ledger.release(rows(version))
    assert Counter(at for at, _ in ledger.rows()) == {0: 40, 1: 40}


def test_another_kind_of_run_counts_both(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = BudgetLedger(path)
    expose(ledger, ONE, range(3))
    assert said(app, "budget", "show", path).endswith(
        "\ntogether  at most 3 updates with no privacy\n"
    )
    for version in range(2):
        charge(ledger, TWO, spent(version))
    assert exact(path) == [(ONE, 0, 3), (TWO, 2, 0)]
    first, second, total = said(app, "budget", "show", path).splitlines()
    assert first == f"run {ONE.hex()[:16]}  at most 3 updates with no privacy"
    assert second == f"run {TWO.hex()[:16]}  2 updates  epsilon {cost(2):.3f}"
    assert total.startswith(f"together  epsilon {cost(2):.3f} at delta 1e-05, of one record")
    assert total.endswith(" as the plan of each run says, and at most 3 updates with no privacy")


def test_a_budget_says_what_it_does_not_bound(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    expose(BudgetLedger(path), ONE, range(1))
    assert BudgetLedger(path).warning() == ""
    with_one = BudgetLedger(path, cost(3))
    assert with_one.warning() == (
        f"{path} has at most 1 update with no privacy on record, which no epsilon bounds: the "
        f"budget of {cost(3):g} bounds what is spent besides"
    )
    charge(with_one, TWO, spent(0))
    assert with_one.describe_spent(1e-5) == f"{cost(1):.3f} of {cost(3):g} over all runs"
    assert BudgetLedger(path).describe_spent(1e-5) == ""
    assert BudgetLedger(tmp_path / "none.db", 1.0).warning() == ""


def test_where_there_is_a_budget_nothing_leaves_without_privacy(tmp_path: Path) -> None:
    """A budget that was lowered in another run holds here from the next update on."""
    path = tmp_path / "own.db"
    ledger = BudgetLedger(path)
    expose(ledger, ONE, range(18))
    ledger.refuse_unprotected()
    BudgetLedger(path).lower(2.5)
    assert exact(path) == [(ONE, 0, 18)]
    with pytest.raises(
        BudgetSpent, match=r"plan trains without privacy, and .* has a budget of 2.5"
    ):
        ledger.refuse_unprotected()
    with pytest.raises(BudgetSpent):
        expose(ledger, ONE, [17])  # one that is on record


# --- one update for a place --------------------------------------------------------

UPDATES = [
    row(ONE, spent(0)),
    row(ONE, Release("client-00", "all", 0, 1.0, 2.0, 50.0, 1, 0.0)),
    UpdateReleased(ONE, "client-00", "all", 0, 0, b"its integers", b"model"),
    UpdateReleased(ONE, "client-00", EVALUATION, 0, 0, b"its integers", b"model"),
]


@pytest.mark.parametrize("change", [{"update": b"other integers"}, {"model": b"another model"}])
@pytest.mark.parametrize("one", UPDATES, ids=["record", "client", "nothing", "metrics"])
def test_a_place_has_one_update_for_ever(
    one: UpdateReleased, change: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "own.db"
    other = dataclasses.replace(one, **change)  # type: ignore[arg-type]
    assert BudgetLedger(path).release([one]) == [""]
    before = last_row(path)
    for ledger in (BudgetLedger(path), BudgetLedger(path)):
        (objection,) = ledger.release([other])
        assert objection.startswith("another update of version 0 of ")
        assert ledger.release([one, other]) == ["", objection]
    assert last_row(path) == before
    elsewhere = [dataclasses.replace(other, **there) for there in ({"run": TWO}, {"client": "b"})]
    assert BudgetLedger(path).release(elsewhere) == ["", ""]


@pytest.mark.parametrize("one", UPDATES, ids=["record", "client", "nothing", "metrics"])
def test_one_model_is_trained_from_and_judged_under_one_version(
    one: UpdateReleased, tmp_path: Path
) -> None:
    """Local steps share a model; metrics have no steps."""
    ledger = BudgetLedger(tmp_path / "own.db")
    assert ledger.release([one]) == [""]
    later = dataclasses.replace(one, version=1, charge=None, release=None)
    step = dataclasses.replace(later, version=0, step=1)
    same = (
        "this client has judged this model before, for other metrics"
        if one.group == EVALUATION
        else "version 1 of all is the same model as version 0: two sums of updates from one model "
        "would tell their difference; if training has come to rest, it is the result (secureps "
        "export); if updates are smaller than a step of the grid, plan more bits or a smaller range"
    )
    again = BudgetLedger(ledger.path)
    assert (again.explain_repeat(one), again.explain_repeat(later), again.release([later])) == (
        "",
        same,
        [same],
    )
    assert again.explain_repeat(step) == (same if one.group == EVALUATION else "")
    assert again.release([dataclasses.replace(later, model=b"moved")]) == [""]
    assert again.release([dataclasses.replace(later, group="other")]) == [""]


# --- ledgers of before --------------------------------------------------------------

BEFORE = ROOT / "tests" / "golden" / "version-0.2.0"
"""Files that version 0.2.0 wrote, which counted updates of one version (`attempt`)."""


def test_what_an_older_version_counted_stays_spent(tmp_path: Path) -> None:
    for path in BEFORE.glob("*.db*"):
        shutil.copy(path, tmp_path)
    records, clients = (BudgetLedger(tmp_path / f"{n}.db") for n in ("records", "clients"))
    own = [(run.facts, run.exact, run.epsilon) for run in records.spent()]
    assert own == [(4, 0, cost(4)), (0, 3, math.inf), (1, 0, cost(1))]
    assert (records.limit, len(records.rows())) == (6.5, 10)
    assert [(f.version, f.step) for _, f in clients.facts()] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [(run.facts, round(run.epsilon, 6)) for run in clients.spent()] == [(4, 0.139479)]
    other = spent(7)
    for run in (ONE, bytes([3]) * 32):
        (objection,) = records.release([row(run, other)])
        assert objection.startswith("its ledger does not say which updates of this run have left")
    charge(records, bytes([4]) * 32, other)
    assert len(records.rows()) == 11


# --- a budget that is lowered ------------------------------------------------------


def test_a_budget_is_lowered_for_all_who_charge_and_never_raised(tmp_path: Path) -> None:
    path = tmp_path / "client-00.db"
    ledger, other = BudgetLedger(path, cost(4) * 1.0001), BudgetLedger(path)
    charge(ledger, ONE, spent(0))
    assert (ledger.limit, other.limit) == (cost(4) * 1.0001, None)
    ledger.lower(cost(2) * 1.0001)
    assert ledger.limit == other.limit == cost(2) * 1.0001
    for wrong in (cost(2) * 1.0001, cost(3), 0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"never raised here|is a finite epsilon"):
            other.lower(wrong)
    charge(other, TWO, spent(0))
    for each in (ledger, other):
        with pytest.raises(BudgetSpent):
            charge(each, TWO, spent(1))
        with pytest.raises(BudgetSpent):
            each.refuse_spent(TWO, [spent(1)])
    assert len(ledger.facts()) == 2
    assert BudgetLedger(path, 1e-9).limit == 1e-9, "of two limits the smaller one"


def test_a_lowered_budget_is_no_update_and_no_training(tmp_path: Path) -> None:
    ledger = BudgetLedger(tmp_path / "client-00.db", None, 1, lambda: 5000.0)
    ledger.lower(3.0)
    assert (ledger.spent(), ledger.facts()) == ((), [])
    assert ledger.begin_training(ONE) == 0.0, "the hour has room for one"
    assert ledger.begin_training(ONE) > 0.0
