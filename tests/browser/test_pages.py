"""The dashboard in a real browser, beside a run of `up` whose shard is killed: `make browser`.

It needs playwright and a Chromium (SECUREPS_CHROMIUM, or one on the path), and takes axe-core from
the file that SECUREPS_AXE names. What is not there is skipped, and said.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.nursery import ROOT
from tests.run.up.test_up import processes, write_plan

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
SHOTS = os.environ.get("SECUREPS_SHOTS", "")
"""A folder to keep pictures in; none are made without."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A long run of `up`, and the address that it prints."""
    folder = tmp_path_factory.mktemp("browser")
    plan = write_plan(folder / "plan.toml", "rlwe", 6, WALKERS)
    text = plan.read_text().replace("versions = 3", "versions = 400").replace("50.0", "5000.0")
    plan.write_text(f"{text}\n")
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
    """A browser that is let in."""
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
    """Waits until there are some versions to be seen."""
    text = page.locator("#steps h3").first
    for _ in range(600):
        said = text.inner_text() if text.count() else ""
        if any(f"version {number} " in said for number in range(4, 400)):
            return
        page.wait_for_timeout(200)
    raise AssertionError(said)


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
    page.emulate_media(color_scheme=scheme)
    page.evaluate(f"location.hash = '{name}'")
    playwright.expect(page.locator("h2").first).to_be_visible()
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
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


def test_who_has_no_cookie_sees_nothing(chromium: Any, run: tuple[Path, str]) -> None:
    other = chromium.new_context()
    page = other.new_page()
    for address in (run[1].partition("/enter")[0], run[1]):
        answer = page.goto(address)
        assert answer.status == 401
        assert "client-0" not in page.content()
    other.close()


def test_a_data_holder_sees_itself_alone(chromium: Any, run: tuple[Path, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "secureps", "dashboard", str(run[0]), "--name", "client-00"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    other = chromium.new_context(viewport={"width": 400, "height": 900})
    try:
        page = other.new_page()
        page.goto(process.stdout.readline().split()[-1])
        playwright.expect(page.locator("#budget")).to_contain_text("epsilon", timeout=LIMIT)
        playwright.expect(page.locator("#sent")).to_contain_text("update", timeout=LIMIT)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        shot(page, "holder-400")
        for name in ("holder", "operator"):
            page.evaluate(f"location.hash = '{name}'")
            page.wait_for_timeout(300)
            assert not any(f"client-0{i}" in page.content() for i in range(1, 6))
    finally:
        other.close()
        process.terminate()
        with process:
            process.wait(20)


def test_a_run_is_ended_after_one_more_question(chromium: Any, run: tuple[Path, str]) -> None:
    """The last of all: there is no run after it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "secureps", "dashboard", str(run[0]), "--act"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    other, asked = chromium.new_context(), []
    agreed = False

    def answer(dialog: Any) -> None:
        asked.append(dialog.message)
        if agreed:
            dialog.accept()
        else:
            dialog.dismiss()

    try:
        page = other.new_page()
        page.on("dialog", answer)
        page.goto(process.stdout.readline().split()[-1])
        end = page.get_by_role("button", name="End the run in order")
        end.click(timeout=LIMIT)
        assert asked == ["End this run? secureps resume goes on with it."]
        assert not (run[0] / "acts.jsonl").exists()
        agreed = True
        end.click()
        playwright.expect(page.locator("#headline")).to_contain_text("stopped", timeout=LIMIT)
        playwright.expect(page.locator("#acts table")).to_contain_text("observer", timeout=LIMIT)
        for _ in range(200):
            if len(asked) == 3:
                break
            page.wait_for_timeout(100)
        assert len(asked) == 3, "and it is told what came of it"
        assert "resume goes on" in asked[-1]
    finally:
        other.close()
        process.terminate()
        with process:
            process.wait(20)
