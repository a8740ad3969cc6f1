"""`secureps new`: each kind of project is whole, learns, and its own tests say so."""

import errno
import os
import runpy
import sys
from pathlib import Path

import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig
from secureps.errors import ConfigError, OperatorError
from secureps.policy.explain.visibility import advised_threshold
from secureps.policy.plan import load_plan
from secureps.run.new import EVERY, TEMPLATES, new
from tests.kits.command import typed
from tests.kits.trainer_kit import check_trainer

KINDS = ("numpy", "torch", "sklearn", "flower")
FILES = {
    *("plan.toml", "client.py", "test_client.py"),
    *("README.md", "requirements.txt", ".gitignore"),
}


def test_templates_are_those_of_the_kinds() -> None:
    assert {path.name for path in TEMPLATES.iterdir() if path.name != "__pycache__"} == {
        EVERY,
        *KINDS,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_whole_and_its_own_tests_pass(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = new("tumours-2", kind, tmp_path)
    assert {path.name for path in made} == FILES
    assert {path.parent for path in made} == {tmp_path / "tumours-2"}
    for path in made:
        assert "PROJECT_NAME" not in path.read_text()
    folder = tmp_path / "tumours-2"
    plan = load_plan(folder / "plan.toml").section
    assert plan.name == "tumours-2"
    assert plan.federation is not None
    sites, cipher = plan.federation.clients, plan.cipher
    assert (cipher.holders, cipher.threshold) == (sites, advised_threshold(sites))
    settings = {"partition": 1, "partitions": 6}
    config = FitConfig({"all": 0}, 1, plan.training)
    check_trainer(lambda: Script(folder / "client.py").make(settings), config)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "client", raising=False)
    own = runpy.run_path(str(folder / "test_client.py"))
    tests = [test for name, test in own.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
    sys.modules.pop("client")


def test_its_own_test_fails_if_holders_learn_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new("idle", "numpy", tmp_path)
    folder = tmp_path / "idle"
    plan = (folder / "plan.toml").read_text()
    (folder / "plan.toml").write_text(plan.replace("lr = 0.05", "lr = 0.0"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "client", raising=False)
    own = runpy.run_path(str(folder / "test_client.py"))
    with pytest.raises(AssertionError):
        own["test_holders_learn_together"]()
    sys.modules.pop("client")


@pytest.mark.parametrize(
    "name", ["", "Tumours", "two words", "../up", "a/b", ".hidden", "x" * 64, "a\n"]
)
def test_a_name_is_one_that_a_plan_may_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a project's name: 1 to 63 of a-z 0-9"):
        new(name, "numpy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert len(new("empty", "numpy", tmp_path)) == len(FILES)
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file"):
        with pytest.raises(ConfigError, match=f"{name} is there and not empty: take another name"):
            new(name, "numpy", tmp_path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_refuses_is_the_operators(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot make the project: "):
        new("project", "numpy", tmp_path / "nowhere")


def test_a_disk_that_is_full_midway_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(path: Path, text: str) -> int:
        if path.name == "test_client.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OperatorError, match="No space left"):
            new("project", "numpy", tmp_path)
    assert list((tmp_path / "project").iterdir()) == []
    assert new("project", "numpy", tmp_path)


def test_the_command_says_what_was_made_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *rest = typed("new", "tumours").out.splitlines()
    assert first.startswith("made tumours: ")
    assert set(first.removeprefix("made tumours: ").split(", ")) == FILES
    assert rest == ["next:", "  cd tumours", "  secureps up plan.toml"]
    assert "scikit" not in (tmp_path / "tumours" / "client.py").read_text()
    typed("new", "other", "--sklearn")
    assert "sklearn" in (tmp_path / "other" / "client.py").read_text()
    assert "give one option of these" in typed("new", "third", "--torch", "--flower", status=2).err
    assert not (tmp_path / "third").exists()
