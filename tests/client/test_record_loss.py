"""Each record's loss is of that record alone, whatever the loss does with a batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.record_checks import record_losses, refuse_mixing_loss
from secureps.errors import PlanRefused

WEIGHT = torch.tensor([1.0, 1.0, 20.0])


def example(records: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(records, 3, generator=generator, requires_grad=True)
    return outputs, torch.tensor([2, 0, 1, 0, 1, 0])[:records]


def own_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def masked(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    kept = targets != 2
    return functional.cross_entropy(outputs[kept], targets[kept], reduction=reduction)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, weight=WEIGHT)


def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, ignore_index=1)


def of_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)


def broadcast(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs[:, :1] - targets) ** 2).mean()


def drawing(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(functional.dropout(outputs, 0.0) + torch.rand(1) * 0, targets)


SAFE: dict[str, Any] = {
    "function": functional.cross_entropy,
    "class": nn.CrossEntropyLoss(),
    "class with weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "ignoring class": nn.CrossEntropyLoss(ignore_index=1),
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
    "own": own_cross_entropy,
    "drawing": drawing,
}


@pytest.mark.parametrize("kind", SAFE)
def test_no_record_changes_the_gradient_of_another(kind: str) -> None:
    outputs, targets = example()
    refuse_mixing_loss(SAFE[kind], outputs, targets)
    (found,) = torch.autograd.grad(record_losses(SAFE[kind], outputs, targets).sum(), outputs)
    for at in range(len(targets)):
        own = outputs[at : at + 1].detach().requires_grad_()
        alone = record_losses(SAFE[kind], own, targets[at : at + 1])
        (wanted,) = torch.autograd.grad(alone.sum(), own)
        assert torch.allclose(found[at], wanted[0], atol=1e-7)


@pytest.mark.parametrize("loss", [weighted, ignoring, broadcast])
def test_a_loss_that_divides_by_the_batch_is_refused(loss: Any) -> None:
    with pytest.raises(PlanRefused, match="each record's loss of its own output and target alone"):
        refuse_mixing_loss(loss, *example())


def test_a_loss_that_divides_by_tokens_that_count_is_refused() -> None:
    outputs = torch.randn(2, 5, 3)
    with pytest.raises(PlanRefused, match="is not the mean of its records' losses"):
        refuse_mixing_loss(of_tokens, outputs, torch.tensor([[1, 1, 2, 1, 2], [1, 0, 0, 0, 0]]))


def test_classes_that_are_also_as_many_as_records_are_not_compared_with_all_targets() -> None:
    outputs, targets = torch.randn(3, 3), torch.randn(3)
    with pytest.raises(PlanRefused, match="each record's loss"):
        refuse_mixing_loss(partial(functional.binary_cross_entropy_with_logits), outputs, targets)
    with pytest.raises(PlanRefused, match="each record's loss"):
        refuse_mixing_loss(functional.kl_div, outputs, targets.abs())


def test_a_record_of_which_a_mask_leaves_nothing_has_no_finite_loss_and_alone_so() -> None:
    losses = record_losses(masked, *example())
    assert losses.isfinite().tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(reduction="sum"), partial(functional.mse_loss, reduction="none")]
)
def test_another_reduction_than_a_mean_is_refused(loss: Any) -> None:
    with pytest.raises(PlanRefused, match="has reduction="):
        record_losses(loss, *example())


def test_a_mean_over_the_batch_adds_up_what_a_record_has() -> None:
    outputs, targets = torch.randn(4, 3).log_softmax(1), torch.rand(4, 3)
    losses = nn.KLDivLoss(reduction="batchmean"), partial(functional.kl_div, reduction="batchmean")
    for loss in losses:
        found = record_losses(loss, outputs, targets).sum()
        assert torch.allclose(found, 4 * loss(outputs, targets))


def test_outputs_may_be_several_tensors_with_records_first() -> None:
    outputs, targets = example()

    def both(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs["a"], targets) + outputs["b"].mean()

    found = record_losses(both, {"a": outputs, "b": outputs}, targets).sum()
    assert torch.allclose(found, 6 * both({"a": outputs, "b": outputs}, targets))
    with pytest.raises(PlanRefused, match=r"gives \(\) for 6 records; .* squeeze\(1\)"):
        record_losses(both, {"a": outputs, "b": outputs.mean()}, targets)
    with pytest.raises(PlanRefused, match="gives a str"):
        record_losses(both, "outputs", targets)
