"""Names of ciphers, missing keys, and servers that never load tenseal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import secureps
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.suite import CIPHERS, cipher
from secureps.errors import KitError, Malformed, PlanRefused
from tests.kits.cipher_kit import PLACE


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(PlanRefused, match="known are bfv, plain"):
        cipher(CipherParameters("ckks", 1, 1))


def test_what_opens_each() -> None:
    openings = {name: cipher(CipherParameters(name, 4, 100)).opening for name in CIPHERS}
    assert openings == {
        "bfv": Opening.HOLDER,
        "plain": Opening.NOTHING,
        "rlwe": Opening.COMMITTEE,
    }


def test_bfv_names_the_missing_key() -> None:
    built = cipher(CipherParameters("bfv", 4, 100))
    with pytest.raises(KitError, match="public key"):
        built.sealer(PLACE, None)
    with pytest.raises(KitError, match="secret key"):
        built.opener(PLACE, None)
    with pytest.raises(Malformed):
        built.sealer(PLACE, b"no key")


def test_servers_never_import_tenseal() -> None:
    program = """
import sys
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.suite import CIPHERS, cipher
import secureps.store.keyring
for name in CIPHERS:
    adder = cipher(CipherParameters(name, 4, 100)).adder()
    sum = adder.zero(10)
    adder.check(10, bytes(adder.block_bytes(10)))
    adder.add(sum, bytes(adder.block_bytes(10)), 2)
    adder.check_total(10, adder.total(sum))
print([m for m in sys.modules if "tenseal" in m or "sealapi" in m or m == "torch"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def test_one_module_imports_tenseal() -> None:
    root = Path(secureps.__file__).parent
    importers = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(
            line.split()[:2] in (["import", "tenseal"], ["from", "tenseal"])
            for line in path.read_text().splitlines()
        )
    ]
    assert importers == ["crypto/bfv_seal.py"]
