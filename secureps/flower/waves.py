"""Carries waves between a Grid and the relay: asks nodes that are due, and performs their replies.

Each node has one message under way at a time; the others do not wait for it. A node that does not
answer is asked again: its client sends what it has sealed once more, and nothing else.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid

from secureps.errors import Malformed, NotReady, SecurepsError, UnknownParty, WrongRun
from secureps.flower import post
from secureps.flower.aggregator import Aggregator
from secureps.flower.post import log
from secureps.messages.orders import Invite, Published
from secureps.messages.run import COORDINATOR, other_run
from secureps.policy.groups import together
from secureps.policy.plan import Plan
from secureps.wire.waves.batch import (
    CHALLENGE_BYTES,
    WAVE_DOMAIN,
    Batch,
    Entry,
    Kind,
    opened,
    sealed,
)
from secureps.wire.waves.transport import due, holder_due
from secureps.wording import named, printable

AGAIN = 60.0
"""The least seconds without a reply after which a node is asked again."""
SLOWER = 3.0
"""Or, if longer, this many times the seconds of the slowest reply."""
POLL = 0.01, 0.2
"""Seconds between two looks for replies, at least and at most: each is a request to the SuperLink.
Between these, a tenth of the time waited. A simulation always takes the least.
"""
LOOK = 2.0
QUIET = 30.0
"""Seconds without news after which the log says what the run waits for."""
TRIES = 3
"""Failures in succession after which a node is not asked in this round."""
NODE_UNAVAILABLE = 5
"""The SuperLink's code for a SuperNode that is away: in Flower's `ErrorCode`, not a public name."""
MOST_WORDS = 500
MOD = "has the ClientApp mods=[secureps_mod]?"
ROOM = 16 << 20
"""Bytes of a node's batch beside its blocks."""


@dataclass(eq=False)
class _Node:
    """One node of the grid; `name` is empty before it has signed anything."""

    id: int
    name: str = ""
    asked: dict[str, bytes] = field(default_factory=dict)
    """Challenges of messages that it may still answer, by the message's id."""
    waiting: bool = False
    since: float = 0.0
    standing: tuple[Entry, ...] = ()
    """The requests that its next process will make first, as it last said."""
    heard: bool = False
    failures: int = 0
    failure: str = ""
    resting: float = 0.0
    ended: str = ""
    foreign: str = ""
    """Its app's last answer, if that was not from secureps."""

    def __str__(self) -> str:
        return f"node {self.id}" + (f" ({self.name})" if self.name else "")


class Waves:
    """The waves of one run, which ends after `timeout` seconds without any reply or version."""

    def __init__(
        self,
        grid: Grid,
        servers: Aggregator,
        said: Mapping[str, str | int],
        timeout: float,
    ) -> None:
        self._grid, self._servers, self._said, self._timeout = grid, servers, said, timeout
        self._longest_pause = POLL[0] if servers.simulated else POLL[1]
        self._nodes: dict[int, _Node] = {}
        self._here = frozenset[int]()
        self._looked = self._beaten = -LOOK
        self._news = time.monotonic()
        self._longest = 0.0
        self._arrays: dict[bytes, Array] = {}
        self._told = set[tuple[str, int]]()
        self.sent = 0
        """Messages so far."""

    def until(self, over: Callable[[], bool], records: RecordDict, kind: str) -> None:
        """Carries waves until `over()`, asked when a version is published, and now and then.

        Messages are of a `kind`, and take the app's own `records` along. Raises NotReady if nothing
        has come for too long, or no node's app has the mod; else whatever ended the servers.
        """
        for node in self._nodes.values():
            node.failures, node.resting = 0, 0.0
        self._news = time.monotonic()
        least, most = POLL
        asked = pulled = -most
        told = 0
        while True:
            self._servers.news.clear()
            if self._published() or time.monotonic() - asked >= most:
                if over():
                    return
                asked = time.monotonic()
            self._look()
            self._push(records, kind, over)
            waited = time.monotonic() - max((n.since for n in self._nodes.values()), default=0.0)
            pause = min(self._longest_pause, max(least, waited / 10))
            if (left := pulled + pause - time.monotonic()) > 0:
                self._servers.news.wait(left)
                continue
            pulled = time.monotonic()
            if self._pull():
                self._news, told = time.monotonic(), 0
                continue
            self._refuse_failing()
            quiet = time.monotonic() - self._news
            if quiet > self._timeout:
                raise NotReady(f"nothing has come for {self._timeout:g} s: {self._waited_for()}")
            if quiet > QUIET * (1 + told):
                told += 1
                log.info("secureps waits: %s", self._waited_for())

    def _published(self) -> bool:
        names = [node.name for node in self._nodes.values() if node.name]
        orders = (order for name in names for order in self._servers.relay.orders(name))
        told = {(each.group, each.version) for each in orders if isinstance(each, Published)}
        new, self._told = not told <= self._told, told
        return new

    # --- nodes --------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            before, self._here = self._here, frozenset(self._grid.get_node_ids())
            for id in self._here - before:
                node = self._nodes.setdefault(id, _Node(id))
                if node.waiting:  # it was away, and its message is lost
                    self._tell_again(node)
        if now - self._beaten >= min(LOOK, self._servers.plan.section.lease / 3):
            self._beaten = now
            for node in self._nodes.values():
                if node.name in self._clients and node.id in self._here and not node.ended:
                    self._servers.relay.beat(node.name)

    def _push(self, records: RecordDict, kind: str, over: Callable[[], bool]) -> None:
        versions = functools.cache(self._versions)
        wanted = [node for node in self._nodes.values() if self._due(node, versions)]
        if not wanted:
            return
        self._servers.settled()  # so that orders to all of them go with one wave
        messages = [(node, *self._message(node, records, kind)) for node in wanted]
        if over():  # their orders may be of the next round, which has other records
            for node in wanted:
                self._tell_again(node)
            return
        ids = list(self._grid.push_messages([message for _, message, _ in messages]))
        if len(ids) != len(messages):
            raise NotReady("the SuperLink did not take all messages of a wave; see its log")
        for (node, _, challenge), id in zip(messages, ids):
            if not id:
                self._failed(node, "the SuperLink did not take its message")
                continue
            node.asked[id] = challenge
            node.waiting, node.since = True, time.monotonic()
            self.sent += 1

    def _versions(self) -> dict[str, int]:
        return {group.name: group.version for group in self._servers.status().groups}

    def _due(self, node: _Node, versions: Callable[[], Mapping[str, int]]) -> bool:
        now = time.monotonic()
        if node.id not in self._here or node.ended or node.failures >= TRIES:
            return False
        if node.waiting:
            longest = max(AGAIN, SLOWER * self._longest) * 2 ** (len(node.asked) - 1)
            if now - node.since < longest:
                return False
            log.warning("%s has not answered for %.0f s: it is asked again", node, now - node.since)
            self._tell_again(node)
            return True
        if now < node.resting:
            return False
        if not node.name:
            return True
        relay = self._servers.relay
        if relay.refused(node.name):
            return True
        if not relay.answered(node.name):
            return False
        orders = relay.orders(node.name)
        if node.name in self._holders:
            return holder_due(orders, not node.heard)
        plan = self._servers.plan
        if len(plan.groups) > 1 and due(orders):
            orders = tuple(each for each in orders if not is_early(plan, each, versions()))
        return due(orders)

    def _message(self, node: _Node, records: RecordDict, kind: str) -> tuple[Message, bytes]:
        challenge = os.urandom(CHALLENGE_BYTES)
        entries, payloads = tuple[Entry, ...](), dict[bytes, bytes]()
        if node.name:
            orders = self._servers.relay.orders(node.name)
            ahead, blocks = self._servers.foreseen(orders)
            own, answers = self._servers.relay.goes(node.name)
            entries, payloads = (*ahead, *own), {**blocks, **answers}
            node.heard = node.heard or bool(orders)
        batch = Batch(COORDINATOR, node.name, self._servers.run, challenge, entries)
        parcel = post.Parcel(self._said, sealed(batch, self._servers.sign_wave), payloads)
        self._arrays = {k: v for k, v in self._arrays.items() if k in payloads}
        content = RecordDict({**records, **post.packed(parcel, self._arrays)})
        ttl = self._timeout
        return Message(content, node.id, kind, ttl=ttl), challenge

    # --- replies ------------------------------------------------------------------

    def _pull(self) -> bool:
        asked = {id: node for node in self._nodes.values() for id in node.asked}
        if not asked:
            return False
        came = False
        for reply in self._grid.pull_messages(list(asked)):
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            newest = next(reversed(node.asked), "")
            challenge = node.asked.pop(reply.metadata.reply_to_message_id, None)
            if challenge is None:
                continue  # it was delivered twice
            # Nobody waits for an earlier message that was lost, and a late reply to it does not end
            # the wait for the newest.
            is_newest = reply.metadata.reply_to_message_id == newest
            if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
                if is_newest:
                    self._lost(node, _words(reply.error.reason))
                continue
            if is_newest:
                node.waiting = False
            came = True
            self._longest = max(self._longest, time.monotonic() - node.since)
            try:
                self._take(node, reply, challenge)
                node.failures = 0
            except SecurepsError as error:
                self._failed(node, str(error))
        return came

    def _take(self, node: _Node, reply: Message, challenge: bytes) -> None:
        """Performs one reply; NotReady if the app failed, else SecurepsError if it is no node's."""
        if reply.has_error():
            node.foreign = _words(reply.error.reason)
            hint = "" if node.name else f"; {MOD}"
            raise NotReady(f"{node.foreign}{hint}")
        if not post.marked(reply.content):
            node.foreign = "it answered in the clear"
            raise Malformed(f"answered without secureps; {MOD}")
        node.foreign = ""
        most = ROOM + 2 * self._servers.update_bytes
        parcel = post.unpacked(reply.content, most)
        if error := parcel.said.get("error"):
            raise NotReady(_words(error))
        batch = opened(parcel.batch, most, self._verify)
        if batch.challenge != challenge:
            raise Malformed("answered another wave than it was asked in")
        if batch.run and (ours := self._servers.run) and batch.run != ours:
            raise WrongRun(other_run(batch.sender, batch.run, ours))
        if batch.sender not in self._clients | self._holders:
            raise UnknownParty(f"{batch.sender} takes no part by this run's roster; {MOD}")
        if node.name not in ("", batch.sender):
            raise Malformed(f"is {node.name}, and answered as {batch.sender}")
        others = [o.id for o in self._nodes.values() if o.name == batch.sender and o is not node]
        if [id for id in others if id in self._here]:
            raise Malformed(f"answers as {batch.sender}, as another node does: a kit is for one")
        for id in others:  # its SuperNode came back as another node
            del self._nodes[id]
        node.name = batch.sender
        node.standing = tuple(e for e in batch.entries if e.kind in (Kind.FIRST, Kind.WATCH))
        self._servers.relay.came(node.name, batch.entries)
        if ended := parcel.said.get("ended"):
            node.ended = _words(ended)
            log.warning("%s takes part no more: %s", node.name, node.ended)

    @property
    def _clients(self) -> frozenset[str]:
        return self._servers.roster.names("client")

    @property
    def _holders(self) -> frozenset[str]:
        """Key holders that nodes relay to; none where they dial the coordinator."""
        return frozenset() if self._servers.address else self._servers.roster.names("holder")

    def _verify(self, party: str, data: bytes, signature: bytes) -> None:
        self._servers.roster.identity(party).verify(WAVE_DOMAIN, data, signature)

    def _failed(self, node: _Node, text: str) -> None:
        node.failures, node.failure = node.failures + 1, text
        self._lost(node, text, min(LOOK, 0.5 * node.failures))

    def _lost(self, node: _Node, text: str, rest: float = LOOK) -> None:
        """Repeats a wave a little later, without counting it as a failure of its app."""
        node.resting = time.monotonic() + rest
        log.warning("%s: %s", node, text)
        self._tell_again(node)

    def _tell_again(self, node: _Node) -> None:
        """Has the next wave repeat the last one's orders, which the client may not have heard."""
        node.waiting = node.heard = False
        if node.name and node.standing:
            self._servers.relay.came(node.name, node.standing)

    def _refuse_failing(self) -> None:
        """Raises NotReady if every node that is here failed too often: all run one app."""
        here = [self._nodes[id] for id in self._here if self._nodes[id].name not in self._holders]
        if not here or any(node.failures < TRIES for node in here):
            return
        if all(node.foreign and not node.name for node in here):
            raise NotReady(
                f"no node answers as secureps does, each asked {TRIES} times: {here[0].foreign}; "
                f"{MOD}"
            )
        raise NotReady(
            f"the app fails at every node that is there, each asked {TRIES} times: {here[0]}: "
            f"{here[0].failure}"
        )

    def _waited_for(self) -> str:
        status = self._servers.status()
        why = "; ".join(f"{group.name}: {group.reason}" for group in status.groups)
        silent = [node.name or str(node.id) for node in self._nodes.values() if node.waiting]
        whom = f"; no answer from {named(sorted(silent), 5)}" if silent else ""
        nodes = f"{len(self._here)} nodes are there"
        return f"{why}{whom}; {nodes}"


def is_early(plan: Plan, order: object, versions: Mapping[str, int]) -> bool:
    """Whether an invitation comes a moment before another one that its client must wait for.

    Groups of one rule are trained for together, and are committed one after another (`versions`).
    """
    return isinstance(order, Invite) and any(
        versions[group] < min(order.version, plan.versions(group))
        for group in together(plan, order.group)
    )


def _words(text: object) -> str:
    line = printable(str(text))
    if len(line) > MOST_WORDS:  # a traceback says at its end what went wrong
        return f"{line[:100]} ... {line[105 - MOST_WORDS :]}"
    return line
