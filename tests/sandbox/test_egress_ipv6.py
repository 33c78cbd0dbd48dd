"""IPv6: real programs that speak nothing else, to a real host on ::1; and what does not get through."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.sandbox.support import ok
from tests.needs import needs
from tests.sandbox.egress_internet import Internet, small_internet
from tests.sandbox.egress_scene import Scene, on_stage

from etude.sandbox import EmbeddedSandboxes
from etude.sandbox.inside.network import has_ipv6

pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Internet, EmbeddedSandboxes]]:
    with small_internet(tmp_path_factory.mktemp("internet"), "::1") as internet:
        sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"), upstream=internet.upstream)
        yield internet, sandboxes
        asyncio.run(sandboxes.close())


CLIENTS = [
    ["curl", "-6", "-sS", "https://index.example/page", "http://index.example/page"],
    ["wget", "-6", "-qO-", "https://index.example/page", "http://index.example/page"],
]


@needs("curl", "wget")
@on_stage
async def test_clients_that_want_ipv6(stage: Scene) -> None:
    box = await stage.box()
    for command in CLIENTS:
        said = await box.exec(command, timeout=30)
        assert said.stdout.count(b"page of index.example") == 2, said
    await stage.settled()
    assert {(row["scheme"], row["status"]) for row in stage.rows} == {("http", 200), ("https", 200)}


@needs("curl")
@on_stage
async def test_programs_that_may_choose_take_either(stage: Scene) -> None:
    """The order in which both addresses come is that of RFC 6724 for a private source: IPv4 first."""
    box = await stage.box()
    found = ok(await box.exec("getent ahosts index.example | awk '/STREAM/ { print $1 }'", timeout=5)).split()
    assert found == ["198.18.0.1", "2001:2::1"]
    one_by_one = (
        "for place in 198.18.0.1 [2001:2::1]; do curl -sS --connect-to ::$place: https://index.example/page; done"
    )
    assert ok(await box.exec(one_by_one, timeout=20)).count("page of index.example") == 2


ADDRESSES = [
    *("2606:4700:4700::1111", "fd00::1", "fd5e:84c2:77a1::1", "fd5e:84c2:77a1::99", "64:ff9b::a9fe:a9fe", "2001:2::2"),
    "::ffff:169.254.169.254",
]


@needs("curl")
@on_stage
async def test_an_address_that_no_name_has_is_refused_and_logged(stage: Scene) -> None:
    box = await stage.box()
    ok(await box.exec("curl -sS https://index.example/page >/dev/null", timeout=20))
    for address in ADDRESSES:
        said = await box.exec(f"curl -sSg http://[{address}]/page", timeout=20)
        assert said.code != 0
        assert b"page of" not in said.stdout
        assert not said.timed_out, "refused at once: nobody waits for an answer"
    await stage.settled()
    refused = [(row["host"], row["refused"]) for row in stage.rows if "refused" in row]
    assert refused == [(host.removeprefix("::ffff:"), "no name was given for this address") for host in ADDRESSES]


WITHOUT = """
import asyncio, sys
from pathlib import Path
from tests.sandbox.egress_internet import small_internet
from etude.sandbox import BoxSpec, Egress, EmbeddedSandboxes
async def main(internet):
    sandboxes = EmbeddedSandboxes(Path(sys.argv[2]), upstream=internet.upstream)
    box = await sandboxes.create(BoxSpec("host", egress=Egress("test", ("index.example",))))
    for command in ("grep -c ^fd5e /proc/net/if_inet6", "getent ahosts index.example | grep -c :",
                    "curl -sS https://index.example/page", "curl -6 -sS https://index.example/page"):
        print((await box.exec(command, timeout=20)).stdout.decode().strip())
    await sandboxes.close()
with small_internet(Path(sys.argv[1])) as internet:
    asyncio.run(main(internet))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user who hides parts of /proc may not mount one in a box")
def test_a_host_without_ipv6_goes_on_with_ipv4(tmp_path: Path) -> None:
    """Its kernel's settings are hidden from the process that makes the box, as where it has none."""
    (tmp_path / "internet").mkdir()
    hide = ["unshare", "--mount", "--propagation=private"]
    script = 'mount -t tmpfs none /proc/sys/net && exec "$@"'
    program = [sys.executable, "-c", WITHOUT, str(tmp_path / "internet"), str(tmp_path / "boxes")]
    said = subprocess.run(
        [*hide, "sh", "-c", script, "sh", *program],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert said.stdout.split("\n") == ["0", "0", "page of index.example", "", ""], said
