"""`make fuzz`: every decoder, running servers and handshakes before a million hostile inputs.

python -m tests.fuzz                                all, in as many processes as cores
python -m tests.fuzz --seed 7 --inputs 10000000     others, and more
python -m tests.fuzz --target roster                one target alone; --list names them
python -m tests.fuzz --target roster --input FILE   the input of a finding once more

What is found lies in runs/fuzz, one file an input.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.attempt import Attempt, attempt, drawn, number_of
from tests.fuzz.servers import SERVERS, besiege
from tests.fuzz.table import targets
from tests.fuzz.target import Target
from tests.kits.nursery import ROOT

INPUTS = 1_200_000
FOUND = ROOT / "runs" / "fuzz"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default 0)")
    parser.add_argument("--inputs", type=int, default=INPUTS, help=f"of decoders ({INPUTS})")
    parser.add_argument("--target", help="this one alone")
    parser.add_argument("--input", type=Path, help="with what is in this file")
    parser.add_argument("--list", action="store_true", help="names all targets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # of the processes
    given = parser.parse_args(argv)
    kept = tempfile.TemporaryDirectory(prefix="secureps-fuzz-", ignore_cleanup_errors=True)
    with kept as folder:
        if given.target in SERVERS:
            found = [besiege(given.target, Path(folder), given.seed, given.inputs)]
            return _told(found, given.one, given.seed)
        known = targets(Path(folder))
        if given.list:
            print("\n".join((*known, *SERVERS)))
            return 0
        if given.target is None:
            numbers = {name: number_of(each, given.inputs, known) for name, each in known.items()}
            numbers |= SERVERS
            return _all(given.seed, numbers, given.jobs)
        target = known[given.target]
        if given.input is not None:
            return _again(target, given.input.read_bytes())
        found = [attempt(target, given.seed, 0, given.inputs)]
        for number, _ in found[0].findings:
            FOUND.mkdir(parents=True, exist_ok=True)
            _file(target.name, given.seed, number).write_bytes(drawn(target, given.seed, number))
        return _told(found, given.one, given.seed)


def _again(target: Target, data: bytes) -> int:
    complaint = target.complaint(data)
    print(complaint or ("accepted" if target.accepts(data) else "refused"))
    return complaint is not None


def _file(name: str, seed: int, number: int) -> Path:
    return FOUND / f"{name}-{seed}-{number}"


def _all(seed: int, numbers: dict[str, int], jobs: int) -> int:
    began, done, bad, most = time.monotonic(), 0, 0, 0
    print(f"seed {seed}: {len(numbers)} targets, {sum(numbers.values()):,} inputs")
    print(f"{'target':20} {'inputs':>9} {'accepted':>9} {'inputs/s':>9} {'grown, MiB':>10}")
    for found in _each(seed, numbers, jobs):
        done += found.inputs
        bad += bool(_told([found], False, seed))
        most = max(most, found.grown)
    seconds = time.monotonic() - began
    print(f"{done:,} inputs in {seconds:.0f} s; {bad} targets with findings; no process grew by")
    print(f"more than {most >> 20} MiB; another time: make fuzz SEED={seed + 1}")
    return min(bad, 1)


def _each(seed: int, numbers: dict[str, int], jobs: int) -> Iterator[Attempt]:
    """A process for each target: what one leaves behind, or breaks, is not the next one's."""
    with ThreadPoolExecutor(jobs) as pool:
        longest = sorted(numbers, key=lambda name: name not in SERVERS)
        begun = [pool.submit(_apart, seed, name, numbers[name]) for name in longest]
        yield from (each.result() for each in as_completed(begun))


def _apart(seed: int, name: str, inputs: int) -> Attempt:
    command = [sys.executable, "-m", "tests.fuzz", "--one", "--target", name]
    command += ["--seed", str(seed), "--inputs", str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    for line in done.stdout.splitlines():
        if line.startswith('{"target"'):
            said: dict[str, Any] = json.loads(line)
            findings = tuple((number, text) for number, text in said.pop("findings"))
            return Attempt(**said, findings=findings)
    text = f"the process ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
    return Attempt(name, 0, 0, 1.0, 0, ((-1, text),))


def _told(attempts: Sequence[Attempt], as_json: bool, seed: int) -> int:
    """Says what became of targets; 1 if anything is wrong with one."""
    bad = 0
    for each in attempts:
        if as_json:
            print(json.dumps(asdict(each)), flush=True)
        else:
            share = f"{100 * 16 * each.accepted / max(1, each.inputs):.1f} %"
            speed = each.inputs / max(each.seconds, 0.001)
            row = f"{each.target:20} {each.inputs:9,} {share:>9} {speed:9,.0f}"
            print(f"{row} {each.grown / (1 << 20):10.1f}", flush=True)
            again = f".venv/bin/python -m tests.fuzz --target {each.target}"
            for number, text in each.findings:
                path = _file(each.target, seed, number)
                whole = f"--seed {seed}" if each.target in SERVERS else f"--input {path}"
                print(f"  input {number}: {text.rstrip()}")
                print(f"  again: {again} {whole}")
            if each.complaint is not None:
                print(f"  {each.complaint}")
        bad += bool(each.findings or each.complaint)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
