"""The kernel that makes public polynomials of the words of a key stream."""

from __future__ import annotations

import numpy as np

from secureps.compiled import kernel
from secureps.crypto.ntt import U32, once, shoup

RUN = 16
"""Words that are tried together; a window has whole runs."""


@kernel
def reduce_accepted(windows: U32, primes: U32, spare: U32, out: U32) -> bool:
    """Fills `out` with the words below the limit modulo their primes; False if a window runs out.

    A run of RUN words is taken at once if all are below the limit, as most are.
    """
    size, end = out.shape[2], windows.shape[2]
    for element in range(windows.shape[0]):
        for index in range(primes.shape[0]):
            prime, whole = primes[index, 0], primes[index, 1]
            limit = np.uint32(whole * prime)
            window, row = windows[element, index], out[element, index]
            for k in range(end):
                spare[k] = once(shoup(window[k], np.uint32(1), whole, prime), prime)
            taken = 0
            for at in range(0, end, RUN):
                most = np.uint32(0)
                for k in range(RUN):
                    most = max(most, window[at + k])
                if most < limit and taken + RUN <= size:
                    for k in range(RUN):
                        row[taken + k] = spare[at + k]
                    taken += RUN
                else:
                    for k in range(at, at + RUN):
                        if window[k] < limit and taken < size:
                            row[taken] = spare[k]
                            taken += 1
            if taken < size:
                return False
    return True
