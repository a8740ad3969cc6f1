"""The process of a script for `up` and `check`: `python -m secureps.run.script.host FD`.

It answers `run.script.process`.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from secureps.client.initial_model import LocalTensors
from secureps.client.script import Script
from secureps.client.trainer import (
    RecordPrivacy,
    Setting,
    Trainer,
    blamed,
    count_persons,
    count_records,
    trainable_privacy,
)
from secureps.crypto.sampling import SecretSeed, UnsafeSeed
from secureps.errors import InternalError, SecurepsError
from secureps.policy.plan import Plan, protects_persons
from secureps.run.script.channel import Channel, Record, Tensors, as_failure
from secureps.run.script.scoring import (
    Judge,
    Look,
    measure_lengths,
    run_baselines,
    warn_of_metrics,
)
from secureps.service.logs import ignore_output_errors
from secureps.tracebacks import dump_crashes


class ScriptHost:
    """A script, its first holder's trainer and its judge, each of which is made on first use."""

    def __init__(self, assignment: Record, say: Callable[[str], None]) -> None:
        self._plan = Plan.from_text(assignment["plan"])
        self._path = Path(assignment["script"])
        self._holders: Mapping[str, Mapping[str, Setting]] = assignment["holders"]
        self._pooled: Mapping[str, Setting] = assignment["pooled"]
        self._local = {name: Path(folder) for name, folder in assignment["local"].items()}
        self._unsafe_seed: int | None = assignment["unsafe_seed"]
        self._records: Mapping[str, int] = assignment["records"]
        self._say = say

    def do(self, record: Record, tensors: Tensors) -> Record:
        """Answers a record; raises a SecurepsError for any failure."""
        match record["do"]:
            case "look":
                return self._answer_look()
            case "count":
                return self._count()
            case "rehearse":
                return self._rehearse(tensors)
            case "score":
                score, judge = self._judge.score(tensors), self._judge
                found = None if score is None else asdict(score)
                return {"score": found, "note": judge.note, "failed": judge.failed}
            case "baselines":
                return self._baselines(record["versions"], tensors)
        raise InternalError(f"a script's process has no answer to {record['do']!r}")

    @cached_property
    def _script(self) -> Script:
        return Script(self._path)

    @cached_property
    def _first(self) -> Trainer:
        return self._script.make(next(iter(self._holders.values())))

    @cached_property
    def _look(self) -> Look:
        return Look.at(self._first)

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self._plan, self._script, self._holders, self._pooled, self._look, self._own)

    def _own(self, name: str) -> Tensors | None:
        folder = self._local.get(name)
        return None if folder is None else LocalTensors(folder).load()

    @property
    def _privacy(self) -> RecordPrivacy | None:
        records = self._records.get(next(iter(self._holders)))
        return trainable_privacy(self._plan, self._first, records)

    def _answer_look(self) -> Record:
        refuse = getattr(self._first, "refuse_settings", None)
        if refuse is not None:
            with blamed("refuse_settings"):
                refuse(self._plan.section.training, self._privacy)
        self._look.refuse_unusable(self._plan)
        schema = [[s.name, list(s.shape), s.dtype] for s in self._look.schema.tensors]
        return {"schema": schema, "kinds": dict(self._look.kinds)}

    def _count(self) -> Record:
        """Counts each holder's records, or persons, and how many touch each row-block."""
        examples, touching = list[int | None](), Counter[str]()
        count = count_persons if protects_persons(self._plan.section) else count_records
        for name, settings in self._holders.items():
            trainer = self._script.make(settings)
            with blamed("examples"):
                examples.append(count(trainer))
            if self._plan.section.tables and name != self._plan.evaluator:
                touching.update(self._look.find_touched(self._plan, trainer))
        return {"examples": examples, "touching": touching}

    def _rehearse(self, start: Tensors) -> Record:
        """Has a holder evaluate if the plan evaluates, and train without noise if it is private.

        `start` is the plan's file of version 0; empty: the trainer's fresh model.
        """
        plan, look = self._plan, self._look
        model = {name: start.get(name, array) for name, array in look.initial.items()}
        own = self._holders.get(plan.evaluator) if plan.section.evaluation is not None else None
        judge = self._first if own is None else self._script.make(own)
        notes, lengths = [*warn_of_metrics(plan, judge, model), *self._warn_of_counts()], {}
        if plan.section.privacy is not None:
            lengths = measure_lengths(plan, look, self._first, self._privacy, model)
        return {"lengths": lengths, "notes": notes}

    def _warn_of_counts(self) -> Iterator[str]:
        """Warns of rows that were numbered in place of persons, and of a far-off public number."""
        privacy, records = self._privacy, count_records(self._first)
        if privacy is None:
            return
        count = records
        if protects_persons(self._plan.section):
            count = count_persons(self._first)
            if count > 1 and count == records:
                yield (
                    f"each of the {count:,} records that were tried has a person of its own, so "
                    'that unit = "person" protects no more than single records: persons= takes '
                    "the id of the person, not the number of the row"
                )
        if privacy.records and count and not 0.5 <= count / privacy.records <= 2:
            yield (
                f"the client that was tried counts by privacy.records, {privacy.records:,}, and "
                f"has {count:,} {privacy.unit}s: no epsilon depends on that number, but take about "
                "what a client has, because the sample rate and it say how large a batch should be"
            )

    def _baselines(self, versions: int, start: Tensors) -> Record:
        unsafe = self._unsafe_seed
        seed = SecretSeed.from_os() if unsafe is None else UnsafeSeed(unsafe)
        return asdict(run_baselines(self._judge, versions, self._records, start, seed, self._say))


def host(channel: Channel) -> None:
    first = channel.receive()
    if first is None:
        return
    sys.argv = [first[0]["script"]]  # the script may read its command line
    made = ScriptHost(first[0], lambda text: channel.send({"say": text}))
    while (asked := channel.receive()) is not None:
        try:
            channel.send({"done": made.do(*asked)})
        except Exception as error:
            channel.send(as_failure(error))
            if not isinstance(error, SecurepsError):
                raise


def main(arguments: list[str]) -> None:
    """Answers on the open socket whose number is in `arguments`."""
    ignore_output_errors()
    dump_crashes()
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)  # a program that the script starts must not answer
    with suppress(BrokenPipeError):  # the asker is gone
        host(Channel(connection))


if __name__ == "__main__":
    main(sys.argv[1:])
