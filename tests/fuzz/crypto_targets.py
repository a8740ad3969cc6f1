"""Keys, certificates, rosters, and what is sealed: whose it is shows when it is verified."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from secureps.crypto import envelope, identity
from secureps.crypto.bfv import DEGREE, BfvPublicKey, BfvSecretKey
from secureps.crypto.envelope import EnvelopeKey, EnvelopePublicKey
from secureps.crypto.identity import Identity, TlsKey
from secureps.crypto.roster import (
    Certificate,
    KeyRequest,
    Roster,
    certify,
    first_roster,
    next_roster,
    sign_request,
    sign_roster,
)
from secureps.crypto.sharing import Committee, HolderShare, share
from secureps.errors import Malformed
from secureps.store import kit_files
from tests.fuzz.target import Target
from tests.kits.party_kits import phrase

CA, ME, OLD = (Identity(letter * 32) for letter in (b"c", b"m", b"o"))
HOLDER = EnvelopeKey(b"h" * 96)
ABOUT = b"the receipt that it came with"
NOW, LATER = 1_700_000_000, 1_700_086_400
COMMITTEE = Committee(("keys-0", "keys-1", "keys-2", "keys-3"), 3)


def targets(folder: Path) -> list[Target]:
    return [*_signed(), *_sealed(), *_keys()]


def _signed() -> list[Target]:
    key, authority = TlsKey.generate(), identity.make_authority(CA)
    shown = identity.certify_tls(CA, authority, "shard-0", "shard", key.public)
    rosters = _rosters()
    requests = (
        sign_request("hospital-1", "client", ME, key),
        sign_request("keys-0", "holder", ME, key, HOLDER.public.to_bytes()),
        sign_request("hospital-1", "client", ME, key, b"", OLD),
    )

    def roster(data: bytes) -> bytes:
        read = Roster.from_bytes(data)
        read.verify(CA.public)
        return read.to_bytes()

    def follow(data: bytes) -> bytes:
        newer = rosters[1].follow(_text(data))
        return data if newer is None else newer.to_bytes()

    def request(data: bytes) -> bytes:
        read = KeyRequest.from_bytes(data)
        read.verify(OLD.public if read.old_proof else None)
        return read.to_bytes()

    def public(data: bytes) -> bytes:
        identity.check_public_key(data)  # as every request is, before
        identity.certify_tls(CA, authority, "shard-0", "shard", data)
        return data

    def check(data: bytes) -> None:
        identity.check_certificate(CA.public, "shard-0", data)
        identity.expiry_of(data)
        identity.public_key_of(CA.public, "shard-0", data)

    whole = tuple(each.to_bytes() for each in rosters)
    asked = tuple(each.to_bytes() for each in requests)
    read_roster = ("messages.encoding:from_file", "crypto.identity:PublicIdentity._public")
    certified = ("crypto.identity:_read_certificate",)
    points = ("crypto.identity:_public_key",)
    return [
        Target("roster", read_roster, whole, roster, signed=True, cost=4),
        Target("roster-followed", read_roster, whole[:2], follow, signed=True, cost=4),
        Target("key-request", ("messages.encoding:from_file",), asked, request, True),
        Target("certificate", certified, (shown,), _spaced(check, shown)),
        Target(
            "authority",
            certified,
            (authority,),
            _spaced(lambda data: identity.check_authority(CA.public, data), authority),
        ),
        Target("tls-public-key", points, (key.public,), public, cost=4),
        Target(
            "tls-key", ("crypto.identity:TlsKey.__init__",), (key.to_bytes(),), _private, cost=4
        ),
    ]


def _sealed() -> list[Target]:
    shared = share(b"id", np.arange(-8, 8, dtype=np.int32), COMMITTEE)
    envelopes = tuple(envelope.seal(HOLDER.public, b"s" * 96, ABOUT) for _ in range(3))
    cheap = patch.object(kit_files, "_N", 2)  # its cost is not what is tried
    with cheap:
        file = phrase("six words").lock(b"a private key")

    def unlock(data: bytes) -> bytes:
        with cheap:
            phrase("six words").open(data)
        return data

    def opened(data: bytes) -> bytes:
        envelope.open(HOLDER, data, ABOUT, 96)
        return data

    def seeds(data: bytes) -> bytes:
        HolderShare(COMMITTEE, 1, b"id", data).check(shared.commitments)
        return data

    return [
        Target("envelope", ("crypto.envelope:open",), envelopes, opened, True, cost=4),
        Target("passphrase", ("store.kit_files:Passphrases.open",), (file,), unlock, True, cost=2),
        Target("seeds", ("crypto.sharing:HolderShare.check",), (shared.seeds_of(1),), seeds, True),
    ]


def _keys() -> list[Target]:
    point = ("crypto.envelope:EnvelopePublicKey.__post_init__", "crypto.envelope:_hybrid")
    bfv = ("crypto.bfv:_key_coefficients", "crypto.cipher:untagged")
    public, secret = (_bfv(kind, size) for kind, size in ((b"public", 4), (b"SECRET", 2)))
    return [
        Target(
            "envelope-key",
            point,
            (HOLDER.public.to_bytes(),),
            lambda data: EnvelopePublicKey.from_bytes(data).to_bytes(),
            cost=2,
        ),
        Target(
            "envelope-secret",
            point,
            (HOLDER.to_bytes(),),
            lambda data: EnvelopeKey.from_bytes(data).to_bytes(),
            cost=2,
        ),
        Target("bfv-key", bfv, (public,), lambda d: BfvPublicKey.from_bytes(d).to_bytes(), cost=20),
        Target(
            "bfv-secret", bfv, (secret,), lambda d: BfvSecretKey.from_bytes(d).to_bytes(), cost=10
        ),
    ]


def _bfv(kind: bytes, polynomials: int) -> bytes:
    return b"secureps-bfv-" + kind + b"-key-1\n" + bytes(polynomials * DEGREE * 8)


def _rosters() -> list[Roster]:
    """The line of one CA, and one of before there were epochs."""
    known: list[Certificate] = [
        certify(CA, "shard-0", "shard", OLD.public.key),
        certify(CA, "hospital-1", "client", ME.public.key),
        certify(CA, "keys-0", "holder", Identity(b"k" * 32).public.key, b"d" * 32),
    ]
    line = [first_roster(CA, LATER)]
    for count in (2, 3):
        line.append(next_roster(CA, line[-1], known[:count], NOW, LATER))
    return [line[2], line[1], line[0], sign_roster(CA, known)]


def _private(data: bytes) -> bytes:
    """PEM has other spellings, which are not kept: the key is read again as it is."""
    made = TlsKey(data).to_bytes()
    return data if TlsKey(made).to_bytes() == made else made


def _spaced(check: Callable[[bytes], None], honest: bytes) -> Callable[[bytes], bytes]:
    """A reader of a certificate, of which spaces alone may be others."""

    def taken(data: bytes) -> bytes:
        check(data)
        return data if data.split() == honest.split() else honest

    return taken


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("no text comes so over the wire") from None
