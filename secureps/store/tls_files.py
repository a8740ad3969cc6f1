"""The part of a start-up kit that connections are made with.

    KIT/public/tls/ca.pem           the CA's certificate, whose key is that of public/ca.pub
    KIT/public/tls/NAME.pem         a party's: whoever connects sees it, so that all may have it
    KIT/private/NAME/tls.key  0600  a party's private key

Certificates end after a year; `renew` signs the same keys anew, and a process that runs takes the
new files when they are there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from secureps.crypto.identity import Identity, PublicIdentity, Role
from secureps.crypto.roster import Roster
from secureps.crypto.tls import (
    Credentials,
    TlsKey,
    certify_tls,
    check_authority,
    check_certificate,
    check_time,
    expiry_of,
    make_authority,
    public_key_of,
)
from secureps.errors import ClientError, KitError, Unsigned
from secureps.store.kit_files import Passphrases, make_folder, read, read_secret, write, write_new

log = logging.getLogger("secureps")

KEY = "tls.key"
"""Name of a party's private file."""

SOON = timedelta(days=30)
"""Before a certificate ends its party says so, once a day."""
LOOK = 5.0
"""Seconds after which a new certificate is seen, at most."""


def create(kit: Path, ca: Identity) -> bytes:
    """Writes the CA's certificate, which it returns; OSError if it cannot."""
    made = make_authority(ca)
    make_folder(_authority(kit).parent, 0o755)
    write(_authority(kit), made, 0o644)
    return made


def certify(kit: Path, ca: Identity, role: Role, name: str, public: bytes) -> None:
    """Signs a party's certificate for a public key, DER; OSError if it cannot be written."""
    try:
        authority = read(_authority(kit), "")
        check_authority(ca.public, authority)
    except (ClientError, KitError):  # damaged, over, or of before there was TLS
        authority = create(kit, ca)
    write(certificate_file(kit, name), certify_tls(ca, authority, name, role, public), 0o644)


def renew(kit: Path, ca: Identity, roster: Roster, name: str) -> datetime:
    """Signs a party's certificate anew; returns when the new one ends.

    Raises:
        KitError: nobody has this name, there is neither a certificate nor a key of this party, or
            the certificate is none of this CA's: it would give anybody's key this party's name.
        OSError: it cannot be written.
    """
    role = next((c.role for c in roster.certificates if c.name == name), None)
    if role is None:
        raise KitError(f"nobody named {name} is on the roster of {kit}")
    path = certificate_file(kit, name)
    if path.exists():
        try:
            public = public_key_of(ca.public, name, read(path, ""))
        except ClientError as error:
            raise KitError(f"{path}: {error}; put the one that you made there") from None
    elif (kit / "private" / name).is_dir():  # its keys are here, perhaps of before there was TLS
        if not _key(kit, name).exists():
            write_new(_key(kit, name), TlsKey.generate().to_bytes())
        public = read_secret(TlsKey, _key(kit, name), "").public
    else:
        raise KitError(f"{kit} has neither a certificate nor private keys of {name}")
    certify(kit, ca, role, name, public)
    return expiry_of(read(path, ""))


def load_credentials(
    kit: Path, name: str, ca: PublicIdentity, passphrases: Passphrases | None = None
) -> Credentials:
    """What a party shows at its connections.

    Raises:
        KitError: a file is missing or damaged, readable by others, of another CA, or over.
    """
    how = (
        "fetch the issuer's public/ anew; where that has no good one either, whoever issues keys "
        "makes it with `secureps keys renew KIT`"
    )
    authority = read(_authority(kit), f": {how}")
    certificate = read(certificate_file(kit, name), f": {how}")
    lost = f": if it is lost, `secureps keys rotate {kit} {name}` makes new keys"
    key = read_secret(TlsKey, _key(kit, name), lost, passphrases)
    path = _authority(kit)
    try:
        check_authority(ca, authority)
        path = certificate_file(kit, name)
        check_certificate(ca, name, certificate)
    except ClientError as error:
        raise KitError(f"{path}: {error}; {how}") from None
    if public_key_of(ca, name, certificate) != key.public:
        raise KitError(f"{_key(kit, name)} is not the key of {path}")
    return Credentials(authority, certificate, key.to_bytes())


def untimely_certificate(kit: Path, name: str) -> str:
    """Which certificate of a party is not good now, by this machine's clock; empty if none.

    What is missing or damaged is told where it is loaded (`load_credentials`).
    """
    for path in (_authority(kit), certificate_file(kit, name)):
        try:
            check_time(read(path, ""))
        except Unsigned as error:
            return f"{path}: {error}"
        except (ClientError, KitError):
            continue
    return ""


def certificate_end(kit: Path, name: str) -> datetime | None:
    """When a party's certificate ends; None where there is none. KitError if it is damaged."""
    path = certificate_file(kit, name)
    try:
        return expiry_of(read(path, "")) if path.exists() else None
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


class TlsFiles:
    """A party's credentials as they are on disk now: read again when the files change.

    The files are looked at no more often than every LOOK seconds; KitError as `load_credentials`.
    """

    def __init__(
        self,
        kit: Path,
        name: str,
        ca: PublicIdentity,
        clock: Callable[[], float] = time.monotonic,
        passphrases: Passphrases | None = None,
    ) -> None:
        self._kit, self._name, self._ca, self._clock = kit, name, ca, clock
        self._passphrases = Passphrases() if passphrases is None else passphrases
        self._seen, self._next = self._look(), clock() + LOOK
        self._credentials = self._load()
        self._warned = date.min
        self._warn()

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """The files of the CA's certificate, of the party's, and of its key."""
        kit, name = self._kit, self._name
        return _authority(kit), certificate_file(kit, name), _key(kit, name)

    def __call__(self) -> Credentials:
        """The newest good ones; the very same object as before, if nothing has changed."""
        if self._clock() < self._next:
            return self._credentials
        self._next = self._clock() + LOOK
        self._warn()
        if (now := self._look()) != self._seen:
            self._seen = now
            try:
                found = self._load()
            except KitError as error:
                log.warning("%s goes on with the certificate that it has: %s", self._name, error)
                return self._credentials
            if _texts(found) != _texts(self._credentials):  # and no copy of the same files
                self._credentials = found
                log.warning("%s has a new certificate", self._name)
        return self._credentials

    def _warn(self) -> None:
        """Says once a day that the certificate ends, from SOON before that on."""
        end, now = expiry_of(self._credentials.certificate), datetime.now(UTC)
        if now > end - SOON and now.date() > self._warned:
            self._warned = now.date()
            log.warning(
                "%s: its TLS certificate ends on %s: secureps keys renew, at whoever issues keys",
                self._name,
                f"{end:%Y-%m-%d}",
            )

    def _load(self) -> Credentials:
        return load_credentials(self._kit, self._name, self._ca, self._passphrases)

    def _look(self) -> tuple[tuple[int, int], ...]:
        try:
            return tuple((s.st_ino, s.st_mtime_ns) for s in map(Path.stat, self.paths))
        except OSError:
            return ()


def _texts(credentials: Credentials) -> tuple[bytes, bytes, bytes]:
    return credentials.authority, credentials.certificate, credentials.key


def _authority(kit: Path) -> Path:
    return kit / "public" / "tls" / "ca.pem"


def certificate_file(kit: Path, name: str) -> Path:
    """Where a party's certificate lies."""
    return kit / "public" / "tls" / f"{name}.pem"


def _key(kit: Path, name: str) -> Path:
    return kit / "private" / name / KEY
