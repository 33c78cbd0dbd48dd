"""Pulling: from a real registry on loopback, with logins, broken connections, and blobs that are not what they say."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.sandbox.image_files import INDEX, Blobs, busybox_tar, digest, index_of, put_image, second_layer
from tests.sandbox.misbehaving_registry import Misbehaving, misbehaving
from tests.sandbox.small_root import needs_busybox, static_busybox

from etude.sandbox import ImageError, RequestRefused
from etude.sandbox.images.oci import MACHINE
from etude.sandbox.images.reference import Reference, is_loopback
from etude.sandbox.images.registry import pull
from etude.sandbox.images.store import ImageStore

pytestmark = needs_busybox
TARS = [busybox_tar(), second_layer()] if static_busybox() else []
Content = tuple[Blobs, dict[str, Any]]
"""What a registry holds, and the descriptor of its image's manifest."""
needs_registry = pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed")


@contextmanager
def registry(folder: Path, auth: str = "") -> Iterator[str]:
    """A real one; yields its host:port."""
    with socket.socket() as reserved:
        # Stays bound: nobody else is given the port, and a server that listens may have it beside us.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{reserved.getsockname()[1]}"
        config = folder / "registry.yml"
        storage = f"  filesystem:\n    rootdirectory: {folder}/blobs\n"
        config.write_text(f"version: 0.1\nlog:\n  level: error\nstorage:\n{storage}http:\n  addr: {host}\n{auth}")
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=-3, stderr=-3)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    httpx.get(f"http://{host}/v2/", trust_env=False)
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            yield host
        finally:
            process.terminate()
            process.wait()


def push(host: str, name: str, tag: str, blobs: Blobs, manifest: dict[str, Any], **options: Any) -> None:
    with httpx.Client(base_url=f"http://{host}/v2/{name}/", trust_env=False, **options) as client:
        for key, data in blobs.items():
            if data[:1] == b"{" and b"schemaVersion" in data[:30]:
                continue
            place = client.post("blobs/uploads/").raise_for_status().headers["Location"]
            client.put(httpx.URL(place).copy_merge_params({"digest": key}), content=data).raise_for_status()
        manifests = [data for data in blobs.values() if b"schemaVersion" in data[:30]]
        for data in sorted(manifests, key=lambda data: INDEX.encode() in data):
            reference = tag if digest(data) == manifest["digest"] else digest(data)
            kind = json.loads(data)["mediaType"]
            client.put(f"manifests/{reference}", content=data, headers={"Content-Type": kind}).raise_for_status()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """A registry with team/box:1, an index for two kinds of machine, and its descriptor."""
    blobs = Blobs()
    ours = put_image(blobs, TARS) | {"platform": {"os": "linux", "architecture": MACHINE}}
    other = put_image(blobs, TARS[1:], architecture="mips") | {"platform": {"os": "linux", "architecture": "mips"}}
    index = blobs.put(index_of(other, ours), INDEX)
    with registry(tmp_path_factory.mktemp("registry")) as host:
        push(host, "team/box", "1", blobs, index)
        yield host, index


@needs_registry
def test_a_pull_by_tag_and_by_digest(served: tuple[str, dict[str, Any]], store: ImageStore) -> None:
    host, index = served
    heard: list[str] = []
    image = pull(store, f"{host}/team/box:1", say=heard.append)
    assert store.origin(image) == f"pulled from {host}/team/box@{index['digest']}"
    assert sum(line.startswith("fetched sha256:") for line in heard) == 2
    again: list[str] = []
    assert pull(store, f"{host}/team/box@{index['digest']}", say=again.append) == image
    assert again == [f"{host}/team/box@{index['digest']} is {index['digest']}"], "layers were fetched again"
    layers = [store.layers / layer for layer in store.image(image).layers]
    assert (layers[0] / "srv/who").read_text() == "layered"
    busybox = static_busybox()
    assert busybox is not None
    assert (layers[1] / "bin/busybox").stat().st_size == busybox.stat().st_size


@needs_registry
@pytest.mark.parametrize(
    ("name", "says"),
    [("team/box:2", "has no manifests/2; check name, tag and digest"), ("team/none:1", "has no manifests/1")],
)
def test_what_is_not_there(served: tuple[str, dict[str, Any]], store: ImageStore, name: str, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        pull(store, f"{served[0]}/{name}")


@needs_registry
def test_a_login_that_was_noted(tmp_path: Path, store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is "secret"; the registry knows its hash alone."""
    (tmp_path / "users").write_text("me:$2b$04$bVUc7O8axHhbQuo51/85LOtSuo6y5m5momdsVuzwi.x3VDP7VAkyi\n")
    auth = f"auth:\n  htpasswd:\n    realm: boxes\n    path: {tmp_path}/users\n"
    blobs = Blobs()
    manifest = put_image(blobs, TARS[:1])
    with registry(tmp_path, auth) as host:
        push(host, "box", "latest", blobs, manifest, auth=("me", "secret"))
        with pytest.raises(ImageError, match=rf"refuses this \(HTTP 401\); log in with `docker login {host}`"):
            pull(store, f"{host}/box")
        notes = {"auths": {host: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(notes))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        assert pull(store, f"{host}/box")


# -- a registry of our own, which misbehaves as it is told


@pytest.fixture
def image() -> Content:
    blobs = Blobs()
    return blobs, put_image(blobs, TARS)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.sandbox.images.registry._WAIT_SECONDS", 0.001)


def test_a_broken_connection_goes_on_where_it_was(store: ImageStore, image: Content) -> None:
    """Every connection ends after 100 kB of the large layer."""

    def cut(handler: Misbehaving, data: bytes, path: str) -> bool:
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        rest = data[start:]
        if len(rest) <= 100_000:
            return False
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        handler.answer(206 if start else 200, rest[:100_000], headers, length=len(rest))
        return True

    blobs, manifest = image
    with misbehaving(cut, blobs, manifest) as (name, asked):
        pull(store, name)
    size = max(len(data) for data in blobs.values())
    ranges = [headers["Range"] for _, headers in asked if "Range" in headers]
    assert ranges == [f"bytes={start}-" for start in range(100_000, size, 100_000)]


def test_a_server_without_ranges_begins_again(store: ImageStore, image: Content) -> None:
    broken: set[str] = set()

    def once(handler: Misbehaving, data: bytes, path: str) -> bool:
        if not path.startswith("blobs/"):
            return False
        if path in broken:
            handler.answer(200, data)
        else:
            broken.add(path)
            handler.answer(200, data[: len(data) // 2], length=len(data))
        return True

    with misbehaving(once, *image) as (name, _):
        assert store.image(pull(store, name)).layers


def test_a_busy_server_is_asked_again_and_a_dead_one_given_up(store: ImageStore, image: Content) -> None:
    answers = iter([503, 429, 500])

    def busy(handler: Misbehaving, data: bytes, path: str) -> bool:
        status = next(answers, 0)
        if status:
            handler.answer(status, b"")
        return bool(status)

    with misbehaving(busy, *image) as (name, _):
        assert pull(store, name)

    def dead(handler: Misbehaving, data: bytes, path: str) -> bool:
        handler.answer(503, b"")
        return True

    with (
        misbehaving(dead, *image) as (name, _),
        pytest.raises(ImageError, match=r"cannot fetch manifests/1 \(HTTP 503\)"),
    ):
        pull(store, name)


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "is damaged"),
        (lambda data: data + b"more", "expected [0-9]+ bytes or fewer"),
        (lambda _: gzip.compress(second_layer()), "cannot fetch blobs/|is damaged"),
    ],
)
def test_a_blob_that_is_not_what_it_says(
    store: ImageStore, image: Content, forge: Callable[[bytes], bytes], says: str
) -> None:
    blobs, manifest = image
    largest = max(blobs, key=lambda name: len(blobs[name]))

    def forged(handler: Misbehaving, data: bytes, path: str) -> bool:
        if path != f"blobs/{largest}":
            return False
        handler.answer(200, forge(data))
        return True

    with misbehaving(forged, blobs, manifest) as (name, _), pytest.raises(ImageError, match=says):
        pull(store, name)
    assert list(store.layers.iterdir()) == []


def test_a_manifest_that_is_not_what_it_says(store: ImageStore, image: Content) -> None:
    blobs, manifest = image

    def forged(handler: Misbehaving, data: bytes, path: str) -> bool:
        if path.startswith("manifests/sha256"):
            handler.answer(200, data.replace(b"schemaVersion", b"schemaversion"))
        return path.startswith("manifests/sha256")

    with misbehaving(forged, blobs, manifest) as (name, _):
        pinned = name.rpartition(":")[0] + f"@{manifest['digest']}"
        with pytest.raises(ImageError, match=f"expected {manifest['digest']}, found other content"):
            pull(store, pinned)


def test_tokens_and_where_credentials_go(
    tmp_path: Path, store: ImageStore, image: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password goes to the token server alone; the token to the registry; neither to where blobs really lie."""
    password = base64.b64encode(b"me:secret").decode()

    def elsewhere(handler: Misbehaving, data: bytes, path: str) -> bool:
        return False

    with misbehaving(elsewhere, *image) as (other, asked_elsewhere):

        def guarded(handler: Misbehaving, data: bytes, path: str) -> bool:
            host = handler.headers["Host"]
            if path.startswith("/token"):
                good = handler.headers.get("Authorization") == f"Basic {password}"
                handler.answer(200 if good else 401, b'{"token": "t0ken"}')
            elif handler.headers.get("Authorization") != "Bearer t0ken":
                challenge = f'Bearer realm="http://{host}/token",service="here",scope="repository:a/b:pull"'
                handler.answer(401, b"", {"WWW-Authenticate": challenge})
            elif path.startswith("blobs/"):
                handler.answer(307, b"", {"Location": f"http://{other.rpartition('/a/b')[0]}{handler.path}"})
            else:
                return False
            return True

        with misbehaving(guarded, *image) as (name, asked):
            with pytest.raises(ImageError, match=r"the token server refuses anonymous pulls \(HTTP 401\)"):
                pull(store, name)
            notes = {"auths": {name.partition("/")[0]: {"auth": password}, "elsewhere": {"auth": "bm86bm8="}}}
            (tmp_path / "config.json").write_text(json.dumps(notes))
            monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
            asked.clear()
            assert pull(store, name)
    assert {headers.get("Authorization") for path, headers in asked if not path.startswith("/token")} <= {
        None,
        "Bearer t0ken",
    }
    assert any(path == "/token?scope=repository%3Aa%2Fb%3Apull&service=here" for path, _ in asked)
    assert asked_elsewhere
    assert [headers for _, headers in asked_elsewhere if "Authorization" in headers] == []


def test_credentials_are_not_sent_without_tls(store: ImageStore, image: Content) -> None:
    def trap(handler: Misbehaving, data: bytes, path: str) -> bool:
        handler.answer(401, b"", {"WWW-Authenticate": 'Bearer realm="http://tokens.example/t"'})
        return True

    with misbehaving(trap, *image) as (name, _), pytest.raises(ImageError, match="expected an https address"):
        pull(store, name)


# -- names


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("debian", ("docker.io", "library/debian", "latest", "")),
        ("team/box:1.2-x", ("docker.io", "team/box", "1.2-x", "")),
        ("localhost:5000/a/b/c", ("localhost:5000", "a/b/c", "latest", "")),
        ("ghcr.io/a/b:c@sha256:" + "0" * 64, ("ghcr.io", "a/b", "c", "sha256:" + "0" * 64)),
        ("[::1]:5000/a@sha256:" + "1" * 64, ("[::1]:5000", "a", "", "sha256:" + "1" * 64)),
    ],
)
def test_references(text: str, meaning: tuple[str, ...]) -> None:
    found = Reference.parse(text)
    assert (found.registry, found.repository, found.tag, found.digest) == meaning
    assert Reference.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "UPPER", "a b", "a:", "a@sha256:12", "../x", "a//b", "http://x.y/a", "x.y/", "-/a", "a:b:c"]
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(RequestRefused, match="is no image reference; expected"):
        Reference.parse(text)


def test_only_this_machine_is_asked_without_tls() -> None:
    hosts = {"localhost:1": True, "127.0.0.1:5000": True, "127.9.9.9": True, "[::1]:5000": True, "10.0.0.1:5000": False}
    hosts |= {"localhost.example": False, "127.0.0.1.example": False, "registry.example": False}
    assert {host: is_loopback(host) for host in hosts} == hosts
    assert Reference.parse("10.0.0.1:5000/a").url.startswith("https://")
    assert Reference.parse("127.0.0.1:5000/a").url.startswith("http://")
