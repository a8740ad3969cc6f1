"""A rogue coordinator before real processes: a server that they dial, and that asks what it likes.

    RogueRun     the processes are the key holders; the rogue is the shards, too
    RogueShard   the process is an honest shard, and the rogue is the coordinator alone

Clients are honest: their updates are sealed by the real code under keys of the kit. Of the
holders the rogue has public keys alone, until one is `corrupt`: then it has that one's folder.
"""

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ring import choose
from secureps.crypto.rlwe import RlweAdder
from secureps.crypto.roster import Roster
from secureps.crypto.secret import Secret
from secureps.messages import orders
from secureps.messages.requests import KeyShare, Noted, OpenRefused, Prepared, PutBlock, Subscribe
from secureps.messages.submission import BlockHeader, SubmissionId
from secureps.run.simulate.simulation import MemoryKit
from secureps.service.process import authenticator
from secureps.store.envelope_keys import load_keys
from secureps.store.issuing import issue, revoke
from secureps.store.keyring import load_private, load_public
from secureps.store.spool import MemorySpool
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN
from secureps.wire.grpc.servers import CoordinatorServer
from tests.kits import rlwe_kit
from tests.kits.committee_kit import SHARD, Holder, Sent, Site
from tests.kits.processes import PATIENCE, Processes

MINIMUM = 5
"""Of the plan, and of every holder by its own settings."""
PLAN = """
name = "small"
versions = {versions}
block_size = 16
shards = 1
[cipher]
name = "{cipher}"
capacity = 24
holders = HOLDERS
threshold = THRESHOLD
[[group]]
rule = {{ RULE }}
"""
ROUNDS = "quorum = 5, minimum = 5, most = 6"

Deliver = Callable[[Any], None]
Said = KeyShare | OpenRefused


class Rogue:
    """An `Endpoint` that acknowledges everything, founds one run and orders at will."""

    def __init__(self, roster: Roster, configure: orders.Configure) -> None:
        self._configure = configure
        self.roster = roster
        self.followed: dict[str, int] = {}
        """The number of the roster that a party goes by."""
        self.run = configure.run.id
        self._streams: dict[str, Deliver] = {}
        self._heard: dict[str, Queue[Any]] = defaultdict(Queue)
        self._server = CoordinatorServer(
            PLAINTEXT, self, "127.0.0.1:0", authenticator(lambda: self.roster)
        )

    def start(self) -> str:
        """HOST:PORT."""
        self._server.start()
        return f"127.0.0.1:{self._server.port}"

    def stop(self) -> None:
        self._server.stop(0.0)

    # --- Endpoint -----------------------------------------------------------------

    def request(self, sender: str, message: Any) -> Future[Any]:
        self._heard[sender].put(message)
        answer: Future[Any] = Future()
        answer.set_result(Noted())
        return answer

    def subscribe(self, sender: str, message: Subscribe, deliver: Deliver) -> Callable[[], None]:
        deliver(self._configure)
        self._streams[sender] = deliver
        self.followed[sender] = message.epoch

        def end() -> None:
            if self._streams.get(sender) is deliver:
                del self._streams[sender]

        return end

    # --- what it does -------------------------------------------------------------

    def watched(self, party: str) -> bool:
        return party in self._streams

    def tell(self, party: str, order: Any) -> None:
        self._streams[party](order)

    def hear(self, party: str, *kinds: type[Any]) -> Any:
        """The next message of these kinds from a party; queue.Empty if none comes."""
        while True:
            said = self._heard[party].get(timeout=PATIENCE)
            if isinstance(said, kinds):
                return said

    def ask(self, holder: str, *asked: orders.Open) -> list[Said]:
        """What a holder answers to orders that come at once; queue.Empty if it never does."""
        for order in asked:
            self.tell(holder, order)
        found: dict[int, Said] = {}
        numbers = [order.cohort.number for order in asked]
        while found.keys() != set(numbers):
            said = self.hear(holder, KeyShare, OpenRefused)
            if said.cohort in numbers:
                found[said.cohort] = said
        return [found[number] for number in numbers]


class Kits(Processes):
    """Processes of which those that came later have a later kit."""

    def __init__(self, *args: Any, **given: Any) -> None:
        self.later: dict[str, Path] = {}
        super().__init__(*args, **given)

    def kit(self, name: str) -> Path:
        return self.later.get(name, super().kit(name))


class RogueRun:
    """The rogue's run: its server, the holders' processes, and all that the clients sent.

    Every batch of updates is of a version of its own, so that what a holder remembers of one
    does not decide another.
    """

    def __init__(
        self, folder: Path, holders: int, threshold: int, rule: str = ROUNDS, clients: int = 10
    ) -> None:
        text = PLAN.replace("HOLDERS", str(holders)).replace("THRESHOLD", str(threshold))
        text = text.replace("RULE", rule)
        self.processes = Kits(folder, "rlwe", clients=clients, plan=text, insecure=True)
        self.names, self.clients = self.processes.holders, self.processes.clients
        self._kit = folder / "kit"
        self._secrets: dict[str, Secret] = {}
        self.identities = {n: load_private(self._kit, n) for n in (*self.clients, "shard-0")}
        kit = MemoryKit(load_public(self._kit), self.identities, self._secrets)
        self.site = site = Site(self.processes.plan, kit)
        self._rogue = Rogue(
            kit.public.roster, orders.Configure(1, site.run, site.placement, site.addresses)
        )
        self._versions, self._numbers = itertools.count(), itertools.count()

    def __enter__(self) -> "RogueRun":
        try:
            _start(self.processes, self._rogue, *self.names)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.__exit__()
        self._rogue.stop()

    def restart(self, holder: str) -> None:
        """SIGKILL, and a new process with the same ledger."""
        self.processes.kill(holder)
        self.processes.wait(lambda: not self._rogue.watched(holder), f"the end of {holder}")
        self.processes.start(holder)
        self.processes.wait(lambda: self._rogue.watched(holder), f"{holder}'s watch")

    def replace(self, lost: str, new: str) -> None:
        """The CA puts a holder in the place of another, and `site` is the new committee's.

        The rogue brings everybody the roster that its own kit does not have.
        """
        kit = self._kit.with_name(f"kit-{new}")
        shutil.copytree(self._kit, kit)
        issue(kit, "holder", new)
        revoke(kit, [lost])
        before, public = self.site, load_public(kit)
        self.site = Site(before.plan, MemoryKit(public, self.identities, self._secrets))
        self.site.run, self.site.pinned = before.run, before.pinned
        self.names = self.site.names
        self._rogue.roster, self.processes.later[new] = public.roster, kit
        self.processes.start(new)
        for name in self.names:
            if name != new:
                self._rogue.tell(name, orders.RosterChanged(1, public.roster.text))
            newest = partial(self._follows, name, public.roster.number)
            self.processes.wait(newest, f"{name} by the new roster")
        self._rogue.tell(new, orders.RosterChanged(1, before.kit.public.roster.text))

    def _follows(self, name: str, number: int) -> bool:
        return self._rogue.followed.get(name) == number

    # --- clients ------------------------------------------------------------------

    def fresh(self, count: int = 6) -> tuple[Sent, ...]:
        """Updates of so many clients for a version of which no holder has heard."""
        version = next(self._versions)
        return tuple(
            self.site.send(name, 10 * version + 1, version) for name in self.clients[:count]
        )

    def again(self, sent: Sequence[Sent]) -> tuple[Sent, ...]:
        """New submissions of the same clients for the same version."""
        receipts = [each.receipt for each in sent]
        return tuple(
            self.site.send(r.id.client, r.id.sequence + 1, r.version, r.base) for r in receipts
        )

    # --- holders ------------------------------------------------------------------

    def opening(self, sent: Sequence[Sent], **changes: Any) -> orders.Open:
        """An order to open a cohort of these, under a number of its own."""
        return self.site.opening(sent, **{"number": next(self._numbers), **changes})

    def ask(self, holder: str, *asked: orders.Open) -> list[Said]:
        return self._rogue.ask(holder, *asked)

    def share(self, holder: str, order: orders.Open) -> bytes:
        (said,) = self.ask(holder, order)
        assert isinstance(said, KeyShare), said
        return said.share

    def refusal(self, holder: str, order: orders.Open) -> str:
        (said,) = self.ask(holder, order)
        assert isinstance(said, OpenRefused), said
        return said.reason

    def corrupt(self, index: int) -> Holder:
        """This holder with its own keys, and without a ledger: it answers whatever it is asked."""
        name = self.names[index]
        self._secrets[name] = load_keys(self._kit, name)
        self.identities[name] = load_private(self._kit, name)
        return self.site.holder(index)


def _start(processes: Processes, rogue: Rogue, *names: str) -> None:
    """Starts the rogue where the processes look for their coordinator, and then these."""
    address = processes.folder / "coordinator" / "address"
    address.parent.mkdir()
    address.write_text(f"{rogue.start()}\n")
    for name in names:
        processes.start(name)
    for name in names:
        processes.wait(partial(rogue.watched, name), f"{name}'s watch")


class RogueShard:
    """A run in the clear: what the rogue has a shard open, it reads. Version 0 is founded."""

    def __init__(self, folder: Path) -> None:
        text = PLAN.replace("holders = HOLDERS\nthreshold = THRESHOLD\n", "")
        text = text.replace("[[group]]", '[[group]]\nweighting = "uniform"').replace("RULE", ROUNDS)
        self.processes = Processes(folder, "plain", clients=10, plan=text, insecure=True)
        self.clients, kit = self.processes.clients, folder / "kit"
        identities = {name: load_private(kit, name) for name in self.clients}
        self.site = site = Site(self.processes.plan, MemoryKit(load_public(kit), identities, {}))
        order = orders.Configure(1, site.run, site.placement, site.addresses)
        self.rogue = Rogue(site.kit.public.roster, order)
        self._closing = ExitStack()

    def __enter__(self) -> "RogueShard":
        self._closing.callback(self.rogue.stop)
        self._closing.callback(self.processes.__exit__)
        try:
            _start(self.processes, self.rogue, SHARD)
            self.processes.wait(lambda: bool(self._address()), "the shard's address")
            self._found()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _found(self) -> None:
        id, outbox = SubmissionId(self.clients[0], "all", 0), MemorySpool()
        layout = self.site.pinned.layout.group("all")
        sealer, values = self.site.sealer(id.client, outbox), np.zeros(layout.size, np.float32)
        found = sealer.offer(self.site.pinned, id, values, True)
        self._put(id.client, found.headers, [outbox.get(header.key) for header in found.headers])
        self.rogue.tell(SHARD, orders.Found(1, "all", found.receipt))
        self.rogue.hear(SHARD, Prepared)
        self.rogue.tell(SHARD, orders.Commit(1, "all", 0, 0))

    def send(self, client: str) -> Sent:
        """A client's update for version 1, which the shard has then."""
        sent = self.site.send(client)
        self._put(client, sent.headers, sent.payloads)
        return sent

    def _put(
        self, client: str, headers: Sequence[BlockHeader], payloads: Sequence[bytes | memoryview]
    ) -> None:
        for header, payload in zip(headers, payloads, strict=True):
            self.ask(client, PutBlock(header, payload))

    def _address(self) -> str:
        """The shard's, empty until it has written it: it may watch the coordinator before."""
        path = self.processes.folder / SHARD / "address"
        return path.read_text().strip() if path.exists() else ""

    def ask(self, party: str, request: Any) -> Any:
        sign = partial(self.site.kit.identities[party].sign, REQUEST_DOMAIN)
        where = {SHARD: self._address()}
        with closing(GrpcTransport(PLAINTEXT, party, sign, where, PATIENCE)) as transport:
            return transport.call(SHARD, request).result(PATIENCE)

    def orders(self, sent: Sequence[Sent], number: int) -> tuple[orders.Hold, orders.Prepare]:
        """To add a cohort's updates, and to step from their sum."""
        cohort = self.site.opening(sent, number).cohort
        blocks = {each.receipt.id: each.receipt.blocks for each in sent}
        members = tuple(orders.MemberBlocks(m.id, blocks[m.id]) for m in cohort.members)
        return orders.Hold(1, cohort, members), orders.Prepare(1, cohort, ())


def read(site: Site, sent: Sequence[Sent], key: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of a sum of ciphertexts under any key, right or wrong, from the definition."""
    parameters, layout = site.plan.cipher_parameters, site.pinned.layout.group("all")
    enc, at = choose(parameters), site.pinned.place("all")
    primes, adder = enc.ring.primes, RlweAdder(parameters)
    keys = {p: rlwe_kit.transformed(key.tolist(), p) for p in primes}
    found: list[int] = []
    for block in range(layout.blocks):
        slots = layout.slots(block)
        total = adder.zero(slots)
        for each in sent:
            adder.add(total, each.payloads[block], 1)
        words = np.frombuffer(adder.total(total), "<u8").reshape(-1, enc.ring.degree).tolist()
        values = dict[int, list[int]]()
        for index, (p, a) in enumerate(zip(primes, rlwe_kit.public_element(enc.ring, at, block))):
            row = [(c - x * s) % p for c, x, s in zip(words[index // 2], a, keys[p])]
            values[p] = _coefficients(row, p, slots)
        found += [_message(dict(zip(values, rests))) for rests in zip(*values.values())]
    half = enc.delta // 2
    return np.array([(v + half) // enc.delta % enc.base for v in found], np.int64)


def _coefficients(row: Sequence[int], p: int, count: int) -> list[int]:
    """The first ones of a transformed polynomial."""
    degree = len(row)
    inverse = pow(rlwe_kit.psi(degree, p), -1, p)
    points = [pow(inverse, e, p) for e in rlwe_kit.exponents(degree)]
    scale, terms, out = pow(degree, -1, p), list(row), []
    for _ in range(count):
        out.append(sum(terms) * scale % p)
        terms = [term * point % p for term, point in zip(terms, points)]
    return out


def _message(rests: Mapping[int, int]) -> int:
    """The number below the product of the primes that leaves these rests."""
    whole = 1
    for p in rests:
        whole *= p
    return sum(r * (whole // p) * pow(whole // p, -1, p) for p, r in rests.items()) % whole
