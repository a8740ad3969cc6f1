"""Starts a process for a data holder's script, and asks it.

A script may abort in native code, exit, or run out of memory. In its own process it ends nothing
else, and its failure becomes one line.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from secureps.client.trainer import Setting
from secureps.errors import ScriptFailed, SecurepsError
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind
from secureps.run.processes.launcher import MODULE, Launcher, Program
from secureps.run.processes.supervisor import Supervisor
from secureps.run.script.channel import Channel, Record, Tensors, refuse_failure
from secureps.run.script.scoring import Baselines, Say, Score

NAME = "script"

END_SECONDS = 10.0
"""Seconds from the loss of the connection to the end of the process."""

_TICK = 0.05


def assign(
    script: Path,
    plan: Plan,
    holders: Mapping[str, Mapping[str, Setting]],
    pooled: Mapping[str, Setting],
    local: Mapping[str, Path],
    unsafe_seed: int | None,
    records: Mapping[str, int],
) -> Record:
    """Makes what a script's process is told first.

    Args:
        holders: the settings of every data holder, by name.
        pooled: the settings for evaluation and central training, without a partition.
        local: the folders of the clients' local tensors, by name.
        unsafe_seed: of the holders' trainings, or None.
        records: the stated number of each data holder's records, by name; empty: the plan's.
    """
    return {
        "script": str(script.absolute()),
        "plan": plan.text,
        "holders": {name: dict(each) for name, each in holders.items()},
        "pooled": dict(pooled),
        "local": {name: str(folder.absolute()) for name, folder in local.items()},
        "unsafe_seed": unsafe_seed,
        "records": dict(records),
    }


@contextmanager
def script_process(
    assignment: Record,
    logs: Path,
    environment: Mapping[str, str] = os.environ,
    launcher: Launcher | None = None,
) -> Iterator[ScriptProcess]:
    """Runs the process while the `with` lasts; its output goes to `script.log` in `logs`."""
    ours, theirs = socket.socketpair()
    with (
        Supervisor(logs, restarts=0) as supervisor,
        closing(Channel(ours)) as channel,  # once it is closed, the process ends by itself
    ):
        with theirs:
            file = theirs.fileno()
            arguments = (*MODULE, "secureps.run.script.host", str(file))
            own = (NAME, arguments, environment)
            supervisor.start(Program(*own, launcher=launcher, may_fail=True, inherits=file))
        with suppress(OSError):  # the first request tells how the process ended
            channel.send(assignment)
        yield ScriptProcess(Path(assignment["script"]).name, channel, supervisor)


class ScriptProcess:
    """Asks a script's process; `note` says why nothing is scored, `failed` what failed first."""

    def __init__(self, script: str, channel: Channel, supervisor: Supervisor) -> None:
        self._script = script
        self._channel = channel
        self._supervisor = supervisor
        self._gone = ""
        self.note = ""
        self.failed = ""

    def look(self) -> tuple[Schema, dict[str, Kind]]:
        """Asks for schema and kinds of tensors; ScriptFailed, ConfigError or PlanRefused."""
        answer = self._ask({"do": "look"})
        specs = (TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in answer["schema"])
        return Schema(tuple(specs)), answer["kinds"]

    def count(self) -> tuple[tuple[int, ...], dict[str, int]]:
        """Asks for each holder's number of records, and how many trainers touch each row-block.

        The numbers are empty if one holder cannot tell its own; ScriptFailed as in `look`.
        """
        answer = self._ask({"do": "count"})
        found = answer["examples"]
        return () if None in found else tuple(found), answer["touching"]

    def rehearse(self, start: Tensors) -> tuple[dict[str, float], tuple[str, ...]]:
        """Has the first holder train and evaluate once (`host.ScriptHost`)."""
        answer = self._ask({"do": "rehearse"}, start)
        return answer["lengths"], tuple(answer["notes"])

    def score(self, tensors: Tensors) -> Score | None:
        """Scores a model; None without an evaluator, or if the script failed (see `failed`)."""
        if self.note:
            return None
        try:
            answer = self._ask({"do": "score"}, tensors)
        except SecurepsError as error:
            self.failed = self.failed or f"a version has no held-out score: {error}"
            self.note = self._gone and f"no held-out score: {self._gone}"
            return None
        self.note, self.failed = answer["note"], self.failed or answer["failed"]
        return None if answer["score"] is None else Score(**answer["score"])

    def baselines(self, versions: int, start: Tensors, say: Say) -> Baselines:
        """Trains the baselines; one that fails is left out, with a note."""
        try:
            answer = self._ask({"do": "baselines", "versions": versions}, start, say)
        except SecurepsError as error:
            return Baselines({}, None, (f"nothing is compared: {error}",))
        alone = {name: Score(**score) for name, score in answer["alone"].items()}
        central = answer["central"] and Score(**answer["central"])
        own = answer["noiseless"], answer["goal"]
        return Baselines(alone, central, tuple(answer["notes"]), *own)

    def _ask(
        self, record: Record, tensors: Tensors | None = None, say: Say = lambda text: None
    ) -> Record:
        if self._gone:
            raise ScriptFailed(self._gone)
        try:
            self._channel.send(record, tensors)
        except OSError:
            raise self._ended() from None
        while (got := self._channel.receive()) is not None:
            refuse_failure(got[0])
            match got[0]:
                case {"say": str(text)}:
                    say(text)
                case {"done": dict(answer)}:
                    return answer
        raise self._ended()

    def _ended(self) -> ScriptFailed:
        """Makes the error that says how the process ended."""
        failed, until = self._supervisor.failed, time.monotonic() + END_SECONDS
        while not failed and time.monotonic() < until:
            time.sleep(_TICK)
            self._supervisor.poll()
        how = str(failed[NAME]).removeprefix(f"{NAME} ") if failed else "answers no more"
        self._gone = f"{self._script}: the process it ran in {how}"
        return ScriptFailed(self._gone)
