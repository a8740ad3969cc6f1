"""`secureps simulate --copies URL`: checkpoints at an object store, as a coordinator has them."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from secureps.errors import ConfigError, DiskFailed
from secureps.files.objects import ObjectStore
from secureps.run import cli
from secureps.run.export import export
from secureps.run.simulate.simulate import simulate
from tests.kits import whole_steps
from tests.kits.command import said
from tests.kits.federations import same


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return whole_steps.scenario(tmp_path, versions=3)


def test_all_checkpoints_are_at_the_store(whole: Path, tmp_path: Path) -> None:
    url, out = f"file://{tmp_path}/store", tmp_path / "report"
    said(cli.app, "simulate", whole, "--out", out, "--copies", url)
    made = export(f"{url}/report", tmp_path / "copied.safetensors")
    assert made.versions == {"all": 3}
    model = load_file(out / "model.safetensors")
    assert same(load_file(tmp_path / "copied.safetensors"), model)
    kept = {path.name for path in (out / "checkpoints").iterdir()}
    assert kept <= {path.name for path in (tmp_path / "store/report/checkpoints").iterdir()}
    without = simulate(whole, tmp_path / "without", lambda text: None)
    assert same(load_file(without / "model.safetensors"), model)


def test_a_place_that_has_something_is_refused_before_the_folder_is_made(
    whole: Path, tmp_path: Path
) -> None:
    url, out = f"file://{tmp_path}/store", tmp_path / "report"
    ObjectStore(f"{url}/report/checkpoints/000001").create("manifest.json", b"another's")
    with pytest.raises(ConfigError, match=r"--copies: .*/report/checkpoints has something"):
        simulate(whole, out, lambda text: None, copies=url)
    with pytest.raises(ConfigError, match="--copies: nowhere/report/checkpoints: no URL"):
        simulate(whole, out, lambda text: None, copies="nowhere")
    assert not out.exists()


def test_a_store_that_refuses_to_the_end_is_told_and_the_report_is_there(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ObjectStore, name: str, data: bytes) -> None:
        raise DiskFailed(f"{self.name}/{name}: it is full")

    monkeypatch.setattr(ObjectStore, "create", refuse)
    out = tmp_path / "report"
    with pytest.raises(DiskFailed, match=r"not all of them at the store: .*: it is full"):
        simulate(whole, out, lambda text: None, copies=f"file://{tmp_path}/store")
    assert (out / "summary.json").exists()
