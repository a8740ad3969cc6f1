"""A shard's memory does not grow with its clients, and is as `check` says."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.memory import shard_peaks
from secureps.crypto.bfv_seal import BfvSealer
from secureps.service.malloc import give_back_payloads

MOST_GROWTH = 164_000_000
"""Bytes of a shard's peak with 50 clients above that with 5. What it holds of uploads is bounded,
not by how many clients send: by IN_FLIGHT_BYTES, 101 MB of blocks that come, or that wait for the
disk, by a piece of 1 MiB for each of 12 streams, and by gRPC's buffers, about 1 MB for each of 45
clients more. Measured: 54 to 100 MB. A shard that kept what it is sent would hold 194 MB more,
beside those."""

SMALL = (500, 500)
"""The shape of a model beside which kernels weigh the more."""

MOST_ERROR = 1.5
"""Of the prediction, either way. What a program needs before it has a model differs between
machines and releases, and is most of it here."""


SEALED = 16
"""Of the clients, who seal values of their own; the others send what one of these has sealed, which
a shard cannot tell. All the same, and the noise of a sum would be that of as many times one."""


def seal_few(patch: pytest.MonkeyPatch) -> None:
    seal, sealed, calls = BfvSealer.seal, dict[tuple[int, int], bytes](), Counter[int]()

    def seldom(self: BfvSealer, block: int, values: NDArray[np.int64]) -> bytes:
        calls[block] += 1
        key = (block, calls[block] % SEALED)
        if key not in sealed:
            sealed[key] = seal(self, block, values)
        return sealed[key]

    patch.setattr(BfvSealer, "seal", seldom)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads Linux's /proc")
@pytest.mark.timeout(240)
def test_a_shards_memory_does_not_grow_with_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = {}
    for clients in (5, 30):
        folder = tmp_path / str(clients)
        with monkeypatch.context() as patch:
            seal_few(patch)
            peaks[clients] = shard_peaks(folder, clients, versions=1, cipher="bfv")
        shutil.rmtree(folder)
    few, many = (peaks[n].highest for n in (5, 30))
    assert many <= few + MOST_GROWTH, peaks
    for peak in peaks.values():
        assert 1 / MOST_ERROR <= peak.ratio <= MOST_ERROR, peaks


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads Linux's /proc")
@pytest.mark.timeout(120)
def test_compiled_kernels_are_in_the_prediction(tmp_path: Path) -> None:
    peak = shard_peaks(tmp_path, clients=5, versions=1, cipher="rlwe", shape=SMALL)
    assert 1 / MOST_ERROR <= peak.ratio <= MOST_ERROR, peak


def test_large_blocks_are_given_back_where_the_c_library_can() -> None:
    assert give_back_payloads() is (platform.libc_ver()[0] == "glibc")
