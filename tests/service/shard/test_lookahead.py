"""Pulls in line: each is looked at once before its turn, and not too early."""

from __future__ import annotations

from secureps.roles.shard.keys import model_key, state_key
from secureps.service.shard.lookahead import AHEAD, Lookahead


def test_those_behind_are_looked_at_once_and_no_more_than_a_few() -> None:
    seen: list[tuple[str, int, int]] = []
    pulls = Lookahead(lambda *pull: seen.append(pull))
    line = [("g", 3, block) for block in range(2 * AHEAD)]
    for pull in line:
        pulls.expect(model_key(*pull))
    assert seen == []
    for turn, pull in enumerate(line):
        pulls.begin(pull)
        assert seen == line[1 : turn + 1 + AHEAD]
    pulls.expect(model_key("h", 0, 0))
    pulls.expect(model_key("h", 0, 1))
    pulls.begin(("h", 0, 0))
    assert seen[len(line) - 1 :] == [("h", 0, 1)]


def test_only_blocks_as_they_are_count() -> None:
    def refuse(*pull: object) -> None:
        raise AssertionError(f"{pull} is no pull")

    pulls = Lookahead(refuse)
    for key in (state_key("g", 1, 0), model_key("g", 1, 0, since=0), "sum/g/1/0"):
        pulls.expect(key)
    pulls.begin(("g", 1, 0))


def test_what_was_not_announced_or_was_passed_over_keeps_nothing_waiting() -> None:
    seen: list[tuple[str, int, int]] = []
    pulls = Lookahead(lambda *pull: seen.append(pull))
    pulls.begin(("g", 1, 0))
    for block in range(4):
        pulls.expect(model_key("g", 1, block))
    pulls.begin(("g", 1, 2))
    assert seen == [("g", 1, 3)]
    pulls.begin(("other", 1, 0))
    pulls.expect(model_key("g", 2, 0))
    pulls.expect(model_key("g", 2, 1))
    pulls.begin(("g", 2, 0))
    assert seen == [("g", 1, 3), ("g", 2, 1)]
