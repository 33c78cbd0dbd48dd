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

from etude.sandbox import Egress, EmbeddedSandboxes
from etude.sandbox.inside.network import has_ipv6

pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Internet, EmbeddedSandboxes]]:
    with small_internet(tmp_path_factory.mktemp("internet"), "::1") as internet:
        sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"), upstream=internet.upstream)
        yield internet, sandboxes
        asyncio.run(sandboxes.close())


@pytest.fixture
def stage(backend: tuple[Internet, EmbeddedSandboxes]) -> Scene:
    return Scene(*backend)


PYTHON = """
import socket, urllib.request
found = socket.getaddrinfo
socket.getaddrinfo = lambda *a, **k: [one for one in found(*a, **k) if one[0] == socket.AF_INET6]
for scheme in ("http", "https"):
    print(urllib.request.urlopen(scheme + "://index.example/page").read().decode())
"""
NODE = """
const get = m => new Promise(done => require(m).get({host: 'index.example', path: '/page', family: 6}, r => {
  console.log(r.socket.remoteFamily); r.on('data', d => console.log(d.toString())); r.on('end', done) }));
get('http').then(() => get('https'));
"""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=needs(*command[:1]) if command[0] != "python" else (), id=command[0])
        for command in (
            ["curl", "-6", "-sS", "https://index.example/page", "http://index.example/page"],
            ["wget", "-6", "-qO-", "https://index.example/page", "http://index.example/page"],
            ["python", "-c", PYTHON],
            ["node", "-e", NODE],
        )
    ],
)
@on_stage
async def test_clients_that_want_ipv6(stage: Scene, command: list[str]) -> None:
    box = await stage.box()
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


@needs("curl")
@pytest.mark.parametrize(
    ("command", "host"),
    [
        ("curl -sSg https://[2606:4700:4700::1111]/page", "2606:4700:4700::1111"),
        ("curl -sSg http://[fd00::1]/page", "fd00::1"),
        ("curl -sSg http://[fd5e:84c2:77a1::1]/page", "fd5e:84c2:77a1::1"),
        ("curl -sSg http://[fd5e:84c2:77a1::99]/page", "fd5e:84c2:77a1::99"),
        ("curl -sSg http://[64:ff9b::a9fe:a9fe]/latest", "64:ff9b::a9fe:a9fe"),
        ("curl -sSg http://[::ffff:169.254.169.254]/latest", "169.254.169.254"),
        ("curl -sSg http://[2001:2::2]/page", "2001:2::2"),
        ("curl -sSk --connect-to ::[2606::1]: https://index.example/page", "2606::1"),
    ],
)
@on_stage
async def test_an_address_that_no_name_has_is_refused_and_logged(stage: Scene, command: str, host: str) -> None:
    box = await stage.box()
    said = await box.exec(f"curl -sS https://index.example/page >/dev/null; {command}", timeout=20)
    assert said.code != 0
    assert b"page of" not in said.stdout
    assert not said.timed_out, "refused at once: nobody waits for an answer"
    await stage.settled()
    (row,) = [row for row in stage.rows if "refused" in row]
    assert (row["host"], row["refused"]) == (host, "no name was given for this address")


@needs("curl")
@on_stage
async def test_a_name_and_an_address_of_another_name(stage: Scene) -> None:
    box = await stage.box()
    ask = "getent ahostsv6 files.example; getent ahostsv6 index.example"
    ok(await box.exec(ask, timeout=5))
    said = await box.exec("curl -sSk --connect-to ::[2001:2::1]: https://index.example/page", timeout=20)
    assert b"page of" not in said.stdout
    await stage.settled()
    assert any("a TLS handshake for index.example on a connection to files.example" in one for one in stage.refused)


ASK = """
import socket, struct
def ask(server, name, kind, tcp):
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    q = struct.pack("!HHHHHH", 5, 256, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, 1)
    if tcp:
        s = socket.create_connection((server, 53), 5)
        s.sendall(struct.pack("!H", len(q)) + q)
        return s.recv(512)[2:]
    s = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect((server, 53))
    s.send(q)
    return s.recv(512)
for server in ("192.168.1.1", "8.8.8.8", "fd5e:84c2:77a1::1", "2001:4860:4860::8888"):
    for tcp in (0, 1):
        print(ask(server, "index.example", 28, tcp)[-16:].hex(), ask(server, "index.example", 1, tcp)[-4:].hex(),
              ask(server, "evil.example", 28, tcp)[3] & 15, ask(server, "index.example", 16, tcp)[7])
"""


@on_stage
async def test_the_name_server_answers_by_either_family(stage: Scene) -> None:
    box = await stage.box()
    same = "20010002000000000000000000000001 c6120001 3 0\n"
    assert ok(await box.exec(["python", "-c", ASK], timeout=20)) == same * 8


@on_stage
async def test_other_ports_and_datagrams_are_refused_at_once(stage: Scene) -> None:
    box = await stage.box()
    for place, kind in ((("2606::1", 22), "STREAM"), (("index.example", 8443), "STREAM"), (("2606::1", 443), "DGRAM")):
        script = f"import socket as s; c = s.socket(s.AF_INET6, s.SOCK_{kind}); c.settimeout(5); "
        script += f"c.connect({place!r}); c.send(b'x'); c.recv(1)"
        said = await box.exec(["python", "-c", script], timeout=20)
        assert b"ConnectionRefusedError" in said.stderr, said  # What nobody answers is a TimeoutError.


@needs("curl")
@on_stage
async def test_loopback_and_all_ports_are_the_boxs_own(stage: Scene) -> None:
    script = """
import socket
for host in ("::", "::1", "fd5e:84c2:77a1::20"):
    with socket.create_server((host, 8443), family=socket.AF_INET6) as s, socket.create_connection((host, 8443)) as c:
        a, _ = s.accept()
        a.send(b"own")
        print(c.recv(9))
"""
    box = await stage.box(Egress("test", ("index.example:8443",)))
    assert ok(await box.exec(["python", "-c", script], timeout=20)) == "b'own'\n" * 3
    refused = await box.exec("curl -sSg http://[::1]:8443/; curl -sSg http://[::1]:80/", timeout=20)
    assert refused.stderr.count(b"Couldn't connect") + refused.stderr.count(b"Failed to connect") >= 2
    assert stage.refused == []


@needs("curl")
@on_stage
async def test_two_boxes_are_apart(stage: Scene) -> None:
    one, other = await stage.box(), await stage.box()
    server = asyncio.create_task(one.exec("python -m http.server -b :: 9000", timeout=20))
    assert "page" in ok(await one.exec("curl -sS https://index.example/page", timeout=20))
    for place in ("[fd5e:84c2:77a1::20]:9000", "[fd5e:84c2:77a1::1]:9000", "[2001:2::1]:9000"):
        assert (await other.exec(f"curl -sSg -m 5 http://{place}/", timeout=20)).code != 0
    server.cancel()


@needs("curl")
@on_stage
async def test_children_have_it_too(stage: Scene) -> None:
    (child,) = await (await stage.box()).fork()
    stage.boxes.append(child)
    assert "page" in ok(await child.exec("curl -6 -sS https://index.example/page", timeout=20))


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
