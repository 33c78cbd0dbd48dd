"""Hostile inputs of escapes.py besides attacks.py: programs that flood, hide or swap links, and tars that break out."""

from __future__ import annotations

import io
import tarfile


def hostile_tars() -> dict[str, bytes]:
    """Tars by name. If accepted, each would leave a file or device named evil outside its folder, or fill the disk."""

    def entry(name: str, kind: bytes = tarfile.REGTYPE, goal: str = "", size: int = 0) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size, info.mode = kind, goal, size, 0o644
        return info

    members = {
        "climbs": [entry("../evil")],
        "climbs within": [entry("a/../../evil")],
        "is absolute": [entry("/tmp/evil")],
        "writes through its own link": [entry("l", tarfile.SYMTYPE, "/tmp"), entry("l/evil")],
        "writes through a relative link": [entry("l", tarfile.SYMTYPE, "../.."), entry("l/tmp/evil")],
        "links hard to a file outside": [entry("evil", tarfile.LNKTYPE, "/etc/passwd")],
        "links hard above": [entry("evil", tarfile.LNKTYPE, "../../etc/passwd")],
        "is a device": [entry("evil", tarfile.BLKTYPE)],
        "is a character device": [entry("evil", tarfile.CHRTYPE)],
        "has too many members": [entry(f"evil-{number}") for number in range(101)],
    }
    tars = {}
    for name, infos in members.items():
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for info in infos:
                tar.addfile(info)
        tars[name] = packed.getvalue()
    # The header declares a size of one terabyte.
    tars["promises too much"] = entry("evil", size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    tars["is cut off"] = entry("evil", size=4096).tobuf(tarfile.GNU_FORMAT) + bytes(512)
    return tars


SWAP = """
import os, time, ctypes
libc = ctypes.CDLL(None)
os.symlink(os.path.expanduser("~/out"), "link")
end = time.time() + 1.5
while time.time() < end:
    libc.renameat2(-100, b"in", -100, b"link", 2)
os.path.islink("in") and libc.renameat2(-100, b"in", -100, b"link", 2)
"""

# mov eax, 20 (getpid of i386); int 0x80; ret
INTERRUPT_80 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print("BREACH", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""

MEMORY_BOMBS = {
    "anonymous": "x = []\nwhile True: x.append(bytearray(8 << 20))",
    "children": """
import os, sys, time
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        x = bytearray(40 << 20)
        time.sleep(90)
        os._exit(0)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
""",
    "shared": """
import mmap
maps = []
while True:
    maps.append(mmap.mmap(-1, 8 << 20))
    maps[-1].write(bytes(8 << 20))
""",
    "tmpfs": """
import os
os.mkdir("/tmp/bomb")
for number in range(1000):
    with open(f"/tmp/bomb/{number}", "wb") as file: file.write(bytes(8 << 20))
""",
}

FILL_INODES = """
import os
try:
    for folder in range(10000):
        os.makedirs(f"bomb/{folder}")
        for number in range(1000): open(f"bomb/{folder}/{number}", "w").close()
except OSError as error: print(error)
"""

HIDING = """
import ctypes, os, signal, sys, time
way, libc = sys.argv[1], ctypes.CDLL(None)
def linger():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    time.sleep(98)
def detached():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(3): os.close(number)
            return True
        os._exit(0)
    return False
if way == "daemon" and detached(): linger()
if way == "nameless" and detached():
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)
    libc.clearenv()
    os.execve("/bin/sleep", ["init", "98"], {})
if way == "unreadable":
    import shutil
    shutil.copy("/bin/sleep", "/tmp/hidden")
    os.chmod("/tmp/hidden", 0o111)
    if detached(): os.execve("/tmp/hidden", ["hidden", "98"], {})
if way == "stopped":
    if detached(): os.kill(os.getpid(), signal.SIGSTOP); linger()
    os.kill(os.getpid(), signal.SIGSTOP)
if way == "subreaper":
    libc.prctl(36, 1, 0, 0, 0)
    if detached(): linger()
if way == "vfork":
    libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x4111, 0, 0, 0, 0)  # clone: VFORK, VM, SIGCHLD
    libc.pause()
if way == "leaderless" and detached():
    import threading
    threading.Thread(target=time.sleep, args=(98,)).start()
    libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit: of the first thread alone.
if way == "respawning" and detached():
    end = time.time() + 90
    while time.time() < end:
        if os.fork(): os._exit(0)
print("left", flush=True)
"""
