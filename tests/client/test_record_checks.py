"""Privacy: models that let a record past its clip or the noise are refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from secureps.client.private_sum import TensorGuard, record_loss, refuse_mixing_loss, refuse_model
from secureps.errors import PlanRefused
from tests.client.test_private_sum import between, summed
from tests.client.test_torch import PRIVACY, PRIVATE, trainer
from tests.kits.torch_models import Built, one_by_one, own_loss


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trained_weights_in_which_noise_is_lost_are_refused(dtype: torch.dtype) -> None:
    """Of 600 records the sum is rounded to whole numbers: noise of 1 hardly shows."""
    model = nn.Sequential(nn.Linear(6, 4).to(dtype), nn.Linear(4, 3))
    with pytest.raises(PlanRefused, match=r"'0.weight' is b?float16, in which noise is lost"):
        refuse_model(model)
    with pytest.raises(PlanRefused, match="float32"):
        trainer(lambda: model).refuse_settings({}, PRIVACY)
    model[0].requires_grad_(False)
    refuse_model(model)


def test_complex_weights_are_refused() -> None:
    """Noise is real, and their imaginary parts would have none."""
    model = Built(lambda own, x: x, own=nn.Linear(6, 3, dtype=torch.complex64))
    with pytest.raises(PlanRefused, match=r"'own.weight' is complex, .* two float32 parameters"):
        refuse_model(model)
    model.requires_grad_(False)
    refuse_model(model)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_changes_by_what_is_looked_up_is_refused(kind: Any) -> None:
    model = nn.Sequential(kind(9, 3, max_norm=1.0), nn.Linear(3, 3))
    with pytest.raises(PlanRefused, match=rf"layer '0' \({kind.__name__}\) .* max_norm"):
        refuse_model(model)


class OwnNorm(nn.BatchNorm1d):
    """A subclass, which no table of types knows."""


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_of_ones_own_is_refused(affine: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 4), OwnNorm(4, affine=affine, track_running_stats=False))
    with pytest.raises(PlanRefused, match=r"layer '1' \(OwnNorm\) cannot be trained"):
        refuse_model(model)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_trains_or_is_refused(reentrant: bool) -> None:
    """It may not hide its layers from gradients, which then were noise alone."""
    x, y = torch.randn(3, 6), torch.tensor([0, 1, 2])
    inside = nn.Linear(6, 6)

    def model(function: Callable[[Tensor], Tensor]) -> nn.Module:
        torch.manual_seed(1)
        made = between(function)
        made.inside = inside
        return made

    saves = model(partial(checkpoint, inside, use_reentrant=reentrant))
    if reentrant:
        with pytest.raises(PlanRefused, match="use_reentrant=True"):
            summed(saves, x, y, "together")
    else:
        plain, found = (summed(each, x, y, "together")[0] for each in (model(inside), saves))
        assert torch.allclose(found, plain, atol=1e-6)


def writes(where: str) -> nn.Module:
    """Keeps a record where it should not."""
    calls = list[int]()

    def forward(model: Any, x: Tensor) -> Any:
        calls.append(1)
        with torch.no_grad():
            if where == "still":
                model.still.copy_(x[0])
            if where == "buffer":
                model.kept = x.mean(dim=0)
            if where == "own" and len(calls) > 3:
                model.own.weight[0] = x[0]
            if where == "data":
                model.own.weight.data[0] = x[0]
        if where in ("made", "table") and not hasattr(model, "made"):
            model.register_buffer("made", torch.ones(6), persistent=where == "made")
        return model.own(x)

    model = Built(forward, own=nn.Linear(6, 3), still=still())
    model.register_buffer("kept", torch.zeros(6))
    return model


def still() -> nn.Parameter:
    return nn.Parameter(torch.zeros(6), requires_grad=False)


@pytest.mark.parametrize("way", ["together", "per record"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("still", "changes parameter 'still'"),
        ("buffer", "changes buffer 'kept'"),
        ("own", "changes parameter 'own.weight'"),
        ("data", "changes parameter 'own.weight'"),
        ("made", "makes buffer 'made'"),
        ("table", None),
    ],
)
def test_what_leaves_without_noise_may_not_be_written(
    where: str, reason: str | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "per record":
        one_by_one(monkeypatch)
    holder = trainer(lambda: writes(where))
    config = replace(PRIVATE, settings={"lr": 0.1, "local_steps": 20})
    start = holder.parameters(1)
    if reason is None:
        assert set(holder.fit(start, config).parameters) == set(start)
        return
    with pytest.raises(PlanRefused, match=reason):
        holder.fit(start, config)


def test_weights_that_are_no_numbers_count_as_unchanged() -> None:
    """They are the training's fault, which `NotFinite` says."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    kept = TensorGuard(model)
    model(torch.ones(2, 2))
    kept.refuse_changes()
    model.weight.data[0, 0] = 1.0
    with pytest.raises(PlanRefused, match="changes parameter 'weight'"):
        kept.refuse_changes()


STEPS = 4


def writes_late(where: str, when: int, passes: bool, done: list[int]) -> nn.Module:
    """Changes one tensor while a step's gradients are made, and may put it back in the next."""
    written = [0.0]

    def forward(model: Any, x: Tensor) -> Any:
        place = model.own.weight.data[0] if where == "own" else getattr(model, where).data
        wanted = float(len(done) == when if passes else len(done) >= when)
        place += wanted - written[0]
        written[0] = wanted
        return model.own(x)

    made = Built(forward, own=nn.Linear(6, 3), still=still())
    made.register_buffer("seen", torch.zeros(6))
    return made


@pytest.mark.parametrize("passes", [False, True], ids=["stays", "passes"])
@pytest.mark.parametrize("when", range(1, STEPS))
@pytest.mark.parametrize("where", ["seen", "still", "own"])
def test_what_only_a_later_step_writes_is_refused_too(
    where: str, when: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the next step finds it as it was: by then it has changed what others' records do."""
    done, step = list[int](), torch.optim.SGD.step

    def counted(*given: Any, **settings: Any) -> Any:
        done.append(1)
        return step(*given, **settings)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    config = replace(PRIVATE, settings={"lr": 0.1, "local_steps": STEPS})
    never = trainer(lambda: writes_late(where, STEPS, passes, done))
    never.fit(never.parameters(1), config)
    assert len(done) == STEPS
    done.clear()
    holder = trainer(lambda: writes_late(where, when, passes, done))
    kind, name = ("buffer", "seen") if where == "seen" else ("parameter", where)
    with pytest.raises(PlanRefused, match=rf"{kind} '{name}"):
        holder.fit(holder.parameters(1), config)
    assert len(done) <= when + 1, "it is refused before the next step"


# --- each record's loss is of that record alone ---------------------------------------

WEIGHT = torch.tensor([1.0, 1.0, 20.0])


def example(records: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(records, 3, generator=generator, requires_grad=True)
    return outputs, torch.tensor([2, 0, 1, 0, 1, 0])[:records]


def masked(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    kept = targets != 2
    return functional.cross_entropy(outputs[kept], targets[kept], reduction=reduction)


def of_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)


def drawing(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(functional.dropout(outputs, 0.0) + torch.rand(1) * 0, targets)


SAFE: dict[str, Any] = {
    "function": functional.cross_entropy,
    "class": nn.CrossEntropyLoss(),
    "class with weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "ignoring class": nn.CrossEntropyLoss(ignore_index=1),
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
    "own": own_loss,
    "drawing": drawing,
}


def losses_of(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each record; [records]."""
    pairs = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
    return torch.stack([record_loss(loss, *each) for each in pairs])


@pytest.mark.parametrize("kind", SAFE)
def test_no_record_changes_the_gradient_of_another(kind: str) -> None:
    outputs, targets = example()
    refuse_mixing_loss(SAFE[kind], torch.split(outputs, 1), targets)
    (found,) = torch.autograd.grad(losses_of(SAFE[kind], outputs, targets).sum(), outputs)
    for at in range(len(targets)):
        own = outputs[at : at + 1].detach().requires_grad_()
        alone = record_loss(SAFE[kind], own, targets[at : at + 1])
        (wanted,) = torch.autograd.grad(alone, own)
        assert torch.allclose(found[at], wanted[0], atol=1e-7)


TOKENS = torch.tensor([[1, 1, 2, 1, 2], [1, 0, 0, 0, 0]])
ALONE = "each record's loss of its own output and target alone"
MIXING: dict[str, tuple[Any, Tensor, Tensor, str]] = {
    "weighted": (lambda o, t: functional.cross_entropy(o, t, weight=WEIGHT), *example(), ALONE),
    "ignoring": (lambda o, t: functional.cross_entropy(o, t, ignore_index=1), *example(), ALONE),
    "broadcast": (lambda o, t: ((o[:, :1] - t) ** 2).mean(), *example(), ALONE),
    "tokens": (of_tokens, torch.randn(2, 5, 3), TOKENS, "is not the mean of its records' losses"),
    # as many classes as records: they are not compared with all targets
    "classes": (
        partial(functional.binary_cross_entropy_with_logits),
        *(torch.randn(3, 3), torch.randn(3), "each record's loss"),
    ),
    "divergence": (functional.kl_div, torch.randn(3, 3), torch.rand(3), "each record's loss"),
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_loss_that_mixes_records_is_refused(kind: str) -> None:
    loss, outputs, targets, reason = MIXING[kind]
    with pytest.raises(PlanRefused, match=reason):
        refuse_mixing_loss(loss, torch.split(outputs, 1), targets)


def test_a_record_of_which_a_mask_leaves_nothing_has_no_finite_loss_and_alone_so() -> None:
    losses = losses_of(masked, *example())
    assert losses.isfinite().tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(reduction="sum"), partial(functional.mse_loss, reduction="none")]
)
def test_another_reduction_than_a_mean_is_refused(loss: Any) -> None:
    with pytest.raises(PlanRefused, match="has reduction="):
        losses_of(loss, *example())
    with pytest.raises(PlanRefused, match=r"^record privacy: the loss has reduction="):
        summed(nn.Linear(6, 3), torch.randn(3, 6), torch.tensor([0, 1, 2]), "together", loss)


def test_a_mean_over_the_batch_adds_up_what_a_record_has() -> None:
    outputs, targets = torch.randn(4, 3).log_softmax(1), torch.rand(4, 3)
    losses = nn.KLDivLoss(reduction="batchmean"), partial(functional.kl_div, reduction="batchmean")
    for loss in losses:
        found = losses_of(loss, outputs, targets).sum()
        assert torch.allclose(found, 4 * loss(outputs, targets))


def test_outputs_may_be_several_tensors_with_records_first() -> None:
    outputs, targets = example()

    def both(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs["a"], targets) + outputs["b"].mean()

    rows = [{"a": each, "b": each} for each in torch.split(outputs, 1)]
    refuse_mixing_loss(both, rows, targets)
    with pytest.raises(PlanRefused, match=r"gives \(\) for 1 records; .* squeeze\(1\)"):
        record_loss(both, rows[0] | {"b": outputs.mean()}, targets[:1])
    with pytest.raises(PlanRefused, match="gives a str"):
        record_loss(both, "outputs", targets[:1])
