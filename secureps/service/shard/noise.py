"""The aggregator's own noise: one contribution more to a sum, before anybody opens it.

It protects clients against everyone who sees the opened sum or the model, and against
nobody who knows this shard's seed. What must not live here: how much noise
(`privacy.client_level`), and sums (`service.shard.worker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secureps.crypto.cipher import Opening
from secureps.crypto.sampling import Seed
from secureps.crypto.suite import cipher
from secureps.errors import InternalError, KitError
from secureps.messages.encoding import canonical
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan


@dataclass(frozen=True)
class ShardNoise:
    """Draws and seals it, under the key that clients seal under.

    Args:
        seed: the shard's own; a sum that is made again gets the same noise, two cohorts never.
        holder_keys: public cipher keys from the kit.
    """

    seed: Seed
    holder_keys: Mapping[str, bytes]

    def sealed(self, plan: Plan, layout: GroupLayout, cohort: Cohort, block: int) -> bytes:
        """A block of noise, as a client of weight 1 would send it.

        The weight's slots are empty: noise is no member that counts.

        Raises:
            KitError: the cipher needs a holder's key, and the kit has none or several.
        """
        mechanism = plan.mechanism(cohort.group, layout.size)
        if mechanism is None:
            raise InternalError("noise is added where the plan protects whole clients, only there")
        # Bound to the members: a number that is used again, by whatever mistake, is not enough.
        stream = self.seed.derive("aggregator-noise", canonical(cohort), block)
        slots = np.zeros(layout.slots(block), dtype=np.int64)
        values = slots[layout.weight_slots :]
        values[:] = mechanism.noise(values.size, stream.words)
        kind = cipher(plan.cipher_parameters)
        key = None
        if kind.opening is Opening.HOLDER:
            if len(self.holder_keys) != 1:
                raise KitError("noise on encrypted sums needs one holder's key in the shard's kit")
            (key,) = self.holder_keys.values()
        return kind.noise_sealer(key).seal(block, slots)
