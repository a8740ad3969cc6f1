"""Requests for certificates: no party can ask for keys that it lacks, or in another's name."""

import dataclasses
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.identity import Identity
from secureps.crypto.roster import MAX_REQUEST_BYTES, KeyRequest, sign_request
from secureps.crypto.tls import TlsKey
from secureps.errors import ClientError, Malformed, Oversized, Unsigned
from secureps.messages.encoding import signed_part
from tests.crypto.test_identity import SMALL_ORDER

OWN, TLS, OLD = Identity.generate(), TlsKey.generate(), Identity.generate()
KEY = b"a public cipher key"


def request(**changes: Any) -> KeyRequest:
    made = sign_request("keys-0", "holder", OWN, TLS, KEY, changes.pop("old", None))
    return dataclasses.replace(made, **changes)


def test_a_request_is_the_same_bytes_each_time_and_read_back_whole() -> None:
    made = request(old=OLD)
    assert made.to_bytes() == request(old=OLD).to_bytes()
    assert KeyRequest.from_bytes(made.to_bytes()) == made
    made.verify(OLD.public)
    request().verify()
    assert made.fingerprint == request().fingerprint, "it is of the keys, whoever vouches for them"
    assert len(bytes.fromhex(made.fingerprint)) == 32


def test_it_has_no_secret() -> None:
    text = request(old=OLD).to_bytes()
    for secret in (OWN.to_bytes(), OLD.to_bytes(), TLS.to_bytes()):
        assert secret not in text
        assert secret.hex().encode() not in text


OTHER, OTHER_TLS = Identity.generate(), TlsKey.generate()
EDITS: dict[str, dict[str, Any]] = {
    "name": {"name": "keys-1"},
    "role": {"role": "client", "cipher_key": b""},
    "identity": {"public_key": OTHER.public.key},
    "tls key": {"tls_key": OTHER_TLS.public},
    "cipher key": {"cipher_key": b"another's cipher key"},
    "no proof": {"tls_proof": b""},
    "no signature": {"signature": b""},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_request_is_refused(edit: str) -> None:
    edited = request(**EDITS[edit])
    with pytest.raises(Unsigned):
        edited.verify()
    assert edit.startswith("no ") or edited.fingerprint != request().fingerprint


def test_the_keys_of_others_cannot_be_asked_for() -> None:
    """The editor signs again, but every key has to sign for itself."""
    theirs = sign_request("victim", "client", OTHER, OTHER_TLS)
    own = sign_request("eve", "client", OWN, TLS)
    for proof in (own.tls_proof, theirs.tls_proof):
        wrong = dataclasses.replace(own, tls_key=theirs.tls_key, tls_proof=proof, signature=b"")
        signed = OWN.sign(b"secureps-key-request", signed_part(wrong))
        with pytest.raises(Unsigned, match="by the TLS key is wrong"):
            dataclasses.replace(wrong, signature=signed).verify()


def test_a_rotation_is_signed_by_what_it_replaces() -> None:
    with pytest.raises(Unsigned):
        request().verify(OLD.public)
    with pytest.raises(Unsigned):
        request(old=OTHER).verify(OLD.public)
    with pytest.raises(Unsigned, match="the roster has none of this name"):
        request(old=OLD).verify()
    first = sign_request("keys-0", "holder", OLD, TLS, KEY)
    with pytest.raises(Unsigned):  # its own signature of then is none for what replaces it
        request(old_proof=first.signature).verify(OLD.public)


def point(bits: int) -> bytes:
    curve: ec.EllipticCurve = ec.SECP384R1() if bits == 384 else ec.SECP256K1()
    return (
        ec.generate_private_key(curve)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


MALFORMED: dict[str, dict[str, Any]] = {
    "a name with a slash": {"name": "../keys-0"},
    "an empty name": {"name": ""},
    "another role": {"role": "issuer"},
    "a short identity": {"public_key": bytes(31)},
    **{f"the point {key}": {"public_key": bytes.fromhex(key)} for key in SMALL_ORDER},
    "a short signature": {"signature": bytes(63)},
    "a long proof": {"tls_proof": bytes(73)},
    "a short old proof": {"old_proof": bytes(63)},
    "a TLS key of another curve": {"tls_key": point(384)},
    "a TLS key of another curve, as long": {"tls_key": point(256).ljust(91, b"x")[:91]},
    "a client's cipher key": {"role": "client"},
    "a long cipher key": {"cipher_key": bytes(200_001)},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_fields_are_refused_before_any_signature(what: str) -> None:
    with pytest.raises(Malformed):
        request(**MALFORMED[what])


def test_a_tls_key_that_is_no_point_is_refused() -> None:
    wrong = request(tls_key=TLS.public[:27] + b"\xff" * 64)
    with pytest.raises(ClientError):
        wrong.verify()


WHOLE = request(old=OLD).to_bytes()


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_byte_of_it_can_change(at: int, change: int) -> None:
    changed = WHOLE[:at] + bytes([WHOLE[at] ^ change]) + WHOLE[at + 1 :]
    with pytest.raises(ClientError):
        KeyRequest.from_bytes(changed).verify(OLD.public)


def test_other_bytes_are_refused() -> None:
    made = request().to_bytes()
    plain = json.loads(made)
    for data in (
        b"",
        b"[]",
        b"[" * 100_000,
        made[:-1],
        made + b" ",
        made.replace(b" ", b"  ", 1),
        json.dumps(plain | {"more": 1}, indent=1, sort_keys=True).encode() + b"\n",
        json.dumps({**plain, "name": 7}, indent=1, sort_keys=True).encode() + b"\n",
        json.dumps({**plain, "public_key": "xy"}, indent=1, sort_keys=True).encode() + b"\n",
    ):
        with pytest.raises(Malformed):
            KeyRequest.from_bytes(data)
    with pytest.raises(Oversized):
        KeyRequest.from_bytes(made + b" " * MAX_REQUEST_BYTES)
