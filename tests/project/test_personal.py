"""The page on personal layers and adapters: its examples train, and are scored as it says."""

import json
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as torch_load_file
from torch import nn

from secureps.client.initial_model import LocalTensors
from secureps.client.script import Script
from secureps.run.script.scoring import OF_THEIR_OWN
from secureps.run.simulate.simulation import simulate
from secureps.run.up.folder import client_names
from tests.kits.evaluations import metrics_of
from tests.kits.federations import Tensors, same, small_federation, small_plan
from tests.kits.nursery import ROOT

PAGE = (ROOT / "docs" / "personal.md").read_text()
SCRIPT, ADAPTED, LOADED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LOCAL, FROZEN, OF_BERT = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
PLAN = """
name = "personal"
versions = 4
block_size = 256
{local}
[cipher]
name = "plain"
capacity = 8
[[group]]
clip = 20.0
range = 4.0
rule = {{ quorum = 5, deadline = 30.0 }}
[training]
lr = 0.2
local_epochs = 3
"""
SCENARIO = """
name = "personal"
plan = "plan.toml"
script = "script.py"
clients = 5
seed = 3
[settings]
data = "{data}"
"""


def scenario(folder: Path, local: str = LOCAL, script: str = SCRIPT) -> Path:
    """Five holders whose labels are each its own way round: no head suits all of them."""
    for partition in range(5):
        rng = np.random.default_rng(partition)
        x = rng.normal(size=(160, 8)).astype(np.float32)
        y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
        np.savez(folder / f"{partition}.npz", x=x, y=y if partition % 2 else 1 - y)
    (folder / "script.py").write_text(script)
    (folder / "plan.toml").write_text(PLAN.format(local=local))
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(data=folder))
    return path


@pytest.mark.slow
def test_personal_heads_train_and_each_holder_judges_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    out = simulate(scenario(tmp_path), tmp_path / "out", said.append)
    summary = json.loads((out / "summary.json").read_text())
    assert OF_THEIR_OWN in said
    assert summary["notes"] == [OF_THEIR_OWN]
    assert summary["score"]["examples"] == 5 * 40
    assert summary["score"]["value"] > 0.8, "one head for all would be right in half of them"
    assert not any(name.startswith("head.") for name in load_file(out / "model.safetensors"))


@pytest.mark.slow
def test_a_client_that_is_killed_judges_and_trains_on_with_its_own_head(tmp_path: Path) -> None:
    """Killed while it trains, and again once a version is there that it has to judge."""
    path = scenario(tmp_path)
    evaluation = {"every": 2, "metrics": {"loss": 10.0, "accuracy": 1.0}}
    rule = {"quorum": 5, "deadline": 30.0}

    def play(
        folder: Path, *kills: int
    ) -> tuple[Tensors, dict[int, dict[str, float]], list[Tensors]]:
        plan = small_plan(
            local=["head.*"],
            group=[{"clip": 20.0, "range": 4.0, "rule": rule}],
            evaluation=evaluation,
            training={"lr": 0.2, "local_epochs": 3},
        )
        make = Script(path.parent / "script.py").make
        played = small_federation(
            plan,
            folder,
            clients=5,
            kind=lambda i: make({"data": str(tmp_path), "partition": i}),
            cost=lambda name, task: 1.0,
        )
        for version in kills:
            played.run(lambda: played.versions()["all"] >= version)  # noqa: B023
            played.kill("client-02")
            played.start("client-02")
        played.run()
        heads = [LocalTensors(folder / name).load() for name in client_names(5)]
        return played.model(), metrics_of(played), [head for head in heads if head is not None]

    calm, broken = play(tmp_path / "calm"), play(tmp_path / "broken", 1, 2, 4)
    assert same(broken[0], calm[0])
    assert broken[1] == calm[1]
    assert len(calm[2]) == 5
    assert all(same(one, other) for one, other in zip(broken[2], calm[2], strict=True))


def test_an_adapter_is_loaded_over_its_base(tmp_path: Path) -> None:
    """Five holders train it; what is exported goes over the base, as the page says."""
    names: dict[str, Any] = {"nn": nn}
    exec(ADAPTED, names)
    torch.manual_seed(1)
    pretrained = nn.Linear(8, 2).state_dict()
    torch.save(pretrained, tmp_path / "base.pt")
    base = f"torch.load({str(tmp_path / 'base.pt')!r}, weights_only=True)"
    script = "import torch\n" + SCRIPT.replace("class Personal", ADAPTED + "\n\nclass Personal")
    script = script.replace("TorchTrainer(Personal,", f"TorchTrainer(lambda: Adapted({base}),")
    out = simulate(scenario(tmp_path, FROZEN, script), tmp_path / "out", lambda text: None)
    names |= {"pretrained": pretrained, "load_file": torch_load_file}
    exec(LOADED.replace("model.safetensors", str(out / "model.safetensors")), names)
    assert set(names["missing"]) == {"base.weight", "base.bias"}
    assert torch.equal(names["model"].base.weight, pretrained["weight"])
    assert names["model"].up.weight.abs().max() > 0, "trained"


def test_the_patterns_of_an_adapted_bert_are_toml_and_leave_what_trains() -> None:
    frozen = tomllib.loads(OF_BERT)["frozen"]
    layer = "base_model.model.bert.encoder.layer.0.attention"
    names = {
        f"{layer}.self.query.base_layer.weight": True,
        f"{layer}.self.query.lora_A.default.weight": False,
        f"{layer}.self.key.weight": True,
        f"{layer}.output.dense.weight": True,
        f"{layer}.output.LayerNorm.bias": True,
        "base_model.model.bert.embeddings.word_embeddings.weight": True,
        "base_model.model.classifier.original_module.weight": True,
        "base_model.model.classifier.modules_to_save.default.weight": False,
    }
    assert {n: any(fnmatchcase(n, pattern) for pattern in frozen) for n in names} == names
