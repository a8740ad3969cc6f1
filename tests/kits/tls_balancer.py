"""A balancer that ends TLS before Flower's SuperLink, on loopback."""

import ssl
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from flwr.app import ArrayRecord, Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from secureps.flower import post

PUSH, PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
HELD = "held"
UPDATE = 10_000
"""Bytes that a node's batch has at least if it carries an update."""

Answer = tuple[int, str, bytes]
Send = Callable[[str, bytes], Answer]


class Balancer(ThreadingHTTPServer):
    """Passes requests on in plain text, one connection for each.

    Args:
        address: HOST:PORT where it listens.
        pair: its certificate and its key.
        target: HOST:PORT of the SuperLink.
        alter: what it makes, once, of the batch of an update that passes. It takes the node's whole
            message and sends another: Flower goes by digests, and would not take a changed byte.
    """

    daemon_threads = True

    def __init__(
        self,
        address: str,
        pair: tuple[Path, Path],
        target: str,
        alter: Callable[[bytes], bytes] | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        context.set_alpn_protocols(["http/1.1"])
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.altered = 0
        self._target, self._alter = target, alter
        self._lock = threading.Lock()
        self._push: PushMessagesRequest | None = None
        self._held: dict[str, bytes] = {}

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        def send(path: str, body: bytes) -> Answer:
            line = HTTPConnection(self._target, timeout=600)
            try:
                line.request(method, path, body, headers | {"content-length": str(len(body))})
                reply = line.getresponse()
                return reply.status, reply.headers.get("content-type", ""), reply.read()
            finally:
                line.close()

        with self._lock:
            if self._alter and not self.altered and (held := self._hold(path, body, send)):
                return 200, headers["content-type"], held
        return send(path, body)

    def _hold(self, path: str, body: bytes, send: Send) -> bytes:
        if path == PUSH and self._push is None:
            self._push = PushMessagesRequest.FromString(body)
            taken = PushMessagesResponse(objects_to_push=self._ids(self._push), session_id=HELD)
            return bytes(taken.SerializeToString())
        if path == PUSH_OBJECT and self._push is not None:
            came = PushObjectRequest.FromString(body)
            if came.session_id == HELD:
                self._held[came.object_id] = came.object_content
                if len(self._held) == len(set(self._ids(self._push))):
                    self._pass_on(self._push, came, send)
                    self._push = None
                return bytes(PushObjectResponse(stored=True).SerializeToString())
        return b""

    def _ids(self, push: PushMessagesRequest) -> list[str]:
        tree = push.message_object_trees[0]
        return [each.object_id for each in objects.iterate_object_tree(tree)]

    def _pass_on(self, push: PushMessagesRequest, came: PushObjectRequest, send: Send) -> None:
        whole = cast(Message, inflate_object_from_contents(self._ids(push)[-1], self._held))
        self._held = {}
        batch = whole.content.array_records[post.BATCH]["batch"].data
        if len(batch) > UPDATE and self._alter is not None:
            changed = post.wrap_bytes(self._alter(batch))
            whole.content[post.BATCH] = ArrayRecord({"batch": changed})
            self.altered += 1
        whole.metadata.__dict__["_message_id"] = whole.object_id
        push.messages_list[0].CopyFrom(message_to_proto(remove_content_from_message(whole)))
        push.message_object_trees[0].CopyFrom(objects.get_object_tree(whole))
        taken = PushMessagesResponse.FromString(send(PUSH, push.SerializeToString())[2])
        for name, each in objects.get_all_nested_objects(whole).items():
            if name in taken.objects_to_push:
                came.object_id, came.object_content = name, each.deflate()
                came.session_id = taken.session_id
                send(PUSH_OBJECT, came.SerializeToString())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server = cast(Balancer, self.server)
        status, kind, content = server.answer(self.command, self.path, headers, body)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Says nothing of requests."""
