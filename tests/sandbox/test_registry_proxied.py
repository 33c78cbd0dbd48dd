"""Pulling where the registry is reached by a proxy alone, which wants a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.egress_internet import server_context
from tests.sandbox.image_files import Blobs, put_image, second_layer
from tests.sandbox.misbehaving_registry import Asked, misbehaving
from tests.sandbox.upstream_proxy import LOGIN, RealProxy, forget_proxies, needs_tinyproxy, tinyproxy

from etude.sandbox import ImageError, RequestRefused
from etude.sandbox.egress.authority import Authority
from etude.sandbox.images import registry
from etude.sandbox.images.registry import pull
from etude.sandbox.images.store import ImageStore

NAME = "registry.example"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProxy]:
    with tinyproxy(tmp_path_factory.mktemp("proxied") / "proxy", NAME) as opened:
        yield opened


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Asked]]:
    """A registry behind TLS whose name means something to the proxy alone."""
    authority, blobs = Authority(), Blobs()
    (tmp_path / "trusted.pem").write_bytes(authority.pem)
    forget_proxies(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
    monkeypatch.setattr(registry, "_WAIT_SECONDS", 0.001)
    image = put_image(blobs, [second_layer()])
    with misbehaving(lambda *_: False, blobs, image, name=NAME, tls=server_context(authority)) as opened:
        yield opened


@needs_tinyproxy
def test_by_the_variables_of_the_host(
    store: ImageStore, secure: tuple[str, Asked], proxy: RealProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, asked = secure
    with pytest.raises(ImageError, match=r"cannot fetch manifests/1 .*(Name or service|resolution)"):
        pull(store, name)
    monkeypatch.setenv("HTTPS_PROXY", proxy.variable)
    heard: list[str] = []
    assert pull(store, name, say=heard.append)
    assert set(proxy.asked) == {f"CONNECT {name.partition('/')[0]} HTTP/1.1"}
    assert not [fields for _, fields in asked if "Proxy-Authorization" in fields]
    assert LOGIN.partition(":")[2] not in str(heard)
    monkeypatch.setenv("NO_PROXY", f".{NAME}")
    with pytest.raises(ImageError, match=r"cannot fetch manifests/1 .*(Name or service|resolution)"):
        pull(store, name)


@needs_tinyproxy
def test_a_proxy_that_refuses_is_named_at_once(
    store: ImageStore, secure: tuple[str, Asked], proxy: RealProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, asked = secure
    for login in ("", "me:wr0ng@"):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{login}127.0.0.1:{proxy.port}")
        before = len(proxy.asked)
        with pytest.raises(
            ImageError, match=r"this host's proxy wants a login, or another one \(HTTP 40[17]\)"
        ) as said:
            pull(store, name)
        assert "wr0ng" not in str(said.value)
        assert len(proxy.asked) - before == 1
    assert asked == []
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:s3cret@127.0.0.1:1080")
    with pytest.raises(RequestRefused, match=r"^HTTPS_PROXY: expected http://host:port"):
        pull(store, name)
