"""The section of a server's own file: which kit, where it listens, where it keeps its state."""

from __future__ import annotations

from pydantic import Field

from secureps.config.sections import MEMORY, NAME, PIN, Table


class ServeSection(Table):
    """One server process; which keys it needs depends on its role (`run.serve`).

    Paths are relative to the file. `listen` is where it binds, `advertise` what others dial
    (default: the same). `coordinator` is HOST:PORT of the coordinator, or of it and its standby,
    HOST:PORT,HOST:PORT; a coordinator's own file names its standby's as `standby`. By any plan that
    a holder takes part in, `minimum` is the smallest cohort, and `threshold` how many holders must
    agree (default: as many as the plan says). `initial` is where a coordinator, standby or shard
    has the plan's file of version 0, a path or URL (default: the plan's). `plan_base` is the folder
    that the plan's own paths are relative to (default: the plan's). `checkpoint_copies` is the URL
    of an object store to which its checkpoints are copied. `socket` is a path at which a key holder
    hears its waves inside Flower's engine, from the app of its node, which another user runs (but
    under `insecure_for_tests`); then it dials nobody. `metrics` is HOST:PORT to read Prometheus
    metrics from (port 0: a free one; default: none). `threads` is how many add and open a shard's
    blocks. `memory` is how much of its values and optimizer state a shard's process holds, at most;
    the rest lies in files (default: all). `pin` is the NUMA node whose CPUs and memory the process
    takes. Under `insecure` its connections have no TLS; all their ends are on loopback.
    `unsafe_seed` repeats a shard's noise, on loopback alone and with `insecure_for_tests`: no
    privacy. A kit that is signed by another CA than `ca_fingerprint`, if there is one, is refused.
    """

    name: str = Field(pattern=NAME)
    kit: str
    ca_fingerprint: str | None = None
    state: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    coordinator: str | None = None
    standby: str | None = None
    socket: str | None = None
    plan: str | None = None
    plan_base: str | None = None
    initial: str | None = None
    checkpoints: str | None = None
    checkpoint_copies: str | None = None
    weight: float = Field(default=1.0, gt=0)
    minimum: int = Field(default=5, ge=1)
    threshold: int | None = Field(default=None, ge=1, le=64)
    metrics: str | None = None
    threads: int = Field(default=1, ge=1, le=256)
    memory: str | None = Field(default=None, pattern=MEMORY)
    pin: str = Field(default="off", pattern=PIN)
    unsafe_seed: int | None = Field(default=None, ge=0, lt=1 << 64)
    insecure: bool = False
    insecure_for_tests: bool = False
