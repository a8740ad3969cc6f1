"""Which announcements of a holder's envelope key count, and that no older key comes back."""

import dataclasses
from typing import Any

import pytest

from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty, Unsigned, WrongRun
from secureps.messages.envelope_keys import MOST_KEYS, EnvelopeKeyAnnounced, announcement_bytes
from secureps.roles.roster_follower import AnnouncedKeys

CA, RUN = Identity.generate(), bytes(32)
PARTIES = {name: Identity.generate() for name in ("keys-0", "keys-1", "north", "blind")}
ROLES: dict[str, Any] = {"north": "client"}
ROSTER = sign_roster(
    CA,
    [
        certify(
            CA,
            name,
            ROLES.get(name, "holder"),
            own.public.key,
            bytes(32) if name.startswith("keys") else b"",
        )
        for name, own in PARTIES.items()
    ],
)
KEYS = [EnvelopeKey.from_os().public.key for _ in range(3)]


def told(number: int, by: str = "keys-0", **changes: Any) -> EnvelopeKeyAnnounced:
    """A holder's announcement with these changes; `by` signs it."""
    bare = EnvelopeKeyAnnounced(RUN, "keys-0", number, KEYS[number % 3], 0)
    bare = dataclasses.replace(bare, **changes)
    signature = PARTIES[by].sign(*announcement_bytes(bare))
    return dataclasses.replace(bare, signature=signature)


def known(*announced: EnvelopeKeyAnnounced) -> AnnouncedKeys:
    keys = AnnouncedKeys()
    for each in announced:
        assert keys.is_news(each, RUN, ROSTER)
        keys.apply(each)
    return keys


def test_the_newest_counts_and_the_kits_is_number_0() -> None:
    keys = known()
    assert (keys.number("keys-0"), keys.least("keys-0")) == (0, 0)
    before = keys.newest
    keys = known(told(1), told(2, least=1), told(7, least=7))
    assert (keys.number("keys-0"), keys.least("keys-0")) == (7, 7)
    assert keys.newest["keys-0"].key == KEYS[1]
    assert (keys.number("keys-1"), before) == (0, {})


def test_the_same_again_is_no_news_and_what_is_erased_is() -> None:
    keys = known(told(2))
    assert not keys.is_news(told(2), RUN, ROSTER)
    assert keys.is_news(told(2, least=1), RUN, ROSTER)
    keys.apply(told(2, least=1))
    assert (keys.number("keys-0"), keys.least("keys-0")) == (2, 1)


WRONG: dict[str, tuple[EnvelopeKeyAnnounced, type[SecurepsError], str]] = {
    "older": (told(1), Refused, "older than its key 2"),
    "older, and later": (told(1, least=1), Refused, "older than its key 2"),
    "less erased": (told(2, least=0), Refused, "older than its key 2"),
    "another key, same number": (told(2, key=KEYS[0], least=2), Refused, "is another than was"),
    "another holder's signature": (told(3, by="keys-1"), Unsigned, "signature"),
    "a client's": (told(3, by="north", holder="north"), UnknownParty, "no key holder"),
    "a bfv holder's": (told(3, by="blind", holder="blind"), UnknownParty, "no key holder"),
    "nobody's": (told(3, holder="nobody"), UnknownParty, "nobody named"),
    "unsigned": (dataclasses.replace(told(3), signature=b""), Unsigned, "signature"),
    "edited": (dataclasses.replace(told(3), key=KEYS[1]), Unsigned, "signature"),
    "another run's": (told(3, run=bytes([1]) * 32), WrongRun, "another run"),
    "number 0": (told(0, by="keys-1", holder="keys-1"), Malformed, "announces key 0"),
    "negative": (told(3, least=-1), Malformed, "announces key 3"),
    "too great a number": (told(MOST_KEYS, least=1), Malformed, "announces key"),
    "erased itself": (told(3, least=4), Malformed, "announces key 3, least 4"),
    "no key": (told(3, key=b"x"), Malformed, "1216 bytes"),
    "low order": (told(3, key=KEYS[0][:1184] + bytes(32)), Malformed, "low order"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_announcements_that_are_none(wrong: str) -> None:
    keys, (announced, error, text) = known(told(2, least=1)), WRONG[wrong]
    with pytest.raises(error, match=text):
        keys.is_news(announced, RUN, ROSTER)
    assert keys.number("keys-0") == 2
