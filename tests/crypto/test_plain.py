"""The bytes of `plain`, beyond the contract in `test_cipher`."""

import numpy as np
import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.suite import PlainCipher
from secureps.errors import Malformed, PlanRefused
from tests.kits.cipher_kit import PLACE

VALUES = np.array([1, 2, 258], np.int64)


@pytest.mark.parametrize(
    ("levels", "expected"), [(65_535, "0100 0200 0201"), (65_536, "01000000 02000000 02010000")]
)
def test_blocks_are_little_endian_integers(levels: int, expected: str) -> None:
    built = PlainCipher(CipherParameters("plain", 2, levels))
    payload = built.sealer(PLACE, None).seal(0, VALUES)
    assert payload == bytes.fromhex(expected)
    adder = built.adder()
    accumulator = adder.zero(3)
    adder.add(accumulator, payload, 2)
    assert adder.total(accumulator) == (2 * VALUES).astype("<i8").tobytes()


def test_totals_beyond_the_capacity_are_refused() -> None:
    built = PlainCipher(CipherParameters("plain", 2, 10))
    for wrong in (-1, 21):
        with pytest.raises(Malformed, match=r"outside \[0, 20\]"):
            built.opener(PLACE, None).open(0, np.array([0, wrong], "<i8").tobytes(), 2)


def test_more_than_32_bits_are_refused() -> None:
    PlainCipher(CipherParameters("plain", 1, (1 << 32) - 1))
    with pytest.raises(PlanRefused, match="32 bits"):
        PlainCipher(CipherParameters("plain", 1, 1 << 32))
