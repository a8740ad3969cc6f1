"""One target by atheris (https://github.com/google/atheris), which sees what an input reaches.

python -m tests.fuzz.guided TARGET SECONDS

`make fuzz-guided` installs it. What is found lies in runs/fuzz/crash-*, to be tried again by
`python -m tests.fuzz --target TARGET --input FILE`.
"""

import importlib
import sys
import tempfile
import warnings
from pathlib import Path

from tests.kits.nursery import ROOT

SEEN = ("audit", "client", "config", "messages", "policy", "run", "store", "wire")
"""Rooms of which it sees what an input reaches; compiled kernels are in none of them."""


def main(name: str, seconds: str) -> None:
    atheris = importlib.import_module("atheris")  # no dependency of anything else
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=[f"secureps.{room}" for room in SEEN]):
        table = importlib.import_module("tests.fuzz.table")
    folder = Path(tempfile.mkdtemp(prefix="secureps-fuzz-"))
    target = table.targets(folder)[name]
    corpus, found = folder / "corpus", ROOT / "runs" / "fuzz"
    corpus.mkdir()
    found.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.corpus):
        (corpus / str(number)).write_bytes(data)

    def tried(data: bytes) -> None:
        if (complaint := target.complaint(data)) is not None:
            raise AssertionError(complaint)

    where = [f"-artifact_prefix={found}/", f"-max_total_time={seconds}", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *where, str(corpus)], tried)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
