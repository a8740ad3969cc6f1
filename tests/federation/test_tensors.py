"""Exactness: frozen, tied and loosely typed tensors are the same at all clients."""

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

from secureps.client.initial_model import schema_of
from secureps.client.script import Script
from secureps.client.session import Exchange, ExchangeTrainer
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
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
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan, load_plan
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema, settle_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.evaluations import Examiner, evaluated_plan, examined, judged, metrics_of
from tests.kits.federations import (
    Tensors,
    Walker,
    finished,
    layout_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.flower_apps import CLIENT_APP, initial_of, project, write

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
from tests.federation.test_tensors import Language

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
