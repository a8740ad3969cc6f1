"""The worked example of `docs/protocol.md`: one key among four holders, made again."""

import re

import numpy as np
import pytest

from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.sharing import Committee, HolderShare, answer, key_sum, share, vector_bytes
from secureps.messages.encoding import file_digest
from tests.crypto.test_envelope import opened_slowly, schedule
from tests.kits.nursery import ROOT
from tests.kits.sharing_kit import fixed_urandom

HOLDERS = ("holder-0", "holder-1", "holder-2", "holder-3")
ID = b"run/hospital-1/all/7"
RECEIPT = b"a receipt"
WEIGHT = 2
ABOUT = bytes([7]) * 32


def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    with monkeypatch.context() as fixed:
        fixed_urandom(fixed)
        us = Committee(HOLDERS, 3)
        key = (np.arange(2048) % 83 - 41).astype(np.int32)
        shared = share(ID, key, us)
    seeds = shared.seeds_of(0)
    recipient = EnvelopeKey(bytes(range(1, 97)))
    sealed = envelope.seal(recipient.public, seeds, RECEIPT)
    assert opened_slowly(bytes(range(1, 97)), sealed, RECEIPT) == seeds
    cipher_key, nonce = schedule(bytes(range(32)), RECEIPT)
    answers = {}
    for k in range(4):
        held = HolderShare(us, k, ID, shared.seeds_of(k))
        held.check(shared.commitments)
        answers[k] = answer([held], [WEIGHT], ABOUT, key.size)
    quorum = {k: answers[k] for k in (0, 2, 3)}
    opened = key_sum(us, quorum, [shared.correction], [WEIGHT])
    assert np.array_equal(opened, WEIGHT * key.astype(np.int64))
    return {
        "subsets": " ".join("{" + ",".join(map(str, each)) + "}" for each in us.subsets),
        "commitment to the first seed": shared.commitments[0].hex(),
        "correction, first values": numbers(shared.correction),
        "correction, BLAKE2b-256 of its bytes": file_digest(vector_bytes(shared.correction)).hex(),
        "seeds of holder-0": " ".join(str(seeds[i]) for i in range(0, len(seeds), 32)),
        "public key of holder-0, BLAKE2b-256": file_digest(recipient.public.key).hex(),
        "envelope, length": str(len(sealed)),
        "key from that secret": cipher_key.hex(),
        "nonce from that secret": nonce.hex(),
        "answer of holder-0, first values": numbers(answers[0]),
        "answer of holder-0, BLAKE2b-256 of its bytes": file_digest(vector_bytes(answers[0])).hex(),
        "key sum, first values": numbers(opened),
    }


def numbers(vector: np.ndarray) -> str:
    return ", ".join(str(int(value)) for value in vector[:4])


def test_the_page_says_what_the_code_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    _, _, section = text.partition("| of one key among four |")
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", section, re.MULTILINE)
    told = {label: value for label, value in rows if not label.startswith("of ")}
    assert {label: told.get(label) for label in example(monkeypatch)} == example(monkeypatch)
