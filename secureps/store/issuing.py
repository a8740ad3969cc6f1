"""Making and certifying the keys of a start-up kit, for parties and for the issuer.

    DIR/private/NAME/        0700  a party's keys, made only here (`store.keyring`)
    DIR/private/NAME/KIND.pub      a holder's public key for its secret key
    DIR/private/NAME/next/   0700  new keys, used once they are certified
    DIR/requests/NAME.json         the request for the issuer; it has no secrets

    KIT/ca/ca.key         0600  the CA's secret key; it stays with the issuer
    KIT/ca/cipher.json          the parameters of the holders' keys
    KIT/ca/holds.json           seconds for which a signed roster is valid; 0: for ever
    KIT/ca/turn           0600  an empty file, locked while a process signs
    KIT/ca/revoked.json   0600  digests of replaced or revoked keys, which are never certified again
    KIT/public/                 what the issuer signs, for everybody (`store.keyring`)

A party's files are made only where no file or link is, so no step overwrites a key in use. The
issuer's files appear whole, the roster last. Every step may be repeated: it makes the missing
files, and the same request.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity, PublicIdentity, Role, TlsKey, check_party
from secureps.crypto.roster import (
    MAX_REQUEST_BYTES,
    Certificate,
    KeyRequest,
    Roster,
    certify,
    first_roster,
    next_roster,
    sign_request,
)
from secureps.errors import ClientError, KitError, UnknownParty
from secureps.messages.encoding import file_digest, from_plain, to_plain
from secureps.store import keyring
from secureps.store.atomic_file import make_directory, one_at_a_time, sync
from secureps.store.kit_files import Passphrases, make_folder, read, read_secret, write, write_new

T = TypeVar("T")
SigningKey = TypeVar("SigningKey", Identity, TlsKey)


def make_keys(
    directory: Path,
    role: Role,
    name: str,
    kind: keyring.KeyKind | None,
    passphrases: Passphrases | None = None,
) -> KeyRequest:
    """Makes a party's missing keys; returns the request to certify them.

    The `kind` of a holder's cipher key follows from the plan's cipher. KitError for an unsuitable
    name or role; a file, folder or link in the way; keys that cannot be read.
    """
    try:
        check_party(name, role)
    except ClientError as error:
        raise KitError(str(error)) from None
    folder = directory / "private" / name
    with _name_write_errors(f"the keys of {name}"):
        make_directory(directory)
        make_folder(folder.parent, 0o700)
        return _make_request(folder, role, name, kind, passphrases or Passphrases(), None)


def rotate(directory: Path, name: str, passphrases: Passphrases | None = None) -> KeyRequest | None:
    """Makes new keys beside those in use, or, once they are certified, moves them into place.

    Returns:
        The request, signed by the old identity too; None once the new keys are in place.

    Raises:
        KitError: as `make_keys`; or the keys in use are not certified.
    """
    passphrases = passphrases or Passphrases()
    kit = keyring.load_public(directory)
    try:
        certificate = kit.roster.find(name)
    except UnknownParty as error:
        raise KitError(f"{error}: `secureps keys request` is for new names") from None
    folder = directory / "private" / name
    following = folder / keyring.NEXT
    with _name_write_errors(f"the keys of {name}"):
        if os.path.lexists(following / keyring.IDENTITY):
            made = _read_private(Identity, following / keyring.IDENTITY, passphrases)
            if made.public == certificate.identity:
                _put_in_place(folder, following)
                return None
        old = keyring.load_private(directory, name, passphrases)
        kind = keyring.holder_kind(directory, name) if certificate.cipher_key_digest else None
        return _make_request(following, certificate.role, name, kind, passphrases, old)


def write_request(directory: Path, request: KeyRequest) -> Path:
    """Writes a request for the issuer; returns its file. Raises KitError."""
    path = directory / "requests" / f"{request.name}.json"
    with _name_write_errors(str(path)):
        make_folder(path.parent, 0o755)
        write(path, request.to_bytes(), 0o644)
    return path


@contextmanager
def _name_write_errors(what: str) -> Iterator[None]:
    """Turns an OSError into a KitError that says what was being written."""
    try:
        yield
    except OSError as error:
        raise KitError(f"cannot write {what}: {error}") from None


def _make_request(
    folder: Path,
    role: Role,
    name: str,
    kind: keyring.KeyKind | None,
    passphrases: Passphrases,
    old: Identity | None,
) -> KeyRequest:
    make_folder(folder, 0o700)
    identity = _make_key(Identity, folder / keyring.IDENTITY, passphrases)
    tls = _make_key(TlsKey, folder / keyring.TLS_KEY, passphrases)
    cipher_key = b""
    if role == "holder" and kind is not None:
        cipher_key = _cipher_key(folder, kind, passphrases)
    sync(folder)  # a killed process may have made a key without syncing its name
    return sign_request(name, role, identity, tls, cipher_key, old)


def _make_key(key: type[SigningKey], path: Path, passphrases: Passphrases) -> SigningKey:
    """Reads the key in a file, which is made if it is missing."""
    if not os.path.lexists(path):
        write_new(path, passphrases.lock(key.generate().to_bytes()))
    return _read_private(key, path, passphrases)


def _read_private(parse: Callable[[bytes], T], path: Path, passphrases: Passphrases) -> T:
    _refuse_link(path)
    return read_secret(parse, path, "", passphrases)


def _refuse_link(path: Path) -> None:
    """Refuses a link, by which an attacker could make this party request foreign keys."""
    if path.is_symlink():
        raise KitError(f"{path} is a link: remove it")


def _cipher_key(folder: Path, kind: keyring.KeyKind, passphrases: Passphrases) -> bytes:
    """Makes a holder's missing key pair, the public file first; returns the public key."""
    public, secret = folder / f"{kind.name}.pub", folder / kind.secret_file
    if not os.path.lexists(secret):
        pair = kind.generate()
        write(public, pair[1], 0o600)
        write_new(secret, passphrases.lock(pair[0]))
    _read_private(kind.secret, secret, passphrases)
    _refuse_link(public)
    return read(public, f": remove {secret} too, and repeat this", 0o077)


def _put_in_place(folder: Path, following: Path) -> None:
    """Moves new keys over the old ones, the identity last, so that this can be repeated."""
    files = sorted(os.listdir(following), key=lambda file: file == keyring.IDENTITY)
    for file in files:
        os.replace(following / file, folder / file)
    sync(folder)
    following.rmdir()


HOURS = 24.0
"""Hours for which a signed roster is valid by default."""


def create_kit(
    directory: Path,
    parameters: CipherParameters,
    passphrases: Passphrases | None = None,
    hours: float = HOURS,
    host: str = "",
) -> PublicIdentity:
    """Makes a CA and an empty roster; returns the CA's public key.

    Args:
        hours: for which each signed roster is valid; 0: for ever.
        host: of the kit's runs (`keyring.demand_host`).

    Raises:
        KitError: there is a kit already, or the directory cannot be written.
    """
    if (directory / "ca").exists() or (directory / "public").exists():
        raise KitError(f"{directory} holds a kit already; a new one needs a directory of its own")
    ca = Identity.generate()
    with _name_write_errors("the kit"):
        make_directory(directory)
        make_folder(directory / "ca", 0o700)
        make_folder(directory / "public", 0o755)
        make_folder(directory / "public" / "holders", 0o755)
        text = json.dumps(to_plain(parameters), indent=1) + "\n"
        write(directory / "ca" / "cipher.json", text.encode(), 0o644)
        write(directory / "ca" / "holds.json", f"{_seconds(hours)}\n".encode(), 0o644)
        write(directory / "public" / "ca.pub", ca.public.key, 0o644)
        _write(directory, first_roster(ca, _expiry(_seconds(hours)), host))
        keyring.write_authority(directory, ca)
        secret = (passphrases or Passphrases()).lock(ca.to_bytes())
        write(directory / "ca" / "ca.key", secret, 0o600)
    return ca.public


def issue(directory: Path, role: Role, name: str) -> None:
    issue_all(directory, [(role, name)])


def issue_all(
    directory: Path, parties: Iterable[tuple[Role, str]], passphrases: Passphrases | None = None
) -> None:
    """Makes and certifies parties' keys in this folder, for runs on one machine.

    Raises:
        KitError: an unsuitable name or role, a taken name, or no CA in this kit.
    """
    passphrases = passphrases or Passphrases()
    with _open_ca(directory, passphrases) as (_, roster):
        taken = {certificate.name for certificate in roster.certificates}
    kind = _read_kind(directory)
    requests = []
    for role, name in parties:
        if name in taken:
            raise KitError(f"{name} is on the roster already; take another name")
        requests.append(make_keys(directory, role, name, kind))
    approve(directory, requests, passphrases)


def read_request(path: Path) -> KeyRequest:
    """Reads a party's request without verifying it; KitError if the file is no request."""
    try:
        return KeyRequest.from_bytes(read(path, "", forbidden=0, most=MAX_REQUEST_BYTES))
    except ClientError as error:
        raise KitError(f"{path}: {error}") from None


def approve(
    directory: Path, requests: Sequence[KeyRequest], passphrases: Passphrases | None = None
) -> tuple[KeyRequest, ...]:
    """Certifies the keys of all requests and signs a new roster; after an error it does nothing.

    Returns the newly granted requests, without those whose keys were certified before.

    Raises:
        KitError: a request must not be granted, and why; or no CA is in this kit.
    """
    with _open_ca(directory, passphrases) as (ca, roster):
        new = _select_new(directory, ca, roster, requests)
        if new:
            _grant(directory, ca, roster, new)
    return new


def _select_new(
    directory: Path, ca: Identity, roster: Roster, requests: Sequence[KeyRequest]
) -> tuple[KeyRequest, ...]:
    """Selects the requests whose keys are not certified yet; raises as `approve`."""
    kind, revoked = _read_kind(directory), _read_revoked(directory)
    old = {certificate.name: certificate for certificate in roster.certificates}
    owners = {file_digest(ca.public.key): "the CA"}
    for certificate in roster.certificates:
        owners |= dict.fromkeys(_digests(certificate), certificate.name)
    new: dict[str, KeyRequest] = {}
    for request in requests:
        name = request.name
        if name in new:
            raise KitError(f"{name}: two requests for one name; ask {name} which one is its own")
        if _is_certified(directory, ca.public, old.get(name), request):
            continue
        try:
            _check(directory, request, old.get(name), kind)
        except ClientError as error:
            raise KitError(f"the request of {name}: {error}") from None
        for digest in _digests(request):
            if digest in revoked:
                raise KitError(
                    f"{name} asks with a key that was revoked or replaced: make new ones"
                )
            if owners.setdefault(digest, name) != name:
                raise KitError(f"{name} asks with a key of {owners[digest]}")
        new[name] = request
    return tuple(new.values())


def check_fingerprints(requests: Collection[KeyRequest], told: Collection[str]) -> None:
    """Raises KitError unless these fingerprints, told over another channel, are the requests'."""
    for request in requests:
        if request.fingerprint not in told:
            raise KitError(
                f"the request of {request.name} has the fingerprint {request.fingerprint}, which "
                "nobody told you: ask its party, over another channel"
            )
    if unknown := set(told) - {request.fingerprint for request in requests}:
        raise KitError(f"no request has the fingerprint {min(unknown)}")


def revoke(
    directory: Path, names: Sequence[str], passphrases: Passphrases | None = None
) -> tuple[str, ...]:
    """Takes names off the roster; their keys are never certified again under any name.

    Returns the names of key holders among them: runs with these holders cannot restart.

    Raises:
        KitError: a name is not on the roster, or no CA is in this kit.
    """
    with _open_ca(directory, passphrases) as (ca, roster):
        gone = [c for c in roster.certificates if c.name in names]
        if absent := set(names) - {certificate.name for certificate in gone}:
            raise KitError(f"nobody named {min(absent)} is on the roster of {directory}")
        _add_revoked(directory, {d for c in gone for d in _all_digests(directory, ca.public, c)})
        _publish(directory, ca, roster, (c for c in roster.certificates if c not in gone))
        for certificate in gone:
            keyring.certificate_file(directory, certificate.name).unlink(missing_ok=True)
            for kind in keyring.KINDS.values():
                keyring.public_file(directory, certificate.name, kind).unlink(missing_ok=True)
    return tuple(c.name for c in gone if c.role == "holder")


def replace_holder(
    directory: Path, old: str, request: KeyRequest, passphrases: Passphrases | None = None
) -> None:
    """Certifies a new key holder, then takes another one off the roster; may be repeated.

    Raises:
        KitError: as `approve`; or `request` is not of a new holder, `old` is no holder, or under
            bfv, where one holder has the key of all updates.
    """
    if _read_kind(directory) is keyring.BFV:
        raise KitError(
            f"under bfv all updates are encrypted for {old}'s key, and nobody else opens them: no "
            f"run goes on without it; begin a new run, from its last model, with a kit of its own"
        )
    _, roster = keyring.load_roster(directory)
    if request.role != "holder" or request.name == old:
        raise KitError(
            f"{old} can be replaced only by a key holder with another name: this request is of "
            f"{request.role} {request.name}"
        )
    if old not in roster.names("holder"):
        raise KitError(f"no key holder named {old} is on the roster of {directory}")
    approve(directory, (request,), passphrases)
    revoke(directory, (old,), passphrases)


def renew(
    directory: Path, names: Iterable[str] = (), passphrases: Passphrases | None = None
) -> dict[str, datetime]:
    """Renews parties' TLS certificates, by default all of them; returns when each one ends.

    Raises KitError if a name is not on the roster, or no CA is in this kit.
    """
    with _open_ca(directory, passphrases) as (ca, roster):
        wanted = tuple(names) or tuple(c.name for c in roster.certificates)
        return {name: keyring.renew_certificate(directory, ca, roster, name) for name in wanted}


def renew_roster(
    directory: Path, hours: float | None = None, passphrases: Passphrases | None = None
) -> Roster:
    """Signs the same roster anew for so many hours (0: for ever; None: as the kit says).

    Raises:
        KitError: no CA is in this kit, or the roster is valid for longer already, and parties that
            have it would follow it on.
    """
    with _open_ca(directory, passphrases) as (ca, roster):
        end = _expiry(_read_validity(directory) if hours is None else _seconds(hours))
        renewed = next_roster(ca, roster, roster.certificates, int(time.time()), end)
        if roster.place > renewed.place:
            raise KitError(
                f"roster {roster.number} is signed already, {roster.lifetime}: a new one can only "
                "hold for longer"
            )
        _write(directory, renewed)
    return renewed


@contextmanager
def _open_ca(directory: Path, passphrases: Passphrases | None) -> Iterator[tuple[Identity, Roster]]:
    """Reads the CA and its newest roster while no other process signs.

    The lock keeps two rosters from getting the same number.

    Raises:
        KitError: no CA is in this kit, the roster is another CA's, or the kit cannot be written.
    """
    missing = f"; `{keyring.init_command(directory)}` makes it"
    ca = read_secret(Identity, directory / "ca" / "ca.key", missing, passphrases)
    with _name_write_errors("the kit"), one_at_a_time(directory / "ca" / "turn"):
        public, roster = keyring.load_roster(directory)
        if public != ca.public:
            raise KitError(f"{directory}/ca/ca.key is not the key of {directory}/public/ca.pub")
        yield ca, roster


def _check(
    directory: Path, request: KeyRequest, old: Certificate | None, kind: keyring.KeyKind | None
) -> None:
    """Checks that a request comes from its party and fits this kit.

    Raises:
        KitError: it must not be granted.
        ClientError: a signature or key in it is wrong.
    """
    name = request.name
    if old is not None and not request.old_proof:
        raise KitError(
            f"{name} is on the roster already: its party signs new keys by the old ones with "
            f"`secureps keys rotate DIR {name}`; if it has lost them, `secureps keys revoke "
            f"{directory} {name}` first"
        )
    request.verify(None if old is None else old.identity)
    if old is not None and old.role != request.role:
        raise KitError(f"{name} is a {old.role} on the roster, and asks to be a {request.role}")
    if request.role == "holder" and kind is not None:
        kind.public(request.cipher_key)
    elif request.cipher_key:
        raise KitError(f"{name} has a cipher key, and this kit's cipher knows none: another plan?")


def _is_certified(
    directory: Path, ca: PublicIdentity, old: Certificate | None, request: KeyRequest
) -> bool:
    """True if a request's keys are certified; KitError if only its identity key is."""
    if old is None or old.public_key != request.public_key:
        return False
    if set(_all_digests(directory, ca, old)) != set(_digests(request)) or old.role != request.role:
        raise KitError(
            f"{old.name} has this identity already, with other keys: `secureps keys rotate` at its "
            "party makes all of them anew"
        )
    return True


def _grant(directory: Path, ca: Identity, roster: Roster, requests: Sequence[KeyRequest]) -> None:
    names = {request.name for request in requests}
    kept = [c for c in roster.certificates if c.name not in names]
    gone = [c for c in roster.certificates if c.name in names]
    coming = {digest for request in requests for digest in _digests(request)}
    leaving = {digest for c in gone for digest in _all_digests(directory, ca.public, c)} - coming
    if leaving:
        _add_revoked(directory, leaving)
    for request in requests:
        if request.cipher_key:
            kind = _read_kind(directory)
            assert kind is not None
            write(keyring.public_file(directory, request.name, kind), request.cipher_key, 0o644)
        keyring.write_certificate(directory, ca, request.role, request.name, request.tls_key)
    new = []
    for request in requests:
        cipher = file_digest(request.cipher_key) if request.cipher_key else b""
        new.append(certify(ca, request.name, request.role, request.public_key, cipher))
    _publish(directory, ca, roster, (*kept, *new))


def _publish(
    directory: Path, ca: Identity, last: Roster, certificates: Iterable[Certificate]
) -> None:
    """Signs and writes the next roster, valid for as long as the kit says or the last one was."""
    end = max(last.expires, _expiry(_read_validity(directory))) if last.expires else 0
    _write(directory, next_roster(ca, last, certificates, int(time.time()), end))


def _write(directory: Path, roster: Roster) -> None:
    write(keyring.roster_file(directory), roster.to_bytes(), 0o644)


def _read_validity(directory: Path) -> int:
    path = directory / "ca" / "holds.json"
    with _name_damage(path):
        return int(json.loads(read(path, "")))


@contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (ClientError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise KitError(f"{path} is damaged: {error}") from None


def _seconds(hours: float) -> int:
    return int(3600 * hours)


def _expiry(seconds: int) -> int:
    """Returns when a roster that is signed now expires: Unix seconds; 0: never."""
    return int(time.time()) + seconds if seconds else 0


# --- revoked keys ------------------------------------------------------------------


def _digests(keys: KeyRequest | Certificate) -> tuple[bytes, ...]:
    if isinstance(keys, Certificate):
        cipher = (keys.cipher_key_digest,) if keys.cipher_key_digest else ()
        return file_digest(keys.public_key), *cipher
    cipher = (file_digest(keys.cipher_key),) if keys.cipher_key else ()
    return file_digest(keys.public_key), file_digest(keys.tls_key), *cipher


def _all_digests(
    directory: Path, ca: PublicIdentity, certificate: Certificate
) -> tuple[bytes, ...]:
    tls = keyring.certified_key(directory, ca, certificate.name)
    return *_digests(certificate), *(() if tls is None else (file_digest(tls),))


def _read_revoked(directory: Path) -> frozenset[bytes]:
    path = directory / "ca" / "revoked.json"
    if not path.exists():
        return frozenset()
    with _name_damage(path):
        return frozenset(bytes.fromhex(each) for each in json.loads(read(path, "")))


def _add_revoked(directory: Path, digests: Iterable[bytes]) -> None:
    known = sorted(digest.hex() for digest in _read_revoked(directory) | set(digests))
    text = json.dumps(known, indent=1) + "\n"
    write(directory / "ca" / "revoked.json", text.encode(), 0o600)


def _read_kind(directory: Path) -> keyring.KeyKind | None:
    path = directory / "ca" / "cipher.json"
    with _name_damage(path):
        text = read(path, f"; `{keyring.init_command(directory)}` makes it")
        parameters = from_plain(CipherParameters, json.loads(text))
    return keyring.kind_for(parameters)
