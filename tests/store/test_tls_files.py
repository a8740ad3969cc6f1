"""A party's TLS files that change while it runs."""

import os
from pathlib import Path

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import TlsKey
from secureps.store.issuing import create_kit, issue, renew
from secureps.store.keyring import LOOK, TlsFiles, load_public


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    create_kit(tmp_path, CipherParameters("plain", 8, 14))
    issue(tmp_path, "client", "eve")
    return tmp_path


def test_a_kit_that_is_copied_once_more_is_no_new_certificate(
    kit: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])
    before = files()
    for path in (kit / "public" / "tls").iterdir():
        os.utime(path, (1.0, 1.0))
    now[0] += LOOK
    assert files() is before
    assert not caplog.records
    renew(kit, ["eve"])
    now[0] += LOOK
    assert files() is not before
    assert "eve has a new certificate" in caplog.text


def test_a_damaged_renewal_is_told_and_changes_nothing(
    kit: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])
    before, path = files(), kit / "public" / "tls" / "eve.pem"
    path.write_text("half a certif")
    now[0] += LOOK
    assert files() is before
    assert "eve goes on with the certificate that it has" in caplog.text
    path.unlink()
    now[0] += LOOK
    assert files() is before
    renew(kit, ["eve"])
    now[0] += LOOK
    assert (between := files()) is not before
    key = kit / "private" / "eve" / "tls.key"
    old = key.read_bytes()
    path.unlink()
    key.write_bytes(new := TlsKey.generate().to_bytes())
    renew(kit, ["eve"])
    key.write_bytes(old)  # which arrives after the certificate
    now[0] += LOOK
    assert files() is between
    key.write_bytes(new)
    now[0] += LOOK
    assert files() is not between
