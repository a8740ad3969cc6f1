"""Tensors on disk: state files, and checkpoints made of them.

    ROOT/.run                          the id of the run whose checkpoints these are
    ROOT/000007/manifest.json          describes the checkpoint, with digests of its files
    ROOT/000007/shard-0.safetensors    "all/0003": float32 values of block 3 of group
                                       "all"; "all/0003/m": a slot of its optimizer
A checkpoint is complete when its manifest exists. `safetensors.torch.load_file` opens every shard
file.

Tensors of a state file are read, mapped into memory, or copied from file to file. A disk that fails
under a map ends the process (SIGBUS). So the wanted bytes are read for their digest before they are
mapped, because a failing read is an ordinary error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError, DamagedStore, DiskFailed, Malformed, OperatorError
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import (
    canonical_plain,
    digest,
    from_plain,
    payload_digest,
    payload_hasher,
    to_plain,
)
from secureps.messages.evaluation import VersionEvaluated, is_model_group
from secureps.messages.format import FORMAT, demand_readable
from secureps.messages.run import GroupVersion, Placement, RunInfo
from secureps.store.atomic_file import hash_pieces, make_directory, write_durably
from secureps.store.durability import open_to_read
from secureps.wording import named

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 64 << 20
"""The most bytes of a manifest."""
HEADER_LIMIT = 16 << 20
"""The most bytes of a state file's header (safetensors itself allows 100 MB)."""
HEADER_START = 8
"""Bytes before the header: its length, little endian."""

_PIECE = 1 << 20
"""Bytes of a file that are read at a time."""

_NAME = re.compile(r"[A-Za-z0-9_*-][A-Za-z0-9._*-]*")
NUMBER = re.compile(r"[0-9]{6,18}")
"""The name of a checkpoint's directory."""
_WIDTHS = {"float": (64, 32, 16), "int": (64, 32, 16, 8), "uint": (64, 32, 16, 8)}
_TYPES = {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind, widths in _WIDTHS.items()
    for bits in widths
} | {"bool": "BOOL"}
"""safetensors' names of numpy's types."""
TYPES = {theirs: ours for ours, theirs in _TYPES.items()}
"""numpy's names of safetensors' types."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FiledTensor:
    """A tensor in a file, from byte `offset` on."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def pieces(self) -> Iterator[bytes]:
        """Reads the tensor's bytes, piece by piece; DamagedStore if they are gone."""
        with open_part(self.path) as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise DamagedStore(f"{self.path}: torn")
                left -= len(piece)
                yield piece


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One shard's part of a checkpoint: its file's name, `payload_digest` and size."""

    shard: str
    file: str
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A charge or a release, with version and step 0, and how many times a client spent it."""

    times: int
    charge: Charge | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a checkpoint.

    Args:
        format: the FORMAT of the writing version of secureps.
        id: of the `run`, hexadecimal.
        files: one for every shard; the `placement` says which blocks are in which.
        unsafe: the clients, sorted, that ever submitted an update with an unsafe seed: the ledger's
            epsilon does not protect them.
        evaluations: all that existed when the checkpoint was completed.
        tallies: all privacy charges up to `versions`, counted: a list of single charges would
            exceed MANIFEST_LIMIT in a long run.
    """

    format: int
    number: int
    id: str
    run: RunInfo
    versions: tuple[GroupVersion, ...]
    files: tuple[ShardFile, ...]
    placement: Placement
    unsafe: tuple[str, ...] = ()
    evaluations: tuple[VersionEvaluated, ...] = ()
    tallies: tuple[Tally, ...] = ()

    @property
    def model(self) -> dict[str, int]:
        return {at.group: at.version for at in self.versions if is_model_group(at.group)}

    def holds(self, version: int) -> bool:
        return {*self.model.values()} == {version}


def tensor_name(group: str, block: int, slot: str = "") -> str:
    return f"{group}/{block:04d}/{slot}" if slot else f"{group}/{block:04d}"


def checkpoint_path(root: str | Path, number: int) -> Path:
    return Path(root) / f"{number:06d}"


def claim(root: Path, run: bytes) -> None:
    """Marks a folder of checkpoints as a run's own, unless it is marked.

    All runs number their checkpoints alike: a second run in the folder would overwrite the first
    one's files and delete its versions. Raises ConfigError for another run's folder; DiskFailed.
    """
    mark = root / ".run"
    try:
        if not mark.exists():
            make_directory(root)
            owner = run.hex()
            for directory in checkpoint_directories(root):  # of a version that made no mark
                with contextlib.suppress(ConfigError, DamagedStore):
                    owner = read_manifest(directory).id
            with contextlib.suppress(FileExistsError), mark.open("x") as file:
                file.write(owner)
        owner = mark.read_text()
    except OSError as error:
        raise DiskFailed(f"{mark}: {error.strerror}") from error
    if owner not in ("", run.hex()):  # empty: its maker was killed, or writes it just now
        raise ConfigError(
            f"{root} has checkpoints of another run, {owner:.8}...: name a folder of this run's "
            "own as checkpoints, in every server's file"
        )


def write_state(
    path: str | Path,
    tensors: Mapping[str, NDArray[Any] | FiledTensor],
    metadata: Mapping[str, str],
    mode: int | None = 0o600,
) -> bytes:
    """Writes a safetensors file, atomically and durably; equal input makes equal bytes.

    safetensors' own writer orders metadata at random, but a repeated step must give the same
    digest. With a `mode` of None others may read the file, if the umask allows. Returns
    `payload_digest` of the file.

    Raises:
        Malformed: safetensors does not have an array's type.
        DiskFailed: the disk refuses.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    arrays: list[NDArray[Any] | FiledTensor] = []
    offset = 0
    # Widest items first: then every tensor begins at a multiple of its item's size.
    for name, array in sorted(tensors.items(), key=lambda t: (-t[1].dtype.itemsize, t[0])):
        if array.dtype.name not in _TYPES or name == "__metadata__":
            raise Malformed(f"tensor {name!r} of type {array.dtype} cannot be written")
        end = offset + array.nbytes
        header[name] = {
            "dtype": _TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        arrays.append(array)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise Malformed(f"{len(arrays)} tensors are too many for one file")
    head = (len(text).to_bytes(HEADER_START, "little"), text)
    return _write(Path(path), itertools.chain(head, *map(_pieces, arrays)), mode)


def _pieces(array: NDArray[Any] | FiledTensor) -> Iterable[bytes | memoryview]:
    if isinstance(array, FiledTensor):
        return array.pieces()
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return (little.reshape(-1).view(np.uint8).data,)


def read_state(
    path: str | Path, prefix: str = "", digest: bytes | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Reads the tensors with this `prefix`, and the metadata; raises as `find_tensors`."""
    placed, metadata = find_tensors(Path(path), digest)
    tensors = {
        name: _view(bytearray().join(tensor.pieces()), replace(tensor, offset=0))
        for name, tensor in placed.items()
        if name.startswith(prefix)
    }
    return tensors, metadata


def read_metadata(path: str | Path) -> dict[str, str]:
    """Reads a state file's metadata; DamagedStore if the file is absent or damaged."""
    return find_tensors(Path(path), None)[1]


def write_manifest(directory: str | Path, manifest: Manifest) -> None:
    """Completes a checkpoint whose files exist already, durably.

    Raises Malformed if the manifest names no plain file, and DiskFailed if the disk refuses.
    """
    for part in manifest.files:
        if _NAME.fullmatch(part.file) is None:
            raise Malformed(f"not a file name: {part.file!r:.80}")
    _write(Path(directory) / MANIFEST, [_encode_manifest(to_plain(manifest))], None)


def load_checkpoint(directory: str | Path) -> Manifest:
    """Reads a manifest as `read_manifest`, and checks the digests of the files that it names."""
    manifest = read_manifest(directory)
    if absent := [each for each in manifest.files if not (Path(directory) / each.file).exists()]:
        raise DamagedStore(
            f"{directory}: lacks {named([each.file for each in absent], 8)}: copy it from the "
            f"machine of {named([each.shard for each in absent], 8)}, where it is in "
            f"{Path(directory).name} of the folder that its file names as checkpoints"
        )
    for part in manifest.files:
        path = Path(directory) / part.file
        if digest_of_file(path, size=part.size) != part.digest:
            raise DamagedStore(f"{path}: damaged: its digest is another")
    return manifest


def read_part(directory: Path, part: ShardFile) -> bytes:
    """Reads one file of a checkpoint; DamagedStore if it is absent, torn or damaged."""
    path = directory / part.file
    with open_part(path) as file:
        data = file.read()
    if payload_digest(data) != part.digest:
        raise DamagedStore(f"{path}: damaged: its digest is another")
    return data


def read_manifest(directory: str | Path) -> Manifest:
    """Reads the manifest of a checkpoint, and does not look at its other files.

    Raises:
        ConfigError: it has a format that this version does not read.
        DamagedStore: it is absent, torn or damaged.
    """
    directory = Path(directory)
    path = directory / MANIFEST
    with open_part(path, "absent: the checkpoint was never completed") as file:
        text = file.read(MANIFEST_LIMIT + 1)
    if len(text) > MANIFEST_LIMIT:
        raise DamagedStore(f"{path}: longer than a manifest can be")
    try:
        plain = json.loads(text)
        plain.pop("digest")
        found = plain["format"]
        if isinstance(found, int):  # another format may have other fields
            demand_readable(path, found)
        manifest = from_plain(Manifest, plain)
        # An older format may have more fields. In today's format a manifest has one form.
        named_now = to_plain(manifest) if found == FORMAT else plain
        sound = _encode_manifest(named_now) == text and manifest.run.id.hex() == manifest.id
    except (Malformed, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise DamagedStore(f"{path}: damaged: it does not match its own digest")
    if checkpoint_path("", manifest.number).name != directory.name:
        raise DamagedStore(f"{path}: it belongs to checkpoint {manifest.number}")
    for part in manifest.files:
        if _NAME.fullmatch(part.file) is None:
            raise DamagedStore(f"{path}: not a file name: {part.file!r:.80}")
    return manifest


Root = str | Path | Iterable[Path]
"""The folder of checkpoints, or their directories, the newest first."""


def checkpoint_directories(root: str | Path) -> list[Path]:
    """Lists the directories of all checkpoints, complete or not, the newest first."""
    try:
        found = [path for path in Path(root).iterdir() if NUMBER.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def prune(
    root: str | Path, keep: int, wanted: Collection[int] = (), uncopied: Collection[int] = ()
) -> tuple[int, ...]:
    """Deletes old checkpoints; returns the numbers of the remaining ones.

    These remain: the newest `keep` complete ones and everything newer, the newest one of each
    `wanted` version, the first one, from which baselines begin, and the `uncopied` ones, which an
    object store lacks.
    """
    stay: list[int] = []
    complete, missing = 0, set(wanted)
    for directory in checkpoint_directories(root):
        number, before = int(directory.name), complete
        try:
            manifest = read_manifest(directory)
        except (ConfigError, DamagedStore):
            held = set[int]()
        else:
            complete += 1
            held = {version for version in missing if manifest.holds(version)}
            missing -= held
        if before < keep or held or number == 0 or number in uncopied:
            stay.append(number)
        else:
            remove_files(directory)
    return tuple(stay)


def remove_files(directory: Path, *names: str) -> None:
    """Deletes these files of a checkpoint, or all of it, and its directory once that is empty.

    The manifest goes first, so that an interrupted deletion leaves no complete checkpoint. Files
    that cannot be deleted stay.
    """
    try:
        found = [each.name for each in directory.iterdir()]
        for name in sorted(names or found, key=lambda each: each != MANIFEST):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
    except OSError:  # it has files of other parties, or they are deleting it too
        return


def load_newest(root: Root) -> tuple[Path, Manifest, tuple[str, ...]]:
    """Loads the newest whole checkpoint: its directory, manifest, and newer ones' complaints.

    Raises:
        DamagedStore: there are checkpoints, but none is whole.
        OperatorError: (not DamagedStore) there is no checkpoint.
    """
    complaints: list[str] = []
    for directory in directories(root):
        try:
            return directory, load_checkpoint(directory), tuple(complaints)
        except DamagedStore as error:
            complaints.append(str(error))
    if not complaints:
        raise OperatorError(
            f"{root}: no checkpoint here: servers write theirs where `checkpoints` of their "
            "files says"
        )
    raise DamagedStore(f"{root}: no checkpoint is whole: {'; '.join(complaints)}")


def directories(root: Root) -> Iterable[Path]:
    """Returns the directories of a root, the newest first; iteration may download them."""
    return checkpoint_directories(root) if isinstance(root, str | Path) else root


def _encode_manifest(plain: dict[str, Any]) -> bytes:
    """Encodes a manifest's plain form, also one of an older format, behind its digest."""
    own = digest("secureps-manifest", canonical_plain(Manifest, plain)).hex()
    return json.dumps({"digest": own, **plain}, indent=1).encode() + b"\n"


@contextlib.contextmanager
def open_part(path: Path, absent: str = "absent") -> Iterator[BinaryIO]:
    """Opens a file of a checkpoint; DamagedStore if it cannot be read."""
    try:
        with open_to_read(path) as file:
            yield file
    except FileNotFoundError:
        raise DamagedStore(f"{path}: {absent}") from None
    except OSError as error:
        raise DamagedStore(f"{path}: {error.strerror}") from None


def digest_of_file(
    path: Path, hasher: Callable[[], Any] = payload_hasher, size: int | None = None
) -> bytes:
    """Computes a file's digest; DamagedStore if the file is absent or of another size."""
    with open_part(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if size is not None and actual != size:
            raise DamagedStore(f"{path}: {actual} bytes instead of {size}")
        return hashlib.file_digest(file, hasher).digest()  # type: ignore[arg-type]  # IO lacks readinto


def header_end(path: Path, begin: bytes, size: int) -> int:
    """Finds the end of a header in a file of `size` bytes; DamagedStore if torn or too long."""
    length = int.from_bytes(begin[:HEADER_START], "little")
    if len(begin) < HEADER_START or length > min(HEADER_LIMIT, size - HEADER_START):
        raise DamagedStore(f"{path}: torn: its header is not whole")
    return HEADER_START + length


def _write(path: Path, pieces: Iterable[bytes | memoryview], mode: int | None) -> bytes:
    """Writes a file and its directory durably; returns the digest of the bytes."""
    hasher = payload_hasher()
    try:
        make_directory(path.parent, 0o775 if mode is None else 0o700)
        write_durably(path, hash_pieces(pieces, hasher), mode)
    except OSError as error:
        raise DiskFailed(f"{path}: cannot write: {error.strerror}") from error
    return hasher.digest()


_BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The upper half of a float32, which NumPy has no type for."""


def find_tensors(path: Path, digest: bytes | None) -> tuple[dict[str, FiledTensor], dict[str, str]]:
    """Finds where the tensors of a safetensors file lie in it; returns also its metadata.

    Without the `digest` of the whole file only the header is read. DamagedStore if the file is
    absent, torn, of types that numpy lacks, of another digest, or has other bytes than its tensors.
    """
    with open_part(path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = file.read(HEADER_START)
        start = header_end(path, begin, size)
        text = file.read(start - HEADER_START)
    found: dict[str, FiledTensor] = {}
    try:
        header = json.loads(text)
        metadata = dict(header.pop("__metadata__", {}))
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata are no texts")
        for name, each in header.items():
            first, end = map(int, each["data_offsets"])
            shape = tuple(map(int, each["shape"]))
            dtype = _BFLOAT16 if each["dtype"] == "BF16" else np.dtype(TYPES[each["dtype"]])
            tensor = FiledTensor(path, dtype, shape, start + first)
            if min((*shape, first)) < 0 or tensor.nbytes != end - first or start + end > size:
                raise ValueError(f"{name} is not in it")
            found[name] = tensor
        if start + sum(each.nbytes for each in found.values()) != size:
            raise ValueError(f"its tensors are not all of its {size} bytes")
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise DamagedStore(f"{path}: not a state file: {error}") from None
    if digest is not None and digest_of_file(path) != digest:
        raise DamagedStore(f"{path}: damaged: its digest is another")
    return found, metadata


def map_state(path: Path, digest: bytes | None) -> dict[str, NDArray[Any]]:
    """Maps the tensors of a safetensors file, read-only, without reading them.

    bfloat16 tensors are read and converted to float32 with the same values.

    Raises:
        DamagedStore: as `find_tensors`.
        MemoryError: no address space, or no map, is left for the process.
    """
    placed, _ = find_tensors(path, digest)
    with open_part(path) as file:
        try:
            whole = _map(file, 0, mmap.ACCESS_READ)
        except ValueError as error:  # the file has become empty
            raise DamagedStore(f"{path}: torn: {error}") from None
    return {name: _view(whole, tensor) for name, tensor in placed.items()}


def _map(file: BinaryIO, length: int, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Maps a file; MemoryError if no address space, or no map, is left."""
    try:
        return mmap.mmap(file.fileno(), length, access=access)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{file.name} cannot be mapped") from error
        raise


def _view(whole: mmap.mmap | bytearray, tensor: FiledTensor) -> NDArray[Any]:
    if tensor.dtype == _BFLOAT16:
        halves = _view(whole, replace(tensor, dtype=np.dtype("<u2")))
        return (halves.astype(np.uint32) << 16).view(np.float32)
    count, dtype = tensor.nbytes // tensor.dtype.itemsize, tensor.dtype.newbyteorder("<")
    if count == 0:
        return np.empty(tensor.shape, tensor.dtype)
    return np.frombuffer(whole, dtype, count, tensor.offset).reshape(tensor.shape)


class Scratch:
    """Vectors in nameless files of a folder's file system.

    The system writes their pages out when memory is short. A file's space is free again when its
    vector is garbage or the process ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def vector(self, values: int) -> NDArray[np.float32]:
        """A float32 vector of 1 or more values; DiskFailed, or MemoryError as `map_state`."""
        length = values * np.dtype(np.float32).itemsize
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # so that a full disk is an error here
                    os.posix_fallocate(file.fileno(), 0, length)
                else:
                    file.truncate(length)
                whole = _map(file, length)
        except OSError as error:
            raise DiskFailed(f"{self._folder}: no room: {error.strerror}") from error
        return np.frombuffer(whole, np.float32, values)
