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

Check = Callable[[str], None]
buckets = itertools.count()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_folder(check: Check, tmp_path: Path) -> None:
    check(str(tmp_path / "weights"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    beside = Path(sys.executable).parent / "moto_server"
    program = os.environ.get("ETUDE_MOTO_SERVER") or (str(beside) if beside.exists() else shutil.which("moto_server"))
    if program is None:
        pytest.skip("no S3 server: run `make setup`, or name a moto_server in ETUDE_MOTO_SERVER")
    reserved = socket.socket()
    # Stays bound: nobody else is given the port, and a server that listens may have it beside us.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    running = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert running.poll() is None, "the S3 server did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()
        reserved.close()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    environment = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"weights-{next(buckets)}"
    httpx.put(
        f"{server}/{bucket}",
        headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/"},
        timeout=240,  # At its first request the server loads what it needs for S3.
    ).raise_for_status()
    return f"s3://{bucket}/some/run"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_s3(check: Check, bucket: str) -> None:
    check(bucket)
