"""`secureps export`: assembles a model from a checkpoint's blocks, and writes it to one file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ClientError, ConfigError, DamagedStore, PlanRefused
from secureps.files.objects import ObjectStore, is_url
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.run import TRAIN_METRICS
from secureps.model.layout import GroupLayout, Layout
from secureps.policy.checks.evaluation import find_best
from secureps.policy.plan import Plan
from secureps.run.report.terminal import fold_versions
from secureps.run.up.folder import Origin, RunFolder
from secureps.service.checkpoint_copies import CopiedCheckpoints
from secureps.store import checkpoint

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Model:
    """The model of a checkpoint.

    Args:
        number: of the checkpoint.
        run: the run's id, hexadecimal.
        tensors: by name, in the model's order, without those that stay with clients.
        unsafe: the clients, sorted, that ever submitted an update of an unsafe seed.
        complaints: the errors of newer checkpoints that were skipped.
    """

    number: int
    run: str
    versions: dict[str, int]
    layout: Layout
    tensors: Tensors
    unsafe: tuple[str, ...]
    complaints: tuple[str, ...] = ()
    evaluated: VersionEvaluated | None = None

    @property
    def version(self) -> str:
        return fold_versions(self.versions)


def read_model(directory: Path) -> Model:
    return _assemble(directory, checkpoint.load_checkpoint(directory), ())


def newest_model(checkpoints: checkpoint.Root) -> Model:
    """Reads the newest whole model; OperatorError if there is no checkpoint, or DamagedStore."""
    return _assemble(*checkpoint.load_newest(checkpoints))


def best_model(checkpoints: checkpoint.Root) -> Model:
    """Reads the model of the best version so far by the federation's own evaluation.

    Raises ConfigError if the plan does not say what is best, or no checkpoint has an evaluation.
    """
    _, newest, complaints = checkpoint.load_newest(checkpoints)
    plan = Plan.from_text(newest.run.plan)
    if not plan.keeps_best:
        raise ConfigError("the plan does not say which version is best: add [evaluation.best]")
    found = find_best(newest.evaluations, plan.section.evaluation)
    if found is None:
        last = all(at.version >= plan.versions(at.group) for at in newest.versions)
        raise ConfigError(
            "no version was evaluated, and all are made: export without --best"
            if last
            else "no complete checkpoint has an evaluation yet: if the run goes on, wait for the "
            "next one, else export without --best"
        )
    for directory in checkpoint.directories(checkpoints):
        try:
            manifest = checkpoint.load_checkpoint(directory)
        except DamagedStore as error:
            complaints = (*complaints, str(error))
            continue
        if manifest.holds(found.version):
            return replace(_assemble(directory, manifest, complaints), evaluated=found)
    raise DamagedStore(
        f"{checkpoints}: no whole checkpoint holds version {found.version}, the best"
    )


def export(run: str | Path, out: str | Path, the_best: bool = False) -> Model:
    """Writes the newest whole model of a run's folder, or its best one, to a safetensors file.

    The file's metadata has the run, the checkpoint, versions, metrics, and any unsafe seed.

    Args:
        run: the folder that has checkpoints/, or its URL at an object store.
        out: the file, which is replaced; or its URL, where no existing file is overwritten.

    Raises DiskFailed for a store that cannot be reached, and the errors of `newest_model` or
    `best_model`.
    """
    model = _read(str(run), best_model if the_best else newest_model)
    metadata = {"run": model.run, "checkpoint": str(model.number), **model.layout.ties}
    metadata |= {f"version.{group}": str(version) for group, version in model.versions.items()}
    if model.evaluated is not None:
        metadata |= {f"metric.{m.name}": repr(m.value) for m in model.evaluated.metrics}
    if model.unsafe:
        metadata["privacy"] = NO_PRIVACY
    if not is_url(str(out)):
        checkpoint.write_state(out, model.tensors, metadata, None)
        return model
    place, _, name = str(out).rpartition("/")
    store = ObjectStore(place)
    with TemporaryDirectory(prefix="secureps-") as folder:
        file = Path(folder) / "model.safetensors"
        checkpoint.write_state(file, model.tensors, metadata)
        store.create(name, file.read_bytes())
    return model


def _read(run: str, read: Callable[[checkpoint.Root], Model]) -> Model:
    if not is_url(run):
        if not Path(run).exists():
            Origin.read(RunFolder(Path(run).resolve()))  # raises: there is no such run
        return read(Path(run) / "checkpoints")
    with TemporaryDirectory(prefix="secureps-") as folder:
        copied = CopiedCheckpoints(ObjectStore(f"{run.rstrip('/')}/checkpoints"), Path(folder))
        try:
            model = read(copied)
        except DamagedStore as damage:
            raise DamagedStore(copied.name_urls(str(damage))) from None
    return replace(model, complaints=tuple(map(copied.name_urls, model.complaints)))


def _assemble(directory: Path, manifest: checkpoint.Manifest, complaints: tuple[str, ...]) -> Model:
    layout = _layout(directory, manifest)
    blocks: Tensors = {}
    for part in manifest.files:  # `load_checkpoint` has just compared their digests
        blocks |= checkpoint.read_state(directory / part.file)[0]
    try:
        tensors = layout.assemble(lambda group: _values(group, blocks))
    except (KeyError, ValueError, ClientError) as error:
        raise DamagedStore(f"{directory}: a block is absent or damaged: {error}") from None
    names = (each.name for each in manifest.run.schema.tensors if each.name != TRAIN_METRICS)
    ordered = {name: tensors[name] for name in names if name in tensors}
    evaluated = next((e for e in manifest.evaluations if manifest.holds(e.version)), None)
    return Model(
        manifest.number,
        manifest.id,
        manifest.model,
        layout,
        ordered,
        manifest.unsafe,
        complaints,
        evaluated,
    )


def _layout(directory: Path, manifest: checkpoint.Manifest) -> Layout:
    try:
        return Plan.from_text(manifest.run.plan).layout(manifest.run.schema)
    except (ConfigError, PlanRefused) as error:
        raise DamagedStore(f"{directory}: its plan is of another version: {error}") from None


def _values(group: GroupLayout, blocks: Tensors) -> list[NDArray[np.float32]]:
    """Collects a group's blocks in order, whatever block size wrote them."""
    names = (checkpoint.tensor_name(group.name, block) for block in itertools.count())
    return [blocks[name] for name in itertools.takewhile(blocks.__contains__, names)]
