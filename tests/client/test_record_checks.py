"""What DP-SGD refuses of a model, before a record could get past its clip or past the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from secureps.client import torch_sgd
from secureps.client.record_checks import Kept, nothing_written, refuse_mixing, refuse_model
from secureps.errors import PlanRefused
from tests.client.test_torch import PRIVACY, PRIVATE, trainer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trained_weights_in_which_noise_is_lost_are_refused(dtype: torch.dtype) -> None:
    """Of 600 records the sum is rounded to whole numbers: noise of 1 hardly shows."""
    model = nn.Sequential(nn.Linear(6, 4).to(dtype), nn.Linear(4, 3))
    with pytest.raises(PlanRefused, match=r"'0.weight' is b?float16, in which noise is lost"):
        refuse_model(model)
    with pytest.raises(PlanRefused, match="float32"):
        trainer(lambda: nn.Linear(6, 3).to(dtype)).refuse_settings({}, PRIVACY)
    model[0].requires_grad_(False)
    refuse_model(model)


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_a_table_that_changes_or_mixes_by_what_is_looked_up_is_refused(setting: Any) -> None:
    model = nn.Sequential(nn.Embedding(9, 3, **setting), nn.Linear(3, 3))
    with pytest.raises(PlanRefused, match=rf"layer '0' \(Embedding\) .* {next(iter(setting))}"):
        refuse_model(model)


def test_a_bag_that_is_trained_is_refused() -> None:
    model = nn.EmbeddingBag(9, 3)
    with pytest.raises(PlanRefused, match=r"\(EmbeddingBag\).* take an Embedding"):
        refuse_model(model)
    refuse_model(model.requires_grad_(False))


class OwnNorm(nn.BatchNorm1d):
    """A subclass, which no table of types knows."""


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_of_ones_own_is_refused(affine: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 4), OwnNorm(4, affine=affine, track_running_stats=False))
    with pytest.raises(PlanRefused, match=r"layer '1' \(OwnNorm\) cannot be trained"):
        refuse_model(model)


class Between(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(6, 6), nn.Linear(6, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))  # type: ignore[no-any-return]


class Sorted(nn.Module):
    """Its records come out where they were, and go through its layer in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.second(self.first(x[order])[order.argsort()])  # type: ignore[no-any-return]


class WrongAxis(nn.Module):
    """Attention that takes records for places, as if batch_first were forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.own(x.reshape(len(x), 2, 3)).transpose(0, 1)
        seen = functional.scaled_dot_product_attention(seen, seen, seen).transpose(0, 1)
        return self.head(seen.mean(dim=1))  # type: ignore[no-any-return]


def three() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 6), torch.tensor([0, 1, 2])


def normed(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True) if len(x) > 1 else x


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: Between(normed), "what comes after layer 'first'"),
        (lambda: Between(lambda x: x - x.mean(dim=0)), "what comes after layer 'first'"),
        (lambda: Between(lambda x: x.softmax(dim=0)), "what comes after layer 'first'"),
        (lambda: Between(lambda x: x.cummax(dim=0)[0]), "what comes after layer 'first'"),
        (lambda: Between(lambda x: x - x.detach().amax(dim=0)), r"layer 'second' \(Linear\)"),
        (Sorted, "what comes after"),
        (WrongAxis, "what comes after layer 'own'"),
    ],
)
def test_a_model_that_mixes_records_is_refused(make: Callable[[], nn.Module], where: str) -> None:
    with pytest.raises(PlanRefused, match=f"record privacy: {where}.* mixes records"):
        refuse_mixing(make().train(), functional.cross_entropy, *three())


class Draws(nn.Module):
    """What draws, what works in place, and weights whose first dimension is 2."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 2), nn.ReLU(inplace=True), nn.Dropout(0.5))
        nn.utils.parametrizations.weight_norm(self.body[0])
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return self.head(self.body(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [Draws, lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=1))])
def test_a_model_that_mixes_nothing_is_not_refused(make: Callable[[], nn.Module]) -> None:
    """And nothing is left of the passes: neither hooks nor draws."""
    model = make().train()
    x, y = three()
    state, kept = torch.get_rng_state(), x.clone()
    refuse_mixing(model, functional.cross_entropy, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize("way", ["ghost", "per record"])
def test_both_ways_are_tested_by_two_records(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "per record":
        monkeypatch.setattr(torch_sgd, "ghost_fits", lambda module: False)
    holder = trainer(lambda: Between(normed))
    with pytest.raises(PlanRefused, match="mixes records"):
        holder.fit(holder.parameters(1), PRIVATE)


def test_a_model_that_fails_for_one_record_is_told_what_to_do() -> None:
    for between in (lambda x: x.squeeze(), lambda x: x[1:] + x[:1]):
        model = nn.Sequential(nn.Linear(6, 1), Calls(between))
        with pytest.raises(PlanRefused, match=r"squeeze\(1\), not squeeze\(\)"):
            refuse_mixing(model, functional.cross_entropy, *three())
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        refuse_mixing(nn.Linear(5, 3), functional.cross_entropy, *three())


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_hides_its_layers_is_refused(reentrant: bool) -> None:
    """Else they would take noise for steps, and no word said so."""

    def kept(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(inside, x, use_reentrant=reentrant)
        return found

    inside = nn.Linear(6, 6)
    model = Between(kept)
    model.inside = inside
    if not reentrant:
        refuse_mixing(model, functional.cross_entropy, *three())
        return
    with pytest.raises(PlanRefused, match="take use_reentrant=False"):
        refuse_mixing(model, functional.cross_entropy, *three())


class Writes(nn.Module):
    """Keeps a record where it should not."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.own, self.where, self.calls = nn.Linear(6, 3), where, 0
        self.still = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        late = self.calls > 20
        with torch.no_grad():
            if self.where == "still":
                self.still.copy_(x[0])
            if self.where == "own" and late:
                self.own.weight[0] = x[0]
            if self.where == "data":
                self.own.weight.data[0] = x[0]
        if self.where in ("made", "table") and not hasattr(self, "made"):
            self.register_buffer("made", torch.ones(6), persistent=self.where == "made")
        return self.own(x)  # type: ignore[no-any-return]


def test_what_is_trained_may_be_changed_once_it_is_left() -> None:
    """Its copies go then; the others stay."""
    model = Writes("nowhere")
    kept = Kept(model)
    assert set(kept._values) == {"own.weight", "own.bias", "still"}
    with torch.no_grad():
        model.own.bias[0] += 1
    with pytest.raises(PlanRefused, match=r"changes parameter 'own\.bias'"):
        kept.refuse_changes()
    kept.leave_trained()
    assert set(kept._values) == {"still"}
    kept.refuse_changes()
    with torch.no_grad():
        model.still[0] += 1
    with pytest.raises(PlanRefused, match="changes parameter 'still'"):
        kept.refuse_changes()


@pytest.mark.parametrize("way", ["ghost", "per record"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("still", "changes parameter 'still'"),
        ("own", "forward writes parameter 'own.weight'"),
        ("data", "changes parameter 'own.weight'"),
        ("made", "makes buffer 'made'"),
        ("table", None),
    ],
)
def test_what_leaves_without_noise_may_not_be_written(
    where: str, reason: str | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "per record":
        monkeypatch.setattr(torch_sgd, "ghost_fits", lambda module: False)
    holder = trainer(lambda: Writes(where))
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
    with nothing_written(model):
        model(torch.ones(2, 2))
    with pytest.raises(PlanRefused, match="writes parameter 'weight'"), nothing_written(model):
        model.weight.data[0, 0] = 1.0


STEPS = 4


class WritesLate(nn.Module):
    """Changes one tensor while a step's gradients are made, and may put it back in the next."""

    def __init__(self, where: str, when: int, passes: bool, done: list[int]) -> None:
        super().__init__()
        self.own = nn.Linear(6, 3)
        self.still = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("seen", torch.zeros(6))
        self.where, self.when, self.passes, self.done = where, when, passes, done
        self.written = 0.0

    def forward(self, x: Tensor) -> Tensor:
        place = self.own.weight.data[0] if self.where == "own" else getattr(self, self.where).data
        wanted = float(len(self.done) == self.when if self.passes else len(self.done) >= self.when)
        place += wanted - self.written
        self.written = wanted
        return self.own(x)  # type: ignore[no-any-return]


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
    never = trainer(lambda: WritesLate(where, STEPS, passes, done))
    never.fit(never.parameters(1), config)
    assert len(done) == STEPS
    done.clear()
    holder = trainer(lambda: WritesLate(where, when, passes, done))
    kind, name = ("buffer", "seen") if where == "seen" else ("parameter", where)
    with pytest.raises(PlanRefused, match=rf"{kind} '{name}"):
        holder.fit(holder.parameters(1), config)
    assert len(done) <= when + 1, "it is refused before the next step"
