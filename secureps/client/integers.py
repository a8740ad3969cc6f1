"""Makes the integers that a client seals of an update: encoded, rounded, and hidden by its noise.

All of them come from the client's seed, the update and the plan: an update that is made again has
the same integers, under every cipher. A digest of them names what leaves, and of nothing else: a
name that came of the seed would be another one after the seed is lost, though the same leaves, and
the same after a change of the code, though something else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import SECRET_BYTES
from secureps.client.update import DeviceValues, Integers, Update, tell_cuts
from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.crypto.sampling import Label, Stream
from secureps.messages.encoding import payload_hasher
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import PIECE, clip_l2
from secureps.roles.member.tasks import Aim, in_own_order

BlockIntegers = Callable[[int, int], Integers]
"""Makes the integers of a block's values [first, last), from any thread; each once."""

_Part = tuple[BlockCode, tuple[int, int], slice]
"""A block: its code, its values' place, and where its integers are among those of the update."""


@dataclass(frozen=True)
class UpdateIntegers:
    """Those of one update of one client.

    Args:
        stream: the client's random words for a purpose and labels.
    """

    client: str
    plan: Plan
    layout: GroupLayout
    aim: Aim
    stream: Callable[..., Stream]

    def make(
        self,
        code_of: Callable[[int], BlockCode],
        update: Update,
        examples: int,
        share: float,
    ) -> tuple[bytes, Iterator[tuple[int, BlockIntegers]]]:
        """Returns the digest of all integers, and each block's number with what makes its own.

        Blocks come in the client's own order, and their integers are made when they are sealed.
        Without noise they are made twice, once for the digest, so that no whole vector of them is
        in memory. Under feedback what the integers do not carry takes the place of what was
        clipped, as blocks are made.

        Args:
            code_of: draws the code of a block.
            update: in memory, where the plan has feedback.
            examples: the public number that the client counts by; the digest covers it.
            share: what part of its values the client sends, by that number.
        Raises:
            NotFinite: a value is not finite.
        """
        every = range(self.layout.blocks)
        order = in_own_order(self.client, every)

        def part(block: int) -> _Part:
            place, sent = self.layout.span(block), self.layout.sent_span(block)
            return code_of(block), place, slice(*sent)

        mechanism = self.plan.mechanism(self.layout.name, self.layout.sent)
        where, rotates = self.plan.head(self.layout.name), self.plan.group(self.layout.name).rotates
        most = None if mechanism is not None or rotates else self._grid.range
        tell_cuts(self.client, where, self.layout, update, share, most)
        if mechanism is not None:
            noised = self._noised(mechanism, [part(block) for block in every], update)
            own = (made[at : at + PIECE] for made in noised for at in range(0, made.size, PIECE))
            return _digest(examples, own), ((block, _slices(noised[block])) for block in order)
        name = _digest(examples, self._pieces(map(part, every), update, share))
        blocks = self._rounded(map(part, order), update, share)
        return name, zip(order, blocks, strict=True)

    @cached_property
    def _grid(self) -> Grid:
        return self.plan.grid(self.layout.name, self.layout.sent)

    def _pieces(self, parts: Iterable[_Part], update: Update, share: float) -> Iterator[Integers]:
        """All integers, a few at a time; the update stays as it is."""
        for part in parts:
            made = self._round(part, update, share)
            for at in range(0, part[0].sent, PIECE):
                yield made(at, min(at + PIECE, part[0].sent))

    @cached_property
    def _labels(self) -> tuple[Label, ...]:
        return self.client, self.layout.name, self.aim.version, self.aim.step

    def _rounded(
        self, parts: Iterable[_Part], update: Update, share: float
    ) -> Iterator[BlockIntegers]:
        """Rounds block by block; under feedback, leaves what the integers do not carry."""
        feedback = self.plan.group(self.layout.name).feedback
        for part in parts:
            made = self._round(part, update, share)
            if feedback:
                code, place, _ = part
                whole = made(0, code.sent)
                carried = whole.astype(np.int32, copy=False) - self._grid.most
                _leave_rest(update, code, place, carried, self._grid.step / share)
                made = _slices(whole)
            yield made

    def _round(self, part: _Part, update: Update, share: float) -> BlockIntegers:
        """What rounds a block piece by piece; the stream's words are those of the whole vector."""
        code, place, span = part
        grid, there = self._grid, update.device
        words = self.stream("round", *self._labels)
        if there is not None:
            at = (words, span.start)
            whole = there.attempt(partial(there.rounded, code, place, grid, share, at))
            if whole is not None:
                return _slices(whole)
        coded = self.plan.group(self.layout.name).codec
        encoded = code.encode(update.part(*place)) if coded else None

        def piece(first: int, last: int) -> NDArray[np.int32]:
            drawn = words.at(span.start + first).words(last - first)
            if encoded is not None:
                return grid.encode(encoded[first:last], drawn, share)
            return grid.encode(update.part(place[0] + first, place[0] + last), drawn, share)

        return piece

    def _noised(
        self, mechanism: ClientMechanism, parts: Sequence[_Part], update: Update
    ) -> list[Integers]:
        """Rounds and adds this client's noise; a norm of integers needs all of them at once.

        The same update gets the same noise. Noise is bound to the integers that it hides, by a
        digest under the secret seed: no two updates have one noise, even if both came to leave.
        """
        there, made = update.device, None
        if there is not None:
            made = there.attempt(partial(self._noised_there, there, mechanism, parts))
        rounded, noised = made or self._noised_here(mechanism, parts, update)
        for (code, place, _), steps in zip(parts, rounded, strict=False):  # none but of feedback
            _leave_rest(update, code, place, steps, mechanism.calibration.step)
        return list(noised)

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


def _digest(examples: int, pieces: Iterable[Integers]) -> bytes:
    """Hashes the public number and all integers, int32 little-endian, by BLAKE3."""
    hasher = payload_hasher()
    hasher.update(examples.to_bytes(8, "little"))
    for piece in pieces:
        hasher.update(np.ascontiguousarray(piece, "<i4").tobytes())
    digest: bytes = hasher.digest()
    return digest


def _slices(integers: Integers) -> BlockIntegers:
    return lambda first, last: integers[first:last]
