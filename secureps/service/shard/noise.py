"""Draws the aggregator's own noise, keeps it sealed, and gives it to a sum and to other shards.

It protects clients against everyone who sees the opened sum or the model, but not against
anybody who knows this shard's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from secureps.crypto.cipher import Opening
from secureps.crypto.sampling import Seed
from secureps.errors import InternalError, KitError, Malformed
from secureps.messages.encoding import DIGEST_BYTES, canonical, payload_digest
from secureps.messages.submission import Cohort, cohort_digest
from secureps.roles.shard.keys import cohort_under, noise_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import NoiseDamaged
from secureps.service.parallel import in_order
from secureps.store.spool import Spool


@dataclass(frozen=True)
class ShardNoise:
    """The noise of cohorts on the disk of one shard, until their versions are made.

    It is there before a sum, and no record has its digest: so the digest stands behind it, in its
    file and on its way to another shard. It is sealed under the key that clients seal under, of the
    kit's `holder_keys`. The shard's own `seed` gives a repeated sum the same noise, and two cohorts
    never.
    """

    name: str
    state: ShardState
    spool: Spool
    seed: Seed
    holder_keys: Mapping[str, bytes]

    def draw(self, cohort: Cohort, blocks: Sequence[int], threads: int) -> None:
        """Draws and keeps the missing noise of a cohort."""
        about = cohort_digest(self.state.run, cohort)

        def drawn(block: int) -> None:
            key = noise_key(cohort.group, cohort.number, block, about)
            if self.served(key) is None:
                noise = self.seal(cohort, block)
                self.spool.put(key, noise, payload_digest(noise))

        for _ in in_order(threads, drawn, blocks):
            pass

    def seal(self, cohort: Cohort, block: int) -> bytes:
        """Draws and seals a block of noise, as a client of weight 1 would send it.

        KitError if the cipher needs a holder's key, and the kit has none or several.
        """
        plan, layout = self.state.pinned.plan, self.state.pinned.layout.group(cohort.group)
        mechanism = plan.mechanism(cohort.group, layout.sent)
        if mechanism is None:
            raise InternalError("noise is added where the plan protects whole clients, only there")
        # Bound to the members too: if a cohort's number were used twice, by whatever mistake,
        # the same noise would cancel in the difference of two sums. It is that of every cipher.
        stream = self.seed.derive(
            "aggregator-noise", canonical(replace(cohort, committee=None)), block
        )
        values = mechanism.noise(layout.slots(block), stream.words)
        kind = plan.cipher_of(layout)
        key = None
        if kind.opening is Opening.HOLDER:
            if len(self.holder_keys) != 1:
                raise KitError("noise on encrypted sums needs one holder's key in the shard's kit")
            (key,) = self.holder_keys.values()
        return kind.noise_sealer(key).seal(block, values)

    def of(self, cohort: Cohort) -> Callable[[int], bytes | memoryview | None]:
        """By block, the noise that is added to a cohort's sum; None where the plan has none.

        It raises NoiseDamaged if it is gone: the block's other holders have what was drawn first.
        """
        if not self.state.pinned.plan.noisy_shards:
            return lambda block: None
        return partial(self._of, cohort, cohort_digest(self.state.run, cohort))

    def _of(self, cohort: Cohort, about: bytes, block: int) -> memoryview:
        noise = self.served(noise_key(cohort.group, cohort.number, block, about))
        if noise is None:
            what = f"the noise of block {block} of cohort {cohort.number} of {cohort.group}"
            raise NoiseDamaged(f"{self.name}: {what} is gone")
        return noise[:-DIGEST_BYTES]

    def again(self, cohort: Cohort, block: int) -> bytes | memoryview | None:
        """The noise in a sum on record, with whose digest the new sum is compared.

        If it is lost, noise in the clear is drawn again, for it is the same, unless another shard
        may have drawn it. Encrypted it would be another ciphertext: NoiseDamaged.
        """
        try:
            return self.of(cohort)(block)
        except NoiseDamaged:
            if self.state.opened_by_holder or self.state.others(cohort.group, block):
                raise
            return self.seal(cohort, block)

    def served(self, key: str) -> memoryview | None:
        return found_whole(self.spool, key)

    def take(self, key: str, payload: bytes | memoryview) -> None:
        """Keeps what another shard served; Malformed if it is no noise with its digest."""
        if not _whole(memoryview(payload)):
            raise Malformed(f"{self.name}: noise came without its digest, or with another")
        if self.served(key) is None:  # what came first may be in a sum already
            self.spool.put(key, payload)

    def forget(self, group: str = "") -> None:
        """Deletes sums and noise of cohorts that are over: of all groups, or of one."""
        names: dict[tuple[str, int], str] = {}
        for key in self.spool.keys(f"sum/{group}/" if group else "sum/"):
            at, about = cohort_under(key)
            made = self.state.summed(*at)
            if made is not None and about is not None and at not in names:
                names[at] = cohort_digest(self.state.run, made.cohort).hex()
            another = about is not None and about != names.get(at, about)
            if another or (made is None and self.state.over(*at)):
                self.spool.delete(key)


def found_whole(spool: Spool, key: str) -> memoryview | None:
    """What is kept under a key with its digest behind it; None if it is gone, or damaged."""
    try:
        kept = memoryview(spool.get(key))
    except (KeyError, OSError):
        return None
    return kept if _whole(kept) else None


def _whole(kept: memoryview) -> bool:
    noise, digest = kept[:-DIGEST_BYTES], kept[-DIGEST_BYTES:]
    return payload_digest(noise) == digest
