"""`secureps simulate`: plays a scenario in virtual time, and writes its report folder.

    OUT/metrics.jsonl       one line per version (`run.report.version_metrics`), in virtual time
    OUT/curves.png          scores and bytes over virtual time
    OUT/waiting.png         the clients that versions waited for
    OUT/summary.json        the results
    OUT/checkpoints/        as a coordinator and its shards write them
    OUT/model.safetensors   the final model, by tensor name

The same scenario gives the same metrics and the same model, bit for bit.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

from secureps.crypto.sampling import NO_PRIVACY
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import ConfigError, DiskFailed, naming
from secureps.files.objects import ObjectStore
from secureps.messages.run import COORDINATOR
from secureps.policy.spending import adjacency
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.report.plots import CURVES, Sheet, draw, undrawable
from secureps.run.report.trackers import Extras, Heading, open_sinks
from secureps.run.report.version_metrics import Sinks
from secureps.run.run_lock import METRICS, new_folder
from secureps.run.simulate.last_words import last_words
from secureps.run.simulate.play import Play, Say
from secureps.run.simulate.ray_cluster import Cluster, ray_cluster
from secureps.run.simulate.scenario_file import Scenario, load_scenario
from secureps.run.warm import warm_once
from secureps.service.checkpoint_copies import CheckpointCopies
from secureps.store.checkpoint import write_state

Engine = Literal["here", "ray"]
"""Where clients train."""


@terminable(Terminated)
def simulate(
    path: Path,
    out: Path | None = None,
    say: Say = print,
    extras: Extras | None = None,
    engine: Engine = "here",
    copies: str | None = None,
) -> Path:
    """Plays a scenario and writes its report, into a folder that it returns.

    Args:
        out: the report folder (default: runs/NAME); it must not hold anything.
        copies: the URL of an object store below which checkpoints are copied, in a place that is
            called as the report's folder.

    Raises:
        ConfigError: the folder holds something, or the scenario is not right.
        DiskFailed: a checkpoint is not at the store; the report is written before.
        SecurepsError: whatever ended the run before its time; of a rule that failed, and of
            members who are too few, the report is written before.
    """
    scenario, extras = load_scenario(path), extras or Extras()
    folder = out if out is not None else Path("runs") / scenario.section.name
    heading = scenario.heading(folder)
    extras.require(heading)
    refuse_unsealable(scenario.plan.opening)
    copy = None if copies is None else _copying(copies, folder)
    with ray_cluster() if engine == "ray" else nullcontext() as cluster:
        return _simulated(scenario, folder, (heading, extras), (cluster, copy), say)


def _copying(url: str, folder: Path) -> CheckpointCopies:
    """Makes copies below a URL, at an empty place; raises ConfigError or DiskFailed."""
    with naming("--copies", ConfigError):
        store = ObjectStore(f"{url.rstrip('/')}/{folder.resolve().name}/checkpoints")
        if store.sizes():
            raise ConfigError(f"{store.name} has something: name another --out, or another URL")
        store.demand_bucket()
    return CheckpointCopies(COORDINATOR, folder / "checkpoints", store)


def _simulated(
    scenario: Scenario,
    folder: Path,
    shown: tuple[Heading, Extras],
    around: tuple[Cluster | None, CheckpointCopies | None],
    say: Say,
) -> Path:
    new_folder(folder)
    cluster, copies = around
    say(
        f"{scenario.section.name}: {scenario.section.clients} clients in virtual time, seed "
        f"{scenario.section.seed}; {NO_PRIVACY}, everybody can repeat the noise"
    )
    founding = scenario.founding(scenario.plan, scenario.section.seed)
    if founding is not None:
        for note in founding.notes:
            say(note)
        scenario = replace(scenario, plan=founding.write(folder))
    warm_once(say)
    heading, extras = shown
    with last_words(), Sinks(open_sinks(heading, folder / METRICS, extras), say) as sinks:
        play = Play(scenario, folder, sinks.add, cluster, copies)
        try:
            play.run(say)
        except KeyboardInterrupt:
            say(f"stopped: {folder} has what there was until then; to play again, remove it")
            raise
        summary = play.summary()
        sinks.close(summary)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    sheet = Sheet(scenario.section.name, "virtual time", True, scenario.plan.groups)
    draw(play.metrics.lines, sheet, folder)
    model = play.simulation.model()
    write_state(folder / "model.safetensors", model, {"privacy": NO_PRIVACY}, None)
    privacy = scenario.plan.section.privacy
    if privacy is not None:
        say(
            f"epsilon {play.epsilon:.3f} of {privacy.budget:g} (delta {privacy.delta:g}, "
            f"{adjacency(scenario.plan)}), the most of all clients, had the noise been secret"
        )
    for note in summary["notes"]:
        say(note)
    say(NO_PRIVACY)
    say(f"report: {folder}")
    say(undrawable() or f"curves: {folder / CURVES}")
    left = "" if copies is None else copies.copy()
    play.simulation.refuse_failed()
    if left:
        raise DiskFailed(f"checkpoints are in {folder}, and not all of them at the store: {left}")
    return folder
