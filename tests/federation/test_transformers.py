"""Models of the transformers library, built from tiny configurations: nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.torch import TorchTrainer
from tests.kits.federations import small_federation, small_plan

transformers = pytest.importorskip("transformers")

WORDS, LENGTH, CLASSES = 24, 6, 3
SIZES = {"vocab_size": WORDS, "num_attention_heads": 2, "num_hidden_layers": 1}
RECORDS = {
    "noise_multiplier": 2.0,
    "max_grad_norm": 0.5,
    "records": 30,
    "sample_rate": 0.25,
    "delta": 1e-5,
    "budget": 3.0,
}


class Scores(nn.Module):
    """A model of the library, which gives its scores alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.model(input_ids=words).logits
        return scores


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0
    )
    return Scores(transformers.GPT2LMHeadModel(config))


def bert() -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "max_position_embeddings": LENGTH}
    config = transformers.BertConfig(**SIZES, **sizes, num_labels=CLASSES)
    return transformers.BertForSequenceClassification(config)


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return Scores(peft.get_peft_model(bert(), lora))


def next_word(scores: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], dict[str, str]]] = {
    "gpt2": (gpt2, next_word, {"model.lm_head.weight": "model.transformer.wte.weight"}),
    "bert": (lambda: Scores(bert()), functional.cross_entropy, {}),
    "lora": (adapted, functional.cross_entropy, {}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers for an old name
@pytest.mark.parametrize("privacy", [None, RECORDS], ids=["plain", "epsilon 3"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_trains_in_a_federation(
    name: str, privacy: dict[str, Any] | None, tmp_path: Path
) -> None:
    make, loss, tied = MODELS[name]

    def holder(number: int) -> TorchTrainer:
        words = np.random.default_rng(number).integers(1, WORDS, (30, LENGTH))
        targets = words if loss is next_word else words[:, 0] % CLASSES
        return TorchTrainer(make, (words, targets), (words, targets), loss, device="cpu")

    first = holder(0)
    assert first.tied() == tied
    kinds = first.kinds()
    frozen = [each for each, kind in kinds.items() if kind == "constant" and name == "lora"]
    made = small_plan(
        local=[],
        frozen=frozen,
        clients=5,
        versions=1,
        training={"lr": 0.5, "local_steps": 2},
        privacy=privacy,
        block_size=1024,
    )
    run = small_federation(made, tmp_path, clients=5, kind=holder)
    run.run()
    model, start = run.model(), first.parameters(1)
    for further, own in tied.items():
        assert np.array_equal(model[further], model[own])
    trained = [each for each, kind in kinds.items() if kind == "trained"]
    assert sum(not np.array_equal(model[each], start[each]) for each in trained) > 2
    assert all(each not in model or np.array_equal(model[each], start[each]) for each in frozen)
    accuracy = first.evaluate({**start, **model}).metrics
    assert set(accuracy) == (set() if loss is next_word else {"accuracy"})
