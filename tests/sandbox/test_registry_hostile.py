"""A registry that means ill: it cannot fill memory or disk, lead into this machine, or keep a pull busy for ever."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable

import httpx
import pytest
from tests.sandbox.image_files import MANIFEST, Blobs, put_image, second_layer
from tests.sandbox.misbehaving_registry import Act, Asked, Misbehaving, misbehaving

from etude.sandbox import ImageError
from etude.sandbox.images import registry_http
from etude.sandbox.images.credentials import RegistryAuth
from etude.sandbox.images.layers import Bounds
from etude.sandbox.images.reference import Reference
from etude.sandbox.images.registry import pull
from etude.sandbox.images.store import ImageStore

_MUCH = 64 << 20


def refused(store: ImageStore, act: Act, says: str) -> Asked:
    """What a pull asked for until it was given up, in little memory."""
    blobs = Blobs()
    image = put_image(blobs, [second_layer()])
    with misbehaving(act, blobs, image) as (name, asked):
        tracemalloc.start()
        try:
            with pytest.raises(ImageError, match=says):
                pull(store, name)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 24 << 20
    return asked


def pour(handler: Misbehaving, status: int, headers: dict[str, str]) -> None:
    """An answer without end, as long as anyone takes it."""
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(1 << 40)}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.close_connection = True
    piece, sent = b" " * (1 << 20), 0
    try:
        while sent < _MUCH:
            handler.wfile.write(piece)
            sent += len(piece)
    except OSError:
        return
    raise AssertionError("all of it was taken")


ENDLESS = {
    "a refusal": (401, {"WWW-Authenticate": "Basic realm=x"}, r"refuses this \(HTTP 401\)"),
    "a redirect": (307, {"Location": "/v2/a/b/elsewhere"}, "has no manifests/1"),
    "a manifest": (200, {"Content-Type": MANIFEST}, "expected 8388608 bytes or fewer of manifests/1, found more"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end_is_not_read(store: ImageStore, what: str) -> None:
    status, headers, says = ENDLESS[what]

    def act(handler: Misbehaving, data: bytes, path: str) -> bool:
        if path != "elsewhere":
            pour(handler, status, headers)
        return path != "elsewhere"

    asked = [path for path, _ in refused(store, act, says)]
    if what != "a manifest":
        assert asked == ["/v2/a/b/manifests/1", "/v2/a/b/elsewhere"][: 1 + (what == "a redirect")]


def with_tokens(give: Callable[[Misbehaving], None]) -> Act:
    """Wants a token for everything; what its token server does is the test's to say."""

    def act(handler: Misbehaving, data: bytes, path: str) -> bool:
        if path.startswith("/token"):
            give(handler)
        else:
            realm = f"http://{handler.headers['Host']}/token"
            handler.answer(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}"'})
        return True

    return act


def test_a_token_without_end_is_not_read(store: ImageStore) -> None:
    refused(store, with_tokens(lambda handler: pour(handler, 200, {})), "gave a token of more than 1048576 bytes")


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 100_000,
        b'{"token": 7}',
        b'{"token": "a\\r\\nX-Evil: b"}',
        b'{"token": ""}',
        json.dumps({"token": "x" * 100_000}).encode(),
        gzip.compress(b'{"token": "good"}', mtime=0),
        b"\xff",
    ],
)
def test_a_token_that_is_none(store: ImageStore, answer: bytes) -> None:
    fields = {"Content-Encoding": "gzip"} if answer[:2] == b"\x1f\x8b" else {}
    act = with_tokens(lambda handler: handler.answer(200, answer, fields))
    refused(store, act, r"the token server refuses anonymous pulls \(HTTP 200\)")


def test_an_endless_401_ends(store: ImageStore) -> None:
    asked = refused(store, with_tokens(lambda handler: handler.answer(200, b'{"token": "t"}')), r"\(HTTP 401\)")
    assert [path.partition("?")[0] for path, _ in asked] == ["/v2/a/b/manifests/1", "/token", "/v2/a/b/manifests/1"]


CIRCLE = "redirects without end"


@pytest.mark.parametrize(
    ("location", "says", "steps"),
    [
        ("", CIRCLE, registry_http._MAX_REQUESTS),
        *(
            (away, "expected an https address", 1)
            for away in ("http://files.example/x", "ftp://files.example/x", "file:///etc/passwd", "http://10.0.0.1/")
        ),
    ],
)
def test_redirects_end_and_lead_nowhere_without_tls(store: ImageStore, location: str, says: str, steps: int) -> None:
    def act(handler: Misbehaving, data: bytes, path: str) -> bool:
        handler.answer(307, b"", {"Location": location or handler.path})
        return True

    assert len(refused(store, act, says)) == steps


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1/t", "https://127.0.0.1/t", "https://localhost:8443/t", "https://[::1]/t"]
)
def test_no_registry_leads_into_this_machine(address: str) -> None:
    """But one that is here itself."""
    reference = Reference.parse("registry.example/a/b")
    challenge = httpx.Response(401, headers={"WWW-Authenticate": f'Bearer realm="{address}"'})
    with pytest.raises(ImageError, match="for tokens; expected an https address"):
        RegistryAuth(reference).prepare(challenge, lambda *_: (200, b'{"token": "t"}'))
    away = registry_http.RegistryHttp(reference)
    with pytest.raises(ImageError, match="expected an https address"):
        away._goal(httpx.URL("https://registry.example/v2/"), address)
    away.close()


def test_a_layer_that_says_it_is_huge_is_not_begun(store: ImageStore) -> None:
    blobs = Blobs()
    image = put_image(blobs, [second_layer()])
    manifest = json.loads(blobs[image["digest"]])
    manifest["layers"][0]["size"] = 1 << 50
    forged = blobs.put(json.dumps(manifest).encode(), MANIFEST)
    with (
        misbehaving(lambda *_: False, blobs, forged) as (name, asked),
        pytest.raises(ImageError, match=r"expected 1000 bytes or fewer of sha256:[0-9a-f]+, found 1125899906842624"),
    ):
        pull(store, name, bounds=Bounds(bytes=1000))
    assert not [path for path, _ in asked if manifest["layers"][0]["digest"] in path]
