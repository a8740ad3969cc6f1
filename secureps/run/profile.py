"""`secureps profile`: how long one update of a user's own model takes on a user's link, by phase.

All parties play a version in virtual time, in this process, with the code, disks and kernels of
real ones; only training is left out. Seconds are this machine's (`run.phases`), those on the wire
follow from the bytes that were sent. What must not live here: how a function is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from secureps.client.initial_model import Tensors
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import RecordPrivacySection, SyncSection
from secureps.crypto.sampling import SecretSeed
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import ConfigError, InternalError, OperatorError, naming
from secureps.messages.requests import Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.schema import Schema, TensorSpec
from secureps.messages.submission import UPDATE
from secureps.policy.plan import Plan
from secureps.roles.machine import Record
from secureps.run.check import READ_ONLY, Clients, Permit, model, read, refuse_two_sizes
from secureps.run.loopback import Traffic, sent
from secureps.run.party_names import client_names
from secureps.run.phases import Named, Spent, Stopwatch
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.report.bar import QUIET
from secureps.run.report.plots import WIRE, Bar, draw_timeline, undrawable
from secureps.run.report.tables import WholeTable
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.warm import warm_once
from secureps.store.journal import SqliteJournal
from secureps.store.spool import DiskSpool
from secureps.wording import counted, duration, size

CLIENT, SHARD, HOLDER = "client", "shard", "holder"
"""The parties of a row, with the coordinator and the wire. Shards, and holders, work side by side:
one of them is told."""

SERVES, PULLS, MAKES, SENDS = "serves", "pulls", "makes update", "sends"
TAKES, ADDS, STEPS, KEEPS = "takes it in", "adds", "opens, steps", "checkpoint"
SHARES, CONTROL = "adds keys", "decides"
DECIDES = {kind: f"{kind}: decisions" for kind in (CLIENT, SHARD, HOLDER, COORDINATOR)}
JOURNALS = {kind: f"{kind}: journal" for kind in DECIDES}
TRAINS = "training"
"""Left out: it is the user's own."""

_WORK, _SHARD = "client/worker.py:ClientWorker.", "service/shard/worker.py:ShardWorker."
FUNCTIONS = (
    Named(_SHARD + "fetch", SERVES, outer=True),
    Named(_WORK + "keep", PULLS, outer=True),
    Named("client/block_by_block.py:BlockByBlock._next", MAKES, outer=True),
    Named(_WORK + "fetch", SENDS, outer=True),
    Named("roles/member/member.py:*.handle", DECIDES[CLIENT], outer=True),
    Named(_SHARD + "take", TAKES, outer=True),
    Named(_SHARD + "_store", TAKES, outer=True),
    Named(_SHARD + "_sum", ADDS, outer=True),
    Named(_SHARD + "_step", STEPS, outer=True),
    Named("service/shard/states.py:States.write_part", KEEPS, outer=True),
    Named("roles/shard/shard.py:*.handle", DECIDES[SHARD], outer=True),
    Named("service/holder/*.py:*.work", SHARES, outer=True),
    Named("roles/holder/*.py:*.handle", DECIDES[HOLDER], outer=True),
    Named("roles/coordinator/coordinator.py:*.handle", DECIDES[COORDINATOR], outer=True),
    Named("run/profile.py:_Still.fit", TRAINS),
    Named(_WORK + "_assemble", "assemble"),
    Named(_WORK + "_fit", "copy"),
    Named("model/layout.py:GroupLayout.flatten", "difference"),
    Named(_WORK + "_seal", "difference"),
    Named("client/clipping.py:*", "clip"),
    Named("privacy/mechanism.py:*", "clip"),
    Named("codec/chain.py:BlockCode.encode", "encode"),
    Named("codec/grid.py:Grid.encode", "round"),
    Named("privacy/client_level.py:*.rounded", "round"),
    Named("privacy/client_level.py:*.noised", "noise"),
    Named("codec/grid.py:Grid.weighted_mean", "average"),
    Named("codec/chain.py:BlockCode.decode", "decode"),
    Named("policy/block_deltas.py:BlockDelta.follow", "add differences"),
    Named("policy/block_deltas.py:BlockDelta.publish", "take differences"),
    Named("crypto/sampling.py:*", "random words"),
    Named("crypto/*:*Seal*.pieces*", "seal"),
    Named("crypto/*:*Sealer.seal", "seal"),
    Named("crypto/*:*.check", "check"),
    Named("crypto/*:*.add", "add"),
    Named("crypto/*:*.total", "add"),
    Named("crypto/*:*.pieces", "open"),
    Named("crypto/sharing.py:share", "share the key"),
    Named("crypto/envelope.py:seal", "share the key"),
    Named("model/optimizer.py:*.apply", "optimizer step"),
    Named("messages/encoding.py:*digest", "digest"),
    Named("store/spool.py:*.read", "read"),
    Named("store/spool.py:*.put", "write, sync"),
    Named("store/spool.py:*.keep", "write, sync"),
    Named("store/checkpoint.py:write_state", "write, sync"),
)
"""In the order in which an update meets them; the first that fits counts."""

STEPS_OF = {
    SHARD: (SERVES,),
    CLIENT: (PULLS, MAKES, SENDS, DECIDES[CLIENT], JOURNALS[CLIENT]),
    f"{SHARD} ": (TAKES, ADDS, STEPS, KEEPS, DECIDES[SHARD], JOURNALS[SHARD]),
    HOLDER: (SHARES, DECIDES[HOLDER], JOURNALS[HOLDER]),
    COORDINATOR: (DECIDES[COORDINATOR], JOURNALS[COORDINATOR]),
}
"""What parties do, in the order of an update's way."""
_OF_EACH_UPDATE = (
    *(*STEPS_OF[SHARD], *STEPS_OF[CLIENT], TAKES),
    *(DECIDES[SHARD], JOURNALS[SHARD]),
)
REST = "the rest"
EXAMPLES = 32
MOST_UPDATES = 200
"""Of a version, unless more clients are asked for: each sends all row-blocks of a table."""
WARM = 1
"""The version with which everything is warm; the next one is measured."""


@dataclass(frozen=True)
class Question:
    """What is asked.

    Args:
        script: of a client, in place of the plan's.
        values: of the model, in place of the script's.
        up, down: of a client's link, in Mbit/s.
        clients: of a version; default: the plan's.
        out: the picture, if one is wanted.
        permit: what may be done because the plan says so.
    """

    script: Path | None = None
    values: int | None = None
    up: float = 20.0
    down: float = 100.0
    clients: int | None = None
    out: Path | None = None
    permit: Permit = READ_ONLY


@dataclass(frozen=True)
class Phase:
    """A row: seconds on an update's way, and an update's share of the CPU of all who do it."""

    party: str
    step: str
    part: str
    seconds: float
    cpu: float


@dataclass(frozen=True)
class Profile:
    """The phases of one update, in their order."""

    name: str
    cipher: str
    values: int
    clients: int
    question: Question
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """Of all phases, one after another."""
        return sum(phase.seconds for phase in self.phases)

    def told(self) -> str:
        """The whole in one sentence."""
        wire = sum(phase.seconds for phase in self.phases if phase.party == WIRE)
        return (
            f"An update of {self.values:,} values takes {duration(self.seconds)} and the time of "
            f"its training: {duration(wire)} on the wire ({self.question.up:g} Mbit/s up, "
            f"{self.question.down:g} down), {duration(self.seconds - wire)} of computing and disks."
        )


class _Still:
    """Makes an update of a model's size, and trains nothing."""

    def __init__(self, schema: Schema) -> None:
        draw = np.random.default_rng(0)
        self._zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.tensors}
        self._update = {
            name: (draw.standard_normal(zeros.shape, np.float32) / 1000).astype(zeros.dtype)
            for name, zeros in self._zeros.items()
        }

    def parameters(self, seed: int) -> Tensors:
        """Zeros."""
        return dict(self._zeros)

    def examples(self) -> int:
        """As every client has them."""
        return EXAMPLES

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        """The same update in every version."""
        for name, update in self._update.items():
            parameters[name] += update
        return FitResult(parameters, EXAMPLES, {}, 0)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        """Never asked: the plan's evaluation is left out."""
        raise InternalError("a profile evaluates nothing")


class _Journal(SqliteJournal):
    """Times a party's transactions."""

    def __init__(self, path: Path, stopwatch: Stopwatch, kind: str) -> None:
        super().__init__(path)
        self._stopwatch, self._kind = stopwatch, kind

    def append(self, at: float, records: Sequence[Record]) -> None:
        """See `SqliteJournal`."""
        with self._stopwatch.timed(JOURNALS[self._kind]):
            super().append(at, records)


class _Progress:
    """Says how far the two versions are: a line for each, and one now and then in between."""

    def __init__(self, clients: tuple[int, int], groups: int, say: Callable[[str], None]) -> None:
        """`clients`: how many play, and of how many."""
        count, wanted = clients
        self._all, self._say = (WARM + 1) * count * groups, say
        self._sent, self._version, self._at = 0, 0, time.monotonic()
        text = f"plays {WARM + 1} versions, the last of which counts: {self._all:,} updates"
        if groups > 1 or count < wanted:
            of = f", of the plan's {wanted}," if count < wanted else ""
            text += f" of {counted(count, 'client')}{of} with {counted(groups, 'group')}"
            text += " or row-blocks each; --clients N plays more or fewer"
        say(text)

    def note(self, message: Any) -> None:
        """Counts a message, if it is an update's."""
        if isinstance(message, Submit) and message.receipt.purpose == UPDATE:
            self._sent += 1
            if time.monotonic() - self._at >= QUIET:
                self._tell(f"{self._sent:,} of {self._all:,} updates")

    def made(self) -> None:
        """Says that a version is made."""
        self._version += 1
        self._tell(f"version {self._version} is made")

    def _tell(self, text: str) -> None:
        self._say(text)
        self._at = time.monotonic()


@terminable(Terminated)
def profile(path: Path, question: Question, say: Callable[[str], None]) -> Profile:
    """Plays one version of a plan, and says how long each phase of an update takes.

    Args:
        say: hears what takes long, and how far it is.

    Raises:
        ConfigError, PlanRefused: the plan is unsound; nothing says how large the model is; a
            number cannot be.
        SecurepsError: whatever ended the version.
    """
    if not (question.up > 0 and question.down > 0):
        raise ConfigError("--up and --down: a link carries more than 0 Mbit/s")
    if question.out is not None:
        if missing := undrawable():
            raise ConfigError(f"--out: {missing}")
        if not question.out.absolute().parent.is_dir():
            raise ConfigError(f"--out: {question.out}: its folder does not exist")
    permit = question.permit
    refuse_two_sizes(question.values, None, permit)
    plan, clients = read(path, permit)
    if question.script is not None:
        if not question.script.exists():
            raise ConfigError(f"{question.script}: no such script")
        count = clients.count if clients else _fewest(plan)
        clients = Clients(question.script, count, clients.settings if clients else {})
        permit = replace(permit, run_script=True)
    with naming(path):
        plan, schema = _sized(path, plan, clients, permit, question.values)
        wanted = question.clients or (clients.count if clients else _fewest(plan))
        count = question.clients or min(wanted, _enough(plan))
        played = _played(plan, count, question.values is not None)
    refuse_unsealable(played.opening)
    warm_once(say)
    with TemporaryDirectory(prefix="secureps-profile-") as folder:
        progress = _Progress((count, wanted), len(plan.groups), say)
        phases = _play(played, schema, question, Path(folder), progress)
    values = sum(group.size for group in played.layout(schema).groups)
    cipher = plan.section.cipher.name
    return Profile(plan.section.name, cipher, values, count, question, phases)


def _fewest(plan: Plan) -> int:
    return max(plan.bounds(name).start for name in plan.groups)


def _enough(plan: Plan) -> int:
    """The clients with whom a version has MOST_UPDATES at most, but not fewer than a minimum."""
    least = max(plan.bounds(name).minimum for name in plan.groups)
    return max(MOST_UPDATES // len(plan.groups), least)


def _clients(plan: Plan) -> int:
    return plan.bounds(plan.groups[0]).start


def _sized(
    path: Path, plan: Plan, clients: Clients | None, permit: Permit, values: int | None
) -> tuple[Plan, Schema]:
    """The plan, with what a Flower app asks for, and the tensors that travel."""
    if values is not None:
        if len(plan.groups) != 1:
            raise ConfigError(f"--values: the plan has {len(plan.groups)} groups: give --script")
        return plan, Schema((TensorSpec("values", (values,), "float32"),))
    found = model(plan, path, clients, permit)
    plan, schema = found.plan, found.schema
    if schema is None:
        raise ConfigError(
            "nothing says how large the model is: give --values N, or --script SCRIPT; or have "
            "--run-script run the plan's script, or --fetch fetch its initial"
        )
    layout = plan.layout(schema)
    stay = {spec.name for spec in (*layout.local, *(layout.frozen or ()))}
    return plan, Schema(tuple(spec for spec in schema.tensors if spec.name not in stay))


def _played(plan: Plan, clients: int, whole: bool) -> Plan:
    """The plan with rounds of so many clients, and without what costs no update anything.

    Rules say when, evaluations and budgets whether; under record-level privacy training is private.
    """
    own = plan.section
    privacy = own.privacy
    if isinstance(privacy, RecordPrivacySection):
        privacy = None
    elif privacy is not None:
        privacy = privacy.model_copy(update={"budget": 1e9})
    changed: dict[str, Any] = {"versions": None} | ({"pattern": "*"} if whole else {})
    groups = []
    for group in own.group:
        rule = SyncSection(quorum=clients, minimum=min(clients, group.rule.minimum))
        most = group.most_examples or EXAMPLES
        groups.append(group.model_copy(update={**changed, "rule": rule, "most_examples": most}))
    none: dict[str, Any] = {
        "initial": None,
        "local": (),
        "frozen": (),
        "evaluation": None,
        "work": None,
    }
    left_out = {**none, "federation": None, "training": {}, "lease": 1e6}
    update = {**left_out, "privacy": privacy, "group": tuple(groups), "versions": WARM + 1}
    return Plan(own.model_copy(update=update))


def _play(
    plan: Plan, schema: Schema, question: Question, folder: Path, progress: _Progress
) -> tuple[Phase, ...]:
    names, trainer, traffic = client_names(_clients(plan)), _Still(schema), Traffic()

    def note(sender: str, to: str, message: Any) -> float:
        progress.note(message)
        if names[0] in (sender, to):
            traffic.note(message)
        return 0.0

    stopwatch = Stopwatch(FUNCTIONS)

    def journal(name: str) -> SqliteJournal:
        (folder / name).mkdir(exist_ok=True)
        return _Journal(folder / name / "journal.db", stopwatch, name.partition("-")[0])

    spools = folder / "spools"
    conditions = Conditions(note, journal=journal, spool=lambda name: DiskSpool(spools / name))
    cast = Cast(dict.fromkeys(names, trainer), SecretSeed.from_os())
    with stopwatch.running(), closing(Simulation(plan, cast, folder, conditions)) as simulation:
        simulation.run(lambda: min(simulation.versions().values(), default=-1) >= WARM)
        progress.made()
        stopwatch.clear()
        traffic.clear()
        simulation.run()
    progress.made()
    return tuple(_phases(stopwatch, plan, traffic, question))


def _phases(
    stopwatch: Stopwatch, plan: Plan, traffic: Traffic, question: Question
) -> Iterator[Phase]:
    """The rows, in the order of an update's way."""
    down, up = sent(traffic)
    wire = {
        SERVES: ("down", traffic.bytes_down, question.down, down),
        SENDS: ("up", traffic.bytes_up, question.up, up),
    }
    for party, steps in STEPS_OF.items():
        for step in steps:
            if step in stopwatch.whole:
                yield from _of_step(stopwatch, party.strip(), step, plan)
            if step in wire:
                way, count, rate, own = wire[step]
                seconds = max(8 * count / (1e6 * rate), own.clock)  # no faster than both ends
                yield Phase(WIRE, way, size(count), seconds, own.cpu)


def _of_step(stopwatch: Stopwatch, party: str, step: str, plan: Plan) -> Iterator[Phase]:
    """The parts of what a party does, together as long as the whole."""
    whole = stopwatch.whole[step]
    parts = {part: spent for (of, part), spent in stopwatch.parts.items() if of == step}
    training = parts.pop(TRAINS, Spent())
    whole = replace(whole, clock=whole.clock - training.clock, cpu=whole.cpu - training.cpu)
    clock, cpu = (sum(getattr(s, of) for s in parts.values()) for of in ("clock", "cpu"))
    parts[REST] = Spent(max(0.0, whole.clock - clock), max(0.0, whole.cpu - cpu))
    shrunk = min(1.0, whole.clock / clock) if clock else 1.0  # threads work side by side
    updates, text = _clients(plan), step
    if step in (DECIDES.get(party), JOURNALS.get(party)):
        text, parts = CONTROL, {step.partition(": ")[2]: whole}
        shrunk = 1.0
    beside = {SHARD: plan.section.shards, HOLDER: plan.holders}.get(party, 1)
    beside *= updates if step in _OF_EACH_UPDATE else 1
    order = {f.phase: at for at, f in reversed(list(enumerate(FUNCTIONS)))}
    for part in sorted(parts, key=lambda part: order.get(part, len(order))):
        spent = parts[part]
        yield Phase(party, text, part, spent.clock * shrunk / beside, spent.cpu / updates)


# --- what is printed --------------------------------------------------------------


LEAST = 0.01
"""Parts below this share of the computing are told together with the rest of their step."""


def shown(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """The same, small parts of a step together."""
    least = LEAST * sum(phase.seconds for phase in phases if phase.party != WIRE)
    rows: list[Phase] = []
    for step in dict.fromkeys((phase.party, phase.step) for phase in phases):
        own = [phase for phase in phases if (phase.party, phase.step) == step]
        small = [p for p in own if p.part == REST or (p.part and p.seconds < least)]
        rows += [phase for phase in own if phase not in small]
        if small:
            seconds, cpu = sum(p.seconds for p in small), sum(p.cpu for p in small)
            part = REST if len(small) < len(own) else ""
            rows.append(replace(small[0], part=part, seconds=seconds, cpu=cpu))
    return tuple(rows)


def table(found: Profile) -> Table:
    """A row for every phase."""
    of = counted(found.clients, "client")
    made = WholeTable(f"{found.name}: one update of {found.values:,} values, {found.cipher}, {of}")
    for name in ("who", "does", "part"):
        made.add_column(name)
    for name in ("seconds", "CPU", "ns/value"):
        made.add_column(name, justify="right")
    before = ("", "")
    for phase in shown(found.phases):
        here = (phase.party, phase.step)
        party = "" if phase.party == before[0] else phase.party
        step = "" if here == before else phase.step
        before = here
        cpu = duration(phase.cpu), f"{1e9 * phase.cpu / found.values:.2f}"
        made.add_row(*map(Text, (party, step, phase.part, duration(phase.seconds), *cpu)))
    total = sum(phase.cpu for phase in found.phases)
    made.add_section()
    of_all = (duration(found.seconds), duration(total), f"{1e9 * total / found.values:.2f}")
    made.add_row("all", "", "", *of_all)
    return made


def draw(found: Profile, path: Path) -> None:
    """Draws the phases as a timeline, a PNG.

    Raises:
        OperatorError: the disk refuses.
    """
    bars = [
        Bar(p.party, ", ".join(filter(None, (p.step, p.part))), p.seconds)
        for p in shown(found.phases)
    ]
    try:
        draw_timeline(bars, f"{found.name}: {found.told()}", path)
    except OSError as error:
        raise OperatorError(f"{path}: cannot draw the timeline: {error}") from None
