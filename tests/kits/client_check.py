"""Checks a data holder's installation on this kind of machine: the same bits as on every other.

    python -I tests/kits/client_check.py

It plays a small encrypted federation in one process, with the kernels that there are and with
NumPy's, and holds the models against digests that were made on Linux on x86-64. Imports nothing but
secureps, what secureps itself needs, and the standard library: continuous integration runs it on
machines that development does not have.
"""

import hashlib
import os
import platform
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from secureps import compiled

WHOLE = """
clip = 3.0
range = 1.0
most_examples = 32
"""
THIN = """
clip = 2.0
bits = 4
feedback = true
pull_bits = 5
most_examples = 32
codec = [
    { name = "support", one_in = 3 },
    "rotate",
    { name = "round", length = "mean_norm" },
]
"""
DIGESTS = {WHOLE: "98784810ad768424", THIN: "62fe6501d6e76b55"}
"""Of the last model, by what a plan says of its values."""

PLAN = """
name = "same"
versions = 3
shards = 2
block_size = 64
[cipher]
name = "rlwe"
capacity = {capacity}
[[group]]
{values}
[group.rule]
quorum = 3
minimum = 2
"""
SCENARIO = """
name = "same"
plan = "plan.toml"
script = "client.py"
clients = 3
seed = 5
"""
SCRIPT = '''
"""A data holder whose numbers are whole multiples of a power of two: sums of them are exact."""

import numpy as np
import secureps as ps


class Holder:
    def __init__(self, number):
        self._number = number

    def parameters(self, seed):
        weight = (np.arange(210) * 7919 % 4093 - 2046).reshape(30, 7) / 4096
        return {"weight": weight.astype(np.float32), "bias": np.zeros(7, np.float32)}

    def fit(self, parameters, config):
        made = {}
        for name, value in parameters.items():
            k = np.arange(value.size) + 31 * self._number + 7 * sum(config.versions.values())
            step = (k * k * 31 % 61 - 30).reshape(value.shape) / 512
            made[name] = (value + step).astype(np.float32)
        return ps.FitResult(made, 10 + self._number, {}, 1)


def make(settings):
    return Holder(int(settings["partition"]))


if __name__ == "__main__":
    ps.run_client(make)
'''


def digest(values: str, out: Path, capacity: int = 8) -> str:
    """Of the model that a simulation ends with, under a plan that says so of its values."""
    from secureps.run.cli import main

    Path("plan.toml").write_text(PLAN.format(values=values, capacity=capacity), "utf-8")
    sys.argv = ["secureps", "simulate", "scenario.toml", "--out", str(out)]
    ended: object = None
    try:
        main()
    except SystemExit as exit:
        ended = exit.code
    assert not ended, ended
    model = load_file(out / "model.safetensors")
    tensors = (f"{name}:".encode() + model[name].astype("<f4").tobytes() for name in sorted(model))
    return hashlib.sha256(b"".join(tensors)).hexdigest()[:16]


def check() -> None:
    """Plays all; an AssertionError names what came out otherwise."""
    Path("scenario.toml").write_text(SCENARIO, "utf-8")
    Path("client.py").write_text(SCRIPT, "utf-8")
    missing = compiled.missing
    for kind in ("numba", "NumPy") if not missing else ("NumPy",):
        compiled.missing = missing if kind == "numba" else "it is left out for a check"
        for number, (values, known) in enumerate(DIGESTS.items()):
            found = digest(values, Path(f"{kind}-{number}"))
            assert found == known, f"{kind}'s kernels: {found} and not {known} of {values}"
    compiled.missing = missing


def main() -> None:
    """Checks in a folder of its own, and says where it was."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            check()
        finally:
            os.chdir(here)
    kinds = "NumPy's kernels alone" if compiled.missing else "both kinds of kernels"
    where = f"{platform.system()} {platform.machine()}, byte order {sys.byteorder}"
    print(f"the same bits on {where}, Python {platform.python_version()}: {kinds}")


if __name__ == "__main__":
    main()
