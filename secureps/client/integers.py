"""Makes the integers that a client seals of an update: encoded, rounded, and hidden by its noise.

All of them come from the client's seed, the update and the plan: an update that is made again has
the same integers, under every cipher. What must not live here: the clip (`client.clipping`), and
sealing (`client.sealing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.clipping import tell_range
from secureps.client.trainer import SECRET_BYTES
from secureps.client.update import Update
from secureps.codec.chain import BlockCode
from secureps.crypto.sampling import Label, Stream
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from secureps.roles.member.tasks import Aim

BlockIntegers = Callable[[int, int], NDArray[np.integer[Any]]]
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
        self, codes: Iterable[BlockCode], update: Update, weight: int
    ) -> Iterator[BlockIntegers]:
        """Yields what makes the integers of each block, when it is sealed.

        Under feedback what the integers do not carry takes the place of what was clipped.

        Args:
            codes: of all blocks.
            update: in memory, where the plan has feedback.
        Raises:
            NotFinite: a value is not finite.
        """
        spans = (slice(*self.layout.sent_span(block)) for block in range(self.layout.blocks))
        values = map(self.layout.span, range(self.layout.blocks))
        parts = zip(codes, values, spans, strict=True)
        mechanism = self.plan.mechanism(self.layout.name, self.layout.sent)
        if mechanism is not None:
            return self._noised(mechanism, list(parts), update)
        return self._rounded(parts, update, weight)

    @cached_property
    def _labels(self) -> tuple[Label, ...]:
        return self.client, self.layout.name, self.aim.version, self.attempt

    def _rounded(
        self, parts: Iterable[_Part], update: Update, weight: int
    ) -> Iterator[BlockIntegers]:
        """Rounds piece by piece; the stream's words are those of the whole vector."""
        grid = self.plan.grid(self.layout.name, self.layout.sent)
        share, section = weight / grid.weights.most, self.plan.group(self.layout.name)
        words = self.stream("round", *self._labels)
        if not section.rotates:
            where = self.plan.head(self.layout.name)
            tell_range(self.client, where, self.layout, update, share, grid.range)

        def rounded(code: BlockCode, place: tuple[int, int], span: slice) -> BlockIntegers:
            encoded = code.encode(update.part(*place)) if section.codec else None

            def piece(first: int, last: int) -> NDArray[np.int32]:
                drawn = words.at(span.start + first).words(last - first)
                if encoded is not None:
                    return grid.encode(encoded[first:last], drawn, share)
                return grid.encode(update.part(place[0] + first, place[0] + last), drawn, share)

            if not section.feedback:
                return piece
            whole, rest = piece(0, code.sent), update.part(*place)
            rest -= code.decode((whole - grid.most) * (grid.step / share))
            return _slices(whole)

        return (rounded(*part) for part in parts)

    def _noised(
        self, mechanism: ClientMechanism, parts: list[_Part], update: Update
    ) -> Iterator[BlockIntegers]:
        """Rounds and adds this client's noise; a norm of integers needs all of them at once.

        The same update gets the same noise. Another one of the same version, from whatever
        model, gets fresh noise and is charged: nobody can subtract one from the other. Noise is
        bound to the integers that it hides, by a digest under the secret seed, so this holds even
        if the client lost the part of its state that counts how often it was asked.
        """
        section = self.plan.group(self.layout.name)
        if section.codec:  # in float32 it may have become longer than the clip
            encoded = np.empty(self.layout.sent, np.float32)
            for code, place, span in parts:
                encoded[span] = code.encode(update.part(*place))
            whole, _ = clip_l2(encoded, mechanism.clip)
        else:
            whole = update.whole()
        rounded = mechanism.rounded(whole, self.stream("round", *self._labels).words)
        for code, place, span in parts if section.feedback else ():
            part = update.part(*place)
            part -= code.decode(rounded[span] * mechanism.calibration.step)
        hidden = self.stream("noise", *self._labels, *self._digests(rounded))
        noised = mechanism.noised(rounded, hidden.words)
        return (_slices(noised[span]) for _, _, span in parts)

    def _digests(self, integers: NDArray[np.int64]) -> Iterator[bytes]:
        """Yields a digest of each block's integers under the secret seed."""
        for block in range(self.layout.blocks):
            part = integers[slice(*self.layout.sent_span(block))].astype("<i8", copy=False)
            words = self.stream("integers", self.client, self.layout.name, block, part.tobytes())
            yield words.words(SECRET_BYTES // 4).astype("<u4", copy=False).tobytes()


def _slices(integers: NDArray[np.integer[Any]]) -> BlockIntegers:
    return lambda first, last: integers[first:last]
