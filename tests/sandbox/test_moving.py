"""Forks of boxes in which something lives: it is taken along without noticing, or else the box is copied."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.contract.sandbox.support import PATIENCE, end_of, in_loop, ok, output_until

from etude.sandbox import Box, BoxSpec, EmbeddedSandboxes, Feature, Process, SandboxLost, Terminal
from etude.sandbox.embedded.box import EmbeddedBox
from etude.sandbox.embedded.zygote_client import ZygoteClient

FILES = {"d/e/f": b"deep\n", "d/g": b"more\n", "top": b"top\n"}
LOOK = """exec 2>/dev/null
find . ! -type s -printf '%p %m %u %l %y %T@\\n' | sort; find . -type f -exec md5sum {} + | sort; true"""
PYTHON = """
import ctypes, fcntl, mmap, os, select, shutil, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def meet(): print("ready", flush=True); sys.stdin.readline()
def done(*words): open("made", "w").close(); print(os.getcwd(), *words)
os.chdir("d/e")
"""
"""Programs that say "ready", go on when they get a line, write a file by a relative name, and say where they are."""

UNREADABLE = "a program that nobody may read"
"""It depends on the box's ids whether its pid 1 can look into it; else it is copied."""
MOVED = {
    "a thread among others": """
goes = threading.Event(); threads = [threading.Thread(target=goes.wait) for _ in range(6)]
[thread.start() for thread in threads]; meet(); goes.set(); [thread.join() for thread in threads]; done()""",
    "a program that waits for a signal of which it blocks the others": """
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append("came"))
signal.signal(signal.SIGTRAP, signal.SIG_IGN)
meet(); os.kill(os.getpid(), signal.SIGUSR1)
done(*came, signal.getsignal(signal.SIGTRAP).name, *signal.pthread_sigmask(signal.SIG_BLOCK, ()))""",
    "one that sleeps with a time to go": """
begun = time.monotonic(); print("ready", flush=True); time.sleep(0.7); done(0.7 <= time.monotonic() - begun < 50)""",
    "its own program and a private view of a file": """
shutil.copy(shutil.which("sleep"), "own"); child = subprocess.Popen(["./own", "600"])
view = mmap.mmap(os.open("f", os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ); os.closerange(3, 100)
meet(); os.unlink("f"); done(child.poll(), view[:], os.readlink(f"/proc/{child.pid}/exe")); child.kill()""",
    UNREADABLE: """
shutil.copy(shutil.which("sleep"), "own"); os.chmod("own", 0o111); child = subprocess.Popen(["./own", "600"])
meet(); done(child.poll()); child.kill()""",
    "one that stands still by itself": """
child = subprocess.Popen(["sh", "-c", "kill -STOP $$; pwd; echo >written"], stdout=subprocess.PIPE)
os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT); meet()
state = open(f"/proc/{child.pid}/stat").read().split()[2]
child.send_signal(signal.SIGCONT); done(state, child.communicate()[0], os.path.exists("written"))""",
    "one in a folder of the system": "os.chdir('/usr/bin'); meet(); print(os.getcwd(), os.path.exists('env'))",
    "one in the root": "os.chdir('/'); meet(); print(os.getcwd(), os.listdir('work/d'))",
    "one in a deep folder with odd names": """
for name in ("a b", "x\\ny", "(deleted)", *["long" * 60] * 12): os.mkdir(name); os.chdir(name)
before = os.getcwd(); meet(); done(os.getcwd() == before, len(before) > 2900)""",
    "pipes, sockets, memory and terminals": """
a, b = socket.socketpair(); master, slave = os.openpty(); memory = os.memfd_create("m"); watch = select.epoll()
server = socket.create_server(("127.0.0.1", 0)); null = open("/dev/null", "w"); facts = open("/proc/self/stat")
shared = mmap.mmap(-1, 4096); plain = open("/dev/shm/kept", "w"); named = socket.socket(socket.AF_UNIX)
named.bind("\\0abstract"); watch.register(a)
plain.close(); meet(); b.send(b"x"); os.write(slave, b"y")
client = socket.create_connection(server.getsockname())
done(a.recv(9), os.read(master, 9), server.accept()[0].fileno() > 0, watch.poll(0) == [], os.listdir("/dev/shm"))""",
}

STAYS = {
    "a file open": ("e/f open", "held = open('f'); meet(); done(held.read())"),
    "a folder open": ("d/e open", "held = os.open('.', os.O_RDONLY); meet(); os.mkdir('new', dir_fd=held); done()"),
    "a watch": (
        "watches",
        """watch = libc.inotify_init1(0); libc.inotify_add_watch(watch, b".", 0x100); meet(); open("seen", "w").close()
done(os.read(watch, 99)[16:20])""",
    ),
    "a socket with a name": (
        "socket is named",
        """server = socket.socket(socket.AF_UNIX); server.bind("s"); server.listen(); meet()
socket.socket(socket.AF_UNIX).connect("s"); done()""",
    ),
    "a file on its way to another": (
        "a socket with descriptors",
        """a, b = socket.socketpair(); file = os.open("f", os.O_RDONLY)
socket.send_fds(a, [b"x"], [file]); os.close(file); meet(); done(os.read(socket.recv_fds(b, 9, 1)[1][0], 9))""",
    ),
    "a shared view of a file that has lost one of two names": (
        "mapped shared",
        """os.link("f", "g"); view = mmap.mmap(os.open("f", os.O_RDWR), 0); os.closerange(3, 100); os.unlink("f")
meet(); view[:1] = b"N"; done(view[:], open("g").read())""",
    ),
    "a shared view of a file with an odd name": (
        "mapped shared",
        """os.rename("f", "f\\n"); view = mmap.mmap(os.open("f\\n", os.O_RDWR), 0); os.closerange(3, 100)
meet(); view[:1] = b"N"; done(view[:])""",
    ),
    "a folder that is gone": ("deleted", "os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); meet(); print('in nothing')"),
    "a folder that is closed to it": (
        "Permission denied",
        "os.mkdir('x'); os.chdir('x'); os.chmod('.', 0); meet(); print('in a closed one')",
    ),
    "a debugger": (
        "Operation not permitted",
        """child = os.fork()
if not child:
    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)
os.waitpid(child, 0); meet(); libc.ptrace(7, child, 0, 0); os.waitpid(child, 0); done()""",
    ),
}


@dataclass
class Ground:
    """A backend, and how often a cell was copied."""

    sandboxes: EmbeddedSandboxes
    copies: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def box(self) -> AsyncIterator[EmbeddedBox]:
        box = await self.sandboxes.create(BoxSpec(await self.sandboxes.add_image(FILES)))
        assert isinstance(box, EmbeddedBox)
        ok(await box.exec("cp -r d written && rm -r d && mv written d", timeout=10))  # All of it is the box's own.
        try:
            yield box
        finally:
            await asyncio.gather(*(each.destroy() for each in list(self.sandboxes._boxes.values())))


@pytest.fixture(scope="module", params=["memory", pytest.param("folders", marks=pytest.mark.soak)])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSandboxes]:
    memory_cells = None if request.param == "memory" else False
    sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"), memory_cells=memory_cells)
    yield sandboxes
    asyncio.run(sandboxes.close())


@pytest.fixture
def ground(backend: EmbeddedSandboxes, monkeypatch: pytest.MonkeyPatch) -> Ground:
    made = Ground(backend)
    copy = ZygoteClient.copy

    async def counted(self: ZygoteClient, sources: list[str], target: str, **more: Any) -> str:
        made.copies.append(target)
        return await copy(self, sources, target, **more)

    monkeypatch.setattr(ZygoteClient, "copy", counted)
    return made


async def started(box: Box, program: str, **more: Any) -> Process:
    process = await box.start(["python", "-c", PYTHON + program], timeout=60, **more)
    await output_until(process, b"ready\n")
    return process


async def gone_on(process: Process) -> str:
    await process.write(b"go\n")
    code, output = await end_of(process)
    assert code == 0, output
    return output.decode()


async def undisturbed(ground: Ground, program: str) -> str:
    """What it says in a box that is not forked."""
    async with ground.box() as box:
        return await gone_on(await started(box, program))


async def check_fork(box: Box, process: Process) -> str:
    """Returns what the parent's process says; the child is as the box was at the fork."""
    look = ok(await box.exec(LOOK, timeout=10))
    (child,) = await box.fork()
    said = await gone_on(process)
    assert ok(await child.exec(LOOK, timeout=10)) == look
    ok(await child.exec("rm -r d", timeout=10))
    assert ok(await box.exec("cat top", timeout=10)) == "top\n"
    await child.destroy()
    return said


@pytest.mark.parametrize("what", MOVED)
@in_loop
async def test_who_can_be_moved_goes_on_as_if_nothing_had_been(what: str, ground: Ground) -> None:
    expected = await undisturbed(ground, MOVED[what])
    async with ground.box() as box:
        process = await started(box, MOVED[what])
        assert await check_fork(box, process) == expected
    assert ground.copies == [] or what == UNREADABLE


@pytest.mark.parametrize("what", STAYS)
@in_loop
async def test_who_cannot_be_moved_makes_the_fork_a_copy(what: str, ground: Ground) -> None:
    why, program = STAYS[what]
    expected = await undisturbed(ground, program)
    async with ground.box() as box:
        process = await started(box, program)
        async with box.frozen(kill=False):
            answer, _ = await box._ask({"op": "rehearse"})
        assert why in answer["stays"]
        assert await check_fork(box, process) == expected
    assert len(ground.copies) == 1


@in_loop
async def test_a_shared_view_of_a_written_file_makes_a_copy_but_one_of_the_image_does_not(ground: Ground) -> None:
    program = """
view = mmap.mmap(os.open(name, os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_READ); os.closerange(3, 100)
meet(); file = open(name, "r+b"); file.write(b"N"); file.close(); done(view[:])"""
    async with ground.box() as box:
        process = await started(box, "name = 'f'" + program)
        assert "b'Neep\\n'" in await check_fork(box, process)
    assert len(ground.copies) == 1
    async with ground.box() as box:
        process = await started(box, "name = '/work/top'" + program)
        await box.fork()
        assert "b'top\\n'" in await gone_on(process)  # As overlayfs has it, fork or not.
    assert len(ground.copies) == 1


async def standing(box: Box) -> dict[str, str]:
    """Where those processes stand of which one can see it."""
    look = "for p in /proc/[0-9]*; do echo $p $(readlink $p/cwd); done"
    rows = [line.split() for line in ok(await box.exec(look, timeout=10)).splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


@in_loop
async def test_a_box_full_of_life(ground: Ground) -> None:
    """A terminal, a server, a loop and sleepers, of several users; three forks in a row, none of them a copy."""
    async with ground.box() as box:
        shell = await box.start(["sh"], timeout=60, terminal=Terminal(), cwd="d/e")
        server = await box.start("python -u -m http.server 8000 --bind 127.0.0.1 2>&1", timeout=60, cwd="d")
        await output_until(server, b"Serving")
        sleeper = await box.start(["sleep", "60"], timeout=60, cwd="d")
        users = ["agent", *(["grader"] if Feature.SECOND_USER in ground.sandboxes.features else [])]
        for user in users:
            await box.start(["sleep", "60"], timeout=60, user=user, cwd="/tmp")
        begun = Counter(("/work/d/e", "/work/d", "/work/d", "/tmp"))
        async with asyncio.timeout(PATIENCE):
            while not begun <= Counter((await standing(box)).values()):
                pass
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/g').read())"
        for turn in range(3):
            await box.write_file("d/g", b"turn %d" % turn)
            stands = await standing(box)
            (child,) = await box.fork()
            now = await standing(box)
            assert len(lived := stands.keys() & now.keys()) >= 4
            assert {process: now[process] for process in lived} == {process: stands[process] for process in lived}
            await shell.write(b"echo mine%d >mine%d; cat mine%d; pwd -P\n" % (turn, turn, turn))
            await output_until(shell, b"/work/d/e\r\n")
            fetched = await box.exec(["python", "-c", fetch], timeout=10)
            assert ok(fetched) == f"b'turn {turn}'\n"
            assert await box.read_file(f"d/e/mine{turn}") == b"mine%d\n" % turn
            assert f"e/mine{turn}" not in await child.list_files("d")
            assert await child.read_file("d/g") == b"turn %d" % turn
            await child.destroy()
        assert (await sleeper.poll()).code is None
        assert ground.copies == []


@in_loop
async def test_while_a_box_stands_still_nobody_looks_at_its_processes(ground: Ground) -> None:
    """On its way to the next root it has no /proc to see them in: who ends or asks meanwhile is answered later."""
    async with ground.box() as box:
        await box.start(["sleep", "60"], timeout=60)
        late = asyncio.create_task(box.exec("sleep 60 & sleep 60", timeout=2))
        while (await box.stats()).processes < 4:  # noqa: ASYNC110  # That one, a shell and two that sleep.
            await asyncio.sleep(0.01)
        async with box.frozen(kill=False) as frozen:
            assert not frozen.still
            assert not frozen.free
            looks = asyncio.create_task(box.stats())
            await asyncio.wait({late, looks}, timeout=2.2)
            assert not late.done()
            assert not looks.done()
        assert (await late).limit == "time"
        assert (await looks).processes >= 1
        assert (await box.stats()).processes == 1


@in_loop
async def test_a_process_that_is_killed_while_it_is_held_is_reaped_by_its_parent(ground: Ground) -> None:
    program = """
child = os.fork()
if not child:
    for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    timer, times = ctypes.c_void_p(), struct.pack("=qqqq", 0, 0, 0, 500_000_000)
    libc.timer_create(1, struct.pack("=QII", 0, signal.SIGKILL, 0) + bytes(48), ctypes.byref(timer))
    print("ready", flush=True); libc.timer_settime(timer, 0, times, None); time.sleep(60)
print(os.waitpid(child, 0)[1])"""
    async with ground.box() as box:
        process = await started(box, program)
        async with box.frozen(kill=False) as frozen:
            assert not frozen.free
            await asyncio.sleep(0.8)
            assert (await process.poll()).output == b""
        assert (await end_of(process)) == (0, b"9\n")


@in_loop
async def test_what_a_program_computes_is_the_same_however_often_it_is_moved(ground: Ground) -> None:
    """In user mode, with a timer that interrupts it, numbers in every kind of register, and a second thread.

    It opens no file to write: the box is forked at any moment, also while the program ends. It computes until it has
    been moved some times, however slow the host is.
    """
    program = """
import hashlib
ticks = []; signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def chain(seed, x=1.0, rounds=0):
    while not os.path.exists("/work/enough"):
        for _ in range(20_000): seed = hashlib.md5(seed).digest(); x = x * 1.0000001 + 1e-9
        rounds += 20_000
    out[threading.current_thread().name] = (seed.hex(), x, rounds)
out = {}; print("ready", flush=True)
other = threading.Thread(target=chain, args=(b"other",), name="other"); other.start(); chain(b"main"); other.join()
signal.setitimer(signal.ITIMER_REAL, 0); print(os.getcwd(), out["MainThread"], out["other"], len(ticks) > 10)"""
    async with ground.box() as box:
        process = await started(box, program)
        turns, output = 0, b""
        while (look := await process.poll()).code is None:
            output += look.output
            await box.write_file("turn", str(turns).encode())
            (child,) = await box.fork()
            await child.destroy()
            turns += 1
            if turns == 10:
                await box.write_file("enough", b"")
        output += look.output
        assert look.code == 0, output
        assert turns >= 10
        said = re.fullmatch(r"/work/d/e (\(.+\)) (\(.+\)) True\n", output.decode())
        assert said, output
        for seed, told in ((b"main", said[1]), (b"other", said[2])):
            expected, x = seed, 1.0
            _, _, rounds = ast.literal_eval(told)
            for _ in range(rounds):
                expected, x = hashlib.md5(expected).digest(), x * 1.0000001 + 1e-9
            assert ast.literal_eval(told) == (expected.hex(), x, rounds)


@pytest.mark.slow
@in_loop
async def test_a_fork_that_is_given_up_at_any_moment_is_done_or_not(ground: Ground) -> None:
    async with ground.box() as box:
        shell = await box.start(["sh"], timeout=120, cwd="d/e")
        for turn in range(60):
            await shell.write(b"echo %d >count; echo said\n" % turn)
            await output_until(shell, b"said\n")
            fork = asyncio.create_task(box.fork())
            await asyncio.wait({fork}, timeout=turn * 0.0004)
            fork.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fork
            (child,) = await box.fork()
            for one in (box, child):
                assert await one.read_file("d/e/count") == b"%d\n" % turn
            await child.destroy()


@in_loop
async def test_a_box_ends_where_somebody_is_left_behind(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is not in the new root, which nothing but a fault of ours can bring about."""
    async with ground.box() as box:
        await started(box, "os.mkdir('x'); os.chdir('x'); meet()")
        restack = ZygoteClient.restack

        async def without(self: ZygoteClient, name: str, cell: str, layers: list[str], shared: list[str]) -> str:
            image = layers[len(box.cells) :]
            return await restack(self, name, cell, image, shared)

        monkeypatch.setattr(ZygoteClient, "restack", without)
        with contextlib.suppress(SandboxLost):
            await box.fork()
        with pytest.raises(SandboxLost):
            await box.exec("true", timeout=5)
