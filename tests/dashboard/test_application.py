"""Every route, for viewers and for strangers: a wrong request changes nothing."""

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.identity import ROLES, Identity, Role
from secureps.dashboard.access import Access, Acts, RunActs, Viewer
from secureps.dashboard.application import HEADERS, OPEN, application, pages
from secureps.dashboard.observation import Facts, Observation
from secureps.dashboard.sources import Board
from secureps.errors import ConfigError, OperatorError
from secureps.service import web
from secureps.service.web import LONGEST, Port
from secureps.store.act_lines import ActLine
from tests.kits.dashboards import CLIENTS, STATUS, Browser, without
from tests.kits.host_requests import OTHERS, answer
from tests.kits.nursery import ROOT

SITE = ROOT / "secureps" / "dashboard" / "site"
FILES = sorted(path.name for path in SITE.iterdir())
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
OWN = {name: text for name, text in HEADERS.items() if name != "content-type"}
PATHS = ("/", *(f"/{name}" for name in FILES if name != "index.html"))
OPERATOR = Viewer("observer", "observer")


def full() -> Board:
    made, looks = Board(Facts(asks=True)), Observation()
    made.put(lambda facts: replace(facts, seen=looks.take(STATUS, 1.0)))
    return made


@contextmanager
def opened(board: Board, acts: Acts | None = None, viewer: Viewer = OPERATOR) -> Iterator[Browser]:
    with Port("dashboard", "127.0.0.1:0", OPEN, None) as line:
        port = line.server_port
        access = Access(frozenset({f"127.0.0.1:{port}"}), False, viewer)
        line.set_app(application(board, access, lambda name: None, f"secureps-{port}", acts))
        with line.serving():
            yield Browser(f"http://127.0.0.1:{port}/enter?token={access.token}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened(full()) as made:
        assert made.enter() == 303
        yield made


def stranger(browser: Browser) -> Browser:
    return Browser(browser.address.geturl())


def test_the_token_is_exchanged_once_for_a_cookie_that_no_script_reads() -> None:
    with opened(full()) as browser:
        entrance = f"/enter?{browser.address.query}"
        with opened(full()) as other:
            guesses = (other.address.query, "token=x", f"token={'a' * 43}", "token=%C3%A4")
            assert {browser.get(f"/enter?{guess}")[0] for guess in guesses} == {401}
        status, headers, _ = browser.get(entrance)
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        form = r"secureps-\d+=[\w-]{43}; HttpOnly; Path=/; SameSite=strict"
        assert re.fullmatch(form, cookie), cookie
        assert browser.address.query.removeprefix("token=") not in cookie
        assert browser.get(entrance)[0] == 401, "it is used up"
        browser.cookie = cookie.partition(";")[0]
        assert browser.get("/")[0] == 200
        assert browser.get("/", Sec_Fetch_Site="none")[0] == 200, "it is typed in"
        assert browser.get(entrance)[0] == 303, "whoever is in may come again"


@pytest.mark.parametrize("path", [*PATHS, "/news", "/enter", "/enter?token=", "/enter?token=%ff"])
def test_without_the_cookie_nothing_is_shown(browser: Browser, path: str) -> None:
    name = browser.cookie.partition("=")[0]
    for cookie in ("", f"{name}=", f"{name}=x", f'other=1; {name}="\x80\xff"', "a" * 4000):
        other = stranger(browser)
        other.cookie = cookie
        status, headers, text = other.get(path)
        assert status == 401
        assert "token" in text
        assert not any(client in text for client in CLIENTS)
        assert "set-cookie" not in headers


@pytest.mark.parametrize("path", PATHS)
def test_the_page_is_whole_and_says_what_a_browser_may_do_with_it(
    browser: Browser, path: str
) -> None:
    status, headers, text = browser.get(path)
    name = path[1:] or "index.html"
    assert status == 200
    assert text == (SITE / name).read_text()
    assert headers["content-type"].startswith(KINDS[Path(name).suffix])
    assert {name: headers[name] for name in OWN} == OWN


def test_the_policy_allows_files_of_this_server_alone() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for name in FILES:
        text = (SITE / name).read_text()
        found = re.findall(r"https?://[^\s\"']+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, "nothing is loaded from elsewhere"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"\son\w+=|style=|<script>|<style", text), "nothing is inline"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONE"])
@pytest.mark.parametrize("path", ["/", "/enter", "/news", "/main.js"])
def test_nothing_can_be_sent(browser: Browser, method: str, path: str) -> None:
    status, headers, _ = browser.get(path, method)
    assert status == 405
    assert {name: headers[name] for name in OWN} == OWN


@pytest.mark.parametrize("path", ["/../access.py", "/%2e%2e/access.py", "/site/main.js", "/x"])
def test_no_other_file_is_served(browser: Browser, path: str) -> None:
    assert browser.get(path)[0] == 404


@pytest.mark.parametrize("path", ["/", "/enter?token=x", "/news", "/main.js", "/x"])
@pytest.mark.parametrize("request_text", OTHERS.values(), ids=list(OTHERS))
def test_under_another_name_there_is_nobody(browser: Browser, request_text: str, path: str) -> None:
    with_cookie = request_text.replace("\r\n\r\n", f"\r\nCookie: {browser.cookie}\r\n\r\n")
    status, text = answer(browser.address.port or 0, with_cookie, path)
    assert status == 403
    assert text.endswith("and the request names another host\n")
    assert f"this server answers to 127.0.0.1:{browser.address.port}" in text


@pytest.mark.parametrize("path", ["/", "/news", "/main.js", f"/enter?token={'a' * 20_000}"])
def test_what_is_longer_than_a_page_asks_is_refused(browser: Browser, path: str) -> None:
    status, headers, _ = browser.get(path, A="b" * 20_000)
    assert status == 431
    assert {name: headers[name] for name in OWN} == OWN


@pytest.mark.parametrize("path", ["/", "/news", "/main.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_another_sites_page_gets_nothing(
    browser: Browser, path: str, headers: dict[str, str]
) -> None:
    status, _, text = browser.get(path, **headers)
    assert (status, text) == (403, "another site's page asks\n")


def test_a_link_with_the_token_may_be_anywhere() -> None:
    """For example in a terminal that is a web page."""
    with opened(full()) as browser:
        entrance = f"/enter?{browser.address.query}"
        assert browser.get(entrance, "HEAD")[0] == 401, "of who looks what is behind it"
        assert browser.get(entrance, Sec_Fetch_Site="cross-site")[0] == 303


class Noted(RunActs):
    """Acts on a run that are only noted."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(None, "coordinator", Identity.generate(), lambda act: None)
        self.offered = ("end",)

    @property
    def done(self) -> tuple[ActLine, ...]:
        return tuple(ActLine(n, "", "", each, "") for n, each in enumerate(self.asked, 1))

    def do(self, what: str, of: Mapping[str, str]) -> str:
        if what != "end":
            raise ConfigError(f"{what} is nothing that can be done here")
        self.asked.append(what)
        return f"done {dict(of)}" if of else "done"


@pytest.mark.parametrize("role", ROLES)
def test_only_the_page_of_who_may_know_names_acts(role: Role) -> None:
    acts, board, viewer = Noted(), full(), Viewer("who", role)
    with opened(board, acts, viewer) as browser:
        own = f"http://{browser.host}"
        assert browser.get("/act/end", "POST", Origin=own)[0] == 401
        browser.enter()
        assert browser.get("/act/end")[0] == 404
        assert browser.get("/act/end", "POST")[0] == 403, "every page of a browser says its origin"
        for other in ("http://evil.example", "null", own.replace("http", "https")):
            assert browser.get("/act/end", "POST", Origin=other)[0] == 403
        cross = browser.get("/act/end", "POST", Origin=own, Sec_Fetch_Site="same-site")
        assert cross[0] == 403
        assert acts.asked == []
        status, _, text = browser.get("/act/end", "POST", Origin=own)
        if role not in ("observer", "coordinator"):
            assert (status, acts.asked) == (403, [])
            return
        assert (status, text) == (200, "done")
        assert acts.asked == ["end"]
        assert browser.get("/act/pause", "POST", Origin=own)[0] == 409
        assert json.loads(pages(board.facts, viewer))["acts"]["done"][0]["what"] == "end"
        text = browser.get("/act/end?client=client-00&reason=b%26c", "POST", Origin=own)[2]
        assert text == "done {'client': 'client-00', 'reason': 'b&c'}"
        assert browser.get(f"/act/end?reason={'x' * 20_000}", "POST", Origin=own)[0] == 431


def told(board: Board, role: Role) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pages(board.facts, Viewer("client-00", role)))
    return found


def test_an_observer_sees_names_and_others_see_none() -> None:
    board = full()
    board.put(lambda facts: replace(facts, troubles={"ledgers": "client-01.db is damaged"}))
    for role in ROLES:
        whole = told(board, role)
        if role in ("observer", "coordinator"):
            assert whole.keys() == {"operator", "officer", "troubles"}
            assert all(name in json.dumps(whole) for name in CLIENTS)
        else:
            assert whole.keys() == {"operator", "troubles"}
            assert not any(name in json.dumps(whole) for name in CLIENTS)


def test_news_are_what_the_board_has_now() -> None:
    board = full()
    with opened(board) as browser:
        browser.enter()
        named = [each["name"] for each in browser.news()["operator"]["blocking"]]
        assert named == [CLIENTS[2]]
        gone = Observation().take(without(STATUS, "shard-1"), 2.0)
        board.put(lambda facts: replace(facts, seen=gone))
        named = [each["name"] for each in browser.news()["operator"]["blocking"]]
        assert named == ["shard-1", CLIENTS[2]]


def test_a_client_sees_its_own_page_and_nobody_elses() -> None:
    facts = Facts(owner="client-00", own={"name": "client-00"}, troubles={"ledger": "is damaged"})
    own = json.loads(pages(facts, Viewer("client-00", "client")))
    assert own["holder"] == {"name": "client-00"}
    assert own["troubles"] == {"ledger": "is damaged"}
    for other in (Viewer("client-01", "client"), Viewer("client-00", "holder")):
        assert json.loads(pages(facts, other)) == {"troubles": {}}


LIMIT = 20.0
"""Seconds after which an event counts as missing."""


def app(asked: dict[str, Any], begin: Callable[..., object]) -> Iterator[bytes]:
    if asked["PATH_INFO"] == "/fails":
        raise RuntimeError("a secret in an error")
    begin("200 OK", [])
    yield b"here"
    while asked["PATH_INFO"] == "/stays":
        yield b"news"
        time.sleep(0.01)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(web, "PATIENCE", 0.3)
    with Port("dashboard", "127.0.0.1:0", OPEN, None) as line:
        line.set_app(app)
        with line.serving():
            yield line.server_port


def asked(port: int, text: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        with suppress(ConnectionResetError, BrokenPipeError):
            line.sendall(text)
            return line.recv(1 << 16)
        return b""


def ends(line: socket.socket) -> bool:
    line.settimeout(LIMIT)
    with suppress(ConnectionResetError):
        while line.recv(1 << 16):
            pass
    return True


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_stays_half_is_let_go(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        line.sendall(said)
        assert ends(line)
        assert asked(port).startswith(b"HTTP/1.0 200 ")


@pytest.mark.slow
def test_a_request_that_comes_drop_by_drop_has_no_longer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as line:
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(0.05):
                    line.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        assert ends(line)
        assert time.monotonic() - began < LIMIT / 2
        over.set()
        dripping.join()


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: " + b"b" * 99 * LONGEST + b"\r\n\r\n",
        b"GET /" + b"a" * 99 * LONGEST + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 4096,
    ],
)
def test_what_is_no_request_or_too_long_is_refused(port: int, said: bytes) -> None:
    answer = asked(port, said)
    assert not answer.startswith(b"HTTP/1.0 2")
    assert b"server:" not in answer
    assert asked(port).startswith(b"HTTP/1.0 200 ")


def test_an_answer_goes_on_however_many_strangers_come(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "PATIENCE", 10 * LIMIT)
    with ExitStack() as stack:

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))

        long = connected()
        long.sendall(b"GET /stays HTTP/1.1\r\nHost: x\r\n\r\n")
        assert long.recv(1 << 16)
        strangers = [connected() for _ in range(OPEN + 4)]
        assert ends(strangers[0])
        assert asked(port).startswith(b"HTTP/1.0 200 ")
        for _ in range(5):
            assert b"news" in long.recv(1 << 16)


def test_an_error_tells_nobody_what_it_was(
    port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = asked(port, b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 500 ")
    assert b"secret" not in answer
    assert "secret" not in caplog.text
    assert capfd.readouterr() == ("", "")


def test_an_address_that_is_taken_is_said(port: int) -> None:
    for listen in (f"127.0.0.1:{port}", "192.0.2.1:0"):
        with pytest.raises(OperatorError, match=r"^dashboard: cannot listen on "):
            Port("dashboard", listen, OPEN, None)
