"""Secrecy: every party makes its own keys; no secret is in a log, file, argument or environment."""

import re
import resource
import subprocess
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from secureps.store.kit_files import Passphrases
from tests.kits.command import INSECURE
from tests.kits.needles import Needles
from tests.kits.nursery import Child
from tests.kits.own_keys import WORDS, OwnKeys, told
from tests.kits.party_kits import phrase


class Searched(OwnKeys):
    locked = ("shard-1", "holder-1", "client-02", "observer")

    def _client(self, name: str) -> list[str]:
        """With a seed of its own, as it has where data are real."""
        command = super()._client(name)
        seed = command.index("--unsafe-seed")
        return [word for word in command[:seed] + command[seed + 2 :] if word != INSECURE]

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def environment(self) -> dict[str, str]:
        self.temporary.mkdir(exist_ok=True)
        return {**super().environment, "TMPDIR": str(self.temporary)}

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        cores = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (cores[1], cores[1]))  # what it begins with
        try:
            return super()._begin(command, log)
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, cores)

    @cached_property
    def opener(self) -> Passphrases:
        """Of all files under WORDS: each salt takes a third of a second, once."""
        return phrase(WORDS)

    def secrets(self) -> dict[Path, bytes]:
        found = {self.issuer / "ca" / "ca.key": (self.issuer / "ca" / "ca.key").read_bytes()}
        for name in self.parties():
            given = self.opener if name in self.locked else Passphrases()
            for path in (self.kit(name) / "private" / name).glob("*.key"):
                found[path] = key_of(given.unlock(path, path.read_bytes()))
            if (seed := self.folder / name / "seed").is_file():
                found[seed] = seed.read_bytes()
        return found


def files(folder: Path) -> dict[Path, bytes]:
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            found[path] = path.read_bytes()
    return found


def key_of(file: bytes) -> bytes:
    if not file.startswith(b"-----BEGIN"):
        return file[-32:]
    key = load_pem_private_key(file, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key.private_numbers().private_value.to_bytes(32, "big")


def seen_by_others(pid: int) -> bytes:
    shown = Path(f"/proc/{pid}/cmdline").read_bytes()
    with suppress(PermissionError):  # of whoever is not root
        shown += b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return shown


def largest_core(pid: int) -> str:
    limits = Path(f"/proc/{pid}/limits").read_text()
    (soft,) = re.findall(r"^Max core file size +(\w+)", limits, re.MULTILINE)
    return str(soft)


@pytest.mark.timeout(300)
def test_parties_with_keys_of_their_own(tmp_path: Path) -> None:
    with Searched(tmp_path, "rlwe", versions=2) as parties:
        secrets = parties.secrets()  # a key holder erases envelope keys, and all at the run's end
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        running = [name for name in parties.parties() if name != "observer"]
        shown = [seen_by_others(parties.pid(name)) for name in running]
        assert {largest_core(parties.pid(name)) for name in running} == {"0"}
        taken = files(tmp_path)
        server = ("status", "--server", parties.server, "--kit", parties.kit("observer"))
        told(*server, "--json", words=WORDS)
        refused = told(*server, "--json", status=1)
        assert "is under a passphrase: give it at a terminal" in refused
        wrong = told(*server, words=f"{WORDS}8", status=1)
        assert "the passphrase is another one, or the file was changed" in wrong
        assert WORDS not in wrong
        parties.wait(parties.finished, "the end")
        assert parties.stop("shard-1") == 0
        parties.start("shard-1")  # whose folder is as private as it wants it, without any umask
        parties.wait(lambda: parties.log("shard-1").count("listens") == 2, "a second start")
    assert not (parties.issuer / "private").exists()
    for name in parties.locked:
        for path in (tmp_path / name).rglob("*"):
            assert not path.stat().st_mode & 0o077, path
    secrets |= parties.secrets()
    assert len(secrets) > 3 * len(running)
    needles = Needles(b"".join(secrets.values()))
    said = {Path(name): seen for name, seen in zip(running, shown, strict=True)}
    for where, seen in (*taken.items(), *files(tmp_path).items(), *said.items()):
        assert WORDS.encode() not in seen, where
        own = Needles(secrets.get(where, b""))
        assert needles.found(seen) <= {int(word) for word in own.words}, where
    plain = parties.kit("shard-0") / "private" / "shard-0" / "identity.key"
    assert needles.found(taken[plain]), "and the search finds what is there"
