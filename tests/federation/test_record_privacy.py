"""Privacy: record-level updates carry the noise that their ledgers and `check` say."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from secureps.client.script import Script
from secureps.client.sealing import OutboxSealer
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import FitConfig
from secureps.client.update import Integers
from secureps.config.plan import PlanSection, RecordPrivacySection
from secureps.config.sections import parse
from secureps.crypto.sampling import SecretSeed, UnsafeSeed
from secureps.errors import ScriptFailed
from secureps.messages.charge import Charge
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.member_records import Sealed
from secureps.messages.submission import Receipt
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan, load_plan, most_counted
from secureps.policy.spending import total_epsilon
from secureps.privacy.ledger import PersonCharge
from secureps.roles.pinned_run import Pinned
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.scenario.datasets import digits
from secureps.store.budget import epsilon_of
from secureps.store.journal import MemoryJournal
from tests.kits.cheats import journalled
from tests.kits.federations import OF_RECORDS, Walker, small_federation, small_plan
from tests.kits.nursery import ROOT
from tests.kits.privacy_kit import group, private_plan
from tests.kits.sealed_blocks import looked_at

CLIENTS = 2
NOISE = 20.0
"""So much that gradients are a hundredth of it."""


def demo(adjacency: str, unit: str = "record") -> Plan:
    """The demo's plan, two holders and one version of it, with more noise and a lower rate."""
    section = load_plan(ROOT / "policies" / "digits.toml").section.model_dump()
    section |= {"versions": 1, "evaluation": None, "cipher": {"name": "plain", "capacity": 8}}
    section["group"][0]["rule"] |= {"quorum": CLIENTS, "start": CLIENTS, "minimum": 2}
    section["privacy"] |= {"noise_multiplier": NOISE, "adjacency": adjacency, "unit": unit}
    if adjacency == "zero-out":
        del section["privacy"]["records"]
        section["group"][0]["most_examples"] = 1000
    section["training"] |= {"lr": 0.25, "local_steps": 4}
    return Plan(parse(PlanSection, section, "the demo"))


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out"])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_what_the_demo_seals_has_the_noise_that_is_charged(
    unit: str, adjacency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And persons count where records did: in the expected batch, in receipts and in ledgers."""
    sealed: list[tuple[NDArray[np.int64], float, Charge]] = []
    published: list[int] = []
    seal = OutboxSealer.seal

    def recorded(
        self: OutboxSealer,
        pinned: Pinned,
        receipt: Receipt,
        blocks: Iterable[tuple[int, Integers]],
    ) -> Sealed:
        layout = pinned.layout.group(receipt.id.group)
        made, again = looked_at(layout, blocks)
        update = seal(self, pinned, receipt, again)
        assert type(update.receipt.fact) is Charge
        published.append(receipt.examples)
        share = receipt.examples / most_counted(pinned.plan.group(receipt.id.group))
        sealed.append((made.astype(np.int64), share, update.receipt.fact))
        return update

    monkeypatch.setattr(OutboxSealer, "seal", recorded)
    plan, script = demo(adjacency, unit), Script(ROOT / "clients" / "digits_torch.py")
    settings = {"alpha": 1.0, "seed": 7, "partitions": CLIENTS, "each": 5}
    records: list[int] = []
    trainers = {}
    for number in range(CLIENTS):
        trainer = script.make({**settings, "partition": number})
        trainers[f"client-0{number}"] = trainer
    for trainer in trainers.values():
        config = FitConfig({"all": 0}, 1, {"lr": 0.1, "local_steps": 1})
        held = trainer.fit(trainer.parameters(1), config).examples
        records.append(-(-held // 5) if unit == "person" else held)
    simulation = Simulation(plan, Cast(trainers, SecretSeed(bytes(range(32)))), tmp_path)
    simulation.run()
    assert len(sealed) == CLIENTS
    if adjacency == "zero-out":
        assert sorted(published) == sorted(records)
    for name in trainers:
        ((_, fact),) = simulation._ledgers[name].facts()
        assert type(fact) is (PersonCharge if unit == "person" else Charge)
    lr, rate = 0.25, 0.5
    privacy = plan.section.privacy
    assert isinstance(privacy, RecordPrivacySection)
    grid = plan.grid("all", len(sealed[0][0]))
    for (integers, share, charge), count in zip(sealed, records, strict=True):
        assert (charge.noise_multiplier, charge.sample_rate, charge.steps) == (NOISE, rate, 4)
        public = privacy.records or count  # of the demo's plan about as many; else the exact number
        update = (integers - grid.levels // 2) * grid.step / share
        a_step = (
            lr * charge.noise_multiplier * privacy.max_grad_norm / (charge.sample_rate * public)
        )
        assert len(update) > 9_000
        found = float(update.std()) / (a_step * math.sqrt(charge.steps))
        assert found == pytest.approx(1.0, abs=0.05), "noise of the ledger's, neither less nor more"


@pytest.mark.parametrize("value", [3e38, 1e19, math.nan, math.inf])
def test_records_that_cannot_be_used_show_nowhere_outside_their_client(
    value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client goes on, and everybody else has the journal of a run without such records."""
    told = []
    for bad in (False, True):
        caplog.clear()
        trainers = {}
        for number in range(CLIENTS):
            draws = np.random.default_rng(number)
            x, y = draws.normal(size=(60, 12)).astype(np.float32), draws.integers(0, 3, 60)
            held_out = x[:9].copy(), y[:9].copy()
            if bad and number == 0:
                x[7:10, 2], y[10:20] = value, 99  # of ten, one at least is drawn
            trainers[f"client-0{number}"] = TorchTrainer(linear, (x, y), held_out, device="cpu")
        cast = Cast(trainers, SecretSeed(bytes(32)))
        journals = defaultdict[str, MemoryJournal](MemoryJournal)
        conditions = Conditions(journal=journals.__getitem__)
        simulation = Simulation(demo("add-or-remove"), cast, tmp_path / f"{bad}", conditions)
        simulation.run()
        assert ("counted as nothing" in caplog.text) is bad
        assert all(np.isfinite(each).all() for each in simulation.model().values())
        told.append(
            {name: [type(record) for _, record in own.rows] for name, own in journals.items()}
        )
    assert told[0] == told[1]


def linear() -> nn.Module:
    return nn.Linear(12, 3)


@pytest.mark.parametrize("persons", [None, 0])
def test_a_client_that_knows_no_persons_is_refused_by_a_plan_that_protects_them(
    persons: int | None, tmp_path: Path
) -> None:
    """Its trainer would take steps that protect records, and its charges would speak of persons."""
    plan = small_plan(**OF_RECORDS | {"privacy": OF_RECORDS["privacy"] | {"unit": "person"}})
    simulation = small_federation(plan, tmp_path, kind=Walker if persons is None else Nobody)
    told = "does not say whose records it has: give TorchTrainer persons=, the person of each"
    with pytest.raises(ScriptFailed, match=told):
        simulation.run()
    assert not simulation.coordinator.federation.ledger.facts
    trainers = simulation._cast.trainers.values()
    assert [own.fits for own in trainers if isinstance(own, Walker)] == [0] * 6


class Nobody(Walker):
    def persons(self) -> int:
        return 0


class Somebody(Walker):
    """Of seven persons, which are other than its number of records."""

    def persons(self) -> int:
        return 7


@pytest.mark.parametrize(("adjacency", "counted"), [("zero-out", 7), ("add-or-remove", 10)])
def test_ledgers_of_a_run_count_persons_and_nobody_is_told_how_many_records_they_have(
    adjacency: str, counted: int, tmp_path: Path
) -> None:
    """Under zero-out the true number of persons is public, otherwise the plan's number."""
    privacy = OF_RECORDS["privacy"] | {"unit": "person", "adjacency": adjacency}
    if adjacency == "zero-out":
        del privacy["records"]
    plan = small_plan(**OF_RECORDS | {"privacy": privacy})
    simulation = small_federation(plan, tmp_path, kind=Somebody)
    simulation.run()
    ledger = simulation.coordinator.federation.ledger
    assert {type(fact) for fact in ledger.facts} == {Charge}
    for name, own in simulation._ledgers.items():
        facts = [fact for _, fact in own.facts()]
        assert [type(fact) for fact in facts] == [PersonCharge] * plan.section.versions
        assert epsilon_of(facts, 1e-5) == total_epsilon(plan, ledger.tally(name)) > 0
        (run,) = own.spent()
        assert run.facts == plan.section.versions
    members = [m for each in journalled(simulation, CohortClosed) for m in each.cohort.members]
    assert {member.examples for member in members} == {counted}


COUNTS = (30, 60, 90, 200, 400)
PRIVACY = {
    "noise_multiplier": 4.0,
    "max_grad_norm": 0.1,
    "sample_rate": 0.1,
    "delta": 1e-5,
    "budget": 100.0,
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize(
    "privacy", [{"adjacency": "zero-out"}, {"records": 120}], ids=["zero-out", "add-or-remove"]
)
@pytest.mark.parametrize("codec", [(), [{"name": "support", "one_in": 4}]], ids=["all", "a part"])
def test_as_measured_in_a_run(
    privacy: dict[str, Any], codec: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    """Five clients, one version: noise is nearly all of what it changes, of 2,410 values."""
    body = {
        "name": "noisy",
        "versions": 1,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}, "codec": codec}],
        "privacy": PRIVACY | privacy,
        "training": {"lr": 0.5, "local_steps": 4},
    }
    plan = Plan(parse(PlanSection, body, "test"))
    data, start, trainers = digits(1), 0, {}
    for number, size in enumerate(COUNTS):
        part = slice(start, start := start + size)
        own = (data.x[part], data.y[part])
        trainers[f"client-{number:02d}"] = TorchTrainer(model, own, own, device="cpu")
    seed = UnsafeSeed(5)
    simulation = Simulation(plan, Cast(trainers, seed), tmp_path)
    simulation.run()
    begun = trainers["client-00"].parameters(seed.derive("initial").integer(63))
    changed = np.concatenate(
        [(simulation.model()[name] - begun[name]).ravel() for name in sorted(begun)]
    )
    price = explain(plan, {"all": changed.size}, assume_service(plan, 5), COUNTS).price
    assert price is not None
    sent = changed[changed != 0]
    assert float(np.std(sent)) == pytest.approx(price.deviation["all"], rel=0.1)


def test_noise_counts_for_values_that_are_not_sent_unless_they_are_sent_later() -> None:
    part: dict[str, Any] = {"codec": [{"name": "support", "one_in": 4}]}
    kinds: tuple[dict[str, Any], ...] = ({}, part, part | {"feedback": True})
    plans = [private_plan("local", "plain", group=[group(adaptive=None, **kind)]) for kind in kinds]
    whole, thin, later = (plan.deviation("all", 55) for plan in plans)
    assert thin == 4 * whole > 0
    assert later == whole
