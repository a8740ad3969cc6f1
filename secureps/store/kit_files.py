"""Reads and writes single files of a start-up kit: permissions, size, and passphrases.

A passphrase comes from a file descriptor or a terminal, never from the environment or an argument,
which other processes can see.

Private files under a passphrase use scrypt (RFC 7914), then AES-256-GCM (NIST SP 800-38D):

    file   = header | salt (16 bytes) | nonce (12 bytes) | ciphertext | tag (16 bytes)
    key    = scrypt(passphrase, salt, N = 2^17, r = 8, p = 1), 32 bytes
    header = one line of text with the version, which fixes all parameters; it is authenticated
             with the rest

Each guess costs 128 MiB and a third of a second of CPU, as OWASP's password storage cheat sheet
(2023) recommends. The version fixes the parameters, so that a forged file cannot demand terabytes.
"""

from __future__ import annotations

import getpass
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from secureps.crypto.secret import Secret
from secureps.errors import ClientError, ConfigError, KitError, Malformed, Unsigned
from secureps.file_access import open_to_others
from secureps.store.atomic_file import fresh_file, make_directory, sync, write_durably
from secureps.store.durability import open_to_read

HEADER: Final = (
    b"secureps private key under a passphrase, 1: scrypt N=131072 r=8 p=1, AES-256-GCM\n"
)
MOST_BYTES: Final = 1024
"""The most bytes of a passphrase."""

_BEGIN = HEADER[: HEADER.index(b", ")]
_N, _R, _P = 1 << 17, 8, 1
_SALT, _NONCE, _TAG = 16, 12, 16


class Passphrases(Secret):
    """The one passphrase of a party's private files, which seals and opens them.

    A descriptor is read and closed at once, so that no script and no child process can read it.
    Without a descriptor the terminal is asked when the first file needs the passphrase. All files
    that one object seals share a salt and one derivation.

    Args:
        descriptor: its first line is the passphrase; a terminal prompts for it.
        new: whether the terminal prompts twice.
    Raises:
        ConfigError: nothing can be read, nothing is typed, the two entries differ, or these are
            not 1 to MOST_BYTES bytes.
    """

    __slots__ = ("_derived", "_salt", "_words")

    def __init__(self, descriptor: int | None = None, new: bool = False) -> None:
        self._words = b""
        self._salt = os.urandom(_SALT)
        self._derived: dict[bytes, AESGCM] = {}
        if descriptor is not None:
            self._learn(read_passphrase(descriptor, new))

    def _learn(self, words: bytes) -> None:
        if not 1 <= len(words) <= MOST_BYTES:
            raise ConfigError(f"a passphrase has 1 to {MOST_BYTES} bytes, this one {len(words)}")
        self._words = words

    def lock(self, data: bytes) -> bytes:
        """Makes the bytes of a private file: under the passphrase, if there is one."""
        if not self._words:
            return data
        nonce = os.urandom(_NONCE)
        return HEADER + self._salt + nonce + self._key(self._salt).encrypt(nonce, data, HEADER)

    def unlock(self, path: Path, file: bytes) -> bytes:
        """Returns a private file's content.

        Raises:
            KitError: no passphrase, or a wrong one, was given; or as `open`.
        """
        if not under_passphrase(file):
            return file
        if not self._words:
            if not (sys.stdin and sys.stdin.isatty()):
                raise KitError(
                    f"{path} is under a passphrase: give it at a terminal, or by "
                    "--passphrase-fd N, the number of an open file whose first line it is"
                )
            self._learn(_ask(f"passphrase of {path.parent.name}: "))
        try:
            return self.open(file)
        except ClientError as error:
            raise KitError(f"{path}: {error}") from None

    def open(self, file: bytes) -> bytes:
        """Returns the data in a sealed file.

        Raises:
            Malformed: it is no sealed file, or one of another version.
            Unsigned: the passphrase is wrong, or the file has changed.
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
    return file.startswith(_BEGIN)


def read_passphrase(descriptor: int, new: bool = False) -> bytes:
    """Reads a descriptor's first line, and closes it; arguments and errors as `Passphrases`."""
    try:
        if os.isatty(descriptor):
            words = _ask("passphrase: ")
            if new and _ask("the same again: ") != words:
                raise ConfigError("the two passphrases differ: nothing was made")
            return words
        line = bytearray()
        while len(line) <= MOST_BYTES and (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
            line += byte
        os.close(descriptor)
    except OSError as error:
        raise ConfigError(
            f"--passphrase-fd {descriptor}: cannot read it: {error.strerror}; open it in the "
            f"shell, as in {descriptor}< FILE"
        ) from None
    return bytes(line)


def _ask(prompt: str) -> bytes:
    try:
        return getpass.getpass(prompt).encode()
    except EOFError:
        raise ConfigError("no passphrase was typed") from None


T = TypeVar("T")

_MAX_FILE = 32 << 20


def read_secret(
    parse: Callable[[bytes], T], path: Path, absent: str, passphrases: Passphrases | None = None
) -> T:
    """Reads a private file, by its passphrase if it has one.

    Raises:
        KitError: the file is missing, readable by others, damaged, or under another passphrase.
    """
    data = read(path, absent, forbidden=0o077)
    try:
        return parse((passphrases or Passphrases()).unlock(path, data))
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


def read(path: Path, absent: str, forbidden: int = 0o022, most: int = _MAX_FILE) -> bytes:
    """Reads a file after checking the permissions of the opened file.

    `absent` ends the sentence "... is missing", and `forbidden` are bits that the file's mode must
    not have. KitError if the file is missing, open to others, or longer than `most` bytes.
    """
    try:
        with open_to_read(path, opener=os.open) as file:
            if open_to_others(os.fstat(file.fileno()), forbidden):
                mode = 0o666 & ~forbidden & ~0o022
                raise KitError(f"{path} is open to others: chmod {mode:o} {path}")
            data = file.read(most + 1)  # bounded: a device's size says nothing
    except (FileNotFoundError, NotADirectoryError):
        raise KitError(f"{path} is missing{absent}") from None
    except IsADirectoryError:
        raise KitError(f"{path}: Is a directory; name a file in it") from None
    except OSError as error:
        raise KitError(f"cannot read {path}: {error}") from None
    if len(data) > most:
        raise KitError(f"{path} has more than {most} bytes and is no part of a kit")
    return data


def make_folder(path: Path, mode: int) -> None:
    """Makes a folder of this mode durably, whatever the umask, or keeps an existing one.

    KitError if there is a link, which an attacker may have planted, or a more open folder.
    """
    try:
        path.mkdir(mode)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise KitError(f"{path} is no folder, or a link to one: remove it") from None
        if open_to_others(status, ~mode):
            raise KitError(f"{path} is open to others: chmod {mode:o} {path}") from None
    else:
        path.chmod(mode)
    make_directory(path, mode)  # makes the folder's name durable


def write(path: Path, data: bytes, mode: int) -> None:
    """Writes a file at once, with this mode; replaces a link instead of following it."""
    write_durably(path, [data], mode)


def write_new(path: Path, data: bytes) -> None:
    """Writes a new private file (0600) at once; KitError if it exists, OSError of the disk."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh_file(fresh, [data], 0o600):
            os.link(fresh, path, follow_symlinks=False)  # unlike a rename it replaces nothing
            fresh.unlink()
    except FileExistsError:
        raise KitError(f"{path} is there already, and is not written over") from None
    sync(path.parent)
