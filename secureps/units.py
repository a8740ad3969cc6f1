"""Numbers with their units, as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in decimal units: 1.3 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
