"""No secret leaves by `repr`, by formatting, by pickle or by copy."""

import copy
import pickle

import numpy as np
import pytest

from secureps.crypto.bfv import BfvSecretKey
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.rlwe import RlweSealing
from secureps.crypto.sampling import SecretSeed, Stream
from secureps.crypto.secret import Secret
from secureps.crypto.sharing import Committee, HolderShare, SharedKey
from tests.kits.cipher_kit import PLACE
from tests.kits.party_kits import phrase

MATERIAL = bytes(range(65, 97))
SEALING = RlweSealing(CipherParameters("rlwe", 32, 65_534), PLACE)
SECRETS: list[Secret] = [
    Identity(MATERIAL),
    SecretSeed(MATERIAL),
    Stream(MATERIAL),
    BfvSecretKey(MATERIAL),
    EnvelopeKey(3 * MATERIAL),
    SharedKey(Committee(("a",), 1), (MATERIAL,), (bytes(32),), np.zeros(1, np.uint32)),
    HolderShare(Committee(("a",), 1), 0, b"id", MATERIAL),
    SEALING,
    SEALING.key,
    phrase(MATERIAL.decode()),
]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda s: type(s).__name__)
def test_secrets_stay_hidden(secret: Secret) -> None:
    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "hidden" in text
        assert MATERIAL.decode() not in text
        assert MATERIAL.hex() not in text
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled or copied"):
            attempt(secret)
