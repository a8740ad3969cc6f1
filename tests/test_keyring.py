"""Kits on disk: what is issued loads, and every way to spoil one says what to do."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, Role, certify, sign_roster
from secureps.errors import KitError
from secureps.messages.encoding import payload_digest
from secureps.store import keyring
from secureps.store.keyring import create_kit, issue, load_holder_secret, load_private, load_public
from tests.cipher_kit import PLACE

BFV = CipherParameters("bfv", 32, 100)
PLAIN = CipherParameters("plain", 32, 100)
PARTIES: list[tuple[Role, str]] = [
    ("coordinator", "coordinator"),
    ("shard", "shard-0"),
    ("client", "hospital-2"),
    ("client", "hospital-1"),
    ("holder", "keys"),
]
LOADS: dict[str, Callable[[Path, str], object]] = {
    "identity.key": load_private,
    "bfv.key": load_holder_secret,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "kit"
    create_kit(directory, BFV)
    for role, name in PARTIES:
        issue(directory, role, name)
    return directory


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "kit"))


def test_a_kit_holds_everybody(kit: Path) -> None:
    public = load_public(kit)
    assert sorted((c.role, c.name) for c in public.roster.certificates) == sorted(PARTIES)
    assert list(public.holder_keys) == ["keys"]
    digest = public.roster.find("keys").cipher_key_digest
    assert digest == payload_digest(public.holder_keys["keys"])
    for _, name in PARTIES:
        assert load_private(kit, name).public == public.roster.find(name).identity
    assert len(public.holders_digest) == 32


def test_the_holders_key_pair_is_one(kit: Path) -> None:
    import numpy as np

    from secureps.crypto.suite import cipher

    built = cipher(BFV)
    total = built.sealer(PLACE, load_public(kit).holder_keys["keys"]).seal(0, np.arange(10))
    opened = built.opener(PLACE, load_holder_secret(kit, "keys")).open(0, total, 10)
    assert opened.tolist() == list(range(10))


def test_modes(kit: Path) -> None:
    modes = {
        str(path.relative_to(kit)): stat.S_IMODE(path.stat().st_mode) for path in kit.rglob("*")
    }
    private = {"ca/ca.key", "private/keys/bfv.key"}
    private |= {f"private/{name}/identity.key" for _, name in PARTIES}
    assert {name for name, mode in modes.items() if mode == 0o600} == private
    for name, mode in modes.items():
        if name == "ca" or (name.startswith("private") and name not in private):
            assert mode == 0o700, name
    assert not [name for name in modes if name.endswith(".new")]


def test_a_party_needs_only_its_own_part(kit: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(kit / "public", own / "public")
    shutil.copytree(kit / "private" / "hospital-1", own / "private" / "hospital-1")
    assert load_private(own, "hospital-1").sign(b"d", b"m")
    with pytest.raises(KitError, match="secureps keys init"):
        issue(own, "client", "me-too")
    with pytest.raises(KitError, match=r"secureps keys issue .* --name hospital-2"):
        load_private(own, "hospital-2")


def test_plain_kits_have_no_cipher_keys(tmp_path: Path) -> None:
    create_kit(tmp_path / "kit", PLAIN)
    issue(tmp_path / "kit", "holder", "keys")
    assert not load_public(tmp_path / "kit").holder_keys
    with pytest.raises(KitError, match=r"bfv.key is missing"):
        load_holder_secret(tmp_path / "kit", "keys")


def test_the_pinned_ca(kit: Path, tmp_path: Path) -> None:
    fingerprint = load_public(kit).ca.fingerprint
    assert load_public(kit, fingerprint.upper() + "\n").ca.fingerprint == fingerprint
    other = create_kit(tmp_path / "other", PLAIN)
    with pytest.raises(KitError, match="another CA"):
        load_public(kit, other.fingerprint)


def test_names_and_roles(kit: Path, tmp_path: Path) -> None:
    before = load_public(kit).roster
    with pytest.raises(KitError, match="on the roster already"):
        issue(kit, "shard", "hospital-1")
    for name in ("../evil", "", "A"):
        with pytest.raises(KitError, match="is no name"):
            issue(kit, "client", name)
    with pytest.raises(KitError, match="is not one of client"):
        issue(kit, "auditor", "a")  # type: ignore[arg-type]
    assert load_public(kit).roster == before


def test_a_kit_is_not_overwritten(kit: Path) -> None:
    with pytest.raises(KitError, match="holds a kit already"):
        create_kit(kit, BFV)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
@pytest.mark.parametrize("file", LOADS)
def test_private_files_that_others_may_open(kit: Path, file: str, mode: int) -> None:
    path = kit / "private" / "keys" / file
    path.chmod(mode)
    with pytest.raises(KitError, match=f"chmod 600 {path}"):
        LOADS[file](kit, "keys")
    path.chmod(0o400)
    LOADS[file](kit, "keys")


def test_the_cas_key_that_others_may_open(kit: Path) -> None:
    (kit / "ca" / "ca.key").chmod(0o644)
    with pytest.raises(KitError, match="chmod 600"):
        issue(kit, "client", "hospital-3")


def test_public_files_that_others_may_write(kit: Path) -> None:
    for name in ("ca.pub", "roster.json", "holders/keys.bfv.pub"):
        path = kit / "public" / name
        path.chmod(0o664)
        with pytest.raises(KitError, match=f"chmod 644 {path}"):
            load_public(kit)
        path.chmod(0o644)
    load_public(kit)


@pytest.mark.parametrize("name", ["ca.pub", "roster.json", "holders/keys.bfv.pub"])
def test_public_files_that_are_missing_or_damaged(kit: Path, name: str) -> None:
    path = kit / "public" / name
    data = path.read_bytes()
    for wrong in (b"", data[:-1], data + b"x", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]):
        path.write_bytes(wrong)
        with pytest.raises(KitError):
            load_public(kit)
    path.unlink()
    with pytest.raises(KitError, match=r"missing; `secureps keys (init|issue)"):
        load_public(kit)


@pytest.mark.parametrize("file", LOADS)
def test_private_files_that_are_damaged(kit: Path, file: str) -> None:
    path = kit / "private" / "keys" / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KitError, match="damaged"):
        LOADS[file](kit, "keys")


def test_somebody_elses_identity(kit: Path) -> None:
    shutil.copy(kit / "private/hospital-1/identity.key", kit / "private/hospital-2/identity.key")
    with pytest.raises(KitError, match="not the key that the CA certified for hospital-2"):
        load_private(kit, "hospital-2")


def test_a_roster_by_another_ca(kit: Path) -> None:
    evil = Identity.generate()
    forged = sign_roster(evil, [certify(evil, "eve", "client", evil.public.key)])
    (kit / "public" / "roster.json").write_bytes(forged.to_bytes())
    with pytest.raises(KitError, match="damaged"):
        load_public(kit)


def test_another_cas_secret_does_not_issue(kit: Path, tmp_path: Path) -> None:
    create_kit(tmp_path / "other", PLAIN)
    shutil.copy(tmp_path / "other/ca/ca.key", kit / "ca/ca.key")
    with pytest.raises(KitError, match="is not the key of"):
        issue(kit, "client", "hospital-3")


def test_an_issue_cut_short_can_be_repeated(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_public(kit)
    write = keyring._write

    def stops(path: Path, data: bytes, mode: int) -> None:
        if path.name == "roster.json":
            path.with_name(f".{path.name}.new").write_bytes(data[:10])
            raise OSError("no space left on device")
        write(path, data, mode)

    monkeypatch.setattr(keyring, "_write", stops)
    with pytest.raises(KitError, match="no space left"):
        issue(kit, "holder", "keys-2")
    assert load_public(kit) == before
    monkeypatch.setattr(keyring, "_write", write)
    issue(kit, "holder", "keys-2")
    assert set(load_public(kit).holder_keys) == {"keys", "keys-2"}
    assert load_private(kit, "keys-2")


def test_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(KitError, match=f"`secureps keys init {tmp_path} --plan FILE` makes it"):
        load_public(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(KitError, match="cannot write the kit"):
        create_kit(tmp_path / "file" / "kit", PLAIN)
    assert os.listdir(tmp_path) == ["file"]
