"""Connection profiles: who somebody is to which coordinator, told once in a file of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from secureps.config.sections import Table, Tables, parse, read_toml
from secureps.errors import ConfigError
from secureps.wording import meant


class ProfileSection(Table):
    """What the options of the same names would say; paths are relative to the file."""

    server: str
    kit: str
    name: str | None = None
    ca_fingerprint: str | None = None
    site: str | None = None


class ProfilesSection(Table):
    """A file of profiles."""

    profile: dict[str, ProfileSection]


def profile_file() -> Path:
    """Where profiles lie; ConfigError for a user without a home folder."""
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
        raise ConfigError(f"{path} has no [profile.{name}]; {meant(name, profiles)}")
    found = profiles[name]
    options = {key: str(value) for key, value in found if value is not None}
    here = {key: str(path.parent / options[key]) for key in ("kit", "site") if key in options}
    return options | here
