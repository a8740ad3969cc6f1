"""Reads a site's policy from its file, and compares it with the script that is to run."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secureps.config.sections import parse, read_toml
from secureps.config.site_files import SiteSection
from secureps.errors import ConfigError
from secureps.roles.member.terms import NO_TERMS, Terms


@dataclass(frozen=True)
class SitePolicy:
    """A site's limits, whatever a plan says.

    Args:
        ledger: the file of what its records spend over all runs, if it names one.
        records: the public number by which its clients count, if it gives one.
        scripts: SHA-256 digests, hex, of the scripts that may run (`script_digest`); None: any.
        network: whether a script may use the network.
        where: the policy's file, for errors.
    """

    terms: Terms = NO_TERMS
    ledger: Path | None = None
    records: int | None = None
    scripts: tuple[str, ...] | None = None
    network: bool = True
    where: str = ""

    def demand_script(self, script: Path | None) -> None:
        """Raises ConfigError unless this script may run; None is a script without a file.

        The digest covers the script's file, not its imports or data; or all files in a folder.
        """
        if self.scripts is None:
            return
        # A malicious plan may name a device or a pipe, whose bytes never end.
        if script is None or not (script.is_file() or script.is_dir()):
            what = "a script without a file" if script is None else f"{script}: no file"
            raise ConfigError(
                f"{self.where}: scripts: {what}, and this site allows files by their digests: give "
                "one, or leave scripts out"
            )
        own = script_digest(script)
        if own not in self.scripts:
            raise ConfigError(
                f"{self.where}: scripts: {script} has the SHA-256 digest {own}, and none of the "
                f"{len(self.scripts)} that this site allows: nothing of it was run; read it, and "
                "add the digest to scripts"
            )
        if script.is_dir():  # compiled files would change the folder's digest for the next start
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # nor do processes that it starts

    def demand_running(self) -> None:
        """Raises ConfigError unless the script that Python was started with may run."""
        if not self.network:
            raise ConfigError(
                f"{self.where}: network = false: this script runs in the client's own process, "
                "which needs the network: give it to secureps join, which runs it in another"
            )
        file = getattr(sys.modules["__main__"], "__file__", None)  # a notebook has none
        self.demand_script(Path(file) if file else None)

    def choose_records(self, option: int | None) -> int | None:
        """Returns the number to count by; ConfigError if the option contradicts this site's."""
        if self.records is None or option in (None, self.records):
            return self.records or option
        raise ConfigError(
            f"--records {option}: {self.where} has {self.records} for all clients of this site: "
            "leave the option out"
        )

    def choose_ledger(self, option: Path | None) -> Path | None:
        """Returns the ledger to charge; ConfigError if the option contradicts this site's."""
        if self.ledger is None or option is None or option.absolute() == self.ledger:
            return self.ledger or option
        raise ConfigError(
            f"--ledger {option}: {self.where} has {self.ledger}, which counts for all runs of this "
            "site: leave the option out"
        )


NO_POLICY = SitePolicy()


def read_site(path: Path) -> SitePolicy:
    """Reads the policy in a file; ConfigError names the line that is wrong."""
    section = parse(SiteSection, read_toml(path), str(path))
    terms = Terms(
        section.budget,
        section.threshold,
        minimum=section.minimum,
        plans=section.plans,
        evaluation=section.evaluation,
        updates_per_hour=section.updates_per_hour,
        reveal=section.reveal,
        messages=section.messages,
    )
    ledger = None if section.ledger is None else (path.parent / section.ledger).absolute()
    rest = (section.records, section.scripts, section.network, str(path))
    return SitePolicy(terms, ledger, *rest)


def script_digest(script: Path) -> str:
    """Computes the SHA-256 digest of a file; for a folder the digest that this prints there:

        find . -type f -not -path '*/.*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum

    It covers compiled files too, which Python may run in place of the sources. It leaves out names
    and folders that begin with a dot, which Python does not import.

    Raises:
        ConfigError: an entry of the folder is no file, or has a name that sha256sum escapes.
    """
    if not script.is_dir():
        return hashlib.sha256(script.read_bytes()).hexdigest()
    names = sorted(os.fsencode(path.relative_to(script).as_posix()) for path in _files(script))
    whole = hashlib.sha256()
    for name in names:
        with open(script / os.fsdecode(name), "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").hexdigest().encode())
        whole.update(b"  ./" + name + b"\n")
    return whole.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *names):
            path = Path(place, name)
            if name.startswith("."):
                continue
            if path.is_symlink() or not (path.is_dir() or path.is_file()) or {*name} & {*"\\\n\r"}:
                raise ConfigError(
                    f"{str(path)!r}: a folder has a digest where all in it are files and folders, "
                    "no links, without line ends or backslashes in their names: put a file in its "
                    "place"
                )
            if path.is_file():
                yield path
