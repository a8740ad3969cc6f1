"""Makes a process as poor as one on Windows, then runs a script.

    python elsewhere.py [WITHOUT ...] -- SCRIPT ARGUMENT ...

What secureps must do without is taken away before it is imported: POSIX's modules, functions,
signals and kinds of sockets; owners and modes of files; directories that can be opened; files that
are replaced or removed while somebody has them open; text that is read as the locale would have it.
`WITHOUT` names more modules that cannot be imported. Libraries are imported before: they know
their own system. What is left is Linux's: how paths are spelt, and how processes are started.
"""

import importlib
import os
import runpy
import shutil
import stat
import sys
import tempfile
import warnings
from types import ModuleType
from typing import Any

LIBRARIES = (
    *("asyncio", "concurrent.futures", "ctypes", "multiprocessing", "multiprocessing.connection"),
    *("mmap", "random", "select", "selectors", "shutil", "signal", "socket", "sqlite3"),
    *("subprocess", "tempfile", "threading", "uuid", "blake3", "click", "cryptography.x509"),
    *("grpc", "grpc.aio", "grpc.experimental", "grpc_health.v1.health"),
    *("numpy", "prometheus_client", "psutil", "pydantic", "rich.console", "safetensors.numpy"),
    *("setproctitle", "tomli_w", "typer"),
)
LARGE = ("llvmlite.binding", "numba", "numba.extending", "scipy.special", "dp_accounting")
"""Imported likewise, unless they are to be missing."""

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = {
    "os": """
        chown copy_file_range eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf
        fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getresuid
        getsid getuid initgroups killpg lchown lockf major makedev memfd_create minor mkfifo mknod
        nice openpty pathconf pidfd_open posix_fadvise posix_fallocate posix_spawn posix_spawnp
        pread preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_setaffinity
        sched_yield sendfile set_blocking setegid seteuid setgid setgroups setpgid setpriority
        setsid setuid splice statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname unshare wait
        wait3 wait4 waitid writev
        O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK
        O_PATH O_SYNC PRIO_PROCESS WNOHANG""",
    "signal": """
        SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP
        SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGVTALRM ITIMER_REAL alarm getitimer pause pthread_kill
        pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo""",
    "socket": "AF_UNIX CMSG_LEN CMSG_SPACE SCM_RIGHTS SO_REUSEPORT recv_fds send_fds",
    "mmap": """
        MADV_HUGEPAGE MADV_DONTNEED MADV_WILLNEED MAP_ANON MAP_ANONYMOUS MAP_POPULATE MAP_PRIVATE
        MAP_SHARED PROT_READ PROT_WRITE""",
    "select": "epoll poll",
    "time": "CLOCK_MONOTONIC_RAW CLOCK_THREAD_CPUTIME_ID clock_gettime clock_settime tzset",
}
"""What the modules of the standard library have on Linux, and not on Windows."""


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    without, (script, *rest) = arguments[:split], arguments[split + 1 :]
    for name in (*LIBRARIES, *(each for each in LARGE if each.partition(".")[0] not in without)):
        importlib.import_module(name)
    fcntl: Any = importlib.import_module("fcntl")
    for name in (*MODULES, *without):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = windows_locks(fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    restrict_files()
    restrict_sockets()
    restrict_libraries()
    for module, names in FUNCTIONS.items():
        for name in names.split():
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)
    warnings.simplefilter("error")  # of ours: libraries read their own files as they like
    assert not [name for name in sys.modules if name.partition(".")[0] == "secureps"]
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")


def windows_locks(flock: Any, exclusive: int) -> ModuleType:
    """A made-up `msvcrt`, which locks bytes from where a file is read."""
    module = ModuleType("msvcrt")
    made: Any = module
    made.LK_UNLCK, made.LK_LOCK, made.LK_NBLCK = 0, 1, 2

    def locking(file: int, mode: int, count: int) -> None:
        assert os.lseek(file, 0, os.SEEK_CUR) >= 1 << 30, "what is locked, nobody else can read"
        assert count == 1
        flock(file, {made.LK_UNLCK: 8, made.LK_NBLCK: exclusive}[mode])

    made.locking = locking
    return module


def restrict_files() -> None:
    """Modes that say nothing, directories that nobody opens, open files that stay."""
    system: Any = os
    system.O_BINARY = 1 << 15
    os_open, os_replace, os_stat = os.open, os.replace, os.stat

    def opened(path: Any, flags: int, mode: int = 0o777, **given: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        text = flags & os.O_RDWR and not flags & system.O_BINARY
        assert not (text and os.path.isfile(path)), f"{path}: its last byte goes if it is a Ctrl-Z"
        return os_open(path, flags & ~system.O_BINARY, mode, **given)

    def without_mode(found: os.stat_result) -> os.stat_result:
        kind = stat.S_IFMT(found.st_mode)
        first = kind | (0o777 if stat.S_ISDIR(kind) else 0o666)
        more = {
            name: getattr(found, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
        }
        return os.stat_result([first, *found[1:4], 0, 0, *found[6:]], more)

    def held(path: Any) -> None:
        whole = os.path.realpath(path)
        for each in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{each}") == whole:
                    raise PermissionError(13, "a file of this process that is open", whole)
            except FileNotFoundError:
                continue

    def replaced(source: Any, target: Any, **given: Any) -> None:
        held(source)
        held(target)
        os_replace(source, target, **given)

    def removed(before: Any) -> Any:
        def action(path: Any, **given: Any) -> None:
            if os.path.lexists(path):
                held(path)
            before(path, **given)

        return action

    made: Any = shutil
    made._use_fd_functions = False  # they open directories, and are chosen when it is imported
    system.open, system.replace = opened, replaced
    system.unlink, system.remove = removed(os.unlink), removed(os.remove)
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[assignment]
    fstat, lstat = os.fstat, os.lstat
    system.fstat = lambda file: without_mode(fstat(file))
    system.lstat = lambda path, **given: without_mode(lstat(path, **given))
    system.stat = lambda path, **given: without_mode(os_stat(path, **given))


def restrict_sockets() -> None:
    """Pairs of sockets are TCP's, and a pipe is nothing to wait for."""
    import select
    import socket

    def socketpair(*_: Any) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            one = socket.create_connection(listener.getsockname())
            return one, listener.accept()[0]

    before = select.select

    def selected(*given: Any) -> Any:
        assert all(isinstance(each, socket.socket) for some in given[:3] for each in some)
        return before(*given)

    socket.socketpair = socketpair  # type: ignore[assignment]
    select.select = selected


def restrict_libraries() -> None:
    """There is no C library that a process has without naming it."""
    import ctypes

    class Library(ctypes.CDLL):
        def __init__(self, name: str | None, *given: Any, **more: Any) -> None:
            if name is None:
                raise TypeError("LoadLibrary() argument 1 must be str, not None")
            super().__init__(name, *given, **more)

    ctypes.CDLL = Library  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1:])
