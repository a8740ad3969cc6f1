"""What was ever written is read, and written again with the same bytes, record by record."""

from __future__ import annotations

import base64
import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.encoding import canonical, from_plain
from secureps.messages.format import FORMAT
from secureps.store.journal_rows import RECORDS
from secureps.wire.protobuf import decode, encode
from tests.golden.stage import FORMATS, read_json
from tests.golden.values import digests, examples, kinds, row

TODAYS = [FORMATS[FORMAT]] if FORMAT in FORMATS else []
"""None while a format is in the making: no row, message or signature of another one is read."""


@cache
def stored(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    known: dict[str, dict[str, dict[str, str]]] = read_json(folder / "values.json")
    return known


def cases(form: str) -> list[Any]:
    return [
        pytest.param(name, forms, id=f"{folder.name}-{name}-{which}")
        for folder in TODAYS
        for name, each in stored(folder).items()
        for which, forms in each.items()
        if form in forms
    ]


def said(name: str, forms: dict[str, str]) -> Any:
    """The record, by its canonical form."""
    tag, colon, text = forms["canonical"].partition(":")
    assert (tag, colon) == (name, ":")
    return from_plain(kinds()[name], json.loads(text))


@pytest.mark.parametrize(("name", "forms"), cases("canonical"))
def test_a_canonical_form_is_read_and_made_again(name: str, forms: dict[str, str]) -> None:
    assert canonical(said(name, forms)).decode() == forms["canonical"]


@pytest.mark.parametrize(("name", "forms"), cases("row"))
def test_a_row_of_a_journal_is_read_and_made_again(name: str, forms: dict[str, str]) -> None:
    record: Any = from_plain(RECORDS[name], json.loads(forms["row"]))
    assert record == said(name, forms)
    assert row(record) == forms["row"]


@pytest.mark.parametrize(("name", "forms"), cases("wire"))
def test_a_message_is_read_off_the_wire_and_sent_again(name: str, forms: dict[str, str]) -> None:
    data = base64.b64decode(forms["wire"])
    message = decode(data)
    whole = said(name, forms)
    bare = {"payload": b""} if hasattr(whole, "payload") else {}  # it goes beside its message
    assert message == dataclasses.replace(whole, **bare)
    assert encode(message) == data


@pytest.mark.parametrize("folder", TODAYS, ids=lambda folder: folder.name)
def test_what_names_and_signs_a_record_is_what_it_was(folder: Path) -> None:
    assert digests() == read_json(folder / "digests.json")


@pytest.mark.parametrize("folder", TODAYS, ids=lambda folder: folder.name)
def test_every_record_and_message_of_today_is_stored(folder: Path) -> None:
    known = stored(folder)
    assert known == examples()
    assert {name for name in known if "row" in known[name]["full"]} == set(RECORDS)
