"""Transforms of MONAI and torchvision need nothing special: a script gives their datasets as is.

`pip install -e '.[dev]'` brings MONAI. torchvision asks for one release of torch, and PyPI's does
not import beside a torch for processors alone: `make ranges END=newest` plays it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.utils import data

import secureps as ps
from tests.kits.federations import small_federation, small_plan

SIDE, CLASSES, RECORDS, CLIENTS = 8, 3, 24, 3
TRAINING = {"lr": 0.05, "local_steps": 3, "batch_size": 6}
PRIVACY = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "records": RECORDS,
    "sample_rate": 0.25,
    "delta": 1e-3,
    "budget": 50.0,
}


def net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(8, CLASSES)),
    )


def scans(number: int) -> list[dict[str, Any]]:
    """Bright squares in noise: the class is which third of the image the square lies in."""
    rng = np.random.default_rng(number)
    made = []
    for label in rng.integers(CLASSES, size=RECORDS):
        image = rng.normal(100, 20, (SIDE, SIDE))
        image[:, label * 3 : label * 3 + 2] += 100
        made.append({"image": image.astype(np.float32), "label": int(label)})
    return made


def of_monai(number: int, augmented: bool, workers: int) -> data.DataLoader[Any]:
    """A loader of MONAI's own, and a cache of what its transforms make before they draw."""
    pytest.importorskip("monai", reason="MONAI is not installed: pip install monai")
    from monai.data import CacheDataset, DataLoader
    from monai.transforms import (
        Compose,
        EnsureChannelFirstd,
        RandFlipd,
        RandGaussianNoised,
        ScaleIntensityd,
    )

    steps: list[Any] = [EnsureChannelFirstd("image", channel_dim="no_channel")]
    steps.append(ScaleIntensityd("image"))
    if augmented:
        steps += [RandFlipd("image", 0.5, spatial_axis=0), RandGaussianNoised("image", 0.5)]
    items = CacheDataset(scans(number), Compose(steps), progress=False)
    loader: data.DataLoader[Any] = DataLoader(items, num_workers=workers)
    return loader


class Images(data.Dataset[Any]):
    """A Dataset as a lab writes it: PIL images, and the transforms that it was given."""

    def __init__(self, number: int, transform: Callable[[Any], Any]) -> None:
        self.items, self.transform = scans(number), transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        from PIL import Image

        item = self.items[number]
        image = Image.fromarray(item["image"].clip(0, 255).astype(np.uint8))
        return self.transform(image), item["label"]


def of_torchvision(number: int, augmented: bool, workers: int) -> data.DataLoader[Any]:
    pytest.importorskip("torchvision", reason="torchvision is not installed: make ranges plays it")
    import torch
    from torchvision.transforms import v2

    steps: list[Any] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    if augmented:
        steps = [v2.RandomVerticalFlip(), v2.RandomCrop(SIDE, padding=1), *steps]
        steps.append(v2.GaussianNoise(sigma=0.1))
    return data.DataLoader(Images(number, v2.Compose(steps)), num_workers=workers)


LIBRARIES = {"MONAI": of_monai, "torchvision": of_torchvision}


def trained(
    library: str, folder: Path, privacy: Any, augmented: bool = True, workers: int = 0
) -> dict[str, bytes]:
    """The model of two encrypted versions."""

    def holder(number: int) -> ps.TorchTrainer:
        train, held_out = (LIBRARIES[library](number, each, workers) for each in (augmented, False))
        return ps.TorchTrainer(net, train, held_out, device="cpu")

    training = {name: TRAINING[name] for name in TRAINING if not privacy or name != "batch_size"}
    changes: dict[str, Any] = {"training": training, "privacy": privacy, "local": []}
    plan = small_plan("rlwe-2-of-3", clients=CLIENTS, versions=2, **changes)
    run = small_federation(plan, folder, clients=CLIENTS, kind=holder)
    run.run()
    return {name: each.tobytes() for name, each in run.model().items()}


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [None, PRIVACY], ids=["plain", "private records"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_datasets_of_imaging_libraries_train_as_they_are(
    library: str, privacy: Any, tmp_path: Path
) -> None:
    """To the same bits however many workers a loader has, though every record is augmented."""
    alone = trained(library, tmp_path / "alone", privacy)
    assert trained(library, tmp_path / "workers", privacy, workers=2) == alone
    assert trained(library, tmp_path / "as they are", privacy, augmented=False) != alone
