"""A root file system that is small and real: a static busybox, two users and a merged /bin."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:500:600:app:/home/app:/bin/sh\n"
GROUP = "root:x:0:\napp:x:600:\nstaff:x:50:app\n"


@functools.cache
def static_busybox() -> Path | None:
    """The busybox of this machine, where it needs no libraries."""
    program = shutil.which("busybox")
    if program is None:
        return None
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return Path(program) if "not a dynamic executable" in linked.stdout + linked.stderr else None


needs_busybox = pytest.mark.skipif(static_busybox() is None, reason="needs a static busybox")


def write_root(tar: Path) -> Path:
    """As root would own it, whoever writes it."""
    folder = tar.with_suffix(".root")
    for name in ("usr/bin", "etc", "root", "home/app", "tmp", "var/lib"):
        (folder / name).mkdir(parents=True)
    busybox = static_busybox()
    assert busybox is not None, "the test needs_busybox"
    shutil.copy(busybox, folder / "usr/bin/busybox")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name != "busybox":
            (folder / "usr/bin" / name).symlink_to("busybox")
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc/passwd").write_text(PASSWD)
    (folder / "etc/group").write_text(GROUP)
    (folder / "tmp").chmod(0o1777)
    (folder / "root").chmod(0o700)

    def as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid, info.gid = (500, 600) if info.name.startswith("home/app") else (0, 0)
        info.uname = info.gname = ""
        return info

    with tarfile.open(tar, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=as_root)
    shutil.rmtree(folder)
    return tar
