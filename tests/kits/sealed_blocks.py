"""Updates that are in memory, and the integers of whole ones, which clients make block by block."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from secureps.client.update import Integers, Update
from secureps.client.worker import ClientWorker
from secureps.messages.member_records import Sealed
from secureps.messages.run import GroupVersion
from secureps.model.layout import GroupLayout
from secureps.roles.member.tasks import Aim, Contribute, Evaluate


def made_of(values: NDArray[np.float32]) -> Update:
    """An update that no clip cuts."""
    return Update(values, float(np.linalg.norm(values)))


def whole_integers(layout: GroupLayout, blocks: Iterable[tuple[int, Integers]]) -> Integers:
    """Those of the whole update, from every block, which is made once."""
    own = list(blocks)
    found = dict(own)
    assert len(found) == len(own)
    return np.concatenate([found[block] for block in range(layout.blocks)])


def drawn(
    worker: ClientWorker, aim: Aim, update: Update, weight: int, base: tuple[bytes, ...] = ()
) -> Integers:
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
    layout: GroupLayout, values: Integers, order: Iterable[int] | None = None
) -> Iterator[tuple[int, Integers]]:
    """Those of every block by its number, in order, from those of the whole update."""
    for block in range(layout.blocks) if order is None else order:
        yield block, values[slice(*layout.sent_span(block))]


def looked_at(
    layout: GroupLayout, blocks: Iterable[tuple[int, Integers]]
) -> tuple[Integers, list[tuple[int, Integers]]]:
    """Those of the whole update, and every block again, in the order of who made them."""
    own = list(blocks)
    return whole_integers(layout, own), own
