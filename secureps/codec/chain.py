"""What makes an update small before it is rounded: linear stages, block by block.

    encode   take the support's places -> rotate
    decode   rotate back -> put the support's places among zeros

Each block is encoded by itself, into as many values or fewer. Stages are linear: the sum of
encodings decodes to the sum of what each alone would decode to. Their state, places and signs, is
public, and the same for all members of a cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secureps.codec import rotate, support
from secureps.errors import WrongShape

Draw = Callable[[str, int], NDArray[np.uint32]]
"""draw(stage, count): the public words of one stage for one block, uint32 (count,)."""


@dataclass(frozen=True)
class BlockCode:
    """The chain of one block of one version: pure, and linear.

    Args:
        values: of the block.
        places: of those that are sent, int64 (sent,), ascending; None for all.
        factors: by which a decoded value is multiplied, float64 (sent,); None for 1.
        signs: of the rotation, int8, of what is sent but for a value that goes as it is; None
            where nothing is rotated.
    """

    values: int
    places: NDArray[np.int64] | None
    factors: NDArray[np.float64] | None
    signs: NDArray[np.int8] | None

    @property
    def sent(self) -> int:
        """How many values are sent."""
        return self.values if self.places is None else self.places.size

    def encode(self, x: NDArray[np.float32]) -> NDArray[np.float32] | NDArray[np.float64]:
        """What of a block is rounded, and sent: (sent,), of an L2 norm that is at most x's.

        It is float64, or x itself where there is nothing to do.

        Args:
            x: float32 (values,).
        Raises:
            WrongShape: another shape.
        """
        if x.shape != (self.values,):
            raise WrongShape(f"this block has {self.values} values, not shape {list(x.shape)}")
        if self.places is None and self.signs is None:
            return x
        taken = (x if self.places is None else x[self.places]).astype(np.float64)
        if self.signs is not None:
            taken[: self.signs.size] = rotate.rotated(taken[: self.signs.size], self.signs)
        return taken

    def decode(self, mean: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float32]:
        """What a mean of encodings is the mean of: float32 (values,), 0 where nothing was sent.

        Args:
            mean: (sent,).
        Raises:
            WrongShape: another shape.
        """
        if mean.shape != (self.sent,):
            raise WrongShape(f"{self.sent} values of this block are sent, not {list(mean.shape)}")
        made = mean.astype(np.float64)
        if self.signs is not None:
            turned = made[: self.signs.size]
            turned[:] = rotate.rotated_back(turned, self.signs)
        if self.places is None:
            return made.astype(np.float32)
        if self.factors is not None:
            made *= self.factors
        whole = np.zeros(self.values, np.float32)
        whole[self.places] = made
        return whole


@dataclass(frozen=True)
class Chain:
    """The stages of a group.

    Args:
        one_in: one of so many values is sent; 1: all are.
        rotates: whether what is sent is rotated.
        unbiased: whether a value that is sent counts for those of its run that are not, so that
            the decoded mean is right on average over supports. Clients that keep what they did not
            send will send that later, and nothing stands for it.
    """

    one_in: int = 1
    rotates: bool = False
    unbiased: bool = True

    @property
    def stands_for(self) -> int:
        """How many values one that is sent counts for in a decoded mean, with its noise."""
        return self.one_in if self.unbiased else 1

    @property
    def plain(self) -> bool:
        """Whether every value is sent as it is."""
        return self.one_in == 1 and not self.rotates

    def block(self, values: int, draw: Draw, apart: int = 0) -> BlockCode:
        """The code of a block of so many values, of which the last `apart` go as they are."""
        coded = values - apart
        count = support.sent(coded, self.one_in)
        places = factors = by = None
        if self.one_in > 1:
            places = support.places(coded, self.one_in, draw("support", count))
            places = np.append(places, np.arange(coded, values))
            if self.unbiased:
                factors = support.runs(coded, self.one_in).astype(np.float64)
                factors = np.append(factors, np.ones(apart))
        if self.rotates:
            by = rotate.signs(count, draw("rotate", rotate.sign_words(count)))
        return BlockCode(values, places, factors, by)
