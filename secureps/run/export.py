"""A model, by the names of its tensors, out of a checkpoint's blocks.

What must not live here: which checkpoint is whole (`store.checkpoint`), and networks: an
export needs nothing but the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ClientError, ConfigError, DamagedStore, PlanRefused
from secureps.model.layout import GroupLayout, Layout
from secureps.policy.plan import Plan
from secureps.store.checkpoint import (
    Manifest,
    latest_good,
    load_checkpoint,
    read_state,
    tensor_name,
    write_state,
)

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Model:
    """A model that a checkpoint holds.

    Args:
        number: of the checkpoint; run: the run's id, hexadecimal.
        versions: of its groups; layout: where its values lie.
        tensors: by name, in the model's order, without those that stay with clients.
        unsafe: the clients, sorted, that ever submitted what an unsafe seed made.
        complaints: what is wrong with newer checkpoints that were passed over.
    """

    number: int
    run: str
    versions: dict[str, int]
    layout: Layout
    tensors: Tensors
    unsafe: tuple[str, ...]
    complaints: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The versions in words: "7" of a single group, "a 7, b 9" of several."""
        return named_versions(self.versions)


def named_versions(versions: Mapping[str, int]) -> str:
    """As `Model.version`."""
    if len(versions) == 1:
        return "".join(str(version) for version in versions.values())
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def read_model(directory: Path) -> Model:
    """The model of one checkpoint.

    Raises:
        DamagedStore: names the file that is absent, torn or damaged.
    """
    return _assemble(directory, load_checkpoint(directory), ())


def newest_model(checkpoints: Path) -> Model:
    """The model of the newest whole checkpoint.

    Raises:
        DamagedStore: there are checkpoints, and none is whole.
        OperatorError: there is none at all.
    """
    return _assemble(*latest_good(checkpoints))


def export(run: Path, out: Path) -> Model:
    """Writes the newest whole model of a run's folder to a safetensors file.

    The file names the run, the checkpoint and the version of every group in its metadata,
    and says so there if the seed of any client was unsafe.

    Raises:
        DamagedStore, OperatorError: as `newest_model`; or `out` cannot be written.
    """
    model = newest_model(run / "checkpoints")
    metadata = {"run": model.run, "checkpoint": str(model.number)}
    metadata |= {f"version.{group}": str(version) for group, version in model.versions.items()}
    if model.unsafe:
        metadata["privacy"] = NO_PRIVACY
    write_state(out, model.tensors, metadata)
    return model


def _assemble(directory: Path, manifest: Manifest, complaints: tuple[str, ...]) -> Model:
    layout = _layout(directory, manifest)
    blocks: Tensors = {}
    for part in manifest.files:
        blocks |= read_state(directory / part.file, part.digest)[0]
    tensors: Tensors = {}
    for group in layout.groups:
        try:
            tensors |= group.unflatten(_values(group, blocks))
        except (KeyError, ValueError, ClientError) as error:
            raise DamagedStore(f"{directory}: a block is absent or damaged: {error}") from None
    ordered = {s.name: tensors[s.name] for s in manifest.run.schema.tensors if s.name in tensors}
    versions = {at.group: at.version for at in manifest.versions}
    return Model(
        manifest.number, manifest.id, versions, layout, ordered, manifest.unsafe, complaints
    )


def _layout(directory: Path, manifest: Manifest) -> Layout:
    try:
        layout = Plan.from_text(manifest.run.plan).layout(manifest.run.schema)
    except (ConfigError, PlanRefused) as error:
        raise DamagedStore(f"{directory}: its plan is of another version: {error}") from None
    if layout.digest != manifest.run.layout:
        raise DamagedStore(f"{directory}: its blocks were cut by another version of secureps")
    return layout


def _values(group: GroupLayout, blocks: Tensors) -> NDArray[np.float32]:
    names = [tensor_name(group.name, block) for block in range(group.blocks)]
    return np.concatenate([blocks[name] for name in names]).astype(np.float32)
