"""The steps of the newest cohorts, in few bytes, however a run goes."""

from __future__ import annotations

from secureps.messages import coordinator_records
from secureps.messages.requests import CohortSteps, Prepared, Status
from secureps.roles.coordinator.state import KEPT_STEPS, WHY, Timeline
from secureps.roles.coordinator.status import status
from secureps.wire.msgpack import encode
from tests.kits.roles_kit import collecting, make_cohort


def closed(number: int, group: str = "all") -> coordinator_records.CohortClosed:
    return coordinator_records.CohortClosed(
        make_cohort(number=number, version=number + 1, group=group), ""
    )


def test_however_many_cohorts_there_were_and_however_they_ended_a_status_is_short() -> None:
    told = Timeline()
    for number in range(500):
        told.take(float(number), closed(number))
        burnt = coordinator_records.CohortBurnt("all", number, "y" * 5000, number % 2 == 0)
        told.take(number + 0.5, burnt)
    assert told.burnt_in_all == 500
    assert [each.number for each in told.steps] == list(range(500 - KEPT_STEPS, 500))
    assert [each.ended for each in told.steps[-2:]] == ["spoilt", "burnt"]
    assert {len(each.why) for each in told.steps} == {WHY}
    bare = Status(b"", 1, "", (), (), (), ())
    whole = Status(b"", 1, "", (), (), (), (), steps=told.steps)
    assert len(encode(whole)) - len(encode(bare)) < KEPT_STEPS * (WHY + 150)


def test_cohorts_of_many_groups_share_the_room() -> None:
    told = Timeline()
    for number in range(100):
        told.take(float(number), closed(0, f"g{number}"))
    assert [each.group for each in told.steps] == [f"g{number}" for number in range(70, 100)]


def test_what_a_shard_gains_by_a_move_prepares_no_cohort() -> None:
    told = Timeline()
    told.take(0.0, closed(0))
    for at, epoch, prepared in ((1.0, 2, None), (2.0, 0, 2.0)):
        told.take(at, Prepared("shard-0", "all", 1, (), b"", epoch=epoch))
        assert told.steps[-1].prepared == prepared


def test_a_status_has_the_steps_of_a_run() -> None:
    world = collecting()
    world.pump()
    shown = status(world.coordinator._tx(world.now), ())
    assert [each.version for each in shown.steps] == [1, 2]
    assert all(isinstance(each, CohortSteps) and each.committed is not None for each in shown.steps)
    assert (shown.burnt, shown.checkpoint) == (0, world.federation.checkpoints[-1].number)
