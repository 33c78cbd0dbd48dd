"""What people's Dockerfiles do: packages of dpkg, apt, pip and npm, users, git; nothing is fetched from anywhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.egress_internet import WHEEL, wheel

from etude.sandbox import BoxSpec, EmbeddedSandboxes

pytestmark = pytest.mark.slow

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


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
@pytest.mark.skipif(not shutil.which("debootstrap", path="/usr/sbin:/usr/bin"), reason="debootstrap is not installed")
@in_loop
async def test_packages_in_a_debian_tree(tmp_path: Path) -> None:
    from etude.sandbox.images.debootstrap import bootstrap

    context = tmp_path / "context"
    (context / "debs").mkdir(parents=True)
    postinst = "chown svc:svc /var/lib/demo; chmod 2750 /var/lib/demo; ln -s demo /usr/bin/demo-link"
    write_deb(context / "debs/demo.deb", "demo", postinst=postinst)
    write_deb(context / "debs/second.deb", "second", depends="demo")
    (context / "wheels").mkdir()
    (context / "wheels" / WHEEL).write_bytes(wheel())
    (context / "Dockerfile").write_text(DEBIAN)

    sandboxes = EmbeddedSandboxes(tmp_path / "store")
    said: list[str] = []
    try:
        packages = ["git", "python3-pip", "adduser"]
        base = await asyncio.to_thread(bootstrap, sandboxes.store, "bookworm", include=packages, say=said.append)
        box = await sandboxes.create(
            BoxSpec(await sandboxes.build_image(context, arguments={"BASE": base}, say=said.append))
        )
        look = "cat /tmp/status /tmp/word; stat -c '%U %a' ~person/repository/c; test -e /usr/bin/demo || echo gone"
        shown = await box.exec(look, timeout=20)
        assert shown.stdout == b"R  b -> c\n42\nperson 644\ngone\n", (shown, said[-30:])
    finally:
        await sandboxes.close()
