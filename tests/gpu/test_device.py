"""The device: found by its file, and an error that says what is missing where it was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from secureps.errors import ConfigError
from secureps.gpu import device as module
from secureps.gpu.device import INTERPRETER, device, has_device_file
from tests.kits.nursery import ROOT


def test_a_machine_without_the_drivers_file_has_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEVICE_FILES", (tmp_path / "nvidiactl", tmp_path / "dxg"))
    assert not has_device_file()
    (tmp_path / "dxg").touch()
    assert has_device_file()


def test_looking_for_it_imports_neither_torch_nor_triton() -> None:
    import subprocess

    code = (
        "import sys; from secureps.gpu import choice, device; device.DEVICE_FILES = ();"
        "assert choice.sealing_backend('auto') is None;"
        "print([m for m in ('torch', 'triton', 'numba') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_without_a_device_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.delenv(INTERPRETER, raising=False)
    with pytest.raises(
        ConfigError, match=r"torch finds no CUDA device here: .* or take auto or cpu"
    ):
        device.__wrapped__()


def test_of_several_it_is_the_one_that_was_current_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has another one, and its streams and memory are not to be mixed with these."""
    current = [2]
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: current[0],
        get_device_name=lambda where: f"the one at {where}",
        Stream=lambda where: ("stream", where),
    )
    empty = lambda count, dtype, device: (count, dtype, device)  # noqa: E731
    torch = SimpleNamespace(cuda=cuda, empty=empty, uint32="uint32")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.delenv(INTERPRETER, raising=False)
    found = device.__wrapped__()
    current[0] = 0
    assert (found.where, found.name) == ("cuda:2", "the one at cuda:2")
    taken = found.stream()
    assert taken == ("stream", "cuda:2")
    found.give_back(taken)
    assert found.stream() is taken
    assert found.empty(3, 32) == (3, "uint32", "cuda:2")
    assert not found.interpreted


@pytest.mark.parametrize(("module_name", "extra"), [("torch", "torch"), ("triton", "gpu")])
def test_what_is_not_installed_is_named_with_its_extra(
    module_name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setitem(sys.modules, module_name, None)
    with pytest.raises(ConfigError, match=rf"{module_name} is not installed: .*\[{extra}\]"):
        device.__wrapped__()


def test_words_lie_where_they_are_put_and_are_wiped() -> None:
    torch = pytest.importorskip("torch")
    here = module.Device(torch, "cpu", "a processor")
    words = here.upload(np.arange(1, 9, dtype=np.uint64))
    assert words.numpy().tolist() == list(range(1, 9))
    with here.on(here.stream()):
        here.wipe(words)
    assert not words.numpy().any()
    assert here.empty(3, 32).numel() == here.staging(3, 32).numel() == 3
