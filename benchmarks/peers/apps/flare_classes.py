"""NVIDIA FLARE's filters and aggregator for HE without a federation: all parties in one process.

One client after another encrypts the whole model and the server takes it in, so that two of their
ciphertexts are in memory and not five. Writes `steps` as `tenseal_alone` does.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tenseal as ts
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_opt.he.intime_accumulate_model_aggregator import (
    HEInTimeAccumulateWeightedAggregator,
)
from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
from nvflare.fuel.utils import fobs

from benchmarks.peers.apps import vectors

NAME = "values"


def context() -> Any:
    """As `HEBuilder` provisions it."""
    kind, sizes = ts.SCHEME_TYPE.CKKS, [60, 40, 40]
    made = ts.context(
        kind, 8192, coeff_mod_bit_sizes=sizes, encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
    )
    made.generate_relin_keys()
    made.global_scale = 2**40
    return made


class _Round:
    """What one round spends, by side."""

    def __init__(self, number: int, keys: Any) -> None:
        self.spent = {"clients": 0.0, "server": 0.0, "up": 0.0, "down": 0.0}
        self._context = FLContext()
        self._context.set_prop(AppConstants.CURRENT_ROUND, number)
        self._context.set_peer_context(FLContext())
        self._number, self._keys = number, keys
        self._at = time.process_time()

    def charge(self, side: str) -> None:
        now = time.process_time()
        self.spent[side] += now - self._at
        self._at = now

    def play(self) -> Any:
        """The mean, as the last client decrypts it."""
        adder = HEInTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS)
        adder.handle_event(EventType.START_RUN, self._context)
        for client in range(vectors.clients()):
            sent = self._encrypted(client)
            self.spent["up"] += len(sent)
            self.charge("clients")
            came = fobs.loads(sent)
            came.set_peer_props({ReservedKey.IDENTITY_NAME: f"site-{client + 1}"})
            assert adder.accept(came, self._context)
            del sent, came
            self.charge("server")
        summed = fobs.dumps(adder.aggregate(self._context))
        self.charge("server")
        for _ in range(vectors.clients()):
            self.spent["down"] += len(summed)
            mean = self._decrypted(summed)
            self.charge("clients")
        return mean

    def _encrypted(self, client: int) -> bytes:
        filtering = HEModelEncryptor()
        filtering.tenseal_context, filtering.encrypt_layers = self._keys, [True]
        update = {NAME: vectors.update(client)}
        own = DXO(DataKind.WEIGHTS, update, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
        made = filtering.process_dxo(own, Shareable(), self._context).to_shareable()
        made.add_cookie(AppConstants.CONTRIBUTION_ROUND, self._number)
        return bytes(fobs.dumps(made))

    def _decrypted(self, summed: bytes) -> Any:
        filtering = HEModelDecryptor()
        filtering.tenseal_context = self._keys
        came = fobs.loads(summed)
        return filtering.process_dxo(from_shareable(came), came, self._context).data[NAME]


def main() -> None:
    flare_decomposers.register()
    keys = context()
    steps = []
    for number in range(vectors.rounds()):
        played = _Round(number, keys)
        mean = played.play()
        vectors.mark()
        steps.append(played.spent)
    vectors.tell(steps)
    vectors.conclude(np.asarray(mean))


if __name__ == "__main__":
    main()
