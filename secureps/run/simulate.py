"""`secureps simulate`: a scenario in virtual time, and its report folder.

    OUT/metrics.jsonl       one line per version: time, accuracy, loss, bytes, who was there
    OUT/curves.png          accuracy and bytes over virtual time
    OUT/checkpoints/        as a coordinator and its shards write them
    OUT/model.safetensors   the final model, by tensor name

The same scenario gives the same metrics and the same model, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secureps.client.script import Script, refuse_privacy
from secureps.client.trainer import Trainer
from secureps.config import ScenarioSection, parse, read_toml
from secureps.crypto.sampling import NO_PRIVACY, UnsafeSeed
from secureps.errors import ConfigError
from secureps.messages.requests import GetBlock, GetSum, PutBlock
from secureps.policy.plan import Plan, load_plan
from secureps.run.names import client_names
from secureps.run.simulation import Cast, Conditions, Simulation
from secureps.scenario.delays import Delays
from secureps.store.checkpoint import write_state

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """A scenario file and what it names, all read and checked."""

    section: ScenarioSection
    plan: Plan
    script: Script
    delays: Delays

    @property
    def clients(self) -> tuple[str, ...]:
        return client_names(self.section.clients)

    def settings(self, partition: int) -> dict[str, str]:
        """What a client's script is given."""
        own = {"partition": partition, "partitions": self.section.clients}
        return {key: str(value) for key, value in {**self.section.settings, **own}.items()}


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file.

    Raises:
        ConfigError, PlanRefused: it, its plan or its script are not right.
    """
    section = parse(ScenarioSection, read_toml(path), str(path))
    plan = load_plan(path.parent / section.plan)
    refuse_privacy(path.parent / section.script, plan)
    script = Script(path.parent / section.script)
    start = max(plan.group(name).rule.start or plan.group(name).rule.quorum for name in plan.groups)
    if section.clients < start:
        raise ConfigError(
            f"{path}: clients: {section.clients} play, the plan's rounds wait for {start}"
        )
    return Scenario(section, plan, script, Delays.of(section.delays))


def simulate(path: Path, out: Path | None = None, say: Say = print) -> Path:
    """Plays a scenario and writes its report.

    Args:
        path: the scenario file.
        out: the report folder (default: runs/NAME); it must not hold another report.
        say: hears one line per version.

    Returns:
        the report folder.

    Raises:
        ConfigError: the folder is taken, or the scenario is not right.
        SecurepsError: whatever ended the run before its time.
    """
    scenario = load_scenario(path)
    folder = out if out is not None else Path("runs") / scenario.section.name
    if (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder} holds a report already; remove it or give another --out")
    folder.mkdir(parents=True, exist_ok=True)
    say(
        f"{scenario.section.name}: {scenario.section.clients} clients in virtual time, seed "
        f"{scenario.section.seed}; {NO_PRIVACY}, everybody can repeat the noise"
    )
    play = Play(scenario, folder)
    play.run(say)
    draw(play.lines, f"{scenario.section.name}: {NO_PRIVACY}", folder / "curves.png")
    model = play.simulation.model()
    write_state(folder / "model.safetensors", model, {"privacy": NO_PRIVACY})
    say(NO_PRIVACY)
    say(f"report: {folder}")
    return folder


@dataclass
class Traffic:
    """Payload bytes by direction, as the network saw them."""

    up: int = 0
    down: int = 0

    def count(self, message: Any) -> None:
        """One message on its way to a server, or an answer."""
        payload = len(getattr(message, "payload", b""))
        if isinstance(message, PutBlock):
            self.up += payload
        else:
            self.down += payload


@dataclass
class Play:
    """A scenario being played: who dropped out where, and a line for every version."""

    scenario: Scenario
    folder: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self._traffic = Traffic()
        self._dropped: set[tuple[str, int]] = set()
        self._gone: set[str] = set()
        self._seen: dict[str, int] = dict.fromkeys(scenario.plan.groups, -1)
        trainers: dict[str, Trainer] = {
            name: scenario.script.make(scenario.settings(i))
            for i, name in enumerate(scenario.clients)
        }
        self._evaluator = scenario.script.make_evaluator(scenario.settings(0))
        seed = UnsafeSeed(scenario.section.seed)
        self.simulation = Simulation(
            scenario.plan,
            Cast(trainers, seed, self._cost),
            self.folder,
            Conditions(delay=self._delay),
        )

    def run(self, say: Say) -> None:
        """Plays to the end."""
        with (self.folder / "metrics.jsonl").open("w") as file:

            def until() -> bool:
                versions = self.simulation.versions()
                if versions != self._seen:
                    self._seen = versions
                    line = self._line(versions)
                    self.lines.append(line)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    say(_told(line))
                return self._over()

            self.simulation.run(until)

    def _over(self) -> bool:
        if not self.simulation.coordinator.federation.finished:
            return False
        here = [name for name in self.scenario.clients if name not in self._gone]
        return all(self.simulation.parties[name].halted.done() for name in here)

    def _line(self, versions: Mapping[str, int]) -> dict[str, Any]:
        simulation = self.simulation
        federation = simulation.coordinator.federation
        included = {
            id.client
            for id, fate in federation.fates.items()
            if fate.outcome in ("included", "durable") and fate.version == versions[id.group]
        }
        line: dict[str, Any] = {
            "versions": dict(versions),
            "time": simulation.loop.now(),
            "clients": len(included),
            "gone": len(self._gone),
            "bytes_up": self._traffic.up,
            "bytes_down": self._traffic.down,
            "privacy": NO_PRIVACY,
        }
        if self._evaluator is not None and min(versions.values()) >= 0:
            result = self._evaluator.evaluate(simulation.model())
            line |= {"loss": result.loss, **result.metrics}
        return line

    # --- what goes wrong ----------------------------------------------------------

    def _cost(self, name: str, task: Any) -> float:
        """Virtual seconds of a client's task; a drop-out is planned here."""
        aims = getattr(task, "aims", None)
        if not aims:
            return 0.0
        version = int(aims[0].version)
        delays, seed = self.scenario.delays, self.scenario.section.seed
        seconds = delays.train_seconds(seed, name, version)
        if delays.drops(seed, name, version) and (name, version) not in self._dropped:
            self._dropped.add((name, version))
            loop, downtime = self.simulation.loop, self.scenario.section.downtime
            loop.call_later(seconds / 2, lambda: self._drop(name))
            loop.call_later(seconds / 2 + downtime, lambda: self._come_back(name))
        return seconds

    def _drop(self, name: str) -> None:
        if not self.simulation.parties[name].halted.done():
            self._gone.add(name)
            self.simulation.kill(name)

    def _come_back(self, name: str) -> None:
        if name in self._gone:
            self._gone.discard(name)
            self.simulation.start(name)

    def _delay(self, sender: str, to: str, message: Any) -> float:
        if isinstance(message, PutBlock) or hasattr(message, "payload"):
            self._traffic.count(message)
        client = sender if sender.startswith("client-") else to
        if not client.startswith("client-"):
            return 0.0
        kind = "data" if isinstance(message, PutBlock | GetBlock | GetSum) else "control"
        seed = self.scenario.section.seed
        return self.scenario.delays.network_seconds(seed, client, 0, kind)


def _told(line: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
    accuracy = f", accuracy {line['accuracy']:.3f}" if "accuracy" in line else ""
    return (
        f"t={line['time']:9.1f} s  version {versions}{accuracy}, {line['clients']} included, "
        f"{line['gone']} gone, {line['bytes_up'] / 1e6:.1f} MB up"
    )


def draw(lines: list[dict[str, Any]], title: str, path: Path) -> None:
    """Accuracy (or loss) and bytes over virtual time, as a PNG; its metadata has the title too."""
    from matplotlib.figure import Figure

    judged = [line for line in lines if "loss" in line]
    measure = "accuracy" if any("accuracy" in line for line in judged) else "loss"
    figure = Figure(figsize=(8, 6), layout="constrained")
    figure.suptitle(title)
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot([x["time"] for x in judged], [x[measure] for x in judged], marker="o", ms=3)
    above.set_ylabel(f"held-out {measure}")
    above.grid(alpha=0.3)
    for key, label in (("bytes_up", "up"), ("bytes_down", "down")):
        below.plot([x["time"] for x in lines], [x[key] / 1e6 for x in lines], label=label)
    below.set_ylabel("payload, MB in all")
    below.set_xlabel("virtual time, s")
    below.legend()
    below.grid(alpha=0.3)
    figure.savefig(path, dpi=120, metadata={"Title": title})
