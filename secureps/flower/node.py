"""One wave at a node: a client starts from its journal, hears, trains, says what it has, and ends.

It is the client of `secureps join` (`client.runner.make_member`) with another transport and another
loop. All that outlives the wave lies in the node's state folder, nothing in Flower's context. What
must not live here: Flower's records (`flower.post`), and the app (`flower.trainer`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from secureps.client.runner import LOCAL, make_member
from secureps.client.site import Site
from secureps.client.site_policy import NO_POLICY, read_site
from secureps.client.trainer import Trainer
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import NO_PRIVACY, Seed, UnsafeSeed
from secureps.errors import Malformed, SecurepsError
from secureps.flower.node_settings import NodeSettings
from secureps.flower.wave_loop import WaveLoop
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import Call, Halt
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.kit_watch import KitWatch
from secureps.service.logs import tell
from secureps.store.atomic_file import one_at_a_time
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.dated_journal import DatedJournal
from secureps.store.journal import Journal, SqliteJournal
from secureps.store.keyring import PublicKit, load_private, load_public, own_seed
from secureps.store.kit_host import demand_host
from secureps.store.ownership import own
from secureps.store.spool import DiskSpool
from secureps.wire.protobuf import encode
from secureps.wire.waves.batch import (
    MOST_BYTES,
    WAVE_DOMAIN,
    Batch,
    Entry,
    Kind,
    about,
    opened,
    sealed,
)
from secureps.wire.waves.transport import WaveTransport


@dataclass(frozen=True, eq=False)
class Answer:
    """What a node says in a wave: its batch; and why it takes part no more, if it does not."""

    batch: bytes
    ended: str = ""


class Node:
    """One client, by its kit.

    Raises:
        KitError, ConfigError: its kit or its site's file cannot be used, or is for another host.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        own(settings.state)
        self._kit: PublicKit = load_public(settings.kit)
        demand_host(self._kit.roster, settings.kit)
        self._identity: Identity = load_private(settings.kit, settings.name)
        self._policy = NO_POLICY if settings.site is None else read_site(settings.site)

    def wave(self, data: bytes, payloads: Mapping[bytes, bytes], trainer: Trainer) -> Answer:
        """Hears one batch of the servers', and answers it.

        Args:
            data: the batch; payloads: of answers in it, by digest.

        Raises:
            SecurepsError: the batch is not this run's server's, or whatever ended this client.
        """
        batch = opened(data, MOST_BYTES, self._verify)
        if batch.sender != COORDINATOR or batch.to not in ("", self._settings.name):
            raise Malformed(f"a batch from {batch.sender} to {batch.to}, and none for this node")
        with one_at_a_time(self._settings.state / "wave"), self._journal() as journal:
            transport = WaveTransport(one_wave=True)
            transport.take(batch.entries, payloads)
            loop = WaveLoop(max((at for at, _ in journal.replay()), default=0.0))
            around = Environment(transport, loop, lambda: 1.0)
            stores = Stores(
                journal, DiskSpool(self._settings.state / "spool"), self._settings.state
            )
            executor = self._make(trainer, stores, around)
            executor.start()
            KitWatch(self._settings.name, executor, self._settings.kit).start()
            loop.run(executor.halted.done)
            said = transport.out()
            ended = ""
            if executor.halted.done():
                halt: Halt = executor.halted.result()
                ended = halt.reason
            else:
                first = tuple(self._first(trainer, stores, around))
                said = (*_without(said, first), *first)
            executor.stop()
        answer = Batch(self._settings.name, COORDINATOR, executor.run, batch.challenge, said)
        return Answer(sealed(answer, self._sign), ended)

    def _make(self, trainer: Trainer, stores: Stores, around: Environment) -> Executor:
        settings, policy = self._settings, self._policy
        ledger = policy.ledger_of(None) or default_ledger(settings.kit, settings.name)
        site = Site(
            settings.name,
            trainer,
            self._identity,
            self._seed(),
            self._kit.holder_keys,
            stores.folder / LOCAL,
            ledger=BudgetLedger(ledger, policy.terms.budget, policy.terms.updates_per_hour),
        )
        return make_member(self._kit, site, stores, around, terms=policy.terms)

    def _first(self, trainer: Trainer, stores: Stores, around: Environment) -> Iterator[Entry]:
        """What this client's next process will ask before it hears anything: by its journal."""
        machine = self._make(trainer, stores, around).machine
        for at, record in stores.journal.replay():
            machine.apply(at, record)
        for effect in machine.resume(around.loop.now()).effects:
            if isinstance(effect, Call):
                yield Entry(Kind.FIRST, effect.to.encode(), encode(effect.message))
        yield Entry(Kind.WATCH, envelope=encode(machine.subscription()))

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        own_journal = SqliteJournal(self._settings.state / "journal.db")
        with closing(DatedJournal(own_journal, time.time)) as journal:
            yield journal

    def _seed(self) -> Seed:
        if self._settings.unsafe_seed is None:
            return own_seed(self._settings.state / "seed")
        tell(self._settings.name, "Note", NO_PRIVACY)
        return UnsafeSeed(self._settings.unsafe_seed)

    def _sign(self, data: bytes) -> bytes:
        return self._identity.sign(WAVE_DOMAIN, data)

    def _verify(self, party: str, data: bytes, signature: bytes) -> None:
        self._kit.roster.identity(party).verify(WAVE_DOMAIN, data, signature)


def _without(said: tuple[Entry, ...], first: tuple[Entry, ...]) -> Iterator[Entry]:
    """What is said, but for what the next process asks anyway."""
    asked = {about(each.name.decode(), each.envelope) for each in first if each.name}
    for each in said:
        if each.kind is Kind.CALL and about(each.name.decode(), each.envelope) in asked:
            continue
        if each.kind not in (Kind.WATCH, Kind.UNWATCH):
            yield each


def one_line(error: SecurepsError) -> str:
    """An error as its server's operator reads it."""
    return " ".join(f"{error} ({error.fault} fault)".split())
