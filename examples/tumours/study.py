"""The hospitals of docs/guide/story.md: each has other tumours, as a clinic or a practice would."""

import numpy as np
import torch
from tumours import Net, test, train

import secureps as ps

data = ps.datasets.breast_cancer(seed=7)  # 30 numbers each, already scaled
shares = ps.dirichlet(data.y, 5, alpha=0.5, seed=3, minimum=40)


def records(rows):
    return torch.tensor(data.x[rows]), torch.tensor(data.y[rows])


def make(settings):
    x, y = records(shares[settings["partition"]])
    return ps.TorchTrainer(Net, (x[20:], y[20:]), held_out=(x[:20], y[:20]))


def make_evaluator(settings):  # judges on 113 tumours that no hospital has
    judged = (data.held_out_x, data.held_out_y)
    return ps.TorchTrainer(Net, judged, held_out=judged)


def central(settings):  # all records in one place, without privacy
    torch.manual_seed(1)
    model = Net()
    train(model, records(np.concatenate(shares)), epochs=20, lr=0.1)
    judged = (torch.tensor(data.held_out_x), torch.tensor(data.held_out_y))
    loss, accuracy = test(model, judged)
    return ps.EvaluateResult(loss, len(data.held_out_y), {"accuracy": accuracy})
