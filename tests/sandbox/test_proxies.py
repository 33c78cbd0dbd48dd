"""Which proxy this host's variables name, for which hosts; and that a login is seen by nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.upstream_proxy import forget_proxies

from etude.sandbox import RequestRefused
from etude.sandbox.proxies import NoProxy, Proxies, UpstreamProxy


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    forget_proxies(monkeypatch)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "host", "port", "login"),
    [
        ("http://proxy.example:3128", "proxy.example", 3128, ""),
        ("http://proxy.example:3128/", "proxy.example", 3128, ""),
        ("proxy.example:3128", "proxy.example", 3128, ""),
        ("http://proxy.example", "proxy.example", 80, ""),
        ("http://me:s3cret@proxy.example:8080", "proxy.example", 8080, "me:s3cret"),
        ("me:s3cret@proxy:8080", "proxy", 8080, "me:s3cret"),
        ("http://me:p%40ss%3Aword@proxy.example:8080", "proxy.example", 8080, "me:p@ss:word"),
        ("http://me@proxy.example:8080", "proxy.example", 8080, "me:"),
        ("http://[fd00::1]:3128", "fd00::1", 3128, ""),
        ("HTTP://10.0.0.1:3128", "10.0.0.1", 3128, ""),
    ],
)
def test_addresses_of_proxies(text: str, host: str, port: int, login: str) -> None:
    found = UpstreamProxy.parse(text, "HTTPS_PROXY")
    assert (found.host, found.port, found.login) == (host, port, login)
    assert found.url == (f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    assert bool(found.authorization) == bool(login)


@pytest.mark.parametrize(
    "text",
    [
        *("https://me:s3cret@proxy.example:3128", "socks5://me:s3cret@proxy.example:1080", "http://me:s3cret@"),
        *("http://me:s3cret@proxy.example:x", "http://me:s3cret@proxy.example:99999", "http://me:s3cret@proxy/path"),
        *("http://me:s3cret@proxy.example:1?s3cret", "http://me:s3cret@pro xy:1", "http://me:s3cret@[::1", "http://"),
    ],
)
def test_what_is_no_address_is_told_without_its_login(text: str) -> None:
    with pytest.raises(
        RequestRefused, match=r"^HTTPS_PROXY: expected http://host:port, with a login .*; found"
    ) as said:
        UpstreamProxy.parse(text, "HTTPS_PROXY")
    assert "s3cret" not in str(said.value)
    assert "\n" not in str(said.value)


def test_a_login_is_in_no_repr() -> None:
    proxy = UpstreamProxy.parse("http://me:s3cret@proxy.example:3128", "x")
    assert "s3cret" not in repr(Proxies(proxy, proxy)) + proxy.url
    assert proxy.authorization == "Basic bWU6czNjcmV0"


def test_each_kind_has_its_proxy(variables: pytest.MonkeyPatch) -> None:
    assert Proxies.of_host() == Proxies()
    variables.setenv("HTTPS_PROXY", "http://secure.example:1")
    assert Proxies.of_host().proxy_for("index.example", 80, tls=False) is None
    variables.setenv("ALL_PROXY", "http://all.example:3")
    variables.setenv("https_proxy", "http://small.example:2")
    found = Proxies.of_host()
    assert [getattr(found.proxy_for("index.example", 9, tls=tls), "host", "") for tls in (False, True)] == [
        "all.example",
        "small.example",
    ]
    variables.setenv("http_proxy", "socks5://x:1")
    with pytest.raises(RequestRefused, match=r"^HTTP_PROXY: expected"):
        Proxies.of_host()


@pytest.mark.parametrize(
    ("text", "covered", "not_covered"),
    [
        ("index.example", ["index.example", "Index.Example.", "a.index.example"], ["xindex.example", "example"]),
        (".index.example", ["index.example", "a.index.example"], ["xindex.example"]),
        ("*.index.example", ["a.b.index.example"], ["indexxexample", "index.exampl"]),
        ("a.example, b.example c.example", ["a.example", "b.example", "c.example"], ["d.example"]),
        ("index.example:443", ["index.example"], []),
        ("index.example:8443", [], ["index.example"]),
        ("*", ["index.example", "10.0.0.1", "2606::1"], []),
        ("10.0.0.0/8", ["10.9.9.9"], ["11.0.0.1", "10.example", "index.example"]),
        ("10.1.2.3/8", ["10.9.9.9"], ["11.0.0.1"]),
        ("192.168.7.1", ["192.168.7.1"], ["192.168.7.2"]),
        ("fd00::/8,[2606::1]:443", ["fd12::1", "2606::1"], ["2606::2"]),
        ("10.0.0.0/8:80", [], ["10.0.0.1"]),
        ("", ["localhost", "127.0.0.1", "::1", "127.8.8.8"], ["index.example", "localhost.example", "10.0.0.1"]),
        (" , ,.,*.,:80,/8,[", [], ["index.example", "10.0.0.1"]),
    ],
)
def test_exceptions(text: str, covered: list[str], not_covered: list[str]) -> None:
    exceptions = NoProxy.parse(text)
    assert [host for host in covered if not exceptions.cover(host, 443)] == []
    assert [host for host in not_covered if exceptions.cover(host, 443)] == []


def test_a_name_within_a_network_goes_directly(variables: pytest.MonkeyPatch) -> None:
    """If all of its addresses are: one outside is reached by the proxy."""
    variables.setenv("ALL_PROXY", "http://proxy.example:3128")
    variables.setenv("NO_PROXY", "10.0.0.0/8,fd00::/8")
    found = Proxies.of_host()
    assert found.proxy_for("index.example", 443, tls=True, addresses=["10.0.0.1", "fd00::1"]) is None
    for addresses in ([], ["10.0.0.1", "1.1.1.1"], ["2606::1"]):
        assert found.proxy_for("index.example", 443, tls=True, addresses=addresses) is not None


@given(st.text(max_size=60), st.text(max_size=30), st.integers(1, 65535))
def test_any_text_is_read(text: str, host: str, port: int) -> None:
    NoProxy.parse(text).cover(host, port)
    try:
        UpstreamProxy.parse(text, "X")
    except RequestRefused as error:
        assert str(error).startswith("X: expected")  # noqa: PT017 - most texts are none


@given(st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9}){0,3}", fullmatch=True), st.from_regex(r"[a-z]{1,9}", fullmatch=True))
def test_a_name_covers_itself_and_what_is_below(name: str, label: str) -> None:
    exceptions = NoProxy.parse(name)
    assert exceptions.cover(name, 443)
    assert exceptions.cover(f"{label}.{name}", 443)
    assert not exceptions.cover(f"{label}{name}", 443)
