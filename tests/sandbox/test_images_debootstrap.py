"""A Debian from its packages; what is wrong with a request is said before anything is fetched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop

from etude.sandbox import BoxSpec, EmbeddedSandboxes, ImageError, RequestRefused, SandboxUnavailable
from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images import debootstrap
from etude.sandbox.images.debootstrap import bootstrap, host_mirror
from etude.sandbox.images.store import ImageStore

IDS = probe_host().ids
MIRROR = "https://mirror.example/debian"
ABLE = shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is not None and IDS is not None


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", IDS)


@pytest.fixture
def alone(tmp_path: Path) -> ImageStore:
    """For what is changed in this process alone: no store process sees it."""
    return ImageStore(tmp_path / "alone", None)


@pytest.mark.slow
@pytest.mark.skipif(not ABLE, reason="needs debootstrap, and root or subordinate ids")
@in_loop
async def test_a_debian_in_a_box(tmp_path: Path) -> None:
    sandboxes = EmbeddedSandboxes(tmp_path)
    try:
        image = bootstrap(sandboxes.store, "bookworm", include=["tree"])
        assert sandboxes.store.origin(image).startswith("debootstrap bookworm with tree from ")
        assert sandboxes.store.image(image).pinned
        box = await sandboxes.create(BoxSpec(image))
        said = await box.exec("id -un; . /etc/os-release; echo $VERSION_CODENAME; tree --version", timeout=20)
        assert said.code == 0, said
        assert said.stdout.decode().split()[:3] == ["root", "bookworm", "tree"]
        audit = await box.exec("dpkg --audit && dpkg -V base-files bash tree", timeout=60)
        assert (audit.code, audit.stdout) == (0, b""), audit
    finally:
        await sandboxes.close()
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]


@pytest.mark.skipif(not ABLE, reason="needs debootstrap, and root or subordinate ids")
def test_a_mirror_that_is_none(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "mirror").mkdir()
    with pytest.raises(ImageError, match=r"debootstrap failed \(code 1\): .*[Ff]ailed"):
        bootstrap(store, "bookworm", mirror=f"file://{tmp_path}/mirror")
    assert sorted(path.name for path in store.scratch.iterdir()) == ["leases", "lock"]


@pytest.mark.parametrize(
    ("suite", "mirror", "include"),
    [("../x", "", []), ("bookworm", "nowhere", []), ("bookworm", "", ["--foreign"]), ("--help", "", [])],
)
def test_odd_requests(store: ImageStore, suite: str, mirror: str, include: list[str]) -> None:
    with pytest.raises(RequestRefused, match="expected"):
        bootstrap(store, suite, mirror=mirror, include=include)


def test_what_is_missing_is_named(alone: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debootstrap, "_PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match="apt-get install debootstrap"):
        bootstrap(alone, "bookworm", mirror=MIRROR)


def test_one_id_is_too_few(alone: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/usr/sbin/{name}")
    with pytest.raises(SandboxUnavailable, match=r"subordinate ids \(see `etude sandbox doctor`\)"):
        bootstrap(alone, "bookworm", mirror=MIRROR)


def test_the_hosts_own_mirror(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://u.example/ubuntu x main\ndeb http://m.example/debian/ x main\n")
    assert host_mirror(tmp_path) == "http://m.example/debian"
    (tmp_path / "sources.list").write_text("deb http://u.example/ubuntu noble main\n")
    with pytest.raises(RequestRefused, match="name one with --mirror"):
        host_mirror(tmp_path)
