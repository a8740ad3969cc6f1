"""The image of `Containerfile`: built here on Debian's own packages, and run as a pod runs it.

It takes minutes, so it is tried by `make clusters` alone, as root where the tools are.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import pytest

from secureps.run.cli import deploy
from secureps.run.deploy.kubernetes import USER
from tests.kits.command import said
from tests.kits.namespaces import Switch, possible
from tests.kits.nursery import ROOT
from tests.kits.pods import Cluster, Network, Running
from tests.run.deploy.kits import deployed

TOOLS = ("debootstrap", "buildah", "podman", "runc")
BASE = "localhost/base:bookworm"
KEPT = ROOT / ".pytest_cache" / "bookworm.tar"
"""The base, half of all the time: nothing of it is tried here, so it is made once. `make clean`."""
IMAGE = "localhost/secureps:test"
WITHIN = ("pyproject.toml", "README.md", "LICENSE", "Containerfile", "secureps")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
PATIENCE = 120.0


class Engine:
    """Containers whose images lie in a folder of their own; `with` removes it.

    Layers lie over each other where the kernel can do it here; else each is a copy of all below it.
    """

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="ps-", dir="/tmp"))  # podman wants a short path
        (self.folder / "tmp").mkdir()
        self._driver = "overlay" if overlays(self.folder) else "vfs"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for mount in reversed(self._mounts()):  # podman leaves its store mounted on itself
            subprocess.run(["umount", mount], capture_output=True, check=False)
        if not self._mounts():  # nothing of others
            shutil.rmtree(self.folder, ignore_errors=True)

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [at for line in lines if (at := line.split()[4]).startswith(f"{self.folder}/")]

    def run(self, tool: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        stores = [f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        done = subprocess.run(
            [tool, *stores, f"--storage-driver={self._driver}", *words],
            env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done

    def podman(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        around = ("--runtime=runc", "--cgroup-manager=cgroupfs")
        return self.run("podman", *around, *words, check=check)


def overlays(folder: Path) -> bool:
    lower, upper, work, over = (folder / f"try-{name}" for name in ("l", "u", "w", "o"))
    for each in (lower, upper, work, over):
        each.mkdir()
    parts = f"lowerdir={lower},upperdir={upper},workdir={work}"
    words = ["mount", "-t", "overlay", "overlay", "-o", parts, str(over)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", over], check=True)
    return True


def base(engine: Engine) -> None:
    if not KEPT.exists():
        root, archive = engine.folder / "rootfs", KEPT.with_suffix(".new")
        words = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm"]
        made = subprocess.run([*words, str(root)], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"debootstrap made no base: {made.stdout[-200:]}")
        KEPT.parent.mkdir(exist_ok=True)
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        archive.replace(KEPT)
    engine.podman("import", str(KEPT), BASE)


def pip_settings(folder: Path) -> list[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = ["[global]", *(f"{key} = {value}" for key, value in found.items())]
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    named = re.findall(r"(?:^| |file://)(/[\w./-]+)", "\n".join(found.values()), re.MULTILINE)
    outer = {Path(each) for each in named if Path(each).is_file() or each.endswith("/simple")}
    places = {path.parent if path in outer else path for path in map(Path, named)}
    mounts = [f"{folder}/pip.conf:/etc/pip.conf:ro"]
    mounts += [f"{place}:{place}:ro" for place in sorted(places) if place.is_dir()]
    return [word for mount in mounts for word in ("--volume", mount)]


def build(engine: Engine) -> None:
    context = engine.folder / "context"
    context.mkdir()
    for name in WITHIN:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, context)
    asked = ("--isolation=chroot", "--build-arg", f"BASE={BASE}", "--tag", IMAGE)
    file = ("--file", str(context / "Containerfile"), str(context))
    engine.run("buildah", "bud", *asked, *pip_settings(engine.folder), *file)


def inside(pod: Running, mounts: Sequence[dict[str, str]]) -> list[str]:
    """How a pod's container is run: nobody's, on a read-only file system, with its volumes."""
    words = ["--user", f"{USER}:{USER}", "--read-only", "--cap-drop=ALL", *LIMITS]
    words += ["--security-opt=no-new-privileges", f"--network=ns:/var/run/netns/{pod.space}"]
    for each in mounts:
        source = pod.folder / each["name"]
        source.mkdir(exist_ok=True)
        if each["name"] in ("data", "tmp"):
            os.chown(source, USER, USER)
        only = ":ro" if each.get("readOnly") else ""
        words += ["--volume", f"{source}:{each['mountPath']}{only}"]
    for each in pod.container["env"]:
        words += ["--env", f"{each['name']}={each['value']}"]
    return [*words, "--entrypoint", ""]


@contextmanager
def running(engine: Engine, pod: Running) -> Iterator[str]:
    (prepare,) = pod.spec["initContainers"]
    engine.podman("run", "--rm", *inside(pod, prepare["volumeMounts"]), IMAGE, *prepare["command"])
    own = inside(pod, pod.container["volumeMounts"])
    name = f"{pod.space}-main"
    engine.podman("run", "--detach", "--name", name, *own, IMAGE, *pod.container["command"])
    try:
        yield name
    finally:
        engine.podman("rm", "--force", name, check=False)


@pytest.mark.timeout(1200)
def test_the_image_is_built_and_runs_a_coordinator_as_its_pod_would(tmp_path: Path) -> None:
    if "SECUREPS_CLUSTERS" not in os.environ:
        pytest.skip("it takes minutes: make clusters")
    if reason := possible() or ("" if all(map(shutil.which, TOOLS)) else f"no {', '.join(TOOLS)}"):
        pytest.skip(reason)
    home = deployed()
    options = ("--kit", home / "kit", "--out", tmp_path / "manifests", "--name", "coordinator")
    said(deploy, "kubernetes", home / "plan.toml", *map(str, options))
    with Engine() as engine, Switch() as switch, Network(switch) as network:
        base(engine)
        build(engine)
        cluster = Cluster(network, tmp_path / "cluster")
        pod = cluster.load(tmp_path / "manifests" / "servers")["coordinator-0"]
        pod.join()
        with running(engine, pod) as name:
            probe = pod.container["readinessProbe"]["exec"]["command"]
            end = time.monotonic() + PATIENCE
            while engine.podman("exec", name, *probe, check=False).returncode:
                log = engine.podman("logs", name, check=False)
                assert time.monotonic() < end, log.stdout + log.stderr
                time.sleep(0.5)
            tried = engine.podman(
                *("exec", name, "python3", "-c"),
                "import importlib.util, os; print(os.getuid(), importlib.util.find_spec('torch'))",
            )
            assert tried.stdout.split() == [str(USER), "None"]
            assert engine.podman("exec", name, "touch", "/opt/x", check=False).returncode
            engine.podman("stop", "--time", "20", name)
            ended = engine.podman("inspect", "--format", "{{.State.ExitCode}}", name)
            assert ended.stdout.strip() == "0"
    kept = tmp_path / "cluster" / "coordinator-0" / "data" / "runs" / "trial" / "state"
    assert (kept / "journal.db").stat().st_uid == USER
