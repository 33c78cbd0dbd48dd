"""What this host gives to boxes: the mode, which limits are real, and the knob for each one that is missing.

It makes one box in a temporary folder and looks from inside, so it says what is so, not what should be.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import BoxSpec, Feature, SandboxError
from etude.sandbox.embedded import EmbeddedSandboxes
from etude.sandbox.probe import Mode

_MODES = {
    Mode.ROOT: "root: boxes run under unprivileged host ids of their own; agent and grader are different users",
    Mode.USER: "user: boxes run under your own id, cut off by namespaces; one user per box",
}


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    good: bool
    text: str


def doctor() -> list[Finding]:
    """All findings; the first bad one ends the list when no box can be made."""
    try:
        return asyncio.run(_examine())
    except SandboxError as error:
        return [Finding("boxes", False, str(error))]


def report() -> str:
    findings = doctor()
    width = max(len(finding.name) for finding in findings)
    return "\n".join(f"{'ok ' if f.good else '-- '} {f.name:<{width}}  {f.text}" for f in findings)


async def _examine() -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="etude-doctor-") as folder:
        sandboxes = EmbeddedSandboxes(Path(folder))
        try:
            box = await sandboxes.create(BoxSpec("host"))
            python = await box.exec(
                ["python", "-S", "-E", "-c", "import sys; print(sys.version.split()[0])"], timeout=20
            )
            status = (await box.exec(["cat", "/proc/self/status"], timeout=20)).stdout.decode()
            network = (await box.exec(["cat", "/proc/net/dev"], timeout=20)).stdout.decode()
        finally:
            await sandboxes.close()
    devices = [line.split(":")[0].strip() for line in network.splitlines()[2:]]
    memory = sandboxes.memory_cells
    second = Feature.SECOND_USER in sandboxes.features
    version = python.stdout.decode().strip()
    return [
        Finding("mode", True, _MODES[sandboxes.host.mode]),
        Finding(
            "python",
            python.code == 0,
            f"{version} at /opt/python"
            if python.code == 0
            else f"does not start in a box: {python.stderr.decode().strip()}",
        ),
        Finding("network", devices == ["lo"], f"devices in a box: {', '.join(devices)}"),
        Finding("system calls", "Seccomp:\t2" in status, "a deny-list (seccomp) and no new privileges"),
        Finding("processes", True, "limited per box by the kernel (RLIMIT_NPROC in the box's own user namespace)"),
        Finding(
            "memory",
            True,
            "one process: by the kernel (RLIMIT_DATA); all together: watched every 50 to 250 ms, not by a cgroup",
        ),
        Finding("cpu time", True, "one process: by the kernel (RLIMIT_CPU); all of a command: watched"),
        Finding(
            "disk",
            memory,
            "limited by the kernel (what a box writes is a memory file system of disk_mb)"
            if memory
            else "only single files are limited: tmpfs keeps user attributes from Linux 6.6 on; install a newer kernel",
        ),
        Finding(
            "second user",
            second,
            "agent and grader are apart"
            if second
            else "absent: run as root for it (grading uses a fresh box either way)",
        ),
    ]
