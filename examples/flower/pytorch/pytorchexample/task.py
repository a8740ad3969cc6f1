"""pytorchexample: A Flower / PyTorch app."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SEED = 7  # of the split and of batches: a round that is repeated repeats its bits


class Net(nn.Module):
    """A small network of two convolutions, for images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes, of images of shape (n, 1, 8, 8)."""
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        scores: Tensor = self.fc(x.flatten(1))
        return scores


@cache
def load_images() -> tuple[Tensor, Tensor]:
    """All of scikit-learn's digits, in an order that says nothing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    images = torch.tensor(x[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images, torch.tensor(y[order])


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """One partition: 80% to train, 20% to test."""
    images, labels = load_images()
    x, y = images[partition_id::num_partitions], labels[partition_id::num_partitions]
    cut = len(y) * 4 // 5
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    order = torch.Generator().manual_seed(SEED)
    trainloader = DataLoader(train, batch_size=batch_size, shuffle=True, generator=order)
    return trainloader, DataLoader(test, batch_size=batch_size)


def train(
    net: nn.Module,
    trainloader: DataLoader[tuple[Tensor, ...]],
    epochs: int,
    lr: float,
    device: torch.device,
) -> float:
    """Trains the model; returns its mean loss on the way."""
    net.to(device)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test(
    net: nn.Module, testloader: DataLoader[tuple[Tensor, ...]], device: torch.device
) -> tuple[float, float]:
    """Loss and accuracy."""
    net.to(device)
    net.eval()
    correct, total, loss = 0, 0, 0.0
    for images, labels in testloader:
        scores, labels = net(images.to(device)), labels.to(device)
        loss += functional.cross_entropy(scores, labels, reduction="sum").item()
        correct += int((scores.argmax(1) == labels).sum())
        total += len(labels)
    return loss / total, correct / total
