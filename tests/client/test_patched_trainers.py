"""Exactness: patched trainers of Hugging Face and Lightning train as they would alone.

Models come from configurations; nothing is downloaded. They need transformers, peft, accelerate and
lightning, which `pip install -e '.[dev]'` brings.
"""

import copy
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import secureps as ps
from secureps.client.patch import Rounds
from secureps.client.session import LEFT, Exchange, ExchangeTrainer
from secureps.errors import ConfigError, ScriptFailed, WrongShape
from secureps.policy.plan import Plan
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, of transformers' Trainer, is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(pin_memory|num_workers|TPU|GPU|logger|checkpoint|epoch)"),
]

SEED: dict[str, Any] = {"unsafe_seed": 3, "insecure_for_tests": True}
RULE = {"quorum": 2, "minimum": 2, "start": 2, "deadline": 60.0}
WORDS, LENGTH, CLASSES = 24, 6, 3


def plan(steps: int = 4, **changed: Any) -> Plan:
    """Twice the mean of two clients, of whom one changes nothing, is what the other one made."""
    group = {
        "clip": 50.0,
        "range": 0.05,
        "bits": 16,
        "weighting": "uniform",
        "rule": RULE,
        "optimizer": {"name": "sgd", "learning_rate": 2.0},
    }
    known = {"local": [], "group": [group], "training": {"local_steps": steps}, "versions": 3}
    return small_plan(**{**known, "block_size": 1 << 16, **changed})


class Still(ExchangeTrainer):
    """A client that has the same model, and adds the same to all its values."""

    def __init__(self, agreed: Plan, module: nn.Module, step: float) -> None:
        rounds = Rounds(agreed, (0, 1), None)
        rounds._look_at(copy.deepcopy(module))
        super().__init__(Exchange(), rounds.initial, 9, kinds=rounds.kinds)
        self._sent, self._step = rounds._sent, np.float32(step)

    def fit(self, parameters: ps.Parameters, config: ps.FitConfig) -> ps.FitResult:
        moved = {name: parameters[name] + self._step for name in self._sent}
        return ps.FitResult({**parameters, **moved}, 9, {}, 1)


@contextmanager
def run_of(
    agreed: Plan, folder: Path, module: nn.Module, still: int = 1, step: float = 0.0
) -> Iterator[tuple[DiskFederation, dict[str, Any]]]:
    """A run of still clients, and with what `patch` needs to be its last one."""
    parties = DiskFederation(agreed, folder, still + 1, lambda number: Still(agreed, module, step))
    with parties as federation:
        where = {"kit": federation.directory, "plan": agreed, "server": federation.server}
        yield federation, {**where, "name": f"client-{still:02d}", "state": folder / "own", **SEED}


class Sentences(Dataset[dict[str, Tensor]]):
    """Made words of some length; their class is that of the first one."""

    def __init__(self, number: int = 40, causal: bool = False) -> None:
        self.words = torch.from_numpy(np.random.default_rng(5).integers(1, WORDS, (number, LENGTH)))
        self._causal = causal

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        words = self.words[at]
        return {"input_ids": words, "labels": words if self._causal else words[0] % CLASSES}


def gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(1)
    model: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **still, bos_token_id=0, eos_token_id=0)
    )
    return model


def bert(seed: int = 1) -> Any:
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 32, "num_labels": CLASSES}
    config = {"num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": LENGTH}
    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **config))


def hugging_face(
    folder: Path, model: nn.Module, causal: bool = False, callbacks: Any = (), **changed: Any
) -> Any:
    """A trainer, made before any federation is.

    accelerate empties the process's environment for a moment meanwhile, and puts it back. gRPC's
    threads read it as they connect, which before glibc 2.41 is a segmentation fault.
    """
    assert not [each for each in threading.enumerate() if each.name.startswith("loop of ")]
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    known = {
        "per_device_train_batch_size": 4,
        "learning_rate": 2e-3,
        "dataloader_pin_memory": False,
    }
    arguments = transformers.TrainingArguments(str(folder), **{**quiet, **known, **changed})
    data = Sentences(causal=causal)
    return transformers.Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks))


class Lines(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers: Any = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)
        )

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        adam = torch.optim.Adam(self.parameters(), 2e-3)
        halved = torch.optim.lr_scheduler.StepLR(adam, 3, 0.5)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": halved, "interval": "step"}}


def lightning(folder: Path, **changed: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    known = {"accelerator": "cpu", "enable_model_summary": False, "default_root_dir": folder}
    return pl.Trainer(**{**quiet, **known, **changed})


def lines(shuffle: bool = False) -> DataLoader[Any]:
    x = torch.from_numpy(np.random.default_rng(7).normal(size=(40, 4)).astype(np.float32))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=shuffle)


def difference(
    one: nn.Module, other: nn.Module, leave_out: str = "(running_|num_batches)"
) -> float:
    """The largest difference of any value of two models."""
    theirs = other.state_dict()
    return max(
        float((each.double() - theirs[name].double()).abs().max())
        for name, each in one.state_dict().items()
        if not re.search(leave_out, name)
    )


def test_a_hugging_face_trainer_trains_as_it_would_alone(tmp_path: Path) -> None:
    """Adam, a schedule, mixed precision, accumulated gradients, workers: all go on over rounds."""
    how = {"gradient_accumulation_steps": 2, "bf16": True, "max_steps": 12, "warmup_steps": 3}
    how |= {"dataloader_num_workers": 1}
    start, alone, model = gpt2(), gpt2(), gpt2()
    hugging_face(tmp_path / "alone", alone, causal=True, **how).train()
    trainer = hugging_face(tmp_path / "out", model, causal=True, **how)
    with run_of(plan(), tmp_path, model) as (federation, where):
        session = ps.patch(trainer, **where)
        assert trainer.train().global_step == 12
        made = federation.model()
    assert session.finished == "all 3 versions are made"
    assert set(session.outcomes.values()) == {"durable"}
    assert difference(model, start) > 5e-3
    # a gradient of a key's bias is nothing but rounding, of which Adam makes whole steps
    assert difference(model, alone, leave_out="c_attn.bias") < 1e-4
    assert made is not None
    assert made[0] == {"all": 3}
    state = model.state_dict()
    assert all(np.array_equal(each, state[name].numpy()) for name, each in made[1].items())


def test_a_lightning_trainer_trains_as_it_would_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how = {"accumulate_grad_batches": 2, "max_steps": 12, "precision": "bf16-mixed"}
    start, alone, model = Lines(), Lines(), Lines()
    lightning(tmp_path, **how).fit(alone, lines())
    with run_of(plan(), tmp_path, model) as (federation, where):
        trainer = lightning(tmp_path, **how)
        session = ps.patch(trainer, **where)
        with pytest.raises(ConfigError, match="no process that is spawned"):
            copy.deepcopy(trainer.callbacks)
        trainer.fit(model, lines())
        made = federation.model()
    assert session.finished == "all 3 versions are made"
    assert trainer.global_step == 12
    assert "leave before its end" not in caplog.text
    assert difference(model, start) > 5e-3
    assert difference(model, alone) < 1e-4
    assert made is not None
    assert np.array_equal(made[1]["layers.1.running_var"], model.layers[1].running_var.numpy())


def test_epochs_until_the_run_ends(tmp_path: Path) -> None:
    """The trainer has no end of its own; ten batches are an epoch."""
    model = Lines()
    with run_of(plan(training={"lr": 1}, versions=2), tmp_path, model) as (_, where):
        trainer = lightning(tmp_path, max_epochs=-1)
        session = ps.patch(trainer, **where, epochs=2)
        trainer.fit(model, lines())
        with pytest.raises(ScriptFailed, match="trains once"):
            trainer.fit(model, lines())
    assert session.finished == "all 2 versions are made"
    assert (trainer.global_step, trainer.current_epoch) == (40, 4)


def test_peft_sends_adapters_alone_and_refuses_another_base(tmp_path: Path) -> None:
    def adapted(seed: int) -> nn.Module:
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        made: nn.Module = peft.get_peft_model(bert(seed), lora)
        return made

    model, other = adapted(1), adapted(2)
    base = {n: each.clone() for n, each in model.named_parameters() if not each.requires_grad}
    agreed = plan(2, frozen=["frozen.*"], versions=2)
    stranger = hugging_face(tmp_path / "out", other, max_steps=4)
    trainer = hugging_face(tmp_path / "out", model, max_steps=9)
    with run_of(agreed, tmp_path, model) as (federation, where):
        ps.patch(stranger, **{**where, "state": tmp_path / "stranger"})
        with pytest.raises(
            WrongShape, match=r"frozen\.base_model.* has other values than the run's"
        ):
            stranger.train()
        session = ps.patch(trainer, **where)
        assert trainer.train().global_step == 4, "of nine: the run has ended"
        made = federation.model()
    assert session.finished == "all 2 versions are made"
    assert made is not None
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    assert sorted(made[1]) == sorted(trained)
    assert all("modules_to_save" in name or "lora_" in name for name in trained)
    now = dict(model.named_parameters())
    assert all(torch.equal(each, now[name]) for name, each in base.items())
    assert any(made[1][name].any() for name in trained if "lora_B" in name), "zero at first"


def test_a_killed_trainer_starts_again_with_the_version_that_is_due(tmp_path: Path) -> None:
    """What was pushed is not made again; the round that was not is trained from its beginning."""

    class Killed(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 6:
                raise KeyboardInterrupt

    model = gpt2()
    trainer = hugging_face(tmp_path, model, True, [Killed()], max_steps=12)
    again = hugging_face(tmp_path, gpt2(), causal=True, max_steps=12)
    with run_of(plan(), tmp_path, model) as (_, where):
        first = ps.patch(trainer, **where)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert len(first.outcomes) <= 1
        session = ps.patch(again, **where)
        assert again.train().global_step == 8, "of twelve: the first round was pushed before"
    assert session.finished == "all 3 versions are made"


def test_a_trainer_that_ends_first_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    endless = plan(versions=1000)
    trainer = hugging_face(tmp_path, gpt2(), causal=True, max_steps=6)
    with run_of(endless, tmp_path, gpt2(), still=2, step=0.01) as (federation, where):
        session = ps.patch(trainer, **where)
        trainer.train()
        assert session.finished == LEFT
        state = federation.until(lambda: {m.name: m.state for m in federation.status().members})
    assert state["client-02"] == "stopped"
    assert re.search(r"the trainer takes 6 steps more, the run [34]\d{3}:", caplog.text)


def test_holders_judge_the_model_that_they_train(tmp_path: Path) -> None:
    """On held-out records, in the trainer's own model, while it waits."""
    seen = list[float]()

    def judge(model: nn.Module) -> ps.EvaluateResult:
        batch = Sentences(causal=True)[0]
        assert not model.training
        with torch.no_grad():
            seen.append(model(**{n: each[None] for n, each in batch.items()}).loss.item())
        return ps.EvaluateResult(seen[-1], 1)

    agreed = plan(2, versions=2, evaluation={"every": 1, "metrics": {"loss": 10.0}})
    trainer = hugging_face(tmp_path, gpt2(), causal=True, max_steps=4)
    with run_of(agreed, tmp_path, gpt2()) as (_, where):
        session = ps.patch(trainer, **where, evaluate=judge)
        trainer.train()
    assert session.finished == "all 2 versions are made"
    assert len(set(seen)) >= 2, "of each version"


def test_two_processes_train_one_clients_model(tmp_path: Path) -> None:
    """Rank 0 is the client: it pushes, and the other one gets every version from it."""
    with run_of(plan(2, versions=2), tmp_path, gpt2()) as (federation, where):
        told = {n: str(each) for n, each in where.items() if n not in ("plan", *SEED)}
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += ["--no-python", sys.executable, "-m", "tests.client.test_patched_trainers"]
        command += [json.dumps(told), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
        made = federation.model()
    assert done.returncode == 0, done.stderr
    assert made is not None
    assert made[0] == {"all": 2}
    for rank in (0, 1):
        own = np.load(tmp_path / f"rank-{rank}.npz")
        assert all(np.array_equal(own[name], each) for name, each in made[1].items())


def rank(where: dict[str, Any], folder: Path) -> None:
    """One of the two, with another model at first."""
    number = int(os.environ["RANK"])
    model = gpt2()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(number)
    trainer = hugging_face(folder, model, True, max_steps=4, ddp_backend="gloo")
    session = ps.patch(trainer, plan=plan(2, versions=2), **where, **SEED)
    trainer.train()
    assert session.finished == ("" if number else "all 2 versions are made")
    np.savez(folder / f"rank-{number}.npz", **{n: e.numpy() for n, e in model.state_dict().items()})


if __name__ == "__main__":
    rank(json.loads(sys.argv[1]), Path(sys.argv[2]))
