"""The work that machines hand out, and the events that report its end.

The hands that do it are in `service` and `client`; what must not live here: payloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.charge import Charge, Release
from secureps.messages.evaluation import Evaluated, VersionEvaluated
from secureps.messages.orders import GroupVersion
from secureps.messages.requests import Decline, Telemetry
from secureps.messages.submission import BlockHeader, Cohort, Receipt

# --- coordinator ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Makes a checkpoint whose parts are durable complete.

    The facts are those of the moment at which it was asked for: the ledger goes on growing.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    charges: tuple[Charge, ...] = ()
    releases: tuple[Release, ...] = ()
    unsafe: tuple[str, ...] = ()
    evaluations: tuple[VersionEvaluated, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    number: int


# --- shard ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeState:
    """Makes version 0 of a group's own blocks, from these spool keys (or from the plan's file)."""

    group: str
    keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class AdoptState:
    """Makes a committed version's state file from a part of a checkpoint, and answers itself.

    `blocks` and `state` are the digests that it has, of own blocks and of the file.
    """

    group: str
    version: int
    keep: int
    blocks: tuple[bytes, ...]
    state: bytes


@dataclass(frozen=True, slots=True)
class SumCohort:
    """Adds up a cohort; keys[m] are the spool keys of member m's blocks, ascending."""

    cohort: Cohort
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SumsReady:
    cohort: Cohort
    sums: tuple[bytes, ...]
    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class StepState:
    """Opens, averages and steps.

    `opened` are spool keys of opened sums, None unless a holder decrypts them; `key` is the sum of
    the members' one-time keys, int32 little-endian, None unless a committee gives it.
    """

    cohort: Cohort
    opened: tuple[str, ...] | None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Damaged:
    """A work could not be done: the payloads under these spool keys are gone or damaged."""

    task: MakeState | SumCohort | StepState
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unopened:
    """The sum of keys that a work was given does not open the cohort's sums."""

    task: StepState
    reason: str


@dataclass(frozen=True, slots=True)
class StateReady:
    """A state file is durable; `cohort` is -1 for version 0.

    `scale` and `mean` are as in `StatePrepared`.
    """

    group: str
    version: int
    cohort: int
    blocks: tuple[bytes, ...]
    state: bytes
    telemetry: Telemetry | None
    scale: float | None = None
    mean: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Prune:
    """Deletes these spool keys, and a group's sums and states that are older than `keep`."""

    keys: tuple[str, ...] = ()
    group: str = ""
    version: int = -1
    keep: int = -1


@dataclass(frozen=True, slots=True)
class Sweep:
    """After a start: deletes payloads that no record refers to."""

    referenced: frozenset[str]


@dataclass(frozen=True, slots=True)
class WritePart:
    """Writes this shard's file of a checkpoint."""

    number: int
    versions: tuple[GroupVersion, ...]


@dataclass(frozen=True, slots=True)
class PartWritten:
    number: int
    file: str
    size: int
    digest: bytes


# --- key holder -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSum:
    """Decrypts the sum of one block that lies in the store under `key`.

    `weight` is the cohort's total.
    """

    group: str
    cohort: int
    block: int
    key: str
    weight: int


@dataclass(frozen=True, slots=True)
class SumOpened:
    """The opened sum lies in the store under the header's key."""

    header: BlockHeader
    seconds: float


@dataclass(frozen=True, slots=True)
class ExamineEnvelope:
    """Opens the own envelope of a submission, and checks what is in it."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class EnvelopeExamined:
    """What is wrong with it; empty if nothing is."""

    receipt: Receipt
    flaw: str


@dataclass(frozen=True, slots=True)
class DeriveShare:
    """Derives the own share of the sum of a cohort's keys; receipts in the members' order."""

    cohort: Cohort
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class ShareDerived:
    """It is uint32 little-endian, and has not left this process."""

    cohort: Cohort
    share: bytes = field(repr=False)
    seconds: float


# --- member -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """Seals (in the clear) the founding model of a group."""

    group: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Aim:
    """One group that a training run contributes to.

    `known` are the contents (`Sealed.content`) that came of this version before, in order; `step`
    is which of the client's updates of the version this is (`Receipt.step`). Nothing is sealed but
    the update that is `wanted` by its name, if one is. `most_examples` as in `Receipt`.
    """

    group: str
    version: int
    sequence: int
    known: tuple[bytes, ...] = ()
    step: int = 0
    wanted: bytes = b""
    most_examples: int = 0


@dataclass(frozen=True, slots=True)
class Contribute:
    """Trains from a model and seals every aim.

    `model` are the newest pulled versions of the groups that it contributes to, `blocks` the
    digests of their blocks, group after group; `work` the part of the local work that is done.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    aims: tuple[Aim, ...]
    work: float = 1.0


@dataclass(frozen=True, slots=True)
class Count:
    """Trains from a model to find by how many examples; nothing is sealed.

    `model` and `blocks` as in `Contribute`, which takes what came of it if it is for the same.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of `Count`."""

    examples: int


@dataclass(frozen=True, slots=True)
class Reseal:
    """Seals an update that lies in the outbox anew, as the submission of this sequence.

    `content` as in `Sealed`.
    """

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    content: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Judges a model on held-out records.

    `model` and `blocks` as in `Contribute`. With an `aim` the metrics are sealed for the
    metrics' group, whose digest is `own`; a designated evaluator has none, and signs them.
    `digests` are those of the model's groups.
    """

    model: tuple[GroupVersion, ...]
    blocks: tuple[bytes, ...]
    digests: tuple[bytes, ...]
    aim: Aim | None = None
    own: bytes = b""


@dataclass(frozen=True, slots=True)
class SealedUpdate:
    """One group's blocks are durable in the outbox; `content` as in `Sealed`."""

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Contributed:
    """What came of `Contribute`, `Offer`, `Reseal`, or `Evaluate` with an aim.

    `others` are aims of which another update came than was wanted; `told` is what the data holder
    alone is told of the training.
    """

    updates: tuple[SealedUpdate, ...]
    telemetry: tuple[Telemetry, ...]
    others: tuple[Aim, ...] = ()
    told: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of `Evaluate` without one: metrics, or none."""

    message: Evaluated | Decline
