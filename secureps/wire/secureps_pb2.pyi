# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Charge(_message.Message):
    __slots__ = ("party", "group", "version", "noise_multiplier", "sample_rate", "steps", "step")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    party: str
    group: str
    version: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    step: int
    def __init__(self, party: _Optional[str] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., noise_multiplier: _Optional[float] = ..., sample_rate: _Optional[float] = ..., steps: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("party", "group", "version", "l2", "l1", "stddev", "sources", "clamping", "step")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    L2_FIELD_NUMBER: _ClassVar[int]
    L1_FIELD_NUMBER: _ClassVar[int]
    STDDEV_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    CLAMPING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    party: str
    group: str
    version: int
    l2: float
    l1: float
    stddev: float
    sources: int
    clamping: float
    step: int
    def __init__(self, party: _Optional[str] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., l2: _Optional[float] = ..., l1: _Optional[float] = ..., stddev: _Optional[float] = ..., sources: _Optional[int] = ..., clamping: _Optional[float] = ..., step: _Optional[int] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class VersionEvaluated(_message.Message):
    __slots__ = ("version", "metrics", "by", "examples")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    by: str
    examples: int
    def __init__(self, version: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., by: _Optional[str] = ..., examples: _Optional[int] = ...) -> None: ...

class EvaluationSkipped(_message.Message):
    __slots__ = ("version", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    reason: str
    def __init__(self, version: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("run", "party", "version", "model", "metrics", "examples", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    party: str
    version: int
    model: _containers.RepeatedScalarFieldContainer[bytes]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    examples: int
    signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., party: _Optional[str] = ..., version: _Optional[int] = ..., model: _Optional[_Iterable[bytes]] = ..., metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., examples: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Act(_message.Message):
    __slots__ = ("what", "party", "reason")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    what: str
    party: str
    reason: str
    def __init__(self, what: _Optional[str] = ..., party: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("shard", "blocks", "bytes")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: str
    blocks: int
    bytes: int
    def __init__(self, shard: _Optional[str] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("what", "shard", "moved", "blocks", "moved_bytes", "bytes", "reason")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    what: str
    shard: str
    moved: int
    blocks: int
    moved_bytes: int
    bytes: int
    reason: str
    def __init__(self, what: _Optional[str] = ..., shard: _Optional[str] = ..., moved: _Optional[int] = ..., blocks: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ShardLoad(_message.Message):
    __slots__ = ("shard", "bytes_per_second")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    shard: str
    bytes_per_second: float
    def __init__(self, shard: _Optional[str] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class ScalingStep(_message.Message):
    __slots__ = ("at", "what", "reason")
    AT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at: float
    what: str
    reason: str
    def __init__(self, at: _Optional[float] = ..., what: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ScalingStatus(_message.Message):
    __slots__ = ("policy", "off", "deadline", "buffer", "loads", "steps", "reward", "lost")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    policy: str
    off: str
    deadline: float
    buffer: float
    loads: _containers.RepeatedCompositeFieldContainer[ShardLoad]
    steps: _containers.RepeatedCompositeFieldContainer[ScalingStep]
    reward: float
    lost: float
    def __init__(self, policy: _Optional[str] = ..., off: _Optional[str] = ..., deadline: _Optional[float] = ..., buffer: _Optional[float] = ..., loads: _Optional[_Iterable[_Union[ShardLoad, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[ScalingStep, _Mapping]]] = ..., reward: _Optional[float] = ..., lost: _Optional[float] = ...) -> None: ...

class CohortSteps(_message.Message):
    __slots__ = ("group", "number", "version", "members", "began", "closed", "held", "opened", "prepared", "committed", "ended", "why")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    group: str
    number: int
    version: int
    members: int
    began: float
    closed: float
    held: float
    opened: float
    prepared: float
    committed: float
    ended: str
    why: str
    def __init__(self, group: _Optional[str] = ..., number: _Optional[int] = ..., version: _Optional[int] = ..., members: _Optional[int] = ..., began: _Optional[float] = ..., closed: _Optional[float] = ..., held: _Optional[float] = ..., opened: _Optional[float] = ..., prepared: _Optional[float] = ..., committed: _Optional[float] = ..., ended: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class EnvelopeKeyAnnounced(_message.Message):
    __slots__ = ("run", "holder", "number", "key", "least", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    holder: str
    number: int
    key: bytes
    least: int
    signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., holder: _Optional[str] = ..., number: _Optional[int] = ..., key: _Optional[bytes] = ..., least: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ...) -> None: ...

class SubmissionId(_message.Message):
    __slots__ = ("client", "group", "sequence")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    client: str
    group: str
    sequence: int
    def __init__(self, client: _Optional[str] = ..., group: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class BlockHeader(_message.Message):
    __slots__ = ("run", "author", "purpose", "group", "sequence", "block", "length", "digest", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    author: str
    purpose: str
    group: str
    sequence: int
    block: int
    length: int
    digest: bytes
    signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., author: _Optional[str] = ..., purpose: _Optional[str] = ..., group: _Optional[str] = ..., sequence: _Optional[int] = ..., block: _Optional[int] = ..., length: _Optional[int] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("run", "id", "purpose", "version", "base", "blocks", "root", "envelopes", "commitments", "size", "charge", "release", "unsafe", "correction", "step", "magnitude", "update", "beside", "examples", "keys", "committee", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHARGE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    id: SubmissionId
    purpose: str
    version: int
    base: bytes
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    root: bytes
    envelopes: _containers.RepeatedScalarFieldContainer[bytes]
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    size: int
    charge: Charge
    release: Release
    unsafe: bool
    correction: bytes
    step: int
    magnitude: int
    update: bytes
    beside: bytes
    examples: int
    keys: _containers.RepeatedScalarFieldContainer[int]
    committee: bytes
    signature: bytes
    def __init__(self, run: _Optional[bytes] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ..., purpose: _Optional[str] = ..., version: _Optional[int] = ..., base: _Optional[bytes] = ..., blocks: _Optional[_Iterable[bytes]] = ..., root: _Optional[bytes] = ..., envelopes: _Optional[_Iterable[bytes]] = ..., commitments: _Optional[_Iterable[bytes]] = ..., size: _Optional[int] = ..., charge: _Optional[_Union[Charge, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., unsafe: _Optional[bool] = ..., correction: _Optional[bytes] = ..., step: _Optional[int] = ..., magnitude: _Optional[int] = ..., update: _Optional[bytes] = ..., beside: _Optional[bytes] = ..., examples: _Optional[int] = ..., keys: _Optional[_Iterable[int]] = ..., committee: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "weight", "version", "step", "update", "examples")
    ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    id: SubmissionId
    weight: int
    version: int
    step: int
    update: bytes
    examples: int
    def __init__(self, id: _Optional[_Union[SubmissionId, _Mapping]] = ..., weight: _Optional[int] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., update: _Optional[bytes] = ..., examples: _Optional[int] = ...) -> None: ...

class Cohort(_message.Message):
    __slots__ = ("group", "number", "version", "epoch", "members", "scale", "committee")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    group: str
    number: int
    version: int
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    scale: float
    committee: bytes
    def __init__(self, group: _Optional[str] = ..., number: _Optional[int] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., scale: _Optional[float] = ..., committee: _Optional[bytes] = ...) -> None: ...

class CohortName(_message.Message):
    __slots__ = ("group", "number", "digest")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    group: str
    number: int
    digest: bytes
    def __init__(self, group: _Optional[str] = ..., number: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class RunInfo(_message.Message):
    __slots__ = ("plan", "schema", "layout", "holders", "roster", "nonce")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    plan: str
    schema: Schema
    layout: bytes
    holders: bytes
    roster: bytes
    nonce: bytes
    def __init__(self, plan: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., layout: _Optional[bytes] = ..., holders: _Optional[bytes] = ..., roster: _Optional[bytes] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class ShardAddress(_message.Message):
    __slots__ = ("name", "advertise", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    advertise: str
    weight: float
    def __init__(self, name: _Optional[str] = ..., advertise: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class GroupPlacement(_message.Message):
    __slots__ = ("group", "owners")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., owners: _Optional[_Iterable[str]] = ...) -> None: ...

class Replicas(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupPlacement]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupPlacement, _Mapping]]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("epoch", "shards", "groups", "replicas")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shards: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedCompositeFieldContainer[GroupPlacement]
    replicas: Replicas
    def __init__(self, epoch: _Optional[int] = ..., shards: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[_Union[GroupPlacement, _Mapping]]] = ..., replicas: _Optional[_Union[Replicas, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("party", "advertise", "weight", "seen", "run", "reached", "unsafe", "held", "epoch")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    party: str
    advertise: str
    weight: float
    seen: int
    run: bytes
    reached: _containers.RepeatedCompositeFieldContainer[GroupVersion]
    unsafe: bool
    held: _containers.RepeatedCompositeFieldContainer[CohortName]
    epoch: int
    def __init__(self, party: _Optional[str] = ..., advertise: _Optional[str] = ..., weight: _Optional[float] = ..., seen: _Optional[int] = ..., run: _Optional[bytes] = ..., reached: _Optional[_Iterable[_Union[GroupVersion, _Mapping]]] = ..., unsafe: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[CohortName, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("client", "schema", "groups", "run")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    client: str
    schema: Schema
    groups: _containers.RepeatedScalarFieldContainer[str]
    run: bytes
    def __init__(self, client: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., groups: _Optional[_Iterable[str]] = ..., run: _Optional[bytes] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("party", "reason")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    party: str
    reason: str
    def __init__(self, party: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("party", "unsettled", "epoch", "expires")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    party: str
    unsettled: _containers.RepeatedCompositeFieldContainer[SubmissionId]
    epoch: int
    expires: int
    def __init__(self, party: _Optional[str] = ..., unsettled: _Optional[_Iterable[_Union[SubmissionId, _Mapping]]] = ..., epoch: _Optional[int] = ..., expires: _Optional[int] = ...) -> None: ...

class Follow(_message.Message):
    __slots__ = ("standby", "seq", "chain", "copy", "have")
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    standby: bytes
    seq: int
    chain: bytes
    copy: bytes
    have: int
    def __init__(self, standby: _Optional[bytes] = ..., seq: _Optional[int] = ..., chain: _Optional[bytes] = ..., copy: _Optional[bytes] = ..., have: _Optional[int] = ...) -> None: ...

class CopyPart(_message.Message):
    __slots__ = ("digest", "size", "offset", "part")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    offset: int
    part: bytes
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., part: _Optional[bytes] = ...) -> None: ...

class JournalRow(_message.Message):
    __slots__ = ("at", "kind", "body", "chain")
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    at: float
    kind: str
    body: str
    chain: bytes
    def __init__(self, at: _Optional[float] = ..., kind: _Optional[str] = ..., body: _Optional[str] = ..., chain: _Optional[bytes] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("rows", "part")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[JournalRow]
    part: CopyPart
    def __init__(self, rows: _Optional[_Iterable[_Union[JournalRow, _Mapping]]] = ..., part: _Optional[_Union[CopyPart, _Mapping]] = ...) -> None: ...

class TakeOver(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("party",)
    PARTY_FIELD_NUMBER: _ClassVar[int]
    party: str
    def __init__(self, party: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: Receipt
    def __init__(self, receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("shard", "group", "cohort", "sums")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    group: str
    cohort: int
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shard: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., sums: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("party", "group", "cohort", "ids", "epoch")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    party: str
    group: str
    cohort: int
    ids: _containers.RepeatedCompositeFieldContainer[SubmissionId]
    epoch: int
    def __init__(self, party: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., ids: _Optional[_Iterable[_Union[SubmissionId, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("holder", "group", "cohort", "sums", "about")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    holder: str
    group: str
    cohort: int
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    about: bytes
    def __init__(self, holder: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., sums: _Optional[_Iterable[bytes]] = ..., about: _Optional[bytes] = ...) -> None: ...

class Examined(_message.Message):
    __slots__ = ("holder", "id", "flaw", "about")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FLAW_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    holder: str
    id: SubmissionId
    flaw: str
    about: bytes
    def __init__(self, holder: _Optional[str] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ..., flaw: _Optional[str] = ..., about: _Optional[bytes] = ...) -> None: ...

class KeyShare(_message.Message):
    __slots__ = ("holder", "group", "cohort", "share", "about")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    holder: str
    group: str
    cohort: int
    share: bytes
    about: bytes
    def __init__(self, holder: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., share: _Optional[bytes] = ..., about: _Optional[bytes] = ...) -> None: ...

class OpenRefused(_message.Message):
    __slots__ = ("holder", "group", "cohort", "reason", "about")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    holder: str
    group: str
    cohort: int
    reason: str
    about: bytes
    def __init__(self, holder: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., reason: _Optional[str] = ..., about: _Optional[bytes] = ...) -> None: ...

class Spoilt(_message.Message):
    __slots__ = ("shard", "group", "cohort", "reason", "key")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    shard: str
    group: str
    cohort: int
    reason: str
    key: bytes
    def __init__(self, shard: _Optional[str] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., reason: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class Decline(_message.Message):
    __slots__ = ("party", "group", "round", "reason", "version", "step")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    party: str
    group: str
    round: int
    reason: str
    version: int
    step: int
    def __init__(self, party: _Optional[str] = ..., group: _Optional[str] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("party", "id", "version", "step", "reason")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    party: str
    id: SubmissionId
    version: int
    step: int
    reason: str
    def __init__(self, party: _Optional[str] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("party", "reason", "returns")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    party: str
    reason: str
    returns: bool
    def __init__(self, party: _Optional[str] = ..., reason: _Optional[str] = ..., returns: _Optional[bool] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("shard", "group", "version", "blocks", "state", "scale", "mean", "epoch")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    shard: str
    group: str
    version: int
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    state: bytes
    scale: float
    mean: _containers.RepeatedScalarFieldContainer[float]
    epoch: int
    def __init__(self, shard: _Optional[str] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., blocks: _Optional[_Iterable[bytes]] = ..., state: _Optional[bytes] = ..., scale: _Optional[float] = ..., mean: _Optional[_Iterable[float]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Checkpointed(_message.Message):
    __slots__ = ("shard", "number", "file", "size", "digest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    shard: str
    number: int
    file: str
    size: int
    digest: bytes
    def __init__(self, shard: _Optional[str] = ..., number: _Optional[int] = ..., file: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("party", "group", "version", "figures", "step")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    party: str
    group: str
    version: int
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    step: int
    def __init__(self, party: _Optional[str] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., step: _Optional[int] = ...) -> None: ...

class AskStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskRun(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Noted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "placement", "shards", "next")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    run: RunInfo
    placement: Placement
    shards: _containers.RepeatedCompositeFieldContainer[ShardAddress]
    next: _containers.RepeatedCompositeFieldContainer[GroupVersion]
    def __init__(self, run: _Optional[_Union[RunInfo, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[ShardAddress, _Mapping]]] = ..., next: _Optional[_Iterable[_Union[GroupVersion, _Mapping]]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    def __init__(self, plan: _Optional[str] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("name", "live", "state", "submissions", "charges", "epsilon", "unsafe")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    CHARGES_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    name: str
    live: bool
    state: str
    submissions: int
    charges: int
    epsilon: float
    unsafe: bool
    def __init__(self, name: _Optional[str] = ..., live: _Optional[bool] = ..., state: _Optional[str] = ..., submissions: _Optional[int] = ..., charges: _Optional[int] = ..., epsilon: _Optional[float] = ..., unsafe: _Optional[bool] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("name", "version", "step", "reason", "late", "clip")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    step: str
    reason: str
    late: _containers.RepeatedScalarFieldContainer[str]
    clip: float
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[str] = ..., reason: _Optional[str] = ..., late: _Optional[_Iterable[str]] = ..., clip: _Optional[float] = ...) -> None: ...

class EvaluationStatus(_message.Message):
    __slots__ = ("step", "reason", "late", "results", "best", "skipped", "noise")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    step: str
    reason: str
    late: _containers.RepeatedScalarFieldContainer[str]
    results: _containers.RepeatedCompositeFieldContainer[VersionEvaluated]
    best: int
    skipped: _containers.RepeatedCompositeFieldContainer[EvaluationSkipped]
    noise: _containers.RepeatedCompositeFieldContainer[Metric]
    def __init__(self, step: _Optional[str] = ..., reason: _Optional[str] = ..., late: _Optional[_Iterable[str]] = ..., results: _Optional[_Iterable[_Union[VersionEvaluated, _Mapping]]] = ..., best: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[EvaluationSkipped, _Mapping]]] = ..., noise: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("name", "role", "registered", "live", "accuses", "trouble")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ACCUSES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    registered: bool
    live: bool
    accuses: int
    trouble: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., registered: _Optional[bool] = ..., live: _Optional[bool] = ..., accuses: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("run", "incarnation", "finished", "groups", "members", "shards", "telemetry", "holdings", "evaluation", "servers", "failure", "adjacency", "delta", "paused", "steps", "burnt", "checkpoint", "clock", "move", "scaling")
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ADJACENCY_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BURNT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    incarnation: int
    finished: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    shards: _containers.RepeatedCompositeFieldContainer[ShardAddress]
    telemetry: _containers.RepeatedCompositeFieldContainer[Telemetry]
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    evaluation: EvaluationStatus
    servers: _containers.RepeatedCompositeFieldContainer[ServerStatus]
    failure: str
    adjacency: str
    delta: float
    paused: str
    steps: _containers.RepeatedCompositeFieldContainer[CohortSteps]
    burnt: int
    checkpoint: int
    clock: float
    move: Move
    scaling: ScalingStatus
    def __init__(self, run: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., finished: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardAddress, _Mapping]]] = ..., telemetry: _Optional[_Iterable[_Union[Telemetry, _Mapping]]] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., evaluation: _Optional[_Union[EvaluationStatus, _Mapping]] = ..., servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ..., failure: _Optional[str] = ..., adjacency: _Optional[str] = ..., delta: _Optional[float] = ..., paused: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[CohortSteps, _Mapping]]] = ..., burnt: _Optional[int] = ..., checkpoint: _Optional[int] = ..., clock: _Optional[float] = ..., move: _Optional[_Union[Move, _Mapping]] = ..., scaling: _Optional[_Union[ScalingStatus, _Mapping]] = ...) -> None: ...

class PutBlock(_message.Message):
    __slots__ = ("header", "offset")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    header: BlockHeader
    offset: int
    def __init__(self, header: _Optional[_Union[BlockHeader, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class AskBlock(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: BlockHeader
    def __init__(self, header: _Optional[_Union[BlockHeader, _Mapping]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("digest", "have")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    have: int
    def __init__(self, digest: _Optional[bytes] = ..., have: _Optional[int] = ...) -> None: ...

class GetBlock(_message.Message):
    __slots__ = ("run", "group", "version", "block", "offset", "base", "state")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    group: str
    version: int
    block: int
    offset: int
    base: bytes
    state: bool
    def __init__(self, run: _Optional[bytes] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., block: _Optional[int] = ..., offset: _Optional[int] = ..., base: _Optional[bytes] = ..., state: _Optional[bool] = ...) -> None: ...

class GetSum(_message.Message):
    __slots__ = ("run", "group", "cohort", "block", "offset", "about")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    group: str
    cohort: int
    block: int
    offset: int
    about: bytes
    def __init__(self, run: _Optional[bytes] = ..., group: _Optional[str] = ..., cohort: _Optional[int] = ..., block: _Optional[int] = ..., offset: _Optional[int] = ..., about: _Optional[bytes] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("error", "text", "retry_after", "challenge", "free")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    error: str
    text: str
    retry_after: float
    challenge: bytes
    free: int
    def __init__(self, error: _Optional[str] = ..., text: _Optional[str] = ..., retry_after: _Optional[float] = ..., challenge: _Optional[bytes] = ..., free: _Optional[int] = ...) -> None: ...

class Configure(_message.Message):
    __slots__ = ("incarnation", "run", "placement", "shards")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    run: RunInfo
    placement: Placement
    shards: _containers.RepeatedCompositeFieldContainer[ShardAddress]
    def __init__(self, incarnation: _Optional[int] = ..., run: _Optional[_Union[RunInfo, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[ShardAddress, _Mapping]]] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("incarnation", "group", "receipt")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    group: str
    receipt: Receipt
    def __init__(self, incarnation: _Optional[int] = ..., group: _Optional[str] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class MemberBlocks(_message.Message):
    __slots__ = ("id", "blocks")
    ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    id: SubmissionId
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[_Union[SubmissionId, _Mapping]] = ..., blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("incarnation", "cohort", "members")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cohort: Cohort
    members: _containers.RepeatedCompositeFieldContainer[MemberBlocks]
    def __init__(self, incarnation: _Optional[int] = ..., cohort: _Optional[_Union[Cohort, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberBlocks, _Mapping]]] = ...) -> None: ...

class ShardSums(_message.Message):
    __slots__ = ("shard", "sums")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shard: _Optional[str] = ..., sums: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Examine(_message.Message):
    __slots__ = ("incarnation", "receipt")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    receipt: Receipt
    def __init__(self, incarnation: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("incarnation", "cohort", "receipts", "held")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cohort: Cohort
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    held: _containers.RepeatedCompositeFieldContainer[ShardSums]
    def __init__(self, incarnation: _Optional[int] = ..., cohort: _Optional[_Union[Cohort, _Mapping]] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[ShardSums, _Mapping]]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("incarnation", "cohort", "opened", "key")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cohort: Cohort
    opened: _containers.RepeatedScalarFieldContainer[bytes]
    key: bytes
    def __init__(self, incarnation: _Optional[int] = ..., cohort: _Optional[_Union[Cohort, _Mapping]] = ..., opened: _Optional[_Iterable[bytes]] = ..., key: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("incarnation", "group", "version", "keep", "blocks", "state", "anew")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    group: str
    version: int
    keep: int
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    state: bytes
    anew: bool
    def __init__(self, incarnation: _Optional[int] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., keep: _Optional[int] = ..., blocks: _Optional[_Iterable[bytes]] = ..., state: _Optional[bytes] = ..., anew: _Optional[bool] = ...) -> None: ...

class GroupVersion(_message.Message):
    __slots__ = ("group", "version")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    group: str
    version: int
    def __init__(self, group: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class WriteCheckpoint(_message.Message):
    __slots__ = ("incarnation", "number", "versions", "kept")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    number: int
    versions: _containers.RepeatedCompositeFieldContainer[GroupVersion]
    kept: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[int] = ..., number: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[GroupVersion, _Mapping]]] = ..., kept: _Optional[_Iterable[int]] = ...) -> None: ...

class RosterChanged(_message.Message):
    __slots__ = ("incarnation", "text")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    text: str
    def __init__(self, incarnation: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class HolderKeys(_message.Message):
    __slots__ = ("incarnation", "keys")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    keys: _containers.RepeatedCompositeFieldContainer[EnvelopeKeyAnnounced]
    def __init__(self, incarnation: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[EnvelopeKeyAnnounced, _Mapping]]] = ...) -> None: ...

class EraseKeys(_message.Message):
    __slots__ = ("incarnation", "below")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    below: int
    def __init__(self, incarnation: _Optional[int] = ..., below: _Optional[int] = ...) -> None: ...

class KeyCommittee(_message.Message):
    __slots__ = ("committee", "holders", "keys", "since")
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    committee: bytes
    holders: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    since: _containers.RepeatedCompositeFieldContainer[GroupVersion]
    def __init__(self, committee: _Optional[bytes] = ..., holders: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[bytes]] = ..., since: _Optional[_Iterable[_Union[GroupVersion, _Mapping]]] = ...) -> None: ...

class SealFor(_message.Message):
    __slots__ = ("incarnation", "committee")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    committee: KeyCommittee
    def __init__(self, incarnation: _Optional[int] = ..., committee: _Optional[_Union[KeyCommittee, _Mapping]] = ...) -> None: ...

class Discard(_message.Message):
    __slots__ = ("incarnation", "ids")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    ids: _containers.RepeatedCompositeFieldContainer[SubmissionId]
    def __init__(self, incarnation: _Optional[int] = ..., ids: _Optional[_Iterable[_Union[SubmissionId, _Mapping]]] = ...) -> None: ...

class Invite(_message.Message):
    __slots__ = ("incarnation", "group", "round", "version", "seconds", "evaluates", "step")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    group: str
    round: int
    version: int
    seconds: float
    evaluates: int
    step: int
    def __init__(self, incarnation: _Optional[int] = ..., group: _Optional[str] = ..., round: _Optional[int] = ..., version: _Optional[int] = ..., seconds: _Optional[float] = ..., evaluates: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("incarnation", "group", "version", "blocks")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    group: str
    version: int
    blocks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, incarnation: _Optional[int] = ..., group: _Optional[str] = ..., version: _Optional[int] = ..., blocks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("incarnation", "id", "outcome", "version", "reason", "burnt")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BURNT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    id: SubmissionId
    outcome: str
    version: int
    reason: str
    burnt: bool
    def __init__(self, incarnation: _Optional[int] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ..., outcome: _Optional[str] = ..., version: _Optional[int] = ..., reason: _Optional[str] = ..., burnt: _Optional[bool] = ...) -> None: ...

class SendAgain(_message.Message):
    __slots__ = ("incarnation", "id")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    id: SubmissionId
    def __init__(self, incarnation: _Optional[int] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ...) -> None: ...

class SealAgain(_message.Message):
    __slots__ = ("incarnation", "id", "update", "invite")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    INVITE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    id: SubmissionId
    update: bytes
    invite: Invite
    def __init__(self, incarnation: _Optional[int] = ..., id: _Optional[_Union[SubmissionId, _Mapping]] = ..., update: _Optional[bytes] = ..., invite: _Optional[_Union[Invite, _Mapping]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("incarnation", "reason")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    reason: str
    def __init__(self, incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("register", "join", "subscribe", "heartbeat", "submit", "held", "missing", "opened", "open_refused", "spoilt", "decline", "retire", "withdraw", "evaluated", "examined", "key_share", "prepared", "checkpointed", "telemetry", "ask_status", "ask_run", "noted", "welcome", "status", "put_block", "ask_block", "trouble", "proposal", "stored", "get_block", "get_sum", "payload", "refusal", "configure", "found", "hold", "examine", "open", "prepare", "commit", "write_checkpoint", "discard", "invite", "published", "settled", "send_again", "seal_again", "finish", "roster_changed", "envelope_key_announced", "holder_keys", "erase_keys", "seal_for", "follow", "rows", "take_over", "act")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    OPEN_REFUSED_FIELD_NUMBER: _ClassVar[int]
    SPOILT_FIELD_NUMBER: _ClassVar[int]
    DECLINE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    ASK_STATUS_FIELD_NUMBER: _ClassVar[int]
    ASK_RUN_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PUT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ASK_BLOCK_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    GET_BLOCK_FIELD_NUMBER: _ClassVar[int]
    GET_SUM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    EXAMINE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    INVITE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    SEND_AGAIN_FIELD_NUMBER: _ClassVar[int]
    SEAL_AGAIN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ROSTER_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_KEY_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    HOLDER_KEYS_FIELD_NUMBER: _ClassVar[int]
    ERASE_KEYS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FOR_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    register: Register
    join: Join
    subscribe: Subscribe
    heartbeat: Heartbeat
    submit: Submit
    held: Held
    missing: Missing
    opened: Opened
    open_refused: OpenRefused
    spoilt: Spoilt
    decline: Decline
    retire: Retire
    withdraw: Withdraw
    evaluated: Evaluated
    examined: Examined
    key_share: KeyShare
    prepared: Prepared
    checkpointed: Checkpointed
    telemetry: Telemetry
    ask_status: AskStatus
    ask_run: AskRun
    noted: Noted
    welcome: Welcome
    status: Status
    put_block: PutBlock
    ask_block: AskBlock
    trouble: Trouble
    proposal: Proposal
    stored: Stored
    get_block: GetBlock
    get_sum: GetSum
    payload: Payload
    refusal: Refusal
    configure: Configure
    found: Found
    hold: Hold
    examine: Examine
    open: Open
    prepare: Prepare
    commit: Commit
    write_checkpoint: WriteCheckpoint
    discard: Discard
    invite: Invite
    published: Published
    settled: Settled
    send_again: SendAgain
    seal_again: SealAgain
    finish: Finish
    roster_changed: RosterChanged
    envelope_key_announced: EnvelopeKeyAnnounced
    holder_keys: HolderKeys
    erase_keys: EraseKeys
    seal_for: SealFor
    follow: Follow
    rows: Rows
    take_over: TakeOver
    act: Act
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., missing: _Optional[_Union[Missing, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., open_refused: _Optional[_Union[OpenRefused, _Mapping]] = ..., spoilt: _Optional[_Union[Spoilt, _Mapping]] = ..., decline: _Optional[_Union[Decline, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., examined: _Optional[_Union[Examined, _Mapping]] = ..., key_share: _Optional[_Union[KeyShare, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., checkpointed: _Optional[_Union[Checkpointed, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., ask_status: _Optional[_Union[AskStatus, _Mapping]] = ..., ask_run: _Optional[_Union[AskRun, _Mapping]] = ..., noted: _Optional[_Union[Noted, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., put_block: _Optional[_Union[PutBlock, _Mapping]] = ..., ask_block: _Optional[_Union[AskBlock, _Mapping]] = ..., trouble: _Optional[_Union[Trouble, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., get_block: _Optional[_Union[GetBlock, _Mapping]] = ..., get_sum: _Optional[_Union[GetSum, _Mapping]] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., configure: _Optional[_Union[Configure, _Mapping]] = ..., found: _Optional[_Union[Found, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., examine: _Optional[_Union[Examine, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., write_checkpoint: _Optional[_Union[WriteCheckpoint, _Mapping]] = ..., discard: _Optional[_Union[Discard, _Mapping]] = ..., invite: _Optional[_Union[Invite, _Mapping]] = ..., published: _Optional[_Union[Published, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., send_again: _Optional[_Union[SendAgain, _Mapping]] = ..., seal_again: _Optional[_Union[SealAgain, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., roster_changed: _Optional[_Union[RosterChanged, _Mapping]] = ..., envelope_key_announced: _Optional[_Union[EnvelopeKeyAnnounced, _Mapping]] = ..., holder_keys: _Optional[_Union[HolderKeys, _Mapping]] = ..., erase_keys: _Optional[_Union[EraseKeys, _Mapping]] = ..., seal_for: _Optional[_Union[SealFor, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., take_over: _Optional[_Union[TakeOver, _Mapping]] = ..., act: _Optional[_Union[Act, _Mapping]] = ...) -> None: ...
