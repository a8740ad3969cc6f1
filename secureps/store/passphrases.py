"""Where a passphrase comes from: a file descriptor, or whoever sits at the terminal.

Never from the environment, an argument or a file's name: others see those.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from secureps.crypto.passphrase import MOST_BYTES, Passphrase, under_passphrase
from secureps.crypto.secret import Secret
from secureps.errors import ClientError, ConfigError, KitError


class Passphrases(Secret):
    """The passphrase of one party's private files; one for all of them.

    It is read from a descriptor at once, which is then closed: no script and no child process finds
    it there. Without one a terminal is asked when the first file wants it.

    Args:
        descriptor: its first line is the passphrase; a terminal is asked for it.
        new: what is typed is typed twice.
    Raises:
        ConfigError: nothing can be read there, nothing is typed, or the two differ.
    """

    __slots__ = ("_known",)

    def __init__(self, descriptor: int | None = None, new: bool = False) -> None:
        self._known: Passphrase | None = None
        if descriptor is not None:
            self._known = _read(descriptor, new)

    def lock(self, data: bytes) -> bytes:
        """A private file's bytes: under the passphrase, where there is one."""
        return data if self._known is None else self._known.seal(data)

    def unlock(self, path: Path, file: bytes) -> bytes:
        """What a private file holds.

        Raises:
            KitError: it is under a passphrase that nobody gave, or under another one.
        """
        if not under_passphrase(file):
            return file
        if self._known is None:
            if not (sys.stdin and sys.stdin.isatty()):
                raise KitError(
                    f"{path} is under a passphrase: give it at a terminal, or by "
                    "--passphrase-fd N, the number of an open file whose first line it is"
                )
            self._known = Passphrase(_typed(f"passphrase of {path.parent.name}: "))
        try:
            return self._known.open(file)
        except ClientError as error:
            raise KitError(f"{path}: {error}") from None


def _read(descriptor: int, new: bool) -> Passphrase:
    try:
        if os.isatty(descriptor):
            words = _typed("passphrase: ")
            if new and _typed("the same again: ") != words:
                raise ConfigError("the two passphrases differ: nothing was made")
            return Passphrase(words)
        line = bytearray()
        while len(line) <= MOST_BYTES and (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
            line += byte
        os.close(descriptor)
    except OSError as error:
        raise ConfigError(
            f"--passphrase-fd {descriptor}: cannot read it: {error.strerror}; open it in the "
            f"shell, as in {descriptor}< FILE"
        ) from None
    return Passphrase(bytes(line))


def _typed(prompt: str) -> bytes:
    try:
        return getpass.getpass(prompt).encode()
    except EOFError:
        raise ConfigError("no passphrase was typed") from None
