"""Pulls in line: each is looked at once before its turn, and not too early."""

from __future__ import annotations

from secureps.roles.shard.keys import model_key, state_key
from secureps.service.shard.lookahead import AHEAD, Lookahead


def test_those_in_line_are_looked_at_once_and_no_more_than_a_few() -> None:
    seen: list[tuple[str, int, int]] = []

    def read(*pull: str | int) -> int:
        group, version, block = pull
        seen.append((str(group), int(version), int(block)))
        return len(seen)

    pulls = Lookahead(read)
    line = [("g", 3, block) for block in range(2 * AHEAD)]
    for place, pull in enumerate(line):
        pulls.expect(model_key(*pull))
        assert seen == line[: min(place + 1, AHEAD)]
    for turn, pull in enumerate(line):
        assert pulls.begin(pull) == turn + 1, "what was read of it"
        assert seen == line[: turn + 1 + AHEAD]
    pulls.expect(model_key("h", 0, 0))
    assert seen[len(line) :] == [("h", 0, 0)]


def test_only_blocks_as_they_are_count() -> None:
    def refuse(*pull: object) -> None:
        raise AssertionError(f"{pull} is no pull")

    pulls = Lookahead[None](refuse)
    for key in (state_key("g", 1, 0), model_key("g", 1, 0, since=0), "sum/g/1/0"):
        pulls.expect(key)
    assert pulls.begin(("g", 1, 0)) is None


def test_what_was_not_announced_or_was_passed_over_keeps_nothing_waiting() -> None:
    pulls = Lookahead(lambda *pull: pull)
    assert pulls.begin(("g", 1, 0)) is None
    for block in range(4):
        pulls.expect(model_key("g", 1, block))
    assert pulls.begin(("g", 1, 2)) == ("g", 1, 2)
    assert pulls.begin(("other", 1, 0)) is None
    assert pulls.begin(("g", 1, 3)) is None, "it was let go of"
    pulls.expect(model_key("g", 2, 0))
    assert pulls.begin(("g", 2, 0)) == ("g", 2, 0)


def test_what_is_not_in_a_file_keeps_its_place() -> None:
    pulls = Lookahead(lambda group, version, block: block if block % 2 else None)
    line = [("g", 1, block) for block in range(5)]
    for pull in line:
        pulls.expect(model_key(*pull))
    assert [pulls.begin(pull) for pull in line] == [None, 1, None, 3, None]
