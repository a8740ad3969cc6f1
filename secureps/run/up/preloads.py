"""What the processes of a run are likely to import, so that one of them does it for all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from secureps.crypto.cipher import Opening
from secureps.policy.plan import Plan
from secureps.run.processes.fork_server import ForkServers, can_fork
from secureps.run.processes.spawning import Spawner, Subprocesses

_SERVERS = (
    *("secureps.run.cli", "secureps.run.cli:app.commands", "secureps.run.serve"),
    *("secureps.run.join", "grpc.experimental"),
)
_KERNELS = ("secureps.codec.kernels", "secureps.compiled:load_kernels")
_OPENING = {
    Opening.NOTHING: _KERNELS,
    Opening.HOLDER: ("secureps.crypto.bfv_seal", *_KERNELS),
    Opening.COMMITTEE: ("secureps.crypto.rlwe", *_KERNELS),
}
_SCRIPTS = {
    "sklearn": ("sklearn.datasets",),
    "torch": ("secureps.client.torch", "torch._dynamo"),  # which the first optimizer imports
    "opacus": (
        "opacus.grad_sample",
        "opacus.optimizers",
        "opacus.utils.fast_gradient_clipping_utils",
        "opacus.validators",
    ),
}
"""For a package what is imported of it: none of these starts a thread, or does more than import."""


def spawner(
    plan: Plan, script: Path, environment: Mapping[str, str]
) -> AbstractContextManager[Spawner]:
    """Starts a run's processes as forks, or from their beginning where these cannot be had.

    Args:
        plan: of the run.
        script: the file or the folder of the data holders' code; it is read, and not run.
        environment: of all processes, but for a few values.
    """
    if not can_fork(environment):
        return nullcontext(Subprocesses())
    try:
        return ForkServers(tuple(of_all(plan)), tuple(of_script(plan, script)), environment)
    except OSError:  # the path of its socket is too long under this TMPDIR
        return nullcontext(Subprocesses())


def of_all(plan: Plan) -> Iterator[str]:
    """What every party imports, servers too."""
    yield from (*_SERVERS, *_OPENING[plan.opening])
    if plan.section.privacy is not None:
        yield "secureps.privacy.accountant"


def of_script(plan: Plan, script: Path) -> Iterator[str]:
    """What the data holders' code imports besides, as far as its words tell."""
    private = plan.section.privacy is not None
    named = _words(script)
    for package, modules in _SCRIPTS.items():
        wanted = package in named or (package == "opacus" and private and "torch" in named)
        if wanted and find_spec(package) is not None:
            yield from modules


def _words(script: Path) -> set[str]:
    """All words of the code: a package that is not named in it is not imported by it itself."""
    files = sorted(script.glob("**/*.py")) if script.is_dir() else [script]
    text = "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
    found = set(re.findall(r"\w+", text))
    return found | ({"torch"} if "TorchTrainer" in found else set())
