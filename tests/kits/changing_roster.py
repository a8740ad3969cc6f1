"""A CA that signs one roster after another while a run trains, and small federations of one."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.messages.encoding import digest, file_digest
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.machine import WORKER, KitRead
from secureps.run.simulate import simulation
from secureps.run.simulate.simulation import Conditions, MemoryKit, make_memory_kit
from secureps.run.up.folder import client_names
from secureps.store.envelope_keys import wrap_secret
from secureps.store.keyring import ENVELOPE, PublicKit
from tests.kits.federations import small_federation

BEGUN = 1_000_000
"""Unix seconds at which the first roster is signed."""


class Issuer:
    """Signs the rosters of one run, with keys that anybody can compute.

    `kit` has the newest roster, and the keys of all who ever were on one; `certificates` are those
    on the next, `unix` is when it is signed.

    Args:
        holds: seconds for which a roster holds; 0: for ever.
        late: parties of the kit that are on no roster yet.
    """

    def __init__(self, kit: MemoryKit, holds: int = 0, late: Collection[str] = ()) -> None:
        self.unix, self._holds = BEGUN, holds
        self._ca = Identity(digest("chaos-ca"))
        self._keys = dict(kit.public.holder_keys)
        self.certificates = {
            c.name: certify(self._ca, c.name, c.role, c.public_key, c.cipher_key_digest)
            for c in kit.public.roster.certificates
            if c.name not in late
        }
        self.roster, self.kit = first_roster(self._ca, 0), kit
        self.sign()

    def sign(self) -> None:
        """The next roster; of the same parties it is the same, for longer."""
        ends = self.unix + self._holds if self._holds else 0
        certificates = self.certificates.values()
        self.roster = next_roster(self._ca, self.roster, certificates, self.unix, ends)
        keys = {name: key for name, key in self._keys.items() if name in self.certificates}
        self.kit = replace(self.kit, public=PublicKit(self._ca.public, self.roster, keys))

    @property
    def told(self) -> KitRead:
        """What a party hears that looks at the newest kit and at the calendar."""
        keys = tuple(self.kit.public.holder_keys.values())
        return KitRead(float(self.unix), self.roster.to_bytes().decode(), keys)

    def expire(self) -> KitRead:
        """The calendar moves beyond the newest roster; what a party hears that looks at it."""
        self.unix += self._holds + 1
        return KitRead(float(self.unix))

    def revoke(self, name: str) -> None:
        del self.certificates[name]
        self.sign()

    def admit(self, new: str, role: Role) -> None:
        self._certify(new, role)
        self.sign()

    def replace(self, lost: str, new: str) -> None:
        seeds = [digest("chaos-envelope", new.encode(), bytes([k])) for k in range(3)]
        with patch.object(EnvelopeKey, "from_os", lambda: EnvelopeKey(b"".join(seeds))):
            secret, public = ENVELOPE.generate()
        self._keys[new] = ENVELOPE.public(public)
        self._certify(new, "holder", file_digest(public))
        secrets = {**self.kit.secrets, new: wrap_secret(ENVELOPE.secret(secret))}
        self.kit = replace(self.kit, secrets=secrets)
        self.certificates.pop(lost, None)
        self.sign()

    def _certify(self, new: str, role: Role, cipher_key: bytes = b"") -> None:
        own = Identity(digest("chaos-identity", new.encode()))
        self.certificates[new] = certify(self._ca, new, role, own.public.key, cipher_key)
        self.kit = replace(self.kit, identities={**self.kit.identities, new: own})


class ChangingRoster:
    """So many walkers, of whom `newcomers` are on no roster yet; `play` is their federation.

    Whoever starts has the newest roster in its kit.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        newcomers: Collection[str] = (),
        clients: int = 6,
        cost: Callable[[str, object], float] = lambda name, task: 1.0,
        holds: int = 0,
    ) -> None:
        late = frozenset(newcomers)
        self.issuer = Issuer(make_memory_kit(plan, client_names(clients)), holds, late)
        with patch.object(simulation, "make_memory_kit", lambda *given: self.issuer.kit):
            given = Conditions(late=late)
            self.play = small_federation(plan, folder, given, clients=clients, cost=cost)

    def tell(self, *names: str, at: float | None = None, text: bool = True) -> None:
        """These (default: the coordinator) look at their kit and at the calendar."""
        self.play._kit, read = self.issuer.kit, self.issuer.told
        read = read if text else KitRead(0.0)
        for name in names or (COORDINATOR,):
            heard = replace(read, unix=self.issuer.unix if at is None else at)
            self.play.parties[name].post(WORKER, heard)

    def admit(self, name: str, *told: str) -> None:
        """A client comes: it is on the next roster, of which these hear, and starts."""
        self.issuer.admit(name, "client")
        self.tell(*told)
        self.play.start(name)

    def revoke(self, name: str) -> None:
        """A party goes: it is not on the next roster, of which the coordinator hears."""
        self.issuer.revoke(name)
        self.tell()

    def replace(self, lost: str, new: str) -> None:
        """A key holder takes another's place, of which the coordinator hears."""
        self.issuer.replace(lost, new)
        self.tell()

    def play_to(self, version: int) -> None:
        self.play.run(lambda: min(self.play.versions().values(), default=-1) >= version)
