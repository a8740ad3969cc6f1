"""A small federation whose CA signs one roster after another while the run trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import Certificate, Roster, certify, first_roster, next_roster
from secureps.messages.encoding import file_digest
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.machine import WORKER, KitRead
from secureps.run.party_names import client_names
from secureps.run.simulate import simulation
from secureps.run.simulate.simulation import Conditions, MemoryKit, memory_kit
from secureps.store.envelope_keys import in_memory
from secureps.store.keyring import ENVELOPE, PublicKit
from tests.kits.federations import small_federation

CA = Identity(b"c" * 32)
BEGUN = 1_000_000
"""Unix seconds at which the first roster is signed."""


class ChangingRoster:
    """So many walkers, of whom `newcomers` are on no roster yet; `play` is their federation."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        newcomers: Iterable[str] = (),
        clients: int = 6,
        cost: Callable[[str, object], float] = lambda name, task: 1.0,
        expires: int = 0,
    ) -> None:
        names, late = client_names(clients), frozenset(newcomers)
        made = memory_kit(plan, names)
        self.certificates = {
            c.name: certify(CA, c.name, c.role, c.public_key, c.cipher_key_digest)
            for c in made.public.roster.certificates
        }
        self.here = set(self.certificates) - late
        empty = first_roster(CA, 0)
        self.roster = next_roster(CA, empty, self._present, BEGUN, expires)
        public = PublicKit(CA.public, self.roster, made.public.holder_keys)
        self._kit = MemoryKit(public, made.identities, made.secrets)
        with pytest.MonkeyPatch.context() as patch:  # other runs of the test have kits of their own
            patch.setattr(simulation, "memory_kit", lambda plan, clients, spares: self._kit)
            given = Conditions(late=late)
            self.play = small_federation(plan, folder, given, clients=clients, cost=cost)

    @property
    def _present(self) -> list[Certificate]:
        return [self.certificates[name] for name in sorted(self.here)]

    def sign(self, at: int = BEGUN, expires: int = 0) -> Roster:
        """The next roster, of who is `here`; whoever starts from now on has it in its kit."""
        self.roster = next_roster(CA, self.roster, self._present, at, expires)
        kit = replace(self._kit, public=replace(self._kit.public, roster=self.roster))
        self.play._kit = self._kit = kit
        return self.roster

    def tell(self, *names: str, at: float = BEGUN, text: bool = True) -> None:
        """These (default: the coordinator) look at their kit and at the calendar."""
        roster = self.roster.to_bytes().decode() if text else ""
        keys = tuple(self._kit.public.holder_keys.values()) if text else ()
        for name in names or (COORDINATOR,):
            self.play.parties[name].heard(WORKER, KitRead(at, roster, keys))

    def admit(self, name: str, *told: str, at: float = BEGUN) -> None:
        """A client comes: it is on the next roster, of which these hear, and starts."""
        self.here.add(name)
        self.sign()
        self.tell(*told, at=at)
        self.play.start(name)

    def revoke(self, name: str) -> None:
        """A party goes: it is not on the next roster, of which the coordinator hears."""
        self.here.remove(name)
        self.sign()
        self.tell()

    def replace(self, lost: str, new: str, *told: str, at: int = BEGUN, **ends: int) -> None:
        """A key holder takes the place of another: by the next roster, of which these hear."""
        secret, public = ENVELOPE.generate()
        own, key = Identity.generate(), ENVELOPE.public(public)
        self.certificates[new] = certify(CA, new, "holder", own.public.key, file_digest(public))
        self.here = (self.here - {lost}) | {new}
        keys = {**self._kit.public.holder_keys, new: key}
        keys.pop(lost, None)
        kit = replace(self._kit.public, holder_keys=keys)
        secrets = {**self._kit.secrets, new: in_memory(ENVELOPE.secret(secret))}
        self._kit = MemoryKit(kit, {**self._kit.identities, new: own}, secrets)
        self.sign(at, **ends)
        self.tell(*told, at=at)

    def play_to(self, version: int) -> None:
        """Plays until this version is there."""
        self.play.run(lambda: min(self.play.versions().values(), default=-1) >= version)
