"""Gradients by record, their norms and clipped sums are those of plain autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.private_sum import (
    OuterProducts,
    PrivateSum,
    gradient_norms,
    make_records,
    private_sum,
    zero_sums,
)
from secureps.errors import PlanRefused
from tests.kits.torch_device import DEVICE
from tests.kits.torch_models import Built, gradients_of, length

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


def twice_named() -> nn.Module:
    """One vector under two names of one module."""
    vector = nn.Parameter(torch.rand(6))
    return Built(
        lambda own, x: own.head(x * own.first) * own.again[:3],
        first=vector,
        again=vector,
        head=nn.Linear(6, 3),
    )


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


def of_torch(layer: nn.Module, *, attends: bool = False) -> nn.Module:
    """A layer that gives several tensors, the first of which is [records, places, 4 or 6]."""
    width = 6 if attends else 4
    return Built(
        lambda model, x: model.head(model.own(*[x] * (3 if attends else 1))[0].mean(dim=1)),
        own=layer,
        head=nn.Linear(width, 3),
    )


def positions() -> nn.Module:
    """Positions once for all records."""
    return Built(
        lambda own, x: (own.table(x) + own.position(torch.arange(x.shape[1]))).mean(dim=1),
        table=nn.Embedding(9, 3),
        position=nn.Embedding(7, 3),
    )


def outside() -> nn.Module:
    """Uses a layer's weight without calling the layer, and once more by calling it."""
    return Built(
        lambda own, x: functional.linear(own.head(x).tanh(), own.head.weight[:, :3]),
        head=nn.Linear(6, 3),
    )


def listed() -> nn.Module:
    return Built(
        lambda model, x: model.own(x) * model.scales[0],
        own=nn.Linear(6, 3),
        scales=nn.ParameterList([torch.ones(3)]),
    )


def overwritten() -> nn.Module:
    def forward(model: Any, x: Tensor) -> Any:
        seen = x * 2
        out = model.own(seen)
        return model.head(out.relu_())

    return Built(forward, own=nn.Linear(6, 5), head=nn.Linear(5, 3))


def stashed() -> nn.Module:
    masked = Built(lambda own, x: x * own.scale * own.mask, scale=nn.Parameter(torch.rand(6)))

    def forward(model: Any, x: Tensor) -> Any:
        model.own.mask = x.abs()
        return model.head(model.own(x))

    return Built(forward, own=masked, head=nn.Linear(6, 3))


def unreached() -> nn.Module:
    """One layer whose output goes nowhere, one that is never called, one without gradients."""

    def forward(own: Any, x: Tensor) -> Any:
        own.dropped(x)
        with torch.no_grad():
            still = own.still(x)
        return own.used(x) + still

    names = "used", "dropped", "never", "still"
    return Built(forward, **{name: nn.Linear(6, 3) for name in names})


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
    "attention of torch": (
        lambda: of_torch(nn.MultiheadAttention(6, 2, batch_first=True), attends=True),
        PLACES,
    ),
    "two inputs": (
        lambda: Built(lambda model, x: model.own(x, x), own=nn.Bilinear(6, 6, 3)),
        (6,),
    ),
    "positions": (positions, (7,)),
    "outside of its layer": (outside, (6,)),
    "listed": (listed, (6,)),
    "in place": (overwritten, (6,)),
    "stashed": (stashed, (6,)),
    "unreached": (unreached, (6,)),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(9, 5), nn.Linear(5, 3)), (7,)),
    "used twice": (lambda: twice(places=False), (6,)),
    "used twice of places": (lambda: twice(places=True), PLACES),
    "shared": (shared, (6,)),
    "of two names": (twice_named, (6,)),
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
    "recurrent": (lambda: of_torch(nn.GRU(6, 4, batch_first=True)), PLACES),
    "recurrent of Opacus": (lambda: of_torch(DPLSTM(6, 4, batch_first=True)), PLACES),
}
"""By kind: a model, and the shape of a record; those of words have integers."""

WORDS = ("embedding", "padding", "one word", "tied", "positions", "bag")


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


def clipped(
    model: nn.Module, x: Tensor, y: Tensor, bound: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms of records' gradients, and their clipped sums."""
    made = [each.to(x.device) for each in make_records(x, y)]
    found = private_sum(model, functional.cross_entropy, (made[0], made[1]), bound)
    return added(found, model, x, y)


def added(
    found: PrivateSum, model: nn.Module, x: Tensor, y: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    sums = zero_sums(trained.values())
    found.add(lambda index: (x[index], y[index]), np.arange(len(x)), sums)
    assert not found.left_out
    parts = [found.gradients(x[at : at + 1], y[at : at + 1]) for at in range(len(x))]
    norms = torch.cat([gradient_norms(gradients, losses) for losses, gradients in parts])
    return norms, {name: sums[each] for name, each in trained.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_norms_and_sums_are_those_of_gradients_by_record(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of five records, and of one, in double precision, some clipped and some not."""
    for records in (5, 1):
        model, x, y = example(kind, records)
        gradients = gradients_of(model, x, y)
        flat = [torch.cat([g.flatten() for g in each.values()]) for each in gradients]
        wanted = torch.stack([each.norm() for each in flat])
        bound = float(wanted.mean())
        norms, sums = clipped(model, x, y, bound)
        assert torch.allclose(norms, wanted, rtol=1e-7, atol=1e-12)
        weights = [min(1.0, bound / (float(norm) + 1e-6)) for norm in wanted]
        assert records == 1 or min(weights) < 1 == max(weights)
        for name, found in sums.items():
            total = torch.zeros_like(found)
            for weight, each in zip(weights, gradients, strict=True):
                total += weight * each[name]
            assert torch.allclose(found, total, rtol=1e-7, atol=1e-12), name
    assert ("one record after the other" in caplog.text) is (kind == "recurrent")


@pytest.mark.parametrize(
    ("kind", "dense"),
    [
        ("linear", 2),
        ("linear of places", 1),
        ("used twice", 1),
        ("tied", 0),
        ("frozen", 1),
        ("outside of its layer", 0),
        ("weight norm", 1),
        ("in place", 2),
        ("unreached", 1),
    ],
)
def test_a_dense_layer_of_one_row_has_factors_in_place_of_gradients(kind: str, dense: int) -> None:
    """If a trial has a gradient of its weight, which is another one if the weight is used twice."""
    model, x, y = example(kind, 3)
    made = [each.to(x.device) for each in make_records(x, y)]
    found = private_sum(model, functional.cross_entropy, (made[0], made[1]), 1.0).gradients
    _, gradients = found(x, y)
    assert sum(isinstance(each, OuterProducts) for each in gradients.values()) == dense


@pytest.mark.parametrize("kind", MODELS)
def test_no_record_is_summed_longer_than_the_bound_in_single_precision(kind: str) -> None:
    model, x, y = example(kind, 3, torch.float32)
    precise, wide_x, _ = example(kind, 3)
    precise.load_state_dict(model.state_dict())
    wide_x = x if kind in WORDS else x.double()
    norms, _ = clipped(model, x, y, 1.0)
    wanted, _ = clipped(precise, wide_x, y, 1.0)
    assert torch.allclose(norms.double(), wanted, rtol=1e-3)
    for each in range(3):
        _, sums = clipped(model, x[each : each + 1], y[each : each + 1], 0.1)
        assert length(sums) <= 0.1 * (1 + 1e-6)


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
        assert length(sums) == pytest.approx(own[0].item(), rel=1e-3)


def test_weights_in_bfloat16_have_sums_in_single_precision() -> None:
    model, x, y = example("linear", 4, torch.bfloat16)
    norms, sums = clipped(model, x, y, 0.1)
    assert {each.dtype for each in (norms, *sums.values())} == {torch.float32}


def test_a_long_gradient_is_not_longer_than_its_norm() -> None:
    """In one sum of float32 a quarter of a percent would be lost, and go past the clip."""
    gradients = torch.full((1, 1 << 22), 0.7)
    norms = gradient_norms({nn.Parameter(torch.empty(0)): gradients}, torch.zeros(1))
    assert torch.allclose(norms, gradients.double().norm().float(), rtol=1e-5)


def test_weights_may_be_float32_and_float64_in_one_model() -> None:
    first, last = nn.Linear(6, 8), nn.Linear(8, 3).double()
    model = Built(lambda own, x: own.last(own.first(x).double()), first=first, last=last)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    _, sums = clipped(model, x, y, 1e9)
    gradients = gradients_of(model, x, y)
    for name, found in sums.items():
        wanted = torch.stack([each[name] for each in gradients]).sum(dim=0)
        assert found.dtype is wanted.dtype
        assert torch.allclose(found, wanted, atol=1e-5)


def test_a_table_with_sparse_gradients_is_trained() -> None:
    for sparse in (False, True):
        table = nn.Embedding(9, 4, sparse=sparse)
        torch.manual_seed(1)
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(12, 3))
        nn.init.normal_(table.weight)
        x, y = torch.randint(0, 9, (4, 3)), torch.tensor([0, 1, 2, 0])
        _, sums = clipped(model, x, y, 0.1)
        if not sparse:
            wanted = sums
    assert all(torch.allclose(sums[name], wanted[name], atol=1e-6) for name in wanted)


def test_a_weight_used_elsewhere_is_trained_though_the_trial_finds_no_gradient() -> None:
    """As below a last layer that begins at zero."""
    first, last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(own: Any, x: Tensor) -> Any:
        return own.last(functional.linear(own.first(x), own.first.weight))

    model = Built(forward, first=first, last=last)
    nn.init.zeros_(last.weight)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    made = make_records(x, y)
    found = private_sum(model, functional.cross_entropy, made, 1e9)
    nn.init.normal_(last.weight)
    _, sums = added(found, model, x, y)
    gradients = gradients_of(model, x, y)
    wanted = torch.stack([each["first.weight"] for each in gradients]).sum(dim=0)
    assert torch.allclose(sums["first.weight"], wanted, atol=1e-5)


def test_a_record_adds_no_more_than_the_bound_where_forward_leaves_autocast_on() -> None:
    def forward(own: Any, x: Tensor) -> Any:
        torch.set_autocast_enabled("cpu", True)
        return own.layer(x * own.scale).float()

    model = Built(forward, layer=nn.Linear(40, 3), scale=nn.Parameter(torch.randn(40)))
    x, y = torch.randn(4, 40), torch.tensor([0, 1, 2, 0])
    try:
        for each in range(4):
            _, sums = clipped(model, x[each : each + 1], y[each : each + 1], 0.01)
            assert length(sums) <= 0.01 * (1 + 1e-6)
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_dropout_draws_for_each_record() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(32, 3)
    model = nn.Sequential(nn.Dropout(0.5), layer).train()
    x, y = torch.ones(2, 32), torch.zeros(2).long()
    found = private_sum(model, functional.cross_entropy, make_records(x, y), 1.0).gradients
    _, gradients = found(x, y)
    factors = gradients[layer.weight]
    assert isinstance(factors, OuterProducts)
    assert not torch.equal(factors.right[0], factors.right[1])


def test_a_layer_that_is_called_once_more_than_in_the_trial_is_refused() -> None:
    """Its factors would be those of one call alone."""
    calls = list[int]()

    def forward(own: Any, x: Tensor) -> Any:
        seen = own.layer(x)
        return own.layer(seen) if calls else seen

    model = Built(forward, layer=nn.Linear(3, 3))
    x, y = torch.randn(2, 3), torch.tensor([0, 1])
    found = private_sum(model, functional.cross_entropy, make_records(x, y), 1.0)
    calls.append(1)
    with pytest.raises(PlanRefused, match="a layer is called another number of times"):
        added(found, model, x, y)
