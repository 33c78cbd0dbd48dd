"""Reports what this host offers to boxes: the mode, who enforces which limit, and the setting that would improve each.

It makes one box in a temporary folder and looks from inside it, so it reports what is so, not what should be. `judge`
is pure: it turns observations into findings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass

from etude.sandbox.contract import BoxSpec, Feature, SandboxUnavailable
from etude.sandbox.embedded import EmbeddedSandboxes, knobs, temporary_store
from etude.sandbox.embedded.cgroups import MEMORY, PIDS
from etude.sandbox.embedded.knobs import Facts
from etude.sandbox.embedded.probe import Mode
from etude.sandbox.embedded.subuids import MissingSubids
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside.network import has_ipv6
from etude.sandbox.inside.users import MAX_ID
from etude.sandbox.modes import Prospect, prospects

_MODES = {
    "root": "boxes run under unprivileged host ids of their own; every user of an image exists",
    "subuid": "boxes run under subordinate ids of yours; every user of an image exists",
    "user": "boxes run under your own id, cut off by namespaces; one user per box",
}

_FAMILIES = {
    True: "boxes with a policy have IPv4 and IPv6, whichever the real hosts are reached by",
    False: "boxes with a policy have IPv4 alone, as this kernel has no IPv6; real hosts are reached by what works",
}


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    good: bool
    held_by: str
    """Who enforces a limit: kernel, cgroup, watch (pid 1 checks periodically) or nobody. For other findings, one word
    for what was found."""
    text: str
    knob: str = ""
    """The command or setting that improves it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the embedded backend found out about this host, and what one of its boxes looks like from inside."""

    mode: Mode | None = None
    ids: IdRange | None = None
    """The range of ids that boxes get."""
    lack: MissingSubids | None = None
    """Why boxes have only one id."""
    refusal: str = ""
    """Why no box can be made; the last part of the text is the knob."""
    features: frozenset[Feature] = frozenset()
    controllers: frozenset[str] = frozenset()
    python: str = ""
    python_error: str = ""
    status: str = ""
    devices: tuple[str, ...] = ()
    ipv6: bool = False


def doctor() -> list[Finding]:
    try:
        seen = asyncio.run(_look())
    except SandboxUnavailable as error:
        seen = Seen(refusal=str(error))
    return judge(seen, Facts.read(), prospects())


def report(findings: list[Finding]) -> str:
    first, second = (max(len(getattr(finding, name)) for finding in findings) for name in ("name", "held_by"))
    lines = []
    for finding in findings:
        mark = "ok" if finding.good else "--"
        lines.append(f"{mark}  {finding.name:<{first}}  {finding.held_by:<{second}}  {finding.text}")
        if finding.knob:
            lines.append(f"{'':{first + second + 8}}better: {finding.knob}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    return json.dumps([{**dataclasses.asdict(each), "name": each.name.strip()} for each in findings], indent=2)


async def _look() -> Seen:
    with temporary_store("etude-doctor-") as folder:
        sandboxes = EmbeddedSandboxes(folder)
        try:
            box = await sandboxes.create(BoxSpec("host"))
            version = "import sys; print(sys.version.split()[0])"
            python = await box.exec(["python", "-S", "-E", "-c", version], timeout=20)
            status = await box.exec(["cat", "/proc/self/status"], timeout=20)
            network = await box.exec(["cat", "/proc/net/dev"], timeout=20)
        finally:
            await sandboxes.close()
    return Seen(
        mode=sandboxes.host.mode,
        ids=sandboxes.host.ids,
        lack=sandboxes.host.lack,
        features=sandboxes.features,
        controllers=sandboxes.cgroups.controllers if sandboxes.cgroups else frozenset(),
        python=python.stdout.decode().strip(),
        python_error=python.stderr.decode().strip(),
        status=status.stdout.decode(),
        ipv6=has_ipv6(),
        devices=tuple(line.split(":")[0].strip() for line in network.stdout.decode().splitlines()[2:]),
    )


def judge(seen: Seen, facts: Facts, others: list[Prospect]) -> list[Finding]:
    findings = _mode(seen, others)
    if seen.mode is not None:
        findings += [*_walls(seen), *_limits(seen, facts), _users(seen, facts)]
    return findings


def _mode(seen: Seen, others: list[Prospect]) -> list[Finding]:
    """Findings for the mode that `auto` picks, and for the other modes that can be asked for by name."""
    findings = []
    if seen.mode is not None:
        findings.append(Finding("mode", True, seen.mode, _MODES[seen.mode]))
    else:
        what, _, knob = seen.refusal.partition("): ")
        taken = next((other for other in others if other.usable and other.isolates), None)
        name = taken.name if taken else "none"
        findings.append(Finding("mode", False, name, f"{what})" if knob else what, knob))
    for other in others:
        findings.append(Finding(f"  {other.name}", other.usable, "usable" if other.usable else "not here", other.text))
    return findings


def _walls(seen: Seen) -> list[Finding]:
    filtered = "Seccomp:\t2" in seen.status and "NoNewPrivs:\t1" in seen.status
    python = f"{seen.python} at /opt/python" if seen.python else f"does not start in a box: {seen.python_error}"
    return [
        Finding("python", bool(seen.python), "", python),
        Finding("network", seen.devices == ("lo",), "kernel", f"devices in a box: {', '.join(seen.devices)}"),
        Finding("egress", True, "proxy", _FAMILIES[seen.ipv6]),
        Finding("system calls", filtered, "kernel", "a deny-list (seccomp) and no new privileges"),
    ]


def _limits(seen: Seen, facts: Facts) -> list[Finding]:
    disk = Feature.DISK_LIMIT in seen.features
    memory = Finding("memory", True, "cgroup", "the box as a whole, with what it writes in memory")
    if MEMORY not in seen.controllers:
        text = "each process by the kernel; all together watched every 50 to 250 ms; buffers by nobody"
        memory = Finding("memory", False, "watch", text, knobs.for_cgroups(facts))
    whole = PIDS in seen.controllers
    return [
        memory,
        Finding(
            "processes", True, "cgroup" if whole else "kernel", "the box as a whole" if whole else "per user of the box"
        ),
        Finding("cpu time", True, "kernel", "each process; all of a command watched every 50 to 250 ms"),
        Finding("file size", True, "kernel", "each file"),
        Finding(
            "disk",
            disk,
            "kernel" if disk else "nobody",
            "what a box writes lives in memory, at most disk_mb" if disk else "only single files are limited",
            "" if disk else knobs.for_disk_limits(facts),
        ),
        Finding("wall clock", True, "pid 1", "each command, with all that it started"),
    ]


def _users(seen: Seen, facts: Facts) -> Finding:
    if seen.ids is None:
        text = "one per box: grading uses a fresh box; commands of root and grader are refused"
        return Finding("users", False, "one", text, knobs.for_users(seen.lack, facts) if seen.lack else "")
    users, groups = seen.ids.subordinate or (seen.ids.first, seen.ids.first)
    place = f"from {users}" if users == groups else f"from {users}, of groups from {groups}"
    text = f"root, agent, grader and those of an image, apart from each other; on the host {seen.ids.count} ids {place}"
    whole = seen.ids.count > MAX_ID or seen.mode != Mode.SUBUID
    return Finding("users", True, "many", text, "" if whole else knobs.for_users(MissingSubids("range"), facts))
