"""What holds for every test, however the suite was started."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys

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
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_no_process_of_a_test_compiles_what_another_has() -> None:
    written = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.run(written, capture_output=True, text=True, check=True).stdout == "False\n"
