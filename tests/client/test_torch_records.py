"""Records that a Dataset or a DataLoader makes: the same bits, whoever fetches them."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import data
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from secureps.client.torch import TorchTrainer
from secureps.client.torch_records import _Fetch
from secureps.client.trainer import Array, FitConfig, RecordPrivacy
from secureps.errors import NotFinite, PlanRefused, ScriptFailed
from secureps.wire.grpc import admission
from tests.client.test_torch import CONFIG, PRIVACY, PRIVATE, mlp, records, same
from tests.kits.torch_models import Built

COUNT = 24
X, Y = records(COUNT)
HELD_OUT = records(20, 1)
CONFIGS = pytest.mark.parametrize("config", [CONFIG, PRIVATE], ids=["plain", "private"])


class Augmented(Dataset[Any]):
    """Records that are shifted at random, by draws of all three global generators."""

    def __init__(self, x: Array = X, count: int = COUNT) -> None:
        self.x, self.count = x, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        shift = torch.randn(6) + random.random() + float(np.random.rand())
        return torch.from_numpy(self.x[number]) + shift, Y[number]


class Plain(Augmented):
    """Records as they are."""

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(self.x[number]), Y[number]


def jittered(items: list[Any]) -> Any:
    """A collate_fn that draws, too, as one that masks words does."""
    x, y = data.default_collate(items)
    return x + torch.rand(len(x), 1), y


def trainer(train: Any, model: Any = mlp, **given: Any) -> TorchTrainer:
    return TorchTrainer(model, train, HELD_OUT, device="cpu", **given)


def fitted(train: Any, config: FitConfig, **given: Any) -> dict[str, Array]:
    own = trainer(train, **given)
    return own.fit(own.parameters(1), config).parameters


def workers(items: Any, kind: str, count: int = 2, **given: Any) -> DataLoader[Any]:
    return DataLoader(items, num_workers=count, multiprocessing_context=kind, **given)


def globals_now() -> tuple[Any, ...]:
    drawn: Any = np.random.get_state()
    return random.getstate(), drawn[1].tobytes(), torch.get_rng_state().tolist()


@CONFIGS
def test_workers_fetch_the_same_bits_however_many_they_are(config: FitConfig) -> None:
    """Also under a batch size and a shuffling of their own, and in a second fit of one trainer."""
    wanted, before = fitted(Augmented(), config), globals_now()
    for loader in (
        DataLoader(Augmented(), batch_size=5, shuffle=True, drop_last=True),
        workers(Augmented(), "fork", 1),
        workers(Augmented(), "fork", 2, persistent_workers=True, prefetch_factor=1),
    ):
        own = trainer(loader)
        start = own.parameters(1)
        for _ in range(2):
            assert same(own.fit(start, config).parameters, wanted)
    assert globals_now() == before
    assert not same(fitted(Plain(), config), wanted), "it is augmented"
    assert not same(fitted(Augmented(), replace(config, seed=12)), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_workers_that_begin_anew_fetch_the_same_bits(kind: str) -> None:
    own = trainer(workers(Augmented(), kind, persistent_workers=True, collate_fn=jittered))
    start, alone = own.parameters(1), DataLoader(Augmented(), collate_fn=jittered)
    for config in (CONFIG, PRIVATE):
        assert same(own.fit(start, config).parameters, fitted(alone, config))


def test_a_record_is_augmented_anew_in_each_step_and_version() -> None:
    seen = set[bytes]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.add(outputs.detach().numpy().tobytes())
        return 0 * functional.cross_entropy(outputs, targets)

    steps = replace(CONFIG, settings={"local_steps": 3})
    for config in (steps, replace(steps, versions={"all": 1})):
        fitted(Augmented(count=1), config, model=lambda: nn.Linear(6, 3), loss=loss)
    assert len(seen) == 6


@CONFIGS
def test_tensors_have_the_same_bits_in_whatever_they_are_given(config: FitConfig) -> None:
    pair = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    wanted = fitted((X, Y), config)
    for given in (pair, DataLoader(pair, shuffle=True)):
        assert same(fitted(given, config), wanted)
    if config is CONFIG:  # under privacy noise derives from what was fetched, too
        assert same(fitted(Plain(), config), wanted)


def test_a_dataset_is_evaluated_in_order_as_many_at_a_time_as_its_loader_has() -> None:
    sizes = list[int]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(targets))
        return functional.cross_entropy(outputs, targets)

    own = TorchTrainer(mlp, (X, Y), DataLoader(Plain(), batch_size=10), loss, device="cpu")
    start = own.parameters(1)
    sizes.clear()
    found = own.evaluate(start)
    assert sizes == [10, 10, 4]
    whole = TorchTrainer(mlp, (X, Y), (X, Y), device="cpu").evaluate(start)
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    assert (found.metrics, found.examples) == (whole.metrics, COUNT)


def test_a_key_holder_in_the_same_process_draws_nothing_that_a_fit_draws() -> None:
    before = random.getstate()
    admission.JITTER.uniform(*admission.RETRY_SECONDS)
    assert random.getstate() == before


# --- dicts ------------------------------------------------------------------------


class Named(Plain):
    """Two inputs, by the names of the arguments of the model's `forward`."""

    def __getitem__(self, number: int) -> Any:
        x = self.x[number]
        return {"low": x[:3], "high": x[3:], "labels": Y[number]}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, high: Tensor, low: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(torch.cat([low, high], dim=1))}


def of_logits(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs["logits"], targets)


def test_inputs_of_a_dict_go_to_the_model_by_name_and_what_it_returns_to_the_loss() -> None:
    own = TorchTrainer(Two, Named(), Named(), of_logits, device="cpu")
    start = own.parameters(1)
    one = trainer((X, Y), lambda: Built(lambda own, x: own.body(x), body=nn.Linear(6, 3)))
    assert same(own.fit(start, CONFIG).parameters, one.fit(start, CONFIG).parameters)
    assert own.evaluate(start).examples == COUNT
    for call in (lambda: own.refuse_settings({}, PRIVACY), lambda: own.fit(start, PRIVATE)):
        with pytest.raises(PlanRefused, match=r"takes one tensor, and train has 2 inputs \(low, h"):
            call()
    with pytest.raises(ScriptFailed, match=r"cross_entropy, fails .* output that is no"):
        TorchTrainer(Two, Named(), Named(), device="cpu")


@CONFIGS
def test_one_input_of_a_dict_goes_to_the_model_as_it_is(config: FitConfig) -> None:
    given = [{"image": x, "label": y} for x, y in zip(torch.from_numpy(X), Y, strict=True)]
    assert same(fitted(DataLoader(given), config), fitted(Plain(), config))  # type: ignore[arg-type]


# --- record-level privacy ---------------------------------------------------------


def test_a_collate_fn_sees_one_record_at_a_time_under_record_level_privacy() -> None:
    seen = set[int]()

    def mixes(items: list[Any]) -> Any:
        seen.add(len(items))
        x, y = data.default_collate(items)
        return x + x.sum(dim=0), y

    fitted(DataLoader(Plain(), collate_fn=mixes), PRIVATE)
    assert seen == {1}
    fitted(DataLoader(Plain(), collate_fn=mixes), CONFIG)
    assert len(seen) > 1


class Broken(Plain):
    """Some records fail, or have another shape or type, or are no numbers."""

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        if number == 5:
            raise OSError("cannot read scan-5.png")
        if number == 8:
            return np.array(["no", "numbers"]), y
        return (x[:2], y) if number == 6 else (x.double() if number == 7 else x, y)


def moved(train: Any) -> Array:
    """The update of one private step on all records; nearly no noise."""
    privacy = RecordPrivacy(1e-9, 0.1, 1.0, 1e-5, records=COUNT)
    config = FitConfig({}, 3, {"lr": 1.0, "local_steps": 1}, privacy, secret=bytes(32))
    own = trainer(train, lambda: nn.Linear(6, 3))
    start = own.parameters(1)
    found: Array = own.fit(start, config).parameters["weight"] - start["weight"]
    return found


@pytest.mark.parametrize("count", [0, 2])
def test_a_record_that_cannot_be_fetched_adds_nothing_and_ends_nothing(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    kept = [number for number in range(COUNT) if number not in (5, 6, 7, 8)]
    given = workers(Broken(), "fork", count) if count else Broken()
    wanted = moved(TensorDataset(torch.from_numpy(X[kept]), torch.from_numpy(Y[kept])))
    np.testing.assert_allclose(moved(given), wanted, rtol=1e-4, atol=1e-7)
    assert "train[5] raised OSError: cannot read scan-5.png" in caplog.text
    assert "4 records that were drawn counted as nothing" in caplog.text


@pytest.mark.parametrize("count", [0, 2])
def test_without_privacy_it_is_named(count: int) -> None:
    for number, reason in (
        (5, r"train\[5\] raised OSError: cannot read scan-5.png \(test_torch_records.py:\d+"),
        (6, r"train: record \d+ and 7 more cannot be collated: .*a DataLoader with a collate_fn"),
    ):
        items = Subset(
            Broken(), [each for each in range(COUNT) if each not in {5, 6, 8} - {number}]
        )
        given = workers(items, "fork", count) if count else items
        with pytest.raises(ScriptFailed, match=reason):
            fitted(given, replace(CONFIG, settings={"local_epochs": 1, "batch_size": 8}))


class Watched(Plain):
    """Notes the numbers of records that are fetched."""

    fetched: ClassVar[list[int]] = []

    def __getitem__(self, number: int) -> Any:
        self.fetched.append(number)
        return super().__getitem__(number)


def test_who_is_sampled_is_drawn_anew_if_any_record_changed() -> None:
    """Else two updates would be the same where the changed record was in neither's sample."""
    drawn = []
    for more in (0.0, 0.0, 1.0):
        changed = X.copy()
        changed[3, 0] += more
        own = trainer(Watched(changed))
        start = own.parameters(1)
        Watched.fetched.clear()
        own.fit(start, PRIVATE)
        assert Watched.fetched[:COUNT] == list(range(COUNT)), "the digest reads all"
        drawn.append(Watched.fetched[COUNT:])
    assert drawn[0] == drawn[1] != drawn[2]


class Windowed(Plain):
    """Shows half of a record at random, and notes the records of which it is the second half."""

    def __init__(self, x: Array = X) -> None:
        super().__init__(x)
        self.second = dict[int, bool]()

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        self.second[number] = bool(torch.rand(()) < 0.5)
        return (x[3:] if self.second[number] else x[:3]).repeat(2), y


def test_noise_is_new_if_a_record_changed_that_only_the_draws_of_a_step_show() -> None:
    """Else the difference of two updates of one version would show the record without noise."""
    privacy = RecordPrivacy(2.0, 1.0, 1.0, 1e-5, records=COUNT)
    config = FitConfig({}, 3, {"lr": 1.0, "local_steps": 1}, privacy, secret=bytes(32))

    def stepped(items: Windowed) -> tuple[Array, bytes]:
        own = trainer(items, lambda: nn.Linear(6, 300), loss=lambda out, y: 0 * out.mean())
        start = own.parameters(1)
        found: Array = own.fit(start, config).parameters["weight"] - start["weight"]
        return found.ravel(), own._train.digest

    first, digest = stepped(Windowed())
    assert np.array_equal(first, stepped(Windowed())[0])
    alone = 0
    for number in range(12):
        changed = X.copy()
        changed[number, 5] += 1
        items = Windowed(changed)
        noise, other = stepped(items)
        if items.second[number]:
            assert abs(np.corrcoef(first, noise)[0, 1]) < 0.2
            alone += other == digest
    assert alone > 0


@pytest.mark.parametrize("rate", [1.0, 1e-9])
def test_steps_of_equal_samples_do_not_add_the_same_noise(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of all records, which are not augmented; and empty ones."""
    step, noise = torch.optim.SGD.step, list[Array]()

    def noted(own: Any, *given: Any) -> Any:
        noise.append(own.param_groups[0]["params"][0].grad.flatten().numpy().copy())
        return step(own, *given)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    privacy = RecordPrivacy(1e3, 1.0, rate, 1e-5, records=COUNT)
    config = FitConfig({}, 3, {"local_steps": 2}, privacy, secret=bytes(32))
    fitted(Plain(), config, model=lambda: nn.Linear(6, 300))
    first, second = noise
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


@pytest.mark.parametrize("count", [0, 1])
def test_a_record_that_is_a_dict_of_inputs_among_tensors_adds_nothing(count: int) -> None:
    class Mixed(Plain):
        def __getitem__(self, number: int) -> Any:
            x, y = super().__getitem__(number)
            return {"low": x, "high": x, "label": y} if number == 5 else (x, y)

    kept = [number for number in range(COUNT) if number != 5]
    given = workers(Mixed(), "fork", count) if count else Mixed()
    wanted = moved(TensorDataset(torch.from_numpy(X[kept]), torch.from_numpy(Y[kept])))
    np.testing.assert_allclose(moved(given), wanted, rtol=1e-4, atol=1e-7)


def test_a_fit_that_broke_off_half_way_leaves_nothing_to_the_next_one() -> None:
    """Its iterator is left open, and persistent workers have fetched more than was taken."""
    calls, most = list[int](), 3

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(len(targets))
        if len(calls) == most:
            raise RuntimeError("broken off")
        return functional.cross_entropy(outputs, targets)

    own = trainer(workers(Augmented(), "fork", 2, persistent_workers=True), loss=loss)
    start = own.parameters(1)
    calls.clear()
    with pytest.raises(RuntimeError, match="broken off") as broken:
        own.fit(start, CONFIG)
    for config in (replace(CONFIG, seed=12), PRIVATE, CONFIG):
        assert same(own.fit(start, config).parameters, fitted(Augmented(), config))
    assert broken.traceback, "what broke off is still there"


def test_one_loader_may_train_and_evaluate() -> None:
    shared = workers(Augmented(), "fork", 1, persistent_workers=True, batch_size=7)
    own = TorchTrainer(mlp, shared, shared, device="cpu")
    other = TorchTrainer(mlp, Augmented(), DataLoader(Augmented(), batch_size=7), device="cpu")
    start = own.parameters(1)
    for _ in range(2):
        assert own.evaluate(start) == other.evaluate(start)
        assert same(own.fit(start, CONFIG).parameters, other.fit(start, CONFIG).parameters)


# --- persons ----------------------------------------------------------------------

OWNERS = np.arange(COUNT) % 6
"""Six persons, whose records lie apart."""


def person_moved(train: Any, persons: Array, **given: Any) -> Array:
    """The update of one step for persons, all of whom are drawn; nearly no noise."""
    known: Any = {"records": 6, "unit": "person"} | given
    privacy = RecordPrivacy(1e-9, 0.1, 1.0, 1e-5, **known)
    config = FitConfig({}, 3, {"lr": 6.0, "local_steps": 1}, privacy, secret=bytes(32))
    own = trainer(train, lambda: nn.Linear(6, 3), persons=persons)
    start = own.parameters(1)
    state = own.fit(start, config).parameters
    return np.concatenate([(state[name] - start[name]).ravel() for name in start])


@pytest.mark.parametrize("count", [0, 2])
def test_persons_of_a_dataset_are_clipped_as_those_of_tensors(count: int) -> None:
    """Also of whom a record cannot be fetched: the others still count."""
    for items, failed in ((Plain(), []), (Broken(), [5, 6, 7, 8])):
        kept = np.setdiff1d(np.arange(COUNT), failed)
        wanted = person_moved((X[kept], Y[kept]), OWNERS[kept])
        given = workers(items, "fork", count) if count else items
        found = person_moved(given, OWNERS)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
        alone = person_moved(given, np.arange(COUNT), records=6)
        assert np.linalg.norm(alone - wanted) > 0.1, "it is not the clip of each record"


def test_a_person_that_leaves_a_dataset_moves_a_step_by_one_clip() -> None:
    whole = person_moved(Plain(), OWNERS)
    for person in range(6):
        kept = np.flatnonzero(person != OWNERS)
        without = person_moved(Subset(Plain(), kept.tolist()), OWNERS[kept])
        assert 0.05 < np.linalg.norm(whole - without) <= 0.1 * (1 + 1e-4)


def test_persons_of_a_dataset_are_drawn_with_all_records() -> None:
    privacy = RecordPrivacy(1.0, 1.0, 0.4, 1e-5, records=6, unit="person")
    config = FitConfig({}, 3, {"local_steps": 40}, privacy, secret=bytes(32))
    own = trainer(Watched(), persons=OWNERS)
    own._train.digest  # noqa: B018  # it reads all records once
    Watched.fetched.clear()
    own.fit(own.parameters(1), config)
    drawn = np.bincount(Watched.fetched, minlength=COUNT)
    assert drawn.tolist() == np.tile(drawn[:6], 4).tolist()
    assert 0.25 < drawn.mean() / 40 < 0.55
    ends = np.flatnonzero(np.diff(OWNERS[Watched.fetched])) + 1
    lengths = {len(each) for each in np.split(np.array(Watched.fetched), ends)}
    assert lengths <= {4, 8}, "one person's records come one after another"


def test_workers_fetch_the_same_bits_for_persons() -> None:
    config = replace(PRIVATE, privacy=replace(PRIVACY, unit="person", records=6))
    wanted = fitted(Augmented(), config, persons=OWNERS)
    for count in (1, 2):
        given = workers(Augmented(), "fork", count, persistent_workers=True)
        own = trainer(given, persons=[f"p{each}" for each in OWNERS])
        start = own.parameters(1)
        for _ in range(2):
            assert same(own.fit(start, config).parameters, wanted)


def test_whose_the_records_of_a_dataset_are_changes_what_noise_derives_from() -> None:
    """In the digest of all records, and in that of a step."""
    other = OWNERS[::-1].copy()
    made = [trainer(Plain(), persons=each)._train for each in (OWNERS, other, None)]
    assert len({each.digest for each in made}) == 3
    everyone = [np.arange(COUNT)]
    noise = set[bytes]()
    for each in made:
        ((sample, _),) = each.seeded(bytes(32)).draw(everyone, apart=True)
        assert sample.noise is not None
        noise.add(sample.noise[0].get_state().numpy().tobytes())
    assert len(noise) == 3


# --- what is refused --------------------------------------------------------------


class Stream(data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


class NoLength(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        return X[number], Y[number]


class Own(Plain):
    """Draws from a generator of its own, which nobody seeds."""

    generator = np.random.default_rng()

    def __getitem__(self, number: int) -> Any:
        return self.x[number] + self.generator.normal(size=6).astype("f4"), Y[number]


class Previous(Plain):
    """A record has something of the one that was fetched before it."""

    last = 0.0

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        x, self.last = x + self.last, float(x[0])
        return x, y


class Scaling:
    """A collate_fn that divides by the largest value that it has seen."""

    most = 0.0

    def __call__(self, items: list[Any]) -> Any:
        x, y = data.default_collate(items)
        self.most = max(self.most, float(x.abs().max()))
        return x / self.most, y


REFUSED: dict[str, tuple[Any, str]] = {
    "iterable": (Stream(), "train is an IterableDataset, whose records have no numbers"),
    "loader of iterable": (DataLoader(Stream()), "train is an IterableDataset, whose records"),
    "no length": (NoLength(), r"train: len\(\) of NoLength raised"),
    "empty": (Plain(count=0), "train: the Plain is empty; need at least 1 record"),
    "own generator": (Own(), "train: record 0 is another one each time that it is fetched"),
    "previous": (Previous(), "train: record 0 is another one each time .* of other records"),
    "raises": (Subset(Broken(), [5]), r"train\[0\] raised OSError: cannot read scan-5.png"),
    "no targets": (DataLoader([{"a": 1.0, "b": 2.0}]), "train: a record is a dict, and must be"),  # type: ignore[arg-type]
    "words": (DataLoader([("a", 1)]), r"train: 1 records are collated to a tuple \(\)"),  # type: ignore[arg-type]
    "no pair": (TensorDataset(torch.ones(3, 6)), "train is a tuple of 1, and must be a pair"),
    "three": (DataLoader([(1.0, 2, 3)]), "train: a record is a list, and must be a pair of inp"),  # type: ignore[arg-type]
    "subset sampler": (
        DataLoader(Plain(), sampler=data.SubsetRandomSampler([1, 2])),
        r"cannot keep to the DataLoader's SubsetRandomSampler: .*Subset\(dataset, indices\)",
    ),
    "replacement": (
        DataLoader(Plain(), sampler=data.RandomSampler(Plain(), replacement=True)),
        "cannot keep to the DataLoader's RandomSampler",
    ),
    "batch sampler": (DataLoader(Plain(), batch_sampler=[[0, 1]]), "the DataLoader's list: leave"),
    "batches": (DataLoader(Plain(), batch_size=None), "batch_size=None: an item must be one rec"),
    "rows": (
        DataLoader(Plain(), collate_fn=lambda items: (torch.ones(2, 6), torch.ones(2))),
        r"train: 1 records are collated to a Tensor \(2, 6\): make it a tensor with a row for each",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_records_that_cannot_be_fetched_again_are_refused_when_the_trainer_is_made(
    kind: str,
) -> None:
    given, reason = REFUSED[kind]
    with pytest.raises(ScriptFailed, match=reason):
        trainer(given)
    with pytest.raises(ScriptFailed, match=reason.replace("train", "held_out")):
        TorchTrainer(mlp, (X, Y), given, device="cpu")


def test_a_collate_fn_that_keeps_something_of_other_records_is_refused() -> None:
    rising = Plain(X * np.arange(1, COUNT + 1, dtype=np.float32)[:, None])
    with pytest.raises(ScriptFailed, match=r"train: record 0 is another one each time that it is"):
        trainer(DataLoader(rising, collate_fn=Scaling()))


def test_a_dataset_that_has_less_than_it_says_is_named() -> None:
    with pytest.raises(ScriptFailed, match=r"train\[\d+\] raised IndexError: .*out of bounds"):
        fitted(Plain(count=COUNT + 9), replace(CONFIG, settings={"local_epochs": 1}))


def test_nan_of_a_dataset_is_named_by_its_record() -> None:
    bad = X.copy()
    bad[7, 2] = np.nan
    with pytest.raises(NotFinite, match=r"loss of step \d is nan: record 7 of train has NaN"):
        fitted(Plain(bad), replace(CONFIG, settings={"local_epochs": 1}))
    own = TorchTrainer(mlp, (X, Y), Plain(bad), device="cpu")
    with pytest.raises(NotFinite, match="loss is nan: record 7 of held_out has NaN or infinity"):
        own.evaluate(own.parameters(1))


class Randomizable:
    """A transform with a generator of its own that can be seeded, as MONAI's have."""

    def __init__(self) -> None:
        self.drawn = np.random.RandomState()

    def set_random_state(self, seed: int) -> None:
        self.drawn = np.random.RandomState(seed)


class Transformed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.transforms = [Randomizable(), self]

    def __getitem__(self, number: int) -> Any:
        shift: Any = self.transforms[0]
        return self.x[number] + shift.drawn.rand(6).astype("f4"), Y[number]


def test_transforms_that_can_be_seeded_are_seeded_for_each_record() -> None:
    alone = fitted(Subset(Transformed(), range(COUNT)), CONFIG)
    assert same(fitted(workers(Transformed(), "fork"), CONFIG), alone)
    assert not same(fitted(Plain(), CONFIG), alone)


def test_transforms_are_looked_for_without_calling_anything_or_reading_all_records() -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"closed: {name}")

    class Holding(Transformed):
        def __init__(self) -> None:
            super().__init__()
            self.own = {"train": self.transforms}
            self.later, self.kind, self.torch = Closed(), Randomizable, torch
            self.paths = [Closed()] * 2000

    items = Holding()
    found = _Fetch(items, data.default_collate, "train")._own_generators
    assert found == [items.transforms[0]]
    assert same(fitted(Holding(), CONFIG), fitted(Transformed(), CONFIG))
    assert _Fetch([(Randomizable(), 1)] * 2000, len, "train")._own_generators == []


def test_a_record_is_the_same_however_many_threads_torch_has() -> None:
    class Wide(Plain):
        def __getitem__(self, number: int) -> Any:
            x, y = super().__getitem__(number)
            return x + torch.randn(400_001).sum(), y

    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            own = trainer(Wide())
            assert torch.get_num_threads() == threads
            drawn.append(own._train.digest)
    finally:
        torch.set_num_threads(before)
    assert drawn[0] == drawn[1]
