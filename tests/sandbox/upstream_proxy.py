"""Proxies such as companies have: a real one that knows the test's names, and one that answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from etude.sandbox.proxies import UpstreamProxy

LOGIN = "me:s3cret"
needs_tinyproxy = pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed")
# Its resolver is the host's, but for the names that this shows it alone.
_WITH_NAMES = 'mount --bind "$1" /etc/hosts && exec tinyproxy -d -c "$2"'


def forget_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host whose variables name none."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


class RealProxy:
    def __init__(self, folder: Path, port: int) -> None:
        self.port, self._log = port, folder / "proxy.log"

    @property
    def variable(self) -> str:
        return f"http://{LOGIN}@127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[str]:
        """First lines of the requests that it took."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.partition("): ")[2] for line in lines if "Request (file descriptor" in line]


@contextlib.contextmanager
def tinyproxy(folder: Path, *names: str) -> Iterator[RealProxy]:
    """It wants the login, and knows these names as hosts of this machine."""
    folder.mkdir()
    (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
    user, password = LOGIN.split(":")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = (
        f'Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 64\nBasicAuth {user} {password}\nViaProxyName "inner"\n'
    )
    (folder / "conf").write_text(f'{settings}LogLevel Connect\nLogFile "{folder}/proxy.log"\n')
    apart = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount"]
    command = [*apart, "sh", "-c", _WITH_NAMES, "sh", str(folder / "hosts"), str(folder / "conf")]
    with subprocess.Popen(command, stdout=-3, stderr=-3) as process:
        try:
            deadline = time.monotonic() + 20
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield RealProxy(folder, port)
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def told_proxy(answer: bytes | None) -> AsyncIterator[tuple[UpstreamProxy, list[bytes]]]:
    """Gives every request this answer and closes; None: it says nothing. Yields what it was asked, too."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield UpstreamProxy("127.0.0.1", server.sockets[0].getsockname()[1], LOGIN), heads
