"""Rosters that change while a run is played: who comes, who is revoked or replaced, what expires.

The coordinator looks at its kit; others have that with which they were first started.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from secureps.errors import WrongRun
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import WORKER, Halt
from tests.chaos import takeover
from tests.chaos.schedule import HOLDERS, Fault

if TYPE_CHECKING:
    from tests.chaos.world import World

BROUGHT = 1.0
"""Seconds until a client has the kit that it asks for."""


def happen(world: World, fault: Fault) -> None:
    """What a seed says, once the run is founded on the first roster: all have that in their kit."""
    if min(world.versions().values()) < 0:
        world.loop.call_later(1.0, partial(happen, world, fault))
        return
    match fault.kind:
        case "replaced":
            _replace(world, fault)
        case "revoked" if fault.who not in world.revoked:
            world.issuer.revoke(fault.who)
            world.revoked.add(fault.who)
            world.loop.call_later(fault.seconds, partial(tell, world))
        case "renewed":
            told = world.issuer.expire()
            for name in [n for n in world.parties if n not in world.down]:
                world.parties[name].post(WORKER, told)
            world.loop.call_later(fault.seconds, partial(_renew, world))
        case "comes":
            world.loop.call_later(fault.seconds, partial(_admit, world, fault.who))


def outdated(world: World, name: str, halted: Future[Halt]) -> bool:
    """Whether a client has ended that asks for the current kit: a shard came before it took part.

    Who takes part hears of every roster; who never did has its kit's alone.
    """
    if name not in world.clients or halted.exception() is not None or not world.spares:
        return False
    halt, run = halted.result(), world.parties[name].run
    return halt.error is WrongRun and "get the current kit" in halt.reason and not run


def bring(world: World, name: str) -> None:
    """It has that, and is started again."""
    world.brought.add(name)
    world.put_out(name)
    world.start(name)


def _renew(world: World) -> None:
    world.issuer.sign()
    tell(world)


def tell(world: World) -> None:
    """The coordinator looks at its kit, and so does a standby whose coordinator is gone."""
    for place in {COORDINATOR, world.ruler} - world.down - world.gone:
        world.parties[place].post(WORKER, world.issuer.told)
    takeover.brought(world)


def _admit(world: World, name: str) -> None:
    """A client is on the next roster before it comes: who comes earlier is sent away."""
    world.issuer.admit(name, "client")
    tell(world)
    world.admit(name)


def _replace(world: World, fault: Fault) -> None:
    """A key holder, or whoever came in its place, is lost for good, and another comes."""
    lost = fault.who
    while lost in world.successors:
        lost = world.successors[lost]
    if lost not in world.parties:  # it is still to come
        world.loop.call_later(1.0, partial(_replace, world, fault))
        return
    new = world.successors[lost] = f"holder-{HOLDERS + len(world.successors)}"
    world._loops[lost].dead = True
    world.kill(lost)
    world.down.discard(lost)

    def come() -> None:
        world.issuer.replace(lost, new)
        tell(world)
        world.start(new)

    world.loop.call_later(fault.seconds, come)
