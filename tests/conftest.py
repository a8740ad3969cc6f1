"""Settings of all tests."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.transport_kit")  # its contract is made of tests

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile("secureps", deadline=None)
settings.load_profile("secureps")
