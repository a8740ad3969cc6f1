"""Kits on disk: an issued kit loads, and every damage is explained."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import Roster, certify, sign_roster
from secureps.errors import ConfigError, DiskFailed, KitError
from secureps.messages.encoding import file_digest
from secureps.store import keyring
from secureps.store.issuing import create_kit, issue
from secureps.store.keyring import load_holder_secret, load_private, load_public, load_seed
from tests.crypto.test_identity import SMALL_ORDER

BFV = CipherParameters("bfv", 32, 100)
PLAIN = CipherParameters("plain", 32, 100)
RLWE = CipherParameters("rlwe", 32, 100)
PARTIES: list[tuple[Role, str]] = [
    ("coordinator", "coordinator"),
    ("shard", "shard-0"),
    ("client", "hospital-2"),
    ("client", "hospital-1"),
    ("holder", "keys"),
]
COMMITTEE = ("keys-0", "keys-1", "keys-2", "keys-3")
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


@pytest.fixture(scope="module")
def made_for_a_committee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("committee") / "kit"
    create_kit(directory, RLWE)
    for name in COMMITTEE:
        issue(directory, "holder", name)
    issue(directory, "client", "hospital-1")
    return directory


@pytest.fixture
def committee(made_for_a_committee: Path, tmp_path: Path) -> Path:
    """A kit of four holders under rlwe."""
    return Path(shutil.copytree(made_for_a_committee, tmp_path / "committee"))


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "kit"))


def test_a_party_needs_only_its_own_part(kit: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(kit / "public", own / "public")
    shutil.copytree(kit / "private" / "hospital-1", own / "private" / "hospital-1")
    assert load_private(own, "hospital-1").sign(b"d", b"m")
    with pytest.raises(KitError, match="secureps keys init"):
        issue(own, "client", "me-too")
    with pytest.raises(KitError, match=r"secureps keys request .* --name hospital-2"):
        load_private(own, "hospital-2")


def test_plain_kits_have_no_cipher_keys(tmp_path: Path) -> None:
    create_kit(tmp_path / "kit", PLAIN)
    issue(tmp_path / "kit", "holder", "keys")
    assert not load_public(tmp_path / "kit").holder_keys
    assert load_public(tmp_path / "kit").opening is Opening.NOTHING
    with pytest.raises(KitError, match="has no cipher key of a holder called keys"):
        load_holder_secret(tmp_path / "kit", "keys")


def test_the_pinned_ca(kit: Path, tmp_path: Path) -> None:
    right = load_public(kit).ca.fingerprint
    wrong = create_kit(tmp_path / "other", PLAIN).fingerprint
    groups = " ".join(right[i : i + 4] for i in range(0, 64, 4))
    assert load_public(kit, f" {groups.upper()}\n").ca.fingerprint == right
    with pytest.raises(KitError, match=f"signed by another CA: .* {right} and .* one {wrong}"):
        load_public(kit, wrong)
    for text in ("", "0" * 63, "0" * 65, "g" + "0" * 63, "0x" + "0" * 62):
        with pytest.raises(ConfigError, match="a CA's fingerprint has 64 hexadecimal digits, got "):
            load_public(kit, text)


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
    with pytest.raises(KitError, match=r"missing: (fetch the kit anew|.* is no start-up kit)"):
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


def test_a_name_that_the_kit_has_no_key_of(kit: Path) -> None:
    told = r"missing: .* has private keys of .*hospital-1, hospital-2, .*; `secureps keys request "
    with pytest.raises(KitError, match=told):
        load_private(kit, "hospital-3")
    shutil.rmtree(kit / "private")
    with pytest.raises(KitError, match="has nobody's private keys; `secureps keys request "):
        load_private(kit, "hospital-1")


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_ca_under_whose_key_nobody_has_to_sign(point: str, kit: Path) -> None:
    (kit / "public" / "ca.pub").write_bytes(bytes.fromhex(point))
    with pytest.raises(KitError, match="Ed25519 public key"):
        load_public(kit)


def test_a_roster_by_another_ca(kit: Path) -> None:
    evil = Identity.generate()
    forged = sign_roster(evil, [certify(evil, "eve", "client", evil.public.key)])
    (kit / "public" / "roster.json").write_bytes(forged.to_bytes())
    with pytest.raises(KitError, match="damaged"):
        load_public(kit)


def test_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(KitError, match=f"ca.pub is missing: {tmp_path} is no start-up kit; name"):
        load_public(tmp_path)
    with pytest.raises(KitError, match=f"`secureps keys init {tmp_path} --plan FILE` makes it"):
        issue(tmp_path, "client", "hospital-1")
    (tmp_path / "file").touch()
    with pytest.raises(KitError, match="cannot write the kit"):
        create_kit(tmp_path / "file" / "kit", PLAIN)
    assert os.listdir(tmp_path) == ["file"]


# --- a committee's kit ------------------------------------------------------------


def secret_file(kit: Path, name: str = "keys-0") -> Path:
    return kit / "private" / name / "envelope.key"


def public_file(kit: Path, name: str = "keys-0") -> Path:
    return kit / "public" / "holders" / f"{name}.envelope.pub"


def test_another_holders_secret_key(committee: Path) -> None:
    shutil.copy(secret_file(committee, "keys-1"), secret_file(committee))
    with pytest.raises(KitError, match="not the key that the CA certified for keys-0"):
        load_holder_secret(committee, "keys-0")


def test_another_holders_public_key(committee: Path) -> None:
    shutil.copy(public_file(committee, "keys-1"), public_file(committee))
    with pytest.raises(KitError, match="is not the key that the CA certified"):
        load_public(committee)


def test_keys_of_one_kind_are_never_taken_for_another(kit: Path, committee: Path) -> None:
    """Secret for public, public for secret, and keys of the other cipher."""
    bfv = kit / "public" / "holders" / "keys.bfv.pub"
    secrets = [secret_file(committee).read_bytes(), (kit / "private/keys/bfv.key").read_bytes()]
    publics = [public_file(committee).read_bytes(), bfv.read_bytes()]
    for data in (secrets[1], *publics):
        secret_file(committee).write_bytes(data)
        with pytest.raises(KitError, match=r"envelope\.key is damaged"):
            load_holder_secret(committee, "keys-0")
    for data in (secrets[0], *publics):
        (kit / "private/keys/bfv.key").write_bytes(data)
        with pytest.raises(KitError, match=r"bfv\.key is damaged"):
            load_holder_secret(kit, "keys")
    certify_anew(committee, "keys-0", secrets[0])
    with pytest.raises(KitError, match="is not an envelope public key"):
        load_public(committee)
    certify_anew(committee, "keys-0", publics[0])
    assert load_public(committee).opening is Opening.COMMITTEE


def certify_anew(kit: Path, name: str, data: bytes) -> None:
    """Certifies the holder's public file, as a careless CA might."""
    public_file(kit, name).write_bytes(data)
    ca = Identity((kit / "ca" / "ca.key").read_bytes())
    roster = Roster.from_bytes((kit / "public" / "roster.json").read_bytes())
    others = [c for c in roster.certificates if c.name != name]
    own = certify(ca, name, "holder", roster.find(name).identity.key, file_digest(data))
    (kit / "public" / "roster.json").write_bytes(sign_roster(ca, (*others, own)).to_bytes())


def test_a_holder_with_two_public_keys(committee: Path) -> None:
    (committee / "public" / "holders" / "keys-0.bfv.pub").write_bytes(b"x")
    with pytest.raises(KitError, match="has two keys of keys-0"):
        load_public(committee)


def test_a_kit_is_for_one_cipher(kit: Path) -> None:
    text = (kit / "ca" / "cipher.json").read_text()
    (kit / "ca" / "cipher.json").write_text(text.replace("bfv", "rlwe"))
    issue(kit, "holder", "keys-2")
    with pytest.raises(KitError, match="keys of two ciphers, bfv and envelope"):
        load_public(kit)


def test_a_seed_on_a_disk_that_is_full_is_said_and_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(keyring, "write", full)
        with pytest.raises(DiskFailed, match=r"seed: cannot write: No space left on device"):
            load_seed(tmp_path / "seed")
    made, again = (load_seed(tmp_path / "seed").derive("x").integer(63) for _ in range(2))
    assert made == again
