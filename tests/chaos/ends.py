"""How a run may end before its last version, and a client leave it: for what a seed did to them.

An end has to be one of these for its own reason: the run says which, and what it names happened.
"""

import re
from collections.abc import Iterable
from typing import Any

from secureps.crypto.roster import Roster
from secureps.errors import TooFew, WrongRun
from secureps.messages import coordinator_records as records
from secureps.messages.records import RosterFollowed
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Cohort
from secureps.run.up.folder import client_names
from tests.chaos.plans import VERSIONS
from tests.chaos.schedule import CHEATS, CLIENTS, LIE, OMITS
from tests.chaos.world import World

GROUP = "all"
"""The one group of all plans here."""

WHOLE = f"all {VERSIONS} versions are made"

_FEW = re.compile(r"too few clients are left for version|the privacy budget is spent: ")
"""How the reason of a run begins that too few clients are left for."""

_SAT_OUT = re.compile(
    r"cannot take part before the next version|came to nothing at version|nobody opens |"
    r"sealed the newest version for other key holders"
)
"""What is in the reason of one whose cohorts were burnt, or sealed for nobody, until nobody was
left."""


def ends(world: World, journal: Iterable[Any]) -> list[str]:
    """What is wrong with the end of a run that has one, and with the ends of its clients.

    Args:
        journal: the records of the coordinator that rules.
    """
    return [*_run(world, journal), *_burnt(world, journal), *_clients(world)]


def _run(world: World, journal: Iterable[Any]) -> list[str]:
    federation = world.coordinator.federation
    if not federation.finished:
        return ["the run ended without a reason"]
    if federation.finished == WHOLE and not federation.failure:
        return []
    wrong = [f"the run failed: {federation.finished}"]
    if federation.failure not in ("", TooFew.__name__):
        return wrong
    out, burnt = _out(world), federation.groups[GROUP].spoilt
    if len(world.successors) > 1:  # what is sealed for two key holders that are lost nobody opens
        out |= federation.groups[GROUP].sitting_out
        if _SAT_OUT.search(federation.finished):
            return []
    sat_out = {member.id.client for cohort in burnt for member in cohort.members}
    if set(re.findall(r"client-\d+", federation.finished)) - out - sat_out:
        return wrong
    own = world.plan.bounds(GROUP)
    least = own.start if own.rounds else own.minimum
    if len(_trainers(world, journal) - out) < least and _FEW.search(federation.finished):
        return []
    return [] if burnt and _SAT_OUT.search(federation.finished) else wrong


def _trainers(world: World, journal: Iterable[Any]) -> set[str]:
    """Clients on the roster by which the run was to end, but for one that judges alone."""
    known = set(client_names(CLIENTS))
    for record in journal:
        match record:
            case RosterFollowed(text):
                certificates = Roster.from_bytes(text.encode()).certificates
                known = {each.name for each in certificates if each.role == "client"}
            case records.Ending():
                break
    return known - {world.setting.judge}


def _out(world: World) -> set[str]:
    """Clients that are in no later version: for their data holders, operators, or the issuer.

    A cheat is left out, too, or sits out; and so does who lost an update that its ledger names.
    """
    federation = world.coordinator.federation
    omitted = {fault.who for fault in world.faults if fault.kind == OMITS}
    away = federation.isolated.keys() | federation.groups[GROUP].sitting_out
    out = world.data_holders.gone | world.revoked | (away & (_cheats(world) | world.lost.keys()))
    return out | (federation.isolated.keys() & omitted)


def _cheats(world: World) -> set[str]:
    return {fault.who for fault in world.faults if fault.kind in CHEATS}


def _burnt(world: World, journal: Iterable[Any]) -> list[str]:
    """No cohort is burnt but for a cheat, what disks lost, or who is on the roster no more."""
    cohorts, found = dict[int, Cohort](), []
    for record in journal:
        match record:
            case records.CohortClosed(cohort) if cohort.group == GROUP:
                cohorts[cohort.number] = cohort
            case records.CohortBurnt(group, number, reason) if group == GROUP:
                if not _may_burn(world, cohorts[number], reason):
                    found.append(f"cohort {number} was burnt: {reason}")
    return found


def _may_burn(world: World, cohort: Cohort, reason: str) -> bool:
    members = {member.id.client for member in cohort.members}
    lies = any(fault.kind == LIE for fault in world.faults)
    if lies or members & (_cheats(world) | world.revoked):
        return True
    return bool(world.lost and "lost" in reason) or len(world.successors) > 1


def _clients(world: World) -> list[str]:
    found = []
    for name in world.clients:
        halt = world.parties[name].halted.result()
        if halt.error is not None and not _may_leave(world, name, halt.error):
            found.append(f"{name} left: {halt.reason}")
    return found


def _may_leave(world: World, name: str, error: type[BaseException]) -> bool:
    """Whether a client may end with an error: lost disk, revoked, or the run failed."""
    if name in world.lost or name in world.revoked:
        return True
    if error.__name__ == world.coordinator.federation.failure:  # which `_run` judges
        return True
    return error is WrongRun and COORDINATOR in world.lost
