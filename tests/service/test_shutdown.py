"""No signal is missed, whichever thread receives it and however many come."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from secureps.service.shutdown import SIGNALS, Shutdown

PATIENCE = 20.0
HANDLED = (*SIGNALS, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Resets the signal handlers, which a Shutdown leaves ignored after a signal."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def asleep(thread: int) -> bool:
    """Whether a thread of this process waits in the kernel."""
    with open(f"/proc/self/task/{thread}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_another_thread_gets_wakes_the_main_thread(number: signal.Signals) -> None:
    main = threading.main_thread().native_id
    assert main is not None

    def send() -> None:
        end = time.monotonic() + PATIENCE
        while not asleep(main) and time.monotonic() < end:
            time.sleep(0.001)
        signal.pthread_kill(threading.get_ident(), number)

    sender = threading.Thread(target=send)
    with Shutdown() as bell:
        sender.start()
        assert bell.wait() is number
    sender.join()


@pytest.mark.slow
def test_signals_that_come_before_anybody_waits() -> None:
    with Shutdown() as bell:
        for _ in range(100_000):  # more than a pipe holds
            signal.raise_signal(signal.SIGTERM)
        assert bell.wait() is signal.SIGTERM
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)


def test_rung_from_inside_it_puts_the_handlers_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    held = len(os.listdir("/proc/self/fd"))
    with Shutdown() as bell:

        def ring() -> None:
            for _ in range(100_000):
                bell.ring()

        ringer = threading.Thread(target=ring)
        ringer.start()
        assert bell.wait() is None
        ringer.join()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == held


def test_other_signals_do_not_ring_it() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    with Shutdown() as bell:
        signal.raise_signal(signal.SIGUSR1)
        bell.ring()
        assert bell.wait() is None
    assert seen == [signal.SIGUSR1]


def test_in_another_thread_it_is_rung_from_inside_alone() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    ended: list[signal.Signals | None] = []

    def wait() -> None:
        with Shutdown() as bell:
            assert [signal.getsignal(number) for number in SIGNALS] == before
            bell.ring()
            ended.append(bell.wait())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert ended == [None]


def test_a_signal_to_a_forked_child_is_the_childs_alone() -> None:
    """A pool ends its workers by SIGTERM, which once ended their parent instead."""
    with Shutdown() as bell:

        def fork() -> None:
            for _ in range(15):
                if not (child := os.fork()):
                    signal.pause()
                os.kill(child, signal.SIGTERM)  # it may not have run a line of Python yet
                _, status = os.waitpid(child, 0)
                assert os.WTERMSIG(status) == signal.SIGTERM
            bell.ring()

        forker = threading.Thread(target=fork)
        forker.start()
        assert bell.wait() is None
        forker.join()
        signal.raise_signal(signal.SIGTERM)
        assert bell.wait() is signal.SIGTERM, "its own still ring"
