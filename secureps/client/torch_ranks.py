"""Several processes that train one client's model together: the ranks of `torchrun`.

Rank 0 is the client. It tells the others what to train from. Each rank takes its share of every
batch, on its own GPU, and gradients are averaged (DistributedDataParallel), so that all have the
same model. If the model has a method `shards`, each rank holds a share of it (FSDP), and rank 0
gathers the shares on its host, one part at a time. All ranks have the client's records and code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import tee
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as distributed_c10d
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from secureps.client.torch_sgd import LocalSgd, Task, call_model, demand_finite
from secureps.client.trainer import Array, RecordPrivacy
from secureps.errors import NotFinite, PlanRefused, ScriptFailed
from secureps.tracebacks import describe_error

DISMISSED = "the client that this process trained with is done"

AGAIN = "they no longer train together: start all of this client's processes again"

FAILED = "secureps/failed"
"""The key in the group's store for which rank failed first, and why."""


@dataclass(frozen=True)
class Order:
    """One training: the key that its randomness derives from, and its settings.

    `EVALUATION`, without steps, is an evaluation by all ranks that hold shares of a model.
    """

    key: bytes
    local: LocalSgd
    steps: int


def is_group() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_client() -> bool:
    return dist.get_rank() == 0


def send_order(given: Order | None, parameters: Mapping[str, Array]) -> None:
    """Tells the other ranks what to train from; None dismisses them."""
    head = b"null"
    if given is not None:
        tensors = [(name, str(each.dtype), each.shape) for name, each in parameters.items()]
        local = given.local.model_dump(exclude_unset=True)
        own = {"key": given.key.hex(), "local": local, "steps": given.steps}
        head = json.dumps(own | {"tensors": tensors}).encode()
    _send(np.array([len(head)], np.int64))
    _send(np.frombuffer(head, np.uint8))
    for each in parameters.values():
        _send(np.ascontiguousarray(each).reshape(-1).view(np.uint8))


def receive_order() -> tuple[dict[str, Array], Order] | None:
    """Waits for the next order of rank 0, and its model; None once the client is done."""
    (length,) = _receive(1, np.int64)
    told = json.loads(_receive(int(length), np.uint8).tobytes())
    if told is None:
        return None
    parameters = {}
    for name, dtype, shape in told["tensors"]:
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        parameters[name] = _receive(count, np.uint8).view(dtype).reshape(shape)
    given = Order(bytes.fromhex(told["key"]), LocalSgd(**told["local"]), told["steps"])
    return parameters, given


EVALUATION = Order(b"", LocalSgd(), 0)


@contextmanager
def failing_together() -> Iterator[None]:
    """Ends the group if this rank fails, so that ranks that wait for it in a collective fail too.

    With gloo they fail at once, with NCCL at the latest by its own watchdog. NotFinite does not end
    the group, because all ranks raise it. Raises ScriptFailed if another rank failed first.
    """
    if not is_group():
        yield
        return
    rank, store = dist.get_rank(), distributed_c10d._get_default_store()
    try:
        yield
    except NotFinite:
        raise
    except BaseException as error:
        own = f"rank {rank} of this client's processes failed: {describe_error(error)}"
        try:
            first = store.compare_set(FAILED, "", own).decode()
        except RuntimeError:  # the rank that kept the store is gone, too
            first = own
        distributed_c10d._abort_process_group()
        if first == own:
            raise
        raise ScriptFailed(f"{first}; {AGAIN}") from error


class Ranks:
    """The other ranks of this client."""

    def __init__(self) -> None:
        self._hear = True
        self._failed = ""

    def demand_whole(self) -> None:
        """Raises ScriptFailed once a rank has failed, because the others have another model."""
        if self._failed:
            raise ScriptFailed(self._failed)

    @contextmanager
    def together(
        self, given: Order, parameters: Mapping[str, Array], privacy: RecordPrivacy | None
    ) -> Iterator[None]:
        """Orders all ranks to do what this context does.

        Raises PlanRefused under privacy, where each rank would clip and noise its own share of a
        step, and ScriptFailed if a rank failed, now or before.
        """
        self.demand_whole()
        if is_group():
            if privacy is not None:
                raise PlanRefused(
                    "record privacy: DP-SGD is taken by one process; start this client without "
                    "torchrun"
                )
            self._hear = False
        try:
            with failing_together():
                if is_group():
                    send_order(given, parameters)
                yield
        except NotFinite:
            self._hear = True
            raise
        except BaseException as error:
            if not self._hear:
                self._failed = f"after {describe_error(error)}: {AGAIN}"
            raise
        self._hear = True

    def dismiss(self) -> None:
        """Ends the other ranks, unless they are in the middle of a training that this rank left.

        Those fail once this process has ended.
        """
        if is_group() and self._hear:
            send_order(None, {})


def descend(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Task,
    batches: Iterator[NDArray[np.int64]],
    rates: Any = None,
) -> float:
    """Trains over batches of record numbers; returns the mean loss.

    Several ranks divide each batch among them, and each fetches its own share alone.
    """
    rank, world, losses = 0, 1, list[float]()
    together = module
    if is_group():
        rank, world = dist.get_rank(), dist.get_world_size()
        together = module if shards_of(module) is not None else DistributedDataParallel(module)
    whole, divided = tee(batches)
    shares = (each[rank::world] if len(each) > rank else each[:1] for each in divided)
    for step, (index, (sample, own)) in enumerate(zip(whole, task.draw(shares), strict=True), 1):
        x, y = sample.batch(own)
        optimizer.zero_grad()
        # gradients are averaged over ranks; with this weight that is the mean over the batch
        weight = world * len(index[rank::world]) / len(index)
        loss = task.loss(call_model(together, x), y) * weight
        torch.autograd.backward(loss)
        mean: Tensor = loss.detach() / world
        if world > 1:
            dist.all_reduce(mean)
        losses.append(float(demand_finite(mean, step, sample, index)))
        optimizer.step()
        if rates is not None:
            rates.step()
    return sum(losses) / len(losses)


def shards_of(module: nn.Module) -> Callable[[], Iterable[nn.Module]] | None:
    found: Callable[[], Iterable[nn.Module]] | None = getattr(module, "shards", None)
    return found if callable(found) else None


def place(module: nn.Module, device: torch.device) -> nn.Module:
    """Puts a model on a rank's device; if it has `shards`, only this rank's share."""
    parts = shards_of(module) if is_group() else None
    if parts is None:
        return module.to(device)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in parts():
        fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def state_of(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a model's tensors; shares are gathered one by one on the host of rank 0.

    All ranks that hold shares must call it; ranks other than 0 get nothing.
    """
    if not is_group() or shards_of(module) is None:
        return state
    from torch.distributed.tensor import DTensor

    found = dict[str, Tensor]()
    for name, each in state.items():
        whole = each.full_tensor() if isinstance(each, DTensor) else each
        if is_client():
            found[name] = whole.cpu()
    return found


def _send(array: NDArray[np.int64] | NDArray[np.uint8]) -> None:
    if array.size:
        dist.broadcast(torch.from_numpy(array.copy()), 0)


def _receive(count: int, dtype: type[np.generic]) -> Array:
    made = np.empty(count, dtype)
    if count:
        dist.broadcast(torch.from_numpy(made), 0)
    return made
