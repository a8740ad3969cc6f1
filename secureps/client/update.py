"""A client's update, from the trained model to the integers that are sealed.

    trained - pulled + kept -> clip -> codec -> round to a grid -> noise

Each stage overwrites the vector of the stage before. Under error feedback the client keeps what
rounding and codec left out, before any noise, and adds it to its next update. What the clip cuts
off is lost.

The digest of all integers names the update. A name made from the seed would change when the seed is
lost, and would not change when new code makes other integers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import SECRET_BYTES, FitResult
from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid, MovingRange
from secureps.config.plan import PrioritySection
from secureps.crypto.sampling import Label, Stream
from secureps.errors import DamagedStore, Malformed, NotFinite
from secureps.messages.encoding import (
    DIGEST_BYTES,
    from_plain,
    payload_digest,
    payload_hasher,
    to_plain,
)
from secureps.model.layout import GroupLayout, cast
from secureps.policy.plan import Plan, scale_mover
from secureps.policy.rules.registry import declare
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.client_level import AdaptiveClip, ClientMechanism
from secureps.privacy.mechanism import PIECE, clip_in_place
from secureps.roles.member.tasks import Aim, Contribute, in_own_order, kept_key
from secureps.service.logs import tell
from secureps.store.checkpoint import read_metadata, read_state, write_state
from secureps.store.spool import Spool

Integers = NDArray[np.integer[Any]]

_Part = tuple[BlockCode, slice, slice]
"""A block: its code, the place of its values in the update, and the place of its integers."""


@dataclass(frozen=True)
class Update:
    """A clipped update of a group.

    Args:
        values: float32 (size,).
        norm: the L2 norm, without running statistics.
        uncut: the norm before the clip; None if the clip cuts nothing, or moves.
    """

    values: NDArray[np.float32]
    norm: float
    uncut: float | None = None


def difference(
    layout: GroupLayout, published: Sequence[NDArray[np.float32]], trained: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Returns trained - published of a group, float32 (size,); 0 for a scale.

    A published value is first cast to its tensor's dtype, as the trainer saw it. Raises WrongShape
    for a missing tensor, another shape or dtype, and NotFinite as `GroupLayout.flatten`.
    """
    made = layout.flatten(trained)
    starts = [0, *itertools.accumulate(block.size for block in published)]
    for spec, (_, part) in zip(layout.tensors, layout.parts(), strict=True):
        for k, first, last in overlaps(starts, part.start, part.stop):
            before = published[k][first - starts[k] : last - starts[k]]
            with np.errstate(over="ignore", invalid="ignore"):
                made[first:last] -= cast(before, spec).astype(np.float32, copy=False)
    if layout.scaled:
        made[-1] = 0
    return made


def overlaps(starts: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yields (k, begin, end): the part of [first, last) in each [starts[k], starts[k + 1])."""
    k = bisect_right(starts, first) - 1
    while first < last:
        end = min(last, starts[k + 1])
        if first < end:
            yield k, first, end
        first, k = end, k + 1


def keep(outbox: Spool, group: str, update: bytes, rest: NDArray[np.float32]) -> None:
    """Writes what an update left out to the outbox, durably, under the update's name.

    This happens before the journal has the name; the journal says later which of the files counts.
    `rest` is float32 (values of the group,).
    """
    values = rest.astype("<f4", copy=False).data.cast("B")
    outbox.put(kept_key(group, update), payload_digest(values), values)


def load_kept(party: str, outbox: Spool, aim: Aim, size: int) -> NDArray[np.float32] | None:
    """Reads what a group's last included update left out, float32 (size,); None if there is none.

    If the file is missing or damaged, the client logs that it has lost that part of its training.
    """
    if not aim.carried:
        return None
    try:
        data = memoryview(outbox.get(kept_key(aim.group, aim.carried)))
    except (KeyError, OSError):
        data = memoryview(b"")
    whole = len(data) == DIGEST_BYTES + 4 * size
    if whole and payload_digest(data[DIGEST_BYTES:]) == data[:DIGEST_BYTES]:
        return np.frombuffer(data, "<f4", offset=DIGEST_BYTES)
    text = f"what earlier updates of {aim.group} left out is missing from the state folder"
    tell(party, "FeedbackLost", f"{text}: this update continues without it")
    return None


EVENT = "UpdateCut"

FAR = 1000.0
"""If an update is this many times longer than the clip, the training is at fault."""


def clip_update(
    plan: Plan,
    layout: GroupLayout,
    values: NDArray[np.float32],
    scale: float | None,
    kinds: Mapping[str, Kind],
) -> Update:
    """Clips an update of a group to the plan's L2 norm, without running statistics; in place.

    Statistics are in the units of a layer's inputs, and in the same norm they would leave the
    weights nothing. No plan adds noise to them (`policy.tensor_kinds.refuse_statistics`), so no
    privacy depends on their length. Where sums are bounded they are clipped with the rest. Raises
    NotFinite if a value is not finite.
    """
    mover, clip = scale_mover(plan, layout.name, layout.sent), plan.group(layout.name).clip
    if isinstance(mover, AdaptiveClip) and scale is not None:
        return Update(mover.clip_with_indicator(values, scale), mover.norm)
    if not math.isfinite(largest_magnitude(values)):  # also in statistics, which no clip sees
        raise NotFinite("an update has a value that is not a finite float32")
    apart = {} if plan.bounds_sums(layout.name) else kinds
    parts = [part for name, part in layout.parts() if apart.get(name) == "statistics"]
    statistics = [values[part].copy() for part in parts]
    for part in parts:
        values[part] = 0
    norm = clip_in_place(values, clip)
    for part, each in zip(parts, statistics, strict=True):
        values[part] = each
    if isinstance(mover, MovingRange) and scale is not None:
        values /= np.float32(scale)
        values[-1] = mover.encode_length(min(norm, clip), scale)
    return Update(values, min(norm, clip), uncut=norm if norm > clip else None)


def declared_magnitude(plan: Plan, group: str, update: Update) -> int | None:
    """The norm that a receipt declares; None unless the rule asks for it."""
    section = plan.group(group)
    if not isinstance(section.rule, PrioritySection) or section.rule.score != "magnitude":
        return None
    return declare(update.norm, section.clip)


def tell_cuts(
    party: str, where: str, layout: GroupLayout, update: Update, share: float, most: float | None
) -> None:
    """Logs in one line what the clip, and then the range, cut off an update.

    The line names a clip and a range that would not. `most` is the range for `share` times the
    values; None where noise or a rotation changes the values before they are rounded.
    """
    said, in_plan = list[str](), "in the plan's [[group]] holds it"
    if update.uncut is not None:
        left = 100 * update.norm / update.uncut
        said.append(f"update norm {update.uncut:.3g}, clip {update.norm:.3g}: cut to {left:.2g} %")
    largest = share * largest_magnitude(update.values)
    if most is not None and largest > most:
        sizes = np.abs(update.values * np.float64(share))
        count = {name: int((sizes[part] > most).sum()) for name, part in layout.parts()}
        worst = max(count, key=lambda name: count[name])
        said.append(
            f"{sum(count.values()):,} of the update's {layout.size:,} values are beyond range "
            f"{most:.3g}: cut to it, {count[worst]:,} of them in {worst}; the largest is "
            f"{largest:.3g}: range = {_round_up(largest):g} {in_plan}"
        )
    if update.uncut is not None and update.uncut > FAR * update.norm:
        said.append("its inputs are not scaled, or its learning rate is too high")
    elif update.uncut is not None and most is not None:
        said.append(f"clip = {_round_up(update.uncut):g} {in_plan}")
    if said:
        tell(party, EVENT, where + "; ".join(said))


def _round_up(largest: float) -> float:
    """Rounds up to one digit, because the next update may be a little larger."""
    digit = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / digit) * digit:.0e}")


def largest_magnitude(values: NDArray[np.float32]) -> float:
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


# --- a training whose groups are sent in turn ------------------------------------------


def save_training(party: str, path: Path, run: bytes, task: Contribute, result: FitResult) -> None:
    """Keeps a training, durably, until each of its groups has had its turn.

    This happens before any of it is charged or sent. Otherwise a client that is killed would train
    again in the next turn, from newer models than other clients had in the first one.
    """
    if load_training(party, path, run) == (task := dataclasses.replace(task, aims=())):
        return  # it is kept already: the disk failed after that
    told = {
        "run": run.hex(),
        "task": json.dumps(to_plain(task)),
        "examples": str(int(result.examples)),
        "steps": str(int(result.steps)),
    }
    write_state(path, dict(result.parameters), told)


def load_training(party: str, path: Path, run: bytes) -> Contribute | None:
    """Reads the task of the kept training, without aims; None if there is none of this run."""
    try:
        told = read_metadata(path) if path.exists() else {}
        if told.get("run") != run.hex():
            return None
        return from_plain(Contribute, json.loads(told["task"]))
    except (DamagedStore, Malformed, KeyError, ValueError):
        text = "what was trained for the groups before is damaged in the state folder"
        tell(party, "TrainingLost", f"{text}: this group is trained for anew")
        return None


def load_trained(path: Path) -> FitResult:
    """Reads the result of the kept training, without frozen tensors."""
    tensors, told = read_state(path)
    return FitResult(tensors, int(told["examples"]), {}, int(told["steps"]))


# --- integers ------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateIntegers:
    """Makes the integers of one update; `stream` has the client's words for purpose and labels."""

    client: str
    plan: Plan
    layout: GroupLayout
    aim: Aim
    stream: Callable[..., Stream]

    def make(
        self, code_of: Callable[[int], BlockCode], update: Update, examples: int, share: float
    ) -> tuple[bytes, list[tuple[int, Integers]]]:
        """Returns the digest of all integers, and each block's number and integers.

        Blocks come in the client's own order. Under feedback what the integers leave out replaces
        the clipped values of `update`. Values are multiplied by `share` before they are rounded; it
        follows from `examples`, the public number that the client counts by, which the digest
        covers. NotFinite if a value is not finite.
        """
        layout, every = self.layout, range(self.layout.blocks)
        parts = (
            (code_of(block), slice(*layout.span(block)), slice(*layout.sent_span(block)))
            for block in every  # one by one, because codes may be large
        )
        mechanism = self.plan.mechanism(self.layout.name, self.layout.sent)
        where, rotates = self.plan.head(self.layout.name), self.plan.group(self.layout.name).rotates
        most = None if mechanism is not None or rotates else self._grid.range
        tell_cuts(self.client, where, self.layout, update, share, most)
        if mechanism is None:
            made = [self._round(part, update, share) for part in parts]
        else:
            made = self._round_and_noise(mechanism, [*parts], update)
        order = in_own_order(self.client, every)
        return _hash_integers(examples, made), [(block, made[block]) for block in order]

    @cached_property
    def _grid(self) -> Grid:
        return self.plan.grid(self.layout.name, self.layout.sent)

    @cached_property
    def _labels(self) -> tuple[Label, ...]:
        return self.client, self.layout.name, self.aim.version, self.aim.step

    def _round(self, part: _Part, update: Update, share: float) -> Integers:
        """Rounds a block piece by piece, into the smallest dtype that holds the grid.

        Under feedback what is left out replaces the block in the update.
        """
        code, place, span = part
        grid, section = self._grid, self.plan.group(self.layout.name)
        words = self.stream("round", *self._labels)  # one stream for all blocks
        values = update.values[place]
        encoded = code.encode(values) if section.codec else values
        whole = np.empty(code.sent, np.min_scalar_type(grid.levels))
        for first in range(0, code.sent, PIECE):
            last = min(first + PIECE, code.sent)
            drawn = words.at(span.start + first).words(last - first)
            whole[first:last] = grid.encode(encoded[first:last], drawn, share)
        if section.feedback:
            carried = whole.astype(np.int32) - grid.most
            self._leave_rest(update, part, carried, grid.step / share)
        return whole

    def _round_and_noise(
        self, mechanism: ClientMechanism, parts: Sequence[_Part], update: Update
    ) -> list[Integers]:
        """Rounds all blocks together, whose norm is bounded, and adds this client's noise.

        The noise is derived from the secret seed and the integers that it hides, so the same update
        gets the same noise, and different updates never do: else their difference would be bare.
        """
        words = self.stream("round", *self._labels).words
        section, encoded = self.plan.group(self.layout.name), update.values
        if section.codec:
            encoded = np.empty(self.layout.sent, np.float32)
            for code, place, span in parts:
                encoded[span] = code.encode(update.values[place])
            clip_in_place(encoded, mechanism.clip)  # rounding to float32 may make it longer
        z = mechanism.round_update(encoded, words)
        if section.feedback:
            for part in parts:
                self._leave_rest(update, part, z[part[2]], mechanism.calibration.step)
        digests = self._digests(z[span] for _, _, span in parts)
        noised = mechanism.add_noise(z, self.stream("noise", *self._labels, *digests).words)
        return [noised[span] for _, _, span in parts]

    def _digests(self, integers: Iterable[Integers]) -> Iterator[bytes]:
        for block, part in enumerate(integers):
            own = part.astype("<i8", copy=False).tobytes()
            words = self.stream("integers", self.client, self.layout.name, block, own)
            yield words.words(SECRET_BYTES // 4).astype("<u4", copy=False).tobytes()

    def _leave_rest(self, update: Update, part: _Part, integers: Integers, step: float) -> None:
        code, place, _ = part
        update.values[place] -= code.decode(integers * step)


def _hash_integers(examples: int, blocks: Iterable[Integers]) -> bytes:
    """Hashes the public number and all integers, int32 little-endian, by BLAKE3."""
    hasher = payload_hasher()
    hasher.update(examples.to_bytes(8, "little"))
    for block in blocks:
        for first in range(0, block.size, PIECE):
            piece = np.ascontiguousarray(block[first : first + PIECE], "<i4")
            hasher.update(piece.data.cast("B"))
    digest: bytes = hasher.digest()
    return digest
