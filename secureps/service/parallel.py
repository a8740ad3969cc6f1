"""Processes the blocks of a vector on several threads, in order.

Kernels release the interpreter's lock while they work, so that threads share the cores; a
cipher whose library holds the lock gains nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(threads: int, action: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yields `action(item)` for every item, in order; with 1 thread all happens in the caller's.

    At most `threads` items are in work, and as many wait to be taken. Raises what `action` raises,
    once no thread works; later items are never begun.
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
