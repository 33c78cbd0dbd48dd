"""A registry of one repository, a/b, on loopback, which misbehaves as it is told."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sandbox.image_files import MANIFEST, Blobs


class Misbehaving(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    content: dict[str, tuple[bytes, str]]
    """Path below the repository -> bytes and their type."""
    act: Callable[[Misbehaving, bytes, str], bool]
    """Answers in some other way, or returns False."""
    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        path = self.path.removeprefix("/v2/a/b/")
        data, kind = self.content.get(path, (b"", ""))
        if type(self).act(self, data, path):
            return
        if not kind:
            self.answer(404, b"")
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"Content-Type": kind}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.answer(206 if start else 200, data[start:], headers)

    def answer(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        if length is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


Act = Callable[[Misbehaving, bytes, str], bool]
Asked = list[tuple[str, dict[str, str]]]


@contextmanager
def misbehaving(
    act: Act, blobs: Blobs, manifest: dict[str, Any], *, name: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, Asked]]:
    content = {f"blobs/{name}": (data, "application/octet-stream") for name, data in blobs.items()}
    content |= {f"manifests/{name}": (data, MANIFEST) for name, data in blobs.items()}
    content["manifests/1"] = (blobs[manifest["digest"]], manifest["mediaType"])
    asked: Asked = []
    handler = type("Handler", (Misbehaving,), {"content": content, "act": staticmethod(act), "asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{name}:{server.server_port}/a/b:1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
