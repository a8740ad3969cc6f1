"""A client evaluates what the plan says, when it is there, and nothing more often."""

from __future__ import annotations

import pytest

from secureps.messages import member_records, records, requests
from secureps.messages.encoding import digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import SubmissionId
from secureps.roles.member.evaluation import Readiness, model_content, readiness
from tests.kits.evaluations import evaluated_plan
from tests.kits.member_kit import Client, asked, said
from tests.kits.roles_kit import (
    ADDRESSES,
    make_placement,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
)


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
    ],
)
def test_how_a_client_stands_to_an_invitation(
    own: int, model: int, base: int, evaluates: int, expected: Readiness
) -> None:
    plan = evaluated_plan()
    assert tuple(plan.evaluated) == (2, 4, 5)
    published = {
        EVALUATION: Published(1, EVALUATION, own, ()),
        "all": Published(1, "all", model, ()),
    }
    invite = Invite(1, EVALUATION, 1, base, 10.0, evaluates)
    assert readiness(plan, published, invite, {}) is expected


def test_without_an_invitation_it_is_early() -> None:
    published = {EVALUATION: Published(1, EVALUATION, 0, ())}
    assert readiness(evaluated_plan(), published, None, {}) is Readiness.EARLY
    invite = Invite(1, EVALUATION, 1, 0, 10.0, 2)
    assert readiness(evaluated_plan(), {}, invite, {}) is Readiness.EARLY


# --- one model, once --------------------------------------------------------------

PLAN = make_plan(evaluation={"every": 1, "metrics": {"accuracy": 1.0}})
MODEL = Published(1, "all", 1, model_blocks("all", 1, 4))


def judge(metrics: int, model: Published = MODEL) -> Client:
    """A client that judged `MODEL` under version 0 of the metrics' group, and is asked again.

    Nothing came of what it said, as far as it was told.
    """
    run, id = make_run(PLAN), SubmissionId("c0", EVALUATION, 0)
    receipt = make_receipt(PLAN, run.id, id, 0, digest("base"))
    content = model_content(PLAN, {"all": MODEL})
    journal = (
        records.RunPinned(run, make_placement(PLAN), ADDRESSES),
        member_records.Sealed(receipt, (), b"content", content),
        member_records.SubmissionSettled(id, "dropped"),
    )
    client = Client(PLAN, journal)
    client.order(Published(1, EVALUATION, metrics, (digest("metrics"),)))
    client.order(model)
    return client


def test_a_round_that_was_given_up_may_ask_again() -> None:
    step = judge(0).order(Invite(1, EVALUATION, 2, 0, 10.0, 1))
    assert said(step, requests.Decline) == []
    assert asked(step)


@pytest.mark.parametrize("called", [1, 2])
def test_under_another_version_of_the_metrics_a_model_is_judged_no_more(called: int) -> None:
    """Whatever version the model is said to be."""
    client = judge(1, Published(1, "all", called, MODEL.blocks))
    step = client.order(Invite(1, EVALUATION, 2, 1, 10.0, called))
    assert said(step, requests.Decline) == [
        requests.Decline("c0", EVALUATION, 2, Readiness.JUDGED.value)
    ]
    assert asked(step) == []


def test_another_model_is_judged_under_the_next_version() -> None:
    client = judge(1, Published(1, "all", 2, model_blocks("all", 2, 4)))
    step = client.order(Invite(1, EVALUATION, 2, 1, 10.0, 2))
    assert said(step, requests.Decline) == []
    assert asked(step)
