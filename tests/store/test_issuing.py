"""Secrecy: an issuer certifies no edited, replayed, swapped or revoked request."""

import dataclasses
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from secureps.client.runner import Joining, join
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, Role, TlsKey, public_key_of
from secureps.crypto.roster import (
    MAX_REQUEST_BYTES,
    KeyRequest,
    Roster,
    first_roster,
    next_roster,
    sign_request,
)
from secureps.errors import KitError
from secureps.messages.encoding import to_file
from secureps.run.serve import serve
from secureps.store import issuing
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
)
from secureps.store.kit_files import write
from tests.kits.federations import Walker
from tests.kits.needles import Needles
from tests.kits.nursery import ROOT
from tests.kits.party_kits import give

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
