"""Policies that follow the settings of real clients: pip and npm by their own files and variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import needs

from etude.sandbox import RequestRefused
from etude.sandbox.egress import package_clients
from etude.sandbox.egress.package_clients import hosts_of


@pytest.fixture
def pip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip without settings: those of this host are out of its sight. Where tests write some."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "pip.conf"


def test_pip_without_settings_uses_its_own_default(pip_file: Path) -> None:
    ask = "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert hosts_of("pip") == tuple(said.stdout.split())


def test_pip_by_its_file_and_its_variables(pip_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_file.write_text(
        "[global]\nindex-url = https://user:s3cret@Index.example/all\n"
        "[install]\nextra_index_url =\n  http://localhost:3141/team\n  https://more.example:443/x\n  file:///here\n"
        "find-links = https://files.example/wheels\n  /here\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(pip_file))
    assert hosts_of("pip") == ("index.example", "localhost:3141", "more.example", "files.example")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example:8443")
    assert hosts_of("pip")[0] == "mirror.example:8443"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert hosts_of("pip") == ("files.example",)


@pytest.mark.parametrize("address", ["http://10.0.0.5/all", "http://[::1]:3141/", "https:///x", "https://a.example:x/"])
def test_an_address_without_a_name(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setitem(package_clients.CLIENTS, "pip", lambda: [address])
    with pytest.raises(RequestRefused, match=r"egress 'pip': cannot tell .*; name them instead"):
        hosts_of("pip")


def test_a_pip_that_fails_is_quoted(pip_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_file.write_text("no setting\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(pip_file))
    with pytest.raises(RequestRefused, match=r"failed \(code \d\): .*pip\.conf") as refused:
        hosts_of("pip")
    assert "\n" not in str(refused.value)


@needs("npm")
def test_npm_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npmrc").write_text("registry=https://packages.example/\n@team:registry=http://localhost:4873/\n")
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
    assert set(hosts_of("npm")) == {"packages.example", "localhost:4873"}


@needs("npm")
def test_the_files_of_a_project_have_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".npmrc").write_text("registry=https://elsewhere.example/\n")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").write_text("raise SystemExit('a folder of the project')")
    before = hosts_of("npm"), hosts_of("pip")
    monkeypatch.chdir(tmp_path)
    assert (hosts_of("npm"), hosts_of("pip")) == before


def test_a_client_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RequestRefused, match="npm cannot be run: No such file or directory; name them instead"):
        hosts_of("npm")
    monkeypatch.setitem(package_clients.CLIENTS, "apt", list)
    with pytest.raises(RequestRefused, match="this host's apt uses: it is set to use none; name them instead"):
        hosts_of("apt")
