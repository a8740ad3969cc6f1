"""A file of acts shows every change of an act and of the sequence."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.identity import Identity
from secureps.errors import DamagedStore, OperatorError
from secureps.messages.encoding import file_digest
from secureps.store.act_lines import DOMAIN, FILE, ActLines, read_acts
from secureps.store.atomic_file import write_durably

ME = Identity(bytes(range(32)))


def lines(folder: Path) -> ActLines:
    return ActLines(folder, "client-00", ME, lambda: 1_700_000_000.0)


def test_what_is_noted_is_read_again_in_order(tmp_path: Path) -> None:
    acts = lines(tmp_path)
    assert lines(tmp_path).done == ()
    for what in ("pause", "go-on", "lower-budget 3.5"):
        acts.note(what)
    assert [(each.number, each.what) for each in acts.done] == [
        (1, "pause"),
        (2, "go-on"),
        (3, "lower-budget 3.5"),
    ]
    assert {(each.date, each.who) for each in acts.done} == {("2023-11-14T22:13:20Z", "client-00")}


def test_what_was_changed_moved_added_or_signed_by_another_is_found(tmp_path: Path) -> None:
    acts = lines(tmp_path)
    for what in ("pause", "go-on", "leave"):
        acts.note(what)
    one, two, three = (tmp_path / FILE).read_bytes().splitlines()
    other = json.dumps(json.loads(two) | {"what": "leave"}).encode()
    for wrong in (
        (one, other, three),
        (one, three),
        (two, three),
        (one, one),
        (one, b"[]"),
        (b"",),
    ):
        with pytest.raises(DamagedStore, match=r"acts\.jsonl: act \d is not"):
            read_acts(b"\n".join(wrong) + b"\n", ME.public)
    with pytest.raises(DamagedStore) as raised:
        read_acts(two, ME.public)
    assert str(raised.value).endswith(" is not what was signed, or not in its place")
    with pytest.raises(DamagedStore):
        read_acts(one, Identity(bytes(32)).public)
    (tmp_path / FILE).write_bytes(one + b"\n" + three + b"\n")
    with pytest.raises(DamagedStore):
        acts.note("pause")


def test_a_line_of_another_history_is_found(tmp_path: Path) -> None:
    """It has the right key, and is the second line of its own file."""

    def line(number: int, what: str, previous: bytes = b"") -> bytes:
        of = {"number": number, "date": "2024-01-01T00:00:00Z", "who": "observer", "what": what}
        of |= {"previous": file_digest(previous).hex() if previous else "", "signature": ""}
        bare = json.dumps(of, separators=(",", ":")).encode()
        signed = of | {"signature": ME.sign(DOMAIN, bare).hex()}
        return json.dumps(signed, separators=(",", ":")).encode()

    one, other = line(1, "end"), line(1, "export")
    two = line(2, "end", other)
    assert len(read_acts(other + b"\n" + two, ME.public)) == 2
    with pytest.raises(DamagedStore, match="act 2 is not what was signed, or not in its place"):
        read_acts(one + b"\n" + two, ME.public)


def test_acts_of_two_pages_at_once_are_both_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two objects stand for two processes; one is stopped after its read."""
    real, begun = write_durably, threading.Event()
    second = threading.Thread(target=lambda: lines(tmp_path).note("leave"))

    def slow(*given: Any) -> None:
        if not begun.is_set():
            begun.set()
            second.start()
            second.join(0.1)  # it cannot end before this one has written
        real(*given)

    monkeypatch.setattr("secureps.store.act_lines.write_durably", slow)
    lines(tmp_path).note("pause")
    second.join()
    assert [act.what for act in lines(tmp_path).done] == ["pause", "leave"]


def test_an_act_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be written, the act is not on record"):
        lines(tmp_path / "nowhere").note("pause")
