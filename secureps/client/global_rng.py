"""The global random generators, for a data holder's code that draws from them.

What must not live here: our own randomness, which is always an argument.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

_TURNS = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global generators from a seed of 63 bits, and back as they were.

    They are global, so calls in one process take turns. torch is not imported for it: an app
    that uses it has imported it.
    """
    with _TURNS, ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(np.random.SeedSequence(seed).generate_state(8))
        if "torch" in sys.modules:
            from secureps.client.torch import seeded as torch_seeded

            stack.enter_context(torch_seeded(seed))
        yield
