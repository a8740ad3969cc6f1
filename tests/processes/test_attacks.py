"""Secrecy: a malicious aggregator before real key holders gets nothing beyond its sums."""

import dataclasses
import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.crypto.ring import choose
from secureps.crypto.rlwe import RlweAdder
from secureps.crypto.roster import Roster
from secureps.crypto.secret import Secret
from secureps.crypto.sharing import P, vector_bytes
from secureps.crypto.suite import key_length
from secureps.errors import Malformed, NotReady, Refused
from secureps.messages import orders, requests
from secureps.messages.requests import (
    GetBlock,
    KeyShare,
    Noted,
    OpenRefused,
    Prepared,
    PutBlock,
    Subscribe,
)
from secureps.messages.submission import BlockHeader, Held, SubmissionId, signing_bytes
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


Ints = NDArray[np.int64]
SOME_OTHER_KEY = r"none of|does not open"


@pytest.fixture(scope="module")
def two_of_three() -> Iterator[RogueRun]:
    with TemporaryDirectory() as folder, RogueRun(Path(folder), 3, 2) as run:
        yield run


@pytest.fixture(scope="module")
def three_of_four() -> Iterator[RogueRun]:
    with TemporaryDirectory() as folder, RogueRun(Path(folder), 4, 3) as run:
        yield run


@pytest.fixture
def run(request: pytest.FixtureRequest) -> RogueRun:
    found: RogueRun = request.getfixturevalue(request.param)
    return found


both = pytest.mark.parametrize("run", ["two_of_three", "three_of_four"], indirect=True)


def length_of(run: RogueRun) -> int:
    return key_length(run.site.plan.cipher_parameters)


def threshold(run: RogueRun) -> int:
    return run.site.committee.threshold


def sum_of(sent: tuple[Sent, ...]) -> Ints:
    total: Ints = np.sum([each.values for each in sent], axis=0)
    return total


def opens(run: RogueRun, sent: tuple[Sent, ...], key: Ints) -> None:
    """The key opens exactly the sum of these, by the shards' code and by the definition."""
    assert (run.site.opened(sent, [1] * len(sent), key) == sum_of(sent)).all()
    assert (read(run.site, sent, key) == sum_of(sent)).all()


def opens_nothing(run: RogueRun, sent: tuple[Sent, ...], key: Ints) -> None:
    """The residual gives the key away; who looks all the same sees other values."""
    with pytest.raises((Malformed, Refused), match=SOME_OTHER_KEY):
        run.site.opened(sent, [1] * len(sent), key)
    assert (read(run.site, sent, key) == sum_of(sent)).mean() < 0.1, "a chance in 2^20 each"


def completed(
    run: RogueRun, order: orders.Open, shares: dict[str, bytes], last: str, key: Ints
) -> bytes:
    length = length_of(run)
    at = [np.full(length, value, np.uint32) for value in (0, 1)]
    zero, one = (run.site.key(order, {**shares, last: vector_bytes(each)}) for each in at)
    slope = pow(int(one[0] - zero[0]), -1, P)
    return vector_bytes(((key - zero) % P * slope % P).astype(np.uint32))


@both
def test_answers_of_all_but_one_of_t_holders_open_nothing(run: RogueRun) -> None:
    """Whatever is put in the place of the last answer; and with it, the same code opens all."""
    other, sent = run.fresh(), run.fresh()  # a holder takes none from before one that it opened
    order, elsewhere = run.opening(sent), run.opening(other)
    asked, last = run.names[: threshold(run) - 1], run.names[threshold(run) - 1]
    shares = {name: run.share(name, order) for name in asked}
    rng = np.random.default_rng(0)
    wished = [np.zeros(length_of(run), np.int64), rng.integers(-41, 42, length_of(run))]
    wishes = [completed(run, order, shares, last, key) for key in wished]
    for key, wish in zip(wished, wishes):
        found = run.site.key(order, {**shares, last: wish})
        assert (found == key).all(), "what they answered speaks against no key at all"
    guesses = {
        "nothing": bytes(4 * length_of(run)),
        "uniform": vector_bytes(rng.integers(0, P, length_of(run)).astype(np.uint32)),
        "the answer of another": shares[asked[0]],
        "its own answer for another cohort": run.share(last, elsewhere),
        "so that the sum of keys is zero": wishes[0],
        "so that it is small": wishes[1],
    }
    for guess in guesses.values():
        key = run.site.key(order, {**shares, last: guess})
        opens_nothing(run, sent, key)
        opens_nothing(run, sent[:1], key)
    key = run.site.key(order, {**shares, last: run.share(last, order)})
    opens(run, sent, key)
    opens_nothing(run, sent[:1], key)
    opens_nothing(run, sent[1:], key)


@dataclass
class Loot:
    """What two cohorts gave that differ in the first member; who refused which, and why."""

    sent: tuple[Sent, ...]
    cohorts: tuple[orders.Open, orders.Open]
    shares: tuple[dict[str, bytes], dict[str, bytes]] = field(default_factory=lambda: ({}, {}))
    refused: dict[str, str] = field(default_factory=dict)


def differencing(run: RogueRun, first: tuple[int, ...], corrupt: tuple[int, ...]) -> Loot:
    """Both cohorts are asked of everybody.

    Args:
        first: honest holders that are asked for the larger cohort first, the others for the other.
    """
    sent = run.fresh()
    loot = Loot(sent, (run.opening(sent), run.opening(sent[1:])))
    for index, name in enumerate(run.names):
        for which in (0, 1) if index in first else (1, 0):
            order = loot.cohorts[which]
            if index in corrupt:
                loot.shares[which][name] = run.corrupt(index).share(order)
                continue
            (said,) = run.ask(name, order)
            if isinstance(said, requests.KeyShare):
                loot.shares[which][name] = said.share
            else:
                loot.refused[name] = said.reason
    return loot


def taken(run: RogueRun, loot: Loot) -> Ints:
    """The difference of two sums of keys; what holders did not answer is made up."""
    rng, keys = np.random.default_rng(1), []
    for order, shares in zip(loot.cohorts, loot.shares):
        made_up = {
            name: vector_bytes(rng.integers(0, P, length_of(run)).astype(np.uint32))
            for name in run.names
            if name not in shares
        }
        answers = [*shares.items(), *made_up.items()][: threshold(run)]
        keys.append(run.site.key(order, dict(answers)))
    return keys[0] - keys[1]


def ways(run: RogueRun, corrupt: tuple[int, ...]) -> list[tuple[int, ...]]:
    honest = [k for k in range(len(run.names)) if k not in corrupt]
    sizes = range(len(honest) + 1)
    return [each for size in sizes for each in itertools.combinations(honest, size)]


def enough(run: RogueRun, loot: Loot) -> bool:
    return all(len(shares) >= threshold(run) for shares in loot.shares)


@pytest.mark.parametrize(
    ("run", "corrupt"), [("two_of_three", ()), ("three_of_four", (1,))], indirect=["run"]
)
def test_two_cohorts_that_differ_in_one_member_never_both_open(
    run: RogueRun, corrupt: tuple[int, ...]
) -> None:
    """Whichever way the holders are asked, each honest one answers for the first and no other."""
    for first in ways(run, corrupt):
        loot = differencing(run, first, corrupt)
        assert not enough(run, loot)
        sequence = loot.sent[1].receipt.id.sequence
        reasons = {
            name: f"client-01/all/{sequence} is bound to cohort "
            f"{loot.cohorts[0 if index in first else 1].cohort.number} for ever"
            for index, name in enumerate(run.names)
            if index not in corrupt
        }
        assert loot.refused == reasons
        opens_nothing(run, loot.sent[:1], taken(run, loot))


@both
def test_a_cohort_that_a_holder_could_not_answer_for_counts_as_opened(run: RogueRun) -> None:
    """It is asked for W, with a client that colludes and sealed nonsense for it; W is said to be
    burnt, all seal again, and W comes once more without one client."""
    sent, name = run.fresh(), run.names[0]
    *honest, last = sent
    envelopes = (bytes(len(last.receipt.envelopes[0])), *last.receipt.envelopes[1:])
    flawed = signed(run, last, last.receipt.id.client, envelopes=envelopes)
    assert "envelope" in run.refusal(name, run.opening((*honest, flawed)))
    for restarted in (False, True):
        if restarted:
            run.restart(name)
        again = run.again(sent)
        reason = run.refusal(name, run.opening(again[1:]))
        assert "which was opened with its update from the same version" in reason


def test_two_coordinators_that_split_the_holders_open_one_cohort_at_most(tmp_path: Path) -> None:
    """A second one takes over some of them, with a later incarnation, and seals W without one."""
    with RogueRun(tmp_path, 4, 3) as run:
        sent, (one, *others) = run.fresh(), run.names
        whole, rest = run.opening(sent), run.opening(run.again(sent)[1:], incarnation=2)
        run.share(one, whole)
        answers = [run.share(name, rest) for name in others]
        assert len(answers) == threshold(run), "the second one opens its cohort"
        reason = run.refusal(one, rest)
        assert "which was opened with its update from the same version" in reason
        later = dataclasses.replace(whole, incarnation=2)
        for name in others:
            assert "is over for ever" in run.refusal(name, later), "and nobody the first"


def test_a_holder_that_is_replaced_in_between_does_not_open_a_second_cohort(tmp_path: Path) -> None:
    """It has no record of W. All but one of its members seal once more, for its committee, as
    clients whose state was taken back may: those that stay remember what W was opened from."""
    with RogueRun(tmp_path, 4, 3) as run:
        sent, before = run.fresh(), run.site
        whole = run.opening(sent)
        lost, new, *stay = "holder-3", "holder-9", "holder-0", "holder-1"
        key = before.key(whole, {name: run.share(name, whole) for name in (lost, *stay)})
        opens(run, sent, key)
        run.replace(lost, new)
        bare = before.opening(sent[1:], number=100)
        digest = run.site.kit.public.roster.committee
        moved = dataclasses.replace(bare, cohort=dataclasses.replace(bare.cohort, committee=digest))
        for name in run.names:
            assert "sealed for different key holders" in run.refusal(name, moved)
        assert f"{new} is none of these key holders" in run.refusal(new, bare)
        part = run.opening(run.again(sent)[1:])
        shares = {name: run.share(name, part) for name in ("holder-2", new)}
        for restarted in (False, True):
            for name in stay:
                if restarted:
                    run.restart(name)
                assert run.refusal(name, part) == (
                    "an earlier committee of key holders was asked to open versions 0 to 0 of all: "
                    "this one opens none of them"
                )
        made_up = np.random.default_rng(1).integers(0, P, length_of(run)).astype(np.uint32)
        rest = run.site.key(part, {**shares, stay[0]: vector_bytes(made_up)})
        opens_nothing(run, sent[:1], key - rest)
        later = run.fresh()
        order = run.opening(later)
        opens(run, later, run.site.key(order, {n: run.share(n, order) for n in (new, *stay)}))


def signed(by: RogueRun, each: Sent, author: str, **changes: object) -> Sent:
    """The same submission with its receipt changed, under somebody's signature."""
    receipt = dataclasses.replace(each.receipt, **changes)  # type: ignore[arg-type]
    signature = by.identities[author].sign(*signing_bytes(receipt))
    return dataclasses.replace(each, receipt=dataclasses.replace(receipt, signature=signature))


def test_a_shard_opens_no_cohort_that_is_smaller_than_the_plans(tmp_path: Path) -> None:
    """In the clear: the coordinator alone would read one client's update out of the model. The same
    orders for a large enough cohort are carried out."""
    with RogueShard(tmp_path) as run:
        sent = [run.send(client) for client in run.clients[: MINIMUM + 1]]
        pull = GetBlock(run.site.run.id, "all", 1, 0)
        hold, prepare = run.orders(sent, 2)
        for number, few in enumerate((sent[:1], sent[: MINIMUM - 1])):
            for order in run.orders(few, number):
                run.rogue.tell(SHARD, order)
        run.rogue.tell(SHARD, hold)
        held = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(held), held.cohort) == (Held, 2), "and nothing was said of the others"
        for clients in (1, MINIMUM - 1):
            for kind in ("Hold", "Prepare"):
                said = f"{kind}: a cohort of {clients} clients, and {MINIMUM} or more are opened"
                assert said in run.processes.log(SHARD)
        with pytest.raises(NotReady, match="version 1 of all is not made yet"):
            run.ask(run.clients[0], pull)
        run.rogue.tell(SHARD, prepare)
        made = run.rogue.hear(SHARD, Held, Prepared)
        assert (type(made), made.version) == (Prepared, 1)
        assert run.ask(run.clients[0], pull).payload
