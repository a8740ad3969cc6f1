"""Where a passphrase comes from: a descriptor, which is closed, or a terminal, which is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from secureps.errors import ConfigError, KitError
from secureps.store.kit_files import Passphrases, under_passphrase
from tests.kits.party_kits import descriptor

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
