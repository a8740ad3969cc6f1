"""What a client's worker is sealing: it goes on with the next block each time it is asked.

So the blocks that may leave are on their way while the others are sealed. A sealing whose disk
failed cannot go on: a key seals each block once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from secureps.client.sealing import Sealing
from secureps.roles.member.tasks import Aim, BlockSealed, Contribute, Contributed

Done = BlockSealed | Contributed


class BlockByBlock:
    """One contribution in the making, or none.

    `between` are the seconds that other work took between its blocks.
    """

    def __init__(self) -> None:
        self.between = 0.0
        self._left = 0.0
        self._sealing: Sealing[Contributed] | None = None
        self._aims: tuple[Aim, ...] = ()

    def begin(self, seal: Callable[[Contribute], Sealing[Contributed]], task: Contribute) -> Done:
        """Seals the first block of a task's aims; raises whatever that raises."""
        self._sealing, self._aims = seal(task), task.aims
        self.between = 0.0
        return self._next(self._sealing)

    def go_on(self) -> Done:
        """Seals one more block, or the rest of the contribution where that has to stay together.

        Raises whatever the sealing raises, after which all of its aims are to be sealed anew.
        """
        if self._sealing is None:
            return Contributed((), (), again=self._aims)
        self.between += time.perf_counter() - self._left
        return self._next(self._sealing)

    def _next(self, sealing: Sealing[Contributed]) -> Done:
        try:
            return BlockSealed(next(sealing))
        except StopIteration as end:
            self._sealing = None
            done: Contributed = end.value
            return done
        except BaseException:
            self._sealing = None
            raise
        finally:
            self._left = time.perf_counter()
