"""Where tests seal blocks that belong nowhere."""

from secureps.crypto.cipher import Place

PLACE = Place(bytes(32), "all", bytes(32), 1 << 14)
