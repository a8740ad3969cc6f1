"""Privacy: where a plan protects persons, one person changes a step by one clip at most."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import private_sum as ps_sum
from secureps.client.private_sum import OuterProducts, PrivateSum, make_records, private_sum
from secureps.client.torch import TorchTrainer, fit_key
from secureps.client.torch_sgd import LocalSgd, Task, number_persons
from secureps.client.trainer import FitConfig, RecordPrivacy
from secureps.errors import ConfigError, ScriptFailed
from tests.client.test_record_gradients import MODELS, example
from tests.client.test_torch import PRIVACY, PRIVATE, mlp, records, same, trainer
from tests.kits.torch_models import CPU, Built, gradients_of, length, moved, sums_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

OWNERS = np.array([2, 0, 1, 2, 2, 0, 2, 3, 2])
"""The persons of nine records: one has a single record, one has five that lie apart."""

FLOAT32 = 1 + 1e-5


@pytest.mark.parametrize("kind", MODELS)
def test_norms_and_sums_are_those_of_each_persons_summed_gradient(kind: str) -> None:
    """Also where a person's records are in several parts; some clipped and some not."""
    model, x, y = example(kind, len(OWNERS))
    gradients = gradients_of(model, x, y, OWNERS)
    norms = [length(each) for each in gradients]
    bound = float(np.mean(norms))
    weights = [min(1.0, bound / (norm + 1e-6)) for norm in norms]
    assert min(weights) < 1 == max(weights)
    for most in (1024, 2):
        sums, found = sums_of(model, x, y, OWNERS, bound, most)
        for name, each in sums.items():
            pairs = zip(weights, gradients, strict=True)
            wanted = torch.stack([weight * own[name] for weight, own in pairs]).sum(dim=0)
            assert torch.allclose(each, wanted, rtol=1e-7, atol=1e-12), name
        assert not found.left_out
    one, _ = sums_of(model, x[OWNERS == 2], y[OWNERS == 2], np.zeros(5, np.int64), 1e9, 2)
    assert length(one) == pytest.approx(norms[2], rel=1e-7)


@pytest.mark.parametrize("kind", ["linear", "convolution", "tied", "attention", "recurrent"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_canary_of_very_many_records_moves_the_sum_by_one_clip(kind: str, scale: float) -> None:
    """All of its records pull one way; or they are so large that they nearly cancel."""
    model, x, y = example(kind, 9, torch.float32)
    many = 300 if kind == "recurrent" else 3000
    canary = x[:1].repeat_interleave(many, dim=0)
    labels = torch.zeros(many, dtype=torch.int64)
    if canary.is_floating_point():
        canary = scale * canary
        labels[1::2] = int(scale > 1)
    with_it = torch.cat([x, canary]), torch.cat([y, labels])
    owners = np.concatenate([OWNERS, np.full(many, 4)])
    for most in (1024, 7):
        without, _ = sums_of(model, x, y, OWNERS, 0.05, most)
        sums, found = sums_of(model, *with_it, owners, 0.05, most)
        change = length({name: sums[name] - without[name] for name in sums})
        assert change <= 0.05 * FLOAT32 + 1e-6
        assert scale > 1 or change > 0.045, "it is clipped, and not left out"
        assert found.left_out == 0 or scale > 1


def test_records_that_cancel_leave_what_was_measured() -> None:
    """By a Gram matrix of float32 this person would be taken for shorter, and add too much."""
    torch.manual_seed(1)
    layer = nn.Linear(40, 2, bias=False)
    nn.init.zeros_(layer.weight)
    x = 1e5 * torch.randn(2, 40)
    x[1] = x[0] + torch.randn(40)  # of the other class: 0.5 of each is left, but for the difference
    y = torch.tensor([0, 1])
    exact = 0.5 * float((x[1] - x[0]).double().norm()) * 2**0.5
    made = make_records(x, y)
    gradients = private_sum(layer, functional.cross_entropy, made, 1.0).gradients(x, y)[1]
    factors = gradients[layer.weight]
    assert isinstance(factors, OuterProducts)
    gram = ((factors.left @ factors.left.T) * (factors.right @ factors.right.T)).sum()
    assert not abs(float(gram.clamp(min=0).sqrt()) - exact) < exact
    sums, _ = sums_of(layer, x, y, np.zeros(2, np.int64), 1.0)
    assert 0.99 < length(sums) <= FLOAT32


# --- records that cannot be used ------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, "label"])
def test_a_bad_record_takes_nothing_from_its_person_and_from_nobody_else(
    bad: Any, alone: bool
) -> None:
    """Bit for bit: the sum is that of the same persons without this record."""
    model, x, y = example("linear", len(OWNERS), torch.float32)
    for at in (3, 7):  # one of five records, and the only one of a person
        changed, labels = x.clone(), y.clone()
        if bad == "label":
            labels[at] = 99
        else:
            changed[at, 0] = bad
        kept = np.arange(len(OWNERS)) != at
        sums, found = sums_of(model, changed, labels, OWNERS, 0.5, alone=alone)
        without, good = sums_of(model, x[kept], y[kept], OWNERS[kept], 0.5, alone=alone)
        assert (found.left_out, good.left_out) == (1, 0)
        assert length(without) > 0.1
        for name, each in sums.items():
            assert torch.equal(each, without[name])


def test_a_person_whose_sum_is_not_finite_adds_nothing() -> None:
    """Each of the records has a finite gradient, which alone would be clipped."""
    layer = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    x, y = torch.full((6, 1), 1.1e19), torch.ones(6, dtype=torch.int64)
    x[4:] = 1.0
    owners = np.array([0, 0, 0, 0, 1, 2])
    sums, found = sums_of(layer, x, y, owners, 0.5)
    others, _ = sums_of(layer, x[4:], y[4:], np.array([0, 1]), 0.5)
    assert found.left_out == 1, "one sum, of four records"
    assert torch.equal(sums["weight"], others["weight"])
    single, found = sums_of(layer, x[:1], y[:1], np.zeros(1, np.int64), 0.5)
    assert found.left_out == 0
    assert length(single) == pytest.approx(0.5)


# --- steps ----------------------------------------------------------------------------

BY_PERSON = RecordPrivacy(1e-9, 0.3, 1.0, 1e-5, records=1, unit="person")


def test_a_person_moves_a_step_by_one_clip_however_many_records_it_has() -> None:
    torch.manual_seed(1)
    model = nn.Linear(6, 3).train()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    owners = np.sort(np.arange(64) % 8)
    changes = {}
    for first, unit in ((0, "person"), (8, "person"), (0, "record"), (8, "record")):
        model.load_state_dict(state)
        own = owners[first:] - owners[first] if unit == "person" else None
        task = Task(x[first:], y[first:], functional.cross_entropy, CPU, own)
        changes[first, unit] = moved(model, task, BY_PERSON, seed=1)
    apart = {
        unit: float((changes[0, unit] - changes[8, unit]).norm()) for unit in ("person", "record")
    }
    assert 0.2 < apart["person"] <= 0.3 * (1 + 1e-4)
    assert apart["record"] > 0.6, "eight records of one person, each with a clip of its own"


def test_each_step_draws_persons_with_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the plan's rate, whatever a person has."""
    seen: list[NDArray[np.int64]] = []

    def noted(self: PrivateSum, batch: Any, index: NDArray[np.int64], *_: Any) -> None:
        seen.append(index)

    monkeypatch.setattr(ps_sum.PrivateSum, "add", noted)
    owners = np.repeat(np.arange(50), np.arange(50) % 7 + 1)
    np.random.default_rng(1).shuffle(owners)
    x, y = torch.randn(len(owners), 6), torch.zeros(len(owners), dtype=torch.int64)
    task = Task(x, y, functional.cross_entropy, CPU, owners)
    moved(nn.Linear(6, 3), task, replace(BY_PERSON, sample_rate=0.2), steps=400)
    drawn = np.zeros(50)
    for index in seen:
        persons = np.unique(owners[index])
        assert sorted(index) == np.flatnonzero(np.isin(owners, persons)).tolist()
        assert np.count_nonzero(np.diff(owners[index])) == max(0, len(persons) - 1)
        drawn[persons] += 1
    assert drawn.mean() / 400 == pytest.approx(0.2, abs=0.01)
    assert abs(drawn / 400 - 0.2).max() < 0.1


@pytest.mark.parametrize("records", [None, 16])
def test_a_step_is_divided_by_the_expected_number_of_persons(records: int | None) -> None:
    """The public one; under zero-out, where it is public itself, the true one: 8."""
    model = nn.Linear(6, 3)
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    task = Task(x, y, functional.cross_entropy, CPU, np.sort(np.arange(64) % 8))
    state = {name: each.clone() for name, each in model.state_dict().items()}
    lengths = []
    for each in (1, records):
        model.load_state_dict(state)
        lengths.append(float(moved(model, task, replace(BY_PERSON, records=each)).norm()))
    assert lengths[0] / lengths[1] == pytest.approx(records or 8, rel=1e-3)


# --- ids ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b"],
        np.array(["b", "a", "b"], object),
        np.array([7, -3, 7], np.int16),
        np.array([7, 3, 7], object),
        [np.int64(7), 3, 7],
        np.array([2**64 - 1, 0, 2**64 - 1], np.uint64),
        torch.tensor([5, 4, 5]),
        (5, 4, 5),
    ],
)
def test_ids_are_integers_or_texts(ids: Any) -> None:
    assert number_persons(ids, 3).tolist() == [1, 0, 1]
    assert number_persons(ids, 3).dtype == np.int64


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (np.array([1.0, np.nan, 2.0]), "float64"),
        (["a", None, "b"], "object"),
        (["a", math.nan, "b"], "object"),
        (["1", 1, "b"], "object"),
        ([[1], [2, 3], [4]], "object"),
        ([2**70, 1, 2], "object"),
        ([True, 1, 2], "object"),
        (np.array(["a", np.nan, "b"], object), "object"),
        (np.array([True, False, True]), "bool"),
        ([1, 2], r"shape \(2,\)"),
        (np.zeros((3, 1), np.int64), r"shape \(3, 1\)"),
        (4, r"shape \(\)"),
        (["a", "", "b"], "record 1 has no person"),
        ([1, -1, -1], "record 1 has no person .*nor have 1 others"),
        (np.array(["2020-01-01"] * 3, "datetime64[D]"), "datetime64"),
        (np.array([b"a", b"b", b"c"]), "S1"),
    ],
)
def test_records_without_a_person_are_refused(ids: Any, told: str) -> None:
    with pytest.raises(ScriptFailed, match=f"^persons: .*{told}"):
        number_persons(ids, 3)
    with pytest.raises(ScriptFailed, match=r"^persons: "):
        TorchTrainer(mlp, records(3), records(3), device="cpu", persons=ids)


# --- a trainer ------------------------------------------------------------------------

PERSONS = replace(PRIVATE, privacy=replace(PRIVACY, unit="person", records=8))


def test_a_trainer_that_knows_no_persons_is_refused_in_one_line() -> None:
    own = trainer()
    with pytest.raises(ScriptFailed, match=r"give TorchTrainer persons=, the person of each"):
        own.fit(own.parameters(1), PERSONS)
    told = trainer(persons=[f"p{at // 5}" for at in range(40)])
    assert (own.persons(), told.persons(), told.examples()) == (0, 8, 40)
    result = told.fit(told.parameters(1), PERSONS)
    assert (result.examples, result.metrics, result.steps) == (40, {}, 5)


def test_the_same_persons_give_the_same_bits_and_others_other_noise() -> None:
    """Else who groups the records otherwise, and repeats a version, would subtract the noise."""
    ids = np.arange(40) // 5
    cases: list[tuple[ArrayLike | None, FitConfig]] = [
        (ids, PERSONS),
        ([f"{7 - each}" for each in ids], PERSONS),
        (ids[::-1], PERSONS),
        (ids[::-1].copy(), PERSONS),
        (ids, replace(PRIVATE, privacy=replace(PRIVACY, records=8))),
    ]
    start = trainer().parameters(1)
    fits = [trainer(persons=each).fit(start, config).parameters for each, config in cases]
    for at, other in ((0, 1), (0, 4), (1, 4)):
        assert not same(fits[at], fits[other])
    assert same(fits[2], fits[3])
    made = {trainer(persons=each)._train.digest for each in (None, ids, ids[::-1])}
    assert len(made) == 3
    units = (PERSONS, replace(PERSONS, privacy=replace(PRIVACY, records=8)))
    keys = [fit_key(start, each, LocalSgd.of(each.settings, PRIVACY), b"") for each in units]
    assert keys[0] != keys[1]


def test_a_person_adds_no_more_than_the_bound_where_forward_leaves_autocast_on() -> None:
    """Summed in bfloat16 it would add up to 2^-9 more."""

    def forward(own: Any, x: Tensor) -> Any:
        torch.set_autocast_enabled("cpu", True)
        return own.layer(x * own.scale).float()

    model = Built(forward, layer=nn.Linear(40, 3), scale=nn.Parameter(torch.randn(40)))
    x, y = torch.randn(24, 40), torch.randint(0, 3, (24,))
    try:
        for person in range(8):
            own = slice(3 * person, 3 * person + 3)
            sums, _ = sums_of(model, x[own], y[own], np.zeros(3, np.int64), 0.01)
            assert all(each.dtype is torch.float32 for each in sums.values())
            assert length(sums) <= 0.01 * (1 + 1e-6)
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_a_plan_for_records_takes_no_notice_of_persons_but_for_its_noise() -> None:
    quiet = replace(PRIVATE, privacy=replace(PRIVACY, noise_multiplier=1e-9, sample_rate=1))

    def trained(ids: ArrayLike | None) -> Any:
        own = trainer(lambda: nn.Linear(6, 3), persons=ids)
        return own.fit(own.parameters(1), quiet).parameters

    plain, told = trained(None), trained(np.arange(40) // 5)
    for name, each in plain.items():
        np.testing.assert_allclose(each, told[name], atol=1e-6)


def test_there_is_no_third_unit() -> None:
    with pytest.raises(ConfigError, match="unit record or person"):
        RecordPrivacy(1.0, 1.0, 0.5, 1e-5, unit="client")  # type: ignore[arg-type]
