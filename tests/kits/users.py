"""Other users than this process's, whom tests play as root."""

import os
from pathlib import Path


def playable(user: int) -> bool:
    """Whether this process may be that user: as root, in a namespace that has more users than it.

    `unshare --map-root-user` makes of anybody the root of one that has no other.
    """
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    spans = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return os.geteuid() == 0 and any(first <= user < first + count for first, count in spans)
