"""Ghost clipping has the norms and the clipped sums of gradients that are made by record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import ghost_clipping
from secureps.client.ghost_clipping import Part, Products, clipped_sum, few, norms_and_sum
from secureps.client.private_sum import Together, made_records, private_sum, zeros
from secureps.errors import PlanRefused

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

Made = Callable[[], nn.Module]


class Sequences(nn.Module):
    def __init__(self, *layers: nn.Module, width: int) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).flatten(1, -2).mean(dim=1))  # type: ignore[no-any-return]


class Channels(nn.Module):
    def __init__(self, *layers: nn.Module, width: int) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).flatten(2).mean(dim=2))  # type: ignore[no-any-return]


class Twice(nn.Module):
    def __init__(self, places: bool) -> None:
        super().__init__()
        self.own, self.head, self.places = nn.Linear(6, 6), nn.Linear(6, 3), places

    def forward(self, x: Tensor) -> Tensor:
        found = self.own(torch.tanh(self.own(x)))
        return self.head(found.mean(dim=1) if self.places else found)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A language model whose table of words is also its head."""

    def __init__(self, words: int = 11) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, 4), nn.Linear(4, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(x))).mean(dim=1)  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One vector that scales a norm and biases a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own = nn.LayerNorm(6), nn.Linear(6, 6)
        self.own.bias = self.norm.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.norm(x))  # type: ignore[no-any-return]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inside = nn.Parameter(torch.rand(6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x * self.scale)  # type: ignore[no-any-return]


class InAndOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.scale = Scale()
        self.scale.inside = self.own
        self.scale.again = self.own

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale(torch.tanh(self.own(x))))  # type: ignore[no-any-return]


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.heat


class Named(nn.Module):
    """Calls its layers, one of them without a formula, by the names of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.scale = nn.Linear(6, 6), Scale()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x=torch.tanh(self.own(input=x)))[:, :3]  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = [each.unflatten(2, (2, 3)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=2)]
        query, key, value = parts
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(self.out(seen.transpose(1, 2).flatten(2)).mean(dim=1))  # type: ignore[no-any-return]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for each in (*model[0].parameters(), model[2].weight):
        each.requires_grad_(False)
    return model


def opacus_attention() -> nn.Module:
    from opacus.layers import DPMultiheadAttention

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = DPMultiheadAttention(6, 2, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.own(x, x, x)[0].mean(dim=1))  # type: ignore[no-any-return]

    return Both()


def recurrent(kind: str) -> nn.Module:
    from opacus import layers

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = getattr(layers, kind)(6, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.own(x)[0][:, -1])  # type: ignore[no-any-return]

    return Last()


IMAGE, LINE, PLACES = (4, 6, 5), (4, 9), (7, 6)

MODELS: dict[str, tuple[Made, tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
    "linear of places": (lambda: Sequences(nn.Linear(6, 8), width=8), PLACES),
    "linear of two kinds of places": (lambda: Sequences(nn.Linear(6, 8), width=8), (2, 3, 6)),
    "no bias": (lambda: Sequences(nn.Linear(6, 8, bias=False), width=8), PLACES),
    "convolution": (lambda: Channels(nn.Conv2d(4, 8, 3), width=8), IMAGE),
    "padded": (lambda: Channels(nn.Conv2d(4, 8, (3, 2), padding=(2, 1)), width=8), IMAGE),
    "strided": (lambda: Channels(nn.Conv2d(4, 8, 2, stride=(2, 1)), width=8), IMAGE),
    "dilated": (lambda: Channels(nn.Conv2d(4, 8, 2, dilation=(1, 2)), width=8), IMAGE),
    "same": (lambda: Channels(nn.Conv2d(4, 8, (2, 3), padding="same"), width=8), IMAGE),
    "reflected": (
        lambda: Channels(nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), width=8),
        IMAGE,
    ),
    "circular": (
        lambda: Channels(nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), width=8),
        IMAGE,
    ),
    "groups": (lambda: Channels(nn.Conv2d(4, 8, 3, groups=2), width=8), IMAGE),
    "depthwise": (lambda: Channels(nn.Conv2d(4, 4, 3, groups=4), width=4), IMAGE),
    "of lines": (lambda: Channels(nn.Conv1d(4, 8, 3, padding=2, stride=2), width=8), LINE),
    "of lines, the same": (lambda: Channels(nn.Conv1d(4, 8, 4, padding="same"), width=8), LINE),
    "of lines, in groups": (lambda: Channels(nn.Conv1d(4, 8, 3, groups=2), width=8), LINE),
    "of volumes": (lambda: Channels(nn.Conv3d(2, 4, 2), width=4), (2, 3, 3, 3)),
    "transposed": (lambda: Channels(nn.ConvTranspose2d(4, 8, 3), width=8), IMAGE),
    "embedding": (lambda: Sequences(nn.Embedding(9, 5), width=5), (7,)),
    "padding": (lambda: Sequences(nn.Embedding(9, 5, padding_idx=2), width=5), (7,)),
    "one word": (lambda: nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3)), ()),
    "tied": (Tied, (7,)),
    "layer norm": (lambda: Sequences(nn.LayerNorm(6), width=6), PLACES),
    "layer norm of two": (lambda: Sequences(nn.LayerNorm((7, 6)), width=6), PLACES),
    "layer norm, no bias": (lambda: Sequences(nn.LayerNorm(6, bias=False), width=6), PLACES),
    "root mean square": (lambda: Sequences(nn.RMSNorm(6), width=6), PLACES),
    "group norm": (lambda: Channels(nn.GroupNorm(2, 4), nn.Tanh(), width=4), IMAGE),
    "instance norm": (
        lambda: Channels(nn.InstanceNorm2d(4, affine=True), nn.Tanh(), width=4),
        IMAGE,
    ),
    "attention": (Attention, PLACES),
    "attention of Opacus": (opacus_attention, PLACES),
    "used twice": (lambda: Twice(places=False), (6,)),
    "used twice of places": (lambda: Twice(places=True), PLACES),
    "shared": (Shared, (6,)),
    "without a formula": (lambda: nn.Sequential(nn.Linear(6, 6), Scale(), nn.Linear(6, 3)), (6,)),
    "scalar": (lambda: nn.Sequential(nn.Linear(6, 3), Temperature()), (6,)),
    "by name": (Named, (6,)),
    "inside and outside": (InAndOut, (6,)),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3)
        ),
        (6,),
    ),
    "frozen": (frozen, (6,)),
    "recurrent": (lambda: recurrent("DPGRU"), PLACES),
    "long and short": (lambda: recurrent("DPLSTM"), PLACES),
}
"""By kind: a model, and the shape of a record; those of words have integers."""

WORDS = ("embedding", "padding", "one word", "tied")


def example(
    kind: str, records: int, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = MODELS[kind]
    torch.manual_seed(1)
    model = make().to(dtype).train()
    x = torch.randn(records, *shape, dtype=dtype)
    if kind in WORDS:
        x = torch.randint(0, 4, (records, *shape))  # few words: some come twice
    return model, x, torch.randint(0, 3, (records,))


def by_record(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """Each record's gradient by plain autograd, where layers are unknown."""
    own = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = []
    for each, target in zip(x, y, strict=True):
        loss = functional.cross_entropy(model(each[None]), target[None])
        gradients = torch.autograd.grad(loss, list(own.values()))
        found.append(dict(zip(own, gradients, strict=True)))
    return found


def clipped(
    model: nn.Module, x: Tensor, y: Tensor, bound: float, parts: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms and clipped sums by ghost clipping, in so many parts."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    gradients = private_sum(model, functional.cross_entropy, made_records(x, y), bound).gradients
    assert isinstance(gradients, Together)
    sums, norms = zeros(trained.values()), []
    for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
        losses, found = gradients(xs, ys)
        own, add = clipped_sum(found, losses, bound)
        add(sums)
        norms.append(own)
    return torch.cat(norms), {name: sums[each] for name, each in trained.items()}


@pytest.mark.parametrize("way", ["ghost", "whole", "chosen"])
@pytest.mark.parametrize("kind", MODELS)
def test_norms_and_sums_are_those_of_gradients_by_record(
    kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five records, and of one, in double precision, some clipped and some not."""
    weights = {"ghost": 1e9, "whole": 0.0, "chosen": ghost_clipping.WHOLE}
    monkeypatch.setattr(ghost_clipping, "WHOLE", weights[way])
    for records in (5, 1):
        model, x, y = example(kind, records)
        gradients = by_record(model, x, y)
        flat = [torch.cat([g.flatten() for g in each.values()]) for each in gradients]
        wanted = torch.stack([each.norm() for each in flat])
        bound = float(wanted.mean())
        norms, sums = clipped(model, x, y, bound)
        assert torch.allclose(norms, wanted, rtol=1e-7, atol=1e-12)
        weights_ = [min(1.0, bound / (float(norm) + 1e-6)) for norm in wanted]
        assert records == 1 or min(weights_) < 1 == max(weights_)
        for name, found in sums.items():
            total = torch.zeros_like(found)
            for weight, each in zip(weights_, gradients, strict=True):
                total += weight * each[name]
            assert torch.allclose(found, total, rtol=1e-7, atol=1e-12), name


@pytest.mark.parametrize("kind", MODELS)
def test_in_single_precision_norms_are_the_same_within_a_thousandth(kind: str) -> None:
    """And what is summed is no longer than the bound, of one record."""
    model, x, y = example(kind, 3, torch.float32)
    precise, wide_x, _ = example(kind, 3)
    precise.load_state_dict(model.state_dict())
    wide_x = x if kind in WORDS else x.double()
    norms, _ = clipped(model, x, y, 1.0)
    wanted, _ = clipped(precise, wide_x, y, 1.0)
    assert torch.allclose(norms.double(), wanted, rtol=1e-3)
    for each in range(3):
        _, sums = clipped(model, x[each : each + 1], y[each : each + 1], 0.1)
        length = torch.cat([found.flatten() for found in sums.values()]).double().norm()
        assert float(length) <= 0.1 * (1 + 1e-6)


@pytest.mark.parametrize("parts", [2, 6])
def test_parts_of_a_sample_add_up_to_the_sample(parts: int) -> None:
    model, x, y = example("attention", 6)
    norms, sums = clipped(model, x, y, 0.5)
    again, found = clipped(model, x, y, 0.5, parts)
    assert torch.allclose(norms, again)
    for name, each in sums.items():
        assert torch.allclose(each, found[name])


@pytest.mark.parametrize("kind", ["attention", "convolution", "tied", "without a formula"])
def test_the_same_records_give_the_same_bits(kind: str) -> None:
    found = [clipped(*example(kind, 5, torch.float32), 0.5) for _ in range(2)]
    assert torch.equal(found[0][0], found[1][0])
    for name, each in found[0][1].items():
        assert torch.equal(each, found[1][1][name])


class Narrow(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "kind", ["linear of places", "convolution", "tied", "attention", "layer norm", "used twice"]
)
def test_a_model_in_bfloat16_has_norms_and_sums_in_single_precision(kind: str) -> None:
    """What is clipped is what is summed, to float32, however coarse what the model computes."""
    model, x, y = example(kind, 4, torch.float32)
    exact, _ = clipped(model, x, y, 0.1)
    norms, sums = clipped(Narrow(model), x, y, 0.1)
    assert norms.dtype is torch.float32
    assert not torch.equal(norms, exact), "it computed in float32"
    assert torch.allclose(norms, exact, rtol=0.05)
    assert all(each.dtype is torch.float32 for each in sums.values())
    for each in range(4):
        own, sums = clipped(Narrow(model), x[each : each + 1], y[each : each + 1], 1e9)
        length = torch.cat([found.flatten() for found in sums.values()]).norm()
        assert torch.allclose(length, own[0], rtol=1e-3)


def test_weights_in_bfloat16_have_sums_in_single_precision() -> None:
    model, x, y = example("linear", 4, torch.bfloat16)
    norms, sums = clipped(model, x, y, 0.1)
    assert {each.dtype for each in (norms, *sums.values())} == {torch.float32}


# --- norms and sums of one parameter's gradients --------------------------------------


@given(
    records=st.integers(1, 4),
    places=st.integers(1, 6),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    which=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=50, deadline=None)
def test_products_are_what_their_gradients_are(
    records: int, places: int, rows: int, columns: int, which: tuple[bool, bool], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def made(words: bool, more: int) -> Products:
        shape = (records, places + more)
        left = torch.randn(*shape, rows, generator=generator, dtype=torch.float64)
        if words:
            left = torch.randint(0, rows, shape, generator=generator)
        right = torch.randn(*shape, columns, generator=generator, dtype=torch.float64)
        return Products(left, right, rows)

    one, other = made(which[0], 0), made(which[1], 2)
    weights = torch.rand(records, generator=generator, dtype=torch.float64)
    for each in (one, other):
        assert torch.allclose(weights @ each.whole(), each.weighted(weights).flatten())
        assert bool((each.lengths() >= each.whole().norm(dim=1) - 1e-12).all())
    inner = (one.whole() * other.whole()).sum(dim=1)
    assert torch.allclose(one.inner(other), inner)
    assert torch.allclose(other.inner(one), inner)


@pytest.mark.parametrize("words", [False, True])
def test_no_record_gets_past_its_clip_by_places_that_cancel(
    words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner products of float32 are rounded: what is left of them may be less than the norm."""
    generator = torch.Generator().manual_seed(1)
    records, places, width = 200, 32, 64
    half = torch.randn(records, places // 2, width, generator=generator)
    left = torch.cat([half, half], dim=1)
    if words:
        left = torch.arange(places // 2).repeat(2).expand(records, -1)
    right = torch.randn(records, places // 2, width, generator=generator)
    right = torch.cat([right, -right], dim=1)
    right[:, 0] += 1e-4 * torch.randn(records, width, generator=generator)
    products = Products(left, right, width)
    exact = Products(left if words else left.double(), right.double(), width)
    inner = products.inner(products).clamp(min=0).sqrt().double()
    true = exact.whole().norm(dim=1)
    assert float(true.max()) < 0.1
    assert bool((inner < 0.5 * true).any()), "nothing to guard against"
    monkeypatch.setattr(ghost_clipping, "WHOLE", 1e9)
    norms = ghost_clipping._ghost_norms([products])
    assert norms is not None
    assert bool((norms.sqrt().double() >= true).all())


@pytest.mark.parametrize("kind", ["products", "words", "both", "made"])
@pytest.mark.parametrize("weight", [0.0, 1e9], ids=["whole", "ghost"])
def test_gradients_in_slices_have_the_same_norms_and_sums(
    kind: str, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more of them is there at a time than may be."""
    torch.manual_seed(1)
    left = torch.randn(7, 3, 4, dtype=torch.float64)
    if kind == "words":
        left = torch.randint(0, 4, (7, 3))
    products = Products(left, torch.randn(7, 3, 5, dtype=torch.float64), 4)
    made = torch.randn(7, 4, 5, dtype=torch.float64)
    parts: list[Part] = [products] if kind in ("products", "words") else [made]
    parts = [products, made] if kind == "both" else parts
    weights = torch.rand(7, dtype=torch.float64)
    monkeypatch.setattr(ghost_clipping, "WHOLE", weight)
    squared, added, _ = norms_and_sum(parts, 10**9)
    largest = []
    own = ghost_clipping.Products.whole

    def whole(of: Products) -> Tensor:
        found = own(of)
        largest.append(found.numel())
        return found

    monkeypatch.setattr(ghost_clipping, "VALUES", 40)
    monkeypatch.setattr(ghost_clipping.Products, "whole", whole)
    again, cut, kept = norms_and_sum(parts, 139)
    assert kept == 0
    assert torch.allclose(again, squared, rtol=1e-9)
    assert torch.allclose(cut(weights).flatten(), added(weights).flatten())
    assert max(largest, default=0) <= 40


def test_words_cost_a_comparison_and_no_product() -> None:
    """512 places of a table of 50,257 words of width 768: whole, a record is 154 MB."""
    assert few(512, 50257, 768, words=True)
    assert not few(512, 50257, 768)
    assert few(1, 4, 4)
    assert not few(64, 4, 4, words=True)


# --- what is seen of a model, and what is refused -----------------------------------


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
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.table(x), self.table.weight).mean(dim=1)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.scales = nn.Linear(6, 3), nn.ParameterList([torch.ones(3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) * self.scales[0]  # type: ignore[no-any-return]


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = x.clone()
        out = self.own(seen)
        seen.mul_(2)
        return out  # type: ignore[no-any-return]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Bilinear(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x, x)  # type: ignore[no-any-return]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x[:, :3] * self.scale)


class Stashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = Masked(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.own.mask = x.abs()
        return self.head(self.own(x))  # type: ignore[no-any-return]


class Masked(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.mask


class Second(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = Either()

    def forward(self, x: Tensor) -> Tensor:
        return self.own(b=x)  # type: ignore[no-any-return]


class Either(nn.Module):
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
