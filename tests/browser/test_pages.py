"""The dashboard follows a run in a real browser (`make browser`).

It needs playwright and a Chromium (SECUREPS_CHROMIUM, or one on the path), and takes axe-core from
the file that SECUREPS_AXE names. What is not there is skipped, and said.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kits.nursery import ROOT
from tests.kits.polling import until
from tests.run.up.test_up import PLAN, processes, write_plan

if not os.environ.get("SECUREPS_BROWSER"):
    pytest.skip("the dashboard in a browser: make browser", allow_module_level=True)

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = os.environ.get("SECUREPS_CHROMIUM") or shutil.which("chromium")
AXE = os.environ.get("SECUREPS_AXE", "")
if CHROMIUM is None:
    pytest.skip("no chromium is here: SECUREPS_CHROMIUM names one", allow_module_level=True)

WALKERS = ROOT / "tests" / "kits" / "walker_client.py"
SOON = 2000
"""Milliseconds in which the page has to name who is away."""
LIMIT = 60_000
VERSIONS = 4000
CUT = (
    "[...document.querySelectorAll('.scroll')]"
    ".filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1)"
    ".map((each) => each.getAttribute('aria-label'))"
)
"""The tables of a page that are wider than their room."""
SHOTS = os.environ.get("SECUREPS_SHOTS", "")
"""A folder to keep pictures in; none are made without."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run of `up`, longer than all tests together; the address that it prints."""
    folder = tmp_path_factory.mktemp("browser")
    text = PLAN.replace("versions = 3", f"versions = {VERSIONS}").replace("50.0", "5000.0")
    text = text.replace("clients = 3", "clients = 6")
    plan = write_plan(folder / "plan.toml", "rlwe", WALKERS, text)
    out = folder / "run"
    up = subprocess.Popen(
        [sys.executable, "-m", "secureps", "up", str(plan), "--out", str(out), "--dashboard"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
    )
    assert up.stdout is not None
    try:
        address = next(line.split()[-1] for line in up.stdout if line.startswith("dashboard: "))
        yield out, address
    finally:
        up.send_signal(signal.SIGINT)
        with up:
            up.communicate(timeout=120)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(chromium: Any, run: tuple[Path, str]) -> Iterator[Any]:
    made = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = made.new_page()
    page.goto(run[1])
    page.close()
    yield made
    made.close()


@pytest.fixture
def page(context: Any, run: tuple[Path, str]) -> Iterator[Any]:
    """The page, which complains of nothing in the browser's console."""
    complaints: list[str] = []
    made = context.new_page()
    made.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.goto(run[1].partition("/enter")[0])
    playwright.expect(made.locator("#link")).to_have_text("connected", timeout=LIMIT)
    yield made
    made.close()
    assert complaints == []


def trained(page: Any) -> None:
    text = page.locator("#steps h3").first
    playwright.expect(text).to_contain_text(
        re.compile(r"version ([4-9]|\d{2,}) "), timeout=2 * LIMIT
    )


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


def test_a_shard_that_is_killed_is_named_within_two_seconds(
    page: Any, run: tuple[Path, str]
) -> None:
    trained(page)
    shard = processes(run[0])["shard-1"]
    began = time.monotonic()
    shard.kill()
    playwright.expect(page.locator("#blocking")).to_contain_text("shard-1", timeout=SOON)
    print(f"named after {time.monotonic() - began:.2f} s")
    shot(page, "dashboard")
    playwright.expect(page.locator("#changes")).to_contain_text("shard-1", timeout=LIMIT)
    playwright.expect(page.locator("#now")).not_to_contain_text("shard-1", timeout=LIMIT)


@pytest.mark.parametrize("name", ["operator", "officer"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_found_by_axe_and_nothing_is_cut_off(
    page: Any, name: str, scheme: str
) -> None:
    trained(page)
    page.evaluate(f"location.hash = '{name}'")
    sound(page, name, scheme)


def sound(page: Any, name: str, scheme: str) -> None:
    """Nothing serious is found by axe, and nothing is cut off, on a desk and on a telephone."""
    page.emulate_media(color_scheme=scheme)
    playwright.expect(page.locator("h2").first).to_be_visible()
    for width in (1400, 1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 1400:
            assert page.evaluate(CUT) == [], "no table is to be scrolled on a desk"
        shot(page, f"{name}-{scheme}-{width}")
        if not AXE:
            continue
        page.evaluate(Path(AXE).read_text())
        found = page.evaluate("axe.run()")
        serious = [
            (each["id"], node["html"])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert serious == []
    if not AXE:
        pytest.skip("axe-core was not asked: SECUREPS_AXE names its axe.min.js")


class Asked:
    """The questions of a page, each answered as it is told to."""

    def __init__(self, page: Any) -> None:
        self.said: list[str] = []
        self.agrees = False
        page.on("dialog", self._answer)

    def _answer(self, dialog: Any) -> None:
        self.said.append(dialog.message)
        if self.agrees:
            dialog.accept()
        else:
            dialog.dismiss()


@contextmanager
def looking(chromium: Any, *arguments: str) -> Iterator[Any]:
    """The page of another dashboard, which complains of nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "secureps", "dashboard", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    other, complaints = chromium.new_context(viewport={"width": 1280, "height": 900}), []
    try:
        page = other.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(process.stdout.readline().split()[-1])
        playwright.expect(page.locator("#link")).to_have_text("connected", timeout=LIMIT)
        yield page
        assert complaints == []
    finally:
        other.close()
        process.terminate()
        with process:
            process.wait(20)


def by_keyboard(page: Any, name: str) -> None:
    """Presses a button that is reached by the keyboard alone."""
    page.locator("#page").focus()
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the keyboard does not reach {name!r}")


def test_blocks_that_move_are_shown_while_they_do(page: Any, run: tuple[Path, str]) -> None:
    """The shard that gets them is stopped, so that the move is there to be seen."""
    trained(page)
    parties = page.locator("#parties")
    asking = [sys.executable, "-m", "secureps", "shards"]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    there = processes(run[0])["shard-0"]
    there.suspend()
    try:
        drain = subprocess.Popen([*asking, "drain", "shard-1", str(run[0])], env=own)
        line = "Blocks move: drain-shard shard-1: 0 of "
        playwright.expect(parties).to_contain_text(line, timeout=LIMIT)
        shot(page, "dashboard-move")
    finally:
        there.resume()
    assert drain.wait(LIMIT / 1000) == 0
    playwright.expect(parties).not_to_contain_text("Blocks move", timeout=LIMIT)
    subprocess.run([*asking, "add", "shard-1", str(run[0])], env=own, check=True)


def test_an_operator_pauses_and_goes_on_by_keyboard(chromium: Any, run: tuple[Path, str]) -> None:
    with looking(chromium, str(run[0]), "--act") as page:
        trained(page)
        asked = Asked(page)
        for scheme in ("light", "dark"):
            sound(page, "acts", scheme)
        by_keyboard(page, "Pause")
        assert asked.said[0].startswith("Pause this run?")
        assert "paused" not in page.locator("#headline").inner_text()
        asked.agrees = True
        page.get_by_label("Why").fill("a visit")
        by_keyboard(page, "Pause")
        headline = page.locator("#headline")
        playwright.expect(headline).to_contain_text(
            "paused by the operator, a visit", timeout=LIMIT
        )
        if SHOTS:
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 1280, "height": 900})
            page.locator("#acts").screenshot(path=f"{SHOTS}/dashboard-acts.png")
        by_keyboard(page, "Make a checkpoint")
        by_keyboard(page, "Go on")
        playwright.expect(headline).not_to_contain_text("paused", timeout=LIMIT)


def test_an_operator_leaves_a_client_out_and_the_run_goes_on(
    chromium: Any, run: tuple[Path, str]
) -> None:
    with looking(chromium, str(run[0]), "--act") as page:
        asked = Asked(page)
        asked.agrees = True
        line = page.locator("p.acts", has=page.get_by_role("button", name="Leave out"))
        line.get_by_label("Client").select_option("client-05")
        line.get_by_role("button", name="Leave out").click(timeout=LIMIT)
        clients = page.locator("#clients")
        playwright.expect(clients).to_contain_text("left out: by the operator", timeout=LIMIT)
        assert asked.said[0].startswith("Leave client-05 out?")
        at = page.locator("#steps h3").first.inner_text()
        playwright.expect(page.locator("#steps h3").first).not_to_have_text(at, timeout=LIMIT)
        page.get_by_role("button", name="Take back").click(timeout=LIMIT)
        playwright.expect(clients).not_to_contain_text("left out", timeout=LIMIT)


def test_a_data_holder_pauses_its_client_and_lowers_its_budget(
    chromium: Any, run: tuple[Path, str]
) -> None:
    with looking(chromium, str(run[0]), "--name", "client-04", "--act") as page:
        playwright.expect(page.locator("#sent")).to_contain_text("update", timeout=LIMIT)
        asked = Asked(page)
        for scheme in ("light", "dark"):
            sound(page, "holder", scheme)
        by_keyboard(page, "Pause")
        assert len(asked.said) == 1
        assert not (run[0] / "state" / "client-04" / "acts.jsonl").exists()
        asked.agrees = True
        by_keyboard(page, "Pause")
        playwright.expect(page.locator("#acts")).to_contain_text("is paused", timeout=LIMIT)
        page.get_by_role("spinbutton").fill("4000")
        page.get_by_role("button", name="Lower it").click()
        playwright.expect(page.locator("#budget")).to_contain_text("own 4000", timeout=LIMIT)
        page.get_by_role("button", name="Go on").click()
        playwright.expect(page.locator("#acts")).not_to_contain_text("is paused", timeout=LIMIT)
        acts = page.locator("#acts table")
        for what in ("pause", "lower-budget 4000.0", "go-on"):
            playwright.expect(acts).to_contain_text(what, timeout=LIMIT)


def test_the_dark_page_is_dark(page: Any) -> None:
    def light() -> int:
        colors = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(colors.partition("(")[2].partition(",")[0])

    page.emulate_media(color_scheme="light")
    assert light() > 200
    page.emulate_media(color_scheme="dark")
    assert light() < 60


def test_all_of_it_is_reached_by_keyboard(page: Any) -> None:
    trained(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.hash") == "#operator"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#plan-title")).to_be_visible()
    assert page.evaluate("document.activeElement.hash") == "#officer", "the focus stays"
    found = (
        "[...document.querySelectorAll('main .scroll, main summary')]"
        ".filter((each) => each.checkVisibility())"
    )
    wanted = page.evaluate(f"{found}.length")
    reached = set()
    for _ in range(3 * wanted):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(f"{found}.indexOf(document.activeElement)"))
    assert wanted > 2
    assert set(range(wanted)) <= reached


def test_a_run_is_ended_after_one_more_question(chromium: Any, run: tuple[Path, str]) -> None:
    """The last but one: there is no run after it."""
    with looking(chromium, str(run[0]), "--act") as page:
        asked = Asked(page)
        trained(page)
        end = page.get_by_role("button", name="End the run in order")
        end.click(timeout=LIMIT)
        assert asked.said == ["End this run? secureps resume goes on with it."]
        assert not (run[0] / "acts.jsonl").exists()
        asked.agrees = True
        end.click()
        playwright.expect(page.locator("#headline")).to_contain_text("stopped", timeout=LIMIT)
        playwright.expect(page.locator("#acts table")).to_contain_text("observer", timeout=LIMIT)
        until(lambda: page.wait_for_timeout(100) or len(asked.said) == 3)  # it is told the result
        assert "resume goes on" in asked.said[-1]


def test_what_is_left_of_a_run_is_shown_calmly(chromium: Any, run: tuple[Path, str]) -> None:
    """The last of all: the run before was ended."""
    with looking(chromium, str(run[0])) as page:
        playwright.expect(page.locator("#clients")).to_contain_text("6 ended", timeout=LIMIT)
        playwright.expect(page.locator("#headline")).to_contain_text("stopped")
        playwright.expect(page.locator("#scores")).to_contain_text("No version was scored.")
        playwright.expect(page.locator("main .bad")).to_have_count(0)
        page.set_viewport_size({"width": 1400, "height": 900})
        assert page.evaluate(CUT) == []
        page.evaluate("location.hash = 'officer'")
        playwright.expect(page.locator("#spent")).to_contain_text("Of one record", timeout=LIMIT)
        playwright.expect(page.locator("#spent")).not_to_contain_text("Nothing is private")
        playwright.expect(page.locator("main .bad")).to_have_count(0)
        sound(page, "ended-officer", "light")
