"""Draws the aggregator's own noise, and adds it to a sum before anybody opens the sum.

It protects clients against everyone who sees the opened sum or the model, but not against
anybody who knows this shard's seed. What must not live here: how much noise
(`privacy.client_level`), and sums (`service.shard.worker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from secureps.crypto.cipher import Opening
from secureps.crypto.sampling import Seed
from secureps.errors import InternalError, KitError
from secureps.messages.encoding import canonical
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan


@dataclass(frozen=True)
class ShardNoise:
    """Draws noise, and seals it under the key that clients seal under.

    Args:
        seed: the shard's own; a sum that is made again gets the same noise, two cohorts never.
        holder_keys: public cipher keys from the kit.
    """

    seed: Seed
    holder_keys: Mapping[str, bytes]

    def sealed(self, plan: Plan, layout: GroupLayout, cohort: Cohort, block: int) -> bytes:
        """Seals a block of noise, as a client of weight 1 would send it.

        Its slots for the weight are zero: noise does not count as a member.

        Raises:
            KitError: the cipher needs a holder's key, and the kit has none or several.
        """
        mechanism = plan.mechanism(cohort.group, layout.sent)
        if mechanism is None:
            raise InternalError("noise is added where the plan protects whole clients, only there")
        # Bound to the members too: if a cohort's number were used twice, by whatever mistake,
        # the same noise would cancel in the difference of two sums. It is that of every cipher.
        stream = self.seed.derive(
            "aggregator-noise", canonical(replace(cohort, committee=None)), block
        )
        slots = np.zeros(layout.slots(block), dtype=np.int64)
        values = slots[layout.weight_slots :]
        values[:] = mechanism.noise(values.size, stream.words)
        kind = plan.cipher_of(layout)
        key = None
        if kind.opening is Opening.HOLDER:
            if len(self.holder_keys) != 1:
                raise KitError("noise on encrypted sums needs one holder's key in the shard's kit")
            (key,) = self.holder_keys.values()
        return kind.noise_sealer(key).seal(block, slots)
