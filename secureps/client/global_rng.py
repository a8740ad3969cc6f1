"""Seeds the global random generators, for data holders' code that draws from them."""

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
    """Seeds the global generators with 63 bits, and restores their state on exit.

    They are global, so calls in one process take turns. torch is not imported for this: an app
    that uses torch has imported it.
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
