"""Linear algebra modulo P, by Python's integers."""

from collections.abc import Iterable, Sequence

P = 2**31 - 1


def echelon(rows: Iterable[Sequence[int]]) -> list[list[int]]:
    """Reduces rows to independent ones, each with a pivot of 1 where all below have 0."""
    found: list[tuple[int, list[int]]] = []
    for given in rows:
        row = [value % P for value in given]
        for pivot, known in found:
            if factor := row[pivot]:
                row = [(a - factor * b) % P for a, b in zip(row, known)]
        pivot = next((at for at, value in enumerate(row) if value), -1)
        if pivot >= 0:
            inverse = pow(row[pivot], -1, P)
            found.append((pivot, [value * inverse % P for value in row]))
    return [row for _, row in found]


def rank(rows: Iterable[Sequence[int]]) -> int:
    return len(echelon(rows))
