"""What `make fuzz` found once: each input that broke something, and what is said of it now."""

import base64
import json
import socket
import sqlite3
import ssl
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import load_pem_private_key as load_key

from secureps.audit import entries
from secureps.config.sections import read_toml, toml_value
from secureps.crypto import identity
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, TlsKey
from secureps.errors import (
    ConfigError,
    DamagedStore,
    KitError,
    Malformed,
    PlanRefused,
    ScriptFailed,
    Unsigned,
)
from secureps.messages.records import Incarnated
from secureps.policy.plan import Plan, load_plan
from secureps.run.script.channel import Channel
from secureps.store.issuing import _read_kind, _read_revoked, create_kit
from secureps.store.journal import SqliteJournal, read_rows
from secureps.store.journal_rows import chain_digest, read_row
from tests.kits.nursery import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number:UserWarning")
CA = Identity(b"c" * 32)
DEEP = "[" * 100_000


def certificate() -> bytes:
    authority = identity.make_authority(CA)
    return identity.certify_tls(CA, authority, "shard-0", "shard", TlsKey.generate().public)


def changed(pem: bytes, at: int, bit: int = 1) -> bytes:
    """A certificate with a bit of its DER changed, counted from its end."""
    der = bytearray(ssl.PEM_cert_to_DER_cert(pem.decode()))
    der[at] ^= bit
    return ssl.DER_cert_to_PEM_cert(bytes(der)).encode()


@pytest.mark.parametrize("bit", [1, 64])
@pytest.mark.parametrize("at", range(-71, -64))
def test_what_stands_around_a_signature_cannot_change(at: int, bit: int) -> None:
    """Its algorithm, its length, its unused bits: none of them is under it."""
    pem = certificate()
    identity.check_certificate(CA.public, "shard-0", pem)
    with pytest.raises((Malformed, Unsigned)):
        identity.check_certificate(CA.public, "shard-0", changed(pem, at, bit))


@pytest.mark.parametrize("at", range(20, 260, 41))
def test_no_bit_of_an_authority_or_of_a_certificate_can_change(at: int) -> None:
    authority = identity.make_authority(CA)
    with pytest.raises((Malformed, Unsigned)):
        identity.check_authority(CA.public, changed(authority, at, 4))
    with pytest.raises((Malformed, Unsigned)):
        identity.check_certificate(CA.public, "shard-0", changed(certificate(), at, 4))


def test_a_party_is_no_authority() -> None:
    with pytest.raises(Unsigned, match="a party's and not the CA's own"):
        identity.check_authority(CA.public, certificate())


def test_a_key_of_an_unknown_kind_is_none() -> None:
    key = load_key(TlsKey.generate().to_bytes(), None)
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    other = der.replace(bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2b8648ce3d0201"))
    body = base64.encodebytes(other)
    with pytest.raises(Malformed, match="no private key"):
        TlsKey(b"-----BEGIN PRIVATE KEY-----\n" + body + b"-----END PRIVATE KEY-----\n")


@pytest.mark.parametrize("value", [DEEP, "9" * 5000])
def test_a_toml_file_of_brackets_or_digits_is_none(value: str, tmp_path: Path) -> None:
    (path := tmp_path / "plan.toml").write_text(f"name = {value}\n")
    with pytest.raises(ConfigError, match="no TOML file"):
        read_toml(path)
    assert toml_value(value) == value


def test_a_whole_number_may_have_any_size() -> None:
    assert toml_value("1" + "0" * 400) == 10**400


def test_a_name_that_is_too_long_for_a_disk_is_no_file(tmp_path: Path) -> None:
    text = (ROOT / "policies" / "digits_plain.toml").read_text()
    (path := tmp_path / "plan.toml").write_text(f'initial = "{"x" * 5000}"\n{text}')
    with pytest.raises(PlanRefused, match="initial: no file"):
        load_plan(path)


def test_a_plan_with_half_a_character_is_refused_in_words_that_can_be_written() -> None:
    text = load_plan(ROOT / "policies" / "digits_plain.toml").text
    body = json.loads(text)
    body["plan"]["name"] = "\ud800"
    with pytest.raises(PlanRefused, match="is not a plan"):
        Plan.from_text(json.dumps(body))


def test_a_damaged_journal_whose_bytes_sqlite_quotes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(0.0, [Incarnated(1)])
    journal.close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = DELETE")
    data = path.read_bytes()
    assert b"CREATE TABLE head" in data
    path.write_bytes(data.replace(b"CREATE TABLE head", b"CREATE T\xffBLE head"))
    with pytest.raises(DamagedStore):
        list(read_rows(path))
    with pytest.raises(DamagedStore):
        SqliteJournal(path)


def test_a_row_of_brackets_is_damaged() -> None:
    chain = chain_digest(b"", 1, 0.0, "Incarnated", DEEP)
    with pytest.raises(DamagedStore, match="cannot be read"):
        read_row(Path("journal.db"), b"", 1, 0.0, "Incarnated", DEEP, chain)


def test_lists_of_an_issuer_that_are_brackets_are_damaged(tmp_path: Path) -> None:
    create_kit(kit := tmp_path / "kit", CipherParameters("plain", 8, 14))
    for name, read in (("revoked.json", _read_revoked), ("cipher.json", _read_kind)):
        (kit / "ca" / name).write_text(DEEP)
        (kit / "ca" / name).chmod(0o600)
        with pytest.raises(KitError, match="is damaged"):
            read(kit)


def test_a_log_whose_entry_has_half_a_character_for_a_number() -> None:
    line = json.dumps({"line": "entry", "number": "\ud800", "previous": ""}, separators=(",", ":"))
    with pytest.raises(DamagedStore) as caught:
        entries.load(line.encode() + b"\n")
    assert str(caught.value).encode()


@pytest.mark.parametrize(
    "said",
    [
        b"abc",
        (2).to_bytes(8, "big") + b"\xff{",
        (2).to_bytes(8, "big") + b"[]",
        (2).to_bytes(8, "big") + b"{}abc",
        len(DEEP).to_bytes(8, "big") + DEEP.encode(),
    ],
    ids=["no head", "no JSON", "a list", "no tensors", "brackets"],
)
def test_what_is_no_record_is_the_scripts_fault(said: bytes) -> None:
    with pytest.raises(ScriptFailed, match="no record"):
        heard(len(said).to_bytes(4, "big") + said)


def test_what_is_announced_takes_no_memory() -> None:
    with suppress(ScriptFailed):  # of a system that promises no address space that it lacks
        assert heard(b"\xff\xff\xff\xff" + (1 << 62).to_bytes(8, "big") + b"{}") is None


def heard(said: bytes) -> object:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(said)
        theirs.close()
        channel = Channel(ours)
        try:
            return channel.receive()
        finally:
            channel.close()
