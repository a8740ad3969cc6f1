"""Requests, as bytes, that a server on loopback must not answer, and that it must.

Each has a port to be filled in, and begins with the path of the server that is asked.
"""

import socket

OTHERS = {
    "another name": "GET {path} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n",
    "another port": "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:1{port}\r\n\r\n",
    "no port": "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a name that begins so": "GET {path} HTTP/1.1\r\nHost: localhost:{port}.evil.example\r\n\r\n",
    "an empty one": "GET {path} HTTP/1.1\r\nHost:\r\n\r\n",
    "none": "GET {path} HTTP/1.0\r\n\r\n",
    "the other one second": (
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example:{port}\r\n\r\n"
    ),
    "the other one first": (
        "GET {path} HTTP/1.1\r\nHost: evil.example:{port}\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    ),
    "the same twice": (
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    ),
    "another URL": "GET http://evil.example{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    "another URL and name": (
        "GET http://127.0.0.1:{port}{path} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n"
    ),
    "a name with a password": (
        "GET http://127.0.0.1:{port}@evil.example{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    ),
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
