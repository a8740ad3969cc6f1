"""Secrecy: an issuer certifies no edited, replayed, swapped or revoked request.
Kits on disk: an issued kit loads, and every damage is explained.
A holder's envelope keys: their files, and what is left of an erased key.
"""

import dataclasses
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from secureps.client.runner import Joining, join
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity, Role, TlsKey, public_key_of
from secureps.crypto.roster import (
    MAX_REQUEST_BYTES,
    KeyRequest,
    Roster,
    certify,
    first_roster,
    next_roster,
    sign_request,
    sign_roster,
)
from secureps.errors import ConfigError, DiskFailed, KitError, PlanRefused
from secureps.messages.encoding import file_digest, to_file
from secureps.messages.records import Incarnated, RunPinned
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import HolderRules
from secureps.roles.pinned_run import check_minimum
from secureps.run.serve import serve
from secureps.store import issuing, keyring
from secureps.store.envelope_keys import (
    ABANDONED,
    RUNS,
    EnvelopeKeyFiles,
    EnvelopeKeys,
    ServedJournal,
    ledger_height,
    load_keys,
    read_served_runs,
    run_folder,
)
from secureps.store.issuing import (
    approve,
    check_fingerprints,
    create_kit,
    issue,
    issue_all,
    make_keys,
    read_request,
    renew,
    renew_roster,
    replace_holder,
    revoke,
    rotate,
    write_request,
)
from secureps.store.journal import MemoryJournal
from secureps.store.keyring import (
    ENVELOPE,
    FLOWER,
    NATIVE,
    certificate_file,
    demand_host,
    load_credentials,
    load_holder_secret,
    load_private,
    load_public,
    load_seed,
)
from secureps.store.kit_files import write
from tests.crypto.test_identity import SMALL_ORDER
from tests.kits.committee_kit import Bench
from tests.kits.federations import Walker
from tests.kits.needles import Needles
from tests.kits.nursery import ROOT
from tests.kits.party_kits import give, phrase
from tests.kits.roles_kit import make_plan

RLWE = CipherParameters("rlwe", 32, 100)
PARTIES: tuple[tuple[Role, str], ...] = (
    ("coordinator", "coordinator"),
    ("holder", "keys-0"),
    ("holder", "keys-1"),
    ("client", "north"),
)


@pytest.fixture
def issuer(tmp_path: Path) -> Path:
    create_kit(tmp_path / "issuer", RLWE)
    return tmp_path / "issuer"


@pytest.fixture
def home(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: tmp_path / "homes" / name


@pytest.fixture
def asked(home: Callable[[str], Path]) -> dict[str, KeyRequest]:
    return {name: make_keys(home(name), role, name, ENVELOPE) for role, name in PARTIES}


def roster(issuer: Path) -> list[str]:
    return [certificate.name for certificate in load_public(issuer).roster.certificates]


def test_everybody_has_a_kit_and_the_issuer_no_private_key(
    issuer: Path, home: Callable[[str], Path], asked: dict[str, KeyRequest]
) -> None:
    for name, request in asked.items():
        path = write_request(home(name), request)
        shutil.copy(path, issuer)
        assert read_request(issuer / path.name) == request
    assert approve(issuer, list(asked.values())) == tuple(asked.values())
    theirs = b"\0".join(p.read_bytes() for p in sorted(issuer.rglob("*")) if p.is_file())
    ca = load_public(issuer).ca
    for role, name in PARTIES:
        give(issuer, home(name))
        own = [load_private(home(name), name).to_bytes()]
        credentials = load_credentials(home(name), name, ca)
        tls = load_pem_private_key(credentials.key, None)
        assert isinstance(tls, ec.EllipticCurvePrivateKey)
        scalar = tls.private_numbers().private_value.to_bytes(32, "big")
        own += [scalar, scalar[::-1]]
        if role == "holder":
            own += [load_holder_secret(home(name), name).to_bytes()[-32:]]
        for secret in own:
            assert Needles(secret).found(theirs) == set(), f"a private key of {name}"
    secret = (issuer / "ca" / "ca.key").read_bytes()
    assert len(Needles(secret).found(theirs)) == 4, "it finds what is there"
    assert not (issuer / "private").exists()


def test_issue_is_request_and_approval_in_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for kit in (one, two):
        create_kit(kit, RLWE)
    issue_all(one, PARTIES)
    for role, name in PARTIES:
        issue(two, role, name)
    for kit in (one, two):
        ca = load_public(kit).ca
        assert roster(kit) == [name for _, name in sorted(PARTIES)]
        assert all(load_credentials(kit, name, ca) for _, name in PARTIES)
    with pytest.raises(KitError, match="north is on the roster already; take another name"):
        issue(one, "client", "north")
    with pytest.raises(KitError, match="two requests for one name"):
        issue_all(one, [("client", "east"), ("client", "east")])


# --- what is refused, and changes nothing -----------------------------------------


def refused(issuer: Path, *requests: KeyRequest, match: str) -> None:
    def files() -> dict[Path, bytes]:
        found = {path: path.read_bytes() for path in issuer.rglob("*") if path.is_file()}
        return {path: data for path, data in found.items() if path.name != "turn"}

    before = files()
    with pytest.raises(KitError, match=match):
        approve(issuer, requests)
    assert files() == before


def test_two_requests_for_one_name(
    issuer: Path, tmp_path: Path, asked: dict[str, KeyRequest]
) -> None:
    other = make_keys(tmp_path / "eve", "client", "north", None)
    refused(issuer, asked["north"], other, match="north: two requests for one name; ask north")
    approve(issuer, [asked["north"]])
    refused(issuer, other, match="north is on the roster already: its party signs new keys")


def test_one_bad_request_and_none_is_granted(issuer: Path, asked: dict[str, KeyRequest]) -> None:
    bad = dataclasses.replace(asked["keys-0"], cipher_key=asked["keys-1"].cipher_key)
    refused(issuer, asked["north"], bad, match=r"request of keys-0: a signature in .* is wrong")


def test_a_name_on_the_roster_wants_its_old_key(
    issuer: Path, tmp_path: Path, asked: dict[str, KeyRequest]
) -> None:
    approve(issuer, [asked["north"]])
    identity, tls = Identity.generate(), TlsKey.generate()
    for old in (None, identity, Identity.generate()):
        stolen = sign_request("north", "client", identity, tls, b"", old)
        refused(issuer, stolen, match=r"is on the roster already|-rotation is wrong")
    refused(
        issuer,
        sign_request("south", "client", identity, tls, b"", identity),
        match="the roster has none of this name",
    )


def test_a_rotation_keeps_its_role(
    issuer: Path, home: Callable[[str], Path], asked: dict[str, KeyRequest]
) -> None:
    approve(issuer, [asked["north"]])
    give(issuer, home("north"))
    old = load_private(home("north"), "north")
    other = sign_request("north", "shard", Identity.generate(), TlsKey.generate(), b"", old)
    refused(issuer, other, match="north is a client on the roster, and asks to be a shard")


def test_keys_of_another(issuer: Path, asked: dict[str, KeyRequest]) -> None:
    approve(issuer, [asked["keys-0"], asked["north"]])
    identity, tls = Identity.generate(), TlsKey.generate()
    same = sign_request("keys-1", "holder", identity, tls, asked["keys-0"].cipher_key)
    refused(issuer, same, match="keys-1 asks with a key of keys-0")
    double = sign_request("keys-1", "holder", identity, tls, asked["keys-1"].cipher_key)
    refused(issuer, double, asked["keys-1"], match="two requests for one name")
    twin = dataclasses.replace(asked["keys-1"], name="keys-2")
    refused(issuer, twin, match="is wrong")


def test_one_identity_for_two_names(
    issuer: Path, home: Callable[[str], Path], asked: dict[str, KeyRequest]
) -> None:
    identity = Identity((home("north") / "private/north/identity.key").read_bytes())
    second = sign_request("south", "client", identity, TlsKey.generate())
    refused(issuer, asked["north"], second, match="south asks with a key of north")
    approve(issuer, [asked["north"]])
    refused(issuer, second, match="south asks with a key of north")
    ca = Identity((issuer / "ca" / "ca.key").read_bytes())
    as_ca = sign_request("south", "client", ca, TlsKey.generate())
    refused(issuer, as_ca, match="south asks with a key of the CA")


def test_cipher_keys_that_do_not_fit(issuer: Path, tmp_path: Path) -> None:
    identity, tls = Identity.generate(), TlsKey.generate()
    for key in (
        b"",
        b"secureps-envelope-public-key-1\n" + bytes(32),
        b"secureps-envelope-public-key-2\n" + bytes(1216),
        bytes(100),
    ):
        refused(
            issuer,
            sign_request("keys-0", "holder", identity, tls, key),
            match="the request of keys-0: ",
        )
    create_kit(tmp_path / "plain", CipherParameters("plain", 32, 100))
    made = make_keys(tmp_path / "own", "holder", "keys-0", ENVELOPE)
    refused(tmp_path / "plain", made, match="keys-0 has a cipher key, and this kit's cipher knows")


def test_the_same_request_again_changes_nothing(issuer: Path, asked: dict[str, KeyRequest]) -> None:
    approve(issuer, list(asked.values()))
    before = {path: path.read_bytes() for path in issuer.rglob("*") if path.is_file()}
    assert approve(issuer, list(asked.values())) == ()
    assert {path: path.read_bytes() for path in issuer.rglob("*") if path.is_file()} == before
    half = sign_request(
        "north",
        "client",
        Identity((issuer.parent / "homes/north/private/north/identity.key").read_bytes()),
        TlsKey.generate(),
    )
    refused(issuer, half, match="north has this identity already, with other keys")


def test_files_that_are_no_requests(issuer: Path, tmp_path: Path) -> None:
    path = tmp_path / "north.json"
    with pytest.raises(KitError, match=r"north\.json is missing"):
        read_request(path)
    with pytest.raises(KitError, match="Is a directory; name a file in it"):
        read_request(tmp_path)
    for data in (b"", b"{}", b"\xff" * 99):
        path.write_bytes(data)
        with pytest.raises(KitError, match=r"north\.json: "):
            read_request(path)
    path.write_bytes(b"x" * (MAX_REQUEST_BYTES + 1))
    with pytest.raises(KitError, match="has more than"):
        read_request(path)
    with pytest.raises(KitError, match="has more than"):  # of no size, and no end
        read_request(Path("/dev/zero"))


def test_fingerprints_that_parties_told(asked: dict[str, KeyRequest]) -> None:
    north, keys = asked["north"], asked["keys-0"]
    check_fingerprints([north, keys], [keys.fingerprint, north.fingerprint])
    with pytest.raises(KitError, match=f"north has the fingerprint {north.fingerprint}, which no"):
        check_fingerprints([north, keys], [keys.fingerprint])
    with pytest.raises(KitError, match=f"no request has the fingerprint {north.fingerprint}"):
        check_fingerprints([keys], [keys.fingerprint, north.fingerprint])


# --- keys that come never again ---------------------------------------------------


def rotated(issuer: Path, own: Path, name: str) -> KeyRequest:
    give(issuer, own)
    request = rotate(own, name)
    assert request is not None
    assert approve(issuer, [request]) == (request,)
    give(issuer, own)
    assert rotate(own, name) is None
    return request


def test_what_was_replaced_is_not_certified_again(
    issuer: Path, home: Callable[[str], Path], asked: dict[str, KeyRequest]
) -> None:
    approve(issuer, list(asked.values()))
    second = rotated(issuer, home("keys-0"), "keys-0")
    third = rotated(issuer, home("keys-0"), "keys-0")
    refused(issuer, asked["keys-0"], match="is on the roster already")
    refused(issuer, second, match="-rotation is wrong")
    now = load_private(home("keys-0"), "keys-0")
    for old in (asked["keys-0"], second):
        back = sign_request(
            "keys-0", "holder", Identity.generate(), TlsKey.generate(), old.cipher_key, now
        )
        refused(issuer, back, match="keys-0 asks with a key that was revoked or replaced")
    assert approve(issuer, [third]) == ()


def test_a_revoked_key_stays_refused(
    issuer: Path, home: Callable[[str], Path], tmp_path: Path, asked: dict[str, KeyRequest]
) -> None:
    approve(issuer, list(asked.values()))
    certificate = certificate_file(issuer, "keys-0").read_bytes()
    old_tls = public_key_of(load_public(issuer).ca, "keys-0", certificate)
    revoke(issuer, ["keys-0", "north"])
    assert roster(issuer) == ["coordinator", "keys-1"]
    assert set(load_public(issuer).holder_keys) == {"keys-1"}
    assert not list((issuer / "public").rglob("*keys-0*"))
    for name in ("keys-0", "north"):
        refused(issuer, asked[name], match=f"{name} asks with a key that was revoked or replaced")
    folder = home("keys-0") / "private" / "keys-0"
    identity = Identity((folder / "identity.key").read_bytes())
    tls = TlsKey((folder / "tls.key").read_bytes())
    assert tls.public == old_tls
    for again in (
        sign_request("west", "client", identity, TlsKey.generate()),
        sign_request("west", "client", Identity.generate(), tls),
        sign_request(
            "west", "holder", Identity.generate(), TlsKey.generate(), asked["keys-0"].cipher_key
        ),
    ):
        refused(issuer, again, match="west asks with a key that was revoked or replaced")
    anew = make_keys(tmp_path / "anew", "client", "north", None)
    assert approve(issuer, [anew]) == (anew,), "the name may come again, with other keys"
    with pytest.raises(KitError, match="nobody named keys-0 is on the roster"):
        revoke(issuer, ["keys-1", "keys-0"])
    assert roster(issuer) == ["north", "coordinator", "keys-1"]
    revoked = issuer / "ca" / "revoked.json"
    assert stat.S_IMODE(revoked.stat().st_mode) == 0o600
    revoked.write_text("[1]")
    with pytest.raises(KitError, match=r"revoked\.json is damaged"):
        approve(issuer, [anew])


@pytest.mark.parametrize("cut", ["revoked.json", "keys-0.envelope.pub", "roster.json"])
def test_an_approval_cut_short_can_be_repeated(
    issuer: Path,
    home: Callable[[str], Path],
    asked: dict[str, KeyRequest],
    monkeypatch: pytest.MonkeyPatch,
    cut: str,
) -> None:
    approve(issuer, list(asked.values()))
    give(issuer, home("keys-0"))
    request = rotate(home("keys-0"), "keys-0")
    assert request is not None

    def stops(path: Path, data: bytes, mode: int) -> None:
        if path.name == cut:
            raise OSError("no space left on device")
        write(path, data, mode)

    monkeypatch.setattr(issuing, "write", stops)
    for _try in range(2):  # the second finds the certificate that the first has signed
        with pytest.raises(KitError, match="no space left"):
            approve(issuer, [request])
    monkeypatch.undo()
    assert approve(issuer, [request]) == (request,)
    give(issuer, home("keys-0"))
    assert rotate(home("keys-0"), "keys-0") is None
    assert load_credentials(home("keys-0"), "keys-0", load_public(issuer).ca)
    rotated(issuer, home("keys-0"), "keys-0")


def test_another_key_holder_takes_a_lost_ones_place(
    issuer: Path, home: Callable[[str], Path], asked: dict[str, KeyRequest]
) -> None:
    approve(issuer, list(asked.values()))
    new = make_keys(home("keys-9"), "holder", "keys-9", ENVELOPE)
    for old, request in (("keys-0", asked["north"]), ("north", new), ("keys-0", asked["keys-0"])):
        with pytest.raises(KitError, match=r"can be replaced only|no key holder named north"):
            replace_holder(issuer, old, request)
    replace_holder(issuer, "keys-0", new)
    assert set(load_public(issuer).holder_keys) == {"keys-1", "keys-9"}
    refused(issuer, asked["keys-0"], match="keys-0 asks with a key that was revoked or replaced")
    assert "keys-0" not in roster(issuer)


def test_a_kit_of_another_ca(issuer: Path, tmp_path: Path, asked: dict[str, KeyRequest]) -> None:
    create_kit(tmp_path / "other", RLWE)
    shutil.copy(tmp_path / "other" / "ca" / "ca.key", issuer / "ca" / "ca.key")
    refused(issuer, asked["north"], match="is not the key of")


SLOW = """
import sys
from pathlib import Path
from secureps.store import issuing
kit, request = map(Path, sys.argv[1:])
sign = issuing.next_roster

def slow(*given):
    print("signs", flush=True)
    sys.stdin.readline()
    return sign(*given)

issuing.next_roster = slow
issuing.approve(kit, [issuing.read_request(request)])
"""
"""An issuer that waits while it signs, until it is told to go on."""


@pytest.mark.parametrize("second", ["approve", "revoke", "renew", "renew_roster"])
def test_two_at_once_sign_one_line_of_rosters(second: str, issuer: Path, tmp_path: Path) -> None:
    """Otherwise two rosters could have one number, and parties would refuse each other's."""
    issue(issuer, "client", "north")
    own = {name: make_keys(tmp_path / name, "client", name, None) for name in ("east", "west")}
    file = write_request(tmp_path / "east", own["east"])
    one = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(issuer), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    does: dict[str, Callable[[], object]] = {
        "approve": lambda: approve(issuer, [own["west"]]),
        "revoke": lambda: revoke(issuer, ["north"]),
        "renew": lambda: renew(issuer),
        "renew_roster": lambda: renew_roster(issuer, 48.0),
    }
    with one, ThreadPoolExecutor(1) as other:
        assert one.stdout is not None
        assert one.stdin is not None
        assert one.stdout.readline() == b"signs\n"
        done = other.submit(does[second])
        with pytest.raises(TimeoutError):
            done.result(0.2)
        one.stdin.write(b"\n")
        one.stdin.flush()
        done.result()
    assert one.returncode == 0
    roster = load_public(issuer).roster
    assert roster.number == {"approve": 3, "revoke": 3}.get(second, 2)
    assert "east" in roster
    assert ("west" in roster, "north" in roster) == (second == "approve", second != "revoke")


# --- its host -------------------------------------------------------------------------


PLAIN = CipherParameters("plain", 8, 14)


def made(folder: Path, host: str) -> Path:
    create_kit(folder, PLAIN, hours=0, host=host)
    issue(folder, "client", "north")
    issue(folder, "shard", "shard-0")
    return folder


@pytest.mark.parametrize("host", [FLOWER, NATIVE])
def test_every_roster_of_a_kit_says_its_host(tmp_path: Path, host: str) -> None:
    kit = made(tmp_path / "kit", host)
    revoke(kit, ["shard-0"])
    renew_roster(kit)
    roster = load_public(kit).roster
    assert roster.host == host
    demand_host(roster, kit, host)
    with pytest.raises(KitError, match="make another kit"):
        demand_host(roster, kit, NATIVE if host else FLOWER)


def test_the_mark_is_signed() -> None:
    ca = Identity.generate()
    roster = next_roster(ca, first_roster(ca, 0, FLOWER), (), 0, 0)
    roster.verify(ca.public)
    native = Roster.from_bytes(to_file(roster).replace(b'"flower"', b'"native"'))
    with pytest.raises(Exception, match="signature"):
        native.verify(ca.public)


def test_a_native_kit_is_written_as_before_there_were_hosts() -> None:
    assert b"host" not in first_roster(Identity.generate(), 0).to_bytes()


def test_nobody_joins_a_native_run_with_flowers_kit(tmp_path: Path) -> None:
    kit = made(tmp_path / "kit", FLOWER)
    joining = Joining("127.0.0.1:1", kit, "north", tmp_path / "state")
    with pytest.raises(KitError, match="is the kit of a run inside Flower's engine"):
        join(joining, Walker(0))
    assert not (tmp_path / "state" / "journal.db").exists()


def test_no_server_of_a_native_run_has_flowers_kit(tmp_path: Path) -> None:
    kit = made(tmp_path / "kit", FLOWER)
    config = tmp_path / "shard.toml"
    own = {"name": "shard-0", "kit": str(kit), "state": "state", "checkpoints": "checkpoints"}
    config.write_text(toml_tables({**own, "coordinator": "127.0.0.1:1"}))
    with pytest.raises(KitError, match="is the kit of a run inside Flower's engine"):
        serve("shard", config)


BFV_KIT = CipherParameters("bfv", 32, 100)
PLAIN_KIT = CipherParameters("plain", 32, 100)
OF_KIT: list[tuple[Role, str]] = [
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
def made_kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "kit"
    create_kit(directory, BFV_KIT)
    for role, name in OF_KIT:
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
def kit(made_kit: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_kit, tmp_path / "kit"))


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
    create_kit(tmp_path / "kit", PLAIN_KIT)
    issue(tmp_path / "kit", "holder", "keys")
    assert not load_public(tmp_path / "kit").holder_keys
    assert load_public(tmp_path / "kit").opening is Opening.NOTHING
    with pytest.raises(KitError, match="has no cipher key of a holder called keys"):
        load_holder_secret(tmp_path / "kit", "keys")


def test_the_pinned_ca(kit: Path, tmp_path: Path) -> None:
    right = load_public(kit).ca.fingerprint
    wrong = create_kit(tmp_path / "other", PLAIN_KIT).fingerprint
    groups = " ".join(right[i : i + 4] for i in range(0, 64, 4))
    assert load_public(kit, f" {groups.upper()}\n").ca.fingerprint == right
    with pytest.raises(KitError, match=f"signed by another CA: .* {right} and .* one {wrong}"):
        load_public(kit, wrong)
    for text in ("", "0" * 63, "0" * 65, "g" + "0" * 63, "0x" + "0" * 62):
        with pytest.raises(ConfigError, match="a CA's fingerprint has 64 hexadecimal digits, got "):
            load_public(kit, text)


def test_a_kit_is_not_overwritten(kit: Path) -> None:
    with pytest.raises(KitError, match="holds a kit already"):
        create_kit(kit, BFV_KIT)


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
        create_kit(tmp_path / "file" / "kit", PLAIN_KIT)
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


@pytest.fixture
def holder_kit(tmp_path: Path) -> Path:
    create_kit(tmp_path / "kit", CipherParameters("rlwe", 32, 65_534))
    issue(tmp_path / "kit", "holder", "keys-0")
    return tmp_path / "kit"


RUN, OTHER = bytes(32), b"\1" * 32


def folder(kit: Path, run: bytes = RUN) -> Path:
    return run_folder(kit / "private" / "keys-0", run)


def keys_of(kit: Path, run: bytes = RUN) -> EnvelopeKeys:
    keys = load_keys(kit, "keys-0")
    assert isinstance(keys, EnvelopeKeys)
    return keys.for_run(run)


def has_served(kit: Path, *runs: bytes) -> None:
    (kit / "private" / "keys-0" / RUNS).write_text("".join(f"{run.hex()}\n" for run in runs))


@pytest.mark.parametrize("memory", [True, False])
def test_keys_go_by_number(memory: bool, holder_kit: Path) -> None:
    keys = EnvelopeKeys({0: EnvelopeKey.from_os()}) if memory else keys_of(holder_kit)
    assert (keys.oldest, keys.get(1)) == (0, None)
    first = keys.make(1)
    assert keys.make(1) is first
    keys.make(5)
    keys.erase(5)
    keys.erase(5)
    assert (keys.oldest, keys.get(0), keys.get(1)) == (5, None, None)
    keys.erase(9)
    assert keys.get(5) is None


def test_what_a_killed_holder_left_is_taken_up(holder_kit: Path) -> None:
    keys = keys_of(holder_kit)
    has_served(holder_kit, RUN)
    keys.make(1)
    keys.make(2)
    (folder(holder_kit) / "envelope-3.key.new").write_bytes(b"half")
    again = keys_of(holder_kit)
    again.erase(2)
    assert (again.oldest, again.make(3).public) == (2, keys_of(holder_kit).make(3).public)
    (folder(holder_kit) / "envelope-2.key").unlink()
    again.erase(3)
    assert again.oldest == 3


def test_runs_of_one_kit_have_keys_of_their_own(holder_kit: Path) -> None:
    one, other = keys_of(holder_kit), keys_of(holder_kit, OTHER)
    has_served(holder_kit, RUN, OTHER)
    mine, theirs = one.make(1), other.make(1)
    assert mine.public != theirs.public
    one.make(2)
    one.erase(2)
    again = keys_of(holder_kit, OTHER)
    assert (again.oldest, again.get(2), again.make(1).public) == (1, None, theirs.public)
    assert other.get(0) is not None, "a run that plays has it in memory until it erases it"
    other.erase(1)
    assert keys_of(holder_kit).oldest == 2
    fresh = keys_of(holder_kit, b"\2" * 32)
    assert (fresh.oldest, fresh.get(0)) == (1, None)


@pytest.mark.parametrize("moved", [None, "folder", "ledger"])
def test_keys_of_a_run_that_nobody_plays_are_erased_by_the_next(
    moved: str | None, holder_kit: Path
) -> None:
    keys_of(holder_kit).make(1)
    path, height = folder(holder_kit) / "envelope-1.key", ledger_height(folder(holder_kit))
    height.touch()
    days_ago = time.time() - ABANDONED - 60
    for name, known in (("folder", folder(holder_kit)), ("ledger", height)):
        if name != moved:
            os.utime(known, (days_ago, days_ago))
    other = holder_kit / "private" / "keys-0" / "notes"
    other.mkdir()
    with path.open("rb", buffering=0) as held:
        keys_of(holder_kit).make(1)
        assert path.exists(), "it is no other run"
        if moved is None:
            os.utime(folder(holder_kit), (days_ago, days_ago))
        keys_of(holder_kit, OTHER)
        assert (set(held.read()) == {0}) == (not path.exists()) == (moved is None)
    assert folder(holder_kit).exists() == (moved is not None)
    assert other.exists()
    assert height.exists()


def test_a_key_that_others_may_read_or_that_is_none(holder_kit: Path) -> None:
    keys_of(holder_kit).make(1)
    path = folder(holder_kit) / "envelope-1.key"
    path.chmod(0o640)
    with pytest.raises(KitError, match=f"chmod 600 {path}"):
        keys_of(holder_kit)
    path.chmod(0o600)
    path.write_bytes(b"x")
    with pytest.raises(KitError, match=r"envelope-1\.key is damaged"):
        keys_of(holder_kit)
    path.unlink()
    (holder_kit / "private" / "keys-0" / "envelope.key").unlink()
    with pytest.raises(KitError, match="missing: if it is lost, `secureps keys rotate"):
        load_keys(holder_kit, "keys-0")


def test_a_link_is_not_followed_to_what_it_names(holder_kit: Path, tmp_path: Path) -> None:
    keys, other = keys_of(holder_kit), tmp_path / "other"
    other.write_bytes(b"somebody's")
    keys.make(1)
    path = folder(holder_kit) / "envelope-1.key"
    keys.make(2)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        keys.erase(2)
    assert other.read_bytes() == b"somebody's"


def test_under_a_passphrase_the_next_keys_are_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.store.kit_files._N", 1 << 7)
    kit, words = tmp_path / "kit", phrase("six words")
    create_kit(kit, CipherParameters("rlwe", 32, 65_534))
    approve(kit, [make_keys(kit, "holder", "keys-0", ENVELOPE, words)])
    made = EnvelopeKeyFiles(kit, "keys-0", words).for_run(RUN).make(1)
    assert made.to_bytes()[-96:] not in (folder(kit) / "envelope-1.key").read_bytes()
    assert (
        EnvelopeKeyFiles(kit, "keys-0", phrase("six words")).for_run(RUN).make(1).public
        == made.public
    )


# --- runs that a key has served -------------------------------------------------------


def pinned(bench: Bench) -> RunPinned:
    return RunPinned(bench.run, bench.placement, bench.addresses)


def test_a_run_that_is_journalled_is_noted_and_nothing_else(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    inner = MemoryJournal()
    journal = ServedJournal(inner, path)
    journal.append(0.0, [Incarnated(1)])
    assert not path.exists()
    assert read_served_runs(path) == frozenset()
    journal.append(0.0, [Incarnated(2), pinned(bench)])
    assert read_served_runs(path) == {bench.run.id}
    assert list(journal.replay()) == inner.rows
    journal.close()
    with pytest.raises(Exception, match="closed"):
        inner.append(0.0, [Incarnated(3)])


def test_killed_between_ledger_and_file_it_is_noted_at_the_next_start(tmp_path: Path) -> None:
    path, bench = tmp_path / "runs", Bench()
    path.write_text("ab" * 32 + "\n")
    inner = MemoryJournal()
    inner.append(0.0, [pinned(bench)])
    ServedJournal(inner, path)
    assert read_served_runs(path) == {bench.run.id, bytes([0xAB]) * 32}


@pytest.mark.parametrize("strict", [HolderRules(2, threshold=4), HolderRules(3)])
def test_a_restarted_holder_insists_on_what_it_insisted_on(strict: HolderRules) -> None:
    bench = Bench()
    holder = CommitteeHolder(bench.names[0], bench.kit.public.roster, strict)
    with pytest.raises(PlanRefused, match=r"this party insists on 4|opens none of fewer than 3"):
        holder.apply(0.0, pinned(bench))


def test_cohorts_of_metrics_are_no_smaller_than_its_own_minimum_either() -> None:
    """The mean of few clients' held-out records tells about each of them."""
    metrics: dict[str, Any] = {"every": 1, "metrics": {"accuracy": 1.0}}
    for least in (2, 3):
        rule = {"name": "sync", "quorum": 3, "minimum": least}
        plan = make_plan("rlwe", {"minimum": 3}, evaluation=metrics | {"rule": rule})
        if least == 3:
            check_minimum(plan, 3)
            continue
        with pytest.raises(PlanRefused, match="2 members of evaluation may be a cohort"):
            check_minimum(plan, 3)


@pytest.mark.parametrize("text", ["xy\n", "ab\n", "é"])
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KitError, match="damaged"):
        read_served_runs(path)


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="cannot read"):
        read_served_runs(tmp_path)
    journal = ServedJournal(MemoryJournal(), tmp_path / "nowhere" / "runs")
    with pytest.raises(KitError, match="cannot write"):
        journal.append(0.0, [pinned(Bench())])
