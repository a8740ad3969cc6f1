"""Which cipher a name stands for. Servers build adders here and never import tenseal.

What must not live here: arithmetic. `bfv_seal` is imported only when a sealer or an opener
is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from secureps.crypto.bfv import BfvAdder, BfvPublicKey, BfvSecretKey, check_parameters
from secureps.crypto.cipher import Cipher, CipherParameters, Opener, Opening, Sealer
from secureps.crypto.plain import PlainCipher
from secureps.crypto.secret import Secret
from secureps.errors import KitError, PlanRefused


class BfvCipher(Cipher):
    """The three sides of `bfv`.

    Raises:
        PlanRefused: the sums of these parameters do not fit the plain modulus.
    """

    opening = Opening.HOLDER

    def __init__(self, parameters: CipherParameters) -> None:
        check_parameters(parameters)
        self._parameters = parameters

    @property
    def parameters(self) -> CipherParameters:
        return self._parameters

    def adder(self) -> BfvAdder:
        return BfvAdder(self._parameters)

    def sealer(self, public_key: bytes | None) -> Sealer:
        if public_key is None:
            raise KitError("bfv seals under the holder's public key, and the kit holds none")
        key = BfvPublicKey.from_bytes(public_key)
        from secureps.crypto.bfv_seal import BfvSealer

        return BfvSealer(self._parameters, key)

    def opener(self, secret_key: Secret | None) -> Opener:
        if not isinstance(secret_key, BfvSecretKey):
            raise KitError("bfv opens with the holder's secret key, and this party holds none")
        from secureps.crypto.bfv_seal import BfvOpener

        return BfvOpener(self._parameters, secret_key)


CIPHERS: dict[str, Callable[[CipherParameters], Cipher]] = {"bfv": BfvCipher, "plain": PlainCipher}
"""Every cipher by the name that a plan gives it."""


def cipher(parameters: CipherParameters) -> Cipher:
    """The cipher of these parameters.

    Raises:
        PlanRefused: an unknown name, or parameters that this cipher cannot hold.
    """
    build = CIPHERS.get(parameters.name)
    if build is None:
        known = ", ".join(sorted(CIPHERS))
        raise PlanRefused(f"there is no cipher {parameters.name!r}; known are {known}")
    return build(parameters)
