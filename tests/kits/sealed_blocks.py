"""Updates that are in memory, and the integers of whole ones, which clients make block by block."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.update import BlockIntegers, Update
from secureps.client.worker import ClientWorker
from secureps.messages.member_records import Sealed
from secureps.messages.run import GroupVersion
from secureps.model.layout import GroupLayout
from secureps.roles.member.tasks import Aim, Contribute, Evaluate


def made_of(values: NDArray[np.float32]) -> Update:
    """An update that no clip cuts."""
    return Update.from_values(values, float(np.linalg.norm(values)))


def whole_integers(
    layout: GroupLayout, blocks: Iterable[tuple[int, BlockIntegers]]
) -> NDArray[np.integer[Any]]:
    """Those of the whole update, from every block in two pieces; each is made once."""
    found = {}
    for block, made in blocks:
        assert block not in found
        first, last = layout.sent_span(block)
        size = last - first
        found[block] = np.concatenate([made(0, size // 2), made(size // 2, size)])
    return np.concatenate([found[block] for block in range(layout.blocks)])


def drawn(
    worker: ClientWorker, aim: Aim, update: Update, weight: int, base: tuple[bytes, ...] = ()
) -> NDArray[np.integer[Any]]:
    """The integers that a client seals of an update."""
    task = Contribute((GroupVersion(aim.group, aim.version),) if base else (), base, ())
    made = worker._draft(task, aim, bytes(32), update, weight)
    return whole_integers(worker._layout().group(aim.group), made.blocks)


def released(
    worker: ClientWorker, task: Contribute | Evaluate, aim: Aim, update: Update
) -> Sealed | str:
    """An update of weight 1 that a client seals, or why it does not leave."""
    leave, unsent = worker._release([worker._draft(task, aim, bytes(32), update, 1)])
    return worker._seal(leave[0]) if leave else next(iter(unsent.values()))


def cut(
    layout: GroupLayout, values: NDArray[np.integer[Any]], order: Iterable[int] | None = None
) -> Iterator[tuple[int, BlockIntegers]]:
    """Those of every block by its number, in order, from those of the whole update."""
    for block in range(layout.blocks) if order is None else order:
        yield block, partial(_part, values[slice(*layout.sent_span(block))])


def looked_at(
    layout: GroupLayout, blocks: Iterable[tuple[int, BlockIntegers]]
) -> tuple[NDArray[np.integer[Any]], Iterator[tuple[int, BlockIntegers]]]:
    """Those of the whole update, and every block again, in the order of who made them."""
    own = list(blocks)
    made = whole_integers(layout, own)
    return made, cut(layout, made, [block for block, _ in own])


def _part(values: NDArray[np.integer[Any]], first: int, last: int) -> NDArray[np.integer[Any]]:
    return values[first:last]
