"""What a hostile app of a run looks for on the machine that it runs on: secrets, by their digests.

It stands alone, on the standard library: `make flower` appends its text to a client_app.py that a
real SuperNode runs. It names no secret, and so can be shipped: what it opens it compares by digest.
"""

import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MOST = 64 << 20
"""Bytes of a file or of a process' memory at which it looks."""
SKIPPED = ("/proc", "/sys", "/dev")


def digested(data: bytes) -> str:
    """How a needle is told to the app."""
    return hashlib.sha256(data).hexdigest()


def piece(text: bytes) -> tuple[int, str, str]:
    """How a needle is told that may lie in the middle of something: its length, how it begins, in
    hexadecimal, as else every place would be digested, and its digest."""
    return len(text), text[:2].hex(), digested(text)


def files(roots: Iterable[str]) -> Iterator[str]:
    """All regular files under these folders, as far as they may be listed."""
    for root in roots:
        for base, folders, names in os.walk(root):
            folders[:] = [n for n in folders if os.path.join(base, n) not in SKIPPED]
            yield from (os.path.join(base, name) for name in names)


def processes() -> Iterator[str]:
    """What /proc has of every process: its memory is read by its maps, all else as files."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline", "root/etc/hostname"):
            yield f"/proc/{pid}/{name}"
        for folder in ("fd", "cwd"):
            try:
                yield from (
                    f"/proc/{pid}/{folder}/{n}" for n in os.listdir(f"/proc/{pid}/{folder}")
                )
            except OSError:
                continue


def content(path: str) -> bytes | None:
    """Of a regular file, if it may be opened; links of /proc/PID/fd are followed."""
    try:
        if path.startswith("/proc/") and path.count("/") == 3:
            return Path(path).read_bytes()
        if not os.path.isfile(path) or os.stat(path).st_size > MOST:
            return None
        return Path(path).read_bytes()
    except OSError:
        return None


def memory(pid: str) -> Iterator[bytes]:
    """What may be read of a process' writable memory."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            for line in maps:
                span, modes = line.split()[:2]
                begin, end = (int(each, 16) for each in span.split("-"))
                if modes.startswith("rw") and end - begin <= MOST:
                    file.seek(begin)
                    try:
                        yield file.read(end - begin)
                    except OSError:
                        continue
    except OSError:
        return


def asked(path: str) -> bytes:
    """What the socket says to somebody who sends it no batch; empty if it may not be asked."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(path)
            line.sendall(b"\0" + (5).to_bytes(8, "little") + b"hello")
            return line.recv(1 << 16)
    except OSError:
        return b""


def search(
    needles: Mapping[str, str],
    private: Iterable[str],
    roots: Iterable[str],
    told: Iterable[object],
    holders: Iterable[str],
    relay: str,
    pieces: Mapping[str, tuple[int, str, str]],
) -> list[str]:
    """What this process can get at, by the names of needles, and where.

    Args:
        needles: digests of whole files, by a name; private: folders of which no file may be read.
        roots: folders that it walks.
        told: the app's context, configuration, arguments and environment.
        holders: process ids of key holders, whose memory it looks through.
        relay: the socket's path.
        pieces: of secrets that would lie in the middle of something, by `piece`.
    """
    found = []
    known = {digest: name for name, digest in needles.items()}
    haystacks = [repr(each).encode() for each in told] + [asked(relay)]
    for path in (*files(roots), *processes()):
        data = content(path)
        if data is not None and digested(data) in known:
            found.append(f"{known[digested(data)]}: {path}")
        elif data is not None and os.path.realpath(path).startswith(tuple(private)):
            found.append(f"private: {path}")
    for pid in holders:
        seen = 0
        for piece in memory(pid):
            seen += len(piece)
        if seen:
            found.append(f"memory of key holder: process {pid}")
    for data in haystacks:
        for name, (length, begins, digest) in pieces.items():
            spans = places(data, bytes.fromhex(begins))
            if any(digested(data[at : at + length]) == digest for at in spans):
                found.append(f"{name}: what it is told")
    return found


def places(data: bytes, begins: bytes) -> Iterator[int]:
    """Where these bytes are."""
    at = data.find(begins)
    while at >= 0:
        yield at
        at = data.find(begins, at + 1)
