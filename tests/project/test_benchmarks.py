"""The benchmarks run, and leave no cipher and no step out."""

import socket
import time

import pytest
import torch

from benchmarks import record_level
from benchmarks.ciphers import measure
from benchmarks.line import Line, Speed
from secureps.crypto.suite import CIPHERS

FEW = 1 << 13


def test_every_step_under_every_cipher_is_measured() -> None:
    rows = {(row["who"], row["step"]): row for row in measure(FEW, tries=1)}
    for name in CIPHERS:
        for step in ("seal", "check", "add", "total", "open"):
            assert float(rows[name, step]["ns/value"]) > 0
    empty = {"rlwe": 3.3125, "rlwe wide": 6.625, "rlwe large": 26.5}  # the latter two half or more
    for who, size in empty.items():
        for step in ("seal", "check", "add", "total", "open"):
            assert float(rows[who, step]["ns/value"]) > 0
        assert rows[who, "seal"]["bytes/value"] == size
    for step in ("clip", "grid", "pack", "unpack"):
        assert ("all", step) in rows
    for step in ("round", "noise, local", "noise, distributed"):
        assert ("client", step) in rows
    copy, sealed = rows["float32", "copy"], rows["bfv", "seal"]
    assert (copy["to a copy"], copy["to fp32"]) == (1.0, 1.0)
    assert sealed["bytes/value"] == 8.0
    assert sealed["to fp32"] == 2.0


@pytest.mark.filterwarnings("ignore::UserWarning")  # Opacus' of itself
def test_private_steps_of_every_model_are_measured_beside_plain_ones() -> None:
    rows = record_level.measure(torch.device("cpu"), turns=1, steps=1, narrow=True, share=16)
    assert len(rows) == len(record_level.CASES) * len(record_level.WAYS)
    assert all(float(row["ms a step"]) > 0 < float(row["to plain"]) for row in rows)


def test_a_line_without_root_carries_what_is_sent_at_its_rate_and_after_its_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with (
        Line(Speed(rate=1e6, delay=0.05)) as line,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        here = line.address(f"127.0.0.1:{server.getsockname()[1]}").rpartition(":")
        with socket.create_connection((here[0], int(here[2]))) as far, server.accept()[0] as near:
            began, data = time.monotonic(), bytes(range(256)) * 200
            far.sendall(data)
            far.shutdown(socket.SHUT_WR)
            came = b"".join(iter(lambda: near.recv(1 << 16), b""))
    assert came == data
    assert time.monotonic() - began >= len(data) / 1e6 + 0.05
    assert (line.up, line.down) == (len(data), 0)
