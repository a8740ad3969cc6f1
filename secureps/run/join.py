"""`secureps join`: one data holder, from a script that need not know of secureps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from secureps.client.runner import Joining
from secureps.client.runner import join as take_part
from secureps.client.script import Script
from secureps.client.trainer import Setting
from secureps.run.script.cut_off import cut_off
from secureps.service.pinning import pin_process
from secureps.tracebacks import dump_crashes


def join(script: Path, joining: Joining, settings: Mapping[str, Setting], pin: str = "off") -> str:
    """Takes part until the run is over; returns why it ended.

    Args:
        script: one of ours, a Flower file, or a Flower project's folder.
        pin: the NUMA node that this process is pinned to, before it imports anything of the script.

    Raises:
        ConfigError: the script cannot be used, or its site does not allow it; says why.
        SecurepsError: whatever ended it before.
    """
    dump_crashes()
    pin_process(pin, joining.name, joining.threads)
    joining.site.demand_script(script)  # before anything of it runs
    sys.argv = [str(script)]  # it may read its command line, and so may processes that it starts
    if not joining.site.network:
        with cut_off(script, settings, joining.state, joining.name) as trainer:
            return take_part(joining, trainer).reason
    source = Script(script)
    return take_part(joining, source.make(settings, joining.state, joining.name)).reason
