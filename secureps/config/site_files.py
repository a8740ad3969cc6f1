"""The sections of the files at a party's own site, key by key.

A server's file has its kit, address and state. A data holder's site policy limits what any plan may
do there. A profile saves the options of a connection under a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from secureps.config.sections import DIGEST, MEMORY, NAME, PIN, Table, Tables, parse, read_toml
from secureps.errors import ConfigError
from secureps.wording import suggest

MOST_EXAMPLES = 1 << 40
"""The most examples by which a client may count."""


class ServeSection(Table):
    """One server process; its role decides which keys it needs (`run.serve`).

    Paths are relative to the file.

        listen, advertise   address to bind, and the one that others dial (default: the same)
        coordinator         HOST:PORT of the coordinator, or HOST:PORT,HOST:PORT with its standby
        standby             the standby's address, in the coordinator's file
        minimum, threshold  a holder's own limits: smallest cohort, holders that must agree
        initial             path or URL of version 0 on this server (default: the plan's)
        plan_base           folder that the plan's paths are relative to (default: the plan's)
        checkpoint_copies   URL of an object store that checkpoints are copied to
        socket              path at which a holder inside Flower's engine gets its messages from its
                            node's app, which another user runs (unless `insecure_for_tests`); the
                            holder dials no other party then
        metrics             HOST:PORT for Prometheus (port 0: any free port; default: none)
        threads             that add and open a shard's blocks
        memory              most values and optimizer state in a shard process; the rest is in files
        pin                 the NUMA node whose CPUs and memory the process takes
        insecure            connections without TLS, on loopback only
        unsafe_seed         repeats a shard's noise, so there is no privacy; on loopback only, and
                            with `insecure_for_tests`
        ca_fingerprint      a kit that another CA has signed is refused
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
"""What a coordinator learns of a refusal: that there is one, its keys, or the whole reason."""

MESSAGE = r"^(train|query|(train|evaluate|query)\.[A-Za-z_][A-Za-z0-9_]*)$"
"""Types of messages to a client's app other than evaluation. "train" is no custom type, because
every plan uses it."""

Digests = Annotated[tuple[Annotated[str, Field(pattern=DIGEST)], ...], Field(min_length=1)]


class SiteSection(Table):
    """One site's policy; a missing key sets no limit.

    `minimum` is the smallest cohort and `threshold` the fewest key holders that may open a sum, in
    any plan that this site takes part in. `budget` is the largest epsilon of all runs together,
    counted in `ledger` (a path relative to the file; default: beside the kit). `updates_per_hour`
    limits how many trainings of all runs begin in any hour. `plans` are digests that `secureps
    check` shows, `scripts` SHA-256 digests of files. With `evaluation = false` no record is used to
    judge a model; with `network = false` the script runs in a process without network. A client
    counts as `records` examples, and publishes that number instead of its own. `messages` are the
    custom message types that a run may use (default: none). `reveal` is what the coordinator learns
    of a refusal.
    """

    minimum: int | None = Field(default=None, ge=1)
    threshold: int | None = Field(default=None, ge=1, le=64)
    budget: float | None = Field(default=None, gt=0)
    ledger: str | None = None
    plans: Digests | None = None
    scripts: Digests | None = None
    evaluation: bool = True
    records: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
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
    """Returns the options of a profile by name; ConfigError if there is none of this name."""
    path = profile_file()
    told = read_toml(path)
    profiles = told.get("profile")
    if isinstance(profiles, Mapping) and name in profiles:  # ignore faults in other profiles
        told = Tables({**told, "profile": {name: profiles[name]}}, told.lines)
    profiles = parse(ProfilesSection, told, str(path)).profile
    if name not in profiles:
        raise ConfigError(f"{path} has no [profile.{name}]; {suggest(name, profiles)}")
    found = profiles[name]
    options = {key: str(value) for key, value in found if value is not None}
    here = {key: str(path.parent / options[key]) for key in ("kit", "site") if key in options}
    return options | here
