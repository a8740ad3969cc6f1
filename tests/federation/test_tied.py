"""Tied weights are one tensor: sent, clipped and noised once, and written under all their names."""

from __future__ import annotations

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
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, PlanRefused, WrongShape
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan, load_plan
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema, settle_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import layout_of, same, small_plan
from tests.kits.flower_apps import initial_of, project

WORDS, WIDTH = 12, 6
CLIENTS = client_names(5)
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
    """The same with one name for it."""

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
        for number, name in enumerate(CLIENTS)
    }


def plan(cipher: str = "plain", **changes: Any) -> Plan:
    settings = {"lr": 0.5, "batch_size": 8}
    made: dict[str, Any] = {"local": [], "training": settings, "versions": 2, "clients": 5}
    return small_plan(cipher, **(made | changes))


def played(folder: Path, own: Plan, model: type[nn.Module] = Language) -> Simulation:
    run = Simulation(
        own, Cast(dict(trainers(model)), UnsafeSeed(3)), folder, None, read_initial_schema(own)
    )
    run.run()
    assert run.versions() == {"all": own.section.versions}
    return run


def test_the_model_is_that_of_one_name_and_costs_as_much(tmp_path: Path) -> None:
    two, one = (played(tmp_path / kind.__name__, plan(), kind) for kind in (Language, Once))
    assert sorted(two.model()) == [HEAD, TABLE]
    assert same({TABLE: two.model()[TABLE]}, one.model())
    assert np.array_equal(two.model()[HEAD], two.model()[TABLE])
    assert [g.size for g in layout_of(two).groups] == [WORDS * WIDTH]


def test_an_exported_model_has_all_names_and_begins_a_run_again(tmp_path: Path) -> None:
    own = plan(checkpoint_every=1)
    first = played(tmp_path / "first", own)
    file = tmp_path / "model.safetensors"
    export(tmp_path / "first", file)
    written = load_file(file)
    assert same(dict(sorted(written.items())), dict(sorted(first.model().items())))
    Language().load_state_dict({name: torch.from_numpy(each) for name, each in written.items()})
    again = played(tmp_path / "again", from_file(tmp_path, file))
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
    bare = played(tmp_path / "bare", from_file(tmp_path, tmp_path / "bare.safetensors"))
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
    own, holder = from_file(tmp_path, tmp_path / "two.safetensors"), trainers()[CLIENTS[0]]
    made = schema_of(holder.parameters(1), holder.tied())
    reason = f"{HEAD} is another name of {TABLE} .tied weights., and the run has two tensors"
    with pytest.raises(ConfigError, match=reason):
        settle_schema(own, made)
    run = Simulation(
        own, Cast(dict(trainers()), UnsafeSeed(3)), tmp_path, None, read_initial_schema(own)
    )
    end = run.parties[CLIENTS[0]].halted
    run.run(end.done)
    assert end.result().error is WrongShape
    assert f"{HEAD} is another name of {TABLE}" in end.result().reason


SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from tests.federation.test_tied import Language

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
    holders = {name: Script(path).make({"initial": file, "bonus": 1}) for name in CLIENTS}
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
    holder = trainers()[CLIENTS[0]]
    made = schema_of(holder.parameters(1), holder.tied())
    with pytest.raises(PlanRefused, match=f"local: {HEAD} is another name of {TABLE}"):
        plan(local=["head.*"]).layout(made)
    with pytest.raises(PlanRefused, match="all are local"):
        plan(local=["*.weight"]).layout(made)


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
        plan().layout(Schema((TensorSpec(TABLE, (2, 3), "float32"), spec)))
