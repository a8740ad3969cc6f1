"""Who is let in: by a token once, by a cookie, under this server's name alone."""

from __future__ import annotations

import pytest

from secureps.crypto.identity import ROLES
from secureps.dashboard.access import Access, Viewer

OPERATOR = Viewer("observer", "observer")
HOSTS = frozenset({"127.0.0.1:7000", "localhost:7000"})


@pytest.fixture
def access() -> Access:
    return Access(HOSTS, False, OPERATOR)


def test_a_token_lets_in_once_and_its_cookie_from_then_on(access: Access) -> None:
    token = access.token
    assert len(token) >= 43, "32 bytes of randomness"
    session = access.enter(token)
    assert session is not None
    assert session != token
    assert access.within(session) == OPERATOR
    assert access.enter(token) is None
    assert access.enter("") is None, "the token that is used up is no token either"


@pytest.mark.parametrize("token", ["", "x", "\udcff", "\u00e4" * 43, "a" * 100_000])
def test_other_tokens_and_cookies_are_nobodys(access: Access, token: str) -> None:
    assert access.enter(token) is None
    assert access.within(token) is None
    assert access.within(None) is None
    assert access.enter(access.token) is not None, "it is not used up by who guesses"


def test_two_dashboards_have_neither_token_nor_cookie_in_common() -> None:
    one, other = Access(HOSTS, False, OPERATOR), Access(HOSTS, False, OPERATOR)
    assert other.enter(one.token) is None
    assert other.within(one.enter(one.token)) is None


def test_where_certificates_count_no_token_does() -> None:
    access = Access(HOSTS, True, None)
    assert access.enter(access.token) is None


@pytest.mark.parametrize(
    ("headers", "hosts", "why"),
    [
        ({"host": "127.0.0.1:7000"}, 1, ""),
        ({"host": "LOCALHOST:7000"}, 1, ""),
        ({"host": "127.0.0.1:7000", "sec-fetch-site": "none"}, 1, ""),
        (
            {
                "host": "localhost:7000",
                "sec-fetch-site": "same-origin",
                "origin": "http://localhost:7000",
            },
            1,
            "",
        ),
        ({}, 0, "another host"),
        ({"host": "127.0.0.1:7000"}, 2, "another host"),
        ({"host": "127.0.0.1"}, 1, "another host"),
        ({"host": "127.0.0.1:7001"}, 1, "another host"),
        ({"host": "evil.example:7000"}, 1, "another host"),
        ({"host": "localhost:7000.evil.example"}, 1, "another host"),
        ({"host": "localhost:7000", "sec-fetch-site": "cross-site"}, 1, "another site"),
        ({"host": "localhost:7000", "sec-fetch-site": "same-site"}, 1, "another site"),
        ({"host": "localhost:7000", "origin": "http://evil.example"}, 1, "another site"),
        ({"host": "localhost:7000", "origin": "https://localhost:7000"}, 1, "another site"),
        ({"host": "localhost:7000", "origin": "null"}, 1, "another site"),
    ],
)
def test_what_no_page_of_this_server_sends_is_refused(
    access: Access, headers: dict[str, str], hosts: int, why: str
) -> None:
    said = access.objection(headers, [headers.get("host", "")] * hosts, "/")
    assert why in said
    assert bool(why) == bool(said)


def test_names_are_for_those_who_have_the_role_for_them() -> None:
    assert [role for role in ROLES if Viewer("x", role).names] == ["coordinator", "observer"]
