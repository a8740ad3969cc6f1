"""Names of ciphers, missing keys, and servers that never load tenseal."""

import numpy as np
import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.suite import cipher, key_length
from secureps.errors import KitError, Malformed, Oversized, PlanRefused, Refused
from tests.kits.cipher_kit import PLACE


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(PlanRefused, match="known are bfv, plain"):
        cipher(CipherParameters("ckks", 1, 1))


def test_bfv_names_the_missing_key() -> None:
    built = cipher(CipherParameters("bfv", 4, 100))
    with pytest.raises(KitError, match="public key"):
        built.sealer(PLACE, None)
    with pytest.raises(KitError, match="secret key"):
        built.opener(PLACE, None)
    with pytest.raises(Malformed):
        built.sealer(PLACE, b"no key")


def test_a_key_belongs_to_its_sealer_and_opens_that_submission_alone() -> None:
    parameters = CipherParameters("rlwe", 4, 100)
    built, values = cipher(parameters), np.arange(10)
    sealers = [built.sealer(PLACE, None) for _ in range(2)]
    sums = built.adder().zero(10)
    built.adder().add(sums, sealers[0].seal(0, values), 1)
    total = built.adder().total(sums)
    own, other = (built.opener(PLACE, sealer.key) for sealer in sealers)
    assert own.open(0, total, 10).tolist() == values.tolist()
    with pytest.raises(Refused, match="does not open"):
        other.open(0, total, 10)
    size = 4 * key_length(parameters)
    wrong = ((None, KitError), (bytes(size - 4), Malformed), (bytes(size + 1), Oversized))
    for key, error in wrong:
        with pytest.raises(error):
            built.opener(PLACE, key)
    plain = cipher(CipherParameters("plain", 4, 100))
    assert (plain.sealer(PLACE, None).key, built.noise_sealer(None).key) == (None, None)
