"""Trains a simulation's clients on a Ray cluster, while the clock and the parties stay here.

A training starts on any free core of the cluster when its virtual time begins, and is awaited when
that time ends. Only bytes are sent: the script's path, settings, the call, tensors. A worker makes
the trainer from them, so script and data must lie at the same paths on every node. A training whose
worker died is repeated, with the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from secureps.client.script import Script
from secureps.client.trainer import FitConfig, Setting, Trainer, blamed
from secureps.errors import ConfigError, ScriptFailed
from secureps.extras import from_extras
from secureps.messages.encoding import payload_digest
from secureps.run.options import ENVIRONMENT
from secureps.run.script.channel import (
    Record,
    Tensors,
    as_failure,
    load_tensors,
    pack,
    refuse_failure,
    save_tensors,
    unpack,
)
from secureps.run.script.cut_off import (
    OPTIONAL,
    Arrays,
    CutOffTrainer,
    answer_call,
    fit_record,
    judging_record,
)

RETRIES = 3
"""Number of times that a call is repeated after its worker died."""

KEPT = 4
"""The most begun calls of one client whose answers nobody asked for, as after a drop-out."""

SENT = 8
"""Sets of tensors that stay at the cluster, because clients of one version share their start."""

TRAINERS = 64
"""Trainers that a worker caches."""


class Cluster(Protocol):
    """Makes calls elsewhere, by `make_call`."""

    def begin(self, order: bytes, tensors: bytes, after: Any) -> tuple[Any, Any]:
        """Begins a call once `after` has ended; returns futures of its answer and its end."""

    def end(self, coming: Any) -> bytes:
        """Waits for an answer; ScriptFailed if its worker died again and again."""


class RayCluster:
    """A running Ray cluster (`ray_cluster`)."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        options = {"num_cpus": 1, "max_retries": RETRIES, "num_returns": 2}
        self._called = ray.remote(**options)(make_call)
        self._sent: dict[bytes, Any] = {}

    def begin(self, order: bytes, tensors: bytes, after: Any) -> tuple[Any, Any]:
        name = payload_digest(tensors)
        there = self._sent.pop(name, None)
        self._sent[name] = self._ray.put(tensors) if there is None else there
        while len(self._sent) > SENT:
            del self._sent[next(iter(self._sent))]
        answered, over = self._called.remote(order, self._sent[name], after)
        return answered, over

    def end(self, coming: Any) -> bytes:
        try:
            return bytes(self._ray.get(coming))
        except self._ray.exceptions.RayError as error:
            text = f"it ended its Ray worker {RETRIES + 1} times, or Ray lost it"
            raise ScriptFailed(f"{text}: {type(error).__name__}") from None


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Connects to the cluster that RAY_ADDRESS names, or that runs on this machine.

    Raises ConfigError if there is none. None is started, because Ray listens on all addresses of a
    machine, which its operator has to decide.
    """
    with from_extras():
        import ray
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise ConfigError(
            "no Ray cluster runs here: begin one (ray start --head), or name one (RAY_ADDRESS)"
        ) from None
    try:
        yield RayCluster(ray)
    finally:
        ray.shutdown()


class RayCalls:
    """The calls of one client's trainer."""

    def __init__(
        self, cluster: Cluster, script: Path, settings: Mapping[str, Setting], state: Path
    ) -> None:
        environment = {name: os.environ.get(name, own) for name, own in ENVIRONMENT.items()}
        self._cluster = cluster
        self._trainer = {
            "script": str(script.absolute()),
            "settings": dict(settings),
            "state": str(state.absolute()),
            "environment": environment,
        }
        self._begun: dict[bytes, Any] = {}
        self._last: Any = None

    def begin(self, record: Record, tensors: Tensors) -> bytes:
        """Begins a call unless the same one has begun; returns its name."""
        order = json.dumps({**self._trainer, "call": record}).encode()
        data = save_tensors(tensors)
        name = payload_digest(order) + payload_digest(data)
        if name not in self._begun:
            while len(self._begun) >= KEPT:
                del self._begun[next(iter(self._begun))]
            self._begun[name], self._last = self._cluster.begin(order, data, self._last)
        return name

    def ask(self, record: Record, tensors: Tensors) -> tuple[Record, Arrays]:
        """Returns the answer of a call, which may have begun before; or raises its error."""
        name = self.begin(record, tensors)
        answer = unpack(self._cluster.end(self._begun.pop(name)))
        refuse_failure(answer[0])
        return answer


class SpreadTrainer(CutOffTrainer):
    """Trains and evaluates on a cluster; `own`, the same trainer here, does the rest."""

    def __init__(self, own: Trainer, calls: RayCalls) -> None:
        super().__init__(calls.ask, [each for each in OPTIONAL if hasattr(own, each)])
        self._own, self._begin = own, calls.begin
        for name in OPTIONAL:
            if name not in ("evaluate_at", "report_at") and hasattr(own, name):
                setattr(self, name, getattr(own, name))

    def parameters(self, seed: int) -> Arrays:
        return self._own.parameters(seed)

    def begin_fit(self, parameters: Arrays, config: FitConfig) -> None:
        self._begin(fit_record(config), parameters)

    def begin_evaluate(self, parameters: Arrays, versions: Mapping[str, int]) -> None:
        at = hasattr(self._own, "evaluate_at")
        record = judging_record("evaluate_at", versions) if at else judging_record("evaluate")
        self._begin(record, parameters)


# --- on a worker ------------------------------------------------------------------


def make_call(order: bytes, tensors: bytes, after: object) -> tuple[bytes, bytes]:
    """Calls a trainer; returns its packed answer, and an empty value that says it ended."""
    told_of = json.loads(order)
    for name, value in told_of["environment"].items():
        os.environ[name] = value  # before the script imports torch
    try:
        settings = json.dumps(told_of["settings"])
        trainer = _make_trainer(told_of["script"], settings, told_of["state"])
        with blamed(told_of["call"]["do"]):
            record, made = answer_call(trainer, told_of["call"], load_tensors(tensors))
    except Exception as error:
        record, made = as_failure(error), {}
    return pack(record, made), b""


@lru_cache(TRAINERS)
def _make_trainer(script: str, settings: str, state: str) -> Trainer:
    return _load_script(script).make(json.loads(settings), Path(state))


@lru_cache(1)
def _load_script(path: str) -> Script:
    return Script(Path(path))
