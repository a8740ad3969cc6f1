"""Which runs a holder's key has served, whatever becomes of its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.errors import KitError, PlanRefused, WrongRun
from secureps.messages.orders import Configure
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.run import COORDINATOR
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.ledger import HolderRules
from secureps.roles.pinned_run import check_minimum
from secureps.store.journal import MemoryJournal
from secureps.store.served_runs import ServedJournal, served_runs
from tests.kits.bfv_holder import last_word
from tests.kits.committee_kit import Bench
from tests.kits.roles_kit import make_plan


def pinned(bench: Bench) -> RunPinned:
    return RunPinned(bench.run, bench.placement, bench.addresses)


def test_a_run_that_is_journalled_is_noted_and_nothing_else(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    inner = MemoryJournal()
    journal = ServedJournal(inner, path)
    journal.append(0.0, [Incarnated(1)])
    assert not path.exists()
    assert served_runs(path) == frozenset()
    journal.append(0.0, [Incarnated(2), pinned(bench)])
    assert served_runs(path) == {bench.run.id}
    assert list(journal.replay()) == inner.rows
    journal.close()
    with pytest.raises(Exception, match="closed"):
        inner.append(0.0, [Incarnated(3)])


def test_killed_between_ledger_and_file_it_is_noted_at_the_next_start(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    path.write_text("ab" * 32 + "\n")
    inner = MemoryJournal()
    inner.append(0.0, [pinned(bench)])
    ServedJournal(inner, path)
    assert served_runs(path) == {bench.run.id, bytes([0xAB]) * 32}


def test_with_an_empty_ledger_a_run_that_was_served_before_is_refused(tmp_path: Path) -> None:
    """A coordinator that founds an old run again would have its submissions summed once more."""
    path, bench = tmp_path / "runs", Bench()
    public = bench.kit.public
    order = Configure(1, bench.run, bench.placement, bench.addresses)
    ledger = MemoryJournal()

    def started(rows: MemoryJournal) -> tuple[CommitteeHolder, ServedJournal]:
        journal = ServedJournal(rows, path)
        rules = HolderRules(2, served_runs(path))
        machine = CommitteeHolder(bench.names[0], public.roster, rules)
        for at, record in journal.replay():
            machine.apply(at, record)
        return machine, journal

    machine, journal = started(ledger)
    journal.append(0.0, machine.handle(0.0, COORDINATOR, order).records)
    machine, _ = started(MemoryJournal(ledger.rows))
    machine.handle(0.0, COORDINATOR, order)
    machine, _ = started(MemoryJournal())
    step = machine.handle(0.0, COORDINATOR, order)
    halt = last_word(machine, step)
    assert halt.error is WrongRun
    assert "has served this run, and its ledger is not here" in halt.reason
    assert not machine.configured


def test_a_plan_of_a_lower_threshold_than_its_own_is_refused() -> None:
    """Nor is it served after a restart: what is on record binds no holder that insists on more."""
    bench = Bench()
    public = bench.kit.public
    order = Configure(1, bench.run, bench.placement, bench.addresses)

    def insists(threshold: int) -> CommitteeHolder:
        rules = HolderRules(2, threshold=threshold)
        return CommitteeHolder(bench.names[0], public.roster, rules)

    machine = insists(4)
    step = machine.handle(0.0, COORDINATOR, order)
    halt = last_word(machine, step)
    assert halt.error is PlanRefused
    assert halt.reason.startswith(
        "this holder takes no part in the run: by the plan 3 of 4 key holders open a sum together, "
        "and this party insists on 4"
    )
    assert (step.records, machine.configured) == ([], False)
    step = insists(3).handle(0.0, COORDINATOR, order)
    pin = pinned(bench)
    assert pin in step.records
    with pytest.raises(PlanRefused, match="this party insists on 4"):
        insists(4).apply(0.0, pin)


def test_a_plan_of_a_smaller_cohort_than_its_own_minimum_is_refused() -> None:
    """It would refuse cohorts, and weights, that were made for the plan's minimum."""
    bench = Bench()
    public = bench.kit.public
    order = Configure(1, bench.run, bench.placement, bench.addresses)

    def opens(minimum: int) -> CommitteeHolder:
        rules = HolderRules(minimum)
        return CommitteeHolder(bench.names[0], public.roster, rules)

    machine = opens(3)
    step = machine.handle(0.0, COORDINATOR, order)
    halt = last_word(machine, step)
    assert (halt.error, step.records, machine.configured) == (PlanRefused, [], False)
    assert halt.reason == (
        "this holder takes no part in the run: by the plan 2 members of all may be a cohort, and "
        "this holder opens none of fewer than 3: ask for a plan with a minimum of 3 or more in "
        "each rule, or lower this holder's own minimum"
    )
    assert pinned(bench) in opens(2).handle(0.0, COORDINATOR, order).records
    with pytest.raises(PlanRefused, match="opens none of fewer than 3"):
        opens(3).apply(0.0, pinned(bench))


def test_cohorts_of_metrics_are_no_smaller_than_its_own_minimum_either() -> None:
    """An opened mean of few clients' held-out records tells of each of them."""
    metrics: dict[str, Any] = {"every": 1, "metrics": {"accuracy": 1.0}}
    for least in (2, 3):
        rule = {"name": "sync", "quorum": 3, "minimum": least}
        plan = make_plan("rlwe", {"minimum": 3}, evaluation=metrics | {"rule": rule})
        if least == 3:
            check_minimum(plan, 3)
            continue
        with pytest.raises(PlanRefused, match="2 members of evaluation may be a cohort"):
            check_minimum(plan, 3)


@pytest.mark.parametrize("text", ["xy\n", "ab\n", "é"])
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KitError, match="damaged"):
        served_runs(path)


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="cannot read"):
        served_runs(tmp_path)
    journal = ServedJournal(MemoryJournal(), tmp_path / "nowhere" / "runs")
    with pytest.raises(KitError, match="cannot write"):
        journal.append(0.0, [pinned(Bench())])
