"""A holder's envelope keys by number: files in its private folder, or in memory for a simulation.

    KIT/private/NAME/envelope.key    0600  number 0, which the CA certified
    KIT/private/NAME/envelope-N.key  0600  those that follow, made by a holder that runs

Under the passphrase of the other private files, where there is one. They are in no database and in
no backup: to erase one is to write over its file, and to remove it. A disk that moves what is
written (an SSD, a file system that copies on write) may keep the old bytes until it uses their
place again; where that counts, KIT/private lies on an encrypted volume, or in memory. What must
not live here: when a key is made or erased (`roles.holder.key_rotation`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from secureps.crypto.bfv import BfvSecretKey
from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.secret import Secret
from secureps.store.atomic_file import sync
from secureps.store.holder_keys import ENVELOPE, HolderSecret
from secureps.store.keyring import load_holder_secret, load_public
from secureps.store.kit_files import read_secret, write_new
from secureps.store.passphrases import Passphrases

_NAME = re.compile(r"envelope-([1-9][0-9]{0,9})\.key")


class EnvelopeKeys(Secret):
    """The keys that a holder has, by number; these are in memory.

    Args:
        keys: at least one.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[int, EnvelopeKey]) -> None:
        self._keys = dict(keys)

    @property
    def newest(self) -> int:
        """The greatest number of a key that is here."""
        return max(self._keys)

    @property
    def oldest(self) -> int:
        """The least number of a key that is here."""
        return min(self._keys)

    def get(self, number: int) -> EnvelopeKey | None:
        """The key of a number; None if it is erased, or was never made."""
        return self._keys.get(number)

    def make(self, number: int) -> EnvelopeKey:
        """The key of a number, which is made, durably, if it is not there.

        Raises:
            OSError: the disk refuses.
        """
        if number not in self._keys:
            key = self._made(number)
            self._keys = {**self._keys, number: key}  # others read meanwhile
        return self._keys[number]

    def erase(self, below: int) -> None:
        """Erases the keys below a number, but the newest; nothing is left to erase: no harm.

        Raises:
            OSError: the disk refuses.
        """
        for number in [n for n in self._keys if n < min(below, self.newest)]:
            self._remove(number)
            self._keys = {n: key for n, key in self._keys.items() if n != number}

    def _made(self, number: int) -> EnvelopeKey:
        return EnvelopeKey.from_os()

    def _remove(self, number: int) -> None:
        pass


class EnvelopeKeyFiles(EnvelopeKeys):
    """The keys in a holder's private folder.

    Raises:
        KitError: none is there, or one is damaged, open to others, or not what the CA certified.
    """

    __slots__ = ("_folder", "_passphrases")

    def __init__(self, kit: Path, name: str, passphrases: Passphrases | None = None) -> None:
        self._folder = kit / "private" / name
        self._passphrases = passphrases or Passphrases()
        keys = dict[int, EnvelopeKey]()
        files = os.listdir(self._folder) if self._folder.is_dir() else []
        for number in sorted(int(found[1]) for each in files if (found := _NAME.fullmatch(each))):
            path = self._path(number)
            keys[number] = read_secret(EnvelopeKey.from_bytes, path, "", self._passphrases)
        if not keys or os.path.lexists(self._path(0)):
            first = load_holder_secret(kit, name, self._passphrases)
            assert isinstance(first, EnvelopeKey)
            keys[0] = first
        super().__init__(keys)

    def _path(self, number: int) -> Path:
        return self._folder / (f"envelope-{number}.key" if number else ENVELOPE.secret_file)

    def _made(self, number: int) -> EnvelopeKey:
        key = EnvelopeKey.from_os()
        write_new(self._path(number), self._passphrases.lock(key.to_bytes()))
        return key

    def _remove(self, number: int) -> None:
        """Writes over a file before its name goes: a name alone leaves the bytes on the disk."""
        path = self._path(number)
        with contextlib.suppress(FileNotFoundError):
            with open(path, "r+b", opener=_no_link) as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
        sync(self._folder)


def in_memory(secret: HolderSecret) -> BfvSecretKey | EnvelopeKeys:
    """What a holder opens with, which has this secret key."""
    return EnvelopeKeys({0: secret}) if isinstance(secret, EnvelopeKey) else secret


def load_keys(
    kit: Path, name: str, passphrases: Passphrases | None = None
) -> BfvSecretKey | EnvelopeKeys:
    """What a holder opens with: one secret key, or all of its envelope keys.

    Raises:
        KitError: as `load_holder_secret`, or as `EnvelopeKeyFiles`.
    """
    public = load_public(kit)
    if name in public.holder_keys and public.opening is Opening.COMMITTEE:
        return EnvelopeKeyFiles(kit, name, passphrases)
    return in_memory(load_holder_secret(kit, name, passphrases))


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
