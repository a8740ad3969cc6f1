"""The conformance vectors and the recorded run are what the code makes, byte for byte."""

import pytest

from tests.vectors.files import as_made, differences, on_disk
from tests.vectors.recording import Files

MOST = 400_000
"""Bytes of all files together."""


@pytest.fixture(scope="module")
def made() -> Files:
    return as_made()


def test_all_files_are_made_again(made: Files) -> None:
    found = on_disk()
    assert differences(found, made) == []
    assert sum(map(len, found.values())) < MOST


@pytest.mark.parametrize("name", sorted(on_disk()))
def test_a_changed_byte_is_noticed(name: str, made: Files) -> None:
    found = on_disk()
    whole = bytearray(found[name])
    whole[len(whole) // 2] ^= 1
    assert differences(found | {name: bytes(whole)}, made) == [name]
