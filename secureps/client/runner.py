"""Runs one client as a process, and reads its command line.

`make_member` makes a client, and `join` takes part until the run ends. `run_client`, the last
line of a data holder's script, reads the command line and calls `join`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from secureps.arguments import check_types
from secureps.client.initial_model import digests_of, initial_digest, initial_parameters, schema_of
from secureps.client.settings import (
    TrackedSettings,
    importing,
    read_settings,
    refuse_unknown,
)
from secureps.client.site_policy import NO_POLICY, SitePolicy, read_site
from secureps.client.trainer import (
    Setting,
    Trainer,
    blamed,
    count_records,
    read_touched_rows,
    ties_of,
)
from secureps.client.worker import ClientWorker, Site
from secureps.config.site_files import MOST_EXAMPLES, read_profile
from secureps.errors import (
    ConfigError,
    exit_status,
)
from secureps.exhaustion import disable_core_dumps
from secureps.messages.run import COORDINATOR, demand_address
from secureps.roles.machine import Halt
from secureps.roles.member.member import Member
from secureps.roles.member.terms import NO_TERMS, MemberSettings, Terms
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.logs import FORMATS, ignore_output_errors, logging_as
from secureps.service.pinning import pin_process
from secureps.service.process import Party, await_certificates, make_link, run_process
from secureps.store.atomic_file import secure_folder
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import (
    NATIVE,
    PublicKit,
    choose_seed,
    default_state,
    demand_host,
    load_private,
    load_public,
)
from secureps.store.kit_files import Passphrases
from secureps.tracebacks import dump_crashes, with_fault

log = logging.getLogger("secureps")

LOCAL = "local"
"""The folder of local tensors, in a client's state folder."""


def make_member(
    kit: PublicKit,
    site: Site,
    stores: Stores,
    around: Environment,
    cost: Callable[[object], float] = lambda task: 0.0,
    terms: Terms = NO_TERMS,
) -> Executor:
    """Makes a client that insists on `terms`; a task takes `cost` seconds of virtual time.

    Raises ScriptFailed if the trainer failed, or returned something unusable.
    """
    initial = initial_parameters(site.trainer, site.seed)
    with blamed("what parameters returned"):
        schema = schema_of(initial, ties_of(site.trainer))
    with blamed("touches"):
        rows = read_touched_rows(site.trainer, schema)
    with blamed("examples"):
        count_records(site.trainer)  # a wrong number is refused here, before the first update
    last: Literal["", "own", "every"] = "own" if hasattr(site.trainer, "take_totals") else ""
    if site.model is not None:
        last = "every"
    settings = MemberSettings(
        site.name,
        kit.roster,
        schema,
        terms,
        rows,
        site.records,
        initial_digest(site.trainer),
        digests_of(initial),
        last,
    )
    return assemble_member(settings, site, stores, around, cost)


def assemble_member(
    settings: MemberSettings,
    site: Site,
    stores: Stores,
    around: Environment,
    cost: Callable[[object], float] = lambda task: 0.0,
) -> Executor:
    """Makes a client from settings, without asking its trainer."""
    machine = Member(settings)
    worker = ClientWorker(site, machine, stores.spool, cost)
    return Executor(site.name, machine, stores.journal, around, worker)


@dataclass(frozen=True)
class Joining:
    """The options by which a client joins a run, as in `client.session.join`.

    The stricter of `terms` and its site's terms apply. ConfigError if a value is out of range.
    """

    server: str
    kit: Path
    name: str
    state: Path
    unsafe_seed: int | None = None
    terms: Terms = NO_TERMS
    threads: int = 1
    ca_fingerprint: str | None = None
    records: int | None = None
    insecure_for_tests: bool = False
    ledger: Path | None = None
    insecure: bool = False
    passphrases: Passphrases = field(default_factory=Passphrases)
    site: SitePolicy = NO_POLICY
    model: Path | None = None

    @property
    def effective_terms(self) -> Terms:
        own = self.terms
        return self.site.terms.tighten(own.budget, own.threshold, own.plan)

    @property
    def ledger_path(self) -> Path:
        """The ledger over all runs; ConfigError if the option contradicts its site's."""
        return self.site.choose_ledger(self.ledger) or default_ledger(self.kit, self.name)

    def __post_init__(self) -> None:
        demand_address(self.server)
        if self.threads < 1:
            raise ConfigError(f"blocks are sealed by 1 thread or more, got {self.threads}")
        if self.records is not None and not 1 <= self.records <= MOST_EXAMPLES:
            raise ConfigError(
                f"records: a client counts by 1 to {MOST_EXAMPLES} records, got {self.records}"
            )
        if self.model is not None:
            _refuse_model(self.model)


def _refuse_model(path: Path) -> None:
    """Refuses a file that cannot be written after the run, or a device that it would replace."""
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise ConfigError(f"--model: {path} must be a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--model: {path.parent}: this user may not write there")


def join(joining: Joining, trainer: Trainer, make: Callable[..., Executor] = make_member) -> Halt:
    """Takes part until the run ends; returns why it ended. `make` makes the client.

    In a process that only helps another one to train, it does that instead. Raises the
    SecurepsError that ended the client early.
    """
    disable_core_dumps()
    follow, dismiss = (getattr(trainer, name, None) for name in ("follow", "dismiss"))
    if follow is not None:
        with blamed("follow"):
            reason = follow()
        if reason is not None:
            return Halt(reason)
    try:
        halt = _take_part(joining, trainer, make)
    except BaseException:
        if dismiss is not None:
            try:
                dismiss()
            except Exception as error:  # raise the first error, not this one
                log.warning("the processes that trained with it are not dismissed: %s", error)
        raise
    if dismiss is not None:
        with blamed("dismiss"):
            dismiss()
    return halt


def _take_part(joining: Joining, trainer: Trainer, make: Callable[..., Executor]) -> Halt:
    terms, ledger = joining.effective_terms, joining.ledger_path
    records = joining.site.choose_records(joining.records)
    kit = load_public(joining.kit, joining.ca_fingerprint)
    demand_host(kit.roster, joining.kit, NATIVE)
    identity = load_private(joining.kit, joining.name, joining.passphrases)
    secure_folder(joining.state)  # only now: a misspelt kit or name must leave no folder
    seed = choose_seed(
        joining.state, joining.unsafe_seed, joining.server, joining.insecure_for_tests
    )

    def build(stores: Stores, around: Environment) -> Executor:
        site = Site(
            joining.name,
            trainer,
            identity,
            seed,
            kit.holder_keys,
            stores.folder / LOCAL,
            joining.threads,
            records,
            BudgetLedger(ledger, terms.budget, terms.updates_per_hour),
            model=joining.model,
        )
        return make(kit, site, stores, around, terms=terms)

    if not joining.insecure:
        await_certificates(joining.kit, joining.name)
    link = make_link(joining.kit, joining.name, kit.ca, joining.insecure, joining.passphrases)
    party = Party(joining.name, identity, link, kit.roster, joining.state, joining.kit)
    return run_process(party, {COORDINATOR: joining.server}, build)


@check_types
def run_client(
    make: Callable[[Mapping[str, Any]], Trainer], arguments: Sequence[str] | None = None
) -> None:
    """Runs a data holder's script: reads the command line, and trains until the run ends.

    It does nothing if `secureps` imports the script only for its functions. After an error it exits
    with one line on stderr, and status 78 if plan, kit or settings have to be mended first, 75 if
    the run failed for all its clients, else 1.

    Args:
        make: builds the trainer from the `--set key=value` settings.
        arguments: the command line; default: the process's own.

    Examples:
        >>> def make(settings):
        ...     return ps.TorchTrainer(model, *records(settings["data"]))
        >>> if __name__ == "__main__":  # python client.py --server HOST:PORT --kit KIT --name me
        ...     ps.run_client(make)
    """

    def build(joining: Joining, settings: Mapping[str, Setting]) -> Trainer:
        refuse_unknown(settings, getattr(make, "__globals__", {}))
        asked = TrackedSettings(settings)
        with blamed("make(settings)"):
            trainer = make(asked)
        asked.refuse_misspelt()
        return trainer

    run(build, arguments)


def run(
    build: Callable[[Joining, Mapping[str, Setting]], Trainer],
    arguments: Sequence[str] | None = None,
) -> None:
    """Like `run_client`, for trainers that need the joining options too."""
    if importing.get():
        return
    ignore_output_errors()
    dump_crashes()
    try:
        given = _parse_arguments(sys.argv[1:] if arguments is None else arguments)
        if given.kernels is not None:
            from secureps.compiled import keep_in

            keep_in(given.kernels)
        with logging_as(given.log_format, given.name, given.verbose, ours=False):
            pin_process(given.pin, given.name, given.threads)
            settings = read_settings(given.set)
            policy = NO_POLICY if given.site is None else read_site(given.site)
            policy.demand_running()
            state = given.state if given.state is not None else default_state(given.kit, given.name)
            joining = Joining(
                given.server,
                given.kit,
                given.name,
                state,
                given.unsafe_seed,
                Terms(given.budget, given.threshold),
                given.threads,
                given.ca_fingerprint,
                given.records,
                given.insecure_for_tests,
                given.ledger,
                given.insecure,
                Passphrases(given.passphrase_fd),
                policy,
                given.model,
            )
            halt = join(joining, build(joining, settings))
    except Exception as error:
        known = with_fault(error)
        print(f"error: {known} ({known.fault} fault)", file=sys.stderr)
        sys.exit(exit_status(known))
    print(halt.reason)


def _parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--profile")
    if (profile := first.parse_known_args(arguments)[0].profile) is None:
        return _parser().parse_args(arguments)
    words = (f"--{key.replace('_', '-')}={value}" for key, value in read_profile(profile).items())
    return _parser().parse_args([*words, *arguments])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Takes part in a federation as a data holder.")
    add = parser.add_argument
    add("--server", required=True, metavar="HOST:PORT", help="the coordinator")
    add("--kit", required=True, type=Path, metavar="DIR", help="start-up kit")
    add("--name", required=True, help="who you are on the kit's roster")
    add("--profile", metavar="NAME", help="the three, from ~/.config/secureps/config.toml")
    add("--state", type=Path, metavar="DIR", help="outbox and journal (default: KIT/state/NAME)")
    add("--unsafe-seed", type=int, metavar="N", help="repeatable runs on loopback: no privacy")
    add(
        "--insecure-for-tests",
        action="store_true",
        help="what --unsafe-seed needs: no real data",
    )
    add(
        "--budget",
        type=float,
        metavar="EPSILON",
        help="stop before more is spent, whatever the plan says; refuse a plan without privacy",
    )
    add(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="what your records spend over all runs (default: ledgers/NAME.db beside the kit)",
    )
    add(
        "--threshold",
        type=int,
        metavar="T",
        help="refuse a plan by which fewer than T key holders open a sum together",
    )
    add("--site", type=Path, metavar="FILE", help="what your site allows, whatever the plan says")
    add(
        "--records",
        type=int,
        metavar="N",
        help="count as so many records, a public number, however many there are",
    )
    add("--threads", type=int, default=1, metavar="N", help="that seal updates (default: 1)")
    add(
        "--pin",
        default="off",
        metavar="auto|off|NODE",
        help="CPUs and memory of one NUMA node: of this one, or chosen by your name (default: off)",
    )
    add(
        "--model",
        type=Path,
        metavar="FILE",
        help="write the last model there when the run ends, as safetensors",
    )
    add("--ca-fingerprint", metavar="HEX", help="refuse a kit that another CA has signed")
    add(
        "--passphrase-fd",
        type=int,
        metavar="N",
        help="open file whose first line is the passphrase of your private keys; 0: stdin",
    )
    add("--insecure", action="store_true", help="without TLS, on loopback alone")
    add("--kernels", type=Path, metavar="DIR", help="where compiled kernels are kept")
    add("--verbose", action="store_true", help="show where the script's own errors come from")
    add("--log-format", choices=FORMATS, default="text", help="of stderr (default: text)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the script")
    return parser
