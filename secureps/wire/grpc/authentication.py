"""The signed claim in the metadata of every request: it says who asks whom.

A claim names the asking party, the server and the run. Its signature covers these, the method, and
the digest of the envelope that follows. So a recorded request is useless at another server, and in
another run once its sender knows its own. Nobody records one on the way: TLS 1.3 hides it, and
rejects a record that is sent again (RFC 8446, E.2; 0-RTT data is not used). Without TLS, on the
loopback of one machine, a process that may listen there can send one again: it counts as the
aggregator (docs/threat-model.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from secureps.crypto.identity import check_name
from secureps.errors import Malformed, Unsigned
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.format import FORMAT, UNNUMBERED

REQUEST_DOMAIN = b"secureps-request"

_PARTY = "secureps-party"
_TO = "secureps-to"
_FORMAT = "secureps-format"
_RUN = "secureps-run-bin"
_DIGEST = "secureps-digest-bin"
_SIGNATURE = "secureps-signature-bin"
_FORMAT_NUMBER = re.compile(r"[1-9][0-9]{0,5}")

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The sender's statement about a request.

    Args:
        run: id of the run that `party` takes part in; empty before it knows.
        digest: of the envelope to come.
        format: the party's FORMAT. It is not signed: a change of it only has the request refused.
    """

    party: str
    to: str
    run: bytes
    digest: bytes
    signature: bytes = b""
    format: int = UNNUMBERED

    def signed(self, method: str) -> bytes:
        """The signed bytes: each part after its length, so that no part runs into another.

        `method` is gRPC's: no claim on one method holds for another.
        """
        names = (method.encode(), self.party.encode(), self.to.encode())
        parts = (*names, self.run, self.digest)
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    def envelope(self, data: bytes) -> bytes:
        """Returns the envelope; Unsigned if it is another than was signed."""
        if payload_digest(data) != self.digest:
            raise Unsigned(f"these are not the bytes that {self.party} signed")
        return data


def sign_request(
    party: str, to: str, sign: Callable[[bytes], bytes], method: str, run: bytes, envelope: bytes
) -> Metadata:
    """Makes the metadata of a request; `sign` signs bytes under REQUEST_DOMAIN (Ed25519)."""
    claim = Claim(party, to, run, payload_digest(envelope))
    return (
        (_PARTY, party),
        (_TO, to),
        (_FORMAT, str(FORMAT)),
        (_RUN, run),
        (_DIGEST, claim.digest),
        (_SIGNATURE, sign(claim.signed(method))),
    )


def claim_of(metadata: Iterable[Any] | None) -> Claim:
    """Reads the claim in a request's metadata; Unsigned if it names nobody, else Malformed."""
    found: dict[str, Any] = dict(metadata or ())
    party, to = found.get(_PARTY), found.get(_TO)
    binary: list[Any] = [found.get(key) for key in (_RUN, _DIGEST, _SIGNATURE)]
    if not (
        isinstance(party, str)
        and isinstance(to, str)
        and all(isinstance(part, bytes) for part in binary)
    ):
        raise Unsigned("a request without a party's name and signature")
    run, digest, signature = binary
    if len(digest) != DIGEST_BYTES:
        raise Malformed(f"a request's digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    if len(run) not in (0, DIGEST_BYTES):
        raise Malformed(f"the id of a request's run has {len(run)} bytes, not {DIGEST_BYTES}")
    format = found.get(_FORMAT, str(UNNUMBERED))
    if not isinstance(format, str) or _FORMAT_NUMBER.fullmatch(format) is None:
        raise Malformed(f"{format!r:.80} is no number of a format")
    check_name(party)
    check_name(to)
    return Claim(party, to, run, digest, signature, int(format))
