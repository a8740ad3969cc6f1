"""The file of version 0 at an object store: downloaded once, pinned by its digest, and bounded."""

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from secureps.errors import ConfigError, DamagedStore, DiskFailed, PlanRefused
from secureps.files import objects
from secureps.files.objects import ObjectStore, initial_path, pin_initial
from secureps.messages.encoding import file_digest
from secureps.policy.plan import Plan, load_plan
from secureps.run.check import Permit, check
from secureps.run.initial_schema import read_initial_schema
from tests.kits.object_stores import STORES, empty_place
from tests.run.test_check import PLAN, write

MODEL = save({"a": np.arange(12, dtype=np.float32).reshape(3, 4)})


@pytest.fixture(params=STORES)
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with empty_place(request.param, tmp_path, monkeypatch) as place:
        ObjectStore(place).create("v0.safetensors", MODEL)
        yield f"{place}/v0.safetensors"


def plan_of(tmp_path: Path, url: str) -> Path:
    return write(tmp_path, f'initial = "{url}"\n' + PLAN)


def replace(url: str, data: bytes) -> None:
    place, _, name = url.rpartition("/")
    store = ObjectStore(place)
    store._files.pipe_file(store._path(name), data, mode="overwrite")


def test_a_plan_names_a_url_and_pins_its_bytes(tmp_path: Path, url: str) -> None:
    plan = load_plan(plan_of(tmp_path, url))
    assert plan.section.initial == url
    assert plan.initial_digest == file_digest(MODEL).hex()
    assert Plan.from_text(plan.text) == plan
    schema = read_initial_schema(plan)
    assert schema is not None
    assert [(t.name, t.shape) for t in schema.tensors] == [("a", (3, 4))]
    assert check(plan_of(tmp_path, url), permit=Permit(fetch=True)).groups[0].values == 12


@pytest.mark.parametrize(
    "initial", ["no-store://bucket/v0.safetensors", "//server/share/v0", "\\\\server\\share\\v0"]
)
def test_unless_it_may_be_fetched_the_digest_is_unknown(tmp_path: Path, initial: str) -> None:
    path = plan_of(tmp_path, initial.replace("\\", "\\\\"))
    plan = load_plan(path, fetch=False)
    assert (plan.section.initial, plan.has_digest) == (initial, False)
    explained = check(path, 12)
    assert explained.digest == ""
    (told,) = explained.unknown
    assert told.startswith("the plan's digest, which covers initial: it lies on another machine, ")
    assert check(path).unknown[0].endswith("; or have --fetch fetch initial")


def test_it_is_fetched_once(tmp_path: Path, url: str) -> None:
    path = initial_path(url)
    assert path.read_bytes() == MODEL
    replace(url, b"another")
    assert initial_path(url) == path
    assert pin_initial(url, tmp_path) == (url, file_digest(MODEL).hex())
    assert path.read_bytes() == MODEL


def test_a_process_that_finds_other_bytes_is_of_another_run(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load_plan(plan_of(tmp_path, url))
    replace(url, save({"a": np.zeros((3, 4), np.float32)}))
    monkeypatch.setattr(objects, "_fetched", {})
    other = load_plan(plan_of(tmp_path, url))
    assert one.initial_digest != other.initial_digest
    assert one.text != other.text


def test_a_store_is_not_believed_how_long_a_file_is(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MOST_BYTES", len(MODEL))
    assert initial_path(url).read_bytes() == MODEL
    monkeypatch.setattr(objects, "_fetched", {})
    monkeypatch.setattr(objects, "MOST_BYTES", len(MODEL) - 1)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: made(tmp_path / prefix))
    with pytest.raises(ConfigError, match=rf"v0\.safetensors: longer than {len(MODEL) - 1} bytes"):
        initial_path(url)
    assert not (tmp_path / "secureps-").exists(), "what was read of it is removed"


def made(folder: Path) -> str:
    folder.mkdir()
    return str(folder)


def test_what_is_not_there_or_no_model_is_said_with_its_url(tmp_path: Path, url: str) -> None:
    other = url.replace("v0", "v1")
    with pytest.raises(PlanRefused, match=rf"plan\.toml: initial: {other}: absent"):
        load_plan(plan_of(tmp_path, other))
    with pytest.raises(DamagedStore, match="absent"):
        initial_path(other)
    replace(url, b"no model at all")
    with pytest.raises(ConfigError, match=rf"{url}: not a safetensors file"):
        read_initial_schema(load_plan(plan_of(tmp_path, url)))


def test_a_store_that_is_down_may_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"memory://{uuid.uuid4()}"
    store = ObjectStore(place)
    store.create("v0.safetensors", MODEL)

    def refuses(path: str, mode: str) -> None:
        raise PermissionError("Forbidden")

    with monkeypatch.context() as down:
        down.setattr(type(store._files), "open", staticmethod(refuses))
        with pytest.raises(DiskFailed, match=r"v0\.safetensors: PermissionError: Forbidden"):
            load_plan(plan_of(tmp_path, f"{place}/v0.safetensors"))
    assert load_plan(plan_of(tmp_path, f"{place}/v0.safetensors")).initial_digest


def test_nobody_is_told_what_opens_a_store(tmp_path: Path) -> None:
    for secret in ("s3://key:secret@bucket/v0.safetensors", "https://host/v0?sig=secret"):
        with pytest.raises(PlanRefused, match=r"initial: .*told to all parties") as refused:
            load_plan(plan_of(tmp_path, secret))
        assert "secret" not in str(refused.value)


def test_a_url_of_no_file_and_a_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("s3://bucket", "file:///tmp/"):
        with pytest.raises(ConfigError, match="no URL of a file, as s3://BUCKET/model"):
            initial_path(wrong)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"fsspec is not installed: pip install"):
        load_plan(plan_of(tmp_path, "s3://bucket/v0.safetensors"))


def test_a_forked_process_leaves_its_parents_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    objects._remove(-1, tmp_path / "kept")
    assert (tmp_path / "kept").exists()
    objects._remove(os.getpid(), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
