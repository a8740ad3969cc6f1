"""Checks an installation of secureps: what it does, and what it says of the extras it lacks.

    python -I tests/kits/extras_check.py EXTRA     one of EXTRAS, "all", or "base" for none

`tests/project/test_installation.py` runs it in an environment that is made without a network, and
continuous integration in ones that pip has made. Imports nothing but secureps and the standard
library: a federation in NumPy is all that an installation without extras has.
"""

import io
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import secureps as ps
from secureps.extras import EXTRAS, command

BROUGHT = {
    "base": (),
    "all": ("torch", "bfv", "flower", "report"),
}
"""The extras that an installation has, where that is not the one it is named by."""

OWN = {"mlflow": ("mlflow",), "objects": ("s3fs",)}
"""The modules that no other extra brings, where others bring some: Flower needs SQLAlchemy, torch
fsspec."""

SCENARIO = """
name = "played"
plan = "{plan}"
script = "{script}"
clients = 6
"""


def secureps(*arguments: str, status: int = 0) -> str:
    """What `secureps ARGUMENTS` says, in this process; it must end with `status`."""
    from secureps.run.cli import main

    said, sys.argv = io.StringIO(), ["secureps", *arguments]
    ended: object = 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as exit:
            ended = exit.code
    text = " ".join(said.getvalue().split())
    assert ended == status, f"secureps {' '.join(arguments)} ended with {ended!r}: {text}"
    return text


def project(name: str, cipher: str, *options: str) -> None:
    """A new project of one version under a cipher, and a scenario that plays it."""
    secureps("new", name, *options)
    plan = Path(name, "plan.toml")
    text = plan.read_text().replace("versions = 10", "versions = 1")
    own = "" if cipher == "rlwe" else f'[cipher]\nname = "{cipher}"\n\n[training]'
    plan.write_text(re.sub(r"\[cipher\].*?\[training\]", own, text, flags=re.S) if own else text)
    scenario = SCENARIO.format(plan=f"{name}/plan.toml", script=f"{name}/client.py")
    Path(f"{name}.toml").write_text(scenario)


def played(name: str, *options: str) -> str:
    """What a simulation of a project says; it must have made a model."""
    said = secureps("simulate", f"{name}.toml", "--out", f"{name}-run", *options)
    assert Path(f"{name}-run", "model.safetensors").exists(), said
    return said


def base_is_there() -> None:
    """Servers, a committee of key holders, and clients in NumPy, each a process."""
    assert "simulate" in secureps("--help")
    project("federation", "rlwe")
    with Path("federation/plan.toml").open("a") as plan:
        plan.write("\nbaselines = false\n")
    secureps("check", "federation/plan.toml", "--run-script")
    said = secureps("up", "federation/plan.toml", "--out", "up")
    assert Path("up", "model.safetensors").exists(), said
    assert f"no curves: matplotlib is not installed: {command('report')}" in said


def torch_is_there() -> None:
    """DP-SGD steps: torch and opacus."""
    project("net", "plain", "--torch")
    assert "[privacy" in Path("net/plan.toml").read_text()
    secureps("check", "net/plan.toml", "--run-script")
    played("net")


def bfv_is_there() -> None:
    """A round that SEAL's ciphertexts go through."""
    project("sealed", "bfv")
    played("sealed")


def flower_is_there() -> None:
    """An app is looked at, and trains."""
    project("app", "plain", "--flower")
    secureps("check", "app/plan.toml", "--run-script")
    played("app")


def report_is_there() -> None:
    """Curves are drawn, and there are data sets."""
    project("drawn", "plain")
    played("drawn")
    assert Path("drawn-run/curves.png").stat().st_size > 1000
    assert ps.datasets.digits(seed=0).classes == 10
    secureps("new", "tumours", "--sklearn")
    secureps("check", "tumours/plan.toml", "--run-script")


def tensorboard_is_there() -> None:
    project("board", "plain")
    played("board", "--tensorboard", "events")
    assert list(Path("events").rglob("events.out.tfevents.*"))


def mlflow_is_there() -> None:
    project("tracked", "plain")
    played("tracked", "--mlflow", "tracking")
    assert Path("tracking/mlflow.db").exists()


def ray_is_there() -> None:
    """A cluster is looked for, and none is started unasked."""
    project("spread", "plain")
    options = ("--engine", "ray", "--out", "spread-run")
    assert "no Ray cluster runs here" in secureps("simulate", "spread.toml", *options, status=1)


def trace_is_there() -> None:
    from secureps.service.process import tracing

    said = io.StringIO()
    with redirect_stdout(said):
        traces = tracing("shard-0", "shard", {"OTEL_TRACES_EXPORTER": "console"})
        assert traces is not None
        traces._add("step", "all", 1, 3, 4)
        traces.close()
    assert '"name": "step"' in said.getvalue()


def objects_is_there() -> None:
    project("kept", "plain")
    played("kept")
    secureps("export", "kept-run", "--out", f"file://{Path.cwd()}/kept/there.safetensors")
    assert Path("kept/there.safetensors").exists()


def refused(extra: str, *arguments: str) -> None:
    """The command says in one line which extra it lacks, and nothing was begun."""
    said = secureps(*arguments, status=1)
    assert said.startswith("error: "), said
    assert command(extra) in said, said
    assert not Path("none").exists(), "a folder is in the way of the next try"


def raised(extra: str, call: Callable[[], object]) -> None:
    """The call raises an error that says which extra it lacks."""
    said = f"nothing, though {extra} is not there"
    try:
        call()
    except ps.errors.ConfigError as error:
        said = str(error)
    assert command(extra) in said, said


def script_of(name: str, text: str) -> None:
    project(name, "plain")
    Path(name, "client.py").write_text(text)


def torch_is_missed() -> None:
    """By name, and by whoever checks the plan of a script that wants it."""
    raised("torch", lambda: ps.TorchTrainer)
    script_of("wants-torch", "import torch\ndef make(settings): ...\n")
    refused("torch", "check", "wants-torch/plan.toml", "--run-script")


def bfv_is_missed() -> None:
    """By whoever makes keys or opens sums, and not by `check`."""
    project("wants-bfv", "bfv")
    secureps("check", "wants-bfv/plan.toml", "--run-script")
    refused("bfv", "simulate", "wants-bfv.toml", "--out", "none")
    refused("bfv", "up", "wants-bfv/plan.toml", "--out", "none")


def flower_is_missed() -> None:
    """When called, and by whoever checks the plan of an app."""
    raised("flower", lambda: ps.run_flower(None))
    script_of("wants-flower", "from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    refused("flower", "check", "wants-flower/plan.toml", "--run-script")


def report_is_missed() -> None:
    """By data sets; a run goes on without curves."""
    raised("report", lambda: ps.datasets.digits(seed=0))
    raised("report", lambda: ps.datasets.breast_cancer(seed=0))
    project("undrawn", "plain")
    assert f"no curves: matplotlib is not installed: {command('report')}" in played("undrawn")


def ray_is_missed() -> None:
    """Before anything is written."""
    project("wants-ray", "plain")
    refused("ray", "simulate", "wants-ray.toml", "--engine", "ray", "--out", "none")


def trace_is_missed() -> None:
    """A party goes on without, and its log says so."""
    from secureps.service.process import tracing

    with captured() as lines:
        assert tracing("shard-0", "shard", {"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert command("trace") in lines[0], lines


@contextmanager
def captured() -> Iterator[list[str]]:
    lines = list[str]()

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keeper()
    logging.getLogger("secureps").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("secureps").removeHandler(handler)


def objects_is_missed() -> None:
    """By whoever names a URL."""
    project("wants-objects", "plain")
    played("wants-objects")
    refused("objects", "export", "wants-objects-run", "--out", "s3://bucket/none")


def sink_is_missed(extra: str) -> None:
    """Before a run begins."""
    name = f"wants-{extra}"
    project(name, "plain")
    refused(extra, "simulate", f"{name}.toml", f"--{extra}", "there", "--out", "none")
    refused(extra, "up", f"{name}/plan.toml", f"--{extra}", "there", "--out", "none")


def tensorboard_is_missed() -> None:
    sink_is_missed("tensorboard")


def mlflow_is_missed() -> None:
    sink_is_missed("mlflow")


def _by_extra(*checks: Callable[[], None]) -> dict[str, Callable[[], None]]:
    return {each.__name__.partition("_is_")[0]: each for each in checks}


THERE = _by_extra(
    *(torch_is_there, bfv_is_there, flower_is_there, report_is_there, tensorboard_is_there),
    *(mlflow_is_there, objects_is_there, ray_is_there, trace_is_there),
)
MISSED = _by_extra(
    *(torch_is_missed, bfv_is_missed, flower_is_missed, report_is_missed, tensorboard_is_missed),
    *(mlflow_is_missed, objects_is_missed, ray_is_missed, trace_is_missed),
)


def examine(name: str) -> None:
    """Uses every extra that an installation has, and misses every other."""
    here = BROUGHT.get(name, (name,))
    for extra, modules in EXTRAS.items():
        for module in OWN.get(extra, modules):
            assert (find_spec(module) is not None) == (extra in here), module
    if name == "base":
        base_is_there()
    for extra in EXTRAS:
        (THERE if extra in here else MISSED)[extra]()


if __name__ == "__main__":
    installation = sys.argv[1]
    os.environ.update(COLUMNS="200", OMP_NUM_THREADS="1")
    print(f"{installation}: {ps.__file__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            examine(installation)
        finally:
            os.chdir("/")
    print(f"{installation}: ok")
