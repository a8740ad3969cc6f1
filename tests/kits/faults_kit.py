"""What may happen to messages between parties, as marks of tests that take a `fault`."""

from __future__ import annotations

import pytest

from secureps.wire.transport import Cut, Delay, Drop, DropReply, Duplicate

to_requests = pytest.mark.parametrize(
    "fault", [Drop(), DropReply(), Duplicate(), Delay(3.0)], ids=repr
)
to_orders = pytest.mark.parametrize("fault", [Cut(), Duplicate(), Delay(3.0)], ids=repr)
"""An order comes by a stream, which is cut where the order is lost."""
