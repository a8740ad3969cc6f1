"""News wake whoever listens, and only news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from secureps.dashboard.board import Board, Facts


def test_whoever_listens_is_woken_by_what_is_new() -> None:
    board = Board()

    async def listen() -> list[bool]:
        told = []
        with board.listening() as changed:
            for change in ("", "x", "x", ""):
                await asyncio.to_thread(board.put, _trouble(change))
                await asyncio.sleep(0)
                told.append(changed.is_set())
                changed.clear()
        await asyncio.to_thread(board.put, _trouble("after"))
        return told

    assert asyncio.run(listen()) == [False, True, False, True]
    assert board.facts.troubles == {"it": "after"}


def _trouble(text: str) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, troubles={"it": text} if text else {})


def test_at_first_nothing_is_known() -> None:
    assert Board().facts == Facts()
