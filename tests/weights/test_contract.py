"""The store's contract on a folder, and on an S3-compatible server on the loopback."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.contract.store import CHECKS

from etude.weights import manifest, reading

Check = Callable[[str], None]
runs = itertools.count()

SEAWEEDFS_PORTS = [f"{part}{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("chunk", [256, 64 << 20])
def test_folder(check: Check, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(reading, "_AT_ONCE", 2 * chunk)
    check(str(tmp_path / "weights"))


@pytest.fixture(scope="module", params=["moto", "seaweedfs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of its own process. moto answers as S3 does; SeaweedFS is one that people store files in."""
    names = ["s3"] if request.param == "moto" else ["s3", "s3.grpc", *SEAWEEDFS_PORTS]
    reserved = {name: reserved_port() for name in names}
    ports = {name: place.getsockname()[1] for name, place in reserved.items()}
    command = moto(ports) if request.param == "moto" else seaweedfs(ports, tmp_path_factory.mktemp("seaweedfs"))
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            # At its first request moto loads what it needs for S3.
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{ports['s3']}", timeout=240).status_code < 500:
                    break
            assert running.poll() is None, "the S3 server did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{ports['s3']}"
    finally:
        running.kill()
        running.wait()
        for place in reserved.values():
            place.close()


def reserved_port() -> socket.socket:
    reserved = socket.socket()
    # Stays bound: nobody else is given the port, and a server that listens may have it beside us.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def moto(ports: dict[str, int]) -> list[str]:
    beside = Path(sys.executable).parent / "moto_server"
    program = os.environ.get("ETUDE_MOTO_SERVER") or (str(beside) if beside.exists() else shutil.which("moto_server"))
    if program is None:
        pytest.skip("no S3 server: run `make setup`, or name a moto_server in ETUDE_MOTO_SERVER")
    return [program, "-H", "127.0.0.1", "-p", str(ports["s3"])]


def seaweedfs(ports: dict[str, int], folder: Path) -> list[str]:
    installed = Path.home() / ".cache/etude/test-tools/seaweedfs/bin/weed"
    program = os.environ.get("ETUDE_WEED") or (str(installed) if installed.exists() else shutil.which("weed"))
    if program is None:
        pytest.skip("no SeaweedFS: run `make tools`, or name a weed in ETUDE_WEED")
    options = ["-filer", "-s3", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    for name, port in ports.items():
        option, _, kind = name.partition(".")
        options.append(f"-{option}.port{'.' * bool(kind)}{kind}={port}")
    return [program, "server", *options, "-volume.max=20", "-master.volumeSizeLimitMB=100"]


@pytest.fixture
def location(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    environment = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    httpx.put(
        f"{server}/weights",
        headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/"},
        timeout=60,
    )
    return f"s3://weights/some/run-{next(runs)}"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_s3(check: Check, location: str) -> None:
    check(location)
