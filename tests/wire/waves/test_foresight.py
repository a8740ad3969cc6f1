"""What is answered before it is asked, and when a client is due."""

from __future__ import annotations

import pytest

from secureps.messages.orders import Commit, Finish, Invite, Published, SealAgain, SendAgain
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    GetBlock,
    Heartbeat,
    Join,
    Noted,
    Retire,
    Stored,
    Submit,
    Telemetry,
)
from secureps.messages.schema import Schema
from secureps.messages.submission import SubmissionId
from secureps.wire.waves.transport import REPEATED, due, foreseen
from tests.kits.transport_kit import put

INVITE = Invite(1, "all", 0, 0, 1.0)
PUBLISHED = Published(1, "all", 0, (b"d" * 32,))
ID = SubmissionId("a", "all", 0)


def test_a_block_counts_as_stored_and_nothing_of_it_as_there() -> None:
    block = put(b"x")
    assert foreseen(block) == Stored(block.header.digest)
    assert foreseen(AskBlock(block.header)) == Stored(block.header.digest, 0)


def test_what_only_informs_counts_as_heard() -> None:
    assert foreseen(Heartbeat("a")) == Noted()
    assert foreseen(Telemetry("a", "all", 0, ())) == Noted()


@pytest.mark.parametrize(
    "message",
    [Join("a", Schema(())), AskRun(), GetBlock(b"r" * 32, "all", 0, 0), Retire("a"), ID],
)
def test_nothing_else_is_taken_for_granted(message: object) -> None:
    assert foreseen(message) is None


def test_a_receipt_is_no_question_that_is_asked_again() -> None:
    # its answer, kept for the next process, would hide that it has to be sent once more
    assert Submit not in set[type](REPEATED)


@pytest.mark.parametrize("order", [INVITE, SealAgain(1, ID, b"u" * 16, INVITE), SendAgain(1, ID)])
def test_work_makes_a_client_due(order: object) -> None:
    assert due([PUBLISHED, order])


def test_all_else_waits_for_work() -> None:
    assert not due([PUBLISHED, Commit(1, "all", 1, 0), Finish(1, "over")])
    assert not due([])
