"""Tensors on disk: state files, and the checkpoints that are made of them.

    ROOT/000007/manifest.json          what it is, digests of everything beside it
    ROOT/000007/shard-0.safetensors    "all/0003": float32 values of block 3 of group
                                       "all"; "all/0003/m": a slot of its optimizer
A checkpoint is complete when its manifest is. Every shard file opens with
`safetensors.torch.load_file` alone.

Tensors of a state file are read, mapped into memory where they lie, or copied from file to file.
The system keeps pages of files in memory for as long as it has room for them, mapped or read. A
disk that fails under a map ends the process (SIGBUS), as a kill does; so a file, or the tensor of
it that is wanted, is read for its digest before it is mapped, where a disk that fails is an error.
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
from secureps.messages.orders import GroupVersion
from secureps.messages.run import Placement, RunInfo
from secureps.store.atomic_file import hash_pieces, make_directory, write_durably
from secureps.store.durability import open_to_read
from secureps.wording import named

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 64 << 20
"""Bytes of the longest manifest."""
HEADER_LIMIT = 16 << 20
"""Bytes of the longest header of a state file (safetensors itself allows 100 MB)."""
HEADER_START = 8
"""Bytes before it: its length, little endian."""

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
"""What safetensors calls numpy's types."""
TYPES = {theirs: ours for ours, theirs in _TYPES.items()}
"""The other way round."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FiledTensor:
    """A tensor that lies in a file, from byte `offset` on, and is written from there."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def pieces(self) -> Iterator[bytes]:
        """Reads its bytes, piece by piece; DamagedStore if they are gone."""
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
    """One shard's part of a checkpoint: its file's name, `payload_digest` and bytes."""

    shard: str
    file: str
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a client spent the same: a charge or a release, with version and step 0."""

    times: int
    charge: Charge | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is.

    Args:
        format: the FORMAT of the version that wrote it.
        number: of the checkpoint; its directory is named after it.
        id: the run id, hexadecimal; run: what it binds.
        versions: the vector of group versions it holds.
        files: one for every shard; placement: which blocks are in which.
        unsafe: the clients, sorted, that ever submitted what an unsafe seed made; it protects
            nobody, whatever the ledger says.
        evaluations: all that were there when it was completed, of whichever version.
        tallies: the privacy facts up to `versions`, as long as clients are many:
            every single one would be longer than a manifest can be, in a long run.
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
        """The versions of the model's groups."""
        return {at.group: at.version for at in self.versions if is_model_group(at.group)}

    def holds(self, version: int) -> bool:
        return {*self.model.values()} == {version}


def tensor_name(group: str, block: int, slot: str = "") -> str:
    """The name of a block's values, or of a slot of its optimizer, in a shard file."""
    return f"{group}/{block:04d}/{slot}" if slot else f"{group}/{block:04d}"


def checkpoint_path(root: str | Path, number: int) -> Path:
    """The directory of a checkpoint."""
    return Path(root) / f"{number:06d}"


def write_state(
    path: str | Path,
    tensors: Mapping[str, NDArray[Any] | FiledTensor],
    metadata: Mapping[str, str],
    mode: int | None = 0o600,
) -> bytes:
    """Writes a safetensors file, atomically and durably; equal input makes equal bytes.

    The bytes are laid out here because safetensors orders metadata at random, and a step
    that is repeated must have the same digest.

    Args:
        path: replaced if it exists; its directory is made.
        tensors: of any shape and of numpy's numeric types or bool, in memory or in files.
        mode: of the file; None: others may read it, if the umask lets them.

    Returns:
        `payload_digest` of the file.

    Raises:
        Malformed: an array's type has no place in the file.
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
    path: str | Path, prefix: str = ""
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Reads the tensors of this `prefix`, and the metadata; DamagedStore if absent or torn."""
    path = Path(path)
    with open_part(path, os.strerror(errno.ENOENT), buffered=False) as file:
        placed, metadata = _find_tensors(path, file, _read(file, 0, _HEADER))
        tensors = {
            name: _view(_read(file, tensor.offset, tensor.nbytes), replace(tensor, offset=0))
            for name, tensor in placed.items()
            if name.startswith(prefix)
        }
    return tensors, metadata


def read_metadata(path: str | Path) -> dict[str, str]:
    """Reads the metadata of a state file alone; DamagedStore if it is absent or damaged."""
    path = Path(path)
    with open_part(path, os.strerror(errno.ENOENT), buffered=False) as file:
        return _find_tensors(path, file, _read(file, 0, _HEADER))[1]


def write_manifest(directory: str | Path, manifest: Manifest) -> None:
    """Completes a checkpoint whose files are there already, durably.

    Raises Malformed if it names no plain file, DiskFailed if the disk refuses.
    """
    for part in manifest.files:
        if _NAME.fullmatch(part.file) is None:
            raise Malformed(f"not a file name: {part.file!r:.80}")
    _write(Path(directory) / MANIFEST, [_encode_manifest(to_plain(manifest))], None)


def load_checkpoint(directory: str | Path) -> Manifest:
    """Reads a manifest as `read_manifest`, and checks every byte of the files that it names."""
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


def read_part(directory: str | Path, manifest: Manifest, part: ShardFile) -> bytes:
    """Reads one file of a checkpoint; DamagedStore if it is absent, torn or damaged."""
    path = Path(directory) / part.file
    with open_part(path) as file:
        data = file.read()
    if payload_digest(data) != part.digest:
        raise DamagedStore(f"{path}: damaged: its digest is another")
    return data


def read_manifest(directory: str | Path) -> Manifest:
    """Reads the manifest of a checkpoint, whatever became of the files that it names.

    Raises:
        ConfigError: another version wrote it, in a format that this one does not read.
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
        if isinstance(found, int):  # fields of another format may be others
            demand_readable(path, found)
        manifest = from_plain(Manifest, plain)
        # An older format may have named more. Of today's a manifest has one form.
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
"""Where checkpoints are: their folder, or their directories, the newest first."""


def checkpoint_directories(root: str | Path) -> list[Path]:
    """The directories of all checkpoints, whole or not, the newest first."""
    try:
        found = [path for path in Path(root).iterdir() if NUMBER.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def prune(
    root: str | Path, keep: int, wanted: Collection[int] = (), uncopied: Collection[int] = ()
) -> tuple[int, ...]:
    """Deletes checkpoints that nobody needs any more; the numbers of those that stay.

    The newest `keep` that are complete stay, whatever is newer than they are, the newest of each
    version that is `wanted`, the first one, from which baselines begin, and those that are
    `uncopied`, which an object store lacks.
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

    Its manifest goes first: without that it is no checkpoint, however far this comes. What cannot
    be deleted stays, for the next time.
    """
    try:
        found = [each.name for each in directory.iterdir()]
        for name in sorted(names or found, key=lambda each: each != MANIFEST):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
    except OSError:  # it has files of others, or is being deleted by them
        return


def load_newest(root: Root) -> tuple[Path, Manifest, tuple[str, ...]]:
    """The newest whole checkpoint: its directory, its manifest, and a complaint for each newer one.

    Raises:
        DamagedStore: there are checkpoints, and none is whole.
        OperatorError: (not DamagedStore) there is none at all.
    """
    complaints: list[str] = []
    for directory in directories(root):
        try:
            return directory, load_checkpoint(directory), tuple(complaints)
        except DamagedStore as error:
            complaints.append(str(error))
    if not complaints:
        raise OperatorError(f"{root}: no checkpoint here")
    raise DamagedStore(f"{root}: no checkpoint is whole: {'; '.join(complaints)}")


def directories(root: Root) -> Iterable[Path]:
    """The directories of a root, the newest first; some are brought when they are asked for."""
    return checkpoint_directories(root) if isinstance(root, str | Path) else root


def _encode_manifest(plain: dict[str, Any]) -> bytes:
    """A manifest's file: its digest, and its plain form, which an older format may have named."""
    own = digest("secureps-manifest", canonical_plain(Manifest, plain)).hex()
    return json.dumps({"digest": own, **plain}, indent=1).encode() + b"\n"


@contextlib.contextmanager
def open_part(path: Path, absent: str = "absent", buffered: bool = True) -> Iterator[BinaryIO]:
    """Opens a file of a checkpoint in bytes; DamagedStore if it cannot be read."""
    try:
        with open_to_read(path, buffered) as file:
            yield file
    except FileNotFoundError:
        raise DamagedStore(f"{path}: {absent}") from None
    except OSError as error:
        raise DamagedStore(f"{path}: {error.strerror}") from None


def digest_of_file(
    path: Path, hasher: Callable[[], Any] = payload_hasher, size: int | None = None
) -> bytes:
    """The digest of a file, piece by piece; DamagedStore if it is absent or of another size."""
    with open_part(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if size is not None and actual != size:
            raise DamagedStore(f"{path}: {actual} bytes instead of {size}")
        return hashlib.file_digest(file, hasher).digest()  # type: ignore[arg-type]  # IO lacks readinto


def header_end(path: Path, begin: bytes, size: int) -> int:
    """The end of the header of a file of `size` bytes; DamagedStore if it is torn or too long."""
    length = int.from_bytes(begin[:HEADER_START], "little")
    if len(begin) < HEADER_START or length > min(HEADER_LIMIT, size - HEADER_START):
        raise DamagedStore(f"{path}: torn: its header is not whole")
    return HEADER_START + length


def _write(path: Path, pieces: Iterable[bytes | memoryview], mode: int | None) -> bytes:
    """Writes a file durably, and the directory that it makes; returns the digest of the bytes."""
    hasher = payload_hasher()
    try:
        make_directory(path.parent, 0o775 if mode is None else 0o700)
        write_durably(path, hash_pieces(pieces, hasher), mode)
    except OSError as error:
        raise DiskFailed(f"{path}: cannot write: {error.strerror}") from error
    return hasher.digest()


_HEADER = 4096
"""Bytes that are read first, for a header: that of a few tensors is shorter."""
_BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The upper half of a float32, which NumPy has no type for."""


def find_tensors(path: Path, digest: bytes | None) -> dict[str, FiledTensor]:
    """Finds where the tensors of a safetensors file lie in it.

    Args:
        digest: what `write_state` returned, of a file that is read once as a whole to see that it
            is that one; None: its header is looked at alone.

    Raises:
        DamagedStore: absent, torn, of types that numpy does not have, or not of that digest.
    """
    with open_part(path, buffered=False) as file:
        found, _ = _find_tensors(path, file, _read(file, 0, _HEADER))
    if digest is not None and digest_of_file(path) != digest:
        raise DamagedStore(f"{path}: damaged: its digest is another")
    return found


def _read(file: Any, start: int, length: int) -> NDArray[np.uint8]:
    room = np.empty(max(0, min(length, os.fstat(file.fileno()).st_size - start)), np.uint8)
    file.seek(start)
    have = 0
    while have < room.size and (count := file.readinto(room[have:].data)):
        have += count
    return room[:have]


def _find_tensors(
    path: Path, file: Any, begin: NDArray[np.uint8]
) -> tuple[dict[str, FiledTensor], dict[str, str]]:
    """Finds where the tensors of a file lie, and its metadata."""
    size = os.fstat(file.fileno()).st_size
    end = header_end(path, bytes(begin[:HEADER_START]), size)
    here = end <= begin.size
    text = begin[HEADER_START:end] if here else _read(file, HEADER_START, end - HEADER_START)
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise DamagedStore(f"{path}: not a state file: {error}") from None
    return _place_tensors(path, header, end, size)


def _place_tensors(
    path: Path, header: Any, start: int, size: int
) -> tuple[dict[str, FiledTensor], dict[str, str]]:
    """What a header lists; DamagedStore unless its tensors are just the file's bytes."""
    found: dict[str, FiledTensor] = {}
    try:
        metadata = dict(header.pop("__metadata__", {}))
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata are no texts")
        for name, each in header.items():
            begin, end = map(int, each["data_offsets"])
            shape = tuple(map(int, each["shape"]))
            dtype = _BFLOAT16 if each["dtype"] == "BF16" else np.dtype(TYPES[each["dtype"]])
            tensor = FiledTensor(path, dtype, shape, start + begin)
            if min((*shape, begin)) < 0 or tensor.nbytes != end - begin or start + end > size:
                raise ValueError(f"{name} is not in it")
            found[name] = tensor
        if start + sum(each.nbytes for each in found.values()) != size:
            raise ValueError(f"its tensors are not all of its {size} bytes")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DamagedStore(f"{path}: not a state file: {error}") from None
    return found, metadata


def map_state(path: Path, digest: bytes | None) -> dict[str, NDArray[Any]]:
    """Maps the tensors of a safetensors file, read-only, without reading them.

    Those of bfloat16 are read, and are float32 with the same values.

    Raises:
        DamagedStore: as `find_tensors`.
        MemoryError: the process may have no more address space, or no more maps.
    """
    placed = find_tensors(path, digest)
    try:
        with open_to_read(path, buffered=False) as file:
            whole = _map(file, 0, mmap.ACCESS_READ)
    except OSError as error:
        raise DamagedStore(f"{path}: {error.strerror}") from None
    except ValueError as error:  # it has become empty
        raise DamagedStore(f"{path}: torn: {error}") from None
    return {name: _view(whole, tensor) for name, tensor in placed.items()}


def map_tensor(path: Path, name: str, digest: bytes) -> NDArray[Any]:
    """Maps a tensor of a safetensors file, read-only; it alone is read for its digest.

    Raises:
        DamagedStore: absent, torn, or not of that `payload_digest`.
        MemoryError: as `map_state`.
    """
    with open_part(path, buffered=False) as file:
        tensor = _find_tensors(path, file, _read(file, 0, _HEADER))[0].get(name)
        if tensor is None:
            raise DamagedStore(f"{path}: there is no {name} in it")
        hasher, end = payload_hasher(), tensor.offset + tensor.nbytes
        for start in range(tensor.offset, end, _PIECE):
            hasher.update(_read(file, start, min(_PIECE, end - start)).data)
        if hasher.digest() != digest:
            raise DamagedStore(f"{path}: {name} is damaged: its digest is another")
        return _view(_map(file, 0, mmap.ACCESS_READ), tensor)


def read_tensors(path: Path, digest: bytes) -> dict[str, NDArray[Any]]:
    """Reads a safetensors file once, for its tensors and their digest; as `find_tensors`."""
    with open_part(path, buffered=False) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _PIECE:
            _find_tensors(path, file, _read(file, 0, _HEADER))  # a hole is no reason to take memory
        data = _read(file, 0, size)
        if payload_digest(data.data) != digest:
            raise DamagedStore(f"{path}: damaged: its digest is another")
        placed, _ = _find_tensors(path, file, data)
        return {name: _view(data, tensor) for name, tensor in placed.items()}


def _map(file: BinaryIO, length: int, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Maps a file as `mmap.mmap`, but MemoryError says that no address space or maps are left."""
    try:
        return mmap.mmap(file.fileno(), length, access=access)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{file.name} cannot be mapped") from error
        raise


def _view(whole: mmap.mmap | NDArray[np.uint8], tensor: FiledTensor) -> NDArray[Any]:
    if tensor.dtype == _BFLOAT16:
        halves = _view(whole, replace(tensor, dtype=np.dtype("<u2")))
        return (halves.astype(np.uint32) << 16).view(np.float32)
    count, dtype = tensor.nbytes // tensor.dtype.itemsize, tensor.dtype.newbyteorder("<")
    if count == 0:
        return np.empty(tensor.shape, tensor.dtype)
    return np.frombuffer(whole, dtype, count, tensor.offset).reshape(tensor.shape)


class Scratch:
    """Room in a folder's file system: vectors in files without names.

    Their pages are written out when memory is short, and all of it is gone when nobody refers to
    a vector any more, or the process ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def vector(self, values: int) -> NDArray[np.float32]:
        """A float32 vector of 1 or more values; DiskFailed, or MemoryError as `map_state`."""
        length = values * np.dtype(np.float32).itemsize
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not later
                    os.posix_fallocate(file.fileno(), 0, length)
                else:
                    file.truncate(length)
                whole = _map(file, length)
        except OSError as error:
            raise DiskFailed(f"{self._folder}: no room: {error.strerror}") from error
        return np.frombuffer(whole, np.float32, values)
