"""Settings of all tests."""

import signal

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.transport_kit")  # its contract is made of tests

# A shell starts what runs in the background with SIGINT ignored, child processes inherit what
# is ignored, and Python then leaves it so: no process of a test would hear Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile("secureps", deadline=None)
settings.load_profile("secureps")
