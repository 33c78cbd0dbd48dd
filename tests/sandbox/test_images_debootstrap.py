"""A Debian from its packages; what is wrong with a request is said before anything is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.egress_internet import WHEEL, wheel

from etude.sandbox import BoxSpec, EmbeddedSandboxes, ImageError, RequestRefused, SandboxUnavailable
from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images import debootstrap
from etude.sandbox.images.debootstrap import bootstrap, host_mirror
from etude.sandbox.images.store import ImageStore

IDS = probe_host().ids
MIRROR = "https://mirror.example/debian"
ABLE = shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is not None and IDS is not None


DEBIAN = """\
ARG BASE
FROM $BASE AS built
RUN adduser --system --group --home /var/lib/svc svc && useradd --create-home person
COPY debs /debs/
RUN dpkg -i /debs/demo.deb && dpkg -s demo | grep -q "ok installed" && demo
RUN apt-get install -y --no-install-recommends /debs/second.deb && apt-get check
RUN rm -rf /var/lib/apt/lists/* && dpkg --purge second && demo
COPY wheels /wheels/
RUN pip install --break-system-packages --no-index --find-links /wheels tiny-package
USER person
WORKDIR /home/person/repository
ENV GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p@example.org GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p@example.org
RUN git init -q && echo 1 > a && git add . && git commit -qm one && git mv a b && git commit -qm two
FROM built
RUN git clone -q . ../clone && git -C ../clone gc -q && git -C ../clone fsck
RUN git mv b c && git status --short > /tmp/status
RUN python3 -c "import tiny_package; print(tiny_package.answer)" > /tmp/word
USER root
RUN pip uninstall --break-system-packages -y tiny-package
RUN dpkg -P demo && test ! -e /usr/bin/demo && deluser --quiet svc
"""


def write_deb(path: Path, name: str, *, depends: str = "", postinst: str = "") -> None:
    tree = path.with_suffix(".tree")
    for folder in ("DEBIAN", "usr/bin", f"var/lib/{name}", f"etc/{name}"):
        (tree / folder).mkdir(parents=True)
    control = {"Package": name, "Version": "1.0", "Architecture": "all", "Maintainer": "n <n@example.org>"}
    control |= {"Description": name, **({"Depends": depends} if depends else {})}
    (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
    (tree / "DEBIAN/conffiles").write_text(f"/etc/{name}/conf\n")
    (tree / f"etc/{name}/conf").write_text("x\n")
    (tree / "usr/bin" / name).write_text(f"#!/bin/sh\ntest -f /etc/{name}/conf\n")
    (tree / "usr/bin" / name).chmod(0o755)
    os.link(tree / "usr/bin" / name, tree / "usr/bin" / f"{name}-too")
    if postinst:
        (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\nset -e\n{postinst}\n")
        (tree / "DEBIAN/postinst").chmod(0o755)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(path)], check=True, capture_output=True)
    shutil.rmtree(tree)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", IDS)


@pytest.fixture
def alone(tmp_path: Path) -> ImageStore:
    """For what is changed in this process alone: no store process sees it."""
    return ImageStore(tmp_path / "alone", None)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of images and one in it, which takes half a minute to make."""
    root = tmp_path_factory.mktemp("debian")
    store = ImageStore(root, IDS)
    image = bootstrap(store, "bookworm", include=["tree", "git", "python3-pip", "adduser"])
    store.close()
    return root, image


@pytest.mark.slow
@pytest.mark.skipif(not ABLE, reason="needs debootstrap, and root or subordinate ids")
@in_loop
async def test_a_debian_in_a_box(debian: tuple[Path, str]) -> None:
    root, image = debian
    sandboxes = EmbeddedSandboxes(root)
    try:
        assert sandboxes.store.origin(image).startswith(
            "debootstrap bookworm with tree, git, python3-pip, adduser from "
        )
        assert sandboxes.store.image(image).pinned
        box = await sandboxes.create(BoxSpec(image))
        said = await box.exec("id -un; . /etc/os-release; echo $VERSION_CODENAME; tree --version", timeout=20)
        assert said.code == 0, said
        assert said.stdout.decode().split()[:3] == ["root", "bookworm", "tree"]
        audit = await box.exec("dpkg --audit && dpkg -V base-files bash tree", timeout=60)
        assert (audit.code, audit.stdout) == (0, b""), audit
    finally:
        await sandboxes.close()
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(root) in line]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(not ABLE, reason="needs debootstrap, and root or subordinate ids")
@in_loop
async def test_what_peoples_dockerfiles_do_with_packages(debian: tuple[Path, str], tmp_path: Path) -> None:
    """Packages of dpkg, apt and pip, users, git; nothing is fetched from anywhere."""
    root, base = debian
    context = tmp_path / "context"
    (context / "debs").mkdir(parents=True)
    postinst = "chown svc:svc /var/lib/demo; chmod 2750 /var/lib/demo; ln -s demo /usr/bin/demo-link"
    write_deb(context / "debs/demo.deb", "demo", postinst=postinst)
    write_deb(context / "debs/second.deb", "second", depends="demo")
    (context / "wheels").mkdir()
    (context / "wheels" / WHEEL).write_bytes(wheel())
    (context / "Dockerfile").write_text(DEBIAN)
    sandboxes = EmbeddedSandboxes(root)
    said: list[str] = []
    try:
        image = await sandboxes.build_image(context, arguments={"BASE": base}, say=said.append)
        box = await sandboxes.create(BoxSpec(image))
        look = "cat /tmp/status /tmp/word; stat -c '%U %a' ~person/repository/c; test -e /usr/bin/demo || echo gone"
        shown = await box.exec(look, timeout=20)
        assert shown.stdout == b"R  b -> c\n42\nperson 644\ngone\n", (shown, said[-30:])
    finally:
        await sandboxes.close()


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
