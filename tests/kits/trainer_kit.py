"""What every `Trainer` promises, checked on any of them."""

from collections.abc import Callable

import numpy as np

from secureps.client.trainer import FitConfig, Trainer
from tests.kits.federations import Tensors, same


def check_trainer(make: Callable[[], Trainer], config: FitConfig) -> None:
    """The contract of `Trainer`, for two that `make` makes of the same holder's data."""
    first, again = make(), make()
    start = first.parameters(5)
    assert same(start, first.parameters(5))
    assert same(start, again.parameters(5)), "parameters is no pure function of the seed"
    kept = _copy(start)

    result = first.fit(start, config)
    assert same(start, kept), "fit changed what it was given"
    assert set(result.parameters) == set(start)
    for name, array in result.parameters.items():
        assert (array.shape, array.dtype) == (start[name].shape, start[name].dtype)
        assert not any(np.shares_memory(array, other) for other in start.values())
    assert not same(result.parameters, start), "nothing was trained"
    assert result.examples > 0

    np.random.standard_normal(3)  # whatever else draws from the global generators
    repeated = again.fit(_copy(kept), config)
    assert same(repeated.parameters, result.parameters), "fit is not repeatable"
    assert same(first.fit(_copy(kept), config).parameters, result.parameters)

    told = first.evaluate(start)
    assert same(start, kept), "evaluate changed what it was given"
    assert first.evaluate(start) == told
    assert same(first.fit(_copy(kept), config).parameters, result.parameters)


def _copy(tensors: Tensors) -> Tensors:
    return {name: array.copy() for name, array in tensors.items()}
