"""`ps.patch`: what it sends of a model, how it divides a loop into rounds, and what it refuses.

With the trainers themselves: `test_patched_trainers.py`.
"""

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

import secureps as ps
from secureps.client.patch import HOOKS, Rounds, _round_length
from secureps.client.session import Exchange, ExchangeTrainer
from secureps.errors import ConfigError, PlanRefused, ScriptFailed
from secureps.policy.plan import Plan
from tests.kits.federations import small_plan
from tests.kits.roles_kit import PRIVACY

WHO: dict[str, Any] = {"server": "127.0.0.1:1", "name": "me"}
MANY = (100.0, 100.0)
"""The steps and epochs that a trainer will take."""


def plan(**changed: Any) -> Plan:
    return small_plan(**{"versions": 3, "local": [], "training": {"local_steps": 2}, **changed})


class Server:
    """In place of a session: it asks for a training by each of its seeds, then has ended."""

    def __init__(self, rounds: Rounds, *seeds: int, model: Mapping[str, Any] | None = None) -> None:
        self._rounds, self._seeds = rounds, list(seeds)
        self.model = dict(model or {})
        self.work = 1.0
        self.pushed: list[dict[str, Any]] = []
        self.entered = self.left = 0
        rounds.session = self  # type: ignore[assignment]

    def __enter__(self) -> "Server":
        founded = {name: _plain(each) for name, each in self._rounds.initial.items()}
        self._publish(self.model or founded)
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.left += 1

    def pull(self) -> ps.PulledModel | None:
        if not self._seeds:
            return None
        config = ps.FitConfig({"all": len(self.pushed)}, self._seeds.pop(0), {}, work=self.work)
        return ps.PulledModel(self.model, config)

    def push(self, **told: Any) -> None:
        self.pushed.append(told)
        self._publish({**self.model, **told["parameters"]})

    def _publish(self, model: Mapping[str, Any]) -> None:
        self.model = {name: np.array(array) for name, array in model.items()}
        for array in self.model.values():
            array.flags.writeable = False


def _plain(tensor: Any) -> Any:
    return tensor.detach().float().numpy() if isinstance(tensor, torch.Tensor) else tensor


def begun(
    module: nn.Module,
    *seeds: int,
    agreed: Plan | None = None,
    length: tuple[int, int] = (0, 2),
    model: Mapping[str, Any] | None = None,
    work: float = 1.0,
) -> tuple[Rounds, Server]:
    """A loop that has joined a run of these seeds, of a plan of two steps a round."""
    rounds = Rounds(agreed or plan(), length, None)
    server = Server(rounds, *seeds, model=model)
    server.work = work
    rounds.begin(module, (0, 0), MANY, range(9))
    return rounds, server


def move(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for each in module.parameters():
            if each.requires_grad:
                each.add_(by)


def test_a_round_ends_with_its_last_step_and_the_loop_with_the_run() -> None:
    module = nn.Linear(2, 1)
    rounds, server = begun(module, 1, 2)
    for step in (0, 1, 1):  # a batch without a step, while gradients accumulate
        move(module, 1.0)
        assert not rounds.advance((step, 0))
    assert server.pushed == []
    assert not rounds.advance((2, 0))
    assert [each["steps"] for each in server.pushed] == [2]
    assert [each["examples"] for each in server.pushed] == [9]
    assert np.array_equal(server.pushed[0]["parameters"]["bias"], module.bias.detach().numpy())
    assert not rounds.advance((3, 0))
    assert rounds.advance((4, 0)), "the run has ended"
    last = module.bias.item()
    move(module, 1.0)
    assert rounds.advance((5, 0)), "a trainer that must take a least number of steps"
    assert module.bias.item() == last, "the last version is in the model, whatever it took"
    assert len(server.pushed) == 2


def test_a_round_of_epochs_ends_with_an_epoch() -> None:
    module = nn.Linear(2, 1)
    rounds, server = begun(module, 1, 2, length=(1, 2))
    assert not any(rounds.advance((step, step / 4)) for step in range(1, 8))
    assert server.pushed == []
    assert not rounds.advance((8, 2.0))
    assert [each["steps"] for each in server.pushed] == [8]


def test_work_takes_a_part_of_the_round() -> None:
    rounds, server = begun(nn.Linear(2, 1), 1, 2, length=(0, 5), work=0.5)
    assert not rounds.advance((1, 0))
    assert server.pushed == []
    rounds.advance((2, 0))
    assert [each["steps"] for each in server.pushed] == [2]


def test_an_update_that_was_lost_is_pushed_again_and_not_trained_anew() -> None:
    """The ledger refuses another one in its place: a round that waits for all would never end."""
    module = nn.Linear(2, 1)
    rounds, server = begun(module, 5, 5, 5, 6)
    move(module, 1.0)
    assert not rounds.advance((2, 0))
    first, again, third = server.pushed
    for other in (again, third):
        assert {n: a.tobytes() for n, a in first["parameters"].items()} == {
            n: a.tobytes() for n, a in other["parameters"].items()
        }
    move(module, 1.0)
    assert rounds.advance((4, 0))
    assert not np.array_equal(server.pushed[-1]["parameters"]["bias"], first["parameters"]["bias"])


def test_a_model_in_16_bits_does_not_round_the_published_values() -> None:
    module = nn.Linear(64, 1).to(torch.bfloat16)
    fine = {"weight": np.linspace(-1, 1, 64, dtype=np.float32)[None], "bias": np.full(1, 0.1, "f4")}
    rounds, server = begun(module, 1, 2, length=(0, 1), model=fine)
    assert module.weight.dtype == torch.bfloat16
    rounds.advance((1, 0))
    assert np.array_equal(server.pushed[0]["parameters"]["weight"], fine["weight"]), "no step"
    with torch.no_grad():
        module.bias.add_(0.5)
    rounds.advance((2, 0))
    moved = server.pushed[1]["parameters"]["bias"] - fine["bias"]
    assert abs(moved - 0.5) < 2e-3


def test_a_model_in_32_bits_is_pushed_to_the_bit() -> None:
    """Not as a published value and a difference, whose sum is another one."""
    module = nn.Linear(1, 1)
    large = {"weight": np.full((1, 1), 1e8, "f4"), "bias": np.zeros(1, "f4")}
    rounds, server = begun(module, 1, length=(0, 1), model=large)
    nn.init.constant_(module.weight, 0.1)
    rounds.advance((1, 0))
    assert server.pushed[0]["parameters"]["weight"].item() == np.float32(0.1)


def test_what_is_sent_of_a_model() -> None:
    """All that trains, and buffers; of what does not train a digest."""
    body, head = nn.BatchNorm1d(2), nn.Linear(2, 1)
    body.requires_grad_(False)
    model = nn.Sequential(body, head)
    rounds, server = begun(model, 1, 2, agreed=plan(frozen=["frozen.*"]))
    sent = rounds.initial
    assert sorted(sent) == [
        "0.num_batches_tracked",
        "0.running_mean",
        "0.running_var",
        "1.bias",
        "1.weight",
        "frozen.0.bias",
        "frozen.0.weight",
    ]
    assert sent["frozen.0.weight"].dtype == np.uint8
    assert sent["frozen.0.weight"].shape == (32,)
    assert rounds.kinds["0.running_var"] == "statistics"
    assert rounds.kinds["1.weight"] == "trained"
    model(torch.ones(4, 2))
    rounds.advance((2, 0))
    pushed = server.pushed[0]["parameters"]
    assert sorted(pushed) == [n for n in sorted(sent) if not n.startswith("frozen.")]
    assert pushed["0.num_batches_tracked"] == 0, "a counter adds nothing to an update"
    assert pushed["0.running_mean"].tolist() != [0, 0]


def test_a_digest_tells_values_shape_and_type_apart() -> None:
    def digest_of(tensor: torch.Tensor) -> bytes:
        module = nn.Linear(1, 1)
        module.base = nn.Parameter(tensor, requires_grad=False)
        rounds, _ = begun(module, 1, agreed=plan(frozen=["frozen.*"]))
        made: bytes = rounds.initial["frozen.base"].tobytes()
        return made

    zeros = torch.zeros(4)
    others = [torch.eye(2), zeros.reshape(2, 2), zeros.to(torch.bfloat16), zeros.double(), zeros]
    found = [digest_of(each) for each in others]
    assert len(set(found)) == len(others)
    assert digest_of(torch.zeros(4)) == found[-1]
    assert digest_of(torch.tensor(True)) != digest_of(torch.tensor(False))


def test_a_base_that_no_plan_compares_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    with pytest.raises(
        ConfigError, match=r"2 parameters do not train, '0\.weight' for one.*frozen"
    ):
        begun(model, 1)


def compiled(module: nn.Module) -> nn.Module:
    made: nn.Module = torch.compile(module, backend="eager")  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("wrap", [compiled, DataParallel, lambda m: compiled(DataParallel(m))])
def test_names_are_those_of_the_model_inside(wrap: Any) -> None:
    rounds, _ = begun(wrap(nn.Sequential(nn.Linear(2, 1), compiled(nn.Linear(1, 1)))), 1)
    assert sorted(rounds.initial) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_tied_weights_travel_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    rounds, _ = begun(model, 1)
    client = ExchangeTrainer(Exchange(), rounds.initial, 9)
    client.parameters(1)
    assert client.tied() == {"1.weight": "0.weight"}


def test_what_peft_has_put_aside_is_no_part_of_the_base() -> None:
    """The head that `modules_to_save` trains a copy of is random at each site."""
    aside = nn.Linear(2, 1).requires_grad_(False)
    head = nn.ModuleDict({"own": nn.Linear(2, 1), "original_module": aside})
    model = nn.ModuleDict({"head": head})
    rounds, _ = begun(model, 1)
    assert sorted(rounds.initial) == ["head.own.bias", "head.own.weight"]


def test_a_trainer_that_begins_again_gets_the_same_version() -> None:
    module = nn.Linear(2, 1)
    rounds, server = begun(module, 1, 2)
    first = module.bias.item()
    move(module, 1.0)
    assert not rounds.begin(module, (0, 0), MANY, range(9))
    assert module.bias.item() == first
    assert server.entered == 1


def test_the_session_is_left_when_the_training_ends_or_fails() -> None:
    rounds = Rounds(plan(), (0, 2), None)
    server = Server(rounds, 1, 2)

    def train(fails: bool) -> str:
        rounds.begin(nn.Linear(2, 1), (0, 0), MANY, range(9))
        if fails:
            raise KeyError("mine")
        return "trained"

    assert rounds.train_inside(train, fails=False) == "trained"
    assert (server.entered, server.left) == (1, 1)
    with pytest.raises(ScriptFailed, match="trains once: make and patch another"):
        rounds.train_inside(train, fails=False)
    other = Rounds(plan(), (0, 2), None)
    other.session = rounds.session
    rounds = other
    with pytest.raises(KeyError, match="mine"):
        rounds.train_inside(train, fails=True)
    assert server.left == 2


def test_a_trainer_that_ends_before_the_run_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for most, warned in ((5.0, True), (6.0, False)):
        caplog.clear()
        rounds = Rounds(plan(versions=3), (0, 2), None)
        Server(rounds, 1)
        with caplog.at_level(logging.WARNING, "secureps"):
            rounds.begin(nn.Linear(2, 1), (0, 0), (most, 1.0), range(9))
        assert ("takes 5 steps more, the run 6" in caplog.text) is warned


def test_a_judge_gets_the_model_with_the_version_in_it() -> None:
    seen: list[tuple[float, bool]] = []

    def judge(module: nn.Module) -> ps.EvaluateResult:
        seen.append((module[0].bias.item(), module[1].training))  # type: ignore[index]
        return ps.EvaluateResult(0.5, 3)

    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.Dropout().eval())
    rounds = Rounds(plan(), (0, 2), judge)
    server = Server(rounds, 1)
    rounds.begin(model, (0, 0), MANY, range(9))
    given = {name: np.full_like(array, 7) for name, array in server.model.items()}
    assert rounds.evaluate(given).loss == 0.5
    assert seen == [(7.0, False)]
    assert [model[1].training, model[2].training] == [True, False]


@pytest.mark.parametrize(
    ("training", "given", "found"),
    [
        ({"local_steps": 4}, {}, (0, 4)),
        ({"local_epochs": 2, "local_steps": 0, "lr": 0.1}, {}, (1, 2)),
        ({"lr": 0.1}, {"steps": 3}, (0, 3)),
        ({}, {"epochs": 1}, (1, 1)),
        ({"local_steps": 4}, {"steps": 4}, r"\[4, 4\]"),
        ({"local_steps": 4, "local_epochs": 1}, {}, r"\[4, 1\]"),
        ({}, {}, "got none"),
        ({}, {"steps": 1, "epochs": 1}, r"\[1, 1\]"),
        ({}, {"steps": 0}, r"\[0\]"),
        ({"local_steps": -1}, {}, r"\[-1\]"),
        ({"local_steps": 2.5}, {}, r"\[2.5\]"),
        ({"local_steps": "4"}, {}, r"\['4'\]"),
    ],
)
def test_one_thing_says_how_long_a_round_is(
    training: dict[str, Any], given: dict[str, Any], found: tuple[int, int] | str
) -> None:
    whole = {"steps": None, "epochs": None, **given}
    if isinstance(found, tuple):
        assert _round_length(plan(training=training), **whole) == found
        return
    with pytest.raises(ConfigError, match=f"how long a round is.*{found}"):
        _round_length(plan(training=training), **whole)


def test_data_without_a_length_and_a_model_in_shares_are_refused() -> None:
    rounds = Rounds(plan(), (0, 2), None)
    with pytest.raises(ConfigError, match="have no length: give examples="):
        rounds.begin(nn.Linear(2, 1), (0, 0), MANY, iter([]))
    sharded = nn.Linear(2, 1)
    sharded.weight.ds_id = 1  # type: ignore[attr-defined]
    for module in (sharded, type("FullyShardedDataParallel", (nn.Linear,), {})(2, 1)):
        with pytest.raises(ConfigError, match="each process has a share of this model"):
            rounds.begin(module, (0, 0), MANY, range(9))


def test_a_patched_trainer_goes_to_no_process_that_is_spawned() -> None:
    """A copy is made by the same `__reduce__`."""
    with pytest.raises(ConfigError, match="goes to no process that is spawned"):
        copy.deepcopy(Rounds(plan(), (0, 2), None))


PATCHED: list[Rounds] = []


class Trainer:
    """Of a library that `patch` knows, by the module that it lies in."""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setitem(HOOKS, __name__, lambda trainer, home, rounds: PATCHED.append(rounds))
    return type("Own", (Trainer,), {"__module__": "elsewhere"})()


def test_record_level_privacy_is_refused_and_so_is_another_trainer(
    known: object, tmp_path: Path
) -> None:
    private = plan(privacy=PRIVACY)
    with pytest.raises(PlanRefused, match='take TorchTrainer, or a plan with unit = "client"'):
        ps.patch(known, tmp_path, private, **WHO)
    with pytest.raises(PlanRefused):
        ps.patch(known, tmp_path, private, **WHO, private_steps=True)
    with pytest.raises(ConfigError, match=r"not Linear: a loop of your own takes part by ps\.join"):
        ps.patch(nn.Linear(2, 1), tmp_path, plan(), **WHO)
    with pytest.raises(TypeError, match="join: missing a required argument: 'server'"):
        ps.patch(known, tmp_path, plan())
    with pytest.raises(TypeError, match=r"patch: steps must be int \| None, got '3'"):
        ps.patch(known, tmp_path, plan(), **WHO, steps="3")  # type: ignore[arg-type]
    session = ps.patch(known, tmp_path, plan(), **WHO, examples=5)
    assert session.finished == ""
    assert session._trainer.kinds() is PATCHED[-1].kinds, "found when the trainer begins"
    assert PATCHED[-1].examples == 5
