"""Real programs in real boxes, through the proxy to real servers over TLS; and what must not get through."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.sandbox.support import ok
from tests.needs import needs
from tests.sandbox.egress_internet import Internet, small_internet
from tests.sandbox.egress_scene import Scene, on_stage

from etude.sandbox import Egress, EmbeddedSandboxes
from etude.sandbox.contract import NO_EGRESS
from etude.sandbox.egress import log, parse_egress
from etude.sandbox.egress.proxy import MOST_CONNECTIONS
from etude.sandbox.inside.network import has_ipv6


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Internet, EmbeddedSandboxes]]:
    with small_internet(tmp_path_factory.mktemp("internet")) as internet:
        sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"), upstream=internet.upstream)
        yield internet, sandboxes
        asyncio.run(sandboxes.close())


SIX = has_ipv6()
needs_ipv6 = pytest.mark.skipif(not SIX, reason="this host has no IPv6")


def packages(*names: str) -> dict[str, bytes]:
    """Installed packages of this interpreter, as files of an image."""
    files = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        for path in Path(spec.origin).parent.rglob("*"):
            if path.suffix in (".py", ".pem", ".json"):
                files[f"lib/{name}/{path.relative_to(Path(spec.origin).parent)}"] = path.read_bytes()
    return files


LIBRARIES = ("requests", "certifi", "urllib3", "idna", "charset_normalizer")

# -- what gets through

CLIENTS = {
    "curl": "curl -sS https://index.example/page http://index.example/page",
    "urllib": "python -c \"import urllib.request as u; [print(u.urlopen(s + '://index.example/page').read().decode()) "
    "for s in ('http', 'https')]\"",
    "node": "node -e \"for (const s of ['http', 'https']) fetch(s + '://index.example/page').then(async r => "
    'console.log(await r.text()))"',
    "requests": "PYTHONPATH=lib python -c \"import requests as r; [print(r.get(s + '://index.example/page').text) "
    "for s in ('http', 'https')]\"",
}


@needs("curl", "node")
@on_stage
async def test_clients_over_tls_and_plain(stage: Scene) -> None:
    box = await stage.box(image=await stage.sandboxes.add_image(packages(*LIBRARIES)))
    for name, command in CLIENTS.items():
        said = await box.exec(command, timeout=60)
        assert said.stdout.count(b"page of index.example") == 2, (name, said)
    await stage.settled()
    served = {(row["scheme"], row["status"]) for row in stage.rows}
    assert served == {("http", 200), ("https", 200)}
    assert stage.refused == []


@on_stage
async def test_pip_installs(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    index = "https://index.example/all"
    monkeypatch.setenv("PIP_INDEX_URL", index)
    box = await stage.box(parse_egress("pip,files.example"))
    if (await box.exec("/usr/bin/python3 -c 'import pip'", timeout=20)).code != 0:
        pytest.skip("/usr/bin/python3 has no pip: make tools")
    install = f"/usr/bin/python3 -m pip install -q --index-url {index} --target t --no-cache-dir"
    ok(await box.exec(f"{install} tiny-package", timeout=60))
    assert (
        ok(await box.exec("PYTHONPATH=t python -c 'import tiny_package as t; print(t.answer)'", timeout=20)) == "42\n"
    )
    await stage.settled()
    assert [row["host"] for row in stage.rows if row.get("status") == 200] == ["index.example", "files.example"]


@needs("npm", "node")
@on_stage
async def test_npm_installs(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = "https://packages.example"
    monkeypatch.setenv("npm_config_registry", registry)
    box = await stage.box(parse_egress("npm"))
    install = f"npm install --registry {registry} --no-audit --no-fund tiny-package"
    ok(await box.exec(f"npm init -y && {install}", timeout=60))
    assert ok(await box.exec(["node", "-p", "require('tiny-package')"], timeout=20)) == "42\n"


@on_stage
async def test_git_clones_and_cannot_push(stage: Scene) -> None:
    box = await stage.box(parse_egress("git.example"))
    ok(await box.exec("git clone -q https://user:s3cret@git.example/team/repo.git", timeout=60))
    assert ok(await box.exec("cd repo && ls | wc -l && git fsck 2>&1 && git fetch -q", timeout=20)).startswith("200\n")
    change = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
    pushed = await box.exec(f"cd repo && {change} && GIT_TERMINAL_PROMPT=0 git push -q", timeout=60)
    assert pushed.code != 0
    assert not [fields for _, _, _, fields in stage.internet.asked if "Authorization" in fields]
    assert "s3cret" not in str(stage.internet.asked) + str(stage.rows)


@on_stage
async def test_apt_updates_and_fetches(stage: Scene) -> None:
    options = "-o Dir::State=/work/s -o Dir::Cache=/work/c -o Dir::Etc=/work/e -o Dir::State::status=/work/status"
    prepare = "mkdir -p s/lists/partial c/archives/partial e && touch status && "
    prepare += "echo 'deb [trusted=yes] http://deb.distro.example/debian stable main' >e/sources.list"
    box = await stage.box(parse_egress("deb.distro.example"))
    ok(await box.exec(f"{prepare} && apt-get {options} update && apt-get {options} download tiny", timeout=60))
    assert ok(await box.exec("cat tiny_*.deb", timeout=5)) == "deb\n"


@needs("curl")
@on_stage
async def test_bodies_of_all_sizes(stage: Scene) -> None:
    box = await stage.box()
    assert ok(await box.exec("curl -sS https://index.example/large?30000000 | wc -c", timeout=60)) == "30000000\n"
    upload = "head -c 9000000 /dev/zero >f && sha256sum <f | cut -c-64 && curl -sS --data-binary @f https://index.example/echo"
    sent, received = ok(await box.exec(upload, timeout=60)).split()
    assert sent == received
    await stage.settled()
    assert [(row["sent"], row["received"]) for row in stage.rows] == [(0, 30_000_000), (9_000_000, 64)]


@needs("curl")
@on_stage
async def test_children_and_snapshots_keep_the_way_out_and_not_its_files(stage: Scene) -> None:
    box = await stage.box()
    ok(await box.exec("curl -sS https://index.example/page >got", timeout=20))
    (child,) = await box.fork()
    stage.boxes.append(child)
    for one in (box, child):
        for family in ("-4", "-6")[: 1 + SIX]:
            fetch = f"cat got && curl {family} -sS https://index.example/page"
            assert "index.example" in ok(await one.exec(fetch, timeout=20))
    closed = await stage.box(NO_EGRESS, await child.snapshot())
    seen = await closed.exec("cat got; ls /etc/ssl; env | grep CERT; cat /etc/resolv.conf", timeout=20)
    assert (seen.stdout, b"/etc/ssl" in seen.stderr) == (b"page of index.example\n", True)


# -- what does not


@needs("curl")
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("curl -sS https://evil.example/page", "no pattern"),
        ("curl -sS --resolve evil.example:443:198.18.0.1 -k https://evil.example/page", "no name was given"),
        ("curl -sS http://169.254.169.254/latest/meta-data/", "no name was given"),
        ("curl -sS http://192.168.1.1/", "no name was given"),
        ("curl -sSk --connect-to evil.example:443:index.example:443 -H 'Host: index.example' https://evil.example/page",
         "a TLS handshake for evil.example on a connection to index.example"),
        # One allowed host behind another: each has its own rights at its own server.
        ("curl -sS -H 'Host: files.example' https://index.example/page", "a request for host 'files.example'"),
        ("printf 'GET / HTTP/1.1\\r\\nHost: index.example\\r\\n\\r\\n' | "
         "openssl s_client -quiet -noservername -connect index.example:443", "no name on"),
        ("curl -sS --tlsv1.1 --tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0 https://index.example/page",
         "handshake failed"),
    ],
)  # fmt: skip
@on_stage
async def test_what_does_not_get_through(stage: Scene, command: str, reason: str) -> None:
    box = await stage.box()
    said = await box.exec(command, timeout=30)
    assert b"page of" not in said.stdout, said
    assert not [asked for asked in stage.internet.asked if asked[2] == "/page"]
    await stage.settled()
    assert any(reason in refused for refused in stage.refused), (said, stage.rows)


IPV6_ADDRESSES = [
    *("2606:4700:4700::1111", "fd00::1", "fd5e:84c2:77a1::1", "fd5e:84c2:77a1::99", "64:ff9b::a9fe:a9fe", "2001:2::2"),
    "::ffff:169.254.169.254",
]


@needs_ipv6
@needs("curl")
@on_stage
async def test_programs_that_may_choose_take_either_family(stage: Scene) -> None:
    """The order in which both addresses come is that of RFC 6724 for a private source: IPv4 first."""
    box = await stage.box()
    found = ok(await box.exec("getent ahosts index.example | awk '/STREAM/ { print $1 }'", timeout=5)).split()
    assert found == ["198.18.0.1", "2001:2::1"]
    one_by_one = (
        "for place in 198.18.0.1 [2001:2::1]; do curl -sS --connect-to ::$place: https://index.example/page; done"
    )
    assert ok(await box.exec(one_by_one, timeout=20)).count("page of index.example") == 2


@needs_ipv6
@needs("curl")
@on_stage
async def test_an_ipv6_address_that_no_name_has_is_refused_and_logged(stage: Scene) -> None:
    box = await stage.box()
    ok(await box.exec("curl -sS https://index.example/page >/dev/null", timeout=20))
    for address in IPV6_ADDRESSES:
        said = await box.exec(f"curl -sSg http://[{address}]/page", timeout=20)
        assert said.code != 0
        assert b"page of" not in said.stdout
        assert not said.timed_out, "refused at once: nobody waits for an answer"
    await stage.settled()
    refused = [(row["host"], row["refused"]) for row in stage.rows if "refused" in row]
    assert refused == [(host.removeprefix("::ffff:"), "no name was given for this address") for host in IPV6_ADDRESSES]


@on_stage
async def test_other_ports_and_datagrams_are_refused_at_once(stage: Scene) -> None:
    box = await stage.box()
    four = [("index.example", 22, "STREAM"), ("index.example", 8443, "STREAM"), ("1.2.3.4", 25, "STREAM"),
            ("index.example", 443, "DGRAM")]  # fmt: skip
    six = [("2606::1", 22, "STREAM"), ("index.example", 8443, "STREAM"), ("2606::1", 443, "DGRAM")]
    for family, places in (("INET", four), ("INET6", six if SIX else [])):
        for host, port, kind in places:
            script = f"import socket as s; c = s.socket(s.AF_{family}, s.SOCK_{kind}); c.settimeout(5); "
            script += f"c.connect(('{host}', {port})); c.send(b'x'); c.recv(1)"
            said = await box.exec(["python", "-c", script], timeout=20)
            assert b"ConnectionRefusedError" in said.stderr, said  # What nobody answers is a TimeoutError.


ASK = """
import socket, struct, sys
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
for server in sys.argv[1:]:
    for tcp in (0, 1):
        print(ask(server, "index.example", 28, tcp)[-16:].hex(), ask(server, "index.example", 1, tcp)[-4:].hex(),
              ask(server, "evil.example", 28, tcp)[3] & 15, ask(server, "index.example", 16, tcp)[7])
"""


KNOCK_ON_ALL_DOORS = """
import socket
for number in range(2, 250):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knock:
        knock.sendto(b"x", (f"192.168.1.{number}", 9))
print(len(open("/proc/net/arp").readlines()) - 1)
"""
KNOCK_AS_MANY = """
import socket, time
gate, freebind = "fd5e:84c2:77a1::1", 78
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as knock:
    knock.sendto(b"x", (gate, 9))
time.sleep(1.5)  # Until the gate is known, and the device is ready.
device = socket.if_nametoindex("eth0")
for number in range(2, 250):
    for kind, door in ((socket.SOCK_DGRAM, f"fe80::{number:x}"), (socket.SOCK_STREAM, gate)):
        with socket.socket(socket.AF_INET6, kind) as knock:
            knock.setblocking(False)
            knock.setsockopt(socket.IPPROTO_IPV6, freebind, 1)
            knock.bind((f"fe80::1:{number:x}", 0, 0, device))
            knock.connect_ex((door, 53, 0, device))
            if kind == socket.SOCK_DGRAM:
                knock.send(b"x")
"""
"""Sends to many link-local addresses, and from as many to the gate, which answers."""


@on_stage
async def test_a_box_has_one_neighbour(stage: Scene) -> None:
    """The kernel's table of neighbours is one for all network namespaces, the host's included."""
    box = await stage.box()
    assert int(ok(await box.exec(["python", "-c", KNOCK_ON_ALL_DOORS], timeout=20))) <= 1


def neighbours_of_all() -> int:
    return int(Path("/proc/net/stat/ndisc_cache").read_text().splitlines()[1].split()[0], 16)


@needs_ipv6
@pytest.mark.skipif(not Path("/proc/net/stat/ndisc_cache").exists(), reason="only the first network namespace shows it")
@on_stage
async def test_a_box_and_its_gate_have_no_link_local_neighbours(stage: Scene) -> None:
    box, before = await stage.box(), neighbours_of_all()
    ok(await box.exec(["python", "-c", KNOCK_AS_MANY], timeout=20))
    assert neighbours_of_all() - before < 100


@on_stage
async def test_a_name_server_asked_directly_knows_no_more(stage: Scene) -> None:
    box = await stage.box()
    servers = ["192.168.1.1", "8.8.8.8", *(["fd5e:84c2:77a1::1", "2001:4860:4860::8888"] if SIX else [])]
    said = ok(await box.exec(["python", "-c", ASK, *servers], timeout=20)).splitlines()
    if SIX:
        assert said == ["20010002000000000000000000000001 c6120001 3 0"] * 8
    else:
        assert [line.split()[1:] for line in said] == [["c6120001", "3", "0"]] * 4


@needs("curl")
@on_stage
async def test_loopback_and_all_ports_are_the_boxs_own(stage: Scene) -> None:
    script = """
import socket, sys
for host in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 8443), family=family) as s, socket.create_connection((host, 8443)) as c:
        a, _ = s.accept()
        a.send(b"own")
        print(c.recv(9))
"""
    box = await stage.box(Egress("test", ("index.example:8443",)))
    own = ["0.0.0.0", "127.0.0.1", "192.168.1.20", *(["::", "::1", "fd5e:84c2:77a1::20"] if SIX else [])]
    assert ok(await box.exec(["python", "-c", script, *own], timeout=20)) == "b'own'\n" * len(own)
    for host in ["127.0.0.1", *(["[::1]"] if SIX else [])]:
        refused = await box.exec(f"curl -sSg http://{host}:8443/; curl -sSg http://{host}:80/", timeout=20)
        assert refused.stderr.count(b"Couldn't connect") + refused.stderr.count(b"Failed to connect") >= 2
    assert stage.refused == []


@needs("curl")
@on_stage
async def test_two_boxes_are_apart(stage: Scene) -> None:
    one, other = await stage.box(), await stage.box(Egress("less", ("git.example",)))
    servers = [
        asyncio.create_task(one.exec(f"python -m http.server -b {host} 9000", timeout=20))
        for host in ["0.0.0.0", *(["fd5e:84c2:77a1::20"] if SIX else [])]
    ]
    assert "page" in ok(await one.exec("curl -sS https://index.example/page", timeout=20))
    places = ["192.168.1.20:9000", "192.168.1.1:9000", "198.18.0.1:443"]
    places += ["[fd5e:84c2:77a1::20]:9000", "[fd5e:84c2:77a1::1]:9000", "[2001:2::1]:9000"] * SIX
    for place in places:
        assert (await other.exec(f"curl -sSg -m 5 http://{place}/", timeout=20)).code != 0
    assert (await other.exec("curl -sS https://index.example/page", timeout=20)).code == 6
    for server in servers:
        server.cancel()


ASK_LOCALHOST = r"""
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("192.168.1.1", 53))
s.send(struct.pack("!HHHHHH", 5, 256, 1, 0, 0, 0) + b"\x09localhost\0\0\1\0\1")
print(".".join(map(str, s.recv(99)[-4:])))
"""


@needs("curl")
@on_stage
async def test_names_that_lead_into_the_host_are_refused(stage: Scene) -> None:
    port = stage.internet.plain_port
    box = await stage.box(Egress("test", (f"localhost:{port}",)))
    address = ok(await box.exec(["python", "-c", ASK_LOCALHOST], timeout=20)).strip()
    assert address.startswith("198.18.")
    said = await box.exec(f"curl -sS --resolve localhost:{port}:{address} http://localhost:{port}/page", timeout=20)
    assert b"does not let boxes reach" in said.stdout, said
    assert stage.internet.asked == []


# -- many, slow, and the end

CROWD = r"""
import select, socket, sys
most, kept = map(int, sys.argv[1:])
held, ended, place = [], 0, (socket.gethostbyname("index.example"), 443)
for _ in range(most):
    try:
        held.append(socket.create_connection(place, 10))
    except ConnectionResetError:
        ended += 1
poll = select.poll()
for c in held:
    poll.register(c, select.POLLIN | select.POLLHUP)
while ended < most - kept:
    for number, _ in poll.poll(10000) or exit("only %d were closed" % ended):
        poll.unregister(number)
        ended += 1
print("the rest was closed")
"""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_sockets() -> int:
    """Of this process: those of a gate would keep its network alive."""
    links = []
    for number in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # The one that the list was read with.
            links.append(str(number.readlink()))
    return sum(link.startswith("socket:") for link in links)


@needs("curl")
@on_stage
async def test_connections_are_bounded_for_a_box_and_for_all(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    box = await stage.box()
    assert (
        ok(await box.exec(["python", "-c", CROWD, "300", str(MOST_CONNECTIONS)], timeout=60)) == "the rest was closed\n"
    )
    assert sum("connections of a box at once" in refused for refused in stage.refused) == 300 - MOST_CONNECTIONS
    await stage.settled()
    assert "page" in ok(await box.exec("curl -sS https://index.example/page", timeout=20))
    # The others have their share of what all boxes may have together.
    one, other = await stage.box(), await stage.box()
    gate = stage.sandboxes._egress
    assert gate is not None
    monkeypatch.setattr(gate.connection_limit, "maximum", 5)
    assert ok(await one.exec(["python", "-c", CROWD, "100", "5"], timeout=60)) == "the rest was closed\n"
    assert sum("5 connections of all boxes at once" in refused for refused in stage.refused) == 100 - 5
    await stage.settled()
    assert "page" in ok(await other.exec("curl -sS https://index.example/page", timeout=20))


def test_boxes_by_the_hundred_have_descriptors() -> None:
    script = """
import resource as r
from etude.sandbox.egress.proxy import ConnectionLimit
hard = r.getrlimit(r.RLIMIT_NOFILE)[1]
r.setrlimit(r.RLIMIT_NOFILE, (256, hard))
connection_limit = ConnectionLimit()
print((r.getrlimit(r.RLIMIT_NOFILE), connection_limit.maximum) == ((min(hard, 65536), hard), min(hard, 65536) // 8))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"


@needs("curl")
@on_stage
async def test_a_box_that_ends_in_the_middle_leaves_nothing(stage: Scene) -> None:
    before = open_sockets()
    box = await stage.box()
    coming = asyncio.Event()
    endless = "curl -sSN https://index.example/large?1000000000000"
    running = asyncio.create_task(box.exec(endless, timeout=60, on_output=lambda *_: coming.set()))
    async with asyncio.timeout(20):
        await coming.wait()
    await box.destroy()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: open_sockets() <= before)
    (row,) = stage.rows
    assert row["fault"]
    assert row["received"] > 0


@needs("curl")
@on_stage
async def test_a_log_that_cannot_be_written_shuts_the_way_out(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    box = await stage.box()
    assert "page" in ok(await box.exec("curl -sS https://index.example/page", timeout=20))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log, "append_rows", full)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await box.exec("curl -sS https://index.example/page", timeout=20)
    stage.internet.asked.clear()
    assert (await box.exec("curl -sS -m 5 https://index.example/page", timeout=20)).code != 0
    assert stage.internet.asked == []


HANDSHAKES = r"""
import random, socket, ssl
def hello():
    context = ssl.create_default_context()
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(into, out, server_hostname="index.example")
    try: tls.do_handshake()
    except ssl.SSLWantReadError: pass
    return tls, into, out
chance = random.Random(7)
for _ in range(100):
    data = bytearray(hello()[2].read())
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(5, len(data))] = chance.randrange(256)
    with socket.create_connection(("index.example", 443), 5) as c:
        c.sendall(data[:chance.randrange(6, len(data))])
        c.shutdown(socket.SHUT_WR)
        try:
            while c.recv(4096): pass
        except OSError: pass
tls, into, out = hello()
c = socket.create_connection(("index.example", 443), 5)
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def send():
    for byte in out.read(): c.send(bytes([byte]))
def step(do):
    while True:
        try: return do()
        except ssl.SSLWantReadError:
            send()
            into.write(c.recv(4096))
step(tls.do_handshake)
tls.write(b"GET /page HTTP/1.1\r\nHost: index.example\r\n\r\n")
send()
heard = ""
while not heard.endswith("page of index.example\n"):
    heard += step(lambda: tls.read(4096)).decode()
print(heard, end="")
"""


@on_stage
async def test_handshakes_in_pieces_and_broken_ones(stage: Scene) -> None:
    box = await stage.box()
    assert ok(await box.exec(["python", "-c", HANDSHAKES], timeout=60)).endswith("page of index.example\n")
    assert [asked[2] for asked in stage.internet.asked] == ["/page"]
    await stage.settled()
    assert any("handshake failed" in refused for refused in stage.refused)


@needs("curl")
@on_stage
async def test_a_client_that_would_rather_speak_http_2(stage: Scene) -> None:
    box = await stage.box()
    said = await box.exec("curl -sS --http2 https://index.example/page http://index.example/page", timeout=20)
    assert said.stdout.count(b"page of index.example") == 2, said
    said = await box.exec("openssl s_client -alpn h2 -connect index.example:443 </dev/null", timeout=20)
    assert b"No ALPN negotiated" in said.stdout


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
@needs_ipv6
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
