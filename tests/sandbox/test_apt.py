"""Addresses of apt's sources in both formats and its proxies, as apt itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.sandbox.egress_internet import small_internet
from tests.sandbox.upstream_proxy import forget_proxies, needs_tinyproxy, tinyproxy

from etude.sandbox.apt import apt_addresses, proxy_variables

FILES = {
    "sources.list": "# deb http://old.example x main\n"
    "deb [arch=amd64 trusted=yes] http://a.example/debian/ x main # b\n"
    "  deb-src https://b.example/debian x main\ndeb file:/here x main\ndebs http://c.example x main\n",
    "sources.list.d/one.list": "deb http://a.example/debian y main\ndeb http://d.example:8080/x ./\n",
    "sources.list.d/two.sources": "# About it\nTypes: deb deb-src\nuris: https://e.example/debian\n# Between.\n"
    " https://f.example/debian\nSuites: x\n y\nComponents: main\n\n\n"
    "Enabled: no\nTypes: deb\nURIs: https://off.example\nSuites: x\nComponents: main\n\n"
    "Types: deb\nURIs: cdrom:here\nSuites: x\nComponents: main\n",
    "sources.list.d/three.list.off": "deb http://g.example x main\n",
}
FOUND = [
    *("http://a.example/debian", "https://b.example/debian", "http://d.example:8080/x"),
    *("https://e.example/debian", "https://f.example/debian"),
]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_both_formats(sources: Path) -> None:
    assert apt_addresses(sources) == FOUND


@pytest.mark.skipif(not shutil.which("apt-get"), reason="apt is not installed")
def test_apt_reads_the_same(sources: Path) -> None:
    (sources / "sources.list").write_text(FILES["sources.list"].replace("debs http://c.example x main\n", ""))
    options = ["-o", f"Dir::Etc={sources}", "-o", f"Dir::State={sources}", "-o", f"Dir::State::Lists={sources}/none"]
    asked = ["apt-get", *options, "update", "--print-uris"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^'(http.*?)/(?:dists/.*|\./.*)?InRelease'", said, re.MULTILINE)) == set(FOUND)


def test_what_cannot_be_read_counts_for_nothing(sources: Path) -> None:
    (sources / "sources.list").write_bytes(b"deb http://a.example/debian x \xff\n")
    (sources / "sources.list.d/one.list").unlink()
    (sources / "sources.list.d/one.list").symlink_to("nowhere")
    assert apt_addresses(sources) == FOUND[3:]
    assert apt_addresses(sources / "nowhere") == []


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt that reads this file as well, on a host without variables."""
    forget_proxies(monkeypatch)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    (tmp_path / "apt.conf").write_text('Acquire::http::Proxy "DIRECT";\nAcquire::https::Proxy "DIRECT";\n')
    return tmp_path / "apt.conf"


@pytest.mark.skipif(not shutil.which("apt-config"), reason="apt is not installed")
def test_proxies_of_the_variables_come_before_those_of_apt(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_variables() == {}
    settings.write_text('Acquire::http::Proxy "http://me:s3cret@apt.example:3128";\nAcquire::https::Proxy "DIRECT";\n')
    assert proxy_variables() == {"http_proxy": "http://me:s3cret@apt.example:3128"}
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inner.example")
    assert proxy_variables() == {"http_proxy": "http://proxy.example:3128", "no_proxy": "inner.example"}
    monkeypatch.delenv("HTTP_PROXY")
    monkeypatch.setenv("PATH", "/nowhere")
    assert proxy_variables() == {"no_proxy": "inner.example"}


@needs_tinyproxy
@pytest.mark.skipif(not (shutil.which("apt-config") and shutil.which("wget")), reason="apt or wget is not installed")
def test_a_fetch_as_debootstrap_makes_it_goes_by_the_proxy(tmp_path: Path, settings: Path) -> None:
    (tmp_path / "internet").mkdir()
    with (
        small_internet(tmp_path / "internet") as internet,
        tinyproxy(tmp_path / "proxy", "deb.distro.example") as proxy,
    ):
        settings.write_text(f'Acquire::http::Proxy "{proxy.variable}";\n')
        address = f"http://deb.distro.example:{internet.plain_port}/debian/tiny.deb"
        said = subprocess.run(["wget", "-qO-", address], env=proxy_variables(), capture_output=True, check=False)
        assert said.stdout == b"deb\n", said
        assert proxy.asked == [f"GET {address} HTTP/1.1"]
