"""Which backend seals: by the option, by measurement, and the processor once a device fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client import worker
from secureps.client.sealing import OutboxSealer
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import Encoding, choose
from secureps.crypto.rlwe import CPU, RlweAdder, RlweOpener, RlweSealing
from secureps.errors import ConfigError, Malformed
from secureps.gpu import choice
from secureps.gpu.choice import ChosenBackend, sealing_backend
from secureps.run import assemble
from secureps.service.shard.worker import ShardWorker
from tests.kits.federations import finished, same, small_federation, small_plan, unharmed
from tests.kits.rlwe_kit import place

PARAMETERS = CipherParameters("rlwe", 32, 65_534)


class Played:
    """A device that is this processor: wrong if it is told so, and broken after some calls."""

    def __init__(self, wrong: bool = False, calls: int = 1 << 30) -> None:
        self.wrong, self.calls, self.asked = wrong, calls, 0
        self.done = set[str]()

    def batch(self, encoding: Encoding, slots: int) -> int:
        return 2

    def sealer(self, *arguments: Any) -> Any:
        return Counted(self, CPU.sealer(*arguments))

    def opener(self, *arguments: Any) -> Any:
        return Counted(self, CPU.opener(*arguments))


class Counted:
    def __init__(self, device: Played, made: Any) -> None:
        self._device, self._made = device, made

    def _count(self, what: str) -> None:
        self._device.done.add(what)
        self._device.asked += 1
        if self._device.asked > self._device.calls:
            raise RuntimeError("CUDA error: out of memory\nand a long story")

    def seal(self, *arguments: Any) -> Any:
        self._count("seal")
        return bytes(9) if self._device.wrong else self._made.seal(*arguments)

    def open(self, *arguments: Any) -> Any:
        self._count("open")
        return self._made.open(*arguments)


def chosen(device: Played, measured: bool = True) -> ChosenBackend:
    return ChosenBackend(CPU, lambda: device, measured)


def opens(backend: ChosenBackend, slots: int = 20_000) -> None:
    """Seals a block with a backend and opens it; it must come out right."""
    at, values = place(slots), np.arange(slots, dtype=np.int32)
    sealing, adder = RlweSealing(PARAMETERS, at, backend), RlweAdder(PARAMETERS)
    sums = adder.zero(slots)
    adder.add(sums, sealing.seal(0, values), 1)
    key = sealing.key.coefficients().astype(np.int64)
    opener = RlweOpener(PARAMETERS, at, key, 1, backend)
    assert np.array_equal(opener.open(0, adder.total(sums), slots), values)


def seconds(monkeypatch: pytest.MonkeyPatch, gpu: float, cpu: float) -> None:
    """What a batch takes each of them."""
    fastest = choice._fastest

    def played(trial: Any, backend: Any) -> tuple[bytes, float]:
        made, _ = fastest(trial, backend)
        return made, cpu if backend is CPU else gpu

    monkeypatch.setattr(choice, "_fastest", played)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("gpu", "cpu", "who"), [(1e-3, 2e-3, "GPU"), (2e-3, 1e-3, "processor")])
def test_the_sooner_one_is_taken_and_said(
    gpu: float, cpu: float, who: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    seconds(monkeypatch, gpu, cpu)
    device = Played()
    caplog.set_level(logging.INFO, "secureps")
    opens(chosen(device))
    tries = 1 + choice.TRIES
    assert device.asked == (tries + 6 if who == "GPU" else tries)  # of 5 elements, 2 at a time
    line = f"the {who} seals and opens: a batch took the GPU {1e3 * gpu:.3f} ms, one core of "
    assert line in said(caplog)
    assert len(caplog.records) == 1


def test_a_device_that_makes_other_bytes_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    seconds(monkeypatch, 1e-9, 1)
    opens(chosen(Played(wrong=True)))
    assert said(caplog) == "the processor seals and opens: the GPU makes other bytes"


def test_a_device_that_cannot_begin_is_not_used(caplog: Any) -> None:
    opens(chosen(Played(calls=0)))
    line = "the processor seals and opens: the GPU cannot: CUDA error: out of memory"
    assert said(caplog) == line


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_device_that_fails_on_the_way_is_let_go_of_and_nothing_is_lost(
    measured: bool, calls: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """In the middle of a block too: the other batches are sealed on, to the same bytes."""
    seconds(monkeypatch, 1e-9, 1)
    device = Played(calls=calls + (1 + choice.TRIES if measured else 0))
    backend = chosen(device, measured)
    opens(backend)
    opens(backend)
    expected = "the GPU failed (RuntimeError: CUDA error: out of memory"
    assert said(caplog).count(expected) == 1
    assert "the processor seals and opens from here on" in said(caplog)
    assert device.asked == device.calls + 1, "it is not asked again"


def test_a_fault_of_the_values_is_none_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds(monkeypatch, 1e-9, 1)
    device = Played()
    backend = chosen(device)
    with pytest.raises(Malformed, match="outside"):
        RlweSealing(PARAMETERS, place(4), backend).seal(0, np.array([-1]))
    asked = device.asked
    opens(backend, 4)
    assert device.asked > asked


def test_the_processor_needs_nothing_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "gpu_backend", lambda: pytest.fail("a device was looked for"))
    assert sealing_backend("cpu") is None
    monkeypatch.setattr(choice, "has_device_file", lambda: False)
    assert sealing_backend("auto") is None
    monkeypatch.setattr(choice, "has_device_file", lambda: True)
    assert sealing_backend("auto") is not None, "and is looked for when it is needed"


def test_a_device_that_was_asked_for_and_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def missing() -> Any:
        raise ConfigError("there is none: install it")

    monkeypatch.setattr(choice, "gpu_backend", missing)
    with pytest.raises(ConfigError, match="install it"):
        sealing_backend("gpu")
    caplog.set_level(logging.INFO, "secureps")
    opens(ChosenBackend(CPU, missing, measured=True))
    assert said(caplog) == "the processor seals and opens: there is none: install it"
    assert caplog.records[0].levelno == logging.INFO


@pytest.mark.parametrize("calls", [1 << 30, 5])
def test_a_federation_ends_in_the_same_model(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients seal and shards open by a device, or by one that fails on the way."""
    device = Played(calls=calls)
    backend = chosen(device, measured=False)

    def given(kind: Any) -> Any:
        return lambda *others: kind(*others[:-1], backend)

    monkeypatch.setattr(worker, "OutboxSealer", given(OutboxSealer))
    monkeypatch.setattr(assemble, "ShardWorker", given(ShardWorker))
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    simulation.run(lambda: finished(simulation))
    assert same(simulation.model(), unharmed()[0])
    assert device.done == ({"seal", "open"} if calls > 5 else {"seal"})


def test_a_place_is_chosen_for_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of few values may be sooner here, one of many there."""
    seconds(monkeypatch, 1e-9, 1)
    backend, enc = chosen(Played()), choose(PARAMETERS)
    opens(backend, 20_000)
    monkeypatch.setattr(choice, "_fastest", lambda trial, who: (b"", float(who is not CPU)))
    opens(backend, 30)
    assert backend.batch(enc, 20_000) == 2
    assert backend.batch(enc, 30) == CPU.batch(enc, 30)
