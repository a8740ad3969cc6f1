"""What holds for every test, however the suite was started."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys

import pytest

from secureps.run.simulate.garbage import SELDOM
from tests.kits import slow
from tests.kits.nursery import ROOT

STARTED_IN_THE_BACKGROUND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import tests.conftest
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_the_suite_hears_ctrl_c_where_a_shell_had_it_ignored() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED_IN_THE_BACKGROUND],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


def test_it_hears_it_now_and_so_will_its_children() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_what_is_collected_stays_and_what_tests_make_goes() -> None:
    """Simulations that other tests played have given nothing of it back."""
    assert gc.isenabled()
    assert gc.get_threshold() == SELDOM
    assert gc.get_freeze_count() > 0


def test_no_process_of_a_test_compiles_what_another_has() -> None:
    written = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.run(written, capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_is_slow_is_known_by_its_name_or_by_what_it_starts(
    request: pytest.FixtureRequest,
) -> None:
    me = request.node
    assert me.get_closest_marker("slow") is None
    assert not slow.is_slow(me, frozenset({"test_another"}))
    assert slow.is_slow(me, frozenset({me.name}))
    starter = pytest.Function.from_parent(
        me.parent, name="it", callobj=test_the_suite_hears_ctrl_c_where_a_shell_had_it_ignored
    )
    assert slow.is_slow(starter, frozenset())


def test_slow_tests_exist() -> None:
    """A name that nobody has any more hides that its test is measured no longer."""
    paths = (ROOT / "tests").rglob("*.py")
    there = {name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text())}
    machines = {"runTest"}  # what hypothesis calls the test of a state machine
    gone = {name.partition("[")[0] for name in slow.listed()} - there - machines
    assert not gone, f"take them out of {slow.LIST.name}, or give them their new names: {gone}"
