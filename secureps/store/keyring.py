"""The start-up kit on disk, as its party reads it: what it has before it meets anybody.

    KIT/public/ca.pub                 everybody's: the CA's public key,
    KIT/public/roster.json            the signed roster,
    KIT/public/holders/NAME.KIND.pub  and what clients seal under
    KIT/private/NAME/identity.key 0600  one party's own
    KIT/private/NAME/KIND.key     0600  and, for a holder, its secret key
    KIT/public/tls/, KIT/private/NAME/tls.key   what connections are made with
    KIT/state/NAME/                     where a client keeps its state, unless it is told otherwise

KIND is one of `KINDS`, the same for all holders of a kit: a file begins with a tag of its kind, and
the CA certifies the digest of the whole public file. private/NAME is made by the party
(`store.issuing`), public/ by the issuer (`store.issuing`), who needs nobody's private/.

    KIT/public/tls/ca.pem           the CA's certificate, whose key is that of public/ca.pub
    KIT/public/tls/NAME.pem         a party's: whoever connects sees it, so that all may have it
    KIT/private/NAME/tls.key  0600  a party's private key

Certificates end after a year; `renew` signs the same keys anew, and a process that runs takes the
new files when they are there.
"""

from __future__ import annotations

import functools
import logging
import os
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from secureps.crypto.bfv import BfvPublicKey, BfvSecretKey
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.envelope import KEY_OF_0_1, PUBLIC_BYTES, EnvelopeKey, EnvelopePublicKey
from secureps.crypto.identity import Identity, PublicIdentity, Role, check_name
from secureps.crypto.roster import Roster
from secureps.crypto.sampling import NO_PRIVACY, SEED_BYTES, SecretSeed, Seed, UnsafeSeed
from secureps.crypto.suite import cipher
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
from secureps.errors import ClientError, ConfigError, KitError, UnknownParty, Unsigned
from secureps.messages.encoding import DIGEST_BYTES, file_digest
from secureps.messages.run import is_on_loopback
from secureps.store.atomic_file import secure_folder, sync
from secureps.store.journal_rows import disk_error
from secureps.store.kit_files import Passphrases, make_folder, read, read_secret, write, write_new
from secureps.wording import named

HolderSecret = BfvSecretKey | EnvelopeKey


@dataclass(frozen=True, slots=True)
class KeyKind:
    """How keys of one kind are made and read.

    Args:
        name: what its files are called after.
        generate: a fresh pair: the secret file's bytes and the public file's.
        public: what clients seal under, from the public file's bytes; Malformed or Oversized
            if it is not of this kind.
        secret: the holder's key, from the secret file's bytes; raises alike.
    """

    name: str
    generate: Callable[[], tuple[bytes, bytes]]
    public: Callable[[bytes], bytes]
    secret: Callable[[bytes], HolderSecret]

    @property
    def secret_file(self) -> str:
        return f"{self.name}.key"


def _bfv_pair() -> tuple[bytes, bytes]:
    from secureps.crypto.bfv_seal import generate

    secret, public = generate()
    return secret.to_bytes(), public.to_bytes()


def _bfv_public(data: bytes) -> bytes:
    BfvPublicKey.from_bytes(data)
    return data


def _envelope_pair() -> tuple[bytes, bytes]:
    secret = EnvelopeKey.from_os()
    return secret.to_bytes(), secret.public.to_bytes()


def _envelope_public(data: bytes) -> bytes:
    return EnvelopePublicKey.from_bytes(data).key


BFV: Final = KeyKind("bfv", _bfv_pair, _bfv_public, BfvSecretKey.from_bytes)
ENVELOPE: Final = KeyKind("envelope", _envelope_pair, _envelope_public, EnvelopeKey.from_bytes)
KINDS: Final[Mapping[Opening, KeyKind]] = MappingProxyType(
    {Opening.HOLDER: BFV, Opening.COMMITTEE: ENVELOPE}
)
"""What holders have, by what opens a sum."""


def kind_for(parameters: CipherParameters) -> KeyKind | None:
    """What the holders of a plan have; None under a cipher without keys. Raises as `cipher`."""
    return KINDS.get(cipher(parameters).opening)


IDENTITY = "identity.key"
"""Name of a party's private file."""
NEXT = "next"
"""Folder beside it, of new keys that are not in use yet."""
_FETCH = ": fetch the kit anew"


@dataclass(frozen=True, slots=True)
class PublicKit:
    """What everybody may know, verified.

    Args:
        ca: whose signatures count.
        roster: everybody.
        holder_keys: what clients seal under, by holder's name: a whole public key (bfv), or the
            raw bytes of an envelope key (rlwe); empty under `plain`.
    """

    ca: PublicIdentity
    roster: Roster
    holder_keys: Mapping[str, bytes]

    @property
    def opening(self) -> Opening:
        lengths = {len(key) for key in self.holder_keys.values()}
        if not lengths:
            return Opening.NOTHING
        return Opening.COMMITTEE if lengths == {PUBLIC_BYTES} else Opening.HOLDER


def roster_file(directory: Path) -> Path:
    """Where a kit has its roster."""
    return directory / "public" / "roster.json"


def read_offered_keys(directory: Path) -> tuple[bytes, ...]:
    """The keys in public/ under which updates are sealed for holders; KitError if one is none."""
    found = []
    for path in sorted((directory / "public" / "holders").glob(f"*.{ENVELOPE.name}.pub")):
        try:
            found.append(ENVELOPE.public(read(path, "")))
        except ClientError as error:
            raise _damage_error(directory, error) from None
    return tuple(found)


def default_state(kit: Path, name: str) -> Path:
    """Where a party keeps its state unless it is told otherwise: one place for each kit.

    In whatever folder a second process is started, it comes to the same lock, and to the same
    record of what is spent.
    """
    check_name(name)
    return kit.resolve() / "state" / name


def load_public(directory: Path, ca_fingerprint: str | None = None) -> PublicKit:
    """Reads public/ and verifies every signature and digest in it.

    Args:
        directory: the kit.
        ca_fingerprint: 64 hexadecimal digits that the CA's key must have, if pinned; spaces and
            capitals do not matter.

    Raises:
        ConfigError: what is pinned is no fingerprint.
        KitError: missing, damaged, writable by others, or by another CA; it says what to do.
    """
    pinned = None if ca_fingerprint is None else read_fingerprint(ca_fingerprint)
    ca, roster = load_roster(directory, pinned)
    try:
        keys, kinds = {}, set()
        for holder in roster.holders():
            if holder.cipher_key_digest:
                kind = holder_kind(directory, holder.name)
                path = public_file(directory, holder.name, kind)
                data = read(path, _FETCH)
                if file_digest(data) != holder.cipher_key_digest:
                    raise KitError(f"{path} is not the key that the CA certified")
                if data.startswith(KEY_OF_0_1):
                    raise KitError(
                        f"{path} is a key of secureps 0.1.0: finish the run with the version that "
                        f"began it, and then start a new kit with `{init_command(directory)}`"
                    )
                keys[holder.name] = kind.public(data)
                kinds.add(kind.name)
    except ClientError as error:
        raise _damage_error(directory, error) from None
    if len(kinds) > 1:
        raise KitError(
            f"{directory} has holders' keys of two ciphers, {' and '.join(sorted(kinds))}: "
            f"start a new kit with `{init_command(directory)}`"
        )
    return PublicKit(ca, roster, MappingProxyType(keys))


def load_roster(directory: Path, pinned: str | None = None) -> tuple[PublicIdentity, Roster]:
    """Reads the CA's key and the roster that it signed, whatever else is in public/.

    Raises:
        KitError: as `load_public`; or the CA's key has not the `pinned` fingerprint.
    """
    absent = f": {directory} is no start-up kit; name the folder that has public/ and private/NAME"
    key = read(directory / "public" / "ca.pub", absent)
    data = read(roster_file(directory), absent)
    try:
        ca = PublicIdentity(key)
        if pinned is not None and ca.fingerprint != pinned:
            raise KitError(
                f"{directory} is signed by another CA: its fingerprint is {ca.fingerprint} "
                f"and the pinned one {pinned}"
            )
        return ca, _verify_roster(ca, data)
    except ClientError as error:
        raise _damage_error(directory, error) from None


@functools.lru_cache(4)
def _verify_roster(ca: PublicIdentity, data: bytes) -> Roster:
    """The roster in these bytes: one process may play many nodes of a simulation, wave by wave."""
    roster = Roster.from_bytes(data)
    roster.verify(ca)
    return roster


def _damage_error(directory: Path, error: ClientError) -> KitError:
    return KitError(f"the kit in {directory} is damaged: {error}; fetch it anew")


def load_private(
    directory: Path,
    name: str,
    passphrases: Passphrases | None = None,
    roster: Roster | None = None,
) -> Identity:
    """Reads a party's own identity, which must be the one on the kit's roster.

    Raises:
        KitError: missing, readable by others (it says `chmod 600`), under another passphrase, or
            somebody else's.
    """
    path = directory / "private" / name / IDENTITY
    identity = read_secret(Identity, path, _missing_text(directory, name), passphrases)
    try:
        known = load_public(directory).roster if roster is None else roster
        certificate = known.find(name)
    except UnknownParty as error:
        raise KitError(f"{error}; whoever issues keys adds it") from None
    if certificate.identity != identity.public:
        what = "ask the CA for your own"
        if (path.parent / NEXT).is_dir():
            what = (
                "its new keys wait to be put into their place, "
                f"`secureps keys rotate {directory} {name}` once more"
            )
        raise KitError(f"{path} is not the key that the CA certified for {name}: {what}")
    return identity


def find_observer(directory: Path, roster: Roster) -> str:
    """An observer on a kit's roster whose key is in the kit; KitError if there is none."""
    for certificate in roster.certificates:
        private = directory / "private" / certificate.name
        if certificate.role == "observer" and private.is_dir():
            return certificate.name
    raise KitError(
        f"{directory} has no observer's key: name a party whose key is in it by --name, or ask "
        f"for one, `{_request_command(directory, 'observer', 'observer')}`, also while a run trains"
    )


def load_holder_secret(
    directory: Path, name: str, passphrases: Passphrases | None = None
) -> HolderSecret:
    """A holder's secret key, of the kind of its public one.

    Raises:
        KitError: as `load_private`; or the kit's cipher needs no holder's key.
    """
    kit = load_public(directory)
    if name not in kit.holder_keys:
        raise KitError(
            f"{directory} has no cipher key of a holder called {name}: under a cipher without one "
            f"no key holder runs; otherwise `{_request_command(directory, name, 'holder')}` "
            "makes it"
        )
    kind = holder_kind(directory, name)
    path = directory / "private" / name / kind.secret_file
    lost = f": if it is lost, `secureps keys rotate {directory} {name}` makes new keys"
    secret = read_secret(kind.secret, path, lost, passphrases)
    if isinstance(secret, EnvelopeKey) and secret.public.key != kit.holder_keys[name]:
        raise KitError(
            f"{path} is not the key that the CA certified for {name}: ask the CA for your own"
        )
    return secret


def check_fits(kit: PublicKit, opening: Opening, holders: int | None) -> None:
    """KitError unless a kit has the keys that a plan needs, of as many holders; None: of any."""
    new = "make a new kit with `secureps keys init DIR --plan FILE`"
    if kit.opening is not opening:
        has = {Opening.NOTHING: "no keys", Opening.HOLDER: "a bfv key"}.get(
            kit.opening, "rlwe keys"
        )
        raise KitError(
            f"the kit was made for another cipher than the plan's: its holders have {has}; {new}"
        )
    has_keys = len(kit.holder_keys)
    if holders is not None and has_keys != holders:
        less = "have the missing ones approved, after `secureps keys request` at each"
        more = "take off who is too much, `secureps roster revoke KIT NAME` at the issuer"
        raise KitError(
            f"the plan has {holders} key holders, and the kit keys of {has_keys}: "
            f"{less if has_keys < holders else more}; before a run begins cipher.holders may "
            "change instead"
        )


def refuse_unsafe(unsafe: int | None, insecure: bool) -> None:
    """ConfigError for an unsafe seed without the word that says what it is for.

    An address on loopback may be a tunnel's end, and a shard stands beside its coordinator: where a
    coordinator is says nothing of whose records are behind a seed that everybody may know.
    """
    if unsafe is not None and not insecure:
        raise ConfigError(
            "an unsafe seed gives no privacy: whoever knows it computes this party's noise and "
            "keys. Leave it out, or say that this is a test: --insecure-for-tests, in Python "
            "insecure_for_tests=True, in a server's file insecure_for_tests = true"
        )


def choose_seed(state: Path, unsafe: int | None, server: str, insecure: bool) -> Seed:
    """The root of a party's randomness: its own secret in `state`, or a number that all may know.

    `server` is where it dials; `insecure` says that this is a test.

    Raises:
        ConfigError: an unsafe seed for a coordinator that is not on this machine, or no test.
        KitError: as `load_seed`.
    """
    if unsafe is None:
        secure_folder(state)
        return load_seed(state / "seed")
    refuse_unsafe(unsafe, insecure)
    if not is_on_loopback(server):
        raise ConfigError("an unsafe seed gives no privacy: it is for loopback alone")
    logging.getLogger("secureps").warning(NO_PRIVACY)
    return UnsafeSeed(unsafe)


def load_seed(path: Path) -> SecretSeed:
    """A client's own seed, fresh from the operating system the first time (mode 0600).

    It must outlive the process: training again after a crash repeats the same noise.

    Raises:
        KitError: as `read_secret`.
        DiskFailed, OperatorError: the disk is full, or refuses.
    """
    try:
        if not path.exists():
            write(path, os.urandom(SEED_BYTES), 0o600)
        sync(path.parent)  # a client that was killed may not have waited for its name
    except OSError as error:
        raise disk_error(path, "write", error) from None
    return read_secret(SecretSeed, path, "")


def holder_kind(directory: Path, name: str) -> KeyKind:
    """The kind of a certified holder's key, by its file; KitError unless there is one."""
    there = [kind for kind in KINDS.values() if public_file(directory, name, kind).exists()]
    if len(there) == 1:
        return there[0]
    folder = directory / "public" / "holders"
    if there:
        raise KitError(f"{folder} has two keys of {name}: fetch the kit anew")
    raise KitError(f"the public key of {name} in {folder} is missing{_FETCH}")


def public_file(directory: Path, name: str, kind: KeyKind) -> Path:
    """Where a holder's public key lies."""
    return directory / "public" / "holders" / f"{name}.{kind.name}.pub"


def init_command(directory: Path) -> str:
    """The command that makes a kit."""
    return f"secureps keys init {directory} --plan FILE"


def _request_command(directory: Path, name: str, role: str) -> str:
    plan = " --plan FILE" if role == "holder" else ""
    return f"secureps keys request {directory} --role {role} --name {name}{plan}"


def _missing_text(directory: Path, name: str) -> str:
    """The end of "... is missing" for a party's own key: whose keys are here, and who makes it."""
    try:
        there = sorted(each.name for each in (directory / "private").iterdir())
    except OSError:
        there = []
    whose = f"has private keys of {named(there, 5)}" if there else "has nobody's private keys"
    command = _request_command(directory, name, "ROLE")
    return f": {directory} {whose}; `{command}` makes those of {name}, and the CA approves them"


def read_fingerprint(
    text: str, whose: str = "CA", source: str = "as `secureps keys show` prints it to the CA"
) -> str:
    """A fingerprint as `PublicIdentity.fingerprint` spells it; ConfigError if it is none."""
    digits = "".join(text.split()).lower()
    if len(digits) != 2 * DIGEST_BYTES or not set(digits) <= set(string.hexdigits):
        raise ConfigError(
            f"a {whose}'s fingerprint has {2 * DIGEST_BYTES} hexadecimal digits, got "
            f"{text.strip()!r:.90}: take it {source}"
        )
    return digits


FLOWER = "flower"
NATIVE = ""

_FOR = {
    FLOWER: "a native run, and this one is inside Flower's engine, whose code reads its clients' "
    "keys: make another kit for it, `secureps keys init DIR --plan FILE --host flower`",
    NATIVE: "a run inside Flower's engine, whose code could read its clients' keys: make another "
    "kit for a native run, `secureps keys init DIR --plan FILE`",
}


def demand_host(roster: Roster, kit: Path, host: str = FLOWER) -> None:
    """KitError unless a roster is for this host, as the CA has signed it.

    Inside Flower's engine the run ships the code that reads a client's keys: a native run's kit
    would not be its party's alone any more if it served there too, and Flower's never was.
    """
    if roster.host != host:
        raise KitError(f"{kit} is the kit of {_FOR[host]}")


# --- the part of a start-up kit that connections are made with ---------------------


log = logging.getLogger("secureps")

TLS_KEY = "tls.key"
"""Name of a party's private file."""

SOON = timedelta(days=30)
"""Before a certificate ends its party says so, once a day."""
LOOK = 5.0
"""Seconds after which a new certificate is seen, at most."""


def write_authority(kit: Path, ca: Identity) -> bytes:
    """Writes the CA's certificate, which it returns; OSError if it cannot."""
    made = make_authority(ca)
    make_folder(_authority(kit).parent, 0o755)
    write(_authority(kit), made, 0o644)
    return made


def write_certificate(kit: Path, ca: Identity, role: Role, name: str, public: bytes) -> None:
    """Signs a party's certificate for a public key, DER; OSError if it cannot be written."""
    try:
        authority = read(_authority(kit), "")
        check_authority(ca.public, authority)
    except (ClientError, KitError):  # damaged, over, or of before there was TLS
        authority = write_authority(kit, ca)
    write(certificate_file(kit, name), certify_tls(ca, authority, name, role, public), 0o644)


def renew_certificate(kit: Path, ca: Identity, roster: Roster, name: str) -> datetime:
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
        if not _tls_key(kit, name).exists():
            write_new(_tls_key(kit, name), TlsKey.generate().to_bytes())
        public = read_secret(TlsKey, _tls_key(kit, name), "").public
    else:
        raise KitError(f"{kit} has neither a certificate nor private keys of {name}")
    write_certificate(kit, ca, role, name, public)
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
    key = read_secret(TlsKey, _tls_key(kit, name), lost, passphrases)
    path = _authority(kit)
    try:
        check_authority(ca, authority)
        path = certificate_file(kit, name)
        check_certificate(ca, name, certificate)
    except ClientError as error:
        raise KitError(f"{path}: {error}; {how}") from None
    if public_key_of(ca, name, certificate) != key.public:
        raise KitError(f"{_tls_key(kit, name)} is not the key of {path}")
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
        return _authority(kit), certificate_file(kit, name), _tls_key(kit, name)

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


def _tls_key(kit: Path, name: str) -> Path:
    return kit / "private" / name / TLS_KEY
