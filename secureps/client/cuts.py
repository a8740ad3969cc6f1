"""What clip and range cut off an update, told on the client's own terminal and nowhere else.

No noise covers an update's norm, so it must not live in telemetry, receipts or journals; and
whoever chose `clip` or `range` too small would otherwise never learn of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.service.logs import tell

EVENT = "UpdateCut"


def tell_clip(party: str, where: str, norm: float, clip: float) -> None:
    """A line if an update of this norm was clipped; `where` names its group, if it must."""
    if norm > clip:
        cut = f"cut to {100 * clip / norm:.2g} %"
        tell(party, EVENT, f"{where}update norm {norm:.3g}, clip {clip:.3g}: {cut}")


def tell_range(party: str, where: str, scaled: NDArray[np.float64], most: float) -> None:
    """A line if values of an update, as they go on the grid, are beyond its range."""
    if max(scaled.max(initial=0), -scaled.min(initial=0)) > most:
        beyond = int(np.count_nonzero(np.abs(scaled) > most))
        text = f"{beyond:,} of the update's {scaled.size:,} values are beyond range {most:.3g}"
        tell(party, EVENT, f"{where}{text}: cut to it")
