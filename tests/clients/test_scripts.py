"""The scripts of `clients/`: they keep the contract, refuse bad settings, and learn together."""

import ast
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import secureps as ps
from secureps.client.script import Script
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import FitConfig, RecordPrivacy, Trainer
from secureps.errors import ConfigError, PlanRefused
from secureps.policy.plan import Plan, load_plan
from secureps.run.simulate.scenario_file import load_scenario
from secureps.run.simulate.simulation import simulate
from secureps.scenario.clicks import Clicks, auc
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import Tensors, Walker, small_federation
from tests.kits.nursery import ROOT
from tests.kits.trainer_kit import check_trainer

TABLE = "embedding.weight"
HOLDERS = 3
OWN_LOOP = """
name = "own-loop"
versions = 4
training = { lr = 1.0, local_steps = 8 }
cipher = { name = "plain" }
[[group]]
clip = 8.0
rule = { quorum = 3, minimum = 3, deadline = 60.0 }
[evaluation]
every = 2
metrics = { loss = 10.0, accuracy = 1.0 }
"""


def script(name: str) -> Script:
    return Script(ROOT / "clients" / f"{name}.py")


def policy(name: str) -> Plan:
    return load_plan(ROOT / "policies" / f"{name}.toml")


def config(**settings: Any) -> FitConfig:
    return FitConfig({"all": 0}, 1, settings)


@pytest.mark.parametrize(
    ("name", "settings", "training"),
    [
        ("breast_cancer", {"partition": "1"}, {"lr": 0.01, "local_epochs": 2}),
        ("ctr_torch", {"partition": "2"}, {"lr": 0.3, "momentum": 0.9, "local_epochs": 2}),
        ("digits_numpy", {"partition": "1", "partitions": "6"}, {"lr": 2.0, "local_steps": 5}),
        ("digits_torch", {"partition": "2", "device": "cpu"}, {"lr": 0.1}),
        pytest.param(
            *("lora_torch", {"partition": 2}, {"lr": 0.3, "local_steps": 2}), marks=pytest.mark.slow
        ),
    ],
)
def test_each_keeps_the_contract(
    name: str, settings: Mapping[str, Any], training: Mapping[str, float]
) -> None:
    check_trainer(lambda: script(name).make(settings), FitConfig({"all": 0}, 1 << 40, training))


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        *(
            ("breast_cancer", {"partition": each}, "partition must be 0 to 3")
            for each in ("4", "-1", "first")
        ),
        ("ctr_torch", {"partition": "40"}, "partition must be 0 to 39"),
        ("ctr_torch", {"partition": "-1"}, "partition must be 0 to 39"),
        ("ctr_torch", {"rows": "many"}, "--set: rows: must be a whole number"),
        ("ctr_torch", {"rows": "100"}, "the table needs at least 286 rows"),
        ("ctr_torch", {"records": "10"}, "records: must be 100 or more"),
        ("digits_torch", {"partitoin": "1"}, "partitoin: unknown key; did you mean partition"),
        ("digits_torch", {"partition": "6"}, "partition must be 0 to 5"),
        ("digits_torch", {"partition": "-1"}, "partition must be 0 to 5"),
        ("digits_torch", {"alpha": "much"}, "--set: alpha: must be a number"),
        ("digits_torch", {"device": "abacus"}, "no usable device 'abacus'"),
        ("digits_torch", {"partition": "0", "device": "cpu", "memory": 1.5}, "memory"),
    ],
)
def test_bad_settings_are_refused(name: str, settings: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        script(name).make(settings)


# --- breast_cancer.py -------------------------------------------------------------


def hospital(number: int) -> Any:
    return script("breast_cancer").make({"partition": str(number)})


def test_no_hospital_has_a_record_of_another() -> None:
    hospitals = [hospital(number) for number in range(4)]
    parts = [part for each in hospitals for part in (each._train, each._held_out)]
    world: Any = script("breast_cancer").make_evaluator({})
    records = [row.tobytes() for x, _ in (*parts, world._held_out) for row in x]
    assert len(records) == len(set(records)) == 569
    shares = sorted(float(each._train[1].mean()) for each in hospitals)
    assert shares[0] < 0.1, "a hospital that hardly sees a benign tumour"
    assert shares[-1] > 0.9, "and one that hardly sees any other"


@pytest.mark.slow
def test_hospitals_come_close_to_central_training(tmp_path: Path) -> None:
    simulation = small_federation(
        policy("breast_cancer"), tmp_path, seed=1, clients=4, kind=hospital
    )
    simulation.run()
    hospitals = script("breast_cancer")
    judge, central = hospitals.make_evaluator({}), hospitals.central({})
    assert judge is not None
    assert central is not None
    together = judge.evaluate(simulation.model())
    assert together.examples == central.examples == 113
    assert together.metrics["accuracy"] > 0.94
    assert abs(together.metrics["accuracy"] - central.metrics["accuracy"]) < 0.02


def test_hospitals_have_no_dp_sgd() -> None:
    made = script("breast_cancer").make({})
    protected = RecordPrivacy(1.0, 1.0, 0.5, 1e-5)
    private = FitConfig({"all": 0}, 1, {"lr": 0.01}, protected, secret=bytes(32))
    with pytest.raises(PlanRefused, match="no DP-SGD"):
        made.fit(made.parameters(1), private)


# --- ctr_torch.py -----------------------------------------------------------------


def shop(partition: int) -> TorchTrainer:
    trainer = script("ctr_torch").make({"partition": str(partition), "device": "cpu"})
    assert isinstance(trainer, TorchTrainer)
    return trainer


@pytest.mark.slow
def test_a_share_is_trained_on_but_for_a_part() -> None:
    holder, market = shop(3), Clicks()
    tasks = holder._train, holder._held_out
    assert [len(each) for each in tasks] == [510, 90]
    both = np.concatenate([each.x.numpy() for each in tasks])
    labels = np.concatenate([each.y.numpy() for each in tasks])
    mine = market.share(3)
    assert sorted(zip(map(tuple, both.tolist()), labels.tolist())) == sorted(
        zip(map(tuple, mine.x.tolist()), mine.y.tolist())
    )
    assert {0.0, 1.0} == set(holder._held_out.y.tolist())


def test_a_shop_touches_the_rows_of_its_records_and_no_others() -> None:
    mine = {row for record in Clicks().share(3).x.tolist() for row in record}
    touches = shop(3).touches()
    assert list(touches) == [TABLE]
    assert touches[TABLE].dtype == np.int64
    assert touches[TABLE].tolist() == sorted(mine)
    assert 0.05 < len(mine) / 4000 < 0.15
    assert shop(4).touches()[TABLE].tolist() != sorted(mine)


def test_a_shops_own_auc_is_of_all_its_held_out_records() -> None:
    holder = shop(2)
    told = holder.evaluate(
        holder.fit(holder.parameters(1), config(lr=0.3, momentum=0.9, local_epochs=2)).parameters
    )
    assert told.examples == 90
    assert set(told.metrics) == {"auc"}
    clicked = holder._held_out.y
    twice = told.metrics["auc"] * 2 * int(clicked.sum()) * int((1 - clicked).sum())
    assert twice == pytest.approx(round(twice))


@pytest.mark.slow
def test_central_training_of_shops_comes_near_the_best_possible() -> None:
    """0.784 of at most 0.814; a holder alone reaches 0.65 to 0.70."""
    judged = Clicks().judged()
    best = auc(judged.p, judged.y)
    central = script("ctr_torch").central({"device": "cpu"})
    world = script("ctr_torch").make_evaluator({"device": "cpu"})
    assert central is not None
    assert world is not None
    assert central.examples == 5000
    assert best - 0.05 < central.metrics["auc"] < best
    holder = shop(0)
    settings = {"lr": 0.1, "momentum": 0.9, "local_epochs": 10}
    alone = holder.fit(holder.parameters(7), FitConfig({}, 7, settings)).parameters
    assert 0.55 < world.evaluate(alone).metrics["auc"] < central.metrics["auc"] - 0.08


@pytest.mark.parametrize("name", ["ctr", "ctr_plain"])
def test_the_table_of_the_plans_is_that_of_the_script(name: str) -> None:
    """Each row-block is touched by enough holders for its rule."""
    plan = policy(name)
    table, tower = plan.section.group
    assert (table.name, tower.name) == ("embedding", "tower")
    assert table.sparse is not None
    block = table.sparse.block
    scenario = load_scenario(ROOT / "simulations" / f"{name}.toml")
    world = Clicks(int(scenario.section.settings["rows"]), scenario.section.clients)
    assert table.sparse.rows == world.rows
    touching = np.zeros(-(-world.rows // block), np.int64)
    for party in range(world.parties):
        touching[np.unique(world.share(party).x // block)] += 1
    bounds = plan.bounds("embedding.0")
    assert touching.max() == world.parties
    assert touching.min() >= max(bounds.minimum, bounds.start)
    assert touching.mean() < world.parties / 2


def smaller(folder: Path, name: str, changes: dict[str, str]) -> Path:
    text = (ROOT / name).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.slow
def test_the_scenario_of_shops_plays(tmp_path: Path) -> None:
    """simulations/ctr.toml and its plan: ten shops, four row-blocks, in the clear."""
    plan = {
        'name = "rlwe"': 'name = "plain"',
        "versions = 12": "versions = 1",
        "versions = 20": "versions = 1",
        "rows = 30000": "rows = 400",
        "block = 1000 ": "block = 100 ",
        "quorum = 24": "quorum = 5",
        "start = 72": "start = 10",
    }
    settings = 'rows = 400\nrecords = 100\nheld_out = 500\ndevice = "cpu"'
    scenario = {
        '"../clients/ctr_torch.py"': f'"{ROOT / "clients" / "ctr_torch.py"}"',
        "clients = 80": "clients = 10",
        "rows = 30000": settings,
    }
    smaller(tmp_path, "policies/ctr.toml", plan)
    smaller(tmp_path, "policies/ctr_sync.toml", {})
    out = simulate(smaller(tmp_path, "simulations/ctr.toml", scenario), tmp_path / "out", print)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["finished"] == "1 version is made"
    assert summary["versions"] == {f"embedding.{k}": 1 for k in range(4)} | {"tower": 1}
    assert summary["score"]["measure"] == "auc"
    assert sum(summary["updates"].values()) >= 4 * 7 + 5, "full buffers and a quorum"


# --- digits_numpy.py --------------------------------------------------------------


def test_a_flower_client_knows_of_secureps_in_its_last_two_lines_alone() -> None:
    tree = ast.parse((ROOT / "clients" / "digits_numpy.py").read_text())
    *above, last = tree.body
    assert isinstance(last, ast.If)
    assert len(last.body) == 2
    assert "secureps" not in "".join(ast.unparse(node) for node in above[1:])


def test_a_flower_client_reads_its_records_once_however_many_messages_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower makes a client for each: a hundred holders took minutes to read the same file."""
    trainer = script("digits_numpy").make({"partition": "1", "partitions": "7"})
    start, read = trainer.parameters(0), list[object]()
    module = sys.modules["digits_numpy"]
    load = module.load_digits

    def counted(**given: bool) -> object:
        read.append(given)
        return load(**given)

    monkeypatch.setattr(module, "load_digits", counted)
    module.dealt.cache_clear()
    for _ in range(3):
        trainer.evaluate(start)
    assert len(read) == 1


@pytest.mark.slow
def test_flower_clients_learn_and_clip_nothing(tmp_path: Path) -> None:
    plan, made = policy("digits_numpy"), script("digits_numpy")
    trainers = [made.make({"partition": str(i), "partitions": "6"}) for i in range(6)]
    simulation = small_federation(plan, tmp_path, seed=1, kind=trainers.__getitem__)
    simulation.run()
    model = simulation.model()
    panel = made.make_evaluator({"partitions": "6"})
    assert panel is not None
    told = panel.evaluate(model)
    assert told.examples > 300
    assert told.metrics["accuracy"] > 0.92
    clip = plan.group("all").clip
    start = trainers[0].parameters(0)
    for trainer in trainers:
        trained = trainer.fit(start, config(**plan.section.training)).parameters
        delta = np.concatenate([(trained[n] - start[n]).ravel() for n in start])
        assert np.linalg.norm(delta) < clip
        assert np.abs(delta).max() < (plan.group("all").range or clip)


# --- digits_torch.py --------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    script("digits_torch")
    return sys.modules["digits_torch"]


def rows(task: Any) -> set[bytes]:
    return {row.numpy().tobytes() for row in task.x}


def test_holders_share_the_training_part_and_nobody_has_the_held_out_set(
    digits: ModuleType,
) -> None:
    holders = [digits.make({"partition": str(i)}) for i in range(6)]
    world = digits.make_evaluator({})
    parts = [part for each in holders for part in (rows(each._train), rows(each._held_out))]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1438
    assert set.union(*parts) == rows(world._train)
    assert not set.union(*parts) & rows(world._held_out)
    for each in holders:
        total = len(each._train) + len(each._held_out)
        assert total >= 100
        assert len(each._held_out) / total == pytest.approx(0.15, abs=0.03)


def test_all_holders_start_from_one_model(digits: ModuleType) -> None:
    one: Trainer = digits.make({"partition": "0"})
    other: Trainer = digits.make_evaluator({})
    first, second = one.parameters(5), other.parameters(5)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert sum(array.size for array in first.values()) == 64 * 128 + 128 + 128 * 10 + 10


@pytest.mark.slow
def test_central_training_is_the_upper_mark(digits: ModuleType) -> None:
    result = digits.central({})
    assert result.examples == 359
    assert result.metrics["accuracy"] > 0.95


@pytest.mark.parametrize(
    ("device", "limited"),
    [
        ("auto", [(0.25, None)]),
        ("cuda", [(0.25, None)]),
        ("cuda:1", [(0.25, "cuda:1")]),
        ("cpu", []),
        ("cpu:0", []),
    ],
)
def test_a_share_of_the_memory_is_asked_of_the_gpu_that_is_used(
    device: str,
    limited: list[tuple[float, str | None]],
    digits: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[tuple[float, str | None]]()
    monkeypatch.setattr(digits, "TorchTrainer", lambda *_, device, persons: device)
    monkeypatch.setattr(digits.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        digits.torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given)
    )
    for memory in (1.0, 0.25):
        assert digits.make({"partition": "0", "device": device, "memory": memory}) == device
    assert asked == limited


def test_a_script_that_nobody_started_with_torchrun_is_alone(digits: ModuleType) -> None:
    digits.join_ranks()
    assert not digits.distributed.is_initialized()


# --- lora_torch.py ----------------------------------------------------------------


@pytest.mark.slow
def test_adapters_alone_are_trained() -> None:
    lora = script("lora_torch")
    holder, other = lora.make({"partition": 0}), lora.make({"partition": 1})
    start, theirs = holder.parameters(1), other.parameters(2)
    trained = FitConfig({"adapters": 0}, 1, {"lr": 0.3, "local_steps": 2})
    after = holder.fit({n: each.copy() for n, each in start.items()}, trained).parameters
    adapters = {name for name in start if "lora_" in name}
    assert {n for n in start if not np.array_equal(start[n], after[n])} <= adapters
    assert all(np.array_equal(start[n], theirs[n]) for n in {*start} - adapters), "one base"
    assert sum(start[name].size for name in adapters) == 340


def adapt(folder: Path) -> Tensors:
    written = policy("lora").section
    group = written.group[0]
    rule = group.rule.model_copy(update={"quorum": 4, "minimum": 4, "start": 4, "most": 4})
    changes = {
        "versions": 6,
        "privacy": None,
        "cipher": written.cipher.model_copy(update={"name": "plain", "capacity": 4}),
        "group": (group.model_copy(update={"rule": rule, "range": 0.5}),),
    }
    plan = Plan(written.model_copy(update=changes))
    lora = script("lora_torch")
    settings = [{"partition": number, "partitions": 4} for number in range(4)]
    played = small_federation(plan, folder, clients=4, kind=lambda i: lora.make(settings[i]))
    played.run()
    assert all("lora_" in name for name in played.model())
    return played.model()


@pytest.mark.slow
def test_the_adapters_learn_what_the_base_never_saw(tmp_path: Path) -> None:
    judge = script("lora_torch").make_evaluator({})
    assert judge is not None
    base = script("lora_torch").make({"partitions": 4}).parameters(1)
    before = judge.evaluate(base).metrics["accuracy"]
    adapted = judge.evaluate({**base, **adapt(tmp_path)}).metrics["accuracy"]
    assert before < 0.5
    assert adapted > before + 0.05


# --- own_loop.py ------------------------------------------------------------------


@pytest.mark.slow
def test_loops_of_their_own_learn_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "clients")
    import own_loop  # type: ignore[import-not-found]

    file = tmp_path / "plan.toml"
    file.write_text(OWN_LOOP)

    def play(number: int) -> str:
        name = federation.clients[number]
        arguments = ["--plan", str(file), "--server", federation.server, "--name", name]
        arguments += ["--kit", str(federation.directory), "--partition", str(number)]
        finished: str = own_loop.main([*arguments, "--partitions", str(HOLDERS)])
        return finished

    federation = DiskFederation(ps.load_plan(file), tmp_path, HOLDERS, Walker)
    federation.clients = federation.clients[:1]
    with federation, ThreadPoolExecutor(HOLDERS) as threads:
        federation.clients = tuple(f"client-{number:02d}" for number in range(HOLDERS))
        assert set(threads.map(play, range(HOLDERS))) == {"all 4 versions are made"}
        found, evaluation = federation.model(), federation.status().evaluation
    assert found is not None
    digits = own_loop.Digits(0, HOLDERS)
    before = {name: 0 * array for name, array in found[1].items()}
    assert digits.evaluate(found[1]).loss < digits.evaluate(before).loss - 0.5
    assert evaluation is not None
    metrics = {metric.name: metric.value for metric in evaluation.results[-1].metrics}
    assert metrics["accuracy"] > 0.5, "the holders' own evaluate=, inside the federation"
