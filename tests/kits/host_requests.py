"""Requests, as bytes, that a server on loopback must not answer, and that it must.

Each has a port to be filled in, and begins with the path of the server that is asked.
"""

import socket


def _get(*hosts: str, url: str = "{path}", version: str = "1.1") -> str:
    return f"GET {url} HTTP/{version}\r\n" + "".join(f"Host:{h}\r\n" for h in hosts) + "\r\n"


RIGHT, EVIL = " 127.0.0.1:{port}", " evil.example:{port}"
OTHERS = {
    "another name": _get(EVIL),
    "another port": _get(" 127.0.0.1:1{port}"),
    "no port": _get(" 127.0.0.1"),
    "a name that begins so": _get(" localhost:{port}.evil.example"),
    "an empty one": _get(""),
    "none": _get(version="1.0"),
    "the other one second": _get(RIGHT, EVIL),
    "the other one first": _get(EVIL, RIGHT),
    "the same twice": _get(RIGHT, RIGHT),
    "another URL": _get(RIGHT, url="http://evil.example{path}"),
    "another URL and name": _get(EVIL, url="http://127.0.0.1:{port}{path}"),
    "a name with a password": _get(RIGHT, url="http://127.0.0.1:{port}@evil.example{path}"),
}
OWN = {
    name: f"GET {{path}} HTTP/1.1\r\nHost: {name}:{{port}}\r\nConnection: close\r\n\r\n"
    for name in ("127.0.0.1", "LocalHost", "[::1]")
}


def answer(port: int, request: str, path: str) -> tuple[int, str]:
    """Status and whole text of what a server of this machine answers."""
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(request.format(port=port, path=path).encode())
        line.shutdown(socket.SHUT_WR)
        text = b"".join(iter(lambda: line.recv(1 << 16), b"")).decode()
    return int(text.split(" ", 2)[1]), text
