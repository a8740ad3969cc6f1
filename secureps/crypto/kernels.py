"""Which kernels of `rlwe` this process has: numba's, or NumPy's where numba cannot be imported.

Both make the same integers of the same ones; who receives them cannot tell which did.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import compiles
from secureps.crypto.rlwe_tables import Constants, Scale

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Opens = Callable[[U64, U32, U32, Constants, Scale, I64], tuple[float, bool]]


class Kernels(NamedTuple):
    """The kernels of one kind. `crypto.rlwe_kernels` and `crypto.rlwe_open` say what each does,
    without the arrays that are spoilt: numba's work in them, and get them here.
    """

    pack_words: Callable[[U64, U64], None]
    add_words: Callable[[U64, np.uint64, U64], None]
    greatest_word: Callable[[U64], np.uint64]
    reduce_words: Callable[[U64, np.uint64], None]
    reduce_accepted: Callable[[U32, U32, U32, U32], bool]
    binomial: Callable[[U32, I32], None]
    transform_small: Callable[[I32, Constants, U32], None]
    seal_elements: Callable[[U32, U32, U32, U32, U32, Constants, U64], None]
    open_narrow: Opens
    open_wide: Opens


def kernels() -> Kernels:
    """This process's.

    Raises:
        ConfigError: as `compiled.compiles`.
    """
    return by_numba() if compiles() else by_numpy()


@cache
def by_numba() -> Kernels:
    """Compiled ones, where they are compiled."""
    from secureps.crypto import rlwe_kernels, rlwe_open

    def transform_small(small: I32, ring: Constants, out: U32) -> None:
        rlwe_kernels.transform_small(small, ring, np.empty((2, small.size), np.uint32), out)

    def seal_elements(
        values: U32, a: U32, noise: U32, key: U32, digits: U32, ring: Constants, out: U64
    ) -> None:
        size = values.shape[2]
        spoilt = np.empty(size, np.int32), np.empty((3, size), np.uint32)
        rlwe_kernels.seal_elements(values, a, noise, key, digits, ring, *spoilt, out)

    def opens(kernel: Callable[..., tuple[float, bool]]) -> Opens:
        def opened(
            words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
        ) -> tuple[float, bool]:
            primes, size = a.shape[1:]
            spoilt = np.empty((primes + 1, size), np.uint32), np.empty((2, size), np.uint64)
            return kernel(words, a, key, ring, scale, *spoilt, out)

        return opened

    return Kernels(
        pack_words=rlwe_kernels.pack_words,
        add_words=rlwe_kernels.add_words,
        greatest_word=rlwe_kernels.greatest_word,
        reduce_words=rlwe_kernels.reduce_words,
        reduce_accepted=rlwe_kernels.reduce_accepted,
        binomial=rlwe_kernels.binomial,
        transform_small=transform_small,
        seal_elements=seal_elements,
        open_narrow=opens(rlwe_open.open_narrow),
        open_wide=opens(rlwe_open.open_wide),
    )


@cache
def by_numpy() -> Kernels:
    """Those that need nothing but NumPy."""
    from secureps.crypto import numpy_kernels

    return Kernels(
        pack_words=numpy_kernels.pack_words,
        add_words=numpy_kernels.add_words,
        greatest_word=numpy_kernels.greatest_word,
        reduce_words=numpy_kernels.reduce_words,
        reduce_accepted=numpy_kernels.reduce_accepted,
        binomial=numpy_kernels.binomial,
        transform_small=numpy_kernels.transform_small,
        seal_elements=numpy_kernels.seal_elements,
        open_narrow=numpy_kernels.open_narrow,
        open_wide=numpy_kernels.open_wide,
    )
