"""A client's update, from the trained model to where it becomes integers.

    trained - pulled + kept -> clip -> codec and grid (`client.integers`)

It is made part by part: no copy of it need be in memory. Under error feedback the client keeps what
the integers did not carry, and adds it to its next update. That is taken before any noise, so that
no noise is taken back later; what the clip cuts off is gone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.codec.moving_range import MovingRange
from secureps.config.plan import PrioritySection
from secureps.crypto.sampling import Stream
from secureps.errors import NotFinite
from secureps.messages.encoding import DIGEST_BYTES, payload_digest, payload_hasher
from secureps.model.difference import Part
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.rules.priority import declared
from secureps.policy.scales import moved
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.adaptive import AdaptiveClip
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import PIECE, clip_factor, shrink
from secureps.roles.member.tasks import Aim, kept_key
from secureps.service.logs import tell
from secureps.store.spool import Spool

Integers = NDArray[np.integer[Any]]
Made = TypeVar("Made")

Words = tuple[Stream, int]
"""A stream, and from which of its words on."""


class DeviceSteps(Protocol):
    """An update in whole grid steps on a device."""

    def block(self, block: int) -> NDArray[np.int32]:
        """z of a block, before any noise."""
        ...

    def noised(self, hidden: Stream) -> list[Integers]:
        """u of all blocks, with this client's noise; `hidden` has its words."""
        ...


class DeviceValues(Protocol):
    """The values of an update in a device's memory; `client.device_update` has them."""

    def attempt(self, action: Callable[[], Made]) -> Made | None:
        """What an action on the device makes; None where its memory does not suffice.

        From then on the values are on the host, and every attempt is None.
        """
        ...

    def rounded(
        self, code: BlockCode, place: tuple[int, int], grid: Grid, share: float, words_at: Words
    ) -> Integers:
        """The integers of a block whose values lie at a place.

        Raises:
            NotFinite: a value is not finite.
        """
        ...

    def steps(
        self,
        mechanism: ClientMechanism,
        blocks: Sequence[tuple[BlockCode, tuple[int, int]]],
        coded: bool,
        stream: Stream,
    ) -> DeviceSteps:
        """All values in whole grid steps; `coded`: they may have become longer than the clip."""
        ...

    def subtract(
        self, code: BlockCode, place: tuple[int, int], integers: Integers, step: float
    ) -> bool:
        """Takes away what integers, times a step, decode to."""
        ...

    def beyond(self, part: slice, share: float, most: float) -> int:
        """How many values of a part are beyond `most`, times `share`."""
        ...


@dataclass(frozen=True)
class Update:
    """A clipped update of a group.

    Args:
        size: how many values it has.
        digest: 32 bytes; updates with the same are the same, if plan and base version are.
        largest: no value is further from zero.
        norm: L2, without running statistics.
        part: makes values [first, last): float32, from any thread.
        device: where the values lie in a device's memory, and are made integers; else None.
        uncut: L2 before the clip, without running statistics; None where the clip cuts nothing, or
            moves and so is no advice.
    """

    size: int
    digest: bytes
    largest: float
    norm: float
    part: Part
    device: DeviceValues | None = None
    uncut: float | None = None

    @classmethod
    def of(cls, values: NDArray[np.float32], norm: float) -> Update:
        """An update that is in memory, float32 (size,): its parts are views."""
        digest = payload_digest(values.astype("<f4", copy=False).data.cast("B"))
        return cls(values.size, digest, furthest(values), norm, _slices(values))

    def whole(self) -> NDArray[np.float32]:
        """All values, float32 (size,)."""
        made = np.empty(self.size, np.float32)
        for start in range(0, self.size, PIECE):
            stop = min(start + PIECE, self.size)
            made[start:stop] = self.part(start, stop)
        return made

    def held(self) -> Update:
        """The same update in memory: its parts are views, and may be changed."""
        return dataclasses.replace(self, part=_slices(self.whole()))

    def beyond(self, part: slice, share: float, most: float) -> int:
        """How many values of a part are beyond `most`, times `share` in float64."""
        if self.device is not None:
            found = self.device.attempt(partial(self.device.beyond, part, share, most))
            if found is not None:
                return found
        return sum(
            int((np.abs(values.astype(np.float64) * share) > most).sum())
            for values in pieces(self.part, part.start, part.stop)
        )


@dataclass(frozen=True)
class Trained:
    """A trained model of a group, of which an update is made.

    Args:
        party: the client, which is told.
        published: the group's blocks that were pulled, in order; model: trained tensors by name.
        kept: what the last update did not carry, float32 (size,).
        scale, kinds: as `clip_update` takes them.
    """

    party: str
    plan: Plan
    layout: GroupLayout
    published: Sequence[NDArray[np.float32]]
    model: Mapping[str, Any]
    kept: NDArray[np.float32] | None = None
    scale: float | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)


def keep(
    outbox: Spool, group: str, update: bytes, rest: NDArray[np.float32], scale: float | None = None
) -> None:
    """Keeps what an update did not carry, durably, under the name of the update.

    It lies in the outbox before the record that has the name is written: which of them counts
    follows from the journal (`roles.member.outbox`).

    Args:
        rest: float32 (values of the group,), which may change.
        scale: in units of which it is, where the group has one; its place is the last value.
    """
    if scale is not None:  # that of the next update will be another
        rest *= np.float32(scale)
        rest[-1] = 0
    values = rest.astype("<f4", copy=False).data.cast("B")
    outbox.put(kept_key(group, update), payload_digest(values), values)


def load_kept(party: str, outbox: Spool, aim: Aim, size: int) -> NDArray[np.float32] | None:
    """Reads what a group's last included update left out, float32 (size,); None if nothing is kept.

    If the file is missing or damaged, the client logs it and goes on with None: it loses that part
    of its training and nothing else.

    Args:
        size: values of the group.
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
    text = f"what earlier updates of {aim.group} did not carry is gone from the state folder"
    tell(party, "FeedbackLost", f"{text}: this one goes on without it")
    return None


def add_kept(delta: Part, kept: NDArray[np.float32] | None) -> Part:
    """Adds what was kept to a group's difference."""
    if kept is None:
        return delta
    return lambda first, last: delta(first, last) + kept[first:last]


EVENT = "UpdateCut"

FAR = 1000.0
"""An update so many times as long as the clip is a fault of the training, not of the plan."""


def clip_update(
    plan: Plan,
    layout: GroupLayout,
    delta: Part,
    scale: float | None,
    kinds: Mapping[str, Kind],
) -> Update:
    """Clips an update of a group to its L2 norm; running statistics are left as they are.

    Statistics are in the units of a layer's inputs, not of gradient steps: counted in the same norm
    as the weights, they would shrink the weights' part to nothing. No plan adds noise to
    them (`policy.tensor_kinds.refuse_statistics`), so no privacy depends on their length.

    Args:
        delta: makes the values of the group.
        scale: of the group, None where it has none.

    Raises:
        NotFinite: a value is not finite.
    """
    mover, clip = moved(plan, layout.name, layout.sent), plan.group(layout.name).clip
    if isinstance(mover, AdaptiveClip) and scale is not None:
        joint = mover.clipped(delta(0, layout.size), scale)
        return Update.of(joint, mover.norm)
    statistics = [part for name, part in layout.parts() if kinds.get(name) == "statistics"]
    hasher, largest = payload_hasher(), 0.0

    def counted() -> Iterator[NDArray[np.float32]]:
        """Yields the values without statistics; hashes and measures all of them."""
        nonlocal largest, hasher
        hasher, largest = payload_hasher(), 0.0
        for start in range(0, layout.size, PIECE):
            values = delta(start, min(start + PIECE, layout.size))
            hasher.update(values.astype("<f4", copy=False).data.cast("B"))
            largest = max(largest, furthest(values))
            if statistics and not np.isfinite(values).all():
                raise NotFinite("an update has a value that is not a finite float32")
            for part in within(statistics, start, start + values.size):
                values[part] = 0
            yield values

    factor, norm = clip_factor(counted, clip)

    def clipped(first: int, last: int) -> NDArray[np.float32]:
        values = delta(first, last)
        kept = [(part, values[part].copy()) for part in within(statistics, first, last)]
        shrink(values, factor)
        for part, as_it_was in kept:
            values[part] = as_it_was
        return values

    of_it = clipped if factor < 1 else delta
    known = (hasher.digest(), largest, min(norm, clip), of_it)
    update = Update(layout.size, *known, uncut=norm if norm > clip else None)
    if isinstance(mover, MovingRange) and scale is not None:
        return _in_units(update, scale, mover.told(update.norm, scale))
    return update


def _in_units(update: Update, scale: float, last: np.float32) -> Update:
    """An update in units of a scale, with another last value."""

    def part(first: int, end: int) -> NDArray[np.float32]:
        values = update.part(first, end)
        values /= np.float32(scale)
        if end == update.size:
            values[-1] = last
        return values

    return dataclasses.replace(update, part=part)


def magnitude(plan: Plan, group: str, update: Update) -> int | None:
    """The norm that a receipt declares, if the rule asks for it."""
    section = plan.group(group)
    if not isinstance(section.rule, PrioritySection) or section.rule.score != "magnitude":
        return None
    return declared(update.norm, section.clip)


def tell_cuts(
    party: str, where: str, layout: GroupLayout, update: Update, share: float, most: float | None
) -> None:
    """Tells the client what the clip and then the range cut off its update, in one line.

    The range is measured after the clip. So the line names a range that holds what the clip leaves,
    and a clip with a range that hold the whole update: a plan takes the one or the other.

    Args:
        update, share: the values that are put on the grid are `share` times these, in float64.
        most: the range; None where noise or a codec decides what values become.
    """
    said = list[str]()
    if update.uncut is not None:
        left = 100 * update.norm / update.uncut
        said.append(f"update norm {update.uncut:.3g}, clip {update.norm:.3g}: cut to {left:.2g} %")
    if most is not None:
        said += _range_words(layout, update, share, most)
    if said:
        tell(party, EVENT, where + "; ".join(said))


def _range_words(layout: GroupLayout, update: Update, share: float, most: float) -> Iterator[str]:
    """Says what the range cuts off, and which numbers of the plan would hold the update."""
    whole, in_plan = update.largest * share, "in the plan's [[group]]"
    wider = f" and range = {_room(whole):g}" if whole > most else ""
    count = {}
    if wider:  # `largest` is of the values before the clip: these are counted after it
        count = {name: update.beyond(part, share, most) for name, part in layout.parts()}
    if beyond := sum(count.values()):
        worst = max(count, key=lambda name: count[name])
        largest = share * max(map(furthest, pieces(update.part, 0, update.size)))
        after = "then " if update.uncut is not None else ""
        yield (
            f"{after}{beyond:,} of the update's {update.size:,} values are beyond range {most:.3g}"
            f": cut to it, {count[worst]:,} of them in {worst}"
        )
        yield f"the largest is {largest:.3g}: range = {_room(largest):g} {in_plan} holds it"
    if update.uncut is not None and update.uncut > FAR * update.norm:
        yield (
            "no clip suits an update this long: its inputs are not scaled, or its learning rate is "
            "too high"
        )
    elif update.uncut is not None:
        clip = f"clip = {_room(update.uncut):g}"
        yield f"{clip}{wider} {in_plan} would hold the whole update"


def _room(largest: float) -> float:
    """The next number of one digit: the next update may be a little larger."""
    digit = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / digit) * digit:.0e}")


def within(parts: Sequence[slice], first: int, last: int) -> Iterator[slice]:
    """The parts of these slices that lie in values [first, last), counted from `first`."""
    for part in parts:
        start, stop = max(part.start, first), min(part.stop, last)
        if start < stop:
            yield slice(start - first, stop - first)


def pieces(part: Part, first: int, last: int) -> Iterator[NDArray[np.float32]]:
    """Yields values [first, last) a few at a time, so that they stay in the cache."""
    for start in range(first, last, PIECE):
        yield part(start, min(start + PIECE, last))


def furthest(values: NDArray[np.float32]) -> float:
    """The largest distance of a value from zero."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def _slices(values: NDArray[np.float32]) -> Part:
    return lambda first, last: values[first:last]
