"""Escapes, run inside a box: `python -c <this file> <system call numbers> <attack> ...`.

Uses the standard library only. An attack prints BREACH for each thing it achieved that the sandbox must prevent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import re
import socket
import stat
import struct
import sys
import termios
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
CALLS: dict[str, int] = {}
NEW = {"ns": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
       "net": 0x40000000, "time": 0x80}  # fmt: skip


def breach(*what: object) -> None:
    print("BREACH", *what)


def must_fail(what: str, action: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        breach(what, action())


def call(number: int, *arguments: int | bytes) -> tuple[int, str]:
    ctypes.set_errno(0)
    converted = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *converted))
    return result, errno.errorcode.get(ctypes.get_errno(), "0")


def must_be_denied(name: str, *arguments: int | bytes) -> None:
    """Report a breach unless the system call is denied outright. Its arguments are such that, without the sandbox's
    defence, the call would give another error or succeed."""
    if name in CALLS:
        result, why = call(CALLS[name], *arguments)
        if result >= 0 or why not in ("EPERM", "EACCES", "ENOSYS"):
            breach(name, result, why)


def in_child(action: Callable[[], object]) -> None:
    """Run an action that would change this process in a child; breaches that it prints still count."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException as error:
            print("failed with", type(error).__name__)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)


def read(path: str, size: int = 1 << 16) -> bytes:
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(number, size)
    finally:
        os.close(number)


def _something(path: str) -> bytes:
    data = read(path)
    if not data:
        raise OSError(errno.ENODATA, path)
    return data


# -- files


def host_files(*places: str) -> None:
    for place in places:
        for way in (top + place for top in ("", "/proc/self/root", "/proc/1/root", "/proc/1/cwd", "/.." * 40)):
            for look in (os.listdir, read):
                with contextlib.suppress(OSError):
                    if seen := look(way):  # An empty folder that covers the host's tells nothing.
                        breach(way, seen)
    for folder, _, names in os.walk("/"):
        if folder.startswith(("/proc", "/usr")):
            continue
        for name in names:
            if "marker-of-the-host" in name:
                breach(folder, name)
    must_be_denied("open_by_handle_at", os.open("/", os.O_RDONLY), struct.pack("=IiQ", 8, 1, 2), 0)


def system_folders() -> None:
    names = "usr usr/bin usr/lib bin sbin lib opt/python opt/python/bin dev proc"
    folders = [f"/{name}" for name in names.split()]
    for folder in filter(os.path.isdir, folders):
        must_fail(folder, lambda folder=folder: open(f"{folder}/evil", "w"))  # type: ignore[misc]
        must_fail(folder, lambda folder=folder: os.mkdir(f"{folder}/evil"))  # type: ignore[misc]
    program = os.path.realpath("/usr/bin/env")
    must_fail("write", lambda: open(program, "ab"))
    must_fail("unlink", lambda: os.unlink(program))
    must_fail("rename", lambda: os.rename(program, program + "2"))
    must_fail("chmod", lambda: os.chmod(program, 0o777))
    must_fail("chown", lambda: os.chown(program, 1, 1))
    must_fail("times", lambda: os.utime(program, (0, 0)))
    must_fail("attribute", lambda: os.setxattr(program, "user.x", b"x"))
    if call(CALLS["mount"], b"none", b"/usr", 0, 0x1020, 0)[0] == 0:
        breach("remounted /usr")


# -- /proc, /sys, processes


def _written(path: str) -> str:
    """Try to open a file for writing, and return "writable" if that succeeds. In case the defence fails, the file is
    not changed: at most its own contents are written back."""
    number = os.open(path, os.O_WRONLY)
    if path.endswith(("_map", "oom_score_adj")):
        os.write(number, read(path))
    return "writable"


def kernel_settings() -> None:
    paths = [
        "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug",
        "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/protected_symlinks",
        "/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity", "/proc/1/oom_score_adj", "/proc/mtrr",
        "/proc/acpi/wakeup", "/proc/scsi/scsi", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/1/uid_map",
        "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
    ]  # fmt: skip
    for path in paths:
        must_fail(path, lambda path=path: _written(path))  # type: ignore[misc]
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/sys"):
        must_fail(path, lambda path=path: os.chmod(path, 0o777))  # type: ignore[misc]


def kernel_secrets() -> None:
    for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/vmallocinfo",
                 "/proc/slabinfo", "/proc/sched_debug", "/sys/kernel/debug", "/sys/firmware", "/proc/kpagecount",
                 "/proc/iomem-secret", "/sys/kernel/notes", "/sys/class/net", "/sys/fs/cgroup"):  # fmt: skip
        for look in (read, os.listdir):
            must_fail(path, lambda look=look, path=path: look(path))  # type: ignore[misc]
    must_be_denied("syslog", 3, b"x" * 100, 100)
    for path in ("/proc/kallsyms", "/proc/modules", "/proc/iomem"):
        try:
            addresses = re.findall(rb"\b(?:0x)?([0-9a-f]{8,16})\b", read(path))
        except OSError:
            continue
        if any(int(address, 16) for address in addresses if path != "/proc/modules" or len(address) == 16):
            breach(path, addresses[:3])
    try:
        keys = read("/proc/keys")
    except OSError:
        keys = b""
    for line in keys.splitlines():
        if b"keyring" not in line or b"_ses" not in line:
            breach("a key", line)


def processes(*reversed_markers: str) -> None:
    """Report a breach if processes outside the box can be seen, read or signalled. They have certain texts (markers) in
    their command lines or environments. The markers come backwards, so that this command's own words, which pid 1 may
    show, do not contain them."""
    markers = [marker[::-1] for marker in reversed_markers]
    seen = [name for name in os.listdir("/proc") if name.isdecimal()]
    if len(seen) > 4:
        breach(len(seen), "processes")
    for pid in seen:
        for name in ("cmdline", "environ", "maps"):
            try:
                data = read(f"/proc/{pid}/{name}")
            except OSError:
                continue
            for marker in markers:
                if marker.encode() in data and int(pid) != os.getpid():
                    breach(pid, name)
    for number in range(2, 400):
        if str(number) not in seen:
            must_fail("a signal", lambda number=number: os.kill(number, 0))  # type: ignore[misc]


def pid_1() -> None:
    for name in ("root", "cwd", "exe", "fd/0", "ns/mnt", "ns/net"):
        must_fail(name, lambda name=name: os.open(f"/proc/1/{name}", os.O_RDONLY))  # type: ignore[misc]
    must_fail("fd", lambda: os.listdir("/proc/1/fd"))
    for name in ("environ", "mem", "maps", "stack", "syscall", "pagemap", "auxv", "io"):
        must_fail(name, lambda name=name: _something(f"/proc/1/{name}"))  # type: ignore[misc]
    must_fail("mem", lambda: os.open("/proc/1/mem", os.O_RDWR))
    for request in (16, 0x4206):  # attach, seize
        if libc.ptrace(request, 1, 0, 0) == 0:
            breach("ptrace", request)
    buffer = ctypes.create_string_buffer(8)
    must_be_denied("process_vm_readv", 1, struct.pack("@PN", ctypes.addressof(buffer), 8), 1, b"\0" * 16, 1, 0)
    pidfd = os.pidfd_open(1)
    for number in range(32):
        if call(438, pidfd, number, 0)[0] >= 0:  # pidfd_getfd
            breach("descriptor", number, "of pid 1")
    must_fail("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
    must_fail("scheduler", lambda: os.sched_setscheduler(1, os.SCHED_FIFO, os.sched_param(9)))
    if libc.prlimit(1, 7, struct.pack("@QQ", 1, 1), None) == 0:
        breach("limits of pid 1")


def other_user(secret: str) -> None:
    pid = int(read("/tmp/pid"))
    must_fail("signal", lambda: os.kill(pid, 19))
    must_fail("environ", lambda: read(f"/proc/{pid}/environ"))
    must_fail("mem", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR))
    must_fail("fd", lambda: os.listdir(f"/proc/{pid}/fd"))
    must_fail("root", lambda: os.listdir(f"/proc/{pid}/root"))
    if libc.ptrace(16, pid, 0, 0) == 0:
        breach("traced")
    if secret.encode() in read(f"/proc/{pid}/cmdline"):
        breach("command line")


# -- mounts and namespaces


def mounting() -> None:
    os.makedirs("m", exist_ok=True)
    bind, move, remount = 0x1000, 0x2000, 0x20
    for source, kind, flags in (
        (b"t", b"tmpfs", 0), (b"p", b"proc", 0), (b"s", b"sysfs", 0), (b"/", b"", bind), (b"/usr", b"", bind | 0x4000),
        (b"/proc", b"", move), (b"none", b"", remount | bind), (b"d", b"devpts", 0), (b"c", b"cgroup2", 0),
        (b"/dev/vda", b"ext4", 0), (b"f", b"fuse", 0), (b"o", b"overlay", 0), (b"d", b"debugfs", 0),
    ):  # fmt: skip
        must_be_denied("mount", source, b"m", kind, flags, 0)
    must_be_denied("fsopen", b"tmpfs", 0)
    must_be_denied("fspick", -100, b"/", 0)
    must_be_denied("open_tree", -100, b"/usr", 1)
    must_be_denied("move_mount", -100, b"/usr", -100, b"m", 0)
    must_be_denied("mount_setattr", -100, b"/usr", 0x8000, struct.pack("=QQQQ", 0, 1, 0, 0), 32)
    must_be_denied("pivot_root", b"/tmp", b"m")
    must_fail("fuse", lambda: os.open("/dev/fuse", os.O_RDWR))


def unmounting() -> None:
    points = [line.split()[4] for line in open("/proc/self/mountinfo")]
    if len(points) < 3:
        breach("too few mounts to prove anything", points)
    for point in points:
        for flags in (0, 1, 2, 4):
            must_be_denied("umount2", point.encode(), flags)


def new_namespaces() -> None:
    for flag in NEW.values():
        in_child(lambda flag=flag: must_be_denied("unshare", flag))  # type: ignore[misc]
        in_child(lambda flag=flag: must_be_denied("unshare", flag | NEW["user"]))  # type: ignore[misc]
    for name, flag in NEW.items():
        if name == "time":
            continue
        result, why = call(CALLS["clone"], flag | 17, 0, 0, 0, 0)
        if result == 0:
            os._exit(0)
        if result > 0 or why != "EPERM":
            breach("clone", name, result, why)
    result, why = call(CALLS["clone3"], struct.pack("=11Q", NEW["user"], 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
    if result == 0:
        os._exit(0)
    if result > 0 or why not in ("ENOSYS", "EPERM"):
        breach("clone3", result, why)


def entering_namespaces() -> None:
    for pid in ("self", "1"):
        for name in ("mnt", "net", "pid", "user", "ipc", "uts", "cgroup"):
            try:
                number = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            except OSError:
                continue
            must_be_denied("setns", number, 0)
    must_be_denied("setns", os.pidfd_open(1), NEW["ns"])


def chroot() -> None:
    def climb() -> None:
        os.makedirs("/tmp/jail", exist_ok=True)
        above = os.open("/", os.O_RDONLY)
        if libc.chroot(b"/tmp/jail") == 0:
            os.fchdir(above)
            for _ in range(64):
                os.chdir("..")
            libc.chroot(b".")
        if sorted(os.listdir("/")) != before:
            breach("another root", os.listdir("/"))

    before = sorted(os.listdir("/"))
    in_child(climb)


# -- rights


def set_uid() -> None:
    if os.path.exists("/tmp/as-root"):
        said = os.popen("/tmp/as-root").read()
        if "uid=0" in said or "gid=0" in said:
            breach(said)
    for action in (
        lambda: os.setuid(0),
        lambda: os.setgid(0),
        lambda: os.setgroups([0]),
        lambda: os.setresuid(0, 0, 0),
    ):
        must_fail("identity", action)
    programs = [path for path in glob.glob("/usr/bin/*") + glob.glob("/usr/sbin/*") if _is_set_uid(path)]
    for program in programs:
        flags = [line for line in open("/proc/self/mountinfo") if line.split()[4] in ("/", "/usr")]
        if not all("nosuid" in line.split()[5] for line in flags):
            breach(program, flags)
    libc.prctl(38, 0, 0, 0, 0)
    if libc.prctl(39, 0, 0, 0, 0) != 1:
        breach("privileges can be gained again")
    if libc.prctl(47, 2, 21, 0, 0) == 0:
        breach("an ambient right")


def _is_set_uid(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID))
    except OSError:
        return False


def devices() -> None:
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr",
               "mqueue", "console", "core"}  # fmt: skip
    for name in set(os.listdir("/dev")) - allowed:
        breach("device", name)
    for number, (kind, major, minor) in enumerate(
        [(stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 253, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 11),
         (stat.S_IFCHR, 10, 232), (stat.S_IFCHR, 10, 229), (stat.S_IFCHR, 10, 200), (stat.S_IFBLK, 7, 0)]
    ):  # fmt: skip
        for folder in ("/tmp", "/work", "/dev/shm", "/dev"):
            path = f"{folder}/made-{number}"
            try:
                os.mknod(path, kind | 0o666, os.makedev(major, minor))
            except OSError:
                continue
            must_fail(path, lambda path=path: os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # type: ignore[misc]
            os.unlink(path)


def terminal() -> None:
    must_fail("/dev/tty", lambda: os.open("/dev/tty", os.O_RDWR))
    for number in range(3):
        must_fail("push", lambda number=number: fcntl.ioctl(number, termios.TIOCSTI, b"x"))  # type: ignore[misc]
    for path in ["/dev/console", "/dev/tty0", "/dev/tty1", *glob.glob("/dev/pts/[0-9]*")]:
        must_fail(path, lambda path=path: os.open(path, os.O_RDWR | os.O_NOCTTY))  # type: ignore[misc]
    if os.getsid(0) == os.getsid(os.getppid()):
        breach("a shared session")


def services(*addresses: str) -> None:
    for text in addresses:
        family, *address = json.loads(text)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as probe:
                    probe.settimeout(0.5)
                    probe.connect(address[0] if family == socket.AF_UNIX else tuple(address))
                    if kind == socket.SOCK_STREAM or family == socket.AF_UNIX:
                        breach("reached", address)
            except OSError:
                pass


def network() -> None:
    for family, address in (
        (socket.AF_INET, "1.1.1.1"), (socket.AF_INET, "8.8.8.8"), (socket.AF_INET, "169.254.169.254"),
        (socket.AF_INET, "10.0.0.1"), (socket.AF_INET, "192.168.0.1"), (socket.AF_INET, "172.17.0.1"),
        (socket.AF_INET6, "2606:4700:4700::1111"), (socket.AF_INET6, "fe80::1"),
    ):  # fmt: skip
        for kind, port in ((socket.SOCK_STREAM, 53), (socket.SOCK_STREAM, 443), (socket.SOCK_DGRAM, 53)):
            try:
                with socket.socket(family, kind) as probe:
                    probe.settimeout(0.3)
                    probe.connect((address, port))
                    breach("a way to", address, port)
            except OSError:
                pass
    for name in ("example.com", "localhost.example.com", "metadata.google.internal"):
        must_fail(name, lambda name=name: socket.getaddrinfo(name, 80))  # type: ignore[misc]
    devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    if devices != ["lo"]:
        breach("devices", devices)


def odd_sockets() -> None:
    odd = {
        "packet": (17, socket.SOCK_RAW, 0x0300), "packet datagrams": (17, socket.SOCK_DGRAM, 0x0300),
        "raw": (2, socket.SOCK_RAW, 255), "raw icmp": (2, socket.SOCK_RAW, 1), "raw v6": (10, socket.SOCK_RAW, 58),
        "vsock": (40, socket.SOCK_STREAM, 0), "vsock datagrams": (40, socket.SOCK_DGRAM, 0), "alg": (38, 5, 0),
        "bluetooth": (31, socket.SOCK_RAW, 1), "can": (29, socket.SOCK_RAW, 1), "tipc": (30, socket.SOCK_STREAM, 0),
        "xdp": (44, socket.SOCK_RAW, 0), "rds": (21, 5, 0), "key": (15, socket.SOCK_RAW, 2), "kcm": (41, 2, 0),
        "smc": (43, socket.SOCK_STREAM, 0), "qipcrtr": (42, 2, 0),
    }  # fmt: skip
    for name, (family, kind, protocol) in odd.items():
        must_fail(name, lambda what=(family, kind, protocol): socket.socket(*what))  # type: ignore[misc]


def netlink() -> None:
    def ask(kind: int, body: bytes) -> int:
        with socket.socket(16, socket.SOCK_RAW, 0) as link:
            link.send(struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
            answer = link.recv(4096)
            return -int(struct.unpack_from("=i", answer, 16)[0])

    requests = {
        "a device": (16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HH8s", 12, 3, b"evil0\0")),
        "loopback down": (19, struct.pack("=BxHiII", 0, 0, 1, 0, 1)),
        "an address": (20, struct.pack("=BBBBI", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 9, 8, 7]))),
        "a route": (24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0)),
    }
    for name, (kind, body) in requests.items():
        try:
            answer = ask(kind, body)
        except OSError:
            continue
        if answer not in (errno.EPERM, errno.EACCES):
            breach(name, errno.errorcode.get(answer, answer))


def shared_memory(key: str) -> None:
    if libc.shmget(int(key), 4096, 0) >= 0:
        breach("a segment of the host")
    for path in ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"):
        if len(read(path).splitlines()) > 1:
            breach(path)
    must_be_denied("add_key", b"user", b"x", b"x", 1, -3)
    must_be_denied("keyctl", 0, -3, 1)


def neighbours() -> None:
    """Print what a box sees of itself, and report files of another box as a breach. The attack compares the output of
    two boxes, which must be equal."""
    for path in ("/tmp/marker", "/dev/shm/marker"):
        if os.path.exists(path):
            breach(path)
    # Remove what may differ between boxes: random names, and ids that the kernel counts for the whole host. A name that
    # counts boxes stays and would be found. A container engine's layers have random names of 26 capitals and digits.
    chance = r"^\d+ \d+ \d+:\d+ |master:\d+|shared:\d+|\b[0-9a-f]{8,}\b|\b[A-Z2-7]{26}\b"
    mounts = [re.sub(chance, "", line) for line in open("/proc/self/mountinfo")]
    print(*sorted(mounts), os.uname().nodename, read("/proc/self/cgroup").decode(), sorted(os.listdir("/")))


# -- the kernel's surface


def system_calls() -> None:
    zeros = b"\0" * 256
    for name, *arguments in (
        ("bpf", 0, zeros, 72), ("perf_event_open", zeros, 0, -1, -1, 0), ("userfaultfd", 1), ("io_uring_setup", 8, zeros),
        ("io_uring_enter", 0, 0, 0, 0, 0, 0), ("io_uring_register", 0, 0, 0, 0), ("keyctl", 0, -3, 0),
        ("add_key", b"user", b"d", b"p", 1, -2), ("request_key", b"user", b"d", 0, -2), ("init_module", zeros, 256, b""),
        ("finit_module", 0, b"", 0), ("delete_module", b"x", 0), ("kexec_load", 0, 0, zeros, 0),
        ("kexec_file_load", -1, -1, 0, zeros, 0), ("open_by_handle_at", -100, zeros, 0), ("quotactl", 0, b"/", 0, zeros),
        ("swapon", b"/tmp/x", 0), ("swapoff", b"/tmp/x"), ("reboot", 0xFEE1DEAD, 672274793, 0, 0), ("acct", b"/tmp/x"),
        ("syslog", 2, zeros, 100), ("settimeofday", zeros, 0), ("clock_settime", 0, zeros), ("adjtimex", b"\1" + zeros),
        ("fanotify_init", 0, 0), ("iopl", 3), ("ioperm", 0x70, 1, 1), ("vhangup",), ("sethostname", b"evil", 4),
        ("setdomainname", b"evil", 4), ("process_vm_writev", 1, zeros, 1, zeros, 1, 0), ("kcmp", 1, 1, 0, 0, 0),
        ("move_pages", 1, 0, 0, 0, 0, 0),
    ):  # fmt: skip
        must_be_denied(str(name), *arguments)


def x32() -> None:
    for number in (0x40000000 | 39, 0x40000000 | 512, 0x40000000 | CALLS["mount"]):
        if call(number)[0] >= 0:
            breach("x32", number)
    if call(-1)[0] >= 0 or call(1 << 20)[0] >= 0:
        breach("unknown number")


def main(calls: str, name: str, *arguments: str) -> None:
    CALLS.update(json.loads(calls))
    globals()[name](*arguments)
    print("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
