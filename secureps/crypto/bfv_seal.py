"""BFV for the owners of keys and values: key generation, encryption and decryption by SEAL.

No other module imports tenseal. Our wire format (see `bfv`) has coefficients alone. tenseal gives
them one by one, and takes an object in as SEAL's stream alone: a 16-byte header, parms_id, flags,
sizes and the coefficients. It reads streams only from files, so they pass through an anonymous file
in memory. `bfv` checks the length and range of everything from outside before SEAL reads it.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from secureps.crypto.bfv import (
    CIPHERTEXT_BYTES,
    DATA_PRIME,
    DEGREE,
    DIGITS,
    KEY_PRIME,
    VALUES_PER_CIPHERTEXT,
    BfvAdder,
    BfvPublicKey,
    BfvSecretKey,
    check_parameters,
    pack,
    plain_modulus,
    unpack,
)
from secureps.crypto.cipher import (
    CipherParameters,
    Opener,
    Payload,
    Piece,
    Sealer,
    check_values,
)
from secureps.errors import InternalError, Malformed
from secureps.extras import from_extras

with from_extras():
    from tenseal import sealapi

_MAGIC = 0xA15E
_HEADER = struct.Struct("<HBBBBHQ")
"""SEALHeader: magic, header size, version major and minor, compression, reserved, size."""
_NO_COMPRESSION = 0


class _Ring:
    """A SEAL context, the prefixes of its objects' streams, and the file that streams pass through.

    The file is in memory where the system allows that. It serves one object at a time.
    """

    def __init__(self, t: int) -> None:
        encryption = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
        encryption.set_poly_modulus_degree(DEGREE)
        encryption.set_coeff_modulus([sealapi.Modulus(q) for q in (DATA_PRIME, KEY_PRIME)])
        encryption.set_plain_modulus(t)
        self.context = sealapi.SEALContext(encryption, True, sealapi.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise InternalError(f"SEAL refuses: {self.context.parameters_error_message()}")
        self._lock = threading.Lock()
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("secureps-seal")
            self._path = f"/proc/self/fd/{self._file}"
        else:
            self._file, self._path = tempfile.mkstemp(prefix="secureps-seal-")
            weakref.finalize(self, os.unlink, self._path)
        weakref.finalize(self, os.close, self._file)
        header = sealapi.Serialization.SEALHeader()
        self._version = (header.version_major, header.version_minor)
        data, key = self.context.first_parms_id(), self.context.key_parms_id()
        ids = struct.pack("<4Q", *data), struct.pack("<4Q", *key)
        # the fields that SEAL writes: is_ntt, size, N, primes, scale, correction factor
        polynomials = struct.Struct("<?QQQdQ")
        self.ciphertext = (
            ids[0] + polynomials.pack(False, 2, DEGREE, 1, 1.0, 1) + self._array(2 * DEGREE)
        )
        self.public = (
            ids[1] + polynomials.pack(True, 2, DEGREE, 2, 1.0, 1) + self._array(4 * DEGREE)
        )
        plaintext = struct.pack("<Qd", 2 * DEGREE, 1.0)  # coefficients, scale
        self.secret = ids[1] + plaintext + self._array(2 * DEGREE)

    def _array(self, size: int) -> bytes:
        """Returns the bytes before the uint64 of a DynArray: its own header and the size."""
        return self._header(8 + 8 * size) + struct.pack("<Q", size)

    def _header(self, length: int) -> bytes:
        size = _HEADER.size
        return _HEADER.pack(_MAGIC, size, *self._version, _NO_COMPRESSION, 0, size + length)

    def load(self, target: Any, prefix: bytes, coefficients: bytes | memoryview) -> Any:
        """Loads a SEAL object from coefficients."""
        body = prefix + coefficients
        with self._lock:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, self._header(len(body)) + body, 0)
            target.load(self.context, self._path)
        return target


def read_coefficients(source: Any, polynomials: int) -> bytes:
    """Returns the coefficients of a SEAL object's polynomials, uint64 little-endian."""
    count = polynomials * DEGREE
    return struct.pack(f"<{count}Q", *map(source.__getitem__, range(count)))


def generate() -> tuple[BfvSecretKey, BfvPublicKey]:
    """Generates a key pair from the operating system's randomness; it serves every capacity."""
    ring = _Ring(plain_modulus(1))  # keys are modulo q p, and independent of the plain modulus
    keys = sealapi.KeyGenerator(ring.context)
    secret, public = keys.secret_key(), sealapi.PublicKey()  # `data` does not keep them alive
    keys.create_public_key(public)
    return (
        BfvSecretKey(read_coefficients(secret.data(), 2)),
        BfvPublicKey(read_coefficients(public.data(), 4)),
    )


class BfvSealer(Sealer):
    """Encrypts under a holder's public key; PlanRefused if sums do not fit the plain modulus."""

    def __init__(self, parameters: CipherParameters, key: BfvPublicKey) -> None:
        check_parameters(parameters)
        self._levels, self._base = parameters.levels, parameters.base
        self._ring = _Ring(plain_modulus(parameters.capacity))
        public = self._ring.load(sealapi.PublicKey(), self._ring.public, key.coefficients)
        self._encoder = sealapi.BatchEncoder(self._ring.context)
        self._encryptor = sealapi.Encryptor(self._ring.context, public)

    def pieces(self, block: int, values: npt.NDArray[np.integer[Any]]) -> Iterator[Piece]:
        def encrypted(first: int) -> Payload:
            own = values[first : first + VALUES_PER_CIPHERTEXT].astype(np.int64)
            check_values(own, self._levels)
            plaintext = sealapi.Plaintext()
            ciphertext = sealapi.Ciphertext(self._ring.context)
            self._encoder.encode(pack(own, self._base).tolist(), plaintext)  # pads with zeros
            self._encryptor.encrypt(plaintext, ciphertext)
            return read_coefficients(ciphertext, 2)

        return (partial(encrypted, first) for first in range(0, values.size, VALUES_PER_CIPHERTEXT))


class BfvOpener(Opener):
    """Decrypts totals with a holder's secret key; raises as `BfvSealer` does."""

    def __init__(self, parameters: CipherParameters, key: BfvSecretKey) -> None:
        check_parameters(parameters)
        super().__init__(BfvAdder(parameters))
        self._base = parameters.base
        self._ring = _Ring(plain_modulus(parameters.capacity))
        coefficients = key.to_bytes()[-2 * DEGREE * 8 :]
        secret = self._ring.load(sealapi.SecretKey(), self._ring.secret, coefficients)
        self._encoder = sealapi.BatchEncoder(self._ring.context)
        self._decryptor = sealapi.Decryptor(self._ring.context, secret)

    def _open(self, block: int, total: Payload, sums: npt.NDArray[np.int64]) -> None:
        view = memoryview(total).cast("B")
        for index, start in enumerate(range(0, sums.size, VALUES_PER_CIPHERTEXT)):
            place, own = index * CIPHERTEXT_BYTES, sums[start : start + VALUES_PER_CIPHERTEXT]
            packed = self._decrypt(view[place : place + CIPHERTEXT_BYTES])
            own[:] = unpack(packed[: -(-own.size // DIGITS)], self._base, own.size)

    def _decrypt(self, total: memoryview) -> npt.NDArray[np.int64]:
        """Decrypts one ciphertext to packed sums, int64 (4096,), whose range proves the opening.

        SEAL's noise budget proves nothing: it reads 0 within a factor of two of the bound.
        """
        ciphertext = sealapi.Ciphertext(self._ring.context)
        self._ring.load(ciphertext, self._ring.ciphertext, total)
        plaintext = sealapi.Plaintext()
        self._decryptor.decrypt(ciphertext, plaintext)
        packed = np.array(self._encoder.decode_uint64(plaintext), np.int64)
        if int(packed.max()) >= self._base**DIGITS:
            raise Malformed(
                "this total does not decrypt under this holder's key: it was sealed for another "
                "holder or for another plan, or a member sent a ciphertext that is none"
            )
        return packed
