"""Ghost clipping has the norms and clipped sums of gradients made by record."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import ghost_clipping
from secureps.client.ghost_clipping import Part, Products, clipped_sum, norms_and_sum
from secureps.client.private_sum import BatchedGradients, make_records, private_sum, zero_sums
from secureps.errors import PlanRefused
from tests.kits.torch_device import DEVICE
from tests.kits.torch_models import Built

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

Made = Callable[[], nn.Module]


def sequences(*layers: nn.Module, width: int) -> nn.Module:
    return Built(
        lambda own, x: own.head(own.layers(x).flatten(1, -2).mean(dim=1)),
        layers=nn.Sequential(*layers),
        head=nn.Linear(width, 3),
    )


def channels(*layers: nn.Module, width: int) -> nn.Module:
    return Built(
        lambda own, x: own.head(own.layers(x).flatten(2).mean(dim=2)),
        layers=nn.Sequential(*layers),
        head=nn.Linear(width, 3),
    )


def twice(places: bool) -> nn.Module:
    def forward(own: Any, x: Tensor) -> Any:
        found = own.own(torch.tanh(own.own(x)))
        return own.head(found.mean(dim=1) if places else found)

    return Built(forward, own=nn.Linear(6, 6), head=nn.Linear(6, 3))


def tied() -> nn.Module:
    """A language model whose table of words is also its head."""
    table, head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
    head.weight = table.weight
    return Built(
        lambda own, x: own.head(torch.tanh(own.table(x))).mean(dim=1), table=table, head=head
    )


def shared() -> nn.Module:
    """One vector that scales a norm and biases a layer."""
    norm, own = nn.LayerNorm(6), nn.Linear(6, 6)
    own.bias = norm.weight
    return Built(lambda model, x: model.own(model.norm(x)), norm=norm, own=own)


def scale(**more: nn.Module) -> nn.Module:
    parts: dict[str, Any] = {"scale": nn.Parameter(torch.rand(6)), "inside": nn.Linear(6, 6)}
    return Built(lambda own, x: own.inside(x * own.scale), **parts | more)


def in_and_out() -> nn.Module:
    own, head = nn.Linear(6, 6), nn.Linear(6, 3)
    return Built(
        lambda model, x: model.head(model.scale(torch.tanh(model.own(x)))),
        own=own,
        head=head,
        scale=scale(inside=own, again=own),
    )


def temperature() -> nn.Module:
    return Built(lambda own, x: x * own.heat, heat=nn.Parameter(torch.tensor(1.5)))


def named() -> nn.Module:
    """Calls its layers, one of them without a formula, by the names of their arguments."""
    return Built(
        lambda model, x: model.scale(x=torch.tanh(model.own(input=x)))[:, :3],
        own=nn.Linear(6, 6),
        scale=scale(),
    )


def attention() -> nn.Module:
    def forward(own: Any, x: Tensor) -> Any:
        parts = [each.unflatten(2, (2, 3)).transpose(1, 2) for each in own.qkv(x).chunk(3, dim=2)]
        query, key, value = parts
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return own.head(own.out(seen.transpose(1, 2).flatten(2)).mean(dim=1))

    return Built(forward, qkv=nn.Linear(6, 18), out=nn.Linear(6, 6), head=nn.Linear(6, 3))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for each in (*model[0].parameters(), model[2].weight):
        each.requires_grad_(False)
    return model


def opacus_attention() -> nn.Module:
    from opacus.layers import DPMultiheadAttention

    return Built(
        lambda model, x: model.head(model.own(x, x, x)[0].mean(dim=1)),
        own=DPMultiheadAttention(6, 2, batch_first=True),
        head=nn.Linear(6, 3),
    )


def recurrent(kind: str) -> nn.Module:
    from opacus import layers

    return Built(
        lambda model, x: model.head(model.own(x)[0][:, -1]),
        own=getattr(layers, kind)(6, 4, batch_first=True),
        head=nn.Linear(4, 3),
    )


IMAGE, LINE, PLACES = (4, 6, 5), (4, 9), (7, 6)

MODELS: dict[str, tuple[Made, tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
    "linear of places": (lambda: sequences(nn.Linear(6, 8), width=8), PLACES),
    "linear of two kinds of places": (lambda: sequences(nn.Linear(6, 8), width=8), (2, 3, 6)),
    "no bias": (lambda: sequences(nn.Linear(6, 8, bias=False), width=8), PLACES),
    "convolution": (lambda: channels(nn.Conv2d(4, 8, 3), width=8), IMAGE),
    "padded": (lambda: channels(nn.Conv2d(4, 8, (3, 2), padding=(2, 1)), width=8), IMAGE),
    "strided": (lambda: channels(nn.Conv2d(4, 8, 2, stride=(2, 1)), width=8), IMAGE),
    "dilated": (lambda: channels(nn.Conv2d(4, 8, 2, dilation=(1, 2)), width=8), IMAGE),
    "same": (lambda: channels(nn.Conv2d(4, 8, (2, 3), padding="same"), width=8), IMAGE),
    "reflected": (
        lambda: channels(nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), width=8),
        IMAGE,
    ),
    "circular": (
        lambda: channels(nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), width=8),
        IMAGE,
    ),
    "groups": (lambda: channels(nn.Conv2d(4, 8, 3, groups=2), width=8), IMAGE),
    "depthwise": (lambda: channels(nn.Conv2d(4, 4, 3, groups=4), width=4), IMAGE),
    "of lines": (lambda: channels(nn.Conv1d(4, 8, 3, padding=2, stride=2), width=8), LINE),
    "of lines, the same": (lambda: channels(nn.Conv1d(4, 8, 4, padding="same"), width=8), LINE),
    "of lines, in groups": (lambda: channels(nn.Conv1d(4, 8, 3, groups=2), width=8), LINE),
    "of volumes": (lambda: channels(nn.Conv3d(2, 4, 2), width=4), (2, 3, 3, 3)),
    "transposed": (lambda: channels(nn.ConvTranspose2d(4, 8, 3), width=8), IMAGE),
    "embedding": (lambda: sequences(nn.Embedding(9, 5), width=5), (7,)),
    "padding": (lambda: sequences(nn.Embedding(9, 5, padding_idx=2), width=5), (7,)),
    "one word": (lambda: nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3)), ()),
    "tied": (tied, (7,)),
    "layer norm": (lambda: sequences(nn.LayerNorm(6), width=6), PLACES),
    "layer norm of two": (lambda: sequences(nn.LayerNorm((7, 6)), width=6), PLACES),
    "layer norm, no bias": (lambda: sequences(nn.LayerNorm(6, bias=False), width=6), PLACES),
    "root mean square": (lambda: sequences(nn.RMSNorm(6), width=6), PLACES),
    "group norm": (lambda: channels(nn.GroupNorm(2, 4), nn.Tanh(), width=4), IMAGE),
    "instance norm": (
        lambda: channels(nn.InstanceNorm2d(4, affine=True), nn.Tanh(), width=4),
        IMAGE,
    ),
    "attention": (attention, PLACES),
    "attention of Opacus": (opacus_attention, PLACES),
    "used twice": (lambda: twice(places=False), (6,)),
    "used twice of places": (lambda: twice(places=True), PLACES),
    "shared": (shared, (6,)),
    "without a formula": (lambda: nn.Sequential(nn.Linear(6, 6), scale(), nn.Linear(6, 3)), (6,)),
    "scalar": (lambda: nn.Sequential(nn.Linear(6, 3), temperature()), (6,)),
    "by name": (named, (6,)),
    "inside and outside": (in_and_out, (6,)),
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
    model = make().to(DEVICE, dtype).train()
    x = torch.randn(records, *shape, dtype=dtype)
    if kind in WORDS:
        x = torch.randint(0, 4, (records, *shape))  # few words: some come twice
    return model, x.to(DEVICE), torch.randint(0, 3, (records,)).to(DEVICE)


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
    model: nn.Module, x: Tensor, y: Tensor, bound: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms and clipped sums by ghost clipping."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    made_x, made_y = (each.to(x.device) for each in make_records(x, y))
    gradients = private_sum(model, functional.cross_entropy, (made_x, made_y), bound).gradients
    assert isinstance(gradients, BatchedGradients)
    sums, (losses, found) = zero_sums(trained.values()), gradients(x, y)
    norms, add = clipped_sum(found, losses, bound)
    add(sums)
    return norms, {name: sums[each] for name, each in trained.items()}


CHOSEN = ("linear", "convolution", "attention", "tied", "inside and outside")
"""Models that are also tried with the way that is chosen for each layer."""


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in MODELS for way in ("ghost", "whole")]
    + [(kind, "chosen") for kind in CHOSEN],
)
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


@pytest.mark.parametrize("kind", ["attention", "convolution", "tied", "without a formula"])
def test_the_same_records_give_the_same_bits(kind: str) -> None:
    found = [clipped(*example(kind, 5, torch.float32), 0.5) for _ in range(2)]
    assert torch.equal(found[0][0], found[1][0])
    for name, each in found[0][1].items():
        assert torch.equal(each, found[1][1][name])


def narrow(model: nn.Module) -> nn.Module:
    """The same model, which computes in bfloat16."""

    def forward(own: Any, x: Tensor) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            return own.model(x).float()

    return Built(forward, model=model)


@pytest.mark.parametrize(
    "kind", ["linear of places", "convolution", "tied", "attention", "layer norm", "used twice"]
)
def test_a_model_in_bfloat16_has_norms_and_sums_in_single_precision(kind: str) -> None:
    """What is clipped is what is summed, to float32, however coarse what the model computes."""
    model, x, y = example(kind, 4, torch.float32)
    exact, _ = clipped(model, x, y, 0.1)
    norms, sums = clipped(narrow(model), x, y, 0.1)
    assert norms.dtype is torch.float32
    assert not torch.equal(norms, exact), "it computed in float32"
    assert torch.allclose(norms, exact, rtol=0.05)
    assert all(each.dtype is torch.float32 for each in sums.values())
    for each in range(4):
        own, sums = clipped(narrow(model), x[each : each + 1], y[each : each + 1], 1e9)
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
        assert torch.allclose(weights @ each.to_gradients(), each.weighted_sum(weights).flatten())
        assert bool((each.bound_norms() >= each.to_gradients().norm(dim=1) - 1e-12).all())
    inner = (one.to_gradients() * other.to_gradients()).sum(dim=1)
    assert torch.allclose(one.inner_products(other), inner)
    assert torch.allclose(other.inner_products(one), inner)


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
    inner = products.inner_products(products).clamp(min=0).sqrt().double()
    true = exact.to_gradients().norm(dim=1)
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
    own = ghost_clipping.Products.to_gradients

    def whole(of: Products) -> Tensor:
        found = own(of)
        largest.append(found.numel())
        return found

    monkeypatch.setattr(ghost_clipping, "VALUES", 40)
    monkeypatch.setattr(ghost_clipping.Products, "to_gradients", whole)
    again, cut, kept = norms_and_sum(parts, 139)
    assert kept == 0
    assert torch.allclose(again, squared, rtol=1e-9)
    assert torch.allclose(cut(weights).flatten(), added(weights).flatten())
    assert max(largest, default=0) <= 40


# --- what is seen of a model, and what is refused -----------------------------------


def dropped() -> nn.Module:
    """One layer whose output goes nowhere, one that is never called, one without gradients."""

    def forward(own: Any, x: Tensor) -> Any:
        own.dropped(x)
        with torch.no_grad():
            still = own.still(x)
        return own.used(x) + still

    names = "used", "dropped", "never", "still"
    return Built(forward, **{name: nn.Linear(6, 3) for name in names})


def test_a_layer_that_the_loss_does_not_reach_adds_nothing() -> None:
    norms, sums = clipped(dropped(), torch.randn(4, 6), torch.zeros(4, dtype=torch.int64), 1.0)
    assert float(norms.min()) > 0
    assert float(sums["used.weight"].norm()) > 0
    for name in ("dropped.weight", "never.bias", "still.weight"):
        assert not sums[name].any()


def positions(expanded: bool) -> nn.Module:
    """As it is often written: positions once for all records."""

    def forward(own: Any, x: Tensor) -> Any:
        places = torch.arange(x.shape[1])
        places = places.expand(len(x), -1) if expanded else places
        return (own.table(x) + own.position(places)).mean(dim=1)

    return Built(forward, table=nn.Embedding(9, 3), position=nn.Embedding(7, 3))


def past() -> nn.Module:
    return Built(
        lambda own, x: functional.linear(own.table(x), own.table.weight).mean(dim=1),
        table=nn.Embedding(9, 3),
    )


def listed() -> nn.Module:
    return Built(
        lambda model, x: model.own(x) * model.scales[0],
        own=nn.Linear(6, 3),
        scales=nn.ParameterList([torch.ones(3)]),
    )


def overwritten() -> nn.Module:
    def forward(model: Any, x: Tensor) -> Any:
        seen = x.clone()
        out = model.own(seen)
        seen.mul_(2)
        return out

    return Built(forward, own=nn.Linear(6, 3))


def several() -> nn.Module:
    return Built(lambda model, x: model.own(x, x), own=nn.Bilinear(6, 6, 3))


def dropping() -> nn.Module:
    return Built(
        lambda own, x: functional.dropout(x[:, :3] * own.scale), scale=nn.Parameter(torch.ones(3))
    )


def stashed() -> nn.Module:
    masked = Built(lambda own, x: x * own.scale * own.mask, scale=nn.Parameter(torch.rand(6)))

    def forward(model: Any, x: Tensor) -> Any:
        model.own.mask = x.abs()
        return model.head(model.own(x))

    return Built(forward, own=masked, head=nn.Linear(6, 3))


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
        (lambda: positions(False), TOKENS, r"layer 'position' \(Embedding\) has \(7,\) where"),
        (past, TOKENS, r"parameter 'table.weight' is used outside of its layer"),
        (listed, RECORDS, r"parameter 'scales.0' is used outside of its layer"),
        (overwritten, RECORDS, r"what went into layer 'own' \(Linear\) was changed in place"),
        (
            lambda: sequences(nn.Linear(6, 8), nn.ReLU(inplace=True), width=8),
            SEQUENCES,
            "what came out of its layer is changed in place",
        ),
        (several, RECORDS, r"layer 'own' \(Bilinear\) must take one tensor and give one"),
        (
            lambda: Built(lambda model, x: model.own(b=x), own=Either()),
            RECORDS,
            r"layer 'own' \(Either\) must take one tensor and give one",
        ),
        (dropping, RECORDS, "a Built has no gradients by record: vmap"),
    ],
)
def test_what_would_not_be_seen_is_refused(make: Made, shape: tuple[int, ...], reason: str) -> None:
    x = torch.randint(0, 9, shape) if shape == TOKENS else torch.randn(shape)
    with pytest.raises(PlanRefused, match=reason):
        clipped(make(), x, torch.zeros(4, dtype=torch.int64), 1.0)


@pytest.mark.parametrize("kind", ["positions", "stashed"])
def test_what_a_model_makes_of_each_record_is_seen(kind: str) -> None:
    model = positions(expanded=True).double()
    x = torch.randint(0, 9, (4, 7))
    if kind == "stashed":
        model, x = stashed().double(), torch.randn(RECORDS, dtype=torch.float64)
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

    def model(saves: bool) -> nn.Module:
        def forward(own: Any, x: Tensor) -> Any:
            seen = checkpoint(own.own, x, use_reentrant=False) if saves else own.own(x)
            return own.head(torch.tanh(seen))

        torch.manual_seed(1)
        return Built(forward, own=nn.Linear(6, 8), head=nn.Linear(8, 3))

    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    found, wanted = (clipped(model(saves), x, y, 0.2) for saves in (True, False))
    assert torch.equal(found[0], wanted[0])
    assert all(torch.equal(each, wanted[1][name]) for name, each in found[1].items())
