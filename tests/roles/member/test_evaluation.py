"""A client evaluates only what the plan schedules, once it is there."""

from __future__ import annotations

import pytest

from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import Base
from secureps.roles.member.evaluation import Readiness, find_readiness
from tests.kits.evaluations import evaluated_plan


@pytest.mark.parametrize(
    ("own", "model", "base", "evaluates", "expected"),
    [
        (0, 2, 0, 2, Readiness.READY),
        (1, 4, 1, 4, Readiness.READY),
        (2, 5, 2, 5, Readiness.READY),
        (0, 2, 1, 4, Readiness.EARLY),
        (0, 1, 0, 2, Readiness.EARLY),
        (0, 3, 0, 2, Readiness.LATE),
        (1, 2, 0, 2, Readiness.PAST),
        (0, 1, 0, 1, Readiness.UNPLANNED),
        (0, 3, 0, 3, Readiness.UNPLANNED),
        (3, 5, 3, 5, Readiness.UNPLANNED),  # three evaluations were made already
        (0, 4, Base(0, 1), 4, Readiness.READY),  # that of version 2 was lost
        (0, 4, 0, 4, Readiness.UNPLANNED),  # under the base of version 2
        (1, 4, Base(1, 1), 4, Readiness.UNPLANNED),
    ],
)
def test_how_a_client_stands_to_an_invitation(
    own: int, model: int, base: int | Base, evaluates: int, expected: Readiness
) -> None:
    plan = evaluated_plan()
    assert [each for each in range(7) if each in plan.schedule] == [2, 4, 5]
    published = {
        EVALUATION: Published(1, EVALUATION, own, ()),
        "all": Published(1, "all", model, ()),
    }
    at = base if isinstance(base, Base) else Base(base, 0)
    invite = Invite(1, EVALUATION, 1, at.version, 10.0, evaluates, at.step)
    assert find_readiness(plan, published, invite) is expected


def test_without_an_invitation_it_is_early() -> None:
    published = {EVALUATION: Published(1, EVALUATION, 0, ())}
    assert find_readiness(evaluated_plan(), published, None) is Readiness.EARLY
    invite = Invite(1, EVALUATION, 1, 0, 10.0, 2)
    assert find_readiness(evaluated_plan(), {}, invite) is Readiness.EARLY
