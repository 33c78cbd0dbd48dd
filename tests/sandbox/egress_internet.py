"""A small internet on loopback: hosts such as package managers use, over TLS with certificates of their own.

The test's backend is told where they are (`upstream`); boxes find them by their names, at the usual ports.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from etude.sandbox.egress import Upstream
from etude.sandbox.egress.authority import Authority

NAMES = ("index.example", "files.example", "packages.example", "git.example", "deb.distro.example", "evil.example")
WHEEL = "tiny_package-1.0-py3-none-any.whl"


def wheel() -> bytes:
    files = {
        "tiny_package.py": "answer = 42\n",
        "tiny_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n",
        "tiny_package-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "tiny_package-1.0.dist-info/RECORD"])
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as archive:
            for name, text in {**files, "tiny_package-1.0.dist-info/RECORD": record}.items():
                archive.writestr(zipfile.ZipInfo(name), text)
        return out.getvalue()


def npm_tarball() -> bytes:
    files = {
        "package/package.json": '{"name": "tiny-package", "version": "1.0.0", "main": "index.js"}',
        "package/index.js": "module.exports = 42;\n",
    }
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(text), 0o644
                archive.addfile(member, io.BytesIO(text.encode()))
        return out.getvalue()


def git_repository(folder: Path) -> None:
    """A bare repository with a few hundred objects, at team/repo.git."""
    work, bare = folder / "work", folder / "team" / "repo.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(work)]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    for number in range(200):
        (work / f"file{number}").write_text(f"{number}\n" * number)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)


def apt_repository() -> dict[str, bytes]:
    digest = hashlib.sha256(b"deb\n").hexdigest()
    packages = f"Package: tiny\nVersion: 1.0\nArchitecture: all\nFilename: tiny.deb\nSize: 4\nSHA256: {digest}\n"
    packages += "Maintainer: a\nDescription: b\n"
    digest = hashlib.sha256(packages.encode()).hexdigest()
    release = "Suite: stable\nCodename: stable\nComponents: main\nArchitectures: amd64 all\nSHA256:\n"
    release += f" {digest} {len(packages)} main/binary-amd64/Packages\n"
    index = {"Release": release.encode(), "main/binary-amd64/Packages": packages.encode()}
    return {"tiny.deb": b"deb\n", **{f"dists/stable/{name}": data for name, data in index.items()}}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def server_context(authority: Authority) -> ssl.SSLContext:
    """Of a server that is certified by it for whatever name it is asked for."""

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = authority.context_for(name or "nameless.invalid")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = choose
    return context


class Internet:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.repositories = folder
        self.asked: list[tuple[str, str, str, dict[str, str]]] = []
        """Host, method, path and fields of each request."""
        self.pages = self._pages()
        git_repository(folder)
        secure = server_context(self.authority)
        self._servers = [Server(("127.0.0.1", 0), self._handler()) for _ in range(2)]
        self._servers[0].socket = secure.wrap_socket(
            self._servers[0].socket, server_side=True, do_handshake_on_connect=False
        )
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.secure_port, self.plain_port = (server.server_port for server in self._servers)
        ports = {443: self.secure_port, 80: self.plain_port}
        there = {(name, port): ("127.0.0.1", ports[port]) for name in NAMES for port in ports}
        self.upstream = Upstream(there, ssl.create_default_context(cadata=self.authority.pem.decode()))

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _pages(self) -> dict[str, bytes]:
        package, tarball = wheel(), npm_tarball()
        link = f"https://files.example/p/{WHEEL}#sha256={hashlib.sha256(package).hexdigest()}"
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(tarball).digest()).decode()}"
        archive = "https://packages.example/tiny-package/-/tiny-package-1.0.0.tgz"
        version = {"name": "tiny-package", "version": "1.0.0", "dist": {"tarball": archive, "integrity": integrity}}
        document = {"name": "tiny-package", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return {
            "index.example/all/tiny-package/": f'<!doctype html><a href="{link}">{WHEEL}</a>'.encode(),
            f"files.example/p/{WHEEL}": package,
            "packages.example/tiny-package": json.dumps(document).encode(),
            "packages.example/tiny-package/-/tiny-package-1.0.0.tgz": tarball,
            **{f"deb.distro.example/debian/{name}": data for name, data in apt_repository().items()},
            **{f"{name}/page": f"page of {name}\n".encode() for name in NAMES},
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        internet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                host, path = self.headers["Host"].partition(":")[0], self.path.partition("?")[0]
                internet.asked.append((host, self.command, self.path, dict(self.headers)))
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if ".git/" in path:
                    self.answer_git(body)
                elif path == "/large":
                    self.reply_in_chunks(int(self.path.partition("?")[2]))
                elif path == "/echo":
                    self.reply(200, hashlib.sha256(body).hexdigest().encode())
                elif (page := internet.pages.get(host + path)) is not None:
                    self.reply(200, page, Content_Type="text/html")
                else:
                    self.reply(404, b"nothing here\n")

            do_HEAD = do_POST = do_PUT = do_GET

            def reply(self, status: int, body: bytes, **fields: str) -> None:
                self.send_response(status)
                for key, value in fields.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def reply_in_chunks(self, size: int) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                piece = b"x" * (1 << 16)
                with contextlib.suppress(OSError):
                    while size > 0:
                        part = piece[:size]
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                        size -= len(part)
                    self.wfile.write(b"0\r\n\r\n")

            def answer_git(self, body: bytes) -> None:
                path, _, query = self.path.partition("?")
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = self.read_chunks()
                environment = {
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(internet.repositories),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                }
                done = subprocess.run(
                    ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
                )
                head, _, page = done.stdout.partition(b"\r\n\r\n")
                fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
                status = int(fields.pop("Status", "200 OK").split()[0])
                self.reply(status, page, **fields)

            def read_chunks(self) -> bytes:
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@contextlib.contextmanager
def small_internet(folder: Path) -> Iterator[Internet]:
    internet = Internet(folder)
    try:
        yield internet
    finally:
        internet.close()
