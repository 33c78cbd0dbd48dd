"""Ways to the host around the walls of a box: its egress proxy, and images."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import Scene, attack
from etude.sandbox.contract import BoxSpec, DiskFull, Egress, ImageError, RequestRefused, SandboxUnavailable
from etude.sandbox.egress.addresses import may_reach

INWARD = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1",
    "192.0.0.1", "192.0.0.192", "192.168.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::10.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1",
    "::ffff:0:10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "64:ff9b:1::127.0.0.1", "100::1",
    "2001::1", "2001:0:0:0:0:0:80ff:fffe", "2002:7f00:1::", "2002:a00:1::1", "2001:db8::1", "fc00::1", "fd00::1",
    "fe80::1", "fec0::1", "feff::1", "ff02::1", "3fff::1", "5f00::1", "168.63.129.16", "fd00:ec2::254",
    "fe80::5efe:808:808", "fd00::200:5efe:808:808", "2600::5efe:7f00:1", "2002:808:808::5efe:7f00:1",
)  # fmt: skip
"""Addresses that a box must not reach: those of the host, of private networks and of metadata services, and reserved
ones, in every notation that leads there."""


@attack(classes.EGRESS)
async def inward_addresses(scene: Scene) -> None:
    """Resolve an allowed name to an address of the host or of a private network."""
    for address in INWARD:
        scene.count(not may_reach(address, private=False), f"{address} is reached")
    for address in (
        "169.254.169.254",
        "fe80::1",
        "fe80::1%1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "224.0.0.1",
    ):
        scene.count(not may_reach(address, private=True), f"{address} is reached by a policy with `private`")


_LINES = (
    ("GET /", "localhost"),
    ("GET /", "127.0.0.1"),
    ("GET http://127.0.0.1:{port}/", "localhost"),
    ("GET http://127.0.0.1:{port}/", "127.0.0.1"),
    ("CONNECT localhost:{port}", "localhost"),
    ("CONNECT 127.0.0.1:{port}", "localhost"),
    ("CONNECT [::ffff:127.0.0.1]:{port}", "[::ffff:127.0.0.1]"),
)
"""Requests with which a box asks its egress proxy for a service of the host: the beginning of the request line, and the
host for the Host header. The box sends each to the address that it gets for localhost, the only allowed name."""


@attack(classes.EGRESS)
async def inward_requests(scene: Scene) -> None:
    """Ask a box's proxy for a service of the host: by an allowed name, addresses, whole URLs and CONNECT."""
    reached: list[object] = []

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer.get_extra_info("peername"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as service:
        port = str(service.sockets[0].getsockname()[1])
        box = await scene.sandboxes.create(replace(scene.spec(), egress=Egress("attack", (f"localhost:{port}",))))
        scene.boxes.append(box)
        for line, host in _LINES:
            request = f"{line.format(port=port)} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
            await scene.run(box, "by_name", "localhost", port, request, source="inward")
        await scene.run(box, "by_address", port, *INWARD, source="inward")
        scene.count(not reached, f"the host was reached {len(reached)} times")


def _tar(*members: tuple[str, Callable[[tarfile.TarInfo], None], bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, change, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _pax(**headers: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = headers

    return change


def _link(goal: str, kind: bytes = tarfile.SYMTYPE) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, goal, 0

    return change


def _plain(info: tarfile.TarInfo) -> None:
    info.mode = 0o755


def odd_roots(host: Path) -> dict[str, bytes]:
    """Return tars of root file systems, by what is wrong with each: a path or link that leads out of the image, or
    something that no real file system has. `host` is a folder of the host that no import may write to."""
    outside = str(host / "from-an-image")
    return {
        "an infinite time": _tar(("f", _pax(mtime="inf"), b"x")),
        "a time that is no number": _tar(("f", _pax(mtime="nan"), b"x")),
        "a time beyond every clock": _tar(("f", _pax(mtime="9" * 30), b"x")),
        "/proc is a link": _tar(("proc", _link("/tmp"), b""), ("bin/sh", _plain, b"x")),
        "/dev is a link": _tar(("dev", _link("/etc"), b"")),
        "/tmp is a file": _tar(("tmp", _plain, b"x")),
        "a name that climbs": _tar((f"../../../../../..{outside}", _plain, b"x")),
        "an absolute name": _tar((outside, _plain, b"x")),
        "a link to the host, and a file below it": _tar(
            ("a", _link(str(host)), b""), ("a/from-an-image", _plain, b"x")
        ),
        "a hard link to the host": _tar(("a", _link("/etc/passwd", tarfile.LNKTYPE), b"")),
        "a negative owner": _tar(("f", _pax(uid="-1", gid="-1"), b"x")),
        "an owner beyond all ids": _tar(("f", _pax(uid=str(1 << 40)), b"x")),
        "a name of 300 letters": _tar(("n" * 300, _plain, b"x")),
        "a path of 5,000 letters": _tar(("d/" * 2500 + "f", _plain, b"x")),
        "an empty name": _tar(("", _plain, b"x")),
        "an attribute of the overlay": _tar(("f", _pax(**{"SCHILY.xattr.trusted.overlay.redirect": "/"}), b"x")),
    }


@attack(classes.IMAGES)
async def odd_images(scene: Scene) -> None:
    """Import root file systems that are malformed or lead out, and make boxes of those that are taken."""
    before = sorted(path.name for path in scene.folder.iterdir())
    for what, tar in odd_roots(scene.folder).items():
        source = scene.folder.parent / "odd.tar"
        source.write_bytes(tar)
        try:
            image = await scene.sandboxes.import_image(source)
            box = await scene.sandboxes.create(BoxSpec(image))
            await box.destroy()
        except (ImageError, RequestRefused):
            scene.held()
        except (DiskFull, SandboxUnavailable):  # The host's failure decides nothing.
            raise
        except Exception as error:  # noqa: BLE001  # Any other is what the attack wants.
            scene.breach(f"{what}: {type(error).__name__}: {error}")
        else:
            scene.held()
        source.unlink()
    after = sorted(path.name for path in scene.folder.iterdir())
    scene.count(before == after, f"on the host: {after}")
