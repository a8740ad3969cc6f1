"""Privacy: a script without a network reaches no address, and ends in the same bits."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import FitConfig, RecordPrivacy, Trainer
from secureps.errors import ConfigError, ScriptFailed
from secureps.run.script import cut_off as room
from secureps.run.script.cut_off import cut_off

SCRIPT = """
import os, socket, numpy as np, secureps as ps

class Own:
    def parameters(self, seed):
        rng = np.random.default_rng(seed)
        return {"z": rng.standard_normal((3, 2)).astype("f4"), "a": np.zeros((), "i8")}

    def fit(self, parameters, config):
        self.seen = config
        assert list(parameters) == ["z", "a"]
        assert config.privacy is None or config.privacy == ps.RecordPrivacy(1.1, 1.0, 0.1, 1e-5)
        assert config.secret == bytes(range(32))
        rng = np.random.default_rng(config.seed)
        moved = parameters["z"] + rng.standard_normal((3, 2)).astype("f4")
        return ps.FitResult({"z": moved, "a": parameters["a"] + 1}, 7, {"loss": 0.1}, 3)

    def evaluate(self, parameters):
        return ps.EvaluateResult(None, np.int64(5), {"accuracy": np.float32(0.5)})

    def examples(self):
        return np.int64(7)

    def kinds(self):
        return {"a": "counter"}

    def touches(self):
        return {"z": np.array([2, 0])}

    def report_at(self, parameters, versions, message):
        if message == "train":
            return None
        return ps.EvaluateResult(None, 3, {message: parameters["z"].sum() + versions["all"]})


class Caller(Own):
    def fit(self, parameters, config):
        for family, where in TRIES:
            with socket.socket(family, socket.SOCK_STREAM) as own:
                own.settimeout(5)
                try:
                    own.connect(where)
                except OSError:
                    continue
                raise AssertionError(f"reached {where}")
        assert os.getuid() == UID
        return super().fit(parameters, config)


class Lists(Own):
    def fit(self, parameters, config):
        for number in os.listdir("/proc/self/fd"):
            try:
                found = os.stat(int(number))
            except OSError:  # that of the listing itself
                continue
            assert found.st_ino != INODE, number
            assert int(number) <= 2 or not os.get_inheritable(int(number)), number
        return super().fit(parameters, config)


class Ends(Own):
    def fit(self, parameters, config):
        os._exit(3)


def make(settings):
    global TRIES, UID, INODE
    INODE = settings.get("inode")
    port, UID = settings["port"], settings["uid"]
    abstract = "\\0" + settings["abstract"]
    TRIES = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, abstract)]
    if settings["kind"] == "raises":
        raise ValueError("no such records")
    return {"own": Own, "caller": Caller, "ends": Ends, "lists": Lists}[settings["kind"]]()
"""
PRIVACY = RecordPrivacy(1.1, 1.0, 0.1, 1e-5)
CONFIG = FitConfig({"all": 2}, 11, {"lr": 0.5}, PRIVACY, secret=bytes(range(32)))


def taken(trainer: Trainer) -> tuple[object, ...]:
    """All that a trainer answers."""
    start = trainer.parameters(5)
    fitted = trainer.fit(start, CONFIG)
    result = trainer.evaluate(start)
    told = [getattr(trainer, name)() for name in ("examples", "kinds")]
    rows = {name: list(each) for name, each in getattr(trainer, "touches", dict)().items()}
    reports = getattr(trainer, "report_at", None)
    if reports is not None:
        told += [reports(start, {"all": 4}, message) for message in ("train", "query")]
    tensors = [
        (name, each.dtype, each.shape, each.tobytes())
        for made in (start, fitted.parameters)
        for name, each in made.items()
    ]
    numbers = (fitted.examples, fitted.metrics, fitted.steps)
    judged = (result.loss, result.examples, result.metrics)
    return tensors, numbers, judged, told, rows


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def settings(listener: socket.socket, kind: str) -> dict[str, int | str]:
    port = listener.getsockname()[1]
    return {"port": port, "uid": os.getuid(), "kind": kind, "abstract": f"secureps-{port}"}


def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


def test_its_answers_are_those_of_the_script_itself(
    tmp_path: Path, listener: socket.socket
) -> None:
    own, path = settings(listener, "own"), script(tmp_path)
    with listener, cut_off(path, own, tmp_path / "state", "a") as trainer:
        assert taken(trainer) == taken(Script(path).make(own))
        assert not hasattr(trainer, "evaluate_at")
        assert not hasattr(trainer, "initial_digest")


def test_it_reaches_nobody(tmp_path: Path, listener: socket.socket) -> None:
    own, path = settings(listener, "caller"), script(tmp_path)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + str(own["abstract"]))
    abstract.listen()
    with listener, abstract:
        beside = Script(path).make(own)
        with pytest.raises(AssertionError, match="reached"):
            beside.fit(beside.parameters(0), CONFIG)
        with cut_off(path, own, tmp_path / "state", "a") as trainer:
            assert trainer.fit(trainer.parameters(0), CONFIG).steps == 3


def test_it_has_none_of_the_clients_open_files(tmp_path: Path, listener: socket.socket) -> None:
    """Nor does a program that it starts have the way to the client."""
    (tmp_path / "journal.db").write_bytes(b"rows")
    held = os.open(tmp_path / "journal.db", os.O_RDWR)
    os.set_inheritable(held, True)
    own = {**settings(listener, "lists"), "inode": os.fstat(held).st_ino}
    path = script(tmp_path)
    with listener:
        beside = Script(path).make(own)
        with pytest.raises(AssertionError):
            beside.fit(beside.parameters(0), CONFIG)
        with cut_off(path, own, tmp_path / "state", "a") as trainer:
            assert trainer.fit(trainer.parameters(0), CONFIG).steps == 3
    os.close(held)


def test_what_fails_there_is_said_here(tmp_path: Path, listener: socket.socket) -> None:
    path = script(tmp_path)
    with listener:
        with (
            pytest.raises(ScriptFailed, match="no such records"),
            cut_off(path, settings(listener, "raises"), tmp_path / "state", "a"),
        ):
            pass
        with cut_off(path, settings(listener, "ends"), tmp_path / "state", "a") as trainer:
            start = trainer.parameters(0)
            with pytest.raises(ScriptFailed, match="which has no network, ended"):
                trainer.fit(start, CONFIG)
        with cut_off(path, settings(listener, "own"), tmp_path / "state", "a") as trainer:
            with pytest.raises(ScriptFailed):
                trainer.fit({"z": np.zeros((1, 1), np.float32)}, CONFIG)
            assert trainer.evaluate({}).examples == 5, "it goes on"


def test_where_the_system_does_not_allow_it_nothing_runs(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process says that it could not leave; here another one says so in its place."""
    (tmp_path / "unable").mkdir()
    (tmp_path / "unable" / "no_network.py").write_text(
        "import sys\n"
        "from secureps.run.script import no_network\n"
        "def leave_network():\n    raise OSError(1, 'Operation not permitted')\n"
        "no_network.leave_network = leave_network\n"
        "no_network.main(sys.argv[1:])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(room, "__package__", "unable")
    path = tmp_path / "script.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with (
        listener,
        pytest.raises(
            ConfigError, match=r"lets no process leave the network \(Operation not permitted"
        ),
        cut_off(path, {}, tmp_path / "state", "a"),
    ):
        pass
    assert not (tmp_path / "ran").exists()
