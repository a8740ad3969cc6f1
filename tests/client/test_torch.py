import logging
import re
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import torch as torch_trainer
from secureps.client.torch import TorchTrainer
from secureps.client.torch_sgd import LocalSgd
from secureps.client.trainer import Array, FitConfig, RecordPrivacy
from secureps.errors import ConfigError, NotFinite, PlanRefused, ScriptFailed, WrongShape
from tests.kits.torch_models import Built

PRIVACY = RecordPrivacy(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, delta=1e-5)
CONFIG = FitConfig({"all": 0}, 11, {"lr": 0.1, "local_steps": 5, "batch_size": 8})
PRIVATE = FitConfig({"all": 0}, 11, {"lr": 0.1, "local_steps": 5}, PRIVACY, secret=bytes(32))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def records(count: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1).astype(np.int64)


def trainer(model: Any = mlp, train: Any = None, **given: Any) -> TorchTrainer:
    return TorchTrainer(model, train or records(40), records(20, 1), device="cpu", **given)


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in a
    )


def test_parameters_are_a_function_of_the_seed_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = trainer().parameters(7)
    assert torch.equal(torch.randn(3), expected)
    assert same(first, trainer().parameters(7))
    assert not same(first, trainer().parameters(7 + (1 << 40)))
    first["0.weight"][:] = 0
    assert trainer().parameters(7)["0.weight"].any()


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_that_torch_cannot_take_is_refused_by_name(seed: int) -> None:
    with pytest.raises(ConfigError, match=rf"seed: must be from 0 to 2\*\*64 - 1, and is {seed}"):
        FitConfig({"all": 0}, seed, {"lr": 0.1, "local_steps": 1, "batch_size": 8})
    last = FitConfig({"all": 0}, (1 << 64) - 1, CONFIG.settings)
    assert trainer().fit(trainer().parameters(1), last).steps == 5


def test_a_trainer_says_once_where_it_trains_if_that_is_no_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "secureps")
    own = trainer()
    own.fit(own.parameters(1), CONFIG)
    assert caplog.messages == []
    monkeypatch.setattr(torch_trainer, "name_device", lambda device: "cuda:0 (NVIDIA H200)")
    own = trainer()
    for _ in range(2):
        own.fit(own.parameters(1), CONFIG)
    assert caplog.messages == ["trains on cuda:0 (NVIDIA H200)"]


@pytest.mark.parametrize("config", [CONFIG, PRIVATE], ids=["plain", "private"])
def test_fit_repeats_its_bits_whatever_happened_before(config: FitConfig) -> None:
    holder = trainer()
    start = holder.parameters(1)
    copy = {name: array.copy() for name, array in start.items()}
    first = holder.fit(start, config)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert same(holder.fit(start, config).parameters, first.parameters)
    assert same(trainer().fit(start, config).parameters, first.parameters)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()
    assert same(start, copy)
    assert not same(first.parameters, start)
    other = holder.fit(start, replace(config, seed=config.seed + (1 << 40)))
    assert not same(other.parameters, first.parameters)
    assert (first.examples, first.steps) == (40, 5)


class Tied(nn.Module):
    """A model whose head has the table's weights, as language models do; and state of its own."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.table, self.head = nn.Linear(6, 3, bias=False), nn.Linear(6, 3, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.table(x) + self.head(x)
        return out

    def get_extra_state(self) -> dict[str, int]:
        return {"amax": 3}

    def set_extra_state(self, state: object) -> None:
        raise AssertionError("it stays as the constructor makes it")


def test_a_tensor_of_two_names_is_trained_and_returned_as_one() -> None:
    holder = trainer(Tied)
    start = holder.parameters(1)
    assert list(start) == ["table.weight", "head.weight"]
    assert holder.tied() == {"head.weight": "table.weight"}
    assert trainer(lambda: Tied(tied=False)).tied() == {}
    made = holder.fit(start, CONFIG).parameters
    assert made["head.weight"] is made["table.weight"]
    once = {"table.weight": start["table.weight"]}
    assert same(holder.fit(once, CONFIG).parameters, made), "its randomness is that of one"
    assert holder.evaluate(once) == holder.evaluate(start)


def test_a_recurrent_layer_of_opacus_has_each_weight_once() -> None:
    from opacus.layers import DPGRU

    holder = trainer(lambda: nn.ModuleDict({"rnn": DPGRU(6, 3, batch_first=True)}))
    ties = holder.tied()
    assert ties["rnn.l0.ih.weight"] == "rnn.weight_ih_l0"
    assert (len(ties), len(holder.parameters(1))) == (4, 8)


@pytest.mark.parametrize(("count", "size"), [(33, 8), (9, 8), (5, 2)])
def test_a_last_batch_of_one_record_trains_with_batch_norm(count: int, size: int) -> None:
    config = replace(CONFIG, settings={"lr": 0.1, "batch_size": size, "local_epochs": 2})
    made = trainer(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), records(count))
    fitted = made.fit(made.parameters(1), config)
    assert (fitted.examples, fitted.steps) == (count, 2 * -(-count // size))
    assert fitted.parameters["1.num_batches_tracked"] == 0, "it leaves as it came"


def test_plain_step_is_sgd_on_the_whole_batch() -> None:
    def linear() -> nn.Module:
        return nn.Linear(6, 3)

    x, y = records(40)
    holder = trainer(linear, (x, y))
    start = holder.parameters(1)
    settings = {"lr": 0.5, "batch_size": 40, "local_steps": 1}
    fitted = holder.fit(start, FitConfig({}, 3, settings)).parameters
    logits = x.astype(np.float64) @ start["weight"].T + start["bias"]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[np.arange(40), y] -= 1
    np.testing.assert_allclose(fitted["weight"], start["weight"] - 0.5 * p.T @ x / 40, atol=1e-5)


def test_private_fit_tells_no_metric_and_a_public_number_of_steps() -> None:
    holder = trainer()
    start = holder.parameters(1)
    assert holder.fit(start, PRIVATE).metrics == {}
    assert set(holder.fit(start, CONFIG).metrics) == {"loss"}
    config = replace(PRIVATE, settings={"local_epochs": 3})
    for count in (5, 40):
        assert trainer(train=records(count)).fit(start, config).steps == 6


def test_buffers_pass_through_with_their_types() -> None:
    holder = trainer(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    start = holder.parameters(1)
    assert start["1.running_mean"].dtype == np.float32
    assert start["1.num_batches_tracked"].dtype == np.int64
    assert start["1.num_batches_tracked"].shape == ()
    fitted = holder.fit(start, CONFIG).parameters
    assert fitted["1.running_mean"].any()
    # a counter of steps would be longer than the whole update that is clipped
    assert fitted["1.num_batches_tracked"] == 0
    assert fitted["1.num_batches_tracked"].dtype == np.int64
    # an average of whole numbers may come back as a float
    averaged = {name: array.astype(np.float32) for name, array in start.items()}
    averaged["1.num_batches_tracked"] += 3
    again = holder.fit(averaged, CONFIG).parameters["1.num_batches_tracked"]
    assert again == 3
    assert again.dtype == np.int64


def test_a_variance_below_zero_counts_as_zero() -> None:
    holder = trainer(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    start = holder.parameters(1)
    zero = {**start, "0.running_var": np.zeros(6, np.float32)}
    below = {**start, "0.running_var": np.full(6, -0.01, np.float32)}
    assert holder.evaluate(below) == holder.evaluate(zero)


def test_it_says_what_training_does_to_each_tensor() -> None:
    def model() -> nn.Module:
        body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        body[0].requires_grad_(False)
        return body

    kinds = trainer(model).kinds()
    found = {kind: [name for name in kinds if kinds[name] == kind] for kind in kinds.values()}
    assert found == {
        "constant": ["0.weight", "0.bias", "1.num_batches_tracked"],
        "statistics": ["1.running_mean", "1.running_var"],
        "trained": ["1.weight", "1.bias", "2.weight", "2.bias"],
    }


def test_bfloat16_travels_as_float32() -> None:
    x, y = map(torch.from_numpy, records(20))
    own = (x.bfloat16(), y)
    holder = TorchTrainer(lambda: nn.Linear(6, 3).to(torch.bfloat16), own, own, device="cpu")
    start = holder.parameters(1)
    assert start["weight"].dtype == np.float32
    assert same(start, holder.parameters(1))


def test_frozen_parameters_stay() -> None:
    def model() -> nn.Module:
        body = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
        body[0].requires_grad_(False)
        return body

    holder = trainer(model)
    start = holder.parameters(1)
    for config in (CONFIG, PRIVATE):
        fitted = holder.fit(start, config).parameters
        assert np.array_equal(fitted["0.weight"], start["0.weight"])
        assert not np.array_equal(fitted["1.weight"], start["1.weight"])


def test_nan_is_named_and_answered() -> None:
    x, y = records(40)
    bad = x.copy()
    bad[3, 2] = np.nan
    start = trainer().parameters(1)
    config = replace(CONFIG, settings={"local_epochs": 1})
    reason = r"loss of step \d is nan: record 3 of train has NaN or infinity: mend such records"
    with pytest.raises(NotFinite, match=reason):
        trainer(train=(bad, y)).fit(start, config)
    bad[4:6, 0] = np.inf
    whole = replace(CONFIG, settings={"batch_size": 40})
    with pytest.raises(NotFinite, match=r"of step 1 is nan: .* of train .*, and 2 more like it"):
        trainer(train=(bad, y)).fit(start, whole)
    steps = replace(CONFIG, settings={"lr": 1e30, "local_steps": 9})
    with pytest.raises(
        NotFinite, match=r"step 2 is (nan|inf): its records are finite, so lower lr"
    ):
        trainer().fit(start, steps)
    diverging = {"lr": 1e30, "weight_decay": 1e30, "local_steps": 1}
    with pytest.raises(NotFinite, match=r"step 1 of 1 .*0\.weight.*lower lr"):
        trainer().fit(start, replace(CONFIG, settings=diverging))
    poisoned = start | {"0.bias": np.full(16, np.inf, np.float32)}
    for call in (lambda: trainer().fit(poisoned, CONFIG), lambda: trainer().evaluate(poisoned)):
        with pytest.raises(NotFinite, match=r"0\.bias"):
            call()
    with pytest.raises(NotFinite, match="loss is nan: record 3 of held_out has NaN or infinity"):
        TorchTrainer(mlp, (x, y), (bad, y), device="cpu").evaluate(start)


def test_another_models_parameters_are_refused() -> None:
    start = trainer().parameters(1)
    with pytest.raises(WrongShape, match=r"0\.weight.*\(2, 2\).*\(16, 6\)"):
        trainer().fit(start | {"0.weight": np.zeros((2, 2))}, CONFIG)
    with pytest.raises(WrongShape, match="'extra'"):
        trainer().evaluate(start | {"extra": np.zeros(1)})
    del start["3.bias"]
    with pytest.raises(WrongShape, match=r"3\.bias.*missing"):
        trainer().evaluate(start)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"learning_rate": 0.1}, "learning_rate: unknown key; known are lr, mom"),
        ({"lr": "0.1"}, "lr: must be a number"),
        ({"lr": 0.0}, "lr: must be above 0"),
        ({"lr": float("nan")}, "lr: must be a finite number"),
        ({"batch_size": 8.0}, "batch_size: must be a whole number"),
        ({"local_steps": True}, "local_steps: must be a whole number"),
        ({"local_epochs": 0}, "local_epochs: must be 1 or more"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float | str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LocalSgd.of(settings, None)


def test_batch_size_means_nothing_under_privacy() -> None:
    assert LocalSgd.of({"batch_size": 8, "lr": 1}, None) == LocalSgd(lr=1.0, batch_size=8)
    with pytest.raises(ConfigError, match="sample rate"):
        LocalSgd.of({"batch_size": 8}, PRIVACY)


X, Y = records(4)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ((X.astype("O"), Y), "train: inputs are object, and must be numbers"),
        ((X, Y[:, None]), r"train: .* that are torch\.int64 of shape \(4, 1\): .*int64, for"),
        ((X, Y.astype("i4")), r"train: .* that are torch\.int32"),
        ((X, Y.astype("f4")), r"train: .* torch\.float32 of shape .*loss=torch\.nn\.func"),
        ((X, X), r"train: .* torch\.float32 of shape \(4, 6\)"),
        ((X, Y, Y), "train is a tuple of 3, and must be a pair of arrays or tensors"),
        (None, "train is a NoneType of 0, and must be a pair of arrays or tensors"),
    ],
)
def test_records_that_cannot_train_are_refused_when_the_trainer_is_made(
    train: Any, reason: str
) -> None:
    with pytest.raises(ScriptFailed, match=reason):
        TorchTrainer(mlp, train, (X, Y), device="cpu")
    with pytest.raises(ScriptFailed, match=reason.replace("train", "held_out")):
        TorchTrainer(mlp, (X, Y), train, device="cpu")


@pytest.mark.parametrize("loss", [functional.cross_entropy, nn.CrossEntropyLoss()])
@pytest.mark.parametrize("shift", [1, -1])
def test_classes_that_the_model_does_not_have_are_refused(loss: Any, shift: int) -> None:
    """Under record-level privacy they add nothing: a client that ended would tell of a record."""
    reason = r" is no class of the model, whose 3 outputs are classes 0 to 2 \(\d of 4 targets"
    with pytest.raises(ScriptFailed, match=rf"^held_out: target {3 if shift > 0 else -1}{reason}"):
        TorchTrainer(mlp, (X, Y), (X, Y + shift), loss, device="cpu")
    made = TorchTrainer(mlp, (X, Y + shift), (X, Y), loss, device="cpu")
    start = made.parameters(1)
    for call in (lambda: made.refuse_settings({}, None), lambda: made.fit(start, CONFIG)):
        with pytest.raises(ScriptFailed, match=f"^train: target .*{reason}"):
            call()
    made.refuse_settings({}, PRIVACY)
    made.fit(start, PRIVATE)


def named() -> nn.Module:
    return Built(lambda own, x: {"logits": own.body(x.float())}, body=nn.Linear(6, 3))


def test_a_model_that_gives_no_tensor_needs_a_loss_of_its_own() -> None:
    with pytest.raises(ScriptFailed, match=r"cross_entropy, fails .* output that is no"):
        trainer(named)

    def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs["logits"], targets)

    own = TorchTrainer(named, (X, Y), (X, Y), loss, device="cpu")
    assert own.evaluate(own.parameters(1)).metrics == {}
    asked = TorchTrainer(named, (X, Y), (X, Y), loss, {"all": loss}, device="cpu")
    with pytest.raises(ScriptFailed, match="metrics take one tensor, and the model gives a dict"):
        asked.evaluate(asked.parameters(1))


def halved() -> nn.Module:
    return Built(
        lambda own, x: own.body(x.float().reshape(len(x), 2, 3)).transpose(1, 2),
        body=nn.Linear(3, 3),
    )


@pytest.mark.parametrize(
    ("model", "train", "loss"),
    [
        (mlp, (X, np.array([0, -100, 1, 2])), functional.cross_entropy),
        (mlp, (X, Y - 1), partial(functional.cross_entropy, ignore_index=-1)),
        (mlp, (X, Y - 1), nn.CrossEntropyLoss(ignore_index=-1)),
        (mlp, (X, Y + 7), lambda outputs, targets: functional.cross_entropy(outputs, targets - 7)),
        (mlp, (X, np.eye(3, dtype="f4")[Y]), functional.cross_entropy),
        (mlp, (X, np.eye(3, dtype="f4")[Y]), functional.mse_loss),
        (mlp, (X, Y.astype("u1")), functional.cross_entropy),
        (halved, (X.astype("f8"), np.stack([Y, Y], 1)), functional.cross_entropy),
        (
            lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)),
            (X, Y),
            functional.cross_entropy,
        ),
    ],
)
def test_what_can_train_is_not_refused(model: Any, train: Any, loss: Any) -> None:
    generated: Any = (each for each in train)
    made = TorchTrainer(model, generated, train, loss, device="cpu")
    start = made.parameters(1)
    made.evaluate(made.fit(start, replace(CONFIG, settings={"local_steps": 1})).parameters)


def test_constructor_refuses_what_cannot_train() -> None:
    x, y = records(4)
    with pytest.raises(ScriptFailed, match="train: 0 inputs"):
        TorchTrainer(mlp, (x[:0], y[:0]), (x, y))
    with pytest.raises(ScriptFailed, match="held_out: 4 inputs and 3 targets"):
        TorchTrainer(mlp, (x, y), (x, y[:3]))
    with pytest.raises(ConfigError, match="device 'abacus'"):
        TorchTrainer(mlp, (x, y), (x, y), device="abacus")


# --- numbers as targets -------------------------------------------------------------


def numbers(width: int, **given: Any) -> TorchTrainer:
    x = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32)
    y = x[:, 0] * 2

    def model() -> nn.Module:
        end = nn.Flatten(0) if width == 0 else nn.Identity()
        return nn.Sequential(nn.Linear(4, max(width, 1)), end)

    return TorchTrainer(model, (x, y), (x, y), device="cpu", **given)


@pytest.mark.parametrize("of", ["classes", "numbers"])
def test_plain_training_learns(of: str) -> None:
    """Numbers by a loss for numbers, of which there is no accuracy."""
    holder = trainer(train=records(400))
    settings = {"lr": 0.2, "momentum": 0.9, "local_epochs": 10}
    if of == "numbers":
        holder, settings = numbers(0, loss=functional.mse_loss), {"lr": 0.1, "local_epochs": 20}
    start = holder.parameters(1)
    fitted = holder.fit(start, FitConfig({}, 3, settings))
    before, after = holder.evaluate(start), holder.evaluate(fitted.parameters)
    assert after == holder.evaluate(fitted.parameters)
    assert before.loss is not None
    assert after.loss is not None
    assert after.loss < (0.1 if of == "numbers" else 1) * before.loss
    if of == "numbers":
        assert after.metrics == {}
    else:
        assert (fitted.steps, after.examples) == (10 * 13, 20)
        assert after.metrics["accuracy"] > 0.7


def test_outputs_of_another_shape_than_targets_train_nothing() -> None:
    holder = numbers(1, loss=nn.functional.mse_loss)
    start = holder.parameters(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a client does that was told to
        with pytest.raises(UserWarning, match="different to the input size"):
            holder.fit(start, CONFIG)
        with pytest.raises(UserWarning, match="different to the input size"):
            holder.evaluate(start)


# --- rows that the records touch ----------------------------------------------------


def table() -> nn.Module:
    return nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(8, 3))


def shopper(touches: dict[str, NDArray[np.int64]] | None) -> TorchTrainer:
    x = np.array([[1, 4], [4, 6], [6, 1]] * 4)
    y = np.array([0, 1, 2] * 4)
    return TorchTrainer(table, (x, y), (x, y), device="cpu", touches=touches)


def test_rows_that_are_not_touched_leave_as_they_came() -> None:
    rows = np.array([1, 4, 6])
    holder = shopper({"0.weight": rows})
    assert holder.touches()["0.weight"].tolist() == [1, 4, 6]
    decaying = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "batch_size": 2}
    config = FitConfig({}, 3, decaying)
    start = holder.parameters(1)
    sparse, dense = (each.fit(start, config).parameters for each in (holder, shopper(None)))
    kept = [0, 2, 3, 5, 7]
    assert sparse["0.weight"][kept].tobytes() == start["0.weight"][kept].tobytes()
    assert (dense["0.weight"][kept] != start["0.weight"][kept]).all()  # by the decay alone
    assert (sparse["0.weight"][rows] != start["0.weight"][rows]).all()
    whole = shopper({"0.weight": np.arange(8)}).fit(start, config).parameters
    assert same(whole, dense)


def test_touches_are_copied_and_empty_by_default() -> None:
    rows = np.array([1, 4, 6])
    holder = shopper({"0.weight": rows})
    rows[0] = 3
    holder.touches()["0.weight"][0] = 5
    assert holder.touches()["0.weight"].tolist() == [1, 4, 6]
    assert shopper(None).touches() == {}


def test_rows_that_do_not_ascend_or_are_not_there_are_refused() -> None:
    for rows in ([4, 1], [1, 1], [-1, 2], [[1, 2]]):
        with pytest.raises(ScriptFailed, match=r"touches: the rows of '0\.weight' must ascend"):
            shopper({"0.weight": np.array(rows)})
    for name, row in (("1.weight", 0), ("0.weight", 8)):
        reason = f"touches: the model's tensor '{name}' is missing, or has no row {row}"
        with pytest.raises(ScriptFailed, match=re.escape(reason)):
            shopper({name: np.array([row])})
    holder = shopper({"0.weight": np.array([1, 4, 6])})
    start = holder.parameters(1)
    for table in ({"0.weight": start["0.weight"][:6]}, {"0.weight": np.array(1.0)}):
        with pytest.raises(WrongShape, match="is missing, or has no row 6"):
            holder.fit(start | table, CONFIG)


def test_a_fit_does_not_depend_on_rows_that_are_not_touched() -> None:
    """Of a row-block that was not pulled, nobody can say what is in it."""
    rows, others = np.array([1, 4, 6]), [0, 2, 3, 5, 7]
    holder = shopper({"0.weight": rows})
    config = FitConfig({}, 3, {"lr": 0.1, "batch_size": 2})
    start = holder.parameters(1)
    strange = {**start, "0.weight": start["0.weight"].copy()}
    strange["0.weight"][others] = 77.0
    one, other = (holder.fit(each, config).parameters for each in (start, strange))
    assert one["0.weight"][rows].tobytes() == other["0.weight"][rows].tobytes()
    assert (other["0.weight"][others] == 77.0).all()
    assert one["2.weight"].tobytes() == other["2.weight"].tobytes()
    strange["0.weight"][1] = 0.5
    assert holder.fit(strange, config).parameters["2.weight"].tobytes() != one["2.weight"].tobytes()


def test_no_noise_covers_which_rows_are_touched() -> None:
    holder = shopper({"0.weight": np.array([1, 4, 6])})
    with pytest.raises(PlanRefused, match=r"which rows of '0\.weight' a client sends"):
        holder.fit(holder.parameters(1), PRIVATE)


def test_metrics_are_of_all_records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the mean over batches, which for a rank statistic is another number."""
    monkeypatch.setattr("secureps.client.torch.EVALUATION_BATCH", 7)
    seen = []

    def spread(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append((len(outputs), len(targets)))
        return outputs.amax() - outputs.amin()

    holder = TorchTrainer(
        lambda: nn.Linear(6, 3), records(4), records(20, 1), metrics={"spread": spread}
    )
    start = holder.parameters(1)
    outputs = records(20, 1)[0] @ start["weight"].T + start["bias"]
    told = holder.evaluate(start)
    assert seen == [(20, 20)]
    assert told.metrics["spread"] == pytest.approx(outputs.max() - outputs.min(), rel=1e-5)


# --- devices ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["fit", "private fit", "evaluate"])
def test_a_device_without_memory_is_named(asked: str) -> None:
    """What a training goes on with on another device has other bits: nothing does by itself."""

    def fails(own: Any, x: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0")

    holder = trainer(lambda: Built(fails, inner=nn.Linear(6, 3)))
    start = holder.parameters(1)
    config = PRIVATE if asked == "private fit" else CONFIG
    with pytest.raises(ScriptFailed) as caught:
        holder.evaluate(start) if asked == "evaluate" else holder.fit(start, config)
    size = "the sample rate" if asked == "private fit" else "batch_size"
    assert str(caught.value) == (
        f"cpu has no memory left (CUDA out of memory. Tried to allocate 2 GiB.): lower {size}, "
        "let fewer clients share it, or take device=cpu"
    )


# --- optimizers, schedules, losses and models as they are -----------------------------


def by_hand(optimizer: Any, schedule: Any, steps: int) -> dict[str, Array]:
    """A linear model after steps on all records at once."""
    x, y = map(torch.from_numpy, records(40))
    model = nn.Linear(6, 3)
    state = trainer(lambda: nn.Linear(6, 3)).parameters(1)
    model.load_state_dict({name: torch.from_numpy(each) for name, each in state.items()})
    own = optimizer(model.parameters())
    rate = schedule(own, steps)
    for _ in range(steps):
        own.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        own.step()
        rate.step()
    return {name: each.detach().numpy() for name, each in model.state_dict().items()}


def halves(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=steps)


def test_an_optimizer_and_a_schedule_take_the_steps_of_a_plain_loop() -> None:
    """With the plan's lr and weight_decay, its own momenta, and a state that ends with the fit."""
    settings = {"lr": 0.05, "weight_decay": 0.2, "batch_size": 40, "local_steps": 6}
    adam = partial(torch.optim.AdamW, betas=(0.8, 0.9))
    own = trainer(lambda: nn.Linear(6, 3), optimizer=adam, schedule=halves)
    start = own.parameters(1)
    wanted = by_hand(partial(adam, lr=0.05, weight_decay=0.2), halves, 6)
    config = replace(CONFIG, settings=settings)
    own.refuse_settings(settings, None)
    for _ in range(2):
        made = own.fit(start, config).parameters
        for name, each in wanted.items():
            np.testing.assert_allclose(made[name], each, rtol=1e-4, atol=1e-6)


def test_sgd_is_the_default_and_an_optimizer_has_its_own_rate_if_the_plan_has_none() -> None:
    asked = list[dict[str, Any]]()

    def adam(parameters: Any, **given: Any) -> torch.optim.Optimizer:
        asked.append(given)
        return torch.optim.Adam(parameters, **given)

    own = trainer(optimizer=adam)
    start = own.parameters(1)
    for settings in ({"local_steps": 1}, {"local_steps": 1, "lr": 0.2, "weight_decay": 0.0}):
        own.fit(start, replace(CONFIG, settings=settings))
    assert asked == [{}, {"lr": 0.2, "weight_decay": 0.0}]
    explicit = trainer(optimizer=torch.optim.SGD)
    for config in (CONFIG, PRIVATE):
        wanted = trainer().fit(start, config).parameters
        assert same(explicit.fit(start, config).parameters, wanted)


UNFIT: dict[str, tuple[dict[str, Any], dict[str, float], type[Exception], str]] = {
    "momentum": (
        {"optimizer": torch.optim.AdamW},
        {"momentum": 0.9},
        ConfigError,
        "the optimizer: got an unexpected keyword argument 'momentum'; it gets the parameters",
    ),
    "no rate": (
        {"optimizer": lambda parameters, lr: torch.optim.AdamW(parameters, lr)},
        {},
        ConfigError,
        "training: the optimizer: missing a required argument: 'lr'",
    ),
    "closure": (
        {"optimizer": torch.optim.LBFGS},
        {},
        ScriptFailed,
        r"LBFGS.step: missing .*'closure'; TorchTrainer calls step\(\), so it takes neither",
    ),
    "measure": (
        {"schedule": lambda optimizer, _: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)},
        {},
        ScriptFailed,
        "ReduceLROnPlateau.step: missing a required argument: 'metrics'",
    ),
    "another model's": (
        {"optimizer": lambda _: torch.optim.AdamW(mlp().parameters())},
        {},
        ScriptFailed,
        "the optimizer must train the parameters that it is given",
    ),
    "some": (
        {"optimizer": lambda parameters: torch.optim.AdamW(parameters[:1])},
        {},
        ScriptFailed,
        "must train the parameters that it is given, and all",
    ),
    "none": ({"optimizer": lambda _: None}, {}, ScriptFailed, "the optimizer must train"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_optimizer_or_schedule_is_refused_before_a_run_begins(kind: str) -> None:
    given, settings, error, reason = UNFIT[kind]
    own = trainer(**given)
    start = own.parameters(1)
    config = replace(CONFIG, settings=settings)
    for call in (lambda: own.refuse_settings(settings, None), lambda: own.fit(start, config)):
        with pytest.raises(error, match=reason):
            call()


@pytest.mark.parametrize("given", [{"optimizer": torch.optim.AdamW}, {"schedule": halves}])
def test_record_level_privacy_takes_steps_of_sgd_alone(given: dict[str, Any]) -> None:
    own = trainer(**given)
    start = own.parameters(1)
    for call in (lambda: own.refuse_settings({}, PRIVACY), lambda: own.fit(start, PRIVATE)):
        with pytest.raises(PlanRefused, match="steps are those of SGD at the plan's lr, from wh"):
            call()


def test_a_model_is_copied_for_each_use_and_keeps_its_own_weights() -> None:
    torch.manual_seed(3)
    model = mlp()
    own = trainer(model)
    start = own.parameters(1)
    assert same(start, own.parameters(2))
    assert all(np.array_equal(start[n], each.numpy()) for n, each in model.state_dict().items())
    for each in model.parameters():
        nn.init.zeros_(each)  # its owner trains on
    made = own.fit(start, CONFIG).parameters
    assert not same(made, start)
    assert same(own.parameters(1), start)


def test_a_loss_may_be_a_module_of_torch_and_has_no_parameters() -> None:
    """Its weights of classes move to the device with it."""
    weights = torch.tensor([1.0, 2.0, 3.0])
    own = trainer(loss=nn.CrossEntropyLoss(weights))
    function = trainer(loss=partial(functional.cross_entropy, weight=weights))
    start = own.parameters(1)
    assert same(own.fit(start, CONFIG).parameters, function.fit(start, CONFIG).parameters)
    meta = TorchTrainer(mlp, (X, Y), (X, Y), nn.CrossEntropyLoss(weights), {}, device="meta")
    assert meta._loss.weight.device.type == "meta"  # type: ignore[attr-defined]
    with pytest.raises(ScriptFailed, match="the loss has parameters, which nobody trains"):
        TorchTrainer(mlp, (X, Y), (X, Y), nn.Linear(3, 1), device="cpu")
