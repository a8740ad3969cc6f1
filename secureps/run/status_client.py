"""Reads a run's status and its published model, and sends an operator's acts."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import NotReady, SecurepsError, Unreachable, WrongVersion
from secureps.messages.acts import Act
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import (
    AskRun,
    AskStatus,
    GetBlock,
    Retire,
    Status,
    TakeOver,
    Welcome,
)
from secureps.messages.run import COORDINATOR, RunInfo, demand_address, split_addresses
from secureps.store.keyring import TlsFiles, find_observer, load_private, load_public
from secureps.store.kit_files import Passphrases
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN, Tls

if TYPE_CHECKING:
    from secureps.model.layout import GroupLayout

TIMEOUT = 10.0
"""Seconds to wait for an answer."""

Model = tuple[dict[str, int], dict[str, NDArray[Any]]]


class StatusClient:
    """Asks the coordinator as a party of the roster; `act`, `rest` and `take_over` change it.

    Args:
        name: the party whose identity is used; None: the observer of the kit.
        server: HOST:PORT of the coordinator, and after a comma its standby's.
        insecure: connect without TLS, on loopback.
    """

    def __init__(
        self,
        kit: Path,
        name: str | None,
        server: str,
        insecure: bool = False,
        passphrases: Passphrases | None = None,
    ) -> None:
        demand_address(server)
        self._places = len(split_addresses(server))
        public = load_public(kit)
        name = find_observer(kit, public.roster) if name is None else name
        passphrases = passphrases or Passphrases()
        identity = load_private(kit, name, passphrases)
        self._transport = GrpcTransport(
            PLAINTEXT if insecure else Tls(TlsFiles(kit, name, public.ca, passphrases=passphrases)),
            name,
            lambda request: identity.sign(REQUEST_DOMAIN, request),
            {COORDINATOR: server},
            TIMEOUT,
        )

    def status(self) -> Status:
        reply = self._ask(COORDINATOR, AskStatus())
        assert isinstance(reply, Status)
        return reply

    def run(self) -> RunInfo:
        """Asks the coordinator which run is founded; NotReady if none is yet."""
        return self._run().run

    def act(self, act: Act) -> None:
        """Sends an act, which the coordinator refuses unless its own key has signed it."""
        self._ask(COORDINATOR, act)

    def take_over(self) -> None:
        """Has the standby at this address take over; Refused if it lacks acknowledged records."""
        self._ask(COORDINATOR, TakeOver())

    def rest(self, client: str, reason: str) -> None:
        """Reports, in a client's own name, that it takes no part until it is restarted."""
        self._ask(COORDINATOR, Retire(client, reason, returns=True))

    def model(self) -> Model | None:
        """Pulls the model: its version by group, and all tensors by name except local ones.

        None before version 0.
        """
        try:
            welcome = self._run()
            status = self.status()
            versions = {group.name: group.version for group in status.groups}
            if min(versions.values()) < 0:
                return None
            for shard in status.shards:
                self._transport.locate(shard.name, shard.advertise)
            return versions, self._pull(welcome, versions)
        except (NotReady, WrongVersion, Unreachable):
            return None

    def close(self) -> None:
        self._transport.close()

    def _run(self) -> Welcome:
        """Gets the run again each time, because blocks may have moved to other shards."""
        reply = self._ask(COORDINATOR, AskRun())
        assert isinstance(reply, Welcome)
        self._transport.bind_run(reply.run.id)
        return reply

    def _pull(self, welcome: Welcome, versions: dict[str, int]) -> dict[str, NDArray[Any]]:
        from secureps.policy.plan import Plan  # a status alone does not need it

        layout = Plan.from_text(welcome.run.plan).layout(welcome.run.schema)

        def values(group: GroupLayout) -> list[NDArray[np.float32]]:
            asked = [
                self._transport.call(
                    owner, GetBlock(welcome.run.id, group.name, versions[group.name], block)
                )
                for block, owner in enumerate(welcome.placement.of(group.name).owners)
            ]
            return [_values(future) for future in asked]

        return layout.assemble(values)

    def _ask(self, to: str, message: Any) -> Any:
        """Asks one address after another, because only the ruling coordinator answers."""
        for _ in range(self._places - 1):
            with suppress(Unreachable):  # the next call goes to the next address
                return self._transport.call(to, message).result()
        return self._transport.call(to, message).result()


def _values(future: Future[Any]) -> NDArray[np.float32]:
    reply = future.result()
    if payload_digest(reply.payload) != reply.digest:
        raise SecurepsError("a shard served a block that does not have its digest: ask again")
    return np.frombuffer(reply.payload, dtype="<f4").astype(np.float32)
