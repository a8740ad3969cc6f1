"""Exactness: frozen, tied and loosely typed tensors are the same at all clients.
Exactness: a plan that states only its rule, and BatchNorm, train as averaging of floats.
Exactness: updates and pulls that are made small are the same bits for everybody.
"""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import worker
from secureps.client.initial_model import schema_of
from secureps.client.script import Script
from secureps.client.session import Exchange, ExchangeTrainer
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.client.update import Update, clip_update
from secureps.client.worker import ClientWorker
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import (
    ConfigError,
    PlanRefused,
    ScriptFailed,
    SecurepsError,
    TooFew,
    WrongShape,
)
from secureps.messages import coordinator_records
from secureps.messages.encoding import file_digest
from secureps.messages.requests import Payload, Telemetry
from secureps.messages.run import Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_codes
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import plan_epsilon
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from secureps.roles.member.tasks import Contribute, kept_key
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema, settle_schema
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.scenario.datasets import digits
from tests.kits.evaluations import Examiner, evaluated_plan, examined, judged, metrics_of
from tests.kits.federations import (
    Tensors,
    Walker,
    averaged,
    finished,
    layout_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.feedback_kit import Recorded, recomputed
from tests.kits.flower_apps import CLIENT_APP, initial_of, project, write
from tests.kits.privacy_kit import PRIVACY, facts_of, least_cipher, private_plan, scales
from tests.kits.thin_group import FED_BACK, RULE, THIN

FROZEN: dict[str, Any] = {"frozen": ["base.*"]}
CLIENTS = client_names(6)


class Adapter(Walker):
    """A walker with a base that it never moves, from `base`; its updates depend on the base."""

    def __init__(self, number: int, base: float = 1.5) -> None:
        super().__init__(number)
        self.base = base

    def parameters(self, seed: int) -> Tensors:
        base: Tensors = {
            "base.scale": np.full(3, self.base, np.float32),
            "base.seen": np.array(7, np.int64),
        }
        return base | super().parameters(seed)

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        base = {name: parameters.pop(name) for name in ("base.scale", "base.seen")}
        assert base["base.scale"].tolist() == [self.base] * 3
        assert base["base.seen"] == 7
        result = super().fit(parameters, config)
        return FitResult(
            {**base, **result.parameters}, result.examples, result.metrics, result.steps
        )


def federation(folder: Path, plan: Plan, other: Adapter | None = None, **more: Any) -> Simulation:
    """Six adapters on one base, the last of which is `other`."""
    trainers = {name: Adapter(i) for i, name in enumerate(CLIENTS)}
    if other is not None:
        trainers[CLIENTS[-1]] = other
    return Simulation(plan, Cast(trainers, UnsafeSeed(3)), folder, **more)


def five() -> Plan:
    return small_plan(versions=2, rule={"quorum": 5}, **FROZEN)


def test_the_model_is_that_of_a_run_without_the_base(tmp_path: Path) -> None:
    """The same bits as without any base: it is in no update, no norm and no checkpoint."""
    played = federation(tmp_path / "frozen", small_plan(versions=2, **FROZEN))
    played.run()
    assert sorted(played.model()) == ["body.weight", "head.bias"]
    assert same(played.model(), unharmed(versions=2)[0])
    assert played.versions() == {"all": 2}


def test_a_client_with_another_base_is_refused_by_the_tensor(tmp_path: Path) -> None:
    other = Adapter(5, base=1.75)
    played = federation(tmp_path, five(), other)
    played.run(lambda: finished(played))
    assert other.fits == 0
    assert played.versions() == {"all": 2}
    journal = played._stores["coordinator"].journal
    joined = {
        record.client
        for _, record in journal.replay()
        if isinstance(record, coordinator_records.MemberJoined)
    }
    assert joined == {*CLIENTS[:5]}
    halt = played.parties[CLIENTS[-1]].halted.result()
    assert halt.error is WrongShape
    assert "base.scale is frozen, and has other values than the run's: make it from" in halt.reason


def test_a_file_of_version_0_has_the_base_too(tmp_path: Path) -> None:
    start = Adapter(0).parameters(11)
    path = tmp_path / "start.safetensors"
    save_file(start, path)
    made = small_plan(versions=2, initial=str(path), **FROZEN)
    plan = Plan(made.section, file_digest(path.read_bytes()).hex())
    schema = read_initial_schema(plan)
    assert schema is not None
    assert schema.valued == {"base.scale", "base.seen"}
    played = federation(tmp_path, plan, initial=schema)
    played.run()
    assert played.versions() == {"all": 2}


def test_a_file_without_the_base_is_no_start(tmp_path: Path) -> None:
    save_file(Walker(0).parameters(11), tmp_path / "start.safetensors")
    plan = small_plan(initial=str(tmp_path / "start.safetensors"), **FROZEN)
    with pytest.raises(PlanRefused, match=r"frozen: no tensor matches 'base\.\*'"):
        read_initial_schema(plan)


@pytest.mark.parametrize("moves", [False, True])
def test_a_frozen_array_never_travels_and_an_app_that_moves_it_is_told(
    moves: bool, tmp_path: Path
) -> None:
    source = CLIENT_APP if moves else CLIENT_APP.replace("bias + noise", "bias")
    script, plan = Script(write(tmp_path, source)), small_plan(versions=2, frozen=["*1"], local=[])
    trainers = {name: script.make({"partition": i}) for i, name in enumerate(CLIENTS)}
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path / "run")
    if moves:
        with pytest.raises(SecurepsError, match="was trained, and the plan has it frozen"):
            simulation.run()
        return
    simulation.run()
    assert [array.shape for array in simulation.model().values()] == [(30, 7)]


WORDS, WIDTH = 12, 6
FIVE = client_names(5)
TABLE, HEAD = "table.weight", "head.weight"


class Language(nn.Module):
    """Guesses the next word; its head is its table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(words))
        return out


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Language().table

    def forward(self, words: Tensor) -> Tensor:
        return functional.linear(self.table(words), self.table.weight)


def trainers(model: type[nn.Module] = Language) -> dict[str, TorchTrainer]:
    def text(seed: int) -> tuple[Any, Any]:
        words = np.random.default_rng(seed).integers(0, WORDS, 40)
        return words, (words + 1) % WORDS

    return {
        name: TorchTrainer(model, text(number), text(99), device="cpu")
        for number, name in enumerate(FIVE)
    }


def tied_plan(cipher: str = "plain", **changes: Any) -> Plan:
    settings = {"lr": 0.5, "batch_size": 8}
    made: dict[str, Any] = {"local": [], "training": settings, "versions": 2, "clients": 5}
    return small_plan(cipher, **(made | changes))


def played_tied(folder: Path, own: Plan, model: type[nn.Module] = Language) -> Simulation:
    run = Simulation(
        own, Cast(dict(trainers(model)), UnsafeSeed(3)), folder, None, read_initial_schema(own)
    )
    run.run()
    assert run.versions() == {"all": own.section.versions}
    return run


def test_the_model_is_that_of_one_name_and_costs_as_much(tmp_path: Path) -> None:
    two, one = (
        played_tied(tmp_path / kind.__name__, tied_plan(), kind) for kind in (Language, Once)
    )
    assert sorted(two.model()) == [HEAD, TABLE]
    assert same({TABLE: two.model()[TABLE]}, one.model())
    assert np.array_equal(two.model()[HEAD], two.model()[TABLE])
    assert [g.size for g in layout_of(two).groups] == [WORDS * WIDTH]


def test_an_exported_model_has_all_names_and_begins_a_run_again(tmp_path: Path) -> None:
    own = tied_plan(checkpoint_every=1)
    first = played_tied(tmp_path / "first", own)
    file = tmp_path / "model.safetensors"
    export(tmp_path / "first", file)
    written = load_file(file)
    assert same(dict(sorted(written.items())), dict(sorted(first.model().items())))
    Language().load_state_dict({name: torch.from_numpy(each) for name, each in written.items()})
    again = played_tied(tmp_path / "again", from_file(tmp_path, file))
    assert sorted(again.model()) == [HEAD, TABLE]


def from_file(folder: Path, file: Path) -> Plan:
    path = folder / "plan.toml"
    path.write_text(
        f'name = "again"\nversions = 1\nshards = 2\nblock_size = 64\ninitial = "{file}"\n'
        '[cipher]\nname = "plain"\ncapacity = 8\n[[group]]\nclip = 3.0\nrange = 1.0\n'
        "rule = { quorum = 5, deadline = 10.0 }\n[training]\nlr = 0.5\nbatch_size = 8\n"
    )
    return load_plan(path)


def test_a_file_may_leave_a_further_name_out(tmp_path: Path) -> None:
    """As `transformers` does, which does not say so; safetensors' own `save_model` says it."""
    model = Language()
    table = model.table.weight.detach().numpy()
    save_file({TABLE: table}, tmp_path / "bare.safetensors")
    bare = played_tied(tmp_path / "bare", from_file(tmp_path, tmp_path / "bare.safetensors"))
    assert sorted(bare.model()) == [TABLE]
    save_model(model, str(tmp_path / "told.safetensors"))
    with safe_open(tmp_path / "told.safetensors", "numpy") as file:
        assert len(file.keys()) == 1
    told = read_initial_schema(from_file(tmp_path, tmp_path / "told.safetensors"))
    assert told is not None
    assert len(told.untied.tensors) == 1
    assert len(told.tensors) == 2


def test_a_file_of_two_tensors_is_refused_and_says_which_to_leave_out(tmp_path: Path) -> None:
    table = Language().table.weight.detach().numpy()
    save_file({TABLE: table, HEAD: table + 1}, tmp_path / "two.safetensors")
    own, holder = from_file(tmp_path, tmp_path / "two.safetensors"), trainers()[FIVE[0]]
    made = schema_of(holder.parameters(1), holder.tied())
    reason = f"{HEAD} is another name of {TABLE} .tied weights., and the run has two tensors"
    with pytest.raises(ConfigError, match=reason):
        settle_schema(own, made)
    run = Simulation(
        own, Cast(dict(trainers()), UnsafeSeed(3)), tmp_path, None, read_initial_schema(own)
    )
    end = run.parties[FIVE[0]].halted
    run.run(end.done)
    assert end.result().error is WrongShape
    assert f"{HEAD} is another name of {TABLE}" in end.result().reason


SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tests.federation.test_exactness import Language

app = ServerApp()

@app.main()
def main(grid, context):
    model = Language()
    FedAvg().start(grid, {arrays})
"""


@pytest.mark.parametrize(
    ("package", "arrays", "names"),
    [
        ("tied_named", "ArrayRecord(model.state_dict())", [HEAD, TABLE]),
        ("tied_listed", "ArrayRecord([each.numpy() for each in model.state_dict().values()])",
         ["arr_0", "arr_1"]),
    ],
)  # fmt: skip
def test_what_a_server_app_has_tied_travels_once(
    package: str, arrays: str, names: list[str], tmp_path: Path
) -> None:
    path = project(tmp_path, package, server=SERVER.format(arrays=arrays))
    file = initial_of(path, tmp_path / "initial.safetensors")
    own = from_file(tmp_path, tmp_path / "initial.safetensors")
    holders = {name: Script(path).make({"initial": file, "bonus": 1}) for name in FIVE}
    run = Simulation(own, Cast(holders, UnsafeSeed(3)), tmp_path, None, read_initial_schema(own))
    run.run()
    model, first = run.model(), load_file(file)
    assert sorted(model) == names
    assert np.array_equal(model[names[0]], model[names[1]])
    assert not np.array_equal(model[names[0]], first[names[0]])
    assert [g.size for g in layout_of(run).groups] == [WORDS * WIDTH]


def test_what_a_loop_has_tied_travels_once() -> None:
    """Views of one memory; not zeros that two tensors begin from."""
    state, zeros = Language().state_dict(), np.zeros(3, np.float32)
    arrays = {name: each.numpy() for name, each in state.items()}
    for tied in (state, arrays, lambda seed: arrays):
        loop = ExchangeTrainer(Exchange(), tied, 1)
        loop.parameters(1)
        assert loop.tied() == {HEAD: TABLE}
    apart = {"a": zeros, "b": zeros, "flat": arrays[TABLE].reshape(-1), "table": arrays[TABLE]}
    loop = ExchangeTrainer(Exchange(), apart, 1)
    loop.parameters(1)
    assert loop.tied() == {}


def test_a_plan_keeps_a_tensor_by_its_first_name() -> None:
    holder = trainers()[FIVE[0]]
    made = schema_of(holder.parameters(1), holder.tied())
    with pytest.raises(PlanRefused, match=f"local: {HEAD} is another name of {TABLE}"):
        tied_plan(local=["head.*"]).layout(made)
    with pytest.raises(PlanRefused, match="all are local"):
        tied_plan(local=["*.weight"]).layout(made)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(HEAD, (2, 3), "float32@nowhere"),
        TensorSpec(HEAD, (3, 2), f"float32@{TABLE}"),
        TensorSpec(HEAD, (2, 3), f"float64@{TABLE}"),
        TensorSpec(HEAD, (2, 3), f"float32@{HEAD}"),
    ],
)
def test_a_name_of_no_such_tensor_is_refused(spec: TensorSpec) -> None:
    with pytest.raises(PlanRefused, match=f"tensor '{HEAD}' is tied to"):
        tied_plan().layout(Schema((TensorSpec(TABLE, (2, 3), "float32"), spec)))


class Loose(Examiner):
    """Returns what torch and NumPy make of the same numbers, and metrics that are none."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        plain = super().fit(parameters, config)
        loose: dict[str, Any] = {
            name: torch.tensor(each, dtype=torch.float64, requires_grad=True)
            for name, each in plain.parameters.items()
        }
        loose["head.bias"] = plain.parameters["head.bias"].tolist()
        nothing: Any = None
        examples: Any = np.float32(plain.examples)
        return FitResult(loose, examples, nothing, np.int64(plain.steps))  # type: ignore[arg-type]

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        plain = judged(self.number, parameters)
        metrics: Any = {
            "accuracy": torch.tensor(plain.metrics["accuracy"], dtype=torch.float64),
            "table": [1, 2],
        }
        loss: Any = np.array([plain.loss])
        examples: Any = np.int64(plain.examples)
        return EvaluateResult(loss, examples, metrics)


def test_the_same_bits_as_of_plain_numbers(tmp_path: Path) -> None:
    plan = evaluated_plan()
    plain = examined(plan, tmp_path / "plain")
    loose = small_federation(plan, tmp_path / "loose", kind=Loose)
    for played in (plain, loose):
        played.run()
    assert same(plain.model(), loose.model())
    assert metrics_of(plain) == metrics_of(loose)


class Empty(Walker):
    """Has no records in versions before `since`."""

    def __init__(self, number: int, since: int) -> None:
        super().__init__(number)
        self._since = since

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        made = super().fit(parameters, config)
        there = config.versions["all"] >= self._since
        return FitResult(made.parameters, made.examples * there, {}, made.steps)


def sitting_out(folder: Path, since: dict[str, int], **changes: Any) -> Simulation:
    group = {"clip": 3.0, "range": 1.0, "rule": {"quorum": 6, "minimum": 4, "deadline": 10.0}}
    plan = small_plan(group=[{**group, **changes}], versions=3)
    return small_federation(plan, folder, kind=lambda i: Empty(i, since.get(CLIENTS[i], 0)))


@pytest.mark.parametrize("how", [{}, {"most_examples": 32}, {"weighting": "uniform"}], ids=str)
def test_who_has_no_examples_sits_out_and_comes_back(how: dict[str, Any], tmp_path: Path) -> None:
    """Also where each site counts by a number of its own."""
    played = sitting_out(tmp_path, {CLIENTS[5]: 2}, **how)
    played.run()
    assert played.versions() == {"all": 3}
    counted = [id.client for id in played.coordinator.federation.fates]
    assert (counted.count(CLIENTS[4]), counted.count(CLIENTS[5])) == (3, 1)


@pytest.mark.parametrize("how", [{}, {"most_examples": 32}, {"weighting": "uniform"}], ids=str)
def test_where_nobody_has_examples_the_run_ends_and_says_so(
    how: dict[str, Any], tmp_path: Path
) -> None:
    played = sitting_out(tmp_path, dict.fromkeys(CLIENTS, 3), **how)
    played.run(lambda: finished(played))
    federal = played.coordinator.federation
    assert "too few clients are left for version 1 of all" in federal.finished
    assert "its script trained on 0 examples" in federal.finished
    assert federal.failure == TooFew.__name__


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (np.array([7, 2**24 + 1]), r"tensor 'ids' \(int64\) has the value 16777217"),
        (np.array([0, 2**63 - 1]), r"tensor 'ids' \(int64\) has the value 9223372036854775807"),
        (np.array([1.0, 0.1]), r"tensor 'ids' \(float64\) has the value 0\.1"),
    ],
    ids=["past 2^24", "the largest", "a constant"],
)
def test_a_number_that_float32_cannot_hold_is_refused_and_stays_itself_where_frozen(
    tensor: np.ndarray[Any, Any], named: str, tmp_path: Path
) -> None:
    class Named(Walker):
        def parameters(self, seed: int) -> Tensors:
            return {"ids": tensor.copy(), **super().parameters(seed)}

        def kinds(self) -> dict[str, str]:
            return {"ids": "constant"}

        def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
            ids = parameters.pop("ids")
            assert np.array_equal(ids, tensor), "it became another number"
            made = super().fit(parameters, config)
            return FitResult({"ids": ids, **made.parameters}, made.examples, {}, made.steps)

    travels = small_federation(small_plan(versions=2), tmp_path / "travels", kind=Named)
    founder = travels.parties[CLIENTS[0]].halted
    travels.run(founder.done)
    halt = founder.result()
    assert halt.error is ScriptFailed
    assert "what parameters returned: " in halt.reason
    assert re.search(named, halt.reason)
    assert "which float32 cannot hold" in halt.reason
    frozen = small_plan(versions=2, frozen=["ids"])
    played = small_federation(frozen, tmp_path / "frozen", kind=Named)
    played.run()
    assert same(played.model(), unharmed(versions=2)[0])


def test_a_counter_that_grows_past_what_float32_holds_is_refused(tmp_path: Path) -> None:
    class Counts(Walker):
        def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
            made = super().fit(parameters, config)
            made.parameters["body.count"] = np.array(2**24 + 1)
            return made

    played = small_federation(small_plan(local=[], versions=1), tmp_path, kind=Counts)
    ends = [played.parties[name].halted for name in CLIENTS]
    played.run(lambda: all(end.done() for end in ends))
    assert "what fit returned: tensor 'body.count' (int64) has the value 16777217" in (
        ends[0].result().reason
    )


def test_a_flower_node_without_held_out_records_trains_on(tmp_path: Path) -> None:
    """It said 0 examples, and its client and `up` ended with it."""
    empty = CLIENT_APP.replace(
        "return loss, 4 + self.partition", "return loss, 4 * (self.partition > 0)"
    )
    script = Script(write(tmp_path, empty))
    trainers = {
        name: script.make({"partition": number}, tmp_path / name, name)
        for number, name in enumerate(CLIENTS)
    }
    plan = evaluated_plan(
        local=[],
        training={"lr": 0.5},
        versions=2,
        evaluation={"metrics": {"accuracy": 1.0}, "rule": {"quorum": 6, "minimum": 5}},
    )
    played = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path / "run")
    played.run()
    assert played.versions() == {"all": 2}
    assert list(metrics_of(played)) == [2]


FEW_VERSIONS = 6


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


SHARES = (20, 1000, 40, 60, 80)
LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 4}


def cast() -> dict[str, TorchTrainer]:
    data, start, trainers = digits(1), 0, {}
    held_out = (data.held_out_x, data.held_out_y)
    for number, size in enumerate(SHARES):
        part = slice(start, start + size)
        trainers[f"client-{number:02d}"] = TorchTrainer(
            perceptron, (data.x[part], data.y[part]), held_out, device="cpu"
        )
        start += size
    return trainers


@pytest.mark.slow
def test_a_minimal_plan_is_within_a_point_of_float_averaging(tmp_path: Path) -> None:
    body = {
        "name": "minimal",
        "versions": FEW_VERSIONS,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}}],
        "training": LOCAL,
    }
    plan = Plan(parse(PlanSection, body, "test"))
    trainers = cast()
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(UnsafeSeed(3).derive("initial").integer(63))
    floats = judge.evaluate(averaged(trainers, start, FEW_VERSIONS, LOCAL)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert ours > floats - 0.01


VERSIONS = 6
SETTINGS = {"lr": 0.05, "batch_size": 16, "local_epochs": 2}


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.BatchNorm1d(24),
        nn.ReLU(), nn.Linear(24, 3),
    )  # fmt: skip


def records_of(seed: int, count: int, unit: float) -> tuple[Any, Any]:
    """Three classes, inputs far from zero: without running statistics nothing is told apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    centre = np.array([[6.0, 4.0], [8.0, 4.0], [7.0, 6.0]])
    x = rng.normal(5.0, 1.0, (count, 8))
    x[:, :2] = centre[y] + rng.normal(0, 0.5, (count, 2))
    return (x * unit).astype(np.float32), y.astype(np.int64)


def averagers(unit: float = 1.0) -> dict[str, TorchTrainer]:
    held_out = records_of(99, 500, unit)
    return {
        name: TorchTrainer(model, records_of(i, 120, unit), held_out, device="cpu")
        for i, name in enumerate(FIVE)
    }


def averaging(folder: Path, **changes: Any) -> Simulation:
    group = {
        "clip": 40.0,
        "range": 4.0,
        "most_examples": 128,
        "rule": {"quorum": 5, "deadline": 10.0},
    } | changes.pop("group", {})
    apart, unit = changes.pop("apart", []), changes.pop("unit", 1.0)
    made: dict[str, Any] = {"local": [], "training": SETTINGS, "versions": VERSIONS} | changes
    plan = small_plan(group=[*apart, group], **made)
    return Simulation(plan, Cast(averagers(unit), UnsafeSeed(3)), folder)


@pytest.mark.slow
def test_statistics_in_a_group_of_their_own_end_as_plain_averaging_does(tmp_path: Path) -> None:
    """Inputs of some hundreds: variances of ten thousand, which no grid for weights carries."""
    rule = {"rule": {"quorum": 5, "deadline": 10.0}}
    apart = {"name": "statistics", "pattern": "*running_*", "bits": 24, "range": 1e5, **rule}
    played = averaging(tmp_path, apart=[apart], unit=100.0)
    played.run()
    cast = averagers(100.0)
    judge = cast[FIVE[0]]
    reached = judge.evaluate(dict(played.model())).metrics["accuracy"]
    floats = averaged(cast, judge.parameters(1), VERSIONS, SETTINGS)
    plain = judge.evaluate(floats).metrics["accuracy"]
    assert plain > 0.93
    assert reached >= plain - 0.03, "runs of other seeds differ by 0.02"
    assert int(played.model()["1.num_batches_tracked"]) == 0


def test_statistics_that_a_range_cuts_shrink_no_weights_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    averaging(tmp_path, versions=1, unit=100.0).run()
    assert "update norm" not in caplog.text, "their length is in no norm"
    told = [each for each in caplog.messages if "beyond range" in each]
    assert len(told) == len(FIVE)
    assert all(" of them in 1.running_" in each for each in told)


@pytest.mark.slow
def test_what_is_cut_is_told_where_it_is_cut_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    played = averaging(tmp_path, versions=1, group={"clip": 0.1, "range": 0.01})
    played.run()
    told = [each for each in caplog.records if "update norm" in each.getMessage()]
    assert len(told) == len(FIVE)
    assert "client-00: update norm" in caplog.text
    assert "clip 0.1: cut to" in caplog.text
    assert "values are beyond range 0.01: cut to it" in caplog.text
    parties = {each.getMessage().partition(":")[0] for each in told}
    assert parties == set(FIVE)
    reports = played.coordinator.telemetry
    figures = {figure.name for report in reports for figure in report.figures}
    assert figures
    assert not any("norm" in name or "clip" in name for name in figures)


def test_noise_on_running_statistics_is_refused_by_their_client(tmp_path: Path) -> None:
    private = PRIVACY | {"placement": "local"}
    group = {"weighting": "uniform", "range": None}
    played = averaging(tmp_path, privacy=private, group=group, versions=1)
    with pytest.raises(PlanRefused, match=r"'1\.running_mean' and 3 more"):
        played.run()
    kept = ["*running_mean", "*running_var"]
    averaging(tmp_path / "kept", privacy=private, group=group, versions=1, local=kept).run()


PRIVATE = {"codec": THIN[:2], "feedback": True, "weighting": "uniform"}


def private(placement: str, cipher: str = "bfv", **group: Any) -> Plan:
    rule = {"quorum": 6, "minimum": 5, "deadline": 10.0, "extensions": 0}
    own = {"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": rule}
    return private_plan(placement, cipher, group=[own | group], block_size=64)


@pytest.mark.parametrize("placement", ["local", "distributed", "aggregator"])
def test_client_level_privacy_is_charged_for_the_integers_that_are_sent(
    placement: str, tmp_path: Path
) -> None:
    """The ledger's numbers are those of fewer values."""
    plan = private(placement, least_cipher(placement), **PRIVATE)
    simulation = small_federation(plan, tmp_path)
    simulation.run()
    layout = layout_of(simulation).group("all")
    assert (layout.size, layout.sent) == (217, 55)
    facts = facts_of(simulation.coordinator.federation.ledger, "client-02")
    mechanism = ClientMechanism(1.0, 55, 16, 1.0, placement, plan.honest("all"))  # type: ignore[arg-type]
    assert list(facts) == [mechanism.release("client-02", "all", v) for v in range(4)]


def test_a_public_support_earns_no_amplification() -> None:
    """One in four of 220 values costs what all of 55 do, and no less by a digit."""
    thin = private("local", "plain", codec=[{"name": "support", "one_in": 4}])
    whole = private("local", "plain")
    assert thin.chain("all").one_in == 4
    for versions in (1, 4):
        spent = [plan_epsilon(each, {"all": 55}, versions) for each in (thin, whole)]
        assert spent[0] == spent[1] > 0


@pytest.mark.parametrize("shape", ["one value", "alike", "along a row", "random"])
def test_no_update_is_longer_in_integers_than_its_mechanism_says(shape: str) -> None:
    """Of the clip's whole length, through support and rotation, with the worst rest there is."""
    plan = private("local", "plain", codec=["rotate"], bits=10)
    layout = GroupLayout("all", (), 217, 63)
    mechanism = plan.mechanism("all", layout.sent)
    assert mechanism is not None
    x = np.random.default_rng(1).standard_normal(layout.size)
    if shape != "random":
        x = np.zeros(layout.size)
        x[{"one value": slice(3, 4), "alike": slice(None), "along a row": slice(0, 60)}[shape]] = 1
    update, _ = clip_l2(x * 1e6, 1.0)
    code_of = block_codes(plan, layout, 0, [bytes(32)] * layout.blocks)
    spans = [slice(*layout.span(k)) for k in range(layout.blocks)]
    encoded = np.concatenate([code_of(k).encode(update[span]) for k, span in enumerate(spans)])
    assert np.linalg.norm(encoded) <= 1 + 1e-7
    whole, _ = clip_l2(encoded, 1.0)
    words = UnsafeSeed(1).derive("words").words
    for _ in range(20):
        rounded = mechanism.round_update(whole, words)
        assert int(rounded @ rounded) <= mechanism.l2_sensitivity**2
        assert np.abs(rounded).sum() <= mechanism.l1_sensitivity


GROUP = {"codec": [{"name": "support", "one_in": 3}, "rotate"], "feedback": True} | {
    "clip": 1.0,
    "range": 0.25,
    "bits": 4,
    "most_examples": 32,
}


def recorded(folder: Path, plan: Plan) -> Simulation:
    return small_federation(plan, folder, kind=Recorded)


STAGES = ({"name": "support", "one_in": 3}, "rotate", {"name": "round", "length": "mean_norm"})


def assert_kept(simulation: Simulation, client: str) -> None:
    found = recomputed(simulation, client)
    assert found is not None
    last, rest = found
    spool, key = simulation._stores[client].spool, kept_key("all", last.update)
    assert [each for each in spool.keys("kept/") if each != key] == []
    assert spool.get(key)[32:] == rest.astype("<f4").tobytes()
    assert 0 < np.linalg.norm(rest) < 1.5


def test_what_is_kept_is_in_the_models_units_where_the_range_moves(tmp_path: Path) -> None:
    group = {key: value for key, value in GROUP.items() if key != "range"}
    own = small_plan(group=[group | {"codec": STAGES, "rule": {"quorum": 6}}])
    simulation = recorded(tmp_path, own)
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


FOLLOWS = (*THIN[:2], {"name": "round", "length": "mean_norm"})
CLIP = 64.0


FOLLOWING = FED_BACK | {"codec": FOLLOWS, "clip": CLIP, "weighting": "uniform", "rule": RULE}


def following_plan(
    cipher: str = "plain", local: tuple[str, ...] = ("*.count",), **more: Any
) -> Plan:
    return small_plan(cipher, versions=6, local=local, group=[FOLLOWING | more])


@pytest.mark.parametrize("feedback", [True, False])
def test_the_range_follows_the_mean_norm(
    feedback: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a clip that is far too long, by a factor of at most four in a version."""
    norms = dict[float, list[float]]()

    def noted(*given: Any) -> Update:
        made = clip_update(*given)
        norms.setdefault(given[3], []).append(made.norm)
        return made

    monkeypatch.setattr(worker, "clip_update", noted)
    simulation = small_federation(following_plan(feedback=feedback), tmp_path)
    simulation.run(lambda: finished(simulation))
    found = scales(simulation)
    assert [found[version] for version in range(3)] == [1.0, 0.25, 0.0625]
    for version in range(3, 6):
        mean = np.mean(norms[found[version]])
        assert found[version + 1] == pytest.approx(mean / CLIP, rel=0.3)
        assert found[version + 1] < 0.06


class Steady(Walker):
    """Begins with zeros, and takes the same step every time."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.step = 0.1 * np.random.default_rng(number).standard_normal(200, np.float32)

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.zeros(200, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + self.step}, 10, {}, 1)


def test_a_range_that_follows_loses_less_than_one_that_stays(tmp_path: Path) -> None:
    """Where the clip is far too long; the first versions are rounded as coarsely by both."""
    mean = np.mean([Steady(number).step for number in range(6)], axis=0)
    far = []
    for length in ("clip", "mean_norm"):
        codec = ("rotate", {"name": "round", "length": length})
        own = following_plan(local=(), codec=codec, feedback=False, bits=6)
        simulation = small_federation(own, tmp_path / length, kind=Steady)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        far.append(float(np.linalg.norm(simulation.model()["body"] - 6 * mean)))
    assert far[1] < far[0] / 2


GROUPS: dict[str, dict[str, Any]] = {"every value": {"range": 1.0, "clip": 3.0}, "a part": FED_BACK}


def delta_plan(kind: str = "a part", rule: dict[str, Any] = RULE, **more: Any) -> Plan:
    group = GROUPS[kind] | {"most_examples": 32, "rule": rule, "pull_bits": 4}
    return small_plan(group=[group], **more)


class Traffic:
    """Payload bytes to every client, in the order in which they were sent."""

    def __init__(self) -> None:
        self.down: dict[str, list[int]] = {}
        self.told: list[float] = []

    def note(self, sender: str, to: str, message: Any) -> float:
        if isinstance(message, Payload):
            self.down.setdefault(to, []).append(len(message.payload))
        if isinstance(message, Telemetry):
            self.told += [f.value for f in message.figures if f.name == "bytes_down"]
        return 0.0


@pytest.mark.parametrize(
    ("kind", "whole", "delta"),
    [("every value", (64, 25), (1 + 32, 1 + 16)), ("a part", (64, 25), (1 + 8, 1 + 4))],
)
def test_what_clients_pull_after_the_first_version(
    kind: str, whole: tuple[int, int], delta: tuple[int, int], tmp_path: Path
) -> None:
    """Of three full blocks and a last one: 4 bytes for eight values, of all or of a quarter."""
    traffic = Traffic()
    small_federation(delta_plan(kind=kind), tmp_path, Conditions(traffic.note)).run()
    for client in client_names(6):
        first, rest = traffic.down[client][:4], traffic.down[client][4:]
        assert sorted(first) == sorted([*(3 * [4 * whole[0]]), 4 * whole[1]])
        assert sorted(rest) == sorted(3 * [*(3 * [delta[0]]), delta[1]])
    assert traffic.told[-6:] == [3 * delta[0] + delta[1]] * 6, "and so they say"


def test_who_skips_versions_pulls_their_differences_one_after_another(tmp_path: Path) -> None:
    """A client trains while others make several versions."""
    rule, traffic = {"quorum": 5, "deadline": 10.0, "extensions": 1}, Traffic()
    own = delta_plan(rule=rule, versions=12, checkpoint_every=4)

    def cost(who: str, task: object) -> float:
        return 35.0 if who == "client-05" and isinstance(task, Contribute) else 0.0

    simulation = small_federation(own, tmp_path, Conditions(traffic.note), cost=cost)
    simulation.run(lambda: finished(simulation))
    lengths = set(traffic.down["client-05"])
    assert lengths & {2 * 9, 3 * 9, 4 * 9}, "several differences in one payload"


def test_a_client_keeps_no_more_than_it_needs(tmp_path: Path) -> None:
    """The blocks that differences are from, until the new ones are there."""
    simulation = small_federation(delta_plan(), tmp_path)
    most = 0

    def over() -> bool:
        nonlocal most
        worker = simulation.parties["client-00"].worker
        assert isinstance(worker, ClientWorker)
        most = max(most, len(worker.pulled))
        return finished(simulation)

    simulation.run(over)
    assert most == 2 * 4
