"""A party's process misses no signal, ends silently with status 0, and hears of its own kit."""

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.errors import ConfigError, DiskFailed, OperatorError
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.roles.machine import WORKER, Event, KitRead
from secureps.run.processes.launcher import GRACE
from secureps.service import process
from secureps.service.executor import Executor
from secureps.service.process import (
    LAST_RESORT,
    ActWatch,
    KitWatch,
    act_text,
    choose_address,
    own_act,
)
from secureps.service.shutdown import SIGNALS, Shutdown
from secureps.store.act_lines import FILE, ActLine, ActLines
from secureps.store.keyring import roster_file
from secureps.wire.grpc.framing import PLAINTEXT
from secureps.wire.grpc.servers import CoordinatorServer
from secureps.wire.transport import Endpoint
from tests.kits.nursery import ROOT

PARTY = """
import os, signal, sys, threading, time
from pathlib import Path
from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.messages.records import Incarnated
from secureps.roles.machine import Halt, Step, Work
from secureps.service import process, shutdown
from secureps.service.executor import Executor
from secureps.wire.grpc.framing import PLAINTEXT
from secureps.wire.grpc.servers import ShardServer
from tests.kits.nursery import ROOT

ca, own = Identity.generate(), Identity.generate()
roster = sign_roster(ca, [certify(ca, "shard-0", "shard", own.public.key, b"")])

class Machine:
    effects = []
    def apply(self, at, record): pass
    def resume(self, now): return Step([Incarnated(1)], list(self.effects))
    def handle(self, now, sender, event): return Step()
    def inspect(self, sender, message): return True
    def wake(self): return None

class Worker:
    def work(self, task):
        print("at work", flush=True)
        threading.Event().wait()
    def take(self, request, payload): return lambda: None
    def fetch(self, key): raise KeyError(key)
    def seconds(self, task): return 0.0

def run(state, machine):
    kit = Path(state, "kit", "public")
    kit.mkdir(parents=True, exist_ok=True)
    (kit / "roster.json").write_bytes(roster.to_bytes())
    def build(stores, around):
        return Executor("shard-0", machine, stores.journal, around, Worker())
    party = process.Party("shard-0", own, PLAINTEXT, roster, Path(state), kit.parent)
    def serve(link, endpoint, listen, authenticate):
        return ShardServer(link, "shard-0", endpoint, listen, authenticate, 1, 1)
    with process.choose_address(Path(state), "127.0.0.1:0") as listen:
        return process.run_process(party, {}, build, serve, listen)
"""


def play(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PARTY + script, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


EVERYWHERE = """
def tell(moment, often):
    files = (process.__file__, shutdown.__file__)
    def trace(frame, event, argument):
        nonlocal moment
        if frame.f_code.co_filename not in files:
            return None
        if event in ("call", "line") and signal.getsignal(signal.SIGINT) is shutdown._nothing:
            moment -= 1
            if moment == 0 or moment < 0 and often:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
            if frame.f_code.co_name == "wait" and moment > 0:
                sys.exit(4)  # past the last line before the wait
        return trace
    sys.settrace(trace)
    halt = run(f"{sys.argv[1]}/{moment}", Machine())
    assert halt == Halt("stopped"), halt
    sys.exit(0)

codes = {}
while 4 not in codes.values():
    children = {}
    for moment in range(len(codes) + 1, len(codes) + 13):
        if not (child := os.fork()):
            tell(moment, bool(moment % 2))
        children[child] = moment
    for child, moment in children.items():
        codes[moment] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert set(codes.values()) <= {0, 4}, codes
assert 0 in codes.values(), codes
print(len(codes))
"""


@pytest.mark.slow
def test_signals_at_any_line(tmp_path: Path) -> None:
    """SIGTERM and SIGINT come at every line before the wait, once or repeatedly."""
    played = play(EVERYWHERE, str(tmp_path))
    told, complaint = played.communicate(timeout=120)
    assert (played.returncode, complaint) == (0, "")
    assert int(told) > 30


WORKING = """
process.LAST_RESORT = 0.3
machine = Machine()
machine.effects = [Work("for ever")]
run(sys.argv[1], machine)
print("the rest of it")
"""


@pytest.mark.slow
def test_a_work_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    played = play(WORKING, str(tmp_path))
    assert played.stdout is not None
    assert played.stdout.readline() == "at work\n"
    for _ in range(3):
        played.send_signal(signal.SIGTERM)
    told, complaint = played.communicate(timeout=60)
    assert (played.returncode, told, complaint) == (0, "the rest of it\n", "")


TIDYING = """
process.LAST_RESORT = 0.2
machine = Machine()
machine.effects = [Work("a while")]
run(sys.argv[1], machine)
threading.Event().wait(4 * process.LAST_RESORT)
print("saved")
"""


def test_what_a_script_does_after_a_signal_is_not_cut_off(tmp_path: Path) -> None:
    """A script may take any time after `run_client` to write its own results."""
    played = play(TIDYING, str(tmp_path))
    assert played.stdout is not None
    assert played.stdout.readline() == "at work\n"
    played.send_signal(signal.SIGTERM)
    told, complaint = played.communicate(timeout=60)
    assert (played.returncode, told, complaint) == (0, "saved\n", "")


def test_the_last_resort_comes_before_a_supervisor_kills() -> None:
    assert LAST_RESORT < GRACE


HALTING = """
machine = Machine()
machine.effects = [Halt("all is done")]
assert run(sys.argv[1], machine) == Halt("all is done")
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_after_a_halt_signals_mean_what_they_meant_before(tmp_path: Path) -> None:
    played = play(HALTING, str(tmp_path))
    assert played.stdout is not None
    assert played.stdout.readline() == "up\n"
    played.terminate()
    _, complaint = played.communicate(timeout=60)
    assert (played.returncode, complaint) == (-signal.SIGTERM, "")


def drawn(address: str) -> bool:
    """Whether another process could be given this port of 127.0.0.1 now."""
    with socket.socket() as other, suppress(OSError):
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        return True
    return False


def test_a_port_is_kept(tmp_path: Path) -> None:
    with choose_address(tmp_path, "127.0.0.1:0") as first:
        assert first.startswith("127.0.0.1:")
        assert not drawn(first)
    assert drawn(first)
    (tmp_path / "address").write_text(first + "\n")
    with choose_address(tmp_path, "127.0.0.1:0") as again:
        assert again == first
        assert not drawn(first)
    with choose_address(tmp_path, "127.0.0.1:7") as given:
        assert given == "127.0.0.1:7"


def test_an_empty_note_of_the_last_port_is_none(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("\n")
    with choose_address(tmp_path, "127.0.0.1:0") as listen:
        assert int(listen.rpartition(":")[2]) > 0


def test_a_chosen_port_is_its_servers_alone_before_and_after_it_listens(tmp_path: Path) -> None:
    def server(listen: str) -> CoordinatorServer:
        return CoordinatorServer(PLAINTEXT, cast(Endpoint, None), listen, lambda *_: None)

    with choose_address(tmp_path, "127.0.0.1:0") as listen:
        one = server(listen)
        one.start()
        assert not drawn(listen)
        with pytest.raises(OperatorError, match=f"cannot listen on {listen}: in use"):
            server(listen).start()
        (tmp_path / "address").write_text(listen + "\n")
        with choose_address(
            tmp_path, "127.0.0.1:0"
        ) as taken:  # as a second process of this party would
            assert taken == listen
        one.stop(0.0)
        again = server(listen)  # as a coordinator that was alone, in the same process
        again.start()
        again.stop(0.0)


@pytest.mark.parametrize("listen", ["127.0.0.1", "here", ":80", "127.0.0.1:x", "203.0.113.1:0"])
def test_addresses_that_are_none(listen: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="listen: "), choose_address(tmp_path, listen):
        raise AssertionError


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, DiskFailed, r"state: No space left on device"),
        (errno.EIO, OperatorError, r"/there: Input/output error"),
    ],
)
def test_a_disk_that_refuses_is_the_operators_and_no_traceback(
    number: int,
    kind: type[OperatorError],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*given: object) -> None:
        where = ("/there",) if number == errno.EIO else ()
        raise OSError(number, os.strerror(number), *where)

    monkeypatch.setattr(process, "_run", refuses)
    ca, own = Identity.generate(), Identity.generate()
    roster = sign_roster(ca, [certify(ca, "shard-0", "shard", own.public.key, b"")])
    party = process.Party("shard-0", own, PLAINTEXT, roster, tmp_path / "state", tmp_path)
    with pytest.raises(kind, match=said):
        process.run_process(party, {}, lambda *given: pytest.fail("is not built"))


@pytest.mark.parametrize(
    ("error", "ends"),
    [(RuntimeError("can't start new thread"), True), (ValueError("a bug"), False)],
)
def test_a_thread_that_met_a_limit_ends_the_process(
    error: Exception, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, passed = list[BaseException](), list[object]()
    executor: Any = SimpleNamespace(fail=failed.append)
    monkeypatch.setattr(
        threading, "excepthook", partial(process._fail_on_limit, executor, passed.append)
    )

    def fall() -> None:
        raise error

    thread = threading.Thread(target=fall)
    thread.start()
    thread.join()
    assert (failed == [error], bool(passed)) == (ends, not ends)


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


ME = Identity(bytes(range(32)))


class Posted(Executor):
    """An executor that collects posted events, and runs later actions on demand."""

    def __init__(self) -> None:
        self.run = b"run"
        self.told: list[KitRead] = []
        self.acts: list[OwnAct] = []
        self.later_on: list[tuple[float, Callable[[], None]]] = []

    def post(self, sender: str, event: Event) -> None:
        assert sender == WORKER
        if isinstance(event, OwnAct):
            self.acts.append(event)
        else:
            assert isinstance(event, KitRead)
            self.told.append(event)

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self.later_on.append((delay, action))

    def turn(self) -> None:
        """Runs the waiting action."""
        ((_, action),) = self.later_on
        self.later_on.clear()
        action()

    def next_roster(self) -> str:
        """Runs the waiting action; returns the posted roster."""
        self.turn()
        return self.told[-1].roster

    def deeds(self) -> list[OwnAct]:
        """Runs the waiting action; returns the posted acts."""
        self.turn()
        told, self.acts = self.acts, []
        return told


def test_a_roster_is_told_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.5)
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).start()
    assert [posted.next_roster() for _ in range(3)] == ["one", "", ""]
    assert posted.later_on[0][0] == KitWatch.LOOK
    path.write_text("two")
    os.utime(path, ns=(1, 1))  # a copy may be older than what it takes the place of
    assert [posted.next_roster() for _ in range(2)] == ["two", ""]
    assert {event.unix for event in posted.told} == {1234.5}


def test_a_party_of_one_wave_looks_once(tmp_path: Path) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).once()
    assert posted.next_roster() == "one"
    assert posted.later_on == []


def test_a_roster_that_is_gone_or_open_to_others_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    KitWatch("c0", posted, tmp_path).start()
    with caplog.at_level(logging.WARNING):
        assert posted.next_roster() == ""
        assert posted.next_roster() == ""
    path.write_text("one")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert posted.next_roster() == ""
    assert "open to others" in caplog.text
    path.chmod(0o644)
    path.write_text("three")
    assert posted.next_roster() == "three"


def test_lines_are_told_when_there_are_more(tmp_path: Path) -> None:
    posted, lines = Posted(), ActLines(tmp_path, "client-00", ME)
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    lines.note(act_text(OwnDeed.PAUSE))
    assert posted.deeds() == [OwnAct(1, "pause")]
    assert posted.deeds() == []
    lines.note(act_text(OwnDeed.LOWER_BUDGET, 0.1))
    assert posted.deeds()[-1] == OwnAct(2, "lower-budget", 0.1)


def test_what_was_wanted_before_the_run_is_told_once_it_takes_part(tmp_path: Path) -> None:
    posted = Posted()
    posted.run = b""
    ActLines(tmp_path, "client-00", ME).note("pause")
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    posted.run = b"run"
    assert posted.deeds() == [OwnAct(1, "pause")]
    assert posted.deeds() == []


@pytest.mark.parametrize("what", ["end", "", "pause x", "lower-budget much"])
def test_what_no_client_does_is_said_and_not_done(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    posted = Posted()
    ActLines(tmp_path, "client-00", ME).note(what)
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    assert "does nothing of what its data holder wants" in caplog.text


def test_what_another_key_signed_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    posted = Posted()
    ActLines(tmp_path, "client-00", Identity(bytes(32))).note("leave")
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    assert "act 1 is not what was signed" in caplog.text
    (tmp_path / FILE).unlink()
    assert posted.deeds() == []


def test_a_budget_is_read_as_it_was_written() -> None:
    for budget in (0.1, 1e-9, 3.0, 1e300):
        text = act_text(OwnDeed.LOWER_BUDGET, budget)
        assert own_act(ActLine(1, "", "", text, "")).budget == budget
