"""A model out of a checkpoint's blocks: exact, and never out of a damaged one."""

import dataclasses
import re
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.errors import ConfigError, DamagedStore, OperatorError
from secureps.files.objects import ObjectStore
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan
from secureps.run.export import export, newest_model
from secureps.store import checkpoint
from secureps.store.checkpoint import checkpoint_path, read_state, write_manifest
from tests.kits.checkpoints import SHARDS, write_checkpoint
from tests.kits.command import typed
from tests.kits.object_stores import content

PLAN = Plan(
    parse(
        PlanSection,
        {
            "name": "two-groups",
            "versions": 9,
            "block_size": 16,
            "local": ["head.*"],
            "group": [
                {"name": "first", "pattern": "embedding.*", "rule": {"quorum": 5}},
                {"name": "rest", "pattern": "*", "rule": {"quorum": 5}},
            ],
        },
        "test",
    )
)
SCHEMA = Schema(
    (
        TensorSpec("body.weight", (5, 4), "float32"),
        TensorSpec("embedding.weight", (7, 3), "float32"),
        TensorSpec("head.weight", (2,), "float32"),
        TensorSpec("body.steps", (), "int64"),
    )
)


def model(seed: int) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(seed)
    return {
        "body.weight": rng.normal(size=(5, 4)).astype(np.float32),
        "embedding.weight": rng.normal(size=(7, 3)).astype(np.float32),
        "body.steps": np.array(seed, np.int64),
    }


def write(
    root: Path, number: int, cut: int = 16, unsafe: tuple[str, ...] = ()
) -> dict[str, NDArray[np.generic]]:
    """A checkpoint of `model(number)`."""
    tensors = model(number)
    write_checkpoint(root, number, PLAN, SCHEMA, tensors, cut, unsafe)
    return tensors


def test_the_newest_model_by_tensor_name(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 3)
    tensors = write(tmp_path / "checkpoints", 7)
    made = export(tmp_path, tmp_path / "model.safetensors")
    assert (made.number, made.versions) == (7, {"first": 7, "rest": 8})
    assert made.version == "first 7 / rest 8"
    assert made.complaints == ()
    assert [spec.name for spec in made.layout.local] == ["head.weight"]
    assert list(made.tensors) == ["body.weight", "embedding.weight", "body.steps"]
    loaded = load_file(tmp_path / "model.safetensors")
    assert set(loaded) == set(tensors)
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


def metadata(path: Path) -> dict[str, str]:
    return read_state(path)[1]


def test_a_model_of_an_unsafe_seed_says_so_on_the_terminal_and_in_the_file(tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    for number, unsafe in ((3, ()), (5, ("ada",)), (7, ("ada", "eve"))):
        write(tmp_path / "checkpoints", number, unsafe=unsafe)
        warning = f"unsafe seed: no privacy, in what came from {', '.join(unsafe)}"
        assert (warning in typed("export", tmp_path, "--out", out).err) == bool(unsafe)
        assert metadata(out)["checkpoint"] == str(number)
        assert metadata(out).get("privacy") == ("unsafe seed: no privacy" if unsafe else None)


def test_parts_that_are_on_other_machines_are_named(tmp_path: Path) -> None:
    """A coordinator's folder has the manifest alone, where its shards have folders of their own."""
    write(tmp_path / "checkpoints", 3)
    directory = checkpoint_path(tmp_path / "checkpoints", 3)
    for shard in SHARDS:
        (directory / f"{shard}.safetensors").unlink()
    said = (
        f"{directory}: lacks shard-0.safetensors, shard-1.safetensors: copy it from the machine of "
        "shard-0, shard-1, where it is in 000003 of the folder that its file names as checkpoints"
    )
    with pytest.raises(DamagedStore, match=re.escape(said)):
        export(tmp_path, tmp_path / "model.safetensors")


def test_of_no_run_it_says_what_status_says(tmp_path: Path) -> None:
    folder, out = tmp_path / "nowhere", tmp_path / "model.safetensors"
    told = typed("status", folder, status=1).err
    assert told.startswith(f"error: {folder}: no run of `secureps up`: ")
    assert typed("export", folder, "--out", out, status=1).err == told


def test_a_model_is_read_wherever_the_version_that_wrote_it_cut_its_blocks(tmp_path: Path) -> None:
    tensors = write(tmp_path, 0, cut=5)
    found = newest_model(tmp_path).tensors
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_an_absent_block_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0)
    directory = checkpoint_path(tmp_path, 0)
    manifest = checkpoint.load_checkpoint(directory)
    write_manifest(directory, dataclasses.replace(manifest, files=manifest.files[:1]))
    with pytest.raises(DamagedStore, match="absent"):
        newest_model(tmp_path)


def test_an_evaluation_may_be_newer_than_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {"metric": "loss", "goal": "min"}
    evaluation = {"every": 1, "metrics": {"loss": 1.0}, "best": best}
    body = PLAN.section.model_dump(exclude_none=True) | {"evaluation": evaluation}
    monkeypatch.setattr(sys.modules[__name__], "PLAN", Plan(parse(PlanSection, body, "test")))
    write(tmp_path / "checkpoints", 3)
    with pytest.raises(ConfigError, match="no complete checkpoint has an evaluation yet: if the"):
        export(tmp_path, tmp_path / "best.safetensors", the_best=True)
    write(tmp_path / "checkpoints", 9)
    with pytest.raises(ConfigError, match="no version was evaluated, and all are made"):
        export(tmp_path, tmp_path / "best.safetensors", the_best=True)


def test_a_run_and_a_file_at_a_store_are_read_and_written_there(tmp_path: Path) -> None:
    """By URL, whose user and password are nowhere shown."""
    place = f"memory://me:s3cret@{uuid.uuid4()}"
    write(tmp_path / "checkpoints", 3)
    tensors = write(tmp_path / "checkpoints", 7)
    store = ObjectStore(f"{place}/run/checkpoints")
    for path in sorted((tmp_path / "checkpoints").rglob("*.*")):
        store.create(str(path.relative_to(tmp_path / "checkpoints")), path.read_bytes())
    for _ in range(2):  # the same bytes again are no other file
        said = typed("export", f"{place}/run", "--out", f"{place}/model.safetensors")
        assert "wrote 3 tensors to memory://***@" in said.out
        assert "s3cret" not in said.out + said.err
    (tmp_path / "model.safetensors").write_bytes(content(ObjectStore(place), "model.safetensors"))
    loaded = load_file(tmp_path / "model.safetensors")
    assert {name: each.tobytes() for name, each in loaded.items()} == {
        name: each.tobytes() for name, each in tensors.items()
    }
    write(tmp_path / "checkpoints", 8)
    with pytest.raises(ConfigError, match=r"model.safetensors is there, and is another"):
        export(tmp_path, f"{place}/model.safetensors")
    with pytest.raises(OperatorError, match=r"nothing/checkpoints: no checkpoint here"):
        export(f"{place}/nothing", tmp_path / "none")
