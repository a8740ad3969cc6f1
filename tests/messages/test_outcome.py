"""The fates of a submission have one word each."""

from __future__ import annotations

import json

from secureps.messages.encoding import canonical, from_plain, to_plain
from secureps.messages.member_records import SubmissionSettled
from secureps.messages.orders import Settled
from secureps.messages.submission import Outcome, SubmissionId
from secureps.wire.msgpack import decode, encode

SETTLED = SubmissionId("c0", "all", 0)


def test_the_words_stay_as_they_were_journalled() -> None:
    assert [str(each) for each in Outcome] == ["included", "durable", "dropped", "lost"]


def test_an_outcome_has_the_bytes_of_its_string() -> None:
    for each in Outcome:
        record, plain = SubmissionSettled(SETTLED, each), SubmissionSettled(SETTLED, each.value)
        assert canonical(record) == canonical(plain)
        assert from_plain(SubmissionSettled, json.loads(json.dumps(to_plain(record)))) == record
        sent = encode(Settled(1, SETTLED, each, 2, "why"))
        assert sent == encode(Settled(1, SETTLED, each.value, 2, "why"))
        assert decode(sent).outcome == each
