"""Privacy: no record changes what another adds, and an unusable one adds nothing."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.private_sum import (
    IN_RANGE,
    BatchedGradients,
    IndicesChecked,
    PrivateSum,
    SingleGradients,
    make_records,
    private_sum,
)
from secureps.client.torch import TorchTrainer
from secureps.client.torch_sgd import Task
from secureps.client.trainer import RecordPrivacy
from secureps.errors import PlanRefused
from tests.client.test_record_gradients import MODELS, WORDS, example, narrow
from tests.client.test_torch import PRIVATE
from tests.kits.torch_models import CPU, Built, moved, one_by_one, own_loss, sums_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

WAYS = ("together", "alone")


def summed(
    model: nn.Module, x: Tensor, y: Tensor, way: str, loss: Any = functional.cross_entropy
) -> tuple[Tensor, PrivateSum]:
    """The private sum of these records, flat, by a way of passing records."""
    sums, found = sums_of(model, x, y, loss=loss, alone=way == "alone")
    return torch.cat([each.flatten() for each in sums.values()]), found


# --- records that cannot be used ------------------------------------------------------

VALUES = {"3e38": 3e38, "1e19": 1e19, "nan": torch.nan, "inf": torch.inf}

BAD, OTHERS = 2, [0, 1, 3, 4, 5]


def refuted(kind: str, bad: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, and six records, one of which has something in it that has no business there."""
    model, x, y = example(kind, 6, torch.float32)
    if bad == "label":
        y[BAD] = 99
    elif kind in WORDS:
        x[BAD] = 99
    else:
        x[BAD].view(-1)[0] = VALUES[bad]
    return model, x, y


TRIED = [
    (kind, bad, way)
    for kind in MODELS
    for bad in (("nan", "label") if kind in WORDS else (*VALUES, "label"))
    for way in (WAYS if kind in ("linear", "convolution", "attention") else ("together",))
]
"""One by one, records pass through all layers alike; of words nothing but an index is wrong."""
COARSE = [("linear of places", bad, way) for bad in VALUES for way in WAYS]
"""In bfloat16."""


@pytest.mark.parametrize(
    ("kind", "bad", "way", "coarse"),
    [*((*each, False) for each in TRIED), *((*each, True) for each in COARSE)],
)
def test_a_record_without_a_finite_gradient_leaves_the_sum_of_the_others(
    kind: str, bad: str, way: str, coarse: bool
) -> None:
    """Bit for bit; one whose gradient is finite all the same is clipped, as every other is."""
    model, x, y = refuted(kind, bad)
    model = narrow(model) if coarse else model
    with_it, found = summed(model, x, y, way)
    without, all_good = summed(model, x[OTHERS], y[OTHERS], way)
    assert all_good.left_out == 0
    assert float(without.norm()) > 0.1
    if found.left_out:
        assert found.left_out == 1
        assert torch.equal(with_it, without)
    else:
        assert bad not in ("nan", "label"), "this one has no gradient that can be clipped"
        assert float((with_it - without).norm()) <= 0.5 * (1 + 1e-3)


def probabilities() -> nn.Module:
    """What a loss of probabilities takes, which fails for one that is NaN."""
    return Built(
        lambda model, x: model.own(model.dropped(x)).sigmoid().squeeze(1),
        own=nn.Linear(6, 1),
        dropped=nn.Dropout(0.4),
    )


def test_a_gradient_that_is_not_finite_is_left_out_where_the_loss_is_finite() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(6, 3)
    nn.init.zeros_(layer.bias)
    model = Built(lambda model, x: model.own(x).abs().sqrt(), own=layer)
    x, y = torch.randn(6, 6), torch.randint(0, 3, (6,))
    x[BAD] = 0
    for way in WAYS:
        with_it, found = summed(model, x, y, way)
        assert found.left_out == 1
        assert torch.equal(with_it, summed(model, x[OTHERS], y[OTHERS], way)[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_is_not_finite_leaves_its_record_out_though_its_gradient_is(way: str) -> None:
    def endless(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return (losses + torch.where(targets == 2, torch.inf, 0.0)).mean()

    torch.manual_seed(1)
    model, x, y = nn.Linear(6, 3), torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    found, left = summed(model, x, y, way, endless)
    assert left.left_out == 1
    good = [0, 1, 3]
    assert torch.equal(found, summed(model, x[good], y[good], way, endless)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", [2.0, torch.nan])
def test_a_loss_that_fails_for_a_record_leaves_it_out(target: float, way: str) -> None:
    """And draws the same for the others: a model that drops values has the same bits too."""
    torch.manual_seed(1)
    model, x, y = probabilities(), torch.randn(6, 6), torch.rand(6)
    y[BAD], x[4] = target, torch.nan
    loss = functional.binary_cross_entropy
    with_it, found = summed(model, x, y, way, loss)
    assert found.left_out == 2
    good = [0, 1, 3, 5]
    assert torch.equal(with_it, summed(model, x[good], y[good], way, loss)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "loss", "bad"),
    [
        ("linear", functional.cross_entropy, "label"),
        ("linear", own_loss, "label"),
        ("linear", nn.CrossEntropyLoss(), "label"),
        ("embedding", functional.cross_entropy, "nan"),
        ("tied", own_loss, "nan"),
    ],
)
def test_an_index_out_of_range_never_comes_to_a_device_that_would_end_the_process(
    kind: str, loss: Any, bad: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, whose kernels are played by those of the CPU: they see no such index."""
    model, x, y = refuted(kind, bad)
    wanted, _ = summed(model, x, y, way, loss)
    refusals = []

    def noted(check: Callable[..., Tensor], **given: Any) -> Tensor:
        found = check(**given)
        refusals.append(not bool(found.all()))
        return found

    checks = {own: partial(noted, check) for own, check in IN_RANGE.items()}
    monkeypatch.setattr("secureps.client.private_sum.IN_RANGE", checks)
    monkeypatch.setattr("secureps.client.private_sum.RAISES", ())
    found, left = summed(model, x, y, way, loss)
    assert left.left_out == 1
    assert any(refusals)
    assert torch.equal(found, wanted)
    with IndicesChecked():
        for wrong in (-1, 3):
            with pytest.raises(IndexError, match=": a value is out of range"):
                loss(torch.zeros(1, 3), torch.tensor([wrong]))


def test_no_index_of_bags_and_margins_out_of_range_comes_to_such_a_device() -> None:
    scores, bags = torch.zeros(2, 3), nn.EmbeddingBag(3, 2)
    with IndicesChecked():
        bags(torch.tensor([[0, 2]]))
        functional.multi_margin_loss(scores, torch.tensor([0, 2]))
        functional.multilabel_margin_loss(scores, torch.tensor([[0, 2, -1], [1, -1, -1]]))
        for wrong in (-1, 3):
            with pytest.raises(IndexError, match="embedding_bag: a value is out of range"):
                bags(torch.tensor([[0, wrong]]))
            with pytest.raises(IndexError, match="multi_margin_loss: a value is out of range"):
                functional.multi_margin_loss(scores, torch.tensor([0, wrong]))
        with pytest.raises(IndexError, match="multilabel_margin_loss: a value is out of range"):
            functional.multilabel_margin_loss(scores, torch.tensor([[0, 3, -1], [1, -1, -1]]))


def test_probabilities_out_of_range_never_come_to_such_a_device_either() -> None:
    with IndicesChecked():
        for wrong in (torch.nan, 1.5):
            with pytest.raises(IndexError, match="binary_cross_entropy"):
                functional.binary_cross_entropy(torch.tensor([wrong]), torch.zeros(1))


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_a_loss_ignores_adds_nothing_and_is_no_fault(way: str) -> None:
    model, x, y = example("linear", 6, torch.float32)
    y[BAD] = -100
    with_it, found = summed(model, x, y, way)
    assert found.left_out == 0
    assert torch.allclose(with_it, summed(model, x[OTHERS], y[OTHERS], way)[0], atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_of_nothing_but_such_records_sends_noise(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on, and how many records counted as nothing is said in its own log alone."""
    if way == "alone":
        one_by_one(monkeypatch)
    x, y = np.full((40, 6), np.nan, np.float32), np.zeros(40, np.int64)
    holder = TorchTrainer(lambda: nn.Linear(6, 3), (x, y), (x, y), device="cpu")
    start = holder.parameters(1)
    config = replace(PRIVATE, settings={"lr": 0.1, "local_steps": 3})
    with caplog.at_level(logging.WARNING, "secureps"):
        result = holder.fit(start, config)
    for name, each in result.parameters.items():
        assert np.isfinite(each).all()
        assert not np.array_equal(each, start[name])
    assert (result.steps, result.metrics) == (3, {})
    assert "counted as nothing" in caplog.text


def noting(seen: list[float], model: Any, x: Tensor) -> Any:
    if not torch._C._functorch.is_batchedtensor(x):
        seen.append(float(x.detach().max()))
    return model.own(x)


def test_what_is_tried_before_the_first_step_sees_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whether a trial fails would follow from a record that was not even drawn."""
    one_by_one(monkeypatch)
    for rate, largest in ((1e-9, 1.0), (1.0, 7.0)):
        seen: list[float] = []
        module = Built(partial(noting, seen), own=nn.Linear(6, 3))
        task = Task(torch.full((9, 6), 7.0), torch.zeros(9).long(), functional.cross_entropy, CPU)
        step(module, task, rate)
        assert largest - 1 < max(seen) <= largest


# --- models that mix records ----------------------------------------------------------


def step(module: nn.Module, task: Task, rate: float = 1.0, bound: float = 0.3) -> Tensor:
    """How far one private step moves a model, with next to no noise."""
    return moved(module, task, RecordPrivacy(1e-9, bound, rate, 1e-5, records=1), seed=1)


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return Built(
        lambda own, x: own.second(function(own.first(x))),
        first=nn.Linear(6, 6),
        second=nn.Linear(6, 3),
    )


def by_order() -> nn.Module:
    """Its records come out where they were, and go through its layer in another order."""

    def forward(own: Any, x: Tensor) -> Any:
        order = x[:, 0].argsort()
        return own.second(own.first(x[order])[order.argsort()])

    return Built(forward, first=nn.Linear(6, 6), second=nn.Linear(6, 3))


def wrong_axis() -> nn.Module:
    """Attention that takes records for places, as if batch_first were forgotten."""

    def forward(model: Any, x: Tensor) -> Any:
        seen = model.own(x.reshape(len(x), 2, 3)).transpose(0, 1)
        seen = functional.scaled_dot_product_attention(seen, seen, seen).transpose(0, 1)
        return model.head(seen.mean(dim=1))

    return Built(forward, own=nn.Linear(3, 3), head=nn.Linear(3, 3))


def experts(loops: bool) -> nn.Module:
    """A mixture of experts, each of which takes the first eight records that choose it."""

    def forward(own: Any, x: Tensor) -> Any:
        scores = own.gate(x).softmax(dim=1)
        chosen = (scores.argmax(dim=1)[:, None] == torch.arange(2)).long()
        taken = chosen * (chosen.cumsum(dim=0) <= 8) * 9 * scores
        if loops:  # over the values, which torch.func.vmap cannot
            assert taken.detach().sum().item() > -1
        made = [taken[:, at, None] * expert(x) for at, expert in enumerate(own.experts)]
        return made[0] + made[1]

    return Built(
        forward,
        gate=nn.Linear(6, 2),
        experts=nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)]),
    )


def normed(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True) if len(x) > 1 else x


def many(x: Tensor) -> Tensor:
    """Statistics of the batch from 8 records on."""
    return 30 * (x - x.mean(dim=0)) if len(x) >= 8 else x


MIXING: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: between(normed),
    "mean": lambda: between(lambda x: x - x.mean(dim=0)),
    "softmax": lambda: between(lambda x: x.softmax(dim=0)),
    "running maximum": lambda: between(lambda x: x.cummax(dim=0)[0]),
    "maximum without a gradient": lambda: between(lambda x: x - x.detach().amax(dim=0)),
    "sorted": by_order,
    "wrong axis": wrong_axis,
    "from eight on": lambda: between(many),
    "experts": lambda: experts(loops=False),
    "experts, by values": lambda: experts(loops=True),
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_record_moves_a_step_by_one_clip_whatever_the_model_does_with_a_batch(kind: str) -> None:
    """It replaces nothing, and stands first, where it would take an expert's place."""
    torch.manual_seed(1)
    model = MIXING[kind]().train()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    changes = []
    for first in (0, 1):
        model.load_state_dict(state)
        changes.append(step(model, Task(x[first:], y[first:], functional.cross_entropy, CPU)))
    assert float((changes[0] - changes[1]).norm()) <= 0.3 * (1 + 1e-4)
    model.load_state_dict(state)
    apart = torch.cat([model(each[None]) for each in x])
    mixes = not torch.allclose(model(x), apart, atol=1e-3)
    assert mixes is (kind != "sorted"), "only the layers of that one see others' records"


@pytest.mark.parametrize("loops", [False, True])
def test_who_trains_a_model_that_vmap_cannot_take_is_told(
    loops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_records(torch.zeros(1, 6), torch.zeros(1).long())
    found = private_sum(experts(loops), functional.cross_entropy, made, 1.0)
    assert isinstance(found.gradients, SingleGradients if loops else BatchedGradients)
    assert found.most == (1 if loops else 1024)
    assert ("one record after the other" in caplog.text) is loops


def draws() -> nn.Module:
    body = nn.Sequential(nn.Linear(6, 2), nn.ReLU(inplace=True), nn.Dropout(0.5))
    nn.utils.parametrizations.weight_norm(body[0])
    return Built(lambda own, x: own.head(own.body(x.mul_(2))), body=body, head=nn.Linear(2, 3))


def test_nothing_is_left_of_a_trial() -> None:
    """Neither hooks nor draws nor changes of the records that it is given."""
    model = draws().train()
    made = make_records(torch.zeros(1, 6), torch.zeros(1).long())
    state, kept = torch.get_rng_state(), made[0].clone()
    found = private_sum(model, functional.cross_entropy, made, 1.0)
    assert isinstance(found.gradients, BatchedGradients)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made[0], kept)
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize(
    "function", [lambda x: x.squeeze(), lambda x: x[1:] + x[:1], lambda x: x.reshape(5)]
)
def test_a_model_that_fails_for_one_record_is_told_what_to_do(function: Any) -> None:
    made = make_records(torch.zeros(1, 6), torch.zeros(1).long())
    with pytest.raises(PlanRefused, match=r"squeeze\(1\), not squeeze\(\)"):
        private_sum(between(function), functional.cross_entropy, made, 1.0)


def test_a_record_whose_outputs_have_no_row_adds_nothing_and_ends_no_training() -> None:
    """Else whoever sees the training end would learn of the record."""
    own = nn.Linear(6, 3)
    model = Built(lambda own, x: own.layer(x)[: int(x[0, 0] < 9)], layer=own)
    x, y = torch.rand(4, 6), torch.tensor([0, 1, 2, 0])
    x[BAD, 0] = 10
    found, left = summed(model, x, y, "alone")
    assert left.left_out == 1
    good = [0, 1, 3]
    assert torch.equal(found, summed(model, x[good], y[good], "alone")[0])
