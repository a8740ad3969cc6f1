"""Settings of all tests."""

from hypothesis import settings

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile("secureps", deadline=None)
settings.load_profile("secureps")
