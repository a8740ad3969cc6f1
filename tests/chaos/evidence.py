"""What really happened, noted beside the parties: what was sealed, journalled and sent."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.sealing import Sealing
from secureps.client.worker import ClientWorker
from secureps.messages.encoding import canonical
from secureps.messages.holder_records import CohortReleased
from secureps.messages.member_records import Sealed, SequencesBegun
from secureps.messages.requests import PutBlock
from secureps.messages.submission import OPENED, UPDATE, Cohort, SubmissionId, cohort_digest
from secureps.roles.machine import Done, Effect, Machine, Step, WorkFailed
from secureps.service.shard.worker import ShardWorker
from tests.kits.sealed_blocks import looked_at

Key = tuple[SubmissionId, bytes]
"""A submission and the root of its payloads: another sealing of the same name is another one."""


class Evidence:
    """Notes of one run; `wrong` are the promises that were seen broken while it went on."""

    def __init__(self) -> None:
        self.integers: dict[Key, tuple[NDArray[np.int64], int]] = {}
        """What was sealed: the values on the grid, and what they count by."""
        self.founding: dict[bytes, NDArray[np.float32]] = {}
        """Models that were offered to found the run with, by the root of their payloads."""
        self.noise: defaultdict[tuple[bytes, int], list[NDArray[np.int64]]] = defaultdict(list)
        """What shards drew, by the members of a cohort and block: once, unless a seed was lost."""
        self.sent: defaultdict[str, set[tuple[str, int, bytes]]] = defaultdict(set)
        """By client: group, base version and content of every update of which a byte left it."""
        self.wrong: list[str] = []
        self.kinds: Counter[str] = Counter()
        """Events and effects by role and class."""
        self._digests: dict[bytes, tuple[Key, int]] = {}
        self._journalled: defaultdict[str, set[bytes | tuple[str, int]]] = defaultdict(set)
        """By party: digests of what it sealed, groups and numbers of cohorts that it opened."""
        self._ahead: defaultdict[str, set[bytes | tuple[str, int]]] = defaultdict(set)
        """By client: digests of blocks that may leave before all of their update is sealed."""
        self._begun: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        """By client: groups, and the sequences after those that its journal has as used up."""

    def broken(self, text: str) -> None:
        if text not in self.wrong:
            self.wrong.append(text)

    # --- what clients seal --------------------------------------------------------

    def watch_sealing(self, worker: ClientWorker) -> None:
        """Notes everything that a client seals from now on."""
        sealer = worker._sealer
        seal, seal_again, offer = sealer.seal, sealer.seal_again, sealer.offer

        def sealed(pinned: Any, receipt: Any, blocks: Any) -> Sealing[Sealed]:
            layout = pinned.layout.group(receipt.id.group)
            made, again = looked_at(layout, blocks)
            sealing = seal(pinned, receipt, again)
            while True:
                try:
                    header = next(sealing)
                except StopIteration as end:
                    return self._note(end.value, made.astype(np.int64), receipt.examples)
                if not pinned.plan.has_committee:
                    self.broken(f"{header.name} may leave before all is sealed, and can be opened")
                self._ahead[header.author].add(header.digest)
                yield header

        def sealed_again(pinned: Any, receipt: Any, headers: Any, sequence: int) -> Sealed:
            known = self.integers[receipt.id, receipt.root]
            return self._note(seal_again(pinned, receipt, headers, sequence), *known)

        def offered(pinned: Any, id: Any, values: Any, unsafe: bool) -> Sealed:
            made = offer(pinned, id, values, unsafe)
            self.founding[made.receipt.root] = values.copy()
            return made

        sealer.seal, sealer.offer = sealed, offered  # type: ignore[method-assign]
        sealer.seal_again = sealed_again  # type: ignore[method-assign]

    def _note(self, made: Sealed, values: NDArray[np.int64], examples: int) -> Sealed:
        key = made.receipt.id, made.receipt.root
        self.integers[key] = values, examples
        for header in made.headers:
            self._digests[header.digest] = key, made.receipt.version
        return made

    def watch_noise(self, worker: ShardWorker) -> None:
        """Notes all noise that a shard draws from now on: the integers, without their cipher."""
        noise, seal = worker._noise, worker._noise.seal

        def drawn(cohort: Cohort, block: int) -> bytes:
            pinned = noise.state.pinned
            layout = pinned.layout.group(cohort.group)
            plain: Any = pinned.plan.mechanism(cohort.group, layout.sent)
            bound = canonical(replace(cohort, committee=None))
            stream = noise.seed.derive("aggregator-noise", bound, block)
            values = np.asarray(plain.draw_noise(layout.slots(block), stream.words), np.int64)
            known = self.noise[cohort_digest(b"", replace(cohort, committee=None)), block]
            if not any(np.array_equal(values, each) for each in known):
                known.append(values)
            return seal(cohort, block)

        object.__setattr__(noise, "seal", drawn)  # its class is frozen

    # --- what they journal and send -----------------------------------------------

    def journalled(self, party: str, record: Any) -> None:
        if isinstance(record, Sealed):
            self._journalled[party].update(header.digest for header in record.headers)
        elif isinstance(record, SequencesBegun):
            self._begun[party].update((at.group, at.version) for at in record.next)
        elif isinstance(record, CohortReleased):
            self._journalled[party].add((record.cohort.group, record.cohort.number))

    def leaves(self, sender: str, to: str, message: Any) -> None:
        """A request leaves its sender: nothing may that was not charged and journalled before.

        But for blocks of an update that nobody can open before that: of it the sequence is.
        """
        if not isinstance(message, PutBlock) or message.header.author != sender:
            return
        header = message.header
        opened = (header.group, header.sequence) if header.purpose == OPENED else header.digest
        if opened not in self._journalled[sender] and opened in self._ahead[sender]:
            if (header.group, header.sequence + 1) not in self._begun[sender]:
                self.broken(f"{header.name} left {sender}, and its sequence may come once more")
            return
        if opened not in self._journalled[sender]:
            self.broken(f"{header.name} left {sender} before it was journalled")
        if header.purpose == UPDATE:
            key, version = self._digests[header.digest]
            values, examples = self.integers[key]
            content = hashlib.sha256(values.tobytes() + str(examples).encode()).digest()
            self.sent[sender].add((header.group, version, content))

    # --- what machines hear and order ---------------------------------------------

    def watch_machine(self, role: str, machine: Machine) -> None:
        """Counts the classes of all events of a machine, and of all effects."""
        handle, resume, troubled = machine.handle, machine.resume, machine.report_trouble

        def handled(now: float, sender: str, event: Any) -> Step:
            heard = f"{role} hears {type(event).__name__}"
            self.kinds[heard] += 1
            if isinstance(event, Done | WorkFailed):
                of = event.task if isinstance(event, Done) else event.error
                self.kinds[f"{heard} {type(of).__name__}"] += 1
            return counted(handle(now, sender, event))

        def resumed(now: float) -> Step:
            return counted(resume(now))

        def said(reason: str) -> Sequence[Effect]:
            return counted(Step(effects=list(troubled(reason)))).effects

        def counted(step: Step) -> Step:
            for effect in step.effects:
                what = getattr(effect, "message", None) or getattr(effect, "task", None)
                inner = f" {type(what).__name__}" if what is not None else ""
                self.kinds[f"{role} orders {type(effect).__name__}{inner}"] += 1
            return step

        machine.handle, machine.resume = handled, resumed  # type: ignore[method-assign]
        machine.report_trouble = said  # type: ignore[method-assign]
