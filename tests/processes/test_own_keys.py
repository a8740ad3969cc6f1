"""A federation whose parties make their own keys, some under a passphrase, by the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secureps.store.keyring import load_public
from tests.kits.needles import Needles
from tests.kits.own_keys import LOCKED, WORDS, OwnKeys, secureps


def everything(folder: Path) -> bytes:
    return b"\0".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file())


def seen_by_others(pid: int) -> bytes:
    """What `ps` shows of a process, and its environment."""
    return b"\0".join(Path(f"/proc/{pid}/{each}").read_bytes() for each in ("cmdline", "environ"))


@pytest.mark.timeout(300)
def test_parties_with_keys_of_their_own(tmp_path: Path) -> None:
    with OwnKeys(tmp_path, "rlwe", versions=2) as parties:
        parties.start_all()
        parties.wait(lambda: parties.reached(1), "version 1")
        shown = [seen_by_others(parties.pid(name)) for name in LOCKED if name != "observer"]
        server = ("status", "--server", parties.server, "--kit", parties.kit("observer"))
        looked = secureps(*server, "--json", words=WORDS)
        assert looked.returncode == 0, looked.stderr
        refused = secureps(*server, "--json")
        assert "is under a passphrase: give it at a terminal" in refused.stderr
        wrong = secureps(*server, words=f"{WORDS}8")
        assert "the passphrase is another one, or the file was changed" in wrong.stderr
        assert WORDS not in wrong.stderr + wrong.stdout
        parties.wait(parties.finished, "the end")
        shown += [path.read_bytes() for path in tmp_path.glob("*.log")]
        assert parties.stop("shard-1") == 0
    assert len(shown) > 6
    assert all(WORDS.encode() not in each for each in (*shown, everything(tmp_path)))
    issuers = everything(parties.issuer)
    assert not (parties.issuer / "private").exists()
    for name in parties.parties():
        identity = parties.kit(name) / "private" / name / "identity.key"
        if name not in LOCKED:
            assert Needles(identity.read_bytes()).found(issuers) == set(), name


@pytest.mark.parametrize("how", ["none", "another", "empty"])
def test_a_server_without_its_passphrase_says_so(tmp_path: Path, how: str) -> None:
    words = {"none": None, "another": "another one", "empty": ""}[how]
    said = {
        "none": "is under a passphrase: give it at a terminal, or by --passphrase-fd N",
        "another": "identity.key: the passphrase is another one, or the file was changed",
        "empty": "a passphrase has 1 to 1024 bytes, this one 0",
    }[how]
    kit = one_holder(tmp_path)
    config = tmp_path / "keys-0.toml"
    lines = ('name = "keys-0"', f'kit = "{kit}"', 'state = "state"', 'coordinator = "127.0.0.1:9"')
    config.write_text("\n".join(lines))
    ended = secureps("serve", "keyholder", "--config", config, words=words)
    assert ended.returncode == 78, ended.stderr
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


PLAN = """
name = "small"
versions = 1
[cipher]
name = "rlwe"
capacity = 8
[[group]]
rule = { quorum = 6 }
"""


def one_holder(folder: Path) -> Path:
    """Its kit: keys-0, under WORDS."""
    (folder / "plan.toml").write_text(PLAN)
    own, issuer = folder / "own", folder / "issuer"
    asking = ("--role", "keyholder", "--name", "keys-0", "--plan", folder / "plan.toml")
    for arguments, words in (
        (("keys", "init", issuer, "--plan", folder / "plan.toml"), None),
        (("keys", "request", own, *asking), WORDS),
        (("keys", "approve", issuer, own / "requests" / "keys-0.json"), None),
    ):
        done = secureps(*arguments, words=words)
        assert done.returncode == 0, done.stderr
    shutil.copytree(issuer / "public", own / "public")
    assert set(load_public(own).holder_keys) == {"keys-0"}
    return own
