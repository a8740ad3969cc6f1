"""Private files under a passphrase: how they open, and every way in which they do not."""

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from secureps.errors import Malformed, SecurepsError, Unsigned
from secureps.store.kit_files import HEADER, under_passphrase
from tests.kits.party_kits import phrase

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def _cheap_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of the work for whoever guesses, and for whoever knows the words."""
    monkeypatch.setattr("secureps.store.kit_files._N", 1 << 7)


def test_a_file_opens_under_its_passphrase_alone() -> None:
    words = phrase("six words that nobody else knows")
    files = words.lock(SECRET), words.lock(SECRET)
    assert files[0] != files[1], "a nonce is used once"
    assert all(under_passphrase(file) and SECRET not in file for file in files)
    assert [words.open(file) for file in files] == [SECRET, SECRET]
    again = phrase("six words that nobody else knows")
    assert again.open(files[0]) == SECRET
    with pytest.raises(Unsigned, match="the passphrase is another one"):
        phrase("six words that somebody else knows").open(files[0])


def test_the_parameters_are_those_that_the_header_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    file = phrase("words").lock(SECRET)
    assert HEADER.decode().split(": ")[1] == "scrypt N=131072 r=8 p=1, AES-256-GCM\n"
    body = file.removeprefix(HEADER)
    salt, nonce, sealed = body[:16], body[16:28], body[28:]
    key = Scrypt(salt=salt, length=32, n=131072, r=8, p=1).derive(b"words")
    assert AESGCM(key).decrypt(nonce, sealed, HEADER) == SECRET


def test_a_file_that_was_changed_does_not_open() -> None:
    words = phrase("words")
    file = words.lock(SECRET)
    for at in (len(HEADER) + 16, len(HEADER) + 28, len(file) - 1):
        with pytest.raises(Unsigned):
            words.open(file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :])
    for wrong in (b"", SECRET, file[: len(HEADER) + 43], b"x" + file):
        with pytest.raises(Malformed):
            words.open(wrong)


def test_another_version_is_known_for_what_it_is() -> None:
    file = phrase("words").lock(SECRET)
    later = file.replace(b"passphrase, 1: scrypt N=131072", b"passphrase, 2: scrypt N=1")
    assert later != file
    assert under_passphrase(later)
    with pytest.raises(Malformed, match="of this version"):
        phrase("words").open(later)
    assert not under_passphrase(SECRET)


def test_it_shows_nothing() -> None:
    words = phrase("hunter2 hunter2")
    file = words.lock(SECRET)
    with pytest.raises(SecurepsError) as refused:
        phrase("another").open(file)
    assert "hunter2" not in str(refused.value)
