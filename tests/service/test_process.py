"""A party's process ends silently with status 0 on signals, however many come."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.errors import ConfigError, DiskFailed, OperatorError
from secureps.run.processes.launcher import GRACE
from secureps.service import process
from secureps.service.process import LAST_RESORT, choose_address
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
