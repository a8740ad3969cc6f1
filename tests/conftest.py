"""Settings of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

import secureps.wire.grpc  # noqa: F401  # before any test imports gRPC itself
from secureps.service.malloc import GC_THRESHOLDS
from secureps.store import journal

pytest.register_assert_rewrite("tests.kits.transport_kit")  # its contract is made of tests

# A shell starts what runs in the background with SIGINT ignored, child processes inherit what
# is ignored, and Python then leaves it so: no process of a test would hear Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a process wrote outlives it; the disk is waited for on account of power cuts, and
# three quarters of a simulation's time would be that. Tests that play power cuts put a disk that
# records in its place.
os.fsync = os.fdatasync = lambda fd: None
AS_DEPLOYED, journal.SYNCHRONOUS = journal.SYNCHRONOUS, "OFF"

# As for every command; before anything imports torch, whose threads cost five times what they
# do with models of this size.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where bytecode may not lie beside the sources, each of some hundred processes would compile them
# again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent.parent / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests write some hundred thousand small files. A disk that discards blocks takes a millisecond to
# remove each, and pytest removes those of older runs.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    space = os.statvfs(MEMORY)
    if space.f_bavail * space.f_frsize > 4 << 30 and not space.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

PROCESSES = Path(__file__).parent / "processes"
STARTERS = frozenset(
    {"Popen", "spawn", "subprocess", "Processes", "bare", "supervise_children"}
    | {"ProcessPoolExecutor"}
)

# Nothing that is collected goes away before the end: a quarter of the time of collecting tests
# would be searching it for what does.
gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Of several processes each imports another part first: what one rewrites, all others find."""
    given, here = getattr(session.config, "workerinput", None), Path(__file__).parent
    if given is None or [Path(each).absolute() for each in session.config.args] != [here]:
        return
    first = int(given["workerid"].removeprefix("gw"))
    for path in sorted(here.rglob("test_*.py"))[first :: given["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # said when it is collected
            import_module(".".join(path.relative_to(here.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what starts processes; other tests say it themselves."""
    for item in items:
        code = getattr(getattr(item, "function", None), "__code__", None)
        starts = STARTERS & set(code.co_names if code else ())
        if starts or item.path.is_relative_to(PROCESSES):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """As in a simulation: what is there stays, and of what comes nearly all goes by itself."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


# How long an example takes depends on what else the machine does: never a reason to fail. Each run
# tries the same examples; `pytest --hypothesis-profile explore` tries others.
settings.register_profile("explore", deadline=None, derandomize=False)
settings.register_profile("secureps", deadline=None, derandomize=True)
settings.load_profile("secureps")


@pytest.fixture(params=["numba", "numpy"], scope="module")
def kernel_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Has each test of a module tried with numba's kernels, and with NumPy's."""
    if request.param == "numba":
        pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr("secureps.compiled.missing", "a test does without it")
            patch.setattr("secureps.compiled._KEPT.warned", True)
        yield request.param
