"""`patch`: the `Trainer` of Hugging Face or Lightning trains in a federation, by its own loop.

A callback acts when the trainer starts, and after each of its optimizer steps. So a round ends
between two steps, and no gradient of one version is applied to the next.

A client sends what `TorchTrainer` sends, without the parameters that do not train. A tensor
`frozen.NAME` of 32 bytes stands for each of those: the digest of its values, which the plan's
`frozen` compares when a client joins. So a large base is neither copied nor sent.

A model in 16 bits rounds the version that it loads. Only what training changed is added to the
published float32 values, so that this rounding does not move them.

Several processes (DistributedDataParallel): rank 0 is the client, and the others get each version
from it. They wait in a group of gloo of their own, because NCCL gives up after some minutes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from secureps.arguments import check_types
from secureps.client import torch_ranks as ranks
from secureps.client.private_sum import is_whole
from secureps.client.session import PulledModel, Session, join
from secureps.client.torch import find_kinds, load_tensors, tensors_of
from secureps.client.trainer import Array, EvaluateResult, Parameters
from secureps.config.plan import RecordPrivacySection
from secureps.errors import ConfigError, PlanRefused, ScriptFailed
from secureps.messages.encoding import digest
from secureps.policy.plan import Plan, load_plan
from secureps.policy.tensor_kinds import Kind

Progress = tuple[float, float]  # optimizer steps and epochs
Judge = Callable[[nn.Module], EvaluateResult]
UNITS = ("steps", "epochs")
FROZEN = "frozen."
COMPILED = "_orig_mod."  # put into names by torch.compile
UNUSED = ".original_module."  # of peft, random: `modules_to_save` trains a copy of it


class Rounds:
    """Divides a foreign training loop into rounds, of `length`: an index of UNITS, and a count."""

    def __init__(self, plan: Plan, length: tuple[int, int], judge: Judge | None) -> None:
        self._plan, (self._unit, self._count) = plan, length
        self._judge: Any = judge
        self.session: Session  # given before the trainer begins
        self._module: nn.Module
        self.examples = 0
        self.initial: Parameters = {}
        self.kinds: dict[str, Kind] = {}
        self._sent: dict[str, Tensor] = {}
        self._inside = ExitStack()
        self._leads, self._others = True, None
        self._pulled: PulledModel | None = None
        self._round = 0  # its steps or epochs; none once the run has ended
        self._begun: Progress = (0.0, 0.0)
        self._pushed: tuple[int, dict[str, Any]] = (-1, {})  # the training's seed, and its update

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "patch: a patched trainer goes to no process that is spawned: start its processes by "
            'torchrun, accelerate or strategy="ddp"'
        )

    def train_inside(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Calls the trainer's `train` or `fit`, and leaves the run if that ends first."""
        if self._sent:
            raise ScriptFailed("patch: a patched trainer trains once: make and patch another")
        with self._inside:
            return method(*given, **named)

    def begin(self, module: nn.Module, now: Progress, last: Progress, data: Any) -> bool:
        """Joins the run and loads a version; returns True if the trainer must stop."""
        if self._sent:  # the trainer begins again, with smaller batches
            self._load(now)
            return self._round == 0
        if not self.examples and not hasattr(data, "__len__"):
            raise ConfigError("patch: the trainer's data have no length: give examples=")
        self.examples = self.examples or len(data)
        self._look_at(_unwrap(module))
        if ranks.is_group():
            self._leads = ranks.is_client()
            self._others = dist.new_group(timeout=timedelta(days=30), backend="gloo")
        if self._leads:
            self._inside.enter_context(self.session)
        self._next(now)
        version = math.inf if self._pulled is None else self._pulled.version
        needed = (self._plan.section.versions - version) * self._count
        if (left := last[self._unit] - now[self._unit]) < needed:
            text = "the trainer takes %g %s more, the run %d: this client will leave before its end"
            logging.getLogger("secureps").warning(text, left, UNITS[self._unit], needed)
        return self._round == 0

    def advance(self, now: Progress) -> bool:
        """Ends the round if its steps are taken; returns True if the trainer must stop."""
        if self._round and now[self._unit] - self._begun[self._unit] < self._round:
            return False
        (self._next if self._round else self._load)(now)  # a step after the run is undone
        return self._round == 0

    def evaluate(self, parameters: Parameters) -> EvaluateResult:
        """Judges a version, while the trainer waits for its next one."""
        load_tensors(self._sent, {name: parameters[name] for name in self._sent})
        modes = [(each, each.training) for each in self._module.modules()]
        self._module.eval()
        try:
            result: EvaluateResult = self._judge(self._module)
            return result
        finally:
            for each, mode in modes:
                each.training = mode

    # --- the model ------------------------------------------------------------------

    def _look_at(self, module: nn.Module) -> None:
        """Finds what is sent of a model; ConfigError if it cannot be sent by this plan."""
        sharded = any(
            type(each).__name__ == "FullyShardedDataParallel" for each in module.modules()
        )
        marks = ("full_tensor", "ds_id")
        if sharded or any(hasattr(each, mark) for each in module.parameters() for mark in marks):
            raise ConfigError(
                "patch: each process has a share of this model (FSDP, DeepSpeed, tensor parallel): "
                "train it by DistributedDataParallel, or take TorchTrainer with shards()"
            )
        self._module, kinds = module, find_kinds(module)
        buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
        for name, each in tensors_of(module).items():
            plain = name.replace(COMPILED, "")
            if each.requires_grad or name in buffers:
                self._sent[plain], self.kinds[plain] = each, kinds[name]
            elif UNUSED not in plain:
                head = repr((str(each.dtype), tuple(each.shape))).encode()
                values = each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                told = digest("secureps-base", head, values.data)
                self.initial[FROZEN + plain] = np.frombuffer(told, np.uint8)
        patterns = self._plan.section.frozen
        if bare := [n for n in self.initial if not any(fnmatchcase(n, p) for p in patterns)]:
            raise ConfigError(
                f"patch: {len(bare)} parameters do not train, {bare[0].removeprefix(FROZEN)!r} for "
                f'one: have the plan compare them, frozen = ["{FROZEN}*"], or let them train'
            )
        # views: one tied tensor under two names would count as two tensors
        self.initial.update(
            {name: each.detach() for name, each in dict[str, Any](self._sent).items()}
        )

    def _update(self, name: str, published: Array) -> Array:
        """Copies a tensor as it is pushed: the published values, and what training changed."""
        own = self._sent[name].detach().cpu()
        if is_whole(own):  # counters and tables of indices are in no update
            return published
        if own.dtype in (torch.float32, torch.float64):
            return np.array(own.numpy())
        loaded = torch.tensor(published).to(own.dtype)
        made: Array = published + (own.float() - loaded.float()).numpy()
        return made

    # --- rounds ---------------------------------------------------------------------

    def _next(self, now: Progress) -> None:
        """Pushes what the trainer made of its version, waits for the next one, and loads it."""
        with ranks.failing_together():
            if self._leads:
                if (pulled := self._pulled) is not None:
                    made = {name: self._update(name, pulled[name]) for name in self._sent}
                    told = {"examples": self.examples, "steps": int(now[0] - self._begun[0])}
                    self._pushed = pulled.config.seed, {"parameters": made, **told}
                    self.session.push(**self._pushed[1])
                self._pulled = self.session.pull()
                # A version whose update was lost comes again, with its seed. The ledger accepts the
                # same update alone, and a foreign loop does not repeat its bits.
                while self._pulled is not None and self._pulled.config.seed == self._pushed[0]:
                    self.session.push(**self._pushed[1])
                    self._pulled = self.session.pull()
                self._round = 0 if self._pulled is None else self._pulled.config.part(self._count)
            self._round = int(self._share(torch.tensor([self._round])))
            self._load(now)

    def _load(self, now: Progress) -> None:
        """Copies the pulled version, or after the run the last one, into the model."""
        self._begun = now
        if self._leads and (model := self._pulled or self.session.model):
            load_tensors(self._sent, {name: model[name] for name in self._sent})
        for each in self._sent.values():
            self._share(each)

    @torch.no_grad()
    def _share(self, tensor: Tensor) -> Tensor:
        """Gives a tensor the values that it has at rank 0."""
        if self._others is not None and tensor.numel():
            whole = tensor.cpu().contiguous()
            dist.broadcast(whole.reshape(-1).view(torch.uint8), 0, group=self._others)
            tensor.copy_(whole)
        return tensor


def _unwrap(module: nn.Module) -> nn.Module:
    """Returns the model inside its wrappers, which compile it or train it on several devices."""
    several = isinstance(module, DataParallel | DistributedDataParallel)
    inner = module.module if several else getattr(module, COMPILED[:-1], None)
    return _unwrap(inner) if isinstance(inner, nn.Module) else module


def _round_length(plan: Plan, steps: int | None, epochs: int | None) -> tuple[int, int]:
    """Returns which of UNITS a round has, and how many; ConfigError unless one place says it."""
    in_plan = [plan.section.training.get(f"local_{unit}") or None for unit in UNITS]
    told = [(k % 2, each) for k, each in enumerate((*in_plan, steps, epochs)) if each is not None]
    if len(told) == 1 and isinstance(count := told[0][1], int) and count >= 1:
        return told[0][0], count
    raise ConfigError(
        "patch: one thing says how long a round is, 1 or more: local_steps or local_epochs of the "
        f"plan's [training], else steps= or epochs=; got {[each for _, each in told] or 'none'}"
    )


# --- trainers ---------------------------------------------------------------------------


def _hook_transformers(trainer: Any, home: str, rounds: Rounds) -> None:
    def on_train_begin(_: Any, args: Any, state: Any, control: Any, **own: Any) -> None:
        now, last = (state.global_step, state.epoch), (state.max_steps, state.num_train_epochs)
        control.should_training_stop |= rounds.begin(own["model"], now, last, trainer.train_dataset)

    def on_step_end(_: Any, args: Any, state: Any, control: Any, **own: Any) -> None:
        control.should_training_stop |= rounds.advance((state.global_step, state.epoch))

    base = import_module(f"{home}_callback").TrainerCallback
    hooks = {"on_train_begin": on_train_begin, "on_step_end": on_step_end}
    trainer.add_callback(type("Federated", (base,), {**hooks, "__reduce__": Rounds.__reduce__})())
    trainer.train = partial(rounds.train_inside, trainer.train)


def _hook_lightning(trainer: Any, home: str, rounds: Rounds) -> None:
    def on_train_start(_: Any, trainer: Any, module: nn.Module) -> None:
        most = (trainer.max_steps, trainer.max_epochs)
        steps, epochs = (math.inf if each in (None, -1) else each for each in most)
        steps = min(steps, epochs * trainer.num_training_batches / trainer.accumulate_grad_batches)
        now, data = (trainer.global_step, trainer.current_epoch), trainer.train_dataloader
        own = getattr(data, "dataset", None)
        trainer.should_stop |= rounds.begin(module, now, (steps, epochs), own)

    def on_train_batch_end(_: Any, trainer: Any, *rest: Any) -> None:
        # called after each batch; steps and epochs grow with an optimizer step alone
        epochs = trainer.current_epoch + trainer.is_last_batch
        trainer.should_stop |= rounds.advance((trainer.global_step, epochs))

    base = import_module(home.removesuffix("trainer.trainer") + "callbacks").Callback
    hooks = {"on_train_start": on_train_start, "on_train_batch_end": on_train_batch_end}
    trainer.callbacks.append(
        type("Federated", (base,), {**hooks, "__reduce__": Rounds.__reduce__})()
    )
    trainer.fit = partial(rounds.train_inside, trainer.fit)


HOOKS: Mapping[str, Callable[[Any, str, Rounds], None]] = {
    "transformers.trainer": _hook_transformers,
    "lightning.pytorch.trainer.trainer": _hook_lightning,
    "pytorch_lightning.trainer.trainer": _hook_lightning,
}
"""The function that adds the callback, by the module of a `Trainer`."""


@check_types
def patch(
    trainer: Any,
    kit: Path | str,
    plan: Plan | Path | str,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    examples: int | None = None,
    evaluate: Judge | None = None,
    **options: Any,
) -> Session:
    """Has the `Trainer` of Hugging Face or Lightning train in a run, at `train()` or `fit(model)`.

    A callback loads each version into the trainer's model, lets the trainer take the steps or
    epochs of a round, and pushes the model. When the run ends the trainer stops, with the last
    version in its model. A trainer that ends first leaves the run.

    Args:
        trainer: a `transformers.Trainer`, or a `lightning.pytorch.Trainer`; each of several
            processes (`torchrun`) patches its own. What trains is sent, and buffers.
        kit: the start-up kit's folder.
        plan: the plan that this client agrees to. It compares what does not train between sites:
            `frozen = ["frozen.*"]`.
        steps: optimizer steps of a round; default: `local_steps` of the plan's `[training]`.
        epochs: in place of steps; default: `local_epochs`.
        examples: how many records it trains on; default: the length of the trainer's data.
        evaluate: judges the model on held-out records, if the plan asks for it; called in another
            thread while the trainer waits.
        options: those of `join`; `server` and `name` are required.

    Returns:
        the session, for its `finished` and `outcomes` after the training.

    Raises:
        ConfigError: it is no such trainer, or not exactly one thing says how long a round is.
        PlanRefused: the plan protects single records.

    Examples:
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=own)  # doctest: +SKIP
        >>> ps.patch(trainer, "kit", "plan.toml", server=server, name="me")  # doctest: +SKIP
        >>> ps.patch("my loop", "kit", "plan.toml", server="h:1", name="client-03")
        Traceback (most recent call last):
        secureps.errors.ConfigError: patch takes a Trainer of transformers or Lightning, not str...
    """
    homes = [each.__module__ for each in type(trainer).__mro__ if each.__module__ in HOOKS]
    if not homes:
        raise ConfigError(
            f"patch takes a Trainer of transformers or Lightning, not {type(trainer).__name__}: "
            "a loop of your own takes part by ps.join"
        )
    agreed = plan if isinstance(plan, Plan) else load_plan(plan)
    if isinstance(agreed.section.privacy, RecordPrivacySection):
        raise PlanRefused(
            "patch: record-level privacy clips the gradient of each record, and this trainer shows "
            'only their mean: take TorchTrainer, or a plan with unit = "client"'
        )
    rounds = Rounds(agreed, _round_length(agreed, steps, epochs), evaluate)
    rounds.examples = examples or 0
    judge = None if evaluate is None else rounds.evaluate
    own: dict[str, Any] = {"initial": rounds.initial, "kinds": rounds.kinds, "evaluate": judge}
    rounds.session = join(kit, agreed, examples=examples or 1, **own, **options)
    HOOKS[homes[0]](trainer, homes[0], rounds)
    return rounds.session
