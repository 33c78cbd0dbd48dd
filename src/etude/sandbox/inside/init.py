"""Pid 1 of a box: serves the requests of the owner (the process that uses the box) until the owner closes the
connection.

Pid 1 has rights over the box only (through its own user namespace), and takes no instruction from processes in the box.
When it ends, the kernel kills every process of the box. Neither a command nor the owner can make it block.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from etude.sandbox.inside import files, kernel, moving, processes, spawn, sysv, tracing, trees, wire
from etude.sandbox.inside.background import Background, PendingPoll
from etude.sandbox.inside.command import Command
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.foreground import Foreground
from etude.sandbox.inside.memory import CgroupMemory, NetlinkAnswers, detached_bytes, retry_on_enomem
from etude.sandbox.inside.users import MAX_ID, Users

PYTHON_SIGNALS = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the Python interpreter handles or ignores by default."""
WATCH_SECONDS = 0.05
_CHUNK = 1 << 18
_CPUS = os.cpu_count() or 1
_DEFERRED = ("exec", "start", "write", "write_tree", "stats")
"""Requests that wait while the box is frozen, because they change files or examine processes."""


def take_identity(*, many_ids: bool) -> None:
    """Become root of the box's user namespace, and limit the capabilities that commands can get to kernel.BOX_ROOT.
    Without `many_ids`, the process keeps its only id."""
    kernel.drop_bounding_set(kernel.BOX_ROOT)
    if many_ids:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    with suppress(PermissionError):  # Pid 1 of a container already leads its session.
        os.setsid()
    kernel.rename_process("init")
    for number in PYTHON_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def run(
    channel: tuple[int, int],
    message: wire.Header,
    program: bytes,
    *,
    many_ids: bool,
    memory: CgroupMemory,
    kind: type[Init] | None = None,
) -> None:
    """Install the seccomp filter `program`, and serve until the owner closes the connection. `channel` is (descriptor
    for requests, descriptor for answers). `message` describes the box."""
    spawn.set_lasting_limits(message["limits"])
    kernel.install_filter(program)
    # If the owner closes the connection while an answer is sent, the box ends as if it had been closed between two
    # requests.
    with suppress(OwnerGone):
        (kind or Init)(channel, message, many_ids=many_ids, memory=memory).serve()


def reset_inherited_state() -> None:
    """Reset signal handlers, signal mask and descriptor inheritance, so that commands started by pid 1 inherit default
    signals and only the standard streams. Call it once, before everything else.

    Default signal handling cannot kill pid 1: the kernel delivers no signal for which pid 1 has no handler. Python's
    own handler for SIGINT, however, would be called."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # The descriptor of the listing itself is closed by now.
            os.set_inheritable(int(name), int(name) <= 2)


class OwnerGone(Exception):
    """The process that uses the box has closed its end of the connection."""


class Init:
    def __init__(self, channel: tuple[int, int], message: wire.Header, *, many_ids: bool, memory: CgroupMemory) -> None:
        self.requests, answers = channel
        self.memory, self.netlink = memory, NetlinkAnswers()
        self.killed_by_kernel = False
        """Whether the kernel has killed a process for lack of memory, and no command has been ended for it yet."""
        self.message, self.limits = message, message["limits"]
        self.workdir: str = message["workdir"]
        self.began = time.monotonic()
        only = None if many_ids else message["single_id"]
        self.users = Users(message.get("user", ""), only, message.get("ids", MAX_ID + 1))
        self.events = Events()
        self.commands: dict[int, Command] = {}
        self.frames = wire.Unpacker()
        self.sender = wire.Sender(answers)
        self.frozen = 0
        """Number of copies of the box under way. While it is not 0, requests in _DEFERRED wait in `deferred` and ended
        commands in `ended`: files must not change, and /proc is missing while the box is moved to another root."""
        self.deferred: list[tuple[wire.Header, bytes]] = []
        self.ended: list[Command] = []
        self.stopped_before: set[int] = set()
        """Pids that were stopped before the freeze, by themselves or their shell. They stay stopped afterwards."""
        self.hold = tracing.Hold()
        self.working_folders: list[moving.WorkingFolder] = []
        """Working folders of the held threads. If the box has got a new root, `thaw` makes each thread change to the
        folder of the same path there."""
        self.proc_device = os.stat("/proc").st_dev
        self.data_at_rest = spawn.data_bytes()
        os.set_blocking(self.requests, False)
        self.many_ids = many_ids

    def serve(self) -> None:
        try:
            default = self.users.find("")
            self.identity = spawn.Identity(self.many_ids, default)
            self.identity.restore()
            self.spawner = spawn.Spawner(self.identity, self.limits)
        except (files.Refused, OSError) as error:
            self.send({"ready": False, "step": "user", "error": str(error)})
            return
        self.send({"ready": True})
        self.events.read(self.requests, self.receive)
        while True:
            self.events.wait(self.poll_timeout())
            self.watch()

    def send(self, header: wire.Header, payload: bytes | bytearray = b"") -> None:
        try:
            if not self.sender.put(header, payload):
                self.events.write(self.sender.number, self.flush)
        except OSError as error:
            raise OwnerGone from error

    def flush(self) -> None:
        try:
            if self.sender.flush():
                self.events.done_writing(self.sender.number)
        except OSError as error:
            raise OwnerGone from error

    def receive(self) -> None:
        try:
            data = os.read(self.requests, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise OwnerGone from error
        if not data:
            raise OwnerGone
        for header, payload in self.frames.feed(data):
            self.answer(header, payload)

    # -- requests

    def answer(self, header: wire.Header, payload: bytes) -> None:
        ticket = header["ticket"]
        if self.frozen and header["op"] in _DEFERRED:
            self.deferred.append((header, payload))
            return
        try:
            reply = self.perform(header, payload)
            if reply is not None:
                self.send({"ticket": ticket, **reply[0]}, reply[1])
        except files.Refused as refusal:
            self.send({"ticket": ticket, "error": str(refusal), "kind": "refused"})
        except MemoryError:
            lack = f"{header['op']} needs more memory than pid 1 has: ask for less at a time"
            self.send({"ticket": ticket, "error": lack, "kind": "refused"})
        except OSError as error:
            kind = errno.errorcode.get(error.errno or 0, "EIO")
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                kind = "disk_full"
            elif error.errno in files.OF_THE_PATH and "path" in header:
                kind = "refused"
            self.send({"ticket": ticket, "error": error.strerror or str(error), "kind": kind})

    def perform(self, header: wire.Header, payload: bytes) -> tuple[wire.Header, bytes | bytearray] | None:
        """Carry out a request and return its answer. Return None if the answer is sent later, or the request has
        none."""
        match header["op"]:
            case "exec":
                self.execute(header, payload)
                return None
            case "cancel":
                self.cancel(header["command"])
                return None
            case "start":
                return self.start(header)
            case "poll" | "feed" | "close_input" | "resize" | "kill":
                return self.handle_process_request(header, payload)
            case "read":
                with spawn.memory_of_an_answer(self.limits, self.data_at_rest):
                    return {}, files.read(self.workdir, header["path"], header["max_bytes"], self.proc_device)
            case "write":
                self.check_size(header["path"], len(payload))
                files.write(
                    self.workdir, header["path"], payload, executable=header["executable"], proc=self.proc_device
                )
            case "list":
                return {}, "\0".join(files.list_below(self.workdir, header["path"])).encode("utf-8", "surrogateescape")
            case "layout":
                return {}, self.layout(header["paths"])
            case "read_tree":
                most = header["max_bytes"], header["max_files"]
                with spawn.memory_of_an_answer(self.limits, self.data_at_rest):
                    entries, contents = trees.read(self.workdir, header["path"], *most, self.proc_device)
                return {"entries": entries}, contents
            case "check_tree":
                trees.check(self.workdir, header["path"], header["entries"])
            case "write_tree":
                own = self.many_ids and self.identity.file_user.uid == 0
                trees.write(self.workdir, header["path"], header["entries"], payload, owners=own)
            case "stats":
                return self.stats(), b""
            case "freeze":
                return self.freeze(kill=header["kill"]), b""
            case "rehearse":
                return self.rehearse(), b""
            case "thaw":
                self.thaw()
        return {}, b""

    def check_size(self, path: str, size: int) -> None:
        if size > self.limits["file_mb"] << 20:
            raise files.Refused(f"{size} bytes for {path}; a file has at most file_mb = {self.limits['file_mb']} MiB")

    def layout(self, paths: list[str]) -> bytes:
        found: list[str] = []
        for path in paths:
            try:
                found += files.layout_below(self.workdir, path)
            except FileNotFoundError:
                continue
        return "\0".join(found).encode("utf-8", "surrogateescape")

    def stats(self) -> wire.Header:
        used, disk = self.measure(), os.statvfs("/")
        return {
            "processes": len(used),
            "memory": sum(process.memory for process in used),
            "cpu_seconds": processes.reaped_cpu_seconds() + sum(process.cpu_seconds for process in used),
            "disk": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            "seconds": time.monotonic() - self.began,
        }

    def measure(self) -> list[processes.Usage]:
        """Return the resource use of all processes. Unless a cgroup enforces the memory limit, this needs root, who
        alone can see the unnamed files that other users' processes hold open."""
        if self.memory.enforced:
            return processes.measure(files=False)
        self.identity.be_root()
        try:
            return processes.measure(files=True)
        finally:
            self.identity.restore()

    # -- freezing

    def freeze(self, *, kill: bool) -> wire.Header:
        """Stop all processes and hold them; with `kill`, kill them instead. The answer holds `writers`: those that have
        a file open for writing, or do not stop. If there are any, the freeze is undone. It also holds `still` (no
        process is alive) and `free` (why some process could not be held; "" if all are).

        A signal from inside can wake a process that is stopped, but not one that is held."""
        self.frozen += 1
        if kill:
            processes.signal_all(signal.SIGKILL)
            processes.wait_until_dead()
            return {"writers": [], "still": processes.none_live(), "free": ""}
        if self.frozen == 1:
            self.stopped_before = processes.stopped()
        all_stopped = processes.stop_all(self.stopped_before)
        self.identity.be_root()
        writers = processes.find_writers() if all_stopped else ["a process that does not stop"]
        free = "" if writers else self.hold.take_all()
        self.identity.restore()
        if writers:
            self.thaw()
        return {"writers": writers, "still": processes.none_exist(), "free": free}

    def rehearse(self) -> wire.Header:
        """Check whether the stopped processes can be moved to another root, and keep their working folders for `thaw`.
        The answer holds `shared` (files that processes map shared), or `stays` (why no move is possible)."""
        self.identity.be_root()
        try:
            self.working_folders, shared = moving.rehearse(self.hold)
        except moving.CannotMove as why:
            return {"stays": str(why)}
        finally:
            self.identity.restore()
        return {"shared": shared}

    def thaw(self) -> None:
        self.frozen -= 1
        if self.frozen:
            return
        if self.working_folders:
            self.identity.be_root()
            moving.move_to_new_root(self.working_folders)  # If a thread is left behind, this raises and the box ends.
            self.identity.restore()
            self.working_folders = []
        self.hold.release({command.pid for command in [*self.commands.values(), *self.ended]})
        processes.resume_all(self.stopped_before)
        self.hold.release_late()
        ended, self.ended = self.ended, []
        for command in ended:
            self.finish(command)
        waiting, self.deferred = self.deferred, []
        for header, payload in waiting:
            self.answer(header, payload)

    # -- commands

    def launch_of(self, header: wire.Header) -> spawn.Launch:
        user = self.users.find(header["user"])
        env = {
            "HOME": user.home,
            "USER": user.name,
            "LOGNAME": user.name,
            "SHELL": user.shell,
            **self.message["env"],
            **header["env"],
        }
        return spawn.Launch(header["argv"], env, header["cwd"] or self.workdir, user, header["timeout"])

    def execute(self, header: wire.Header, stdin: bytes) -> None:
        self.check_size("stdin", len(stdin))
        launch, capacity = self.launch_of(header), self.limits["output_bytes"]
        command = Foreground(
            header["ticket"], launch, self.events, self.send, capacity=capacity, stream=header["stream"]
        )
        self.begin(command, lambda: command.start(launch, self.spawner, stdin))

    def start(self, header: wire.Header) -> tuple[wire.Header, bytes]:
        launch, size = self.launch_of(header), header["terminal"]
        if size:
            launch.env.setdefault("TERM", "xterm-256color")
        command = Background(header["ticket"], launch, self.events, self.send, self.limits["output_bytes"])
        self.begin(command, lambda: command.start(launch, self.spawner, tuple(size) if size else None))
        return {}, b""

    def begin(self, command: Command, start: Callable[[], None]) -> None:
        try:
            start()
        except spawn.CannotStart as reason:
            command.fail(reason)
        except BaseException:
            command.release()
            raise
        else:
            command.cpu_in_time_until = command.began + self.limits["cpu_seconds"] / _CPUS
            self.commands[command.number] = command
            self.events.read(command.pidfd, lambda: self.finish(command))

    def cancel(self, number: int) -> None:
        """Cancel the request with the ticket `number`, since the owner no longer waits for its answer: kill the command
        that it started, or drop the poll."""
        if number in self.commands:
            self.commands[number].kill("cancelled")
        for command in self.commands.values():
            if isinstance(command, Background):
                command.drop_poll(number)

    def handle_process_request(self, header: wire.Header, payload: bytes) -> tuple[wire.Header, bytes] | None:
        """Carry out a request about a background command. Return its answer, or None if it is sent later. If the
        command has ended, the answer is only `ended`, since its last output has been sent already."""
        command = self.commands.get(header["process"])
        if not isinstance(command, Background):
            return {"ended": True}, b""
        match header["op"]:
            case "poll":
                command.poll(PendingPoll(header["ticket"], header["has"], time.monotonic() + header["wait"]))
                return None
            case "feed":
                command.feed(payload)
            case "close_input":
                command.close_input()
            case "resize":
                command.resize(header["rows"], header["columns"])
            case "kill":
                command.kill_for(header["ticket"])
                return None
        return {}, b""

    def finish(self, command: Command) -> None:
        """Finish a command whose main process has ended: kill the command's other processes and answer its request. Put
        off while the box is frozen."""
        if self.frozen:
            self.events.forget(command.pidfd)
            self.ended.append(command)
            return
        status = command.reap()
        if status is None:
            return
        del self.commands[command.number]
        retry_on_enomem(lambda: self.kill_descendants(command))
        self.remove_left_memory()
        killed = self.memory.oom_killed() or self.killed_by_kernel
        if killed and os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 128 + signal.SIGKILL):
            command.limit = command.limit or "memory"
            killed = False
        # If other commands run, the killed process may have been theirs.
        self.killed_by_kernel = killed and bool(self.commands)
        command.finish(status)

    def kill_descendants(self, command: Command) -> None:
        if self.commands:
            others = {other.pid for other in self.commands.values()}
            processes.kill_marked(command.mark, others)
            processes.reap_orphans(others)
        else:
            processes.signal_all(signal.SIGKILL)
            processes.reap_all()

    def remove_left_memory(self) -> None:
        """Remove System V objects, which have outlived the processes that just ended."""
        if left := sysv.find_left(processes.is_there if self.commands else None):
            try:
                sysv.remove(left, self.identity.become)
            finally:
                self.identity.restore()

    # -- limits

    def poll_timeout(self) -> int | None:
        """Milliseconds until the next deadline or check; None if no command runs."""
        if not self.commands:
            return None
        return max(0, min(int(command.seconds_to_check() * 1000) + 1 for command in self.commands.values()))

    def watch(self) -> None:
        due = [command for command in self.commands.values() if command.seconds_to_check() <= 0]
        for command in due:
            if command.expired():
                command.kill("time")
            if isinstance(command, Background):
                command.answer_expired_polls()
        if due:
            began = time.monotonic()
            if not self.frozen:
                retry_on_enomem(self.check_usage)
            # The pause grows with the duration of the check, so that pid 1 stays mostly idle even in a box with very
            # many descriptors.
            pause = max(WATCH_SECONDS, 4 * (time.monotonic() - began))
            for command in due:
                command.schedule_check(pause)

    def check_usage(self) -> None:
        """Kill each command that exceeds its CPU time, and the one that uses most memory if the box exceeds its memory
        limit.

        Listing processes takes memory from the box. Where a cgroup enforces the limit, it is done only if there is a
        reason, and not at once after the kernel has killed a process: until that one has freed its memory, the kernel
        would kill pid 1 next."""
        most, now = self.limits["memory_mb"] << 20, time.monotonic()
        waiting = self.netlink.size()
        if self.memory.enforced and not self.killed_by_kernel:
            self.killed_by_kernel = self.memory.oom_killed()
            in_time = all(now < command.cpu_in_time_until for command in self.commands.values())
            if self.killed_by_kernel or (in_time and self.memory.process_bytes() + waiting <= most):
                return
        usage = self.measure()
        used = sum(process.memory for process in usage) + waiting
        used += 0 if self.memory.enforced else detached_bytes()
        full, self.killed_by_kernel = self.killed_by_kernel or used > most, False
        for command in self.commands.values():
            own = [process for process in usage if process.mark == command.mark]
            left = self.limits["cpu_seconds"] - sum(process.cpu_seconds for process in own)
            command.cpu_in_time_until = now + left / _CPUS
            if left < 0:
                command.kill("cpu")
        if full and self.commands:
            largest = max(
                self.commands.values(),
                key=lambda command: sum(process.memory for process in usage if process.mark == command.mark),
            )
            largest.kill("memory")
