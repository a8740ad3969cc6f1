"""Runs a client as a process: reads its command line, its settings and its script.

A script has `make(settings)`, or is a Flower app, and is loaded by its path. `make_member` makes a
client, and `join` takes part until the run ends. `run_client`, the last line of a data holder's
script, reads the command line and calls `join`.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from secureps.client.initial_model import ServerAppResult
from secureps.client.trainer import (
    EvaluateResult,
    Evaluator,
    Setting,
    Trainer,
    blamed,
    convert_evaluation,
    record_privacy,
    tell_listeners,
)
from secureps.errors import ConfigError, PlanRefused, ScriptFailed, SecurepsError, naming
from secureps.extras import from_extras
from secureps.policy.plan import Plan
from secureps.tracebacks import describe_error, find_place

if TYPE_CHECKING:
    from secureps.client.flower.script import FlowerScript


import argparse
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from secureps.arguments import check_types
from secureps.client.initial_model import digests_of, initial_digest, initial_parameters, schema_of
from secureps.client.site_policy import NO_POLICY, SitePolicy, read_site
from secureps.client.trainer import ties_of, to_whole_number
from secureps.client.worker import ClientWorker, Site
from secureps.config.sections import Section, parse, read_toml, toml_value
from secureps.config.site_files import read_profile
from secureps.errors import (
    Malformed,
    WrongShape,
    exit_status,
)
from secureps.exhaustion import disable_core_dumps
from secureps.messages.run import COORDINATOR, Schema, demand_address
from secureps.policy.plan import MOST_EXAMPLES
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
from secureps.store.spool import Spool
from secureps.tracebacks import dump_crashes, with_fault
from secureps.wording import suggest

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
    return assemble_member(member_settings(kit, site, terms), site, stores, around, cost)


def member_settings(kit: PublicKit, site: Site, terms: Terms) -> MemberSettings:
    """Asks a trainer what its client tells the coordinator; raises as `make_member`."""
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
    return MemberSettings(
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


def assemble_member(
    settings: MemberSettings,
    site: Site,
    stores: Stores,
    around: Environment,
    cost: Callable[[object], float] = lambda task: 0.0,
) -> Executor:
    """Makes a client from settings, without asking its trainer."""
    machine, worker = machine_and_worker(settings, site, stores.spool, cost)
    return Executor(site.name, machine, stores.journal, around, worker)


def machine_and_worker(
    settings: MemberSettings, site: Site, outbox: Spool, cost: Callable[[object], float]
) -> tuple[Member, ClientWorker]:
    machine = Member(settings)
    return machine, ClientWorker(site, machine, outbox, cost)


def count_records(trainer: Trainer) -> int | None:
    """Asks a trainer for its number of records; None if it has no method `examples`."""
    tells = getattr(trainer, "examples", None)
    if tells is None:
        return None
    return to_whole_number("the number of records", tells())


def read_touched_rows(trainer: Trainer, schema: Schema) -> dict[str, list[int]]:
    """Asks a trainer which rows its records touch, ascending; {} if it has no method `touches`.

    Raises WrongShape or Malformed if these are no rows of the model.
    """
    touches = getattr(trainer, "touches", None)
    if touches is None:
        return {}
    told = touches()
    if not isinstance(told, Mapping):
        raise WrongShape(f"it is a {type(told).__name__}, and must map tensors to their rows")
    heights = {spec.name: spec.shape[0] for spec in schema.tensors if spec.shape}
    found = {}
    for name, rows in told.items():
        array = np.asarray(rows)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise WrongShape(f"the rows of {name} are not a vector of integers")
        if name not in heights:
            raise Malformed(f"the model has no tensor {name!r:.80} with rows")
        found[name] = own = [int(row) for row in np.unique(array)]
        if own and (own[0] < 0 or own[-1] >= heights[name]):
            row = own[0] if own[0] < 0 else own[-1]
            raise Malformed(f"{name} has rows 0 to {heights[name] - 1}, and no row {row}")
    return found


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

    @property
    def public_records(self) -> int | None:
        """The number to count by; ConfigError if the option contradicts its site's."""
        return self.site.choose_records(self.records)

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
    terms, ledger, records = joining.effective_terms, joining.ledger_path, joining.public_records
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


_looked_at: ContextVar[bool] = ContextVar("a script is imported for its functions", default=False)


@contextmanager
def only_importing() -> Iterator[None]:
    """Makes `run_client` do nothing, while a script is imported only for its functions."""
    token = _looked_at.set(True)
    try:
        yield
    finally:
        _looked_at.reset(token)


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
    if _looked_at.get():
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


def read_settings(given: Sequence[str]) -> dict[str, Setting]:
    """Parses `--set key=value`: TOML values (3, 0.5, true, "text"), else text; ConfigError."""
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        settings[key] = toml_value(value)
    return settings


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


# --- script settings ---------------------------------------------------------------


class Settings(Section):
    """Declares a script's settings: a field for each, with its type and default.

    Values are checked and converted; a setting without a field is refused.

    Examples:
        >>> class Share(ps.Settings):
        ...     partition: int = 0
        ...     device: str = "cpu"
        >>> Share.of({"partition": "3"})
        Share(partition=3, device='cpu')
    """

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Reads the settings that `make(settings)` gets; ConfigError names all wrong ones.

        A text, as `--set` gives it, is converted to the field's type.
        """
        return parse(cls, dict(settings), "--set")


_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")


def read_run_config(given: Sequence[str]) -> dict[str, Setting]:
    """Reads `--run-config` as `flwr run` does: "lr=0.1 name='x'", or a TOML file's path."""
    if len(given) == 1 and given[0].endswith(".toml"):
        return dict(flatten_table(read_toml(Path(given[0])), f"--run-config {given[0]}"))
    found = dict[str, Setting]()
    for text in given:
        if _PAIR.sub("", text).strip():
            raise ConfigError(
                f"--run-config {text}: expected KEY=VALUE KEY='TEXT' ..., or a TOML file"
            )
        for key, value in _PAIR.findall(text):
            found[key] = toml_value(value)
            if found[key] == value:
                raise ConfigError(f"--run-config {key}={value}: quote a text: {key}='{value}'")
    return found


def flatten_table(
    table: Mapping[str, Any], where: str, prefix: str = ""
) -> Iterator[tuple[str, Setting]]:
    """Yields a table's values, "a.b" for b of table a; ConfigError if one is no plain value."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten_table(value, where, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{key}", value
        else:
            raise ConfigError(f"{where}: {prefix}{key} is no plain value")


class MissingSetting(KeyError):
    """Raised when a script asks for a setting that it was not given; names the nearest one."""

    def __init__(self, key: str, given: Iterable[str]) -> None:
        super().__init__(key)
        self._given = tuple(given)

    def __str__(self) -> str:
        hint = suggest(self.args[0], self._given) if self._given else "no setting is"
        own = self.args[0]
        return (
            f"{own!r} is not given; {hint.replace('known are', 'given are')}; give it by `secureps "
            f"join --set {own}=...`, or in the settings of [federation] or of a scenario"
        )


class TrackedSettings(dict[str, Any]):
    """A dict of settings that remembers which keys a script asked for, present or not."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        super().__init__(settings)
        self._asked = set[str]()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        if not super().__contains__(key):
            raise MissingSetting(key, super().keys())
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._asked.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self._asked.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self._asked.update(super().keys())
        return super().items()

    def refuse_misspelt(self) -> None:
        """Raises ConfigError if an unused key resembles a missing one."""
        known = set(super().keys())
        refuse_misspelt(known - self._asked, self._asked - known)


EVERYBODYS = ("partition", "partitions")
"""The settings that `up` and `simulate` give every client."""


def refuse_unknown(given: Iterable[str], names: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that a script's `SETTINGS`, if it has one, lacks."""
    declared = names.get("SETTINGS")
    if declared is None:
        return
    if isinstance(declared, str) or not all(isinstance(each, str) for each in declared):
        raise ConfigError("SETTINGS must be the names of the settings that the script reads")
    known = (*declared, *EVERYBODYS)
    for key in given:
        if key not in known:
            raise ConfigError(f"setting {key!r} is not known; {suggest(key, known)}")


def refuse_misspelt(given: set[str], wanted: set[str]) -> None:
    """Raises ConfigError for a given key that resembles a wanted one, and names both.

    Any other key may be for code that has not asked for it yet.
    """
    for key in sorted(given):
        for near in difflib.get_close_matches(key, sorted(wanted), 1, cutoff=0.75):
            raise ConfigError(f"setting {key!r} is not known; did you mean {near}?")


def is_flower_app(path: Path) -> bool:
    """Tells whether a script is a Flower app: a project's folder, or a file that imports flwr.

    The file is not run. If it defines `make`, it is no Flower app.
    """
    if path.is_dir():
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    if any(isinstance(node, ast.FunctionDef) and node.name == "make" for node in tree.body):
        return False
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module or "")
    return any(name.partition(".")[0] == "flwr" for name in imported)


def refuse_privacy(path: Path, plan: Plan) -> None:
    """Refuses a Flower app under a plan with record privacy, before anything starts."""
    # An app takes its own steps, without clip and noise, so an epsilon would be false.
    federation = plan.section.federation
    numbers = () if federation is None else federation.records
    if record_privacy(plan, *numbers[:1]) is not None and is_flower_app(path):
        from secureps.client.flower.script import NO_RECORD_PRIVACY

        raise PlanRefused(f"{path}: {NO_RECORD_PRIVACY}")


class Script:
    """A data holder's script, with `make(settings)` and perhaps `make_evaluator` and `central`.

    It may also be a Flower app, which has no `central`. Raises ConfigError if it is neither or
    lacks an extra, ScriptFailed if it does not import.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._app: FlowerScript | None = None
        self._functions: dict[str, Any] = {}
        if is_flower_app(path):
            # flwr is an extra, and takes half a second
            from secureps.client.flower.script import FlowerScript

            self._app = FlowerScript.at(path, _load)
            return
        self._functions = vars(_load(path))
        if not callable(self._functions.get("make")):
            raise ConfigError(
                f"{path}: has no function make(settings) that returns a trainer, and is no "
                "Flower app"
            )

    def make(
        self, settings: Mapping[str, Setting], state: Path | None = None, name: str = ""
    ) -> Trainer:
        """Makes one client's trainer, with its `state` in a folder, or in memory if None.

        Raises ConfigError for an unknown setting, ScriptFailed if the script raised.
        """
        with blamed("make(settings)"):
            if self._app is not None:
                return self._app.make(settings, state, name)
            refuse_unknown(settings, self._functions)
            asked = TrackedSettings(settings)
            with naming(self.path, ConfigError), naming(self.path, ScriptFailed):
                made: Trainer = self._functions["make"](asked)
        asked.refuse_misspelt()
        return made

    def run_server_app(
        self, settings: Mapping[str, Setting], versions: int, seed: int, clients: int
    ) -> ServerAppResult | None:
        """Runs a Flower app's ServerApp once, and returns its decisions; None if there is none."""
        return (
            None
            if self._app is None
            else self._app.run_server_app(settings, versions, seed, clients)
        )

    @property
    def own_code(self) -> str:
        """Why only clients may run the script; empty if anybody may."""
        return "" if self._app is None else self._app.own_code

    @property
    def why_not_central(self) -> str:
        """Why there is no `central` baseline; empty if the script has one."""
        if self._app is not None:
            return "a Flower app trains in its clients alone"
        return "" if self._functions.get("central") else "the script has no central(settings)"

    def make_evaluator(self, settings: Mapping[str, Setting]) -> Evaluator | None:
        """Makes the evaluator of the federation's held-out records; None if there is none."""
        build = self._functions.get("make_evaluator")
        if self._app is not None:
            build = self._app.make_evaluator
        with blamed("make_evaluator(settings)"):
            made: Evaluator | None = None if build is None else build(TrackedSettings(settings))
        return made

    def central(self, settings: Mapping[str, Setting]) -> EvaluateResult | None:
        """Trains the baseline on all records; None if the script has none."""
        train = self._functions.get("central")
        with blamed("central(settings)"):
            made = None if train is None else train(TrackedSettings(settings))
        with blamed("what central(settings) returned"):
            return None if made is None else convert_evaluation(made)


@contextmanager
def without_arguments(path: Path) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = before


class _Uncached(SourceFileLoader):
    """Always compiles the source, because only the source was checked, not a compiled file."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(f"{path} is compiled whenever it is loaded")


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{path}: no such script")
    if path.suffix not in SOURCE_SUFFIXES:
        raise ConfigError(f"{path}: not a Python script")
    name = path.stem
    _refuse_name(path, name)
    loader = _Uncached(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # A script's own processes import it by this name, from the first folder of sys.path.
    sys.modules[name] = module
    beside = str(path.parent.resolve())
    if sys.path[:1] != [beside]:
        sys.path.insert(0, beside)
    tell_listeners("its import")
    try:
        with only_importing(), from_extras(), without_arguments(path):
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, SecurepsError):
            raise
        hint = "; what it needs comes as settings" if isinstance(error, SystemExit) else ""
        text = f"{path}: does not import: {describe_error(error)} ({find_place(error)}){hint}"
        raise ScriptFailed(f"{text}; mend the script, or install what it imports") from error
    return module


def _refuse_name(path: Path, name: str) -> None:
    """Refuses a name by which no other process could import the script (ConfigError)."""
    known = sys.modules.get(name)
    if known is not None and not isinstance(known.__loader__, _Uncached):
        file = getattr(known, "__file__", None)
        if file is None or not Path(file).exists() or not path.samefile(file):
            raise ConfigError(
                f"{path}: processes that this script starts import it as {name!r}, and Python has "
                f"another module of that name ({file or 'built in'}): rename the script"
            )
    if "." in name:
        raise ConfigError(
            f"{path}: processes that this script starts import it as {name!r}, and Python takes "
            f"the dot for a package: rename it to {name.replace('.', '_')}{path.suffix}"
        )
