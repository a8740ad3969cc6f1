"""Who is asking: what stands, signed, in the metadata of every request.

A claim names who asks, whom, and in which run; it covers the method and the digest of the envelope
that follows, and a challenge of the server's with a number that is used once under it. So a request
that somebody recorded is worth nothing: not again, not to another server, not in another run. The
first request on a way to a server carries no challenge: it is refused with one (NotFresh), and
signed anew.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from secureps.crypto.identity import check_name
from secureps.errors import Malformed, NotFresh, Unsigned
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.format import FORMAT, UNNUMBERED

REQUEST_DOMAIN = b"secureps-request"
CHALLENGE_BYTES = 40
TRIES = 4
"""Times that a request is signed before NotFresh is what it comes to."""

_PARTY = "secureps-party"
_TO = "secureps-to"
FORMAT_KEY = "secureps-format"
_RUN = "secureps-run-bin"
_FRESH = "secureps-fresh-bin"
_DIGEST = "secureps-digest-bin"
_SIGNATURE = "secureps-signature-bin"
_FORMAT_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_NUMBER = struct.Struct("<Q")

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request says of itself.

    Args:
        party, to: who asks, and whom.
        run: id of the run that `party` takes part in; empty before it knows.
        challenge: of `to`'s, CHALLENGE_BYTES; empty before `party` has one.
        number: of the requests under this challenge; below 2^64.
        digest: of the envelope to come.
        signature: of all this, and the method.
        format: the party's FORMAT. It is not signed: whoever changes it has the request refused,
            and could as well drop it.
    """

    party: str
    to: str
    run: bytes
    challenge: bytes
    number: int
    digest: bytes
    signature: bytes = b""
    format: int = UNNUMBERED

    def signed(self, method: str) -> bytes:
        """What the signature covers: every part behind its length, so that none runs into the next.

        `method` is gRPC's: no claim on one holds for another.
        """
        number = _NUMBER.pack(self.number)
        names = (method.encode(), self.party.encode(), self.to.encode())
        parts = (*names, self.run, self.challenge, number, self.digest)
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    def envelope(self, data: bytes) -> bytes:
        """The envelope itself; Unsigned if it is another than was signed."""
        if payload_digest(data) != self.digest:
            raise Unsigned(f"these are not the bytes that {self.party} signed")
        return data


class Signer:
    """Signs a party's requests to one server; may be used from any thread.

    Args:
        party, to: who asks, and whom.
        sign: signs bytes with the party's key (Ed25519), under REQUEST_DOMAIN.
    """

    def __init__(self, party: str, to: str, sign: Callable[[bytes], bytes]) -> None:
        self._party, self._to, self._sign = party, to, sign
        self._lock = threading.Lock()
        self._challenge, self._next = b"", 0

    def metadata(self, method: str, run: bytes, envelope: bytes) -> Metadata:
        """Of one request, to be sent once."""
        with self._lock:
            challenge, number = self._challenge, self._next
            self._next += 1
        digest = payload_digest(envelope)
        claim = Claim(self._party, self._to, run, challenge, number, digest)
        return (
            (_PARTY, self._party),
            (_TO, self._to),
            (FORMAT_KEY, str(FORMAT)),
            (_RUN, run),
            (_FRESH, challenge + _NUMBER.pack(number)),
            (_DIGEST, digest),
            (_SIGNATURE, self._sign(claim.signed(method))),
        )

    def challenged(self, error: NotFresh) -> None:
        """The server has refused a request, and said under which challenge to sign it."""
        with self._lock:
            # Answers are not signed: one that is none would spoil all requests to come.
            usable = len(error.challenge) == CHALLENGE_BYTES
            self._challenge, self._next = error.challenge if usable else b"", 0


def claim_of(metadata: Iterable[Any] | None) -> Claim:
    """What a request's metadata says, as far as it can be read.

    Raises:
        Unsigned: it names nobody, or is without a signature.
        Malformed: parts that cannot be.
    """
    found: dict[str, Any] = dict(metadata or ())
    party, to = found.get(_PARTY), found.get(_TO)
    binary: list[Any] = [found.get(key) for key in (_RUN, _FRESH, _DIGEST, _SIGNATURE)]
    if not (
        isinstance(party, str)
        and isinstance(to, str)
        and all(isinstance(part, bytes) for part in binary)
    ):
        raise Unsigned("a request without a party's name and signature")
    run, fresh, digest, signature = binary
    if len(digest) != DIGEST_BYTES:
        raise Malformed(f"a request's digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    if len(run) not in (0, DIGEST_BYTES):
        raise Malformed(f"the id of a request's run has {len(run)} bytes, not {DIGEST_BYTES}")
    challenge, number = fresh[: -_NUMBER.size], fresh[-_NUMBER.size :]
    if len(number) != _NUMBER.size or len(challenge) not in (0, CHALLENGE_BYTES):
        raise Malformed(f"{len(fresh)} bytes are no challenge and number")
    (count,) = _NUMBER.unpack(number)
    format = found.get(FORMAT_KEY, str(UNNUMBERED))
    if not isinstance(format, str) or _FORMAT_NUMBER.fullmatch(format) is None:
        raise Malformed(f"{format!r:.80} is no number of a format")
    check_name(party)
    check_name(to)
    return Claim(party, to, run, challenge, count, digest, signature, int(format))
