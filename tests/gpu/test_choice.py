"""Which backend seals: by the option, by measurement, and the processor once a device fails."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from secureps.client import worker
from secureps.client.runner import Joining
from secureps.client.sealing import OutboxSealer
from secureps.config.serve import ServeSection
from secureps.crypto.backend import Noise
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import Encoding, choose
from secureps.crypto.rlwe import CPU, RlweAdder, RlweOpener, RlweSealing
from secureps.errors import ConfigError, Malformed
from secureps.gpu import choice
from secureps.gpu.choice import ChosenBackend, Fallback, sealing_backend
from secureps.run import assemble
from secureps.service.shard.devices import ShardDevices
from tests.crypto.test_rlwe import PARAMETERS as PARAMETERS_ALL
from tests.crypto.test_rlwe import named
from tests.kits.federations import finished, same, small_federation, small_plan, unharmed
from tests.kits.rlwe_kit import place

PARAMETERS = CipherParameters("rlwe", 32, 65_534)


TRIAL = 3
"""Pieces that are compared, of which each is a call."""
Wrong = Callable[[int, int, Any], bool]
"""Of a block, its first element and its values or words: whether other bytes are made of them."""


class Played:
    """A device that is this processor: wrong where it is told so, and broken after some calls."""

    def __init__(
        self, wrong: Wrong | None = None, calls: int = 1 << 30, opens: bool = True
    ) -> None:
        self.wrong, self.calls, self.opens, self.asked = wrong, calls, opens, 0
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

    def seal(self, block: int, first: int, count: int, values: Any) -> Any:
        self._count("seal")
        made = self._made.seal(block, first, count, values)
        wrong = self._device.wrong
        return bytes(len(made)) if wrong and wrong(block, first, values) else made

    def open(self, block: int, first: int, words: Any, out: Any) -> Any:
        self._count("open")
        found = self._made.open(block, first, words, out)
        wrong = self._device.wrong
        if not self._device.opens or (wrong and wrong(block, first, words)):
            out[:] = 0
        return found


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
    fastest, turns = choice.fastest, itertools.cycle((gpu, cpu))

    def played(action: Any) -> float:
        fastest(action)
        return next(turns)

    monkeypatch.setattr(choice, "fastest", played)


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
    tries = TRIAL + choice.TRIES
    # Of 5 elements, 2 at a time, after it was tried at opening too.
    assert device.asked == (tries + 3 + TRIAL + 3 if who == "GPU" else tries)
    line = f"the {who} seals and opens: a batch took the GPU {1e3 * gpu:.3f} ms, one core of "
    assert line in said(caplog)
    assert len(caplog.records) == 1


BATCH = 2
WRONG: dict[str, Wrong] = {
    "always": lambda block, first, given: True,
    "nonces": lambda block, first, given: block > 0,
    "counters": lambda block, first, given: first >= BATCH,
    "large counters": lambda block, first, given: first * 3 * 2048 // 16 >= 1 << 31,
    "values": lambda block, first, given: bool(given.max() > 1),
    "large values": lambda block, first, given: bool(given.max() == PARAMETERS.levels),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_device_that_makes_other_bytes_is_not_used(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Noise that is wrong for some blocks or elements shows in no opening."""
    seconds(monkeypatch, 1e-9, 1)
    device = Played(wrong)
    opens(chosen(device))
    assert said(caplog) == "the processor seals and opens: the GPU makes other bytes"
    assert device.done == {"seal"}, "nor asked to open"
    assert device.asked <= TRIAL + choice.TRIES


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_device_that_must_be_there_and_makes_other_bytes_is_an_error(wrong: Wrong) -> None:
    backend = chosen(Played(wrong), measured=False)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match="other bytes than the processor: take sealing = cpu, or mend"
        ):
            opens(backend)


@pytest.mark.parametrize("wrong", ["nonces", "counters", "large counters"])
def test_an_opening_is_tried_as_well(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    seconds(monkeypatch, 1e-9, 1)
    enc = choose(PARAMETERS)
    key = np.zeros((len(enc.ring.primes), 2, enc.ring.degree), np.uint32)
    chosen(Played(WRONG[wrong])).opener(enc, place(20_000), key)
    assert said(caplog) == "the processor seals and opens: the GPU makes other bytes"


@pytest.mark.parametrize("measured", [True, False])
def test_one_that_seals_is_tried_before_it_opens(
    measured: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Wrong digits are told by nothing else: a client would seal them anew, and send them."""
    seconds(monkeypatch, 1e-9, 1)
    backend = chosen(Played(opens=False), measured)
    if measured:
        opens(backend)
        assert said(caplog) == "the processor seals and opens: the GPU makes other bytes"
        return
    with pytest.raises(ConfigError, match="other bytes than the processor"):
        opens(backend)


@pytest.mark.parametrize("parameters", PARAMETERS_ALL, ids=named)
def test_the_trial_reaches_the_last_counters_of_every_ring(parameters: CipherParameters) -> None:
    """A device that is the processor itself passes it, whatever the ring."""
    device = Played()
    backend = chosen(device, measured=False)
    enc = choose(parameters)
    noise = Noise()
    key = choice._key(enc, noise)
    backend.sealer(enc, place(10), parameters.levels, noise, key)
    assert device.asked == TRIAL
    (_, _, count), _, (_, last, few) = choice._pieces(enc, 1)
    assert count == few == 1
    counters = (last * 3 * enc.ring.degree // 16, last * len(enc.ring.primes) * enc.ring.degree)
    assert max(counters) > 1 << 31
    assert counters[0] > 1 << 31 or len(enc.ring.primes) == 8


def test_a_device_that_cannot_is_not_asked_for_other_sizes(caplog: Any) -> None:
    device = Played(calls=0)
    backend = chosen(device)
    opens(backend)
    opens(backend, 30)
    assert device.asked == 1
    assert len(caplog.records) == 1


def test_a_device_that_cannot_begin_is_not_used(caplog: Any) -> None:
    opens(chosen(Played(calls=0)))
    line = "the processor seals and opens: the GPU cannot: CUDA error: out of memory"
    assert said(caplog) == line


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("calls", [0, 1, 3 + TRIAL + 1])
def test_a_device_that_fails_on_the_way_is_let_go_of_and_nothing_is_lost(
    measured: bool, calls: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """In the middle of a block too: the other batches are sealed on, to the same bytes."""
    seconds(monkeypatch, 1e-9, 1)
    device = Played(calls=calls + TRIAL + (choice.TRIES if measured else 0))
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


def test_a_server_looks_for_no_device_unless_its_file_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "has_device_file", lambda: True)
    section = ServeSection(name="s0", kit="kit", state="state")
    assert sealing_backend(section.sealing) is None
    assert sealing_backend(Joining("host:1", Path("kit"), "c0", Path("state")).sealing) is not None


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


@pytest.mark.parametrize("error", [MemoryError(), Malformed("theirs")])
def test_what_is_no_fault_of_the_device_ends_the_work_and_not_the_device(
    error: Exception, caplog: Any
) -> None:
    """The host has no memory for what the processor would make in its place either."""

    def fails() -> None:
        raise error

    fallback = Fallback("steps")
    for ask in (fallback.tried, fallback.begun)[: 1 + isinstance(error, MemoryError)]:
        with pytest.raises(type(error)):
            ask(fails)
    assert not fallback.failed
    assert fallback.tried(lambda: 3) == 3
    assert not caplog.records


def test_a_device_that_is_not_there_is_looked_for_once(caplog: Any) -> None:
    looked = list[int]()

    def missing() -> Any:
        looked.append(1)
        raise ConfigError("there is none: install it")

    backend = ChosenBackend(CPU, missing, measured=True)
    opens(backend)
    opens(backend, 30)
    assert len(looked) == 1


@pytest.mark.parametrize("calls", [1 << 30, TRIAL + 2])
def test_a_federation_ends_in_the_same_model(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients seal and shards open by a device, or by one that fails on the way."""
    device = Played(calls=calls)
    backend, sealer = chosen(device, measured=False), cast(Any, OutboxSealer)
    monkeypatch.setattr(worker, "OutboxSealer", lambda *own: sealer(*own[:-1], backend))
    given = partial(assemble.ShardSettings, devices=ShardDevices(backend))
    monkeypatch.setattr(assemble, "ShardSettings", given)
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    simulation.run(lambda: finished(simulation))
    assert same(simulation.model(), unharmed()[0])
    assert device.done == ({"seal", "open"} if calls > TRIAL + 2 else {"seal"})


def test_a_place_is_chosen_for_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of few values may be sooner here, one of many there."""
    seconds(monkeypatch, 1e-9, 1)
    backend, enc = chosen(Played()), choose(PARAMETERS)
    opens(backend, 20_000)
    seconds(monkeypatch, 1, 1e-9)
    opens(backend, 30)
    assert backend.batch(enc, 20_000) == 2
    assert backend.batch(enc, 30) == CPU.batch(enc, 30)
