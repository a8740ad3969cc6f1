"""One thing that reads bytes from outside, and what its accepting them has to mean."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from secureps.errors import InternalError, SecurepsError
from tests.fuzz.mutate import mutated


@dataclass(frozen=True)
class Target:
    """A decoder before hostile bytes.

    Args:
        name: as the command line has it.
        of: the functions that it puts to the test, as `module:function`.
        corpus: honest inputs.
        take: reads an input, and returns the bytes that it would write of what it read; a
            SecurepsError says that it was refused.
        signed: nothing but the corpus may be accepted.
        mend: makes the checksums of an input right, so that what lies behind them is reached.
        cost: of an input, in those of a cheap one: so many fewer are tried.
    """

    name: str
    of: tuple[str, ...]
    corpus: tuple[bytes, ...]
    take: Callable[[bytes], bytes]
    signed: bool = False
    mend: Callable[[bytes], bytes] | None = None
    cost: float = 1.0

    def draw(self, random: Random) -> bytes:
        """An input: the corpus, changed; with its checksums made right in half of the cases."""
        data = mutated(random, self.corpus)
        return data if self.mend is None or random.random() < 0.5 else self.mend(data)

    def complaint(self, data: bytes) -> str | None:
        """What is wrong with how an input was taken; None if nothing is."""
        try:
            read = self.take(data)
        except InternalError:
            return f"an InternalError: {traceback.format_exc()}"
        except SecurepsError as error:
            return _unprintable(str(error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return traceback.format_exc()
        if self.signed and data not in self.corpus:
            return f"accepted, and nobody signed it: {data[:300]!r}"
        if read != data:
            return f"accepted, and it is written otherwise: {_difference(data, read)}"
        return None

    def accepts(self, data: bytes) -> bool:
        try:
            self.take(data)
        except SecurepsError:
            return False
        return True


def _unprintable(text: str) -> str | None:
    """An error's text is shown to people and written to logs: it must be text, and short."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"an error that cannot be written: {text[:300]!r}"
    return f"an error of {len(text)} characters: {text[:300]!r}" if len(text) > 20_000 else None


def _difference(data: bytes, read: bytes) -> str:
    at = next((k for k, (a, b) in enumerate(zip(data, read)) if a != b), min(len(data), len(read)))
    near = slice(max(0, at - 40), at + 60)
    return f"at byte {at} {data[near]!r} is read as {read[near]!r}"


def in_file(path: Path, take: Callable[[Path], object]) -> Callable[[bytes], bytes]:
    """A reader of files: what it takes in counts as read, whatever of it is of no meaning."""

    def taken(data: bytes) -> bytes:
        path.write_bytes(data)
        take(path)
        return data

    return taken
