"""The device and the processor seal and open to the same bytes, of every ring, from any thread."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.kits import gpu_kit  # isort: skip  # first: it skips where there is no Triton

from secureps.crypto.cipher import CipherParameters, OneTimeKey
from secureps.crypto.ring import choose
from secureps.crypto.rlwe import CPU, RlweAdder, RlweOpener, RlweSealing
from secureps.crypto.suite import cipher, on_backend
from secureps.errors import InternalError, Malformed, PlanRefused, Refused
from secureps.gpu import backend as module
from secureps.gpu.choice import ChosenBackend
from secureps.gpu.device import Device
from tests.crypto.test_rlwe import LARGE, NARROW, NOISE_KEY, PARAMETERS, WIDE, named, random_values
from tests.kits.rlwe_kit import place, sealed

GPU = gpu_kit.backend()

RINGS_ALL = [NARROW, WIDE, LARGE, *(p for p in PARAMETERS if p.security == "conservative")]
each_ring = pytest.mark.parametrize("parameters", RINGS_ALL, ids=named)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that everybody knows."""
    monkeypatch.setattr("secureps.crypto.backend.os.urandom", lambda n: NOISE_KEY[:n])


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("parameters", PARAMETERS, ids=named)
def test_both_seal_to_the_same_bytes(parameters: CipherParameters) -> None:
    """A block whose last element is not full, of every set of parameters."""
    slots = choose(parameters).values + 5
    values = random_values(parameters, slots, 1)
    at = place(slots)
    expected = RlweSealing(parameters, at).seal(2, values)
    assert RlweSealing(parameters, at, GPU).seal(2, values) == expected


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint32])
def test_integers_of_any_width_are_sealed_alike(kind: type) -> None:
    """Those of 32 bits are copied as they lie."""
    values = np.arange(5_000)
    expected = RlweSealing(NARROW, place(5_000)).seal(0, values)
    assert RlweSealing(NARROW, place(5_000), GPU).seal(0, values.astype(kind)) == expected


@pytest.mark.usefixtures("known")
def test_a_block_is_bit_for_bit_its_definition() -> None:
    """Against Python's integers: stream, law, transform, digits, remainders, packing."""
    slots = choose(NARROW).values + 5
    values, at = random_values(NARROW, slots, 1), place(slots)
    found = RlweSealing(NARROW, at, GPU).seal(2, values)
    assert found == sealed(choose(NARROW), at, 2, values, NOISE_KEY)


@pytest.mark.usefixtures("known")
def test_batches_and_threads_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    enc = choose(NARROW)
    slots = 5 * enc.values
    values, at = random_values(NARROW, slots, 2), place(slots)
    expected = RlweSealing(NARROW, at).seal(0, values)
    monkeypatch.setattr(module, "BATCH", 2 * enc.values)
    sealing = RlweSealing(NARROW, at, GPU)
    pieces = list(sealing.pieces(0, slots, lambda first, last: values[first:last]))
    assert len(pieces) == 3
    with ThreadPoolExecutor(2) as pool:
        assert b"".join(pool.map(lambda piece: piece(), pieces)) == expected


@each_ring
def test_both_open_to_the_same_sums(parameters: CipherParameters) -> None:
    """Of two members, with extremes, and a last element that is not full; a wrong key is told."""
    slots, top = 2 * choose(parameters).values - 3, parameters.levels
    at, adder = place(slots), RlweAdder(parameters)
    one, two = RlweSealing(parameters, at, GPU), RlweSealing(parameters, at)
    values = [random_values(parameters, slots, 3), np.where(np.arange(slots) % 2, top, 0)]
    sums = adder.zero(slots)
    for sealing, each in zip((one, two), values):
        adder.add(sums, sealing.seal(1, each), 1)
    key = sum(each.key.coefficients().astype(np.int64) for each in (one, two))
    assert isinstance(key, np.ndarray)
    found = RlweOpener(parameters, at, key, 2, GPU).open(1, adder.total(sums), slots)
    assert np.array_equal(found, values[0] + values[1])
    key[0] += 1 if key[0] < 0 else -1
    said = []
    for backend in (None, GPU):
        with pytest.raises(Refused, match="does not open: its residual is") as refused:
            RlweOpener(parameters, at, key, 2, backend).open(1, adder.total(sums), slots)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_what_is_sealed_on_one_is_sealed_again_from_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their pieces fit, as a client needs that opens its own update to seal it anew."""
    enc = choose(NARROW)
    slots, adder = 3 * enc.values, RlweAdder(NARROW)
    monkeypatch.setattr(module, "BATCH", 2 * enc.values)
    kind = on_backend(cipher(NARROW), GPU)
    first = kind.sealer(place(slots), None)
    values, sums = random_values(NARROW, slots, 4), adder.zero(slots)
    adder.add(sums, first.seal(0, values), 1)
    opener = kind.opener(place(slots), first.key)
    opened = [piece.copy() for piece in opener.pieces(0, adder.total(sums), slots)]
    sizes = []
    sealer = kind.sealer(place(slots), None)
    pieces = list(sealer.pieces(0, slots, lambda a, b: sizes.append(b - a) or values[a:b]))  # type: ignore[func-returns-value]
    assert all(piece() for piece in pieces)
    assert [piece.size for piece in opened] == sizes
    assert np.array_equal(np.concatenate(opened), values)


def test_other_ciphers_have_no_backend() -> None:
    plain = cipher(CipherParameters("plain", 32, 254))
    assert on_backend(plain, GPU) is plain


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64])
def test_values_out_of_range_are_refused(kind: Any) -> None:
    """32-bit ones by the device, which sees one below zero as a large one."""
    sealing = RlweSealing(NARROW, place(4), GPU)
    wrong = [NARROW.levels + 1, -1] if kind != np.uint32 else [NARROW.levels + 1, (1 << 32) - 1]
    for block, value in enumerate(wrong):
        with pytest.raises(Malformed, match=r"outside \[0, 65534\]"):
            sealing.seal(block, np.array([0, value], kind))
    assert sealing.seal(2, np.array([0, NARROW.levels], kind))


def test_beyond_the_streams_nothing_is_sealed() -> None:
    sealing = RlweSealing(NARROW, place(1), GPU)
    with pytest.raises(PlanRefused, match="split it"):
        sealing.seal(1 << 24, np.zeros(1, np.int32))
    with pytest.raises(InternalError, match="noise"):
        sealing._sealer.seal(0, (1 << 36) // (3 * 2048), 1, np.zeros(1, np.int32))


def test_a_window_that_runs_out_is_the_devices_fault(
    known: None, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """It has no chance: the processor decides, and goes on."""
    expected = RlweSealing(NARROW, place(1)).seal(0, np.zeros(1, np.int32))
    backend = ChosenBackend(CPU, lambda: GPU, measured=False)
    sealing = RlweSealing(NARROW, place(1), backend)
    stream = module.stream_of

    def spoilt(device: Any, key: Any, out: Any, counter: int, nonce: int, blocks: int) -> None:
        stream(device, key, out, counter, nonce, blocks)
        if nonce == 0:  # of the public stream: nothing below the limit
            out.numpy()[: 2 * 2048] = 0xFFFFFFFF

    monkeypatch.setattr(module, "stream_of", spoilt)
    assert sealing.seal(0, np.zeros(1, np.int32)) == expected
    assert "the GPU failed (RuntimeError: a window of public words ran out" in caplog.text


def test_a_value_that_only_the_device_sees_is_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sealing = RlweSealing(NARROW, place(4), GPU)
    sealing._sealer._levels = 5  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "check_values", lambda values, levels: None)
    with pytest.raises(RuntimeError, match="none of those which it was given"):
        sealing.seal(0, np.array([6], np.int32))


def test_a_room_that_is_not_finished_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream is there for the next one."""
    sealing, made = RlweSealing(NARROW, place(4), GPU), list[Any]()
    upload = Device.upload

    def full(device: Device, words: Any) -> Any:
        if made:
            raise MemoryError("no memory left")
        made.append(upload(device, words))
        return made[0]

    streams = sealing._sealer._device._idle  # type: ignore[attr-defined]
    before = streams.qsize()
    module.tables(gpu_kit.interpreter(), choose(NARROW).ring)
    module.scaled(gpu_kit.interpreter(), choose(NARROW))
    monkeypatch.setattr(Device, "upload", full)
    with pytest.raises(MemoryError):
        sealing.seal(0, np.array([1], np.int32))
    assert len(made) == 1
    assert not made[0].numpy().any()
    assert streams.qsize() == max(before, 1)


def test_nothing_of_a_submission_is_left_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, noise, values and what was made of them: zeros, once the sealer is let go of."""
    rooms = list[Any]()
    made = module._Room.__init__

    def remember(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        rooms.append(self._words)

    monkeypatch.setattr(module._Room, "__init__", remember)
    sealing = RlweSealing(NARROW, place(10), GPU)
    key: OneTimeKey = sealing.key
    sealing.seal(0, np.arange(10))
    (words,) = rooms
    secret = ("noise_key", "key", "noise", "values", "work", "words")
    assert all(words[name].numpy().any() for name in secret)
    del sealing
    gc.collect()
    assert not any(each.numpy().any() for each in words.values())
    assert key.coefficients().any()
