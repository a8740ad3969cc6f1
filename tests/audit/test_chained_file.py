"""A log with a removed, added, moved or edited line is refused, naming the first wrong line."""

import hashlib
import json
from collections.abc import Callable

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from secureps.audit.entries import (
    DOMAIN,
    AuditLog,
    Begin,
    End,
    Entry,
    Spent,
    dump,
    load,
    verify_end,
)
from secureps.crypto.identity import Identity
from secureps.errors import DamagedStore, Unsigned
from secureps.messages.format import FORMAT
from tests.kits.roles_kit import make_plan, make_run

ME = Identity(b"m" * 32)
OTHER = Identity(b"o" * 32)
RUN = make_run(make_plan())
BEGIN = Begin(FORMAT, "coordinator", "coordinator", RUN.id, RUN)


def entry(row: int) -> Entry:
    return Entry(row, bytes([row]) * 32, row / 3, None, "client joined", {"client": f"c{row}"})


def end(entries: int, row: int) -> End:
    return End(entries, row, bytes([row]) * 32, (Spent("c1", 1.5), Spent("c2", None)))


def whole() -> bytes:
    first = dump(b"", BEGIN, [entry(row) for row in (2, 3, 5)], end(3, 6), ME)
    return first + dump(first, BEGIN, [entry(row) for row in (7, 8)], end(5, 9), ME)


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def test_what_is_written_is_read_and_signed() -> None:
    log = load(whole())
    assert log == AuditLog(BEGIN, tuple(map(entry, (2, 3, 5, 7, 8))), (log.ends[0], log.ends[1]))
    assert [(each.entries, each.row) for each in log.ends] == [(3, 6), (5, 9)]
    assert log.end.epsilon == (Spent("c1", 1.5), Spent("c2", None))
    verify_end(whole(), ME.public)
    assert load(dump(b"", BEGIN, [], end(0, 1), ME)).entries == ()


def test_nothing_of_secureps_is_needed_to_check_it() -> None:
    before = b""
    for line in whole().splitlines():
        previous = hashlib.blake2b(before, digest_size=32).hexdigest() if before else ""
        assert json.loads(line)["previous"] == previous
        before = line
    signed = before.replace(json.loads(before)["signature"].encode(), b"")
    framed = len(DOMAIN).to_bytes(8, "little") + DOMAIN + signed
    key = Ed25519PublicKey.from_public_bytes(ME.public.key)
    key.verify(bytes.fromhex(json.loads(before)["signature"]), framed)
    with pytest.raises(InvalidSignature):
        key.verify(bytes.fromhex(json.loads(before)["signature"]), framed + b" ")


@pytest.mark.parametrize("place", range(1, 8))
def test_a_line_that_is_removed_is_missed(place: int) -> None:
    lines = lines_of(whole())
    del lines[place]
    with pytest.raises(DamagedStore):
        load(b"".join(lines))


def test_each_wrong_line_is_named() -> None:
    lines = lines_of(whole())
    edited = lines[2].replace(b'"c3"', b'"c9"')
    tries: list[tuple[list[bytes], str]] = [
        ([*lines[:2], *lines[3:]], "line 3 is entry 3, and entry 2 should be there"),
        ([*lines[:3], lines[2], *lines[3:]], "line 4 is entry 2, and entry 3 should be there"),
        ([*lines[:1], lines[2], lines[1], *lines[3:]], "line 2 is entry 2, and entry 1 should be"),
        ([*lines[:2], edited, *lines[3:]], "entry 2 .client joined, row 3. was changed"),
        ([*lines[:4], *lines[5:]], "entry 3 .client joined, row 5. was changed, or lines between"),
        ([lines[0].replace(b"coordinator", b"coordinatox"), *lines[1:]], "line 1 was changed"),
        (lines[1:], "line 1 is entry 1|line 1 is no line|does not follow|no line of an audit"),
        ([*lines, lines[0]], "begin|does not follow"),
        ([*lines[:1], b'{"line":"entry"}\n', *lines[1:]], "line 2 is entry None"),
        ([*lines[:1], b"{}\n", *lines[1:]], "line 1 was changed, or lines between it and line 2"),
        ([*lines[:1], b"nonsense\n", *lines[1:]], "line 2 is no line of an audit log"),
        ([lines[0].replace(b'":', b'": ', 1), *lines[1:]], "line 1 is no line of an audit log"),
        (lines[:7], "ends with entry 5 .client joined, row 8., which is no signed end"),
        ([], "cut short"),
    ]
    for changed, text in tries:
        with pytest.raises(DamagedStore, match=text):
            load(b"".join(changed))


@pytest.mark.parametrize("cut", [1, 2, 100, 400])
def test_a_tail_that_is_cut_is_missed(cut: int) -> None:
    with pytest.raises(DamagedStore):
        load(whole()[:-cut])


def test_whoever_makes_all_digests_again_cannot_sign() -> None:
    forged = dump(b"", BEGIN, [entry(2), entry(3)], end(2, 9), OTHER)
    load(forged)
    with pytest.raises(Unsigned):
        verify_end(forged, ME.public)
    last = lines_of(whole())[-1]
    moved = forged[: forged.rindex(b'{"line":"end"')] + last
    with pytest.raises(DamagedStore, match="was changed, or lines between"):
        load(moved)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b'"epsilon":1.5', b'"epsilon":1.4'),
        lambda line: line.replace(b'"row":9', b'"row":8'),
        lambda line: line.replace(b'"c1"', b'"c4"'),
    ],
)
def test_an_end_that_is_edited_is_not_signed(change: Callable[[bytes], bytes]) -> None:
    *lines, last = lines_of(whole())
    assert change(last) != last
    data = b"".join([*lines, change(last)])
    load(data)
    with pytest.raises(Unsigned):
        verify_end(data, ME.public)


def test_an_id_that_is_not_the_runs_is_refused() -> None:
    other = Begin(FORMAT, "coordinator", "coordinator", b"x" * 32, RUN)
    with pytest.raises(DamagedStore, match="whose id is another"):
        load(dump(b"", other, [], end(0, 1), ME))


@pytest.mark.parametrize("kept", [1, 3])
def test_ends_say_how_many_there_are(kept: int) -> None:
    data = dump(b"", BEGIN, [entry(2), entry(3), entry(4)], end(3, 4), ME)
    before = b"".join(lines_of(data)[: 1 + kept])
    with pytest.raises(DamagedStore, match=f"counts 2 entries before it, and there are {kept}"):
        load(before + dump(before, BEGIN, [], end(2, 3), ME))
