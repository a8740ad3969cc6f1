"""An S3 server on this machine, for tests: moto's, in a thread of this process."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from secureps.files.objects import ObjectStore


@cache
def _endpoint() -> str:
    """The server's URL; one serves all tests of a process."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: no S3 to test with")
    pytest.importorskip("s3fs", reason="s3fs is not installed: no S3 to test with")
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    return f"http://{host}:{port}"


@contextmanager
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new bucket; where it is, and by which keys, the environment says."""
    for name, value in s3_environment().items():
        monkeypatch.setenv(name, value)
    import boto3

    name = f"bucket-{uuid.uuid4()}"
    boto3.client("s3").create_bucket(Bucket=name)
    yield f"s3://{name}"


STORES = ("memory", "file", "s3")


@contextmanager
def empty_place(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if kind == "s3":
        with s3_bucket(monkeypatch) as bucket:
            yield f"{bucket}/run"
    else:
        yield f"memory://{uuid.uuid4()}/run" if kind == "memory" else f"file://{folder}/run"


def s3_environment() -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": _endpoint(),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "the-secret-of-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def content(store: ObjectStore, name: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        store.download(name, path, 1 << 30)
        return path.read_bytes()
