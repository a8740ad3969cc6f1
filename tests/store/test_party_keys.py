"""A party's keys: made once, under a passphrase or not, and replaced."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.crypto.bfv import BfvPublicKey
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.envelope import EnvelopePublicKey
from secureps.crypto.identity import Role
from secureps.crypto.roster import KeyRequest
from secureps.errors import ConfigError, KitError
from secureps.store.issuing import approve, create_kit, make_keys, rotate, write_request
from secureps.store.keyring import (
    BFV,
    ENVELOPE,
    KeyKind,
    load_credentials,
    load_holder_secret,
    load_private,
    load_public,
)
from secureps.store.kit_files import Passphrases, under_passphrase, write_new
from tests.kits.party_kits import descriptor, give, phrase


@pytest.fixture(autouse=True)
def umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets umask 0, and gives passphrases that take no time."""
    monkeypatch.setattr("secureps.store.kit_files._N", 1 << 7)
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("role", "kind"), [("client", None), ("client", BFV), ("holder", BFV), ("holder", ENVELOPE)]
)
def test_said_again_it_is_the_same_request(
    tmp_path: Path, role: Role, kind: KeyKind | None
) -> None:
    first = make_keys(tmp_path, role, "one", kind)
    first.verify()
    assert make_keys(tmp_path, role, "one", kind) == first
    assert bool(first.cipher_key) == (role == "holder")
    if kind is not None and first.cipher_key:
        parse = BfvPublicKey if kind is BFV else EnvelopePublicKey
        assert parse.from_bytes(first.cipher_key)


@pytest.mark.parametrize("file", ["identity.key", "tls.key", "envelope.key", "envelope.pub"])
def test_links_are_not_followed(tmp_path: Path, file: str) -> None:
    eve = tmp_path / "eve"
    make_keys(eve, "holder", "keys-0", ENVELOPE)
    theirs = {p.name: p.read_bytes() for p in (eve / "private" / "keys-0").iterdir()}
    own = tmp_path / "own" / "private" / "keys-0"
    make_keys(tmp_path / "own", "holder", "keys-0", ENVELOPE)
    (own / file).unlink()
    (own / file).symlink_to(eve / "private" / "keys-0" / file)
    with pytest.raises(KitError, match=f"{file} is a link: remove it"):
        make_keys(tmp_path / "own", "holder", "keys-0", ENVELOPE)
    (own / file).unlink()
    (own / file).symlink_to(tmp_path / "nowhere")
    with pytest.raises(KitError, match=r"is a link: remove it|is missing"):
        make_keys(tmp_path / "own", "holder", "keys-0", ENVELOPE)
    assert not (tmp_path / "nowhere").exists()
    assert theirs == {p.name: p.read_bytes() for p in (eve / "private" / "keys-0").iterdir()}


@pytest.mark.parametrize("folder", ["private", "private/one"])
def test_folders_that_are_links_or_open_to_others(tmp_path: Path, folder: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    kit = tmp_path / "kit"
    path = kit / folder
    path.parent.mkdir(mode=0o700, parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KitError, match="or a link to one: remove it"):
        make_keys(kit, "client", "one", None)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    path.unlink()
    for mode in (0o750, 0o702):
        path.mkdir()
        path.chmod(mode)
        with pytest.raises(KitError, match=f"is open to others: chmod 700 {path}"):
            make_keys(kit, "client", "one", None)
        assert stat.S_IMODE(path.stat().st_mode) == mode, "it was not changed behind anybody's back"
        path.rmdir()
    make_keys(kit, "client", "one", None)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    write_new(path, b"first")
    with pytest.raises(KitError, match="is there already, and is not written over"):
        write_new(path, b"second")
    path.with_name("a link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KitError, match="is there already"):
        write_new(path.with_name("a link"), b"second")
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == ["a link", "identity.key"]


@pytest.mark.parametrize(
    ("role", "name"),
    [("client", "../x"), ("client", "A"), ("boss", "a"), ("client", "coordinator")],
)
def test_names_and_roles_that_there_are_not(tmp_path: Path, role: Role, name: str) -> None:
    with pytest.raises(KitError, match=r"is no name|is not one of|is the coordinator's name"):
        make_keys(tmp_path / "kit", role, name, None)
    assert not (tmp_path / "kit").exists()


def test_a_request_replaces_a_link(tmp_path: Path) -> None:
    made = make_keys(tmp_path, "client", "one", None)
    (tmp_path / "requests").mkdir(0o755)
    (tmp_path / "requests" / "one.json").symlink_to(tmp_path / "nowhere")
    path = write_request(tmp_path, made)
    assert KeyRequest.from_bytes(path.read_bytes()) == made
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# --- under a passphrase -----------------------------------------------------------


def test_every_private_file_is_under_the_passphrase(tmp_path: Path) -> None:
    issuer, own = tmp_path / "issuer", tmp_path / "own"
    create_kit(issuer, CipherParameters("rlwe", 32, 100))
    approve(issuer, [make_keys(own, "holder", "keys-0", ENVELOPE, phrase("six words"))])
    give(issuer, own)
    keys = list((own / "private" / "keys-0").glob("*.key"))
    assert len(keys) == 3
    assert all(under_passphrase(path.read_bytes()) for path in keys)
    ca, right = load_public(own).ca, phrase("six words")
    assert load_private(own, "keys-0", right)
    assert load_holder_secret(own, "keys-0", right)
    assert load_credentials(own, "keys-0", ca, right)
    wrong = phrase("seven words")
    for load in (
        lambda: load_private(own, "keys-0", wrong),
        lambda: load_holder_secret(own, "keys-0", wrong),
        lambda: load_credentials(own, "keys-0", ca, wrong),
    ):
        with pytest.raises(KitError, match=r"\.key: the passphrase is another one, or the file"):
            load()
    with pytest.raises(KitError, match="is under a passphrase: give it"):
        load_private(own, "keys-0")


def test_a_locked_ca_signs_under_its_passphrase_alone(tmp_path: Path) -> None:
    issuer = tmp_path / "issuer"
    create_kit(issuer, CipherParameters("plain", 32, 100), phrase("six words"))
    asked = [make_keys(tmp_path / "own", "client", "one", None)]
    with pytest.raises(KitError, match=r"ca\.key is under a passphrase"):
        approve(issuer, asked)
    with pytest.raises(KitError, match=r"ca\.key: the passphrase is another one"):
        approve(issuer, asked, phrase("seven words"))
    assert not load_public(issuer).roster.certificates
    assert approve(issuer, asked, phrase("six words"))


# --- new keys in place of old ones ------------------------------------------------


def test_keys_are_replaced_once_they_are_certified(tmp_path: Path) -> None:
    issuer, own, words = tmp_path / "issuer", tmp_path / "own", phrase("six words")
    create_kit(issuer, CipherParameters("rlwe", 32, 100))
    approve(issuer, [make_keys(own, "holder", "keys-0", ENVELOPE, words)])
    give(issuer, own)
    folder = own / "private" / "keys-0"
    (folder / "runs").write_text("what this key has served")
    old = {path.name: path.read_bytes() for path in folder.glob("*.key")}
    asked = rotate(own, "keys-0", words)
    assert asked is not None
    assert rotate(own, "keys-0", words) == asked, "it may be said again"
    assert {path.name: path.read_bytes() for path in folder.glob("*.key")} == old
    assert all(under_passphrase(path.read_bytes()) for path in folder.glob("next/*.key"))
    assert load_private(own, "keys-0", words), "the old ones are in use"
    approve(issuer, [asked])
    give(issuer, own)
    with pytest.raises(
        KitError, match=r"certified for keys-0: its new keys wait .* keys-0` once more"
    ):
        load_private(own, "keys-0", words)
    assert rotate(own, "keys-0", words) is None
    ca = load_public(own).ca
    assert load_private(own, "keys-0", words).public.key == asked.public_key
    assert load_holder_secret(own, "keys-0", words)
    assert load_credentials(own, "keys-0", ca, words)
    files = {path.name for path in folder.iterdir()}
    assert files == {"identity.key", "tls.key", "envelope.key", "envelope.pub", "runs"}
    assert all((folder / name).read_bytes() != data for name, data in old.items())


def test_only_who_is_on_the_roster_replaces_keys(tmp_path: Path) -> None:
    issuer, own = tmp_path / "issuer", tmp_path / "own"
    create_kit(issuer, CipherParameters("plain", 32, 100))
    make_keys(own, "client", "one", None)
    give(issuer, own)
    with pytest.raises(KitError, match="`secureps keys request` is for new names"):
        rotate(own, "one")


# --- where a passphrase comes from ------------------------------------------------


KEY = bytes(range(32))
PATH = Path("private/hospital-1/identity.key")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    typed: list[str] = []
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    return typed


def test_the_first_line_of_a_descriptor_which_is_then_closed() -> None:
    number = descriptor("six words\nand more")
    given = Passphrases(number)
    with pytest.raises(OSError):
        os.fstat(number)
    file = given.lock(KEY)
    assert under_passphrase(file)
    assert Passphrases(descriptor("six words")).unlock(PATH, file) == KEY
    with pytest.raises(KitError, match=f"{PATH}: the passphrase is another one"):
        Passphrases(descriptor("six words ")).unlock(PATH, file)


def test_without_one_files_are_as_they_are() -> None:
    assert Passphrases().lock(KEY) == KEY
    assert Passphrases().unlock(PATH, KEY) == KEY
    assert Passphrases(descriptor("six words")).unlock(PATH, KEY) == KEY


def test_nobody_is_asked_where_nobody_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Passphrases(descriptor("six words")).lock(KEY)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(KitError, match=r"is under a passphrase: give it .* --passphrase-fd"):
        Passphrases().unlock(PATH, file)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(KitError, match="is under a passphrase"):
        Passphrases().unlock(PATH, file)


def test_a_terminal_is_asked_once(terminal: list[str]) -> None:
    file = Passphrases(descriptor("six words")).lock(KEY)
    terminal += ["six words"]
    asked = Passphrases()
    assert asked.unlock(PATH, file) == asked.unlock(PATH, file) == KEY
    assert under_passphrase(asked.lock(KEY)), "what replaces a locked key is locked"


def test_what_is_typed_anew_is_typed_twice(
    terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.isatty", lambda number: True)
    terminal += ["six words", "six wrods"]
    with pytest.raises(ConfigError, match="differ"):
        Passphrases(0, new=True)
    terminal += ["six words", "six words", "six words"]
    assert Passphrases(0).unlock(PATH, Passphrases(0, new=True).lock(KEY)) == KEY


def test_a_terminal_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("os.isatty", lambda number: True)
    monkeypatch.setattr("getpass.getpass", closed)
    with pytest.raises(ConfigError, match="no passphrase was typed"):
        Passphrases(0)


def test_what_cannot_be_read() -> None:
    number = descriptor("")
    os.close(number)
    with pytest.raises(ConfigError, match=f"--passphrase-fd {number}: cannot read it"):
        Passphrases(number)
    for words in ("", "\nsix words", "x" * 2000):
        with pytest.raises(ConfigError, match="a passphrase has 1 to"):
            Passphrases(descriptor(words))


def test_it_shows_nothing() -> None:
    assert "six" not in repr(Passphrases(descriptor("six words")))
