"""What a shard tells the coordinator of what is on its record."""

from __future__ import annotations

from secureps.messages.requests import Missing, Register, Spoilt
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import Cohort, Held, SubmissionId
from secureps.roles.machine import Call, Halt, Say, Step
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import MakeState, StepState, SumCohort

IDLE = "holds nothing of this run"
"""What the log of a shard says last that the coordinator had end; then its exit status is 0."""


def dismissed(shard: str, reason: str) -> Step:
    """Ends a shard that holds nothing: the run has ended, or the shard was removed."""
    text = f"{IDLE}: {reason}"
    return Step(effects=[Say(text), Halt(f"{shard} {text}")])


def registering(address: ShardAddress, state: ShardState, unsafe: bool) -> Call:
    where, obeyed = (address.name, address.advertise, address.weight), state.incarnation
    said = Register(*where, obeyed, state.run, state.reached, unsafe, state.held, state.epoch)
    return Call(COORDINATOR, said)


def another(
    step: Step, cohort: Cohort, address: ShardAddress, state: ShardState, unsafe: bool
) -> bool:
    """Whether a cohort's number was another one's: then it says again which sums it has.

    From that a coordinator that closed the cohort again finds that its journal is an older copy.
    """
    made = state.summed(cohort.group, cohort.number)
    if made is None or made.cohort == cohort:
        return False
    text = f"cohort {cohort.number} of {cohort.group} was another one before: nothing is done"
    step.effects += [Say(f"{address.name}: {text}"), registering(address, state, unsafe)]
    return True


def spoilt(shard: str, task: StepState, reason: str, key: bytes | None = None) -> Spoilt:
    return Spoilt(shard, task.cohort.group, task.cohort.number, reason, key)


def held(shard: str, made: SumsMade) -> Held:
    return Held(shard, made.cohort.group, made.cohort.number, made.sums)


def work_name(task: MakeState | SumCohort | StepState) -> tuple[str, str, int]:
    """The name under which a work is done, once at a time."""
    match task:
        case MakeState(group):
            return ("state", group, 0)
        case SumCohort(cohort):
            return ("sum", cohort.group, cohort.number)
        case StepState(cohort):
            return ("state", cohort.group, cohort.version)


def missing_for(
    shard: str, task: MakeState | SumCohort | StepState, ids: tuple[SubmissionId, ...]
) -> Missing:
    if isinstance(task, MakeState):
        return Missing.of_founding(shard, task.group, ids)
    return Missing.of_cohort(shard, task.cohort, ids)
