"""What a client keeps of its updates, recomputed from what it trained and from the formula."""

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import FitConfig, FitResult
from secureps.messages.encoding import payload_digest
from secureps.messages.member_records import Sealed, SubmissionSettled
from secureps.messages.submission import Outcome, Receipt
from secureps.policy.block_deltas import block_code
from secureps.policy.plan import scale_mover
from secureps.privacy.mechanism import clip_l2
from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import Tensors, Walker
from tests.kits.privacy_kit import scales


class Recorded(Walker):
    """Remembers what it trained from, and what came of it."""

    def __init__(self, number: int, shape: tuple[int, ...] = (30, 7)) -> None:
        super().__init__(number, shape)
        self.trained: dict[int, tuple[Tensors, Tensors]] = {}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        before = {name: each.copy() for name, each in parameters.items()}
        result = super().fit(parameters, config)
        (version,) = config.versions.values()
        self.trained[version] = (before, result.parameters)
        return result


def outcomes(simulation: Simulation, client: str) -> list[tuple[Receipt, str]]:
    """The fates of a client's updates, in the order in which it heard of them."""
    records = [record for _, record in simulation._stores[client].journal.replay()]
    sealed = {each.receipt.id: each.receipt for each in records if isinstance(each, Sealed)}
    fates = (each for each in records if isinstance(each, SubmissionSettled))
    return [(sealed[each.id], each.outcome) for each in fates if sealed[each.id].update]


def recomputed(simulation: Simulation, client: str) -> tuple[Receipt, NDArray[np.float32]] | None:
    """The last update that was included, and what it left over: from the page's formula alone.

    None if the client has heard of none.
    """
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    plan, seed, clip = simulation.plan, simulation._cast.seed, simulation.plan.group("all").clip
    trainer = simulation._cast.trainers[client]
    assert isinstance(trainer, Recorded)
    layout = plan.layout(pinned.run.schema).group("all")
    grid, share = plan.grid("all", layout.sent), (10 + trainer._number) / 32
    mechanism, mover = plan.mechanism("all", layout.sent), scale_mover(plan, "all", layout.sent)
    told, scale = scales(simulation), np.float32(1)
    rest, last = np.zeros(layout.size, np.float32), None
    counted = set()
    for receipt, outcome in outcomes(simulation, client):
        # who was away when a version was made hears at once that it is durable
        if outcome not in (Outcome.INCLUDED, Outcome.DURABLE) or receipt.id in counted:
            continue
        counted.add(receipt.id)
        last, (before, after) = receipt, trainer.trained[receipt.version]
        start = layout.flatten(before)
        delta = layout.flatten(after) - start
        delta += rest
        rest, norm = clip_l2(delta, clip)
        if mover is not None:
            scale = start[-1] = np.float32(told[receipt.version])
            rest /= scale
            rest[-1] = (min(norm, clip) / float(scale) / 2 - 1) * grid.range
        words, noiseless = seed.derive("round", client, "all", receipt.version, 0), None
        blocks = range(layout.blocks)
        bases = [start[slice(*layout.span(k))].astype("<f4").tobytes() for k in blocks]
        codes = [
            block_code(plan, layout, k, receipt.version, payload_digest(bases[k])) for k in blocks
        ]
        if mechanism is not None:
            parts = [codes[k].encode(rest[slice(*layout.span(k))]) for k in blocks]
            encoded, _ = clip_l2(np.concatenate(parts).astype(np.float32), clip)
            noiseless = mechanism.round_update(encoded, words.words)
        for block in range(layout.blocks):
            here = slice(*layout.span(block))
            own = codes[block]
            if mechanism is not None:
                assert noiseless is not None
                sums = noiseless[slice(*layout.sent_span(block))]
                rest[here] -= own.decode(sums * mechanism.calibration.step)
                continue
            sent = grid.encode(own.encode(rest[here]) * share, words.words(own.sent))
            rest[here] -= own.decode((sent - grid.most) * (grid.step / share))
        if mover is not None:
            rest *= scale
            rest[-1] = 0
    return None if last is None else (last, rest)
