"""Members that cheat under a committee, holders that lie, and what journals say of that."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secureps.client.update import Integers, UpdateIntegers
from secureps.client.worker import ClientWorker
from secureps.crypto.sharing import P, lagrange, parse_vector, vector_bytes
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.requests import OpenRefused
from secureps.messages.submission import Cohort, Receipt
from secureps.policy.cohorts.suspicion import may_both_open
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Done
from secureps.run.simulate.simulation import Simulation
from secureps.service.holder import CommitteeWorker
from tests.kits.federations import pinned_of


def journalled(simulation: Simulation, kind: type[Any], party: str = "coordinator") -> list[Any]:
    journal = simulation._stores[party].journal
    return [record for _, record in journal.replay() if isinstance(record, kind)]


def cohorts(simulation: Simulation, group: str = "") -> list[Cohort]:
    """All that were closed, of one group if it is named."""
    closed = (record.cohort for record in journalled(simulation, CohortClosed))
    return [cohort for cohort in closed if group in ("", cohort.group)]


def clients_of(cohort: Cohort) -> frozenset[str]:
    return frozenset(member.id.client for member in cohort.members)


def holders_allow_all(simulation: Simulation, minimum: int) -> None:
    """Whatever was closed may be opened beside all the rest, and no holder ever refused."""
    run = pinned_of(simulation).run.id
    for one, other in itertools.combinations(cohorts(simulation), 2):
        assert one.group != other.group or may_both_open(run, one, other, minimum)
    assert journalled(simulation, OpenRefused) == []


def until(simulation: Simulation, phase: Phase, version: int = 1) -> None:
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: (group.phase, group.version) == (phase, version))


def lies(simulation: Simulation, holder: str, lie: Callable[[Any], Any], times: int = 99) -> None:
    """What this holder answers is changed, so many times."""
    worker = simulation.parties[holder].worker
    assert isinstance(worker, CommitteeWorker)
    right, left = worker._derive, [times]

    def derive(task: Any) -> Any:
        done: Any = right(task)
        left[0] -= 1
        if left[0] < 0:
            return done
        share = vector_bytes(lie(parse_vector(done.made.share, len(done.made.share) // 4)))
        return Done(task, dataclasses.replace(done.made, share=share), done.telemetry)

    worker._derive = derive  # type: ignore[method-assign]


def small_error(share: Any) -> Any:
    """With the answers of holders 0, 1 and 2 the sum of keys is off by -1, 0 or 1."""
    factor = pow(lagrange((1, 2, 3), 0)[1], -1, P)
    error = np.random.default_rng(2).integers(-1, 2, share.size)
    return ((share.astype(np.int64) + error * factor % P) % P).astype(np.uint32)


def cheats(
    simulation: Simulation, client: str, change: Callable[[Receipt], dict[str, Any]], times: int = 1
) -> None:
    """What this member says of its key is changed before it signs, so many times."""
    worker = simulation.parties[client].worker
    assert isinstance(worker, ClientWorker)
    right, left = worker._sealer._share_key, [times]

    def shared(*given: Any) -> Receipt:
        receipt = right(*given)
        left[0] -= 1
        return receipt if left[0] < 0 else dataclasses.replace(receipt, **change(receipt))

    worker._sealer._share_key = shared  # type: ignore[method-assign, assignment]


def spoil_one(receipt: Receipt, holder: int = 2) -> dict[str, Any]:
    """This holder alone gets an envelope that does not open."""
    envelopes = list(receipt.envelopes)
    envelopes[holder] = envelopes[holder][:-1] + bytes([envelopes[holder][-1] ^ 1])
    return {"envelopes": tuple(envelopes)}


def spoil_all(receipt: Receipt) -> dict[str, Any]:
    """No holder gets an envelope that opens."""
    return {"envelopes": tuple(e[:-1] + bytes([e[-1] ^ 1]) for e in receipt.envelopes)}


def spoils(simulation: Simulation, client: str, times: int, group: str | None = None) -> None:
    """It shares another key than it seals with, so many times; of one group, or of all."""
    worker = simulation.parties[client].worker
    assert isinstance(worker, ClientWorker)
    sealer = worker._sealer
    right, left = sealer._share_key, [times]

    def shared(pinned: Any, receipt: Receipt, key: Any, sealed_for: Any) -> Receipt:
        if group in (None, receipt.id.group):
            left[0] -= 1
        if left[0] >= 0 and group in (None, receipt.id.group):
            key = type(key)(key.coefficients()[::-1].copy())
        return right(pinned, receipt, key, sealed_for)

    sealer._share_key = shared  # type: ignore[method-assign]


def poisons(
    patch: pytest.MonkeyPatch, client: str, change: Callable[[Integers, int], Integers]
) -> None:
    """Seals other integers u = z + Z in [0, 2Z] than its update's: `change` of them and of Z."""
    right = UpdateIntegers.make

    def make(self: UpdateIntegers, *given: Any) -> Any:
        name, blocks = right(self, *given)
        if self.client != client:
            return name, blocks
        most = self.plan.grid(self.layout.name, self.layout.sent).most
        return name, [(block, change(made, most).astype(made.dtype)) for block, made in blocks]

    patch.setattr(UpdateIntegers, "make", make)


def scale_up(made: Integers, most: int) -> Integers:
    """Multiplies an update by 1,000, as far as the grid allows."""
    return np.clip((made.astype(np.int64) - most) * 1000, -most, most) + most


def flip_and_scale_up(made: Integers, most: int) -> Integers:
    return 2 * most - scale_up(made, most)


def send_the_most(made: Integers, most: int) -> Integers:
    return np.full_like(made, 2 * most)
