"""The conformance vectors and the recorded run are what the code makes, byte for byte."""

import pytest

from secureps.audit.entries import load, verify_end
from tests.vectors.files import WRITTEN, as_made, differences, of_run, on_disk
from tests.vectors.recording import Files
from tests.vectors.tampering import COORDINATOR, TAMPERED, forged

LOG = "audit/coordinator.jsonl"
MOST = 400_000
"""Bytes of all files together."""


@pytest.fixture(scope="module")
def made() -> Files:
    return as_made()


def test_all_files_are_made_again(made: Files) -> None:
    found = on_disk()
    assert differences(found, made) == []
    assert differences(found | {"more.json": b"{}"}, made) == ["more.json"]
    assert sum(map(len, found.values())) < MOST
    assert not {*WRITTEN} & (found.keys() | made.keys())  # else these are deleted, or overwritten


@pytest.mark.parametrize("name", sorted(on_disk()))
def test_a_changed_byte_is_noticed(name: str, made: Files) -> None:
    found = on_disk()
    whole = bytearray(found[name])
    whole[len(whole) // 2] ^= 1
    assert differences(found | {name: bytes(whole)}, made) == [name]


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_run_is_another_with_a_sound_log(name: str) -> None:
    """The verifier's own tests show that it refuses these."""
    run = of_run(on_disk())
    files = TAMPERED[name](run)
    assert differences(run, files)
    assert load(files[LOG]).begin.party == "coordinator"
    verify_end(files[LOG], COORDINATOR.public)


def test_nothing_forged_is_the_run_itself() -> None:
    run = of_run(on_disk())
    assert differences(run, forged(run, lambda kind, fields: None)) == []
