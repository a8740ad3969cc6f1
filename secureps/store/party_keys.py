"""A party's side of a start-up kit: it makes its own keys, and asks the issuer to certify them.

    DIR/private/NAME/        0700  its keys, made here and nowhere else (`store.keyring`)
    DIR/private/NAME/KIND.pub      of a holder: what goes with its secret key
    DIR/private/NAME/next/   0700  keys that replace them once they are certified
    DIR/requests/NAME.json         what goes to the issuer: nothing of it is secret

Files are made where nothing is, with their mode, and links are refused: no step writes over a key
that is in use. Each step may be repeated: it makes what is not there yet, and the same request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from secureps.crypto.identity import Identity, Role, check_party
from secureps.crypto.key_request import KeyRequest, sign_request
from secureps.crypto.tls import TlsKey
from secureps.errors import ClientError, KitError, UnknownParty
from secureps.store.atomic_file import make_directory, sync
from secureps.store.keyring import IDENTITY, NEXT, KeyKind, holder_kind, load_private, load_public
from secureps.store.kit_files import Passphrases, make_folder, read, read_secret, write, write_new
from secureps.store.tls_files import KEY

T = TypeVar("T")
SigningKey = TypeVar("SigningKey", Identity, TlsKey)


def make_keys(
    directory: Path,
    role: Role,
    name: str,
    kind: KeyKind | None,
    passphrases: Passphrases | None = None,
) -> KeyRequest:
    """Makes a party's keys where there are none yet; returns the request that they be certified.

    Args:
        kind: what a holder has, by the plan's cipher; of other roles it does not count.
        passphrases: what the private files are put under, if there is a passphrase.
    Raises:
        KitError: an unsuitable name or role; a file, folder or link that must not be there; keys
            that cannot be read.
    """
    try:
        check_party(name, role)
    except ClientError as error:
        raise KitError(str(error)) from None
    folder = directory / "private" / name
    try:
        make_directory(directory)
        make_folder(folder.parent, 0o700)
        return _make_request(folder, role, name, kind, passphrases or Passphrases(), None)
    except OSError as error:
        raise KitError(f"cannot write the keys of {name}: {error}") from None


def rotate(directory: Path, name: str, passphrases: Passphrases | None = None) -> KeyRequest | None:
    """Makes new keys beside those in use, or, once they are certified, puts them into their place.

    Returns:
        The request, signed by the old identity too; None once the new keys are in place.

    Raises:
        KitError: as `make_keys`; or the keys in use are not those that the CA certified.
    """
    passphrases = passphrases or Passphrases()
    kit = load_public(directory)
    try:
        certificate = kit.roster.find(name)
    except UnknownParty as error:
        raise KitError(f"{error}: `secureps keys request` is for new names") from None
    folder = directory / "private" / name
    following = folder / NEXT
    try:
        if os.path.lexists(following / IDENTITY):
            made = _read_private(Identity, following / IDENTITY, passphrases)
            if made.public == certificate.identity:
                _put_in_place(folder, following)
                return None
        old = load_private(directory, name, passphrases)
        kind = holder_kind(directory, name) if certificate.cipher_key_digest else None
        return _make_request(following, certificate.role, name, kind, passphrases, old)
    except OSError as error:
        raise KitError(f"cannot write the keys of {name}: {error}") from None


def write_request(directory: Path, request: KeyRequest) -> Path:
    """Writes a request for its issuer; returns the file, KitError if it cannot."""
    path = directory / "requests" / f"{request.name}.json"
    try:
        make_folder(path.parent, 0o755)
        write(path, request.to_bytes(), 0o644)
    except OSError as error:
        raise KitError(f"cannot write {path}: {error}") from None
    return path


def _make_request(
    folder: Path,
    role: Role,
    name: str,
    kind: KeyKind | None,
    passphrases: Passphrases,
    old: Identity | None,
) -> KeyRequest:
    make_folder(folder, 0o700)
    identity = _make_key(Identity, folder / IDENTITY, passphrases)
    tls = _make_key(TlsKey, folder / KEY, passphrases)
    cipher_key = b""
    if role == "holder" and kind is not None:
        cipher_key = _cipher_key(folder, kind, passphrases)
    sync(folder)  # a process that was killed may have made a key and not waited for its name
    return sign_request(name, role, identity, tls, cipher_key, old)


def _make_key(key: type[SigningKey], path: Path, passphrases: Passphrases) -> SigningKey:
    """The key in a file, which is written first if it is not there."""
    if not os.path.lexists(path):
        write_new(path, passphrases.lock(key.generate().to_bytes()))
    return _read_private(key, path, passphrases)


def _read_private(parse: Callable[[bytes], T], path: Path, passphrases: Passphrases) -> T:
    _refuse_link(path)
    return read_secret(parse, path, "", passphrases)


def _refuse_link(path: Path) -> None:
    """Whoever made a link would have this party ask for keys that are not its own."""
    if path.is_symlink():
        raise KitError(f"{path} is a link: remove it")


def _cipher_key(folder: Path, kind: KeyKind, passphrases: Passphrases) -> bytes:
    """The public key of a holder's pair; its file is there before the secret one's."""
    public, secret = folder / f"{kind.name}.pub", folder / kind.secret_file
    if not os.path.lexists(secret):
        pair = kind.generate()
        write(public, pair[1], 0o600)
        write_new(secret, passphrases.lock(pair[0]))
    _read_private(kind.secret, secret, passphrases)
    _refuse_link(public)
    return read(public, f": remove {secret} too, and repeat this", 0o077, "chmod 600")


def _put_in_place(folder: Path, following: Path) -> None:
    """Moves new keys over the old ones, the identity last: until then this can be repeated."""
    files = sorted(os.listdir(following), key=lambda file: file == IDENTITY)
    for file in files:
        os.replace(following / file, folder / file)
    sync(folder)
    following.rmdir()
