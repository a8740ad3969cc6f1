"""What tests share of kits whose parties make their own keys."""

import os
import shutil
from pathlib import Path

from secureps.store.kit_files import Passphrases


def give(issuer: Path, own: Path) -> None:
    """The issuer's public/ goes to a party, as `scp -r` brings it."""
    shutil.copytree(issuer / "public", own / "public", dirs_exist_ok=True)


def descriptor(words: str) -> int:
    """An open file of which this is all."""
    reading, writing = os.pipe()
    os.write(writing, f"{words}\n".encode())
    os.close(writing)
    return reading


def phrase(words: str) -> Passphrases:
    """Given as on a command line."""
    return Passphrases(descriptor(words))


def part(whole: Path, folder: Path, *names: str) -> Path:
    """A kit with the private keys of these parties, and of no other."""
    shutil.copytree(whole / "public", folder / "public")
    for name in names:
        shutil.copytree(whole / "private" / name, folder / "private" / name)
    return folder
