"""Writes what `run.deploy` makes: folders of files, which are their owner's alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from secureps.errors import ConfigError, OperatorError
from secureps.store.atomic_file import make_directory, replace_text

OWN = (".yaml", ".sbatch")
"""Endings of files that somebody applies or submits with all that lie beside them."""


def write_folders(out: Path, folders: Mapping[str, Mapping[str, str]]) -> list[Path]:
    """Writes texts by folder and file, and returns the folders.

    Raises:
        ConfigError: a folder is there and has files that this has not: of other parties, perhaps.
        OperatorError: the disk refuses.
    """
    for name, files in folders.items():
        folder = out / name
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
        there = {name for name in there if name.endswith(OWN)}
        if others := sorted(there - set(files)):
            raise ConfigError(
                f"{folder} has {others[0]}, which is no part of this: name another folder, or "
                "remove that one"
            )
    try:
        for name, files in folders.items():
            make_directory(out / name, 0o700)
            for file, text in files.items():
                replace_text(out / name / file, text, 0o600)
    except OSError as error:
        raise OperatorError(f"{error.filename or out}: {error.strerror}") from None
    return [out / name for name in folders]
