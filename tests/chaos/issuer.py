"""Issues one roster after another while a run trains, with keys that anybody can compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.messages.encoding import digest, file_digest
from secureps.roles.machine import KitRead
from secureps.run.simulate.simulation import MemoryKit
from secureps.store.envelope_keys import in_memory
from secureps.store.keyring import ENVELOPE, PublicKit

BEGUN = 1_000_000
"""Unix seconds at which the first roster is signed."""
HOLDS = 60
"""Seconds for which a roster holds, by a calendar that moves where `expire` says so."""


class Issuer:
    """Signs the rosters of one run; `kit` has the newest, and keys of all who ever were on one."""

    def __init__(self, kit: MemoryKit) -> None:
        self._ca = Identity(digest("chaos-ca"))
        self._unix = BEGUN
        self._certificates = {
            c.name: certify(self._ca, c.name, c.role, c.public_key, c.cipher_key_digest)
            for c in kit.public.roster.certificates
        }
        self._roster = first_roster(self._ca, 0)
        self.kit = kit
        self._sign(kit.public.holder_keys)

    @property
    def told(self) -> KitRead:
        """What a party hears that looks at the newest kit and at the calendar."""
        public = self.kit.public
        text = public.roster.to_bytes().decode()
        return KitRead(float(self._unix), text, tuple(public.holder_keys.values()))

    def expire(self) -> KitRead:
        """The calendar moves beyond the newest roster; what a party hears that looks at it."""
        self._unix += HOLDS + 1
        return KitRead(float(self._unix))

    def renew(self) -> None:
        """The same roster, for longer."""
        self._sign(self.kit.public.holder_keys)

    def revoke(self, name: str) -> None:
        """A party is taken off the roster."""
        del self._certificates[name]
        self._sign({n: key for n, key in self.kit.public.holder_keys.items() if n != name})

    def admit(self, new: str, role: Role) -> None:
        """A client or a shard comes."""
        own = Identity(digest("chaos-identity", new.encode()))
        self._certificates[new] = certify(self._ca, new, role, own.public.key)
        self.kit = replace(self.kit, identities={**self.kit.identities, new: own})
        self._sign(self.kit.public.holder_keys)

    def replace(self, lost: str, new: str) -> None:
        """A key holder takes another's place."""
        own = Identity(digest("chaos-identity", new.encode()))
        seeds = [digest("chaos-envelope", new.encode(), bytes([k])) for k in range(3)]
        with patch.object(EnvelopeKey, "from_os", lambda: EnvelopeKey(b"".join(seeds))):
            secret, public = ENVELOPE.generate()
        self._certificates[new] = certify(
            self._ca, new, "holder", own.public.key, file_digest(public)
        )
        secrets = {**self.kit.secrets, new: in_memory(ENVELOPE.secret(secret))}
        self.kit = replace(self.kit, identities={**self.kit.identities, new: own}, secrets=secrets)
        del self._certificates[lost]
        keys = {n: key for n, key in self.kit.public.holder_keys.items() if n != lost}
        self._sign({**keys, new: ENVELOPE.public(public)})

    def _sign(self, keys: Mapping[str, bytes]) -> None:
        now, ends = self._unix, self._unix + HOLDS
        self._roster = next_roster(self._ca, self._roster, self._certificates.values(), now, ends)
        self.kit = replace(self.kit, public=PublicKit(self._ca.public, self._roster, keys))
