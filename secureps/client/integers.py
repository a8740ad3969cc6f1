"""Makes the integers that a client seals of an update: encoded, rounded, and hidden by its noise.

All of them come from the client's seed, the update and the plan: an update that is made again has
the same integers, under every cipher. What must not live here: the clip (`client.clipping`), and
sealing (`client.sealing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from secureps.client.clipping import tell_range
from secureps.client.trainer import SECRET_BYTES
from secureps.client.update import DeviceValues, Integers, Update
from secureps.codec.chain import BlockCode
from secureps.crypto.sampling import Label, Stream
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from secureps.roles.member.block_order import in_own_order
from secureps.roles.member.tasks import Aim

BlockIntegers = Callable[[int, int], Integers]
"""Makes the integers of a block's values [first, last), from any thread; each once."""

_Part = tuple[BlockCode, tuple[int, int], slice]
"""A block: its code, its values' place, and where its integers are among those of the update."""


@dataclass(frozen=True)
class UpdateIntegers:
    """Those of one update of one client.

    Args:
        attempt: how many other updates of the same version were made before.
        stream: the client's random words for a purpose and labels.
    """

    client: str
    plan: Plan
    layout: GroupLayout
    aim: Aim
    attempt: int
    stream: Callable[..., Stream]

    def blocks(
        self, code_of: Callable[[int], BlockCode], update: Update, share: float
    ) -> Iterator[tuple[int, BlockIntegers]]:
        """Yields each block's number and what makes its integers, when it is sealed.

        They come in the client's own order. Under feedback what the integers do not carry takes the
        place of what was clipped.

        Args:
            code_of: draws the code of a block.
            update: in memory, where the plan has feedback.
            share: what part of its values the client sends, by its public number.
        Raises:
            NotFinite: a value is not finite.
        """
        every = range(self.layout.blocks)
        order = in_own_order(self.client, every)

        def part(block: int) -> _Part:
            place, sent = self.layout.span(block), self.layout.sent_span(block)
            return code_of(block), place, slice(*sent)

        mechanism = self.plan.mechanism(self.layout.name, self.layout.sent)
        if mechanism is None:
            return zip(order, self._rounded(map(part, order), update, share), strict=True)
        noised = self._noised(mechanism, [part(block) for block in every], update)
        return ((block, noised[block]) for block in order)

    @cached_property
    def _labels(self) -> tuple[Label, ...]:
        return self.client, self.layout.name, self.aim.version, self.attempt

    def _rounded(
        self, parts: Iterable[_Part], update: Update, share: float
    ) -> Iterator[BlockIntegers]:
        """Rounds piece by piece; the stream's words are those of the whole vector."""
        grid = self.plan.grid(self.layout.name, self.layout.sent)
        section = self.plan.group(self.layout.name)
        words = self.stream("round", *self._labels)
        if not section.rotates:
            where = self.plan.head(self.layout.name)
            tell_range(self.client, where, self.layout, update, share, grid.range)

        def rounded(code: BlockCode, place: tuple[int, int], span: slice) -> BlockIntegers:
            there, whole = update.device, None
            if there is not None:
                at = (words, span.start)
                whole = there.attempt(partial(there.rounded, code, place, grid, share, at))
            if whole is None:
                piece = on_host(code, place, span)
                if not section.feedback:
                    return piece
                whole = piece(0, code.sent)
            if section.feedback:
                carried = whole.astype(np.int32, copy=False) - grid.most
                _leave_rest(update, code, place, carried, grid.step / share)
            return _slices(whole)

        def on_host(code: BlockCode, place: tuple[int, int], span: slice) -> BlockIntegers:
            encoded = code.encode(update.part(*place)) if section.codec else None

            def piece(first: int, last: int) -> NDArray[np.int32]:
                drawn = words.at(span.start + first).words(last - first)
                if encoded is not None:
                    return grid.encode(encoded[first:last], drawn, share)
                return grid.encode(update.part(place[0] + first, place[0] + last), drawn, share)

            return piece

        return (rounded(*part) for part in parts)

    def _noised(
        self, mechanism: ClientMechanism, parts: Sequence[_Part], update: Update
    ) -> list[BlockIntegers]:
        """Rounds and adds this client's noise; a norm of integers needs all of them at once.

        The same update gets the same noise. Another one of the same version, from whatever
        model, gets fresh noise and is charged: nobody can subtract one from the other. Noise is
        bound to the integers that it hides, by a digest under the secret seed, so this holds even
        if the client lost the part of its state that counts how often it was asked.
        """
        there, made = update.device, None
        if there is not None:
            made = there.attempt(partial(self._noised_there, there, mechanism, parts))
        rounded, noised = made or self._noised_here(mechanism, parts, update)
        for (code, place, _), steps in zip(parts, rounded, strict=False):  # none but of feedback
            _leave_rest(update, code, place, steps, mechanism.calibration.step)
        return [_slices(each) for each in noised]

    def _noised_here(
        self, mechanism: ClientMechanism, parts: Sequence[_Part], update: Update
    ) -> tuple[list[Integers], list[Integers]]:
        """The integers of all blocks, before any noise under feedback, and with it."""
        section = self.plan.group(self.layout.name)
        if section.codec:  # in float32 it may have become longer than the clip
            encoded = np.empty(self.layout.sent, np.float32)
            for code, place, span in parts:
                encoded[span] = code.encode(update.part(*place))
            whole, _ = clip_l2(encoded, mechanism.clip)
        else:
            whole = update.whole()
        z = mechanism.rounded(whole, self.stream("round", *self._labels).words)
        every = parts if section.feedback else ()
        kept: list[Integers] = [z[span].astype(np.int32) for _, _, span in every]
        hidden = self._hidden(z[span] for _, _, span in parts)
        noised = mechanism.noised(z, hidden.words)
        return kept, [noised[span] for _, _, span in parts]

    def _noised_there(
        self, device: DeviceValues, mechanism: ClientMechanism, parts: Sequence[_Part]
    ) -> tuple[list[Integers], list[Integers]]:
        """The same, where the update lies on a device."""
        section, kept = self.plan.group(self.layout.name), list[Integers]()
        blocks = [(code, place) for code, place, _ in parts]
        words = self.stream("round", *self._labels)
        steps = device.steps(mechanism, blocks, bool(section.codec), words)

        def rounded() -> Iterator[Integers]:
            for block in range(len(parts)):
                yield (z := steps.block(block))
                if section.feedback:
                    kept.append(z)

        return kept, steps.noised(self._hidden(rounded()))

    def _hidden(self, integers: Iterable[Integers]) -> Stream:
        """The words of the noise that hides these integers, block by block."""
        return self.stream("noise", *self._labels, *self._digests(integers))

    def _digests(self, integers: Iterable[Integers]) -> Iterator[bytes]:
        """Yields a digest of each block's integers under the secret seed."""
        for block, part in enumerate(integers):
            own = part.astype("<i8", copy=False).tobytes()
            words = self.stream("integers", self.client, self.layout.name, block, own)
            yield words.words(SECRET_BYTES // 4).astype("<u4", copy=False).tobytes()


def _leave_rest(
    update: Update, code: BlockCode, place: tuple[int, int], integers: Integers, step: float
) -> None:
    """Leaves in the place of a block what its integers, times a step, do not carry."""
    there = update.device
    if there is not None and there.attempt(partial(there.subtract, code, place, integers, step)):
        return
    rest = update.part(*place)
    rest -= code.decode(integers * step)


def _slices(integers: Integers) -> BlockIntegers:
    return lambda first, last: integers[first:last]
