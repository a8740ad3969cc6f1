"""Plays one peer with one size, in a process of its own that may have a network of its own.

`python -m benchmarks.peers.play NAME VALUES CLIENTS ROUNDS MEMORY SECONDS PYTHON FOLDER WIRED`
writes `outcome.json` into the folder.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.catalogue import EVERY
from benchmarks.peers.outcome import FAILED, MEASURED, OUT_OF_MEMORY, TIMED_OUT, PeerError
from benchmarks.peers.stage import Limits, Stage, Stopped


def play(name: str, stage: Stage, python: str) -> dict[str, object]:
    """Its status, what is said of it, and its figures."""
    try:
        with stage:
            made = EVERY[name].play(stage, python)
    except Stopped as stopped:
        late = str(stopped).endswith(" s")
        return {"status": TIMED_OUT if late else OUT_OF_MEMORY, "detail": str(stopped)}
    except PeerError as error:
        return {"status": FAILED, "detail": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"status": FAILED, "detail": f"{type(error).__name__}: {error}"}
    return {"status": MEASURED, "detail": "", "figures": asdict(made)}


def main(arguments: list[str]) -> None:
    name, values, clients, rounds, memory, seconds, python, folder, wired = arguments
    limits = Limits(int(memory), float(seconds))
    room = Path(folder)
    stage = Stage(room, int(values), int(clients), int(rounds), limits, wired == "wired")
    (room / "outcome.json").write_text(json.dumps(play(name, stage, python)))


if __name__ == "__main__":
    main(sys.argv[1:])
