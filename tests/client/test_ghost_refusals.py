"""What ghost clipping sees of a model; what it would miss is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureps.errors import PlanRefused
from tests.client.test_ghost_clipping import Made, Sequences, by_record, clipped, example


class Dropped(nn.Module):
    """One layer whose output goes nowhere, one that is never called, one without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.dropped, self.never, self.still = (nn.Linear(6, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        self.dropped(x)
        with torch.no_grad():
            still = self.still(x)
        return self.used(x) + still  # type: ignore[no-any-return]


def test_a_layer_that_the_loss_does_not_reach_adds_nothing() -> None:
    norms, sums = clipped(Dropped(), torch.randn(4, 6), torch.zeros(4, dtype=torch.int64), 1.0)
    assert float(norms.min()) > 0
    assert float(sums["used.weight"].norm()) > 0
    for name in ("dropped.weight", "never.bias", "still.weight"):
        assert not sums[name].any()


class Positions(nn.Module):
    """As it is often written: positions once for all records."""

    def __init__(self, expanded: bool) -> None:
        super().__init__()
        self.table, self.position, self.expanded = nn.Embedding(9, 3), nn.Embedding(7, 3), expanded

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        places = places.expand(len(x), -1) if self.expanded else places
        return (self.table(x) + self.position(places)).mean(dim=1)  # type: ignore[no-any-return]


class Past(nn.Module):
    """Uses a layer's weight and not the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.table(x), self.table.weight).mean(dim=1)


class Listed(nn.Module):
    """Its parameter belongs to no layer that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.scales = nn.Linear(6, 3), nn.ParameterList([torch.ones(3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) * self.scales[0]  # type: ignore[no-any-return]


class Overwritten(nn.Module):
    """Changes what went into its first layer, of which autograd needs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = x.clone()
        out = self.own(seen)
        seen.mul_(2)
        return out  # type: ignore[no-any-return]


class Several(nn.Module):
    """A layer of two inputs, without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Bilinear(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x, x)  # type: ignore[no-any-return]


class Dropping(nn.Module):
    """A layer without a formula that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x[:, :3] * self.scale)


class Stashed(nn.Module):
    """Its layer without a formula reads what the model left there of the same record."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = Masked(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.own.mask = x.abs()
        return self.head(self.own(x))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Scales, and masks."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.mask


class Second(nn.Module):
    """Gives its layer without a formula the second argument alone."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Either()

    def forward(self, x: Tensor) -> Tensor:
        return self.own(b=x)  # type: ignore[no-any-return]


class Either(nn.Module):
    """Does two things."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
        return a if a is not None else (b * self.scale)[:, :3]  # type: ignore[operator]


RECORDS, SEQUENCES, TOKENS = (4, 6), (4, 2, 6), (4, 7)


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda: Positions(False), TOKENS, r"layer 'position' \(Embedding\) has \(7,\) where"),
        (Past, TOKENS, r"parameter 'table.weight' is used outside of its layer"),
        (Listed, RECORDS, r"parameter 'scales.0' is used outside of its layer"),
        (Overwritten, RECORDS, r"what went into layer 'own' \(Linear\) was changed in place"),
        (
            lambda: Sequences(nn.Linear(6, 8), nn.ReLU(inplace=True), width=8),
            SEQUENCES,
            "what came out of its layer is changed in place",
        ),
        (Several, RECORDS, r"layer 'own' \(Bilinear\) must take one tensor and give one"),
        (Second, RECORDS, r"layer 'own' \(Either\) must take one tensor and give one"),
        (Dropping, RECORDS, "a Dropping has no gradients by record: vmap"),
    ],
)
def test_what_would_not_be_seen_is_refused(make: Made, shape: tuple[int, ...], reason: str) -> None:
    x = torch.randint(0, 9, shape) if shape == TOKENS else torch.randn(shape)
    with pytest.raises(PlanRefused, match=reason):
        clipped(make(), x, torch.zeros(4, dtype=torch.int64), 1.0)


@pytest.mark.parametrize("kind", ["positions", "stashed"])
def test_what_a_model_makes_of_each_record_is_seen(kind: str) -> None:
    model: nn.Module = Positions(expanded=True).double()
    x = torch.randint(0, 9, (4, 7))
    if kind == "stashed":
        model, x = Stashed().double(), torch.randn(RECORDS, dtype=torch.float64)
    y = torch.zeros(4, dtype=torch.int64)
    norms, _ = clipped(model, x, y, 1.0)
    flat = [torch.cat([g.flatten() for g in each.values()]) for each in by_record(model, x, y)]
    assert torch.allclose(norms, torch.stack([each.norm() for each in flat]))


def test_a_relu_in_place_after_a_layer_of_records_is_as_good_as_another() -> None:
    def model(inplace: bool) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace), nn.Linear(8, 3)).double()

    torch.manual_seed(2)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randint(0, 3, (4,))
    found, wanted = (clipped(model(inplace), x, y, 0.2) for inplace in (True, False))
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(each, wanted[1][name]) for name, each in found[1].items())


def test_layers_that_are_checkpointed_are_seen_once() -> None:
    from torch.utils.checkpoint import checkpoint

    class Saved(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.own, self.head, self.saves = nn.Linear(6, 8), nn.Linear(8, 3), saves

        def forward(self, x: Tensor) -> Tensor:
            seen = checkpoint(self.own, x, use_reentrant=False) if self.saves else self.own(x)
            return self.head(torch.tanh(seen))  # type: ignore[no-any-return]

    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    found, wanted = (clipped(Saved(saves), x, y, 0.2) for saves in (True, False))
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(each, wanted[1][name]) for name, each in found[1].items())


def test_nothing_is_left_on_a_model() -> None:
    model, x, y = example("attention", 3)
    clipped(model, x, y, 1.0)
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(each.grad is None for each in model.parameters())
    assert bool(torch.isfinite(model(x)).all())
