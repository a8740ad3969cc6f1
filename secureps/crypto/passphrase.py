"""Private files under a passphrase: scrypt (RFC 7914), then AES-256-GCM (NIST SP 800-38D).

    file   = header | salt (16 bytes) | nonce (12 bytes) | ciphertext | tag (16 bytes)
    key    = scrypt(passphrase, salt, N = 2^17, r = 8, p = 1), 32 bytes
    header = one line of text that says the version, and with it all parameters; it is
             authenticated with the rest

Each guess costs 128 MiB and a third of a second of CPU: parameters that OWASP's password storage
cheat sheet (2023) recommends. A version has one set of them, so that no file can ask for terabytes.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from secureps.crypto.secret import Secret
from secureps.errors import ConfigError, Malformed, Unsigned

HEADER: Final = (
    b"secureps private key under a passphrase, 1: scrypt N=131072 r=8 p=1, AES-256-GCM\n"
)
MOST_BYTES: Final = 1024
"""Of a passphrase."""

_BEGIN = HEADER[: HEADER.index(b", ")]
_N, _R, _P = 1 << 17, 8, 1
_SALT, _NONCE, _TAG = 16, 12, 16


class Passphrase(Secret):
    """Seals and opens files; the files that one object seals have one salt, so one derivation.

    Args:
        words: 1 to MOST_BYTES bytes, else ConfigError.
    """

    __slots__ = ("_derived", "_salt", "_words")

    def __init__(self, words: bytes) -> None:
        if not 1 <= len(words) <= MOST_BYTES:
            raise ConfigError(f"a passphrase has 1 to {MOST_BYTES} bytes, this one {len(words)}")
        self._words = words
        self._salt = os.urandom(_SALT)
        self._derived: dict[bytes, AESGCM] = {}

    def seal(self, data: bytes) -> bytes:
        """The file that holds `data`; its nonce is fresh, so that no two are alike."""
        nonce = os.urandom(_NONCE)
        sealed = self._key(self._salt).encrypt(nonce, data, HEADER)
        return HEADER + self._salt + nonce + sealed

    def open(self, file: bytes) -> bytes:
        """What `seal` was given.

        Raises:
            Malformed: no such file, or one of another version.
            Unsigned: another passphrase, or a byte of the file has changed.
        """
        body = file[len(HEADER) :]
        if not file.startswith(HEADER) or len(body) < _SALT + _NONCE + _TAG:
            raise Malformed("no private key under a passphrase of this version of secureps")
        salt, nonce, sealed = body[:_SALT], body[_SALT : _SALT + _NONCE], body[_SALT + _NONCE :]
        try:
            return self._key(salt).decrypt(nonce, sealed, HEADER)
        except InvalidTag:
            raise Unsigned("the passphrase is another one, or the file was changed") from None

    def _key(self, salt: bytes) -> AESGCM:
        known = self._derived.get(salt)
        if known is None:
            derived = Scrypt(salt=salt, length=32, n=_N, r=_R, p=_P).derive(self._words)
            known = self._derived[salt] = AESGCM(derived)
        return known


def under_passphrase(file: bytes) -> bool:
    """Whether a private file has to be opened before it is read, in this version or another."""
    return file.startswith(_BEGIN)
