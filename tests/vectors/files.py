"""The files of `vectors/`, as they are and as the code makes them now."""

import lzma

from tests.vectors.makers import MAKERS
from tests.vectors.recording import VECTORS, Files, as_json, record

RUN = "run/"
WRITTEN = ("README.md", "verify.py")
"""Files that people wrote."""


def on_disk() -> Files:
    """All files that are made, by name."""
    paths = sorted(path for path in VECTORS.rglob("*") if path.is_file())
    found = {path.relative_to(VECTORS).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in found.items() if name not in WRITTEN}


def of_run(files: Files) -> Files:
    return {name.removeprefix(RUN): data for name, data in files.items() if name.startswith(RUN)}


def as_made() -> Files:
    made = {f"{make.__name__}.json": as_json(make()) for make in MAKERS}
    return made | {f"{RUN}{name}": data for name, data in record(of_run(on_disk())).items()}


def differences(found: Files, made: Files) -> list[str]:
    """The files that are not alike, or that only one side has; packed ones by their content."""
    return sorted(n for n in found.keys() | made.keys() if _content(found, n) != _content(made, n))


def _content(files: Files, name: str) -> bytes | None:
    data = files.get(name)
    if data is None or not name.endswith(".xz"):
        return data
    try:
        return lzma.decompress(data)
    except lzma.LZMAError:
        return None
