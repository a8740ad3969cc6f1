"""Exactness: `up` and `simulate` end in the same bits under plain, bfv and rlwe."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from secureps.messages.requests import Prepared
from secureps.store.journal import SqliteJournal
from tests.kits.command import INSECURE, run
from tests.kits.federations import CIPHERS, Tensors, same
from tests.kits.nursery import ROOT, supervise_children
from tests.kits.processes import ADAM, VALUES, plan_text

SCRIPT = ROOT / "tests" / "kits" / "walker_client.py"
CLIENTS = 2
VERSIONS = 2
RULE = f"""[group.rule]
quorum = {CLIENTS}
minimum = 2
"""
FEDERATION = f"""[federation]
script = "{SCRIPT}"
clients = {CLIENTS}
"""
SCENARIO = """
name = "small"
plan = "{cipher}.toml"
script = "{script}"
clients = {clients}
seed = {seed}
"""
SEED = 5


def model(folder: Path, report: Path) -> Tensors:
    """The final model that a command wrote beside its summary."""
    summary = json.loads((report / "summary.json").read_text())
    assert summary["versions"] == {"all": VERSIONS}
    assert set(summary["updates"].values()) == {VERSIONS}
    found = load_file(folder / "model.safetensors")
    assert sum(tensor.size for tensor in found.values()) == 217
    return found


THIN = """clip = 6.0
bits = 4
feedback = true
pull_bits = 5
most_examples = 32
codec = [
    {{ name = "support", one_in = 3 }},
    "rotate",
    {{ name = "round", length = "mean_norm" }},
]
"""


def write_plan(folder: Path, cipher: str, values: str = VALUES) -> Path:
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in CIPHERS[cipher].items())
    text = plan_text(RULE + ADAM + FEDERATION, values).replace('name = "{cipher}"', settings)
    path = folder / f"{cipher}.toml"
    path.write_text(text.format(versions=VERSIONS))
    return path


def played(patch: pytest.MonkeyPatch, folder: Path, cipher: str, values: str = VALUES) -> Tensors:
    out, plan = folder / f"up-{cipher}", write_plan(folder, cipher, values)
    assert run(patch, "up", plan, "--out", out, "--unsafe-seed", str(SEED), INSECURE) == 0
    return model(out, out / "report")


def simulated(patch: pytest.MonkeyPatch, folder: Path, cipher: str, seed: int = SEED) -> Tensors:
    out = folder / f"simulated-{cipher}-{seed}"
    scenario = folder / f"scenario-{cipher}-{seed}.toml"
    scenario.write_text(SCENARIO.format(cipher=cipher, script=SCRIPT, clients=CLIENTS, seed=seed))
    assert run(patch, "simulate", scenario, "--out", out) == 0
    return model(out, out)


def test_up_and_simulate_end_in_the_same_bits_under_every_cipher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plain`, `bfv`, `rlwe` with one key holder, and with three of four: eight final models."""
    supervise_children(monkeypatch)
    for module in ("up.up", "simulate.simulation"):  # a fifth of the time, and no bit of a model
        monkeypatch.setattr(f"secureps.run.{module}.draw", lambda *given: None)
    ciphers = ("plain", "bfv", "rlwe-alone", "rlwe")
    models = {}
    for cipher in ciphers:
        models["up", cipher] = played(monkeypatch, tmp_path, cipher)
        models["simulate", cipher] = simulated(monkeypatch, tmp_path, cipher)
        holders = {path.stem for path in (tmp_path / f"up-{cipher}/config").glob("holder-*")}
        assert len(holders) == {"plain": 0, "bfv": 1, "rlwe-alone": 1, "rlwe": 4}[cipher]
    first = models["up", "plain"]
    assert {name: same(first, each) for name, each in models.items()} == dict.fromkeys(models, True)
    other = simulated(monkeypatch, tmp_path, "plain", SEED + 1)
    assert not same(first, other), "bits are a seed's"


def scales(folder: Path) -> dict[int, float]:
    with closing(SqliteJournal(folder / "state" / "coordinator" / "journal.db")) as journal:
        found = [record for _, record in journal.replay() if isinstance(record, Prepared)]
    return {record.version: record.scale for record in found if record.scale is not None}


def test_a_codec_has_the_same_bits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the values, rotated, of 4 bits in a range that follows the mean norm.

    What was not sent is kept on the disk.
    """
    supervise_children(monkeypatch)
    for module in ("up.up", "simulate.simulation"):
        monkeypatch.setattr(f"secureps.run.{module}.draw", lambda *given: None)
    thin = played(monkeypatch, tmp_path, "rlwe", THIN)
    assert same(thin, simulated(monkeypatch, tmp_path, "rlwe"))
    found = scales(tmp_path / "up-rlwe")
    assert (found[0], len({*found.values()})) == (1.0, 1 + VERSIONS), "each version has its own"
    kept = [path.stat().st_size for path in (tmp_path / "up-rlwe").glob("**/kept~all~*")]
    assert kept == [32 + 4 * (217 + 1)] * CLIENTS, "the scale is one value more"
