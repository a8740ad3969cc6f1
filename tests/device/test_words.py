"""Words that are made on a device are the stream's, from wherever on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.sampling import Stream, UnsafeSeed
from secureps.device.encoding import rotated_left, unsigned, words
from secureps.errors import InternalError
from tests.kits.torch_device import DEVICE, back


@given(first=st.integers(0, 1 << 35), count=st.integers(0, 100), number=st.integers(0, 5))
def test_words_are_the_streams(first: int, count: int, number: int) -> None:
    stream = UnsafeSeed(number).derive("words")
    made = words(stream, first, count, DEVICE)
    assert made.dtype == torch.int32
    expected = stream.at(first).words(count)
    assert np.array_equal(back(made).view(np.uint32), expected)
    assert np.array_equal(back(unsigned(made)), expected)


def test_they_are_those_of_the_rfc() -> None:
    """RFC 8439, section 2.4.2: the key stream under a key and a nonce, from block 1 on."""
    nonce = int.from_bytes(bytes.fromhex("000000000000004a00000000"), "little")
    made = back(words(Stream(bytes(range(32)), nonce), 16, 32, DEVICE)).astype("<i4").tobytes()
    assert made.hex().startswith("224f51f3401bd9e12fde276fb8631ded8c131f823d2c06e27e4fcaec9ef3cf78")


def test_a_stream_ends_where_it_ends_on_the_host() -> None:
    stream = UnsafeSeed(1).derive("end")
    assert words(stream, (1 << 36) - 8, 8, DEVICE).numel() == 8
    with pytest.raises(InternalError, match="68719476736 words"):
        words(stream, (1 << 36) - 8, 9, DEVICE)


@given(word=st.integers(0, 2**32 - 1), bits=st.integers(1, 31))
def test_a_rotation_loses_no_bit(word: int, bits: int) -> None:
    signed = word - (1 << 32 if word >> 31 else 0)
    turned = rotated_left(torch.tensor([signed], dtype=torch.int32, device=DEVICE), bits)
    assert int(unsigned(turned)) == (word << bits | word >> (32 - bits)) & 0xFFFFFFFF
