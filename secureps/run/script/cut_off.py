"""A trainer whose script runs in a process without a network (`run.script.no_network`).

Each call goes there as a JSON record with tensors, and so does its answer. Nothing is pickled, and
answers are checked like those of any trainer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import (
    EvaluateResult,
    FitConfig,
    FitResult,
    RecordPrivacy,
    Setting,
    Trainer,
    blamed,
    convert_evaluation,
    convert_fit,
    convert_tensors,
)
from secureps.errors import ConfigError, ScriptFailed
from secureps.run.script.channel import Channel, Record, Tensors, refuse_failure

OPTIONAL = (
    *("examples", "persons", "initial_digest", "kinds", "touches"),
    *("evaluate_at", "report_at", "tied"),
)
"""The optional methods of a trainer."""

Arrays = dict[str, NDArray[Any]]


@contextmanager
def cut_off(
    script: Path, settings: Mapping[str, Setting], state: Path, name: str
) -> Iterator[Trainer]:
    """Makes the trainer of a script in a process without a network, while the `with` lasts.

    Raises ConfigError if this system lets no process leave the network, or the script's error.
    """
    if not hasattr(os, "fork"):
        raise _no_namespaces(f"{sys.platform} has no network namespaces")
    near, far = socket.socketpair()
    # -B: a compiled file beside the script would change the digest of its folder.
    command = (sys.executable, "-PB", "-m", f"{__package__}.no_network", str(far.fileno()))
    process = subprocess.Popen(command, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL)
    far.close()
    channel = Channel(near)
    try:
        try:
            calls = Calls(channel)
            calls.receive()
        except ConfigError as error:
            raise _no_namespaces(error) from None
        where = {"script": str(script.absolute()), "state": str(state.absolute())}
        told, _ = calls.ask({**where, "settings": dict(settings), "name": name}, {})
        yield CutOffTrainer(calls.ask, [each for each in told.get("has", ()) if each in OPTIONAL])
    finally:
        channel.close()
        process.kill()
        process.wait()


def _no_namespaces(why: object) -> ConfigError:
    return ConfigError(
        f"network = false: this system lets no process leave the network ({why}): allow user "
        "namespaces, or run the client where it has no network but the way to the servers, and "
        "leave the key out"
    )


class Calls:
    """Calls a process without a network; calls run one after another."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._lock = channel, threading.Lock()

    def ask(self, record: Record, tensors: Tensors) -> tuple[Record, Arrays]:
        """Returns the answer; raises the script's error, or ScriptFailed if the process ended."""
        with self._lock:
            try:
                self._channel.send(record, tensors)
            except OSError:
                raise ScriptFailed("the script's process, which has no network, ended") from None
            return self.receive()

    def receive(self) -> tuple[Record, Arrays]:
        if (got := self._channel.receive()) is None:
            raise ScriptFailed("the script's process, which has no network, ended")
        refuse_failure(got[0])
        return got


Ask = Callable[[Record, Tensors], tuple[Record, Arrays]]
"""Calls a trainer in another process; returns its answer or raises its error."""


class CutOffTrainer:
    """Passes calls to a trainer in another process, and has the same optional methods."""

    def __init__(self, ask: Ask, has: list[str]) -> None:
        self._ask = ask
        optional: dict[str, Callable[..., object]] = {
            "touches": lambda: ask({"do": "touches"}, {})[1],
            "evaluate_at": partial(self._judge, "evaluate_at"),
            "report_at": partial(self._judge, "report_at"),
        }
        for name in has:
            setattr(self, name, optional.get(name, partial(self._value, name)))

    def parameters(self, seed: int) -> Arrays:
        return self._ask({"do": "parameters", "seed": seed}, {})[1]

    def fit(self, parameters: Arrays, config: FitConfig) -> FitResult:
        record, tensors = self._ask(fit_record(config), parameters)
        return FitResult(tensors, *_take_values(record, "examples", "metrics", "steps"))

    def evaluate(self, parameters: Arrays) -> EvaluateResult:
        return _read_evaluation(self._ask(judging_record("evaluate"), parameters)[0])

    def _judge(self, name: str, parameters: Arrays, *given: object) -> EvaluateResult | None:
        record, _ = self._ask(judging_record(name, *given), parameters)
        return None if record.get("nothing") else _read_evaluation(record)

    def _value(self, name: str) -> object:
        return _take_values(self._ask({"do": name}, {})[0], "value")[0]


def fit_record(config: FitConfig) -> Record:
    told = {
        "versions": dict(config.versions),
        "seed": config.seed,
        "settings": dict(config.settings),
        "privacy": None if config.privacy is None else asdict(config.privacy),
        "work": config.work,
        "secret": config.secret.hex(),
    }
    return {"do": "fit", "config": told}


def judging_record(name: str, *given: object) -> Record:
    """Makes the record of a call that judges a model; `given` are its further arguments."""
    return {"do": name, "given": [dict(e) if isinstance(e, Mapping) else e for e in given]}


def answer_call(trainer: Trainer, record: Record, tensors: Arrays) -> tuple[Record, Tensors]:
    """Makes the call of a `CutOffTrainer` at the real trainer."""
    name = record["do"]
    method: Callable[..., Any] = getattr(trainer, name)
    match name:
        case "parameters":
            returned = method(record["seed"])
            with blamed("what parameters returned"):
                return {}, convert_tensors(returned)
        case "fit":
            told = record["config"]
            privacy = told["privacy"] and RecordPrivacy(**told["privacy"])
            secret = bytes.fromhex(told["secret"])
            config = FitConfig(**{**told, "privacy": privacy, "secret": secret})
            returned = method(tensors, config)
            with blamed("what fit returned"):
                result = convert_fit(returned)
            numbers = {"examples": result.examples, "steps": result.steps}
            return {**numbers, "metrics": result.metrics}, result.parameters
        case "evaluate" | "evaluate_at" | "report_at":
            judged = method(tensors, *record["given"])
            if judged is None and name == "report_at":
                return {"nothing": True}, {}
            return _evaluation_record(name, judged), {}
        case "touches":
            return {}, {tensor: np.asarray(rows) for tensor, rows in method().items()}
        case _:
            value = method()
            plain = value.item() if isinstance(value, np.generic) else value
            return {"value": dict(plain) if isinstance(plain, Mapping) else plain}, {}


def _evaluation_record(name: str, returned: object) -> Record:
    with blamed(f"what {name} returned"):
        result = convert_evaluation(returned)
    return {"loss": result.loss, "examples": result.examples, "metrics": result.metrics}


def _read_evaluation(record: Record) -> EvaluateResult:
    return EvaluateResult(*_take_values(record, "loss", "examples", "metrics"))


def _take_values(record: Record, *names: str) -> list[Any]:
    if missing := [name for name in names if name not in record]:
        raise ScriptFailed(f"the script's process answers without {missing[0]}")
    return [record[name] for name in names]
