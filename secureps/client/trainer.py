"""The `Trainer` Protocol, which a data holder implements, and how clients call it.

A trainer may keep nothing between calls that it could not make again from the base versions,
because a killed client starts again and must repeat the same bits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from secureps.config.plan import EvaluationSection, RecordPrivacySection
from secureps.errors import (
    ClientError,
    ConfigError,
    Diverged,
    Malformed,
    NotFinite,
    ScriptFailed,
    SecurepsError,
    WrongShape,
)
from secureps.extras import from_extras
from secureps.messages.evaluation import Metric
from secureps.messages.run import GroupVersion, Schema
from secureps.policy.checks.evaluation import Said, check_metrics, count_examples, to_vector
from secureps.policy.plan import Plan, counts_by_public_number, protects_persons, public_number
from secureps.policy.tensor_kinds import Kind
from secureps.tracebacks import describe_error, find_place

Array = NDArray[Any]
"""One tensor of a model; any shape, a floating, integer or boolean dtype."""

Parameters = dict[str, Array]
"""A whole model: every tensor by its name."""

Setting = float | int | str | bool
"""One value of a plan's `[training]` table."""

SEED_BITS = 63
"""A seed is in [0, 2^63), so that it fits into a signed integer of 64 bits."""

SECRET_BYTES = 32
"""The length of the secret that noise is made from; nobody can try all its values."""


@dataclass(frozen=True)
class RecordPrivacy:
    """Record-level privacy: DP-SGD with Poisson sampling (Abadi et al. 2016).

    All values are public, and come from the plan. Each step takes every record with probability
    `sample_rate`, clips its gradient to `max_grad_norm` (L2), and adds Gaussian noise of standard
    deviation `noise_multiplier * max_grad_norm` to the sum, which it divides by the expected batch,
    `sample_rate` times `records`. Under the unit "person" it takes every person with that
    probability, and clips the sum of the gradients of all records of that person.

    Args:
        delta: for the accountant; training does not use it.
        records: the public number of records, or of persons, that the expected batch follows from;
            None under `adjacency = "zero-out"`, where the true number is public.
        unit: "record" or "person".

    Raises:
        ConfigError: a number is out of range.

    Examples:
        >>> privacy = ps.RecordPrivacy(1.1, 1.0, sample_rate=0.25, delta=1e-5, records=200)
        >>> privacy.expected_batch(held=180)
        50.0
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    delta: float
    records: int | None = None
    unit: Literal["record", "person"] = "record"

    def __post_init__(self) -> None:
        # With other numbers the noise would be none, or less than the accountant believes.
        noisy = 0 < self.noise_multiplier < math.inf and 0 < self.max_grad_norm < math.inf
        sampled = 0 < self.sample_rate <= 1 and (self.records is None or self.records >= 1)
        if not (noisy and sampled and 0 < self.delta < 1 and self.unit in ("record", "person")):
            raise ConfigError(
                "record privacy: noise_multiplier and max_grad_norm must be finite and above 0, "
                "unit record or person, sample_rate in (0, 1], delta in (0, 1), records at least "
                f"1: got {self}"
            )

    def expected_batch(self, held: int) -> float:
        """Returns the mean number of records, or persons, in a batch of a client with `held`."""
        return self.sample_rate * (held if self.records is None else self.records)


def record_privacy(plan: Plan, records: int | None = None) -> RecordPrivacy | None:
    """The record-level mechanism of a plan; None if it has none.

    `records` is the public number in the client's own settings; PlanRefused if the plan needs one
    and there is none.
    """
    privacy = plan.section.privacy
    if not isinstance(privacy, RecordPrivacySection):
        return None
    return RecordPrivacy(
        privacy.noise_multiplier,
        privacy.max_grad_norm,
        privacy.sample_rate,
        privacy.delta,
        public_number(plan.section, records) if counts_by_public_number(plan.section) else None,
        privacy.unit,
    )


def trainable_privacy(plan: Plan, trainer: Trainer, records: int | None) -> RecordPrivacy | None:
    """Like `record_privacy`; ScriptFailed if the plan protects persons and this trainer cannot."""
    if protects_persons(plan.section):
        count_persons(trainer)
    return record_privacy(plan, records)


@dataclass(frozen=True)
class FitConfig:
    """The order for one local training.

    Args:
        versions: base version of every group, by the group's name.
        seed: 63 bits. All randomness of the fit must come from it, or from it and `secret`. `repr`
            shows neither.
        settings: the plan's training settings (learning rate, local steps, ...), public.
        privacy: the record-level mechanism to train under, or None.
        work: the part of its local steps that this training takes, in (0, 1]: rounded down, but one
            at least. Below 1 only under a plan with `[work]`, never with `privacy`.
        secret: 32 bytes from which the noise of `privacy` must be made; somebody who knows them can
            subtract the noise. They come from this client's secret seed, never from the server, and
            differ between submissions. Empty without privacy.

    Raises:
        ConfigError: the seed is out of range; or there is `privacy` and no secret, or only a part
            of the work.

    Examples:
        >>> config = ps.FitConfig({"all": 3}, seed=7, settings={"local_steps": 10}, work=0.5)
        >>> config.part(config.settings["local_steps"])
        5
    """

    versions: Mapping[str, int]
    seed: int = field(repr=False)
    settings: Mapping[str, Setting]
    privacy: RecordPrivacy | None = None
    work: float = 1.0
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:  # torch takes no other
            raise ConfigError(f"seed: must be from 0 to 2**64 - 1, and is {self.seed}")
        if self.privacy is None:
            return
        if self.work != 1:
            raise ConfigError(
                "record privacy: a training takes all private steps, so work must be 1"
            )
        if (given := len(self.secret)) != SECRET_BYTES:
            raise ConfigError(
                f"private noise is made from a secret of {SECRET_BYTES} bytes, not {given}"
            )

    def part(self, count: int) -> int:
        """The steps or epochs, out of `count`, that this training takes; at least one."""
        return max(1, math.floor(count * self.work))


@dataclass(frozen=True, eq=False)
class FitResult:
    """A trained model.

    Args:
        parameters: every tensor by name, in the order of `Trainer.parameters`; the whole new model,
            not the difference. Left out of `repr`: it is private until encrypted.
        examples: the number of records trained on. The client counts by it and publishes it in its
            receipt, unless all clients count alike, or the site (`--records`) or the plan
            (`RecordPrivacy.records`) gives another number. Under the unit "person" the number of
            persons takes its place. With 0 it sends no update.
        metrics: finite numbers about the training; empty under `RecordPrivacy`, because a training
            loss is computed from records without noise.
        steps: optimizer steps taken; under `RecordPrivacy` the accountant composes over them.

    Examples:
        >>> ps.FitResult({"weights": np.zeros(3, np.float32)}, 120, {"loss": 0.5}, steps=10)
        FitResult(examples=120, metrics={'loss': 0.5}, steps=10)
    """

    parameters: dict[str, Array] = field(repr=False)
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def copied(self) -> FitResult:
        """Copies the arrays, so that the trainer cannot change them."""
        return replace(self, parameters={name: a.copy() for name, a in self.parameters.items()})


@dataclass(frozen=True)
class EvaluateResult:
    """Mean loss and metrics of a model over held-out records, which it was never trained on.

    The values are exact, and `RecordPrivacy` does not cover them. If the plan evaluates, they leave
    this client as encrypted integers, and everybody sees their mean over at least the minimum
    cohort; no epsilon covers the held-out records. The values of a designated evaluator are
    published unchanged.

    Args:
        loss: None if there is none.
        examples: how many held-out records.
        metrics: by name.

    Examples:
        >>> ps.EvaluateResult(loss=0.25, examples=30, metrics={"accuracy": 0.9})
        EvaluateResult(loss=0.25, examples=30, metrics={'accuracy': 0.9})
    """

    loss: float | None
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)


class Evaluator(Protocol):
    """Evaluates a model on held-out records."""

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """Evaluates a model on this holder's held-out data; changes nothing.

        Raises:
            WrongShape: `parameters` are not this model's.
            NotFinite: the loss is NaN or infinite.
        """


class Trainer(Evaluator, Protocol):
    """A data holder's own code. Neither side keeps arrays that it passes to the other.

    `parameters`, `fit` and `evaluate` are required. These methods are optional:

    `touches() -> Mapping[str, NDArray[np.int64]]`: the rows of tensors, by name, that this holder's
    records touch, trained on or held out; ascending, the same at every call. Of a sparse group the
    client pulls and pushes only the row-blocks of these rows. Other rows may hold anything finite
    in `fit` and `evaluate`, and must leave `fit` bit for bit as they came. A tensor without an
    entry is touched in every row. The operator of the coordinator sees which client touches which
    row-blocks; no privacy unit covers that.

    `examples() -> int`: how many records it trains on, as `FitResult.examples` will say. `secureps
    check --run-script` compares clients' sizes with the plan; runs do not call it.

    `persons() -> int`: how many persons its records belong to. If it is not 0, `fit` samples and
    clips by person under the unit "person" of `RecordPrivacy`; plans with it refuse other trainers.

    `evaluate_at(parameters, versions)`: called in place of `evaluate` for a published model;
    `versions` has the base version of every group.

    `report_at(parameters, versions, message)`: called for each message that the plan's
    `evaluation.reports` names. It returns an `EvaluateResult` of what this holder reports beside
    its evaluation, with its number of records. If it returns None, this client sends no evaluation
    of that version either. Like metrics, a report leaves the client only as part of a cohort's
    mean, weighted by those records.

    `take_totals(parameters)`: called with the last model after a run, and with it the last totals
    of a plan that sums a group.

    `refuse_settings(settings, privacy)`, with values as in `FitConfig`: raises ConfigError for
    settings that `fit` does not take, PlanRefused for a model that it cannot train under this
    privacy, so that `secureps check` says so before anything runs.

    `initial_digest() -> str`: BLAKE2b-256, in hex, of the plan's file of version 0, if `parameters`
    reads it. The client refuses a run that starts from another file or another model.

    `follow() -> str | None` and `dismiss()`: for several processes that train together. In a
    process that only helps, `follow` trains what the client's process orders until it is dismissed,
    and returns why it ended; it returns None in the client's process. The client calls `dismiss`
    after its run.

    `tied() -> Mapping[str, str]`: further names of tensors (tied weights), each with the name that
    it stands for. Such a tensor is sent, clipped and noised once; `fit`, `evaluate` and an exported
    file have it under all its names.

    `kinds() -> Mapping[str, Kind]`: "trained", "statistics" or "constant" for tensors by name; a
    tensor without an entry counts as trained. A plan that would add noise to statistics, such as
    running means and variances, is refused.

    Examples:
        >>> class Mean:  # of a hospital's 40 records
        ...     def parameters(self, seed):
        ...         return {"mean": np.zeros(1, np.float32)}
        ...     def fit(self, parameters, config):
        ...         trained = {"mean": parameters["mean"] * np.float32(0.5) + np.float32(1)}
        ...         return ps.FitResult(trained, 40)
        ...     def evaluate(self, parameters):
        ...         return ps.EvaluateResult(float((parameters["mean"][0] - 2) ** 2), 10, {})
        >>> trainer: ps.Trainer = Mean()
        >>> trainer.evaluate(trainer.parameters(seed=1)).loss
        4.0
    """

    def parameters(self, seed: int) -> dict[str, Array]:
        """The initial model, every tensor by name in the model's order; a pure function of `seed`.

        The names, shapes and dtypes are those of every later model of the run. The seed has 63
        bits.
        """

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        """Trains from `parameters` on this holder's own data.

        A deterministic function of (parameters, config, own data), to the last bit.

        Raises:
            ConfigError: an unknown or impossible setting.
            PlanRefused: the model cannot be trained under `config.privacy`.
            WrongShape: `parameters` are not this model's.
            NotFinite: the loss or a parameter became NaN or infinite.
        """


class TrainingLeft(BaseException):
    """Raised by a trainer whose data holder leaves the run, with the reason; the client leaves too.

    It is not an Exception, because `blamed` would report one as a fault of the script.
    """


def kinds_of(trainer: Trainer) -> Mapping[str, Kind]:
    """The kinds of tensors that a trainer declares; {} if it has no method `kinds`."""
    with blamed("kinds"):
        kinds = getattr(trainer, "kinds", None)
        return {} if kinds is None else dict(kinds())


def ties_of(trainer: Trainer) -> Mapping[str, str]:
    """The further names of tensors that a trainer declares; {} if it has no method `tied`."""
    with blamed("tied"):
        tied = getattr(trainer, "tied", None)
        told = {} if tied is None else dict(tied())
        for name, own in told.items():
            if not isinstance(name, str) or not isinstance(own, str) or own in told:
                raise WrongShape(f"{name!r:.80} is tied to {own!r:.80}, which is no tensor's name")
        return told


def find_mismatch(
    parameters: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Names the first tensor that differs from a model's names and shapes; None if none does."""
    missing = [name for name in shapes if name not in parameters]
    if missing:
        return f"tensor {missing[0]!r} is missing"
    for name, array in parameters.items():
        if name not in shapes:
            return f"tensor {name!r} is not one of this model's"
        if np.shape(array) != shapes[name]:
            return f"tensor {name!r} has shape {np.shape(array)}, the model's has {shapes[name]}"
    return None


# --- script errors -----------------------------------------------------------------


log = logging.getLogger("secureps")

TRAINING = ("fit", "what fit returned")
"""Arguments of `blamed` for which a value that is not finite means that training diverged."""


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turns errors of the data holder's code, or of checks of its results, into ScriptFailed.

    Other SecurepsErrors than ClientError pass, because they say whose fault they are. SystemExit is
    turned too, because it would end a thread. The traceback goes to the log at DEBUG (`secureps
    join --verbose`).
    """
    try:
        with from_extras():
            yield
    except ClientError as error:
        if isinstance(error, NotFinite) and what in TRAINING:
            raise Diverged(f"{what}: {error}; nothing was sent") from error
        raise ScriptFailed(f"{what}: {error}; nothing was sent: mend the script") from error
    except SecurepsError:
        raise
    except (Exception, SystemExit) as error:
        log.debug("%s failed", what, exc_info=error)
        raise ScriptFailed(
            f"{what} raised {describe_error(error)} ({find_place(error)}); mend the script or "
            "its settings"
        ) from error


# --- returned ----------------------------------------------------------------------

NUMBERS = "fiubc"
"""NumPy's codes for kinds of dtypes that hold numbers."""

LOOK = "look for NaN or infinity in the records, or lower the learning rate"
"""The advice for a trained model that is not finite."""


def number(value: object) -> float | None:
    """Converts a number of Python or NumPy, or a tensor of one value, to a float; else None."""
    plain = _plain(value)
    try:
        return float(plain) if isinstance(plain, Real) else None
    except OverflowError:
        return None


def to_whole_number(key: str, value: object) -> int:
    """Converts a number of examples or steps, such as 3.0; Malformed unless whole, 0 or more."""
    plain = _plain(value)
    sound = isinstance(plain, Real) and not isinstance(plain, bool)
    if not sound or not 0 <= plain < np.inf or plain != int(plain):
        raise Malformed(f"{key} is {value!r:.80}, and must be a whole number of 0 or more")
    return int(plain)


def convert_tensors(returned: object) -> dict[str, Array]:
    """Converts a model's tensors to arrays; else WrongShape."""
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise WrongShape(f"it is a {kind}, and must be a dict of NumPy arrays by their names")
    if odd := [name for name in returned if not isinstance(name, str)]:
        raise WrongShape(f"{odd[0]!r:.80} is no name of a tensor: names are text")
    return {name: _array(name, value) for name, value in returned.items()}


def convert_fit(result: object) -> FitResult:
    """Converts the result of `fit` to arrays and numbers; else WrongShape or Malformed."""
    if not isinstance(result, FitResult):
        raise WrongShape(f"it is a {type(result).__name__}, and must be a FitResult")
    return FitResult(
        convert_tensors(result.parameters),
        to_whole_number("examples", result.examples),
        _metrics(result.metrics),
        to_whole_number("steps", result.steps),
    )


def convert_evaluation(result: object, wanted: Collection[str] = ()) -> EvaluateResult:
    """Converts the result of `evaluate` or `report_at` to numbers; else WrongShape or Malformed.

    The plan's metrics, `wanted`, must be numbers; any other metric that is none is left out.
    """
    if not isinstance(result, EvaluateResult):
        raise WrongShape(f"it is a {type(result).__name__}, and must be an EvaluateResult")
    loss = number(result.loss)
    if loss is None and result.loss is not None:
        raise Malformed(f"loss is {result.loss!r:.80}, and must be a number, or None")
    examples = to_whole_number("examples", result.examples)
    return EvaluateResult(loss, examples, _metrics(result.metrics, wanted))


def _plain(value: object) -> Any:
    """Takes the Python number out of a scalar or a tensor of one value."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):  # an array of several values
        return value


def _metrics(given: object, wanted: Collection[str] = ()) -> dict[str, float]:
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise WrongShape(f"metrics is a {kind}, and must be a dict of numbers by their names")
    found = {str(name): number(value) for name, value in given.items()}
    for name in wanted:
        if name in found and found[name] is None:
            raise Malformed(f"metric {name!r} is {given[name]!r:.80}, and must be a number")
    return {name: value for name, value in found.items() if value is not None}


def _array(name: str, value: Any) -> Array:
    if callable(getattr(value, "detach", None)):  # a torch tensor, on any device
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
            value = value.float()
    try:
        made: Array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        made = np.array(None)
    if made.dtype.kind not in NUMBERS:
        kind = type(value).__name__
        raise WrongShape(f"{name} is a {kind}, and must be a NumPy array")
    return made.astype(made.dtype.newbyteorder("="), copy=False)


# --- evaluation --------------------------------------------------------------------


def judge(
    evaluator: Evaluator,
    parameters: dict[str, Array],
    section: EvaluationSection,
    model: tuple[GroupVersion, ...],
    alike: bool,
) -> tuple[tuple[Metric, ...], NDArray[np.float32], int]:
    """Calls the trainer's `report_at` for each of the plan's reports, then `evaluate_at`.

    Without `evaluate_at` it calls `evaluate`. If a report is missing, the client sends nothing:
    if only one member of a cohort had it, the mean would be that client's own value. With `alike`
    evaluation and reports count 1.

    Returns the plan's metrics, in their own units, sorted by name, without reports; the client's
    contribution, float32 in [-1, 1]; and the most examples of its evaluation and its reports.

    Raises ScriptFailed if the holder's code raised, or has nothing to report, or if a metric of the
    plan is missing or no number.
    """
    versions = {at.group: at.version for at in model}
    reports = dict[str, Said]()
    for message in section.reports:  # before evaluate, which may change the arrays
        with blamed(f"report_at {message}"):
            if not hasattr(evaluator, "report_at"):
                raise Malformed("the plan has reports, and the trainer has no report_at")
            copies = {name: array.copy() for name, array in parameters.items()}
            report = evaluator.report_at(copies, versions, message)
        if report is None:
            raise ScriptFailed(f"there is no {message} of this version to report")
        what = f"what report_at {message} returned"
        reports[message] = read_result(what, report, alike, section.reports[message])
    with blamed("evaluate"):
        if hasattr(evaluator, "evaluate_at"):
            result = evaluator.evaluate_at(parameters, versions)
        else:
            result = evaluator.evaluate(parameters)
    own = read_result("what evaluate returned", result, alike, section.metrics)
    with blamed("what evaluate returned"):
        vector = to_vector(section, own, reports)
        metrics = tuple(Metric(name, float(own.metrics[name])) for name in sorted(section.metrics))
        check_metrics(section, metrics)
    return metrics, vector, count_examples(own, reports)


def read_result(what: str, returned: object, alike: bool, wanted: Collection[str]) -> Said:
    """Converts the result of a holder's function; ScriptFailed if it cannot be used."""
    with blamed(what):
        result = convert_evaluation(returned, wanted)
        if result.examples < 1:
            raise Malformed(f"{result.examples} examples: at least 1 is needed")
        loss = {} if result.loss is None else {"loss": result.loss}
        return Said(1 if alike else result.examples, loss | result.metrics)


class PooledEvaluation:
    """The mean of evaluators' losses and metrics, weighted by examples.

    Evaluators without held-out records, and metrics that an evaluator lacks, are left out.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """Evaluates on the records of all; WrongShape if no evaluator has held-out records."""
        told = [convert_evaluation(each.evaluate(parameters)) for each in self._evaluators]
        results = [result for result in told if result.examples]
        if not results:
            raise WrongShape("no data holder has held-out records: each said 0 examples")
        total = sum(result.examples for result in results)

        def mean(values: list[float]) -> float:
            pairs = zip(values, results, strict=True)
            return sum(value * result.examples for value, result in pairs) / total

        common = set.intersection(*(set(result.metrics) for result in results))
        metrics = {name: mean([r.metrics[name] for r in results]) for name in sorted(common)}
        losses = [result.loss for result in results if result.loss is not None]
        loss = mean(losses) if len(losses) == len(results) else None
        return EvaluateResult(loss, total, metrics)


def count_records(trainer: Trainer) -> int | None:
    """Asks a trainer for its number of records; None if it has no method `examples`."""
    tells = getattr(trainer, "examples", None)
    if tells is None:
        return None
    return to_whole_number("the number of records", tells())


def count_persons(trainer: object) -> int:
    """Asks a trainer for its number of persons; ScriptFailed unless it protects persons."""
    with blamed("persons"):
        tells = getattr(trainer, "persons", None)
        count = 0 if tells is None else to_whole_number("the number of persons", tells())
    if count:
        return count
    raise ScriptFailed(
        'the plan protects persons (unit = "person"), and this client does not say whose records '
        "it has: give TorchTrainer persons=, the person of each record; a trainer or loop of your "
        "own says how many by persons() or join(persons=), once it clips the sum of each person"
    )


def read_touched_rows(trainer: Trainer, schema: Schema) -> dict[str, list[int]]:
    """Asks a trainer which rows its records touch, ascending; {} if it has no method `touches`.

    Raises WrongShape or Malformed if these are no rows of the model.
    """
    touches = getattr(trainer, "touches", None)
    if touches is None:
        return {}
    told = touches()
    if not isinstance(told, Mapping):
        raise WrongShape(f"it is a {type(told).__name__}, and must map tensors to their rows")
    heights = {spec.name: spec.shape[0] for spec in schema.tensors if spec.shape}
    found = {}
    for name, rows in told.items():
        array = np.asarray(rows)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise WrongShape(f"the rows of {name} are not a vector of integers")
        if name not in heights:
            raise Malformed(f"the model has no tensor {name!r:.80} with rows")
        found[name] = own = [int(row) for row in np.unique(array)]
        if own and (own[0] < 0 or own[-1] >= heights[name]):
            row = own[0] if own[0] < 0 else own[-1]
            raise Malformed(f"{name} has rows 0 to {heights[name] - 1}, and no row {row}")
    return found
