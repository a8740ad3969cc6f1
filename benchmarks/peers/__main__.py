"""`make bench-peers`: plays every peer with every size, one after another, and tells.

Writes `peers.json`, `peers.md` and `peers.png` under benchmarks/results; with `--publish` also
`peers.txt` there, which is kept, and the picture in docs/assets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.peers import chart, environments, table
from benchmarks.peers.catalogue import EVERY, PEERS, WIRE
from benchmarks.peers.outcome import FAILED, SKIPPED, Figures, Outcome, PeerError
from benchmarks.peers.stage import end_with_parent
from benchmarks.report import RESULTS
from tests.kits.nursery import ROOT

CLIENTS = 5
SHARE = 0.85
"""Of the memory that is free at the start: what one peer may have."""
PICTURE = ROOT / "docs" / "assets" / "peers.png"


def size(text: str) -> int:
    """A number of values, as 250000, 100k or 1M."""
    units = {"k": 1_000, "m": 1_000_000}
    unit = units.get(text[-1:].lower(), 1)
    found = int(float(text[:-1]) * unit) if unit > 1 else int(text)
    if found < 1:
        raise ValueError("at least one value")
    return found


def listed(text: str) -> list[str]:
    """Names of peers, with commas between.

    Raises:
        argparse.ArgumentTypeError: there is no such peer.
    """
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        known = ", ".join(PEERS)
        raise argparse.ArgumentTypeError(f"no peer {', '.join(unknown)}; there are {known}")
    return names


def warm(text: str) -> int:
    """Rounds, of which the first is not counted."""
    if int(text) < 2:
        raise ValueError("the first of them is not counted")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__)
    made.add_argument(
        "--sizes",
        type=lambda text: [size(each) for each in text.split(",")],
        default=[1_000_000, 10_000_000],
        help="numbers of values (default: 1M,10M)",
    )
    made.add_argument("--only", type=listed, default=list(PEERS), help=f"of {', '.join(PEERS)}")
    made.add_argument("--rounds", type=warm, help="of every peer, 2 at least (default: its own)")
    made.add_argument("--timeout", type=float, default=900.0, help="seconds for one peer and size")
    made.add_argument(
        "--memory", type=float, help="GB for one peer (default: 85%% of what is free)"
    )
    made.add_argument("--keep", action="store_true", help="keeps logs, and says where")
    made.add_argument("--publish", action="store_true", help="keeps the tables and the picture")
    return made


def namespaces() -> list[str] | None:
    """What begins a command with a network and processes of its own; None where none may."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    alone = ["--pid", "--fork", "--kill-child", "--mount-proc"]  # all end when it does
    prefix = ["unshare", *own, "--net", "--mount", *alone]
    link = [*prefix, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]
    try:
        tried = subprocess.run(link, capture_output=True)
    except OSError:
        return None
    return None if tried.returncode else prefix


def machine() -> str:
    """What it ran on, as a line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    gigabytes = psutil.virtual_memory().total / 1e9
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores of {model}, {gigabytes:.0f} GB, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the end."
    )


def play(name: str, values: int, options: argparse.Namespace, prefix: list[str] | None) -> Outcome:
    """One peer with one size, as a process of its own that leaves nothing behind."""
    peer = EVERY[name]
    rounds = options.rounds or peer.rounds

    def outcome(status: str, detail: str, version: str = "") -> Outcome:
        return Outcome(peer.label, values, CLIENTS, rounds, status, detail, version)

    try:
        python = environments.python(peer.environment)
        version = environments.versions(peer.environment, peer.packages)
    except PeerError as error:
        return outcome(SKIPPED, str(error))
    memory = (options.memory or SHARE * psutil.virtual_memory().available / 1e9) * 1e9
    folder = Path(tempfile.mkdtemp(prefix=f"peers-{name}-"))
    command = [*(prefix or []), sys.executable, "-m", "benchmarks.peers.play", name, str(values)]
    command += [str(CLIENTS), str(rounds), str(int(memory)), str(options.timeout)]
    command += [python, str(folder), "wired" if prefix else "loopback"]
    try:
        done = subprocess.run(command, cwd=ROOT, preexec_fn=end_with_parent)
        written = folder / "outcome.json"
        if not written.is_file():
            return outcome(FAILED, f"its player ended with status {done.returncode}", version)
        found = json.loads(written.read_text())
    finally:
        if options.keep:
            print(f"{name}: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    figures = Figures(**found["figures"]) if "figures" in found else None
    counted = f"bytes {peer.bytes_from}" if prefix or peer.bytes_from != WIRE else ""
    detail = peer.note if figures else found["detail"]
    status = found["status"]
    return Outcome(peer.label, values, CLIENTS, rounds, status, detail, version, counted, figures)


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    prefix = namespaces()
    if prefix is None:
        print("no network namespaces here: bytes on the wire are not counted", file=sys.stderr)
    outcomes: list[Outcome] = []
    for values in options.sizes:
        for name in options.only:
            print(f"{name}, {values:,} values ...", file=sys.stderr, flush=True)
            outcomes.append(play(name, values, options, prefix))
            keep(outcomes)
            said = " ".join(table.cells(outcomes[-1]))
            print(f"  {outcomes[-1].version}: {said}", file=sys.stderr, flush=True)
    table.show(outcomes, Console(width=150))
    chart.draw(outcomes, RESULTS / "peers.png")
    print(f"written: {', '.join(str(RESULTS / f'peers.{end}') for end in ('json', 'md', 'png'))}")
    if options.publish:
        shutil.copy(RESULTS / "peers.md", RESULTS / "peers.txt")
        PICTURE.parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / "peers.png", PICTURE)


def keep(outcomes: list[Outcome]) -> None:
    """Writes what there is so far, so that a run that is stopped is not lost."""
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine(), "outcomes": [asdict(outcome) for outcome in outcomes]}
    (RESULTS / "peers.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "peers.md").write_text(table.markdown(outcomes, machine()) + "\n")


if __name__ == "__main__":
    main()
