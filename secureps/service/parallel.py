"""Blocks side by side: what a party does to every block, by as many threads as it is told.

Kernels leave the interpreter's lock alone while they work, so that threads share the cores; a
cipher whose library holds the lock gains nothing. What must not live here: what is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(threads: int, action: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """What `action` makes of every item, in the order of the items.

    At most `threads` are being made, and as many are made and wait, before one is taken: memory
    does not grow with their number. Raises what `action` raises, once no thread works any more;
    items that were not begun then never are.

    Args:
        threads: 1 or more; with 1 everything happens in the caller's.
    """
    if threads == 1:
        yield from map(action, items)
        return
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="block") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(action, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
