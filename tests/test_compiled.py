"""Kernels are kept in a private folder of their sources, and nothing is compiled twice."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from secureps import compiled
from secureps.compiled import fall_back_to, has_all_kernels, keep_in, kernel_folder, load_kernels
from secureps.crypto.ring import RINGS, choose
from secureps.errors import ConfigError
from secureps.run import cli
from secureps.run.own_script import run_client
from secureps.run.up.programs import Order
from secureps.run.warm import EVERY_RING, warm, warm_once
from tests.kits.federations import Walker
from tests.kits.nursery import ROOT

USE = """
import numpy as np
from secureps import compiled
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.cipher import Place
from secureps.crypto.rlwe import RlweAdder, RlweOpener, RlweSealing
from secureps.run.warm import warm

def known():
    return [set(each.signatures) for each in compiled._KEPT.kernels]

print(warm())
before = known()
for levels in (65_534, 300_000):
    parameters, place = CipherParameters("rlwe", 32, levels), Place(bytes(32), "g", bytes(32), 9000)
    sealing, adder = RlweSealing(parameters, place), RlweAdder(parameters)
    values = np.arange(9000)
    for form in (bytes, bytearray, memoryview):
        payload = form(sealing.seal(len(form.__name__), values))
        adder.check(9000, payload)
        sums = adder.zero(9000)
        adder.add(sums, payload, 1)
        key = (sealing.key.coefficients().astype(np.int64), 1)
        total = form(adder.total(sums))
        found = RlweOpener(parameters, place, *key).open(len(form.__name__), total, 9000)
        assert np.array_equal(found, values)
print(len(before) > 10, known() == before, compiled.compiled_here(), compiled.has_all_kernels())
"""

OF_NO_RING = """
import sys
from secureps.run import cli, warm
warm.EVERY_RING = ()
sys.argv = ["secureps", *sys.argv[1:]]
cli.main()
"""
"""`secureps warm` of the kernels of codecs alone: those of every ring take twelve seconds more."""


def python(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Path]:
    """Where this process keeps kernels; afterwards it is as it was."""
    before, folder = compiled._KEPT.wanted, tmp_path / "kernels"
    keep_in(folder)
    yield folder
    compiled._KEPT.wanted, compiled._KEPT.folder = before, None


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has this process' sources be others: `clone(place, text, age)`."""

    def sources(place: str, text: str = "x = 1", age: int = 1) -> None:
        own, kernels = tmp_path / place / "compiled.py", tmp_path / place / "crypto" / "ntt.py"
        kernels.parent.mkdir(parents=True, exist_ok=True)
        for path, code in ((own, ""), (kernels, text)):
            path.write_text(code)
            os.utime(path, (age, age))
        monkeypatch.setattr(compiled, "__file__", str(own))

    return sources


def look() -> bool:
    """Whether all kernels are kept; from then on they are."""
    found = has_all_kernels()
    (kernel_folder() / compiled.ALL).touch()
    return found


def test_warming_covers_every_ring() -> None:
    assert {choose(parameters).ring for parameters in EVERY_RING} == set(RINGS)


def test_after_warming_no_process_compiles_anything() -> None:
    """Whoever seals, adds and opens bytes of every kind calls nothing that warming did not call.

    Nor is there a kernel that is called and not kept: all are, before or by the first line.
    """
    warm()
    first, second = python("-c", USE).splitlines()
    assert first.startswith("compiled 0 kernels in ")
    assert second == "True True 0 True"


def test_what_the_command_compiles_is_kept(tmp_path: Path) -> None:
    folder, said, kept = tmp_path / "deep" / "kernels", [], []
    for _ in range(2):
        said.append(python("-c", OF_NO_RING, "--kernels", str(folder), "warm"))
        kept.append(sorted(p.name for p in folder.rglob("*.nbc")))
    assert f"kept in {folder}/" in said[0]
    assert said[0].startswith(f"compiled {len(kept[0])} kernels in ")
    assert said[1].startswith("compiled 0 kernels in ")
    assert kept[0] == kept[1] != []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_environment_names_the_folder_too(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "secureps", "warm"],
        env={**os.environ, "SECUREPS_KERNELS": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "can be written to by them" in done.stderr
    assert "this side's fault" in done.stderr


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_may_write_to_is_refused(shelf: Path, mode: int) -> None:
    own = kernel_folder()
    assert own.parent == shelf
    for each in (shelf, own):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
        each.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 700 it"):
            kernel_folder()
        each.chmod(0o700)
    assert kernel_folder() == own


@pytest.mark.usefixtures("shelf")
def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_folder()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to others"):
        kernel_folder()


def test_a_folder_that_cannot_be_is_told(shelf: Path) -> None:
    shelf.write_text("")
    with pytest.raises(ConfigError, match="name another folder"):
        kernel_folder()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root becomes another")
def test_a_user_without_a_home_has_a_folder() -> None:
    """In a container: neither HOME nor an entry of the user's number; or a home that is root's."""
    nobody = 54321
    code = f"""
import os
from secureps.compiled import kernel_folder
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
print(kernel_folder())
"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        kept = Path(folder) / f"secureps-kernels-{nobody}"
        for home in ({}, {"HOME": "/nonexistent"}, {"HOME": "/"}):
            done = subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONPATH": str(ROOT), "TMPDIR": folder, **home},
                cwd="/",
                capture_output=True,
                text=True,
            )
            assert Path(done.stdout.strip()).parent == kept, done.stderr
            assert kept.stat().st_mode & 0o777 == 0o700


def test_the_same_sources_elsewhere_or_of_another_age_are_compiled_anew(
    shelf: Path, clone: Callable[..., None]
) -> None:
    """numba keeps a kernel by the place and age of its source: a clone's are not another's."""
    kept = []
    for place, age in (("one", 1), ("two", 1), ("two", 2), ("one", 1)):
        clone(place, age=age)
        kept.append(look())
    assert kept == [False, False, False, True]
    assert len(list(shelf.iterdir())) == 3


@pytest.mark.usefixtures("shelf")
def test_sources_behind_a_link_are_elsewhere_too(
    tmp_path: Path, clone: Callable[..., None]
) -> None:
    """As numba takes them to be: an environment whose packages are links compiles its own."""
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    for place in ("one", "link"):
        clone(place)
        assert (look(), look()) == (False, True)


def test_a_fork_that_is_told_of_another_folder_goes_by_it(shelf: Path, tmp_path: Path) -> None:
    """`up` forks its parties from a process that has loaded kernels already."""
    assert load_kernels().parent == shelf
    keep_in(tmp_path)
    assert load_kernels().parent == tmp_path


def test_other_sources_have_another_folder(shelf: Path, clone: Callable[..., None]) -> None:
    """numba would take a kernel whose callee, in another file, has changed."""
    for text in ("x = 1", "x = 2"):
        clone("one", text)
        kernel_folder()
    assert len(list(shelf.iterdir())) == 2


def test_who_plays_a_plan_warms_once_and_says_so(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    def compiling() -> None:
        assert said, "whoever waits knows for what"
        (kernel_folder() / compiled.ALL).touch()

    monkeypatch.setattr("secureps.run.warm.warm", compiling)
    for _ in range(2):
        assert warm_once(said.append) == shelf
    assert said == ["compiles kernels, once for this release: some seconds"]


@pytest.mark.usefixtures("shelf")
def test_kernels_of_another_processor_are_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (look(), look()) == (False, True)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "z80")
    assert not has_all_kernels()


@pytest.mark.usefixtures("shelf")
def test_every_process_of_up_hears_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers by the environment, a script by its command line: it reads no environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECUREPS_KERNELS", "")
    orders = list[Order]()
    monkeypatch.setattr("secureps.run.up.up.up", lambda order, console: orders.append(order))
    monkeypatch.setattr(sys, "argv", ["secureps", "--kernels", "own", "up", "x.toml"])
    with pytest.raises(SystemExit):
        cli.main()
    assert orders[0].environment["SECUREPS_KERNELS"] == str(tmp_path / "own")
    who = ["--server", "127.0.0.1:1", "--kit", "nowhere", "--name", "me"]
    with pytest.raises(SystemExit):
        run_client(lambda settings: Walker(0), [*who, "--kernels", "other"])
    assert "nowhere" in capsys.readouterr().err
    assert kernel_folder().parent == tmp_path / "other"


def test_without_numba_it_is_said_once_and_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "missing", "No module named 'numba'")
    monkeypatch.setattr(compiled._KEPT, "warned", False)

    def numpy() -> str:
        return "numpy"

    @fall_back_to(numpy)
    def kind() -> str:
        return "numba"

    for _ in range(2):
        assert kind() == "numpy"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith("numba cannot be imported (No module named 'numba'); pip install numba")
    assert has_all_kernels()
    assert compiled.kernel(len) is len
    monkeypatch.setattr(compiled, "missing", "")
    assert kind() == "numba"


ALONE = """
import sys
sys.modules.update(dict.fromkeys(("numba", "llvmlite")))
from secureps.run.cli import main
sys.argv = ["secureps", *sys.argv[1:]]
main()
"""


BROKEN = """
import sys

class Broken:
    def find_spec(self, name, *_):
        if name == "llvmlite":
            raise OSError("cannot load LLVM")

sys.meta_path.insert(0, Broken())
from secureps.compiled import missing
print(missing)
"""


def test_llvm_that_does_not_load_is_as_good_as_none() -> None:
    assert python("-c", BROKEN) == "cannot load LLVM\n"


def test_warm_says_that_there_is_no_numba() -> None:
    """In a process that cannot import it: both kinds of sums are opened, and all rings."""
    assert python("-c", ALONE, "warm").startswith("nothing is compiled without numba (")
