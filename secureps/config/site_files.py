"""The sections of the files at a party's own site, key by key.

A server's file names its kit, its address and its state. A data holder's file says what its site
allows, whatever a plan says. A profile saves the options of a connection under a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from secureps.config.sections import DIGEST, MEMORY, NAME, PIN, Table, Tables, parse, read_toml
from secureps.errors import ConfigError
from secureps.wording import suggest


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


# --- site --------------------------------------------------------------------------


Reveal = Literal["nothing", "keys", "values"]
"""The part of a refusal that a coordinator hears: its existence, its keys, or its whole reason."""

MESSAGE = r"^(train|query|(train|evaluate|query)\.[A-Za-z_][A-Za-z0-9_]*)$"
"""Types of messages to a client's app that are not the evaluation itself; "train" is no custom one,
for every plan has it."""

Digests = Annotated[tuple[Annotated[str, Field(pattern=DIGEST)], ...], Field(min_length=1)]


class SiteSection(Table):
    """One site's policy; without a key it has no word in the matter.

    `minimum` is the smallest cohort, and `threshold` how few key holders may open a sum, by any
    plan that this site takes part in. `budget` is the largest epsilon of all runs together, counted
    in `ledger` (a path relative to the file; default: beside the kit), and
    `updates_per_hour` how many trainings may begin in any hour, of all runs too. `plans` are
    digests of plans as `secureps check` shows them, and `scripts` SHA-256 digests of files. Under
    `evaluation = false` no record is used to judge a model, and under `network = false` the script
    runs in a process of its own that has no network. A client counts as `records`, and publishes
    this number in place of how many examples it has. `messages` are types of an app's own that
    a run may use: none by default. `reveal` is what the coordinator hears of a refusal.
    """

    minimum: int | None = Field(default=None, ge=1)
    threshold: int | None = Field(default=None, ge=1, le=64)
    budget: float | None = Field(default=None, gt=0)
    ledger: str | None = None
    plans: Digests | None = None
    scripts: Digests | None = None
    evaluation: bool = True
    records: int | None = Field(default=None, ge=1, le=1 << 40)
    updates_per_hour: int | None = Field(default=None, ge=1)
    network: bool = True
    messages: tuple[Annotated[str, Field(pattern=MESSAGE)], ...] = ()
    reveal: Reveal = "keys"


# --- profile -----------------------------------------------------------------------


class ProfileSection(Table):
    """One profile: values of the options of the same names; paths are relative to the file."""

    server: str
    kit: str
    name: str | None = None
    ca_fingerprint: str | None = None
    site: str | None = None


class ProfilesSection(Table):
    """A file of profiles."""

    profile: dict[str, ProfileSection]


def profile_file() -> Path:
    """Returns the file of profiles; ConfigError for a user without a home folder."""
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigError(
            "--profile: this user has no home folder to keep profiles in: set HOME, or give "
            "--server, --kit and --name instead"
        ) from None
    return home / ".config" / "secureps" / "config.toml"


def read_profile(name: str) -> dict[str, str]:
    """The options that a profile gives, by name; ConfigError if there is none of this name."""
    path = profile_file()
    told = read_toml(path)
    profiles = told.get("profile")
    if isinstance(profiles, Mapping) and name in profiles:  # a fault in another is for who uses it
        told = Tables({**told, "profile": {name: profiles[name]}}, told.lines)
    profiles = parse(ProfilesSection, told, str(path)).profile
    if name not in profiles:
        raise ConfigError(f"{path} has no [profile.{name}]; {suggest(name, profiles)}")
    found = profiles[name]
    options = {key: str(value) for key, value in found if value is not None}
    here = {key: str(path.parent / options[key]) for key in ("kit", "site") if key in options}
    return options | here
