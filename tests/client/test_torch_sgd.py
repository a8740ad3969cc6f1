"""DP-SGD takes the same steps whether records pass together or one after the other."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import private_sum
from secureps.client.torch import TorchTrainer
from secureps.client.torch_sgd import Task, noise_generators, noise_seeds, refuse_compiled
from secureps.client.trainer import Array, FitConfig, RecordPrivacy
from secureps.errors import ConfigError, ScriptFailed
from tests.client.test_torch import PRIVACY, PRIVATE, trainer
from tests.kits.torch_models import CPU, Built, moved, one_by_one, own_loss


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_sample_is_as_good_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 records of 40 are drawn, and 7 are seen at a time; up to the order of float32 sums."""
    data = torch.Generator().manual_seed(2)
    x, y = torch.randn(40, 6, generator=data), torch.randint(0, 3, (40,), generator=data)
    task, found = Task(x, y, functional.cross_entropy, CPU), list[Tensor]()
    for most in (private_sum.MICROBATCH, 7):
        monkeypatch.setattr(private_sum, "MICROBATCH", most)
        hardly_noisy = RecordPrivacy(1e-9, 0.5, 0.5, 1e-5)
        found.append(moved(mlp(), task, hardly_noisy, 3, lr=0.5, momentum=0.9))
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert float(found[0].abs().mean()) > 1e-3, "nothing moved"


def test_so_many_records_are_seen_at_a_time_as_their_gradients_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 6 values of a scale, or of 6 inputs and 3 outputs of a dense layer."""

    def scale() -> nn.Module:
        return Built(lambda own, x: x * own.scale, scale=nn.Parameter(torch.ones(6)))

    def at_a_time(module: nn.Module) -> int:
        made = private_sum.make_records(torch.randn(3, 6), torch.zeros(3).long())
        return private_sum.private_sum(module, own_loss, made, 1.0).most

    monkeypatch.setattr(private_sum, "VALUES", 60)
    assert at_a_time(scale()) == 10
    assert at_a_time(nn.Linear(6, 3, bias=False)) == 6
    monkeypatch.setattr(private_sum, "VALUES", 5)
    assert at_a_time(scale()) == 1


def embedded() -> nn.Module:
    return Built(
        lambda own, x: own.head(own.table(x).mean(dim=1)),
        table=nn.Embedding(200, 50),
        head=nn.Linear(50, 3),
    )


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 3)), (100,), "0."),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(4, 250, 3), nn.Flatten(), nn.Linear(250, 3)),
        (4, 3, 3),
        "0.",
    ),
    "embedding": (embedded, (), "table."),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(5000), nn.Linear(5000, 3)), (5000,), "0."),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(5, 5000), nn.Linear(5000, 3)), (5000,), "0."),
}
"""By kind: a model, the shape of a record, the layer that is measured."""


@pytest.mark.parametrize("rate", [0.5, 1e-9], ids=["batches", "empty"])
@pytest.mark.parametrize("way", ["as chosen", "per record"])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_noise_of_every_layer_has_the_promised_variance(
    kind: str, way: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(sigma C)^2 on the sum of gradients, whatever way goes; gradients are a thousandth of it."""
    make, shape, layer = LAYERS[kind]
    torch.manual_seed(1)
    module = make().train()
    if way == "per record":
        one_by_one(monkeypatch)
    x = torch.randn(40, *shape) if shape else torch.randint(0, 200, (40, 5))
    task = Task(x, torch.randint(0, 3, (40,)), functional.cross_entropy, CPU)
    lr, steps, privacy = 1e-6 if rate < 1e-6 else 0.1, 2, RecordPrivacy(50.0, 0.3, rate, 1e-5)
    found = moved(module, task, privacy, steps, lr=lr) / (lr / (rate * len(x)))
    parts = torch.split(found.double(), [each.numel() for each in module.parameters()])
    names = [name for name, _ in module.named_parameters()]
    noise = [part for name, part in zip(names, parts, strict=True) if name.startswith(layer)]
    promised = steps * (50.0 * 0.3) ** 2
    assert len(torch.cat(noise)) >= 9_000
    assert float(torch.cat(noise).var()) == pytest.approx(promised, rel=0.08)
    for each in noise:
        if len(each) >= 1000:
            assert float(each.var()) == pytest.approx(promised, rel=0.25)


def twelve() -> tuple[Tensor, Tensor]:
    data = torch.Generator().manual_seed(2)
    x = torch.randn(12, 6, generator=data, dtype=torch.float64)
    return x, torch.randint(0, 3, (12,), generator=data)


def one_step(records: int, privacy: RecordPrivacy, seed: int) -> Tensor:
    """How far one step moves a model of doubles, of the first so many of twelve records."""
    x, y = (each[:records] for each in twelve())
    task = Task(x, y, functional.cross_entropy, CPU)
    return moved(mlp().double(), task, privacy, lr=LR, seed=seed)


def gradient(record: int, bound: float) -> Tensor:
    """One record's gradient by plain autograd, clipped by hand."""
    module, (x, y) = mlp().double(), twelve()
    torch.autograd.backward(functional.cross_entropy(module(x[[record]]), y[[record]]))
    flat = torch.cat([each.grad.flatten() for each in module.parameters() if each.grad is not None])
    return flat * min(1.0, bound / float(flat.norm()))


LR = 0.25


@pytest.mark.parametrize("way", ["together", "per record"])
@pytest.mark.parametrize("bound", [0.3, 50.0], ids=["clipped", "whole"])
@pytest.mark.parametrize("held", [1, 5, 11])
def test_a_record_more_moves_a_step_by_its_clipped_gradient_and_nothing_else(
    held: int, bound: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By lr over the public batch: what divides may depend neither on who holds how many records,
    nor on how many were drawn, or a record would show in the others' gradients too."""
    if way == "per record":
        one_by_one(monkeypatch)
    privacy = RecordPrivacy(1e-3, bound, 0.5, 1e-5, records=100)  # the noise is the same in both
    shown = 0
    for seed in range(6):
        draws = np.random.default_rng(seed).random(held + 1) < privacy.sample_rate
        more = one_step(held + 1, privacy, seed) - one_step(held, privacy, seed)
        if not draws[held]:
            assert torch.equal(more, torch.zeros_like(more)), "a record that was not drawn shows"
            continue
        public = privacy.sample_rate * 100
        wanted = -LR / public * gradient(held, bound)
        assert torch.allclose(more, wanted, rtol=1e-4, atol=1e-10)
        assert float(wanted.norm()) > 1e-4
        shown += 1
    assert shown >= 2


# --- noise of several generators ------------------------------------------------------


def noise_of(seeds: tuple[int, ...], way: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What two empty private steps move a model by, in units of sigma C; float32 (10,403,)."""
    if way == "per record":
        one_by_one(monkeypatch)
    make, shape, _ = LAYERS["linear"]
    torch.manual_seed(1)
    module = make()
    privacy = RecordPrivacy(4.0, 0.5, 1e-9, 1e-5, records=10**9)
    x, y = torch.randn(5, *shape), torch.randint(0, 3, (5,))
    task = Task(x, y, functional.cross_entropy, CPU)
    return moved(module, task, privacy, 2, noise=seeds) / (4.0 * 0.5)


@pytest.mark.parametrize("seeds", [(7,), (1, 2), (1, 2, 3, 4)])
def test_noise_is_drawn_from_each_generator_parameter_by_parameter(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, to the last bit: a step of noise is what it always was, and all of it."""
    found = [noise_of(seeds, way, monkeypatch) for way in ("together", "per record")]
    assert torch.equal(*found)
    sizes = [(100, 100), (100,), (3, 100), (3,)]
    drawn = [torch.Generator().manual_seed(seed) for seed in seeds]
    total = torch.zeros(sum(int(np.prod(size)) for size in sizes), dtype=torch.float64)
    for _ in range(2):
        for each in drawn:
            parts = [torch.normal(0.0, 1.0, size, generator=each) for size in sizes]
            total += torch.cat([part.flatten() for part in parts]).double() / len(seeds) ** 0.5
    assert torch.allclose(found[0].double(), -total, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_is_refused_by_its_layer() -> None:
    """Wrapped or in place, as a whole or in part; nothing is compiled by that."""
    inner = nn.Linear(6, 3)
    inner.compile(backend="eager")
    wrapped: Any = torch.compile(mlp(), backend="eager")
    refused: dict[str, Any] = {
        "the model is compiled": wrapped,
        "layer '1' is compiled": nn.Sequential(nn.Tanh(), inner),
        "layer '0' is compiled": nn.Sequential(wrapped, nn.Tanh()),
    }
    for reason, module in refused.items():
        with pytest.raises(ScriptFailed, match=f"{reason}, and .* leave out torch.compile"):
            refuse_compiled(module)
    refuse_compiled(mlp())


def test_no_trainer_is_made_of_a_compiled_model() -> None:
    x, y = np.zeros((4, 6), np.float32), np.zeros(4, np.int64)

    def wrapped() -> Any:
        return torch.compile(mlp(), backend="eager")

    with pytest.raises(ScriptFailed, match="need not repeat after a restart"):
        TorchTrainer(wrapped, (x, y), (x, y), device="cpu")


# --- a private fit of a TorchTrainer ----------------------------------------------


def biases(width: int) -> nn.Module:
    layer = nn.Linear(1, width)
    for each in layer.parameters():
        nn.init.zeros_(each)
    return nn.Sequential(layer)


def drift(
    rate: float,
    scale: float,
    seed: int,
    width: int = 20000,
    secret: bytes = bytes(32),
    record: float = 1.0,
) -> Array:
    """The private update of `width` biases in one step of lr 1; `scale` sizes the gradients."""
    holder = TorchTrainer(
        lambda: biases(width),
        (np.ones((50, 1), np.float32), np.full(50, record, np.float32)),
        (np.ones((1, 1), np.float32), np.ones(1, np.float32)),
        loss=lambda out, y: scale * (out[:, 0] * y).mean(),
        metrics={},
        device="cpu",
    )
    start = holder.parameters(0)
    privacy = RecordPrivacy(2.0, 3.0, rate, 1e-5)
    config = FitConfig({}, seed, {"lr": 1.0, "local_steps": 1}, privacy, secret=secret)
    found: Array = holder.fit(start, config).parameters["0.bias"]
    return found


def test_noise_depends_on_every_byte_of_the_secret() -> None:
    """63 bits of a seed would be few enough to try."""
    found = [drift(rate=1.0, scale=0.0, seed=1, width=50)]
    for at in range(32):
        secret = bytes(at) + b"\x01" + bytes(31 - at)
        found.append(drift(rate=1.0, scale=0.0, seed=1, width=50, secret=secret))
    assert len({each.tobytes() for each in found}) == 33


@pytest.mark.slow
def test_the_same_version_of_other_records_has_other_noise() -> None:
    """A record that was removed is not what is left of two updates, if state was lost between."""
    first, other = (drift(rate=1.0, scale=0.0, seed=1, record=r) for r in (1.0, 2.0))
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_private_noise_needs_a_secret() -> None:
    for secret in (b"", bytes(8)):
        with pytest.raises(ConfigError, match="a secret of 32 bytes"):
            replace(PRIVATE, secret=secret)
    assert "secret" not in repr(PRIVATE)


def test_noise_depends_on_every_bit_of_the_seed_and_not_on_the_gradients() -> None:
    first = drift(rate=1.0, scale=0.0, seed=1)
    assert not np.array_equal(first, drift(rate=1.0, scale=0.0, seed=1 + (1 << 40)))
    assert np.array_equal(first[1:], drift(rate=1.0, scale=50.0, seed=1)[1:])


def test_noise_is_new_for_whatever_else_the_server_asks_under_one_seed() -> None:
    """Else the difference of two answers would be free of noise."""
    holder = trainer()
    start = holder.parameters(1)
    nudged = start | {"3.bias": start["3.bias"] + np.float32(1e-3)}
    one_step = replace(PRIVATE, settings={"lr": 1.0, "local_steps": 1})
    asked = [
        (start, one_step),
        (nudged, one_step),
        (start, replace(one_step, settings={"lr": 1.01, "local_steps": 1})),
        (start, replace(one_step, versions={"all": 1})),
        (start, replace(one_step, privacy=replace(PRIVACY, max_grad_norm=1.01))),
    ]
    noise = [
        (holder.fit(base, config).parameters["0.weight"] - base["0.weight"]).ravel()
        for base, config in asked
    ]
    correlation = np.corrcoef(noise) - np.eye(len(asked))
    assert np.abs(correlation).max() < 0.5


# --- noise is as hard to guess as its key, on every device ---------------------------


def test_a_device_that_takes_seeds_gets_four_that_hold_256_bits_of_the_key() -> None:
    key = bytes(range(32))
    first = noise_seeds(key)
    assert len(set(first)) == 4
    assert all(0 <= seed < 1 << 64 for seed in first)
    assert max(seed.bit_length() for seed in first) == 64, "the highest bit is used"
    for at in range(32):
        changed = bytes(k ^ (i == at) for i, k in enumerate(key))
        assert all(a != b for a, b in zip(first, noise_seeds(changed), strict=True))


def test_other_devices_than_a_cpu_have_a_generator_of_each_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And take each seed whole. There need be no CUDA here to see that."""
    made: list[tuple[str, int]] = []

    class Recorded:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def manual_seed(self, seed: int) -> "Recorded":
            made.append((self.device.type, seed))
            return self

    monkeypatch.setattr(torch, "Generator", Recorded)
    key = bytes(32)
    assert len(noise_generators(key, torch.device("cuda"))) == 4
    assert made == [("cuda", seed) for seed in noise_seeds(key)]


def test_noise_on_the_cpu_is_what_it_was() -> None:
    """Its state is filled with 624 words from the key: 256 bits as they are."""
    (generator,) = noise_generators(bytes(range(32)), torch.device("cpu"))
    stream = hashlib.shake_256(b"secureps-noise" + bytes(range(32))).digest(4 * 624)
    words = generator.get_state().numpy()[24 : 24 + 8 * 624].view("<u8")
    assert words.tolist() == np.frombuffer(stream, "<u4").tolist()
