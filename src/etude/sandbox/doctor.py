"""Reports what this host offers to boxes: the sandbox mode, what enforces each limit, and the setting that would
improve it.

The doctor makes one box in a temporary folder and inspects it from inside, so the report shows what boxes really get.
`judge` is pure: it turns observations into findings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass

from etude.sandbox.contract import BoxSpec, Capability, Feature, SandboxUnavailable
from etude.sandbox.embedded import EmbeddedSandboxes, knobs, temporary_store
from etude.sandbox.embedded.cgroups import BUFFERS_PART, MEMORY, PIDS
from etude.sandbox.embedded.knobs import COUNTS_PER_NAMESPACE, Facts
from etude.sandbox.embedded.probe import Mode
from etude.sandbox.embedded.subuids import MissingSubids
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside.network import has_ipv6
from etude.sandbox.inside.users import MAX_ID
from etude.sandbox.modes import ModeOption, mode_options

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
    """What enforces a limit: kernel, cgroup, watch (pid 1 of the box checks periodically), pid 1 or nobody. For other
    findings, a short word for what was found; may be empty."""
    text: str
    knob: str = ""
    """The command or setting that would improve this finding; empty if nothing would."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the embedded backend finds on this host, and what one of its boxes looks like from inside."""

    mode: Mode | None = None
    """How the embedded backend makes boxes here; None if it can make none."""
    ids: IdRange | None = None
    """The user ids that boxes get; None if each box has only one."""
    lack: MissingSubids | None = None
    """What is missing for boxes to have more than one user id; None if nothing is."""
    refusal: str = ""
    """Why no box can be made, ending with the setting that would help; empty if one can."""
    features: frozenset[Feature] = frozenset()
    capabilities: frozenset[Capability] = frozenset()
    controllers: frozenset[str] = frozenset()
    buffers_apart: bool = False
    """Socket buffers have a limit of their own (cgroups of version 1)."""
    python: str = ""
    """Version of Python in a box. Empty if it does not start there; `python_error` then holds the reason."""
    python_error: str = ""
    status: str = ""
    """/proc/self/status in a box."""
    devices: tuple[str, ...] = ()
    ipv6: bool = False


def doctor() -> list[Finding]:
    try:
        host = asyncio.run(_inspect_host())
    except SandboxUnavailable as error:
        host = HostFacts(refusal=str(error))
    return judge(host, Facts.read(), mode_options())


def report(findings: list[Finding]) -> str:
    """Format the findings as aligned text, the setting that would improve one on a second line."""
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


async def _inspect_host() -> HostFacts:
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
    return HostFacts(
        mode=sandboxes.host.mode,
        ids=sandboxes.host.ids,
        lack=sandboxes.host.lack,
        features=sandboxes.features,
        capabilities=sandboxes.capabilities,
        controllers=sandboxes.cgroups.controllers if sandboxes.cgroups else frozenset(),
        buffers_apart=sandboxes.cgroups.buffers_apart if sandboxes.cgroups else False,
        python=python.stdout.decode().strip(),
        python_error=python.stderr.decode().strip(),
        status=status.stdout.decode(),
        ipv6=has_ipv6(),
        devices=tuple(line.split(":")[0].strip() for line in network.stdout.decode().splitlines()[2:]),
    )


def judge(host: HostFacts, facts: Facts, others: list[ModeOption]) -> list[Finding]:
    """Turn facts into findings. `others` are the modes that could be used instead of the embedded backend."""
    findings = _mode(host, others)
    if host.mode is not None:
        findings += [*_isolation(host), *_limits(host, facts), _users(host, facts)]
    return findings


def _mode(host: HostFacts, others: list[ModeOption]) -> list[Finding]:
    """Return findings on the mode that `auto` picks, and on every other mode that can be requested by name."""
    findings = []
    if host.mode is not None:
        findings.append(Finding("mode", True, host.mode, _MODES[host.mode]))
    else:
        what, _, knob = host.refusal.partition("): ")
        taken = next((other for other in others if other.usable and other.isolates), None)
        name = taken.name if taken else "none"
        findings.append(Finding("mode", False, name, f"{what})" if knob else what, knob))
    for other in others:
        findings.append(Finding(f"  {other.name}", other.usable, "usable" if other.usable else "not here", other.text))
    return findings


def _isolation(host: HostFacts) -> list[Finding]:
    filtered = "Seccomp:\t2" in host.status and "NoNewPrivs:\t1" in host.status
    python = f"{host.python} at /opt/python" if host.python else f"does not start in a box: {host.python_error}"
    return [
        Finding("python", bool(host.python), "", python),
        Finding("network", host.devices == ("lo",), "kernel", f"devices in a box: {', '.join(host.devices)}"),
        Finding("egress", True, "proxy", _FAMILIES[host.ipv6]),
        Finding("copies", True, "kernel", "a living box is copied while its processes are held or its files read-only"),
        Finding("system calls", filtered, "kernel", "a deny-list (seccomp) and no new privileges"),
    ]


def _limits(host: HostFacts, facts: Facts) -> list[Finding]:
    disk = Feature.DISK_LIMIT in host.features
    memory = Finding("memory", True, "cgroup", "the box as a whole, with what it writes in memory")
    if MEMORY not in host.controllers:
        text = "each process by the kernel; all together watched every 50 to 250 ms"
        memory = Finding("memory", False, "watch", text, knobs.for_cgroups(facts))
    return [
        memory,
        _buffers(host, facts),
        _processes(host, facts),
        _kernel_tables(host, facts),
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


def _buffers(host: HostFacts, facts: Facts) -> Finding:
    name = "socket buffers"
    if Capability.BUFFER_MEMORY not in host.capabilities:
        text = "as much as the box's descriptors hold"
        if MEMORY in host.controllers:
            return Finding(name, False, "nobody", f"TCP and UDP: {text}", knobs.UNIFIED)
        return Finding(name, False, "nobody", f"{text}, pipes too", knobs.for_cgroups(facts))
    apart = f"TCP and UDP: a part of its own, 1/{BUFFERS_PART} of the memory limit; the others: in the memory limit"
    return Finding(name, True, "cgroup", apart if host.buffers_apart else "in the memory limit")


def _processes(host: HostFacts, facts: Facts) -> Finding:
    if PIDS in host.controllers:
        return Finding("processes", True, "cgroup", "the box as a whole")
    if facts.kernel >= COUNTS_PER_NAMESPACE:
        return Finding("processes", True, "kernel", "the box as a whole")
    text = "each user of the box" if host.ids else "all boxes and your own processes together, as they have one id"
    return Finding("processes", False, "kernel", text, knobs.for_kernel(COUNTS_PER_NAMESPACE, facts))


def _kernel_tables(host: HostFacts, facts: Facts) -> Finding:
    """Return the finding on kernel resources that are limited per user id or for all ids together, such as pipe sizes
    and file watches: whether a box can take them from other boxes."""
    name = "kernel tables"
    if Feature.OWN_IDS in host.features:
        return Finding(name, True, "own ids", "no box takes pipes, descriptors in flight or file watches from others")
    text = (
        "boxes share ids: one can shrink the pipes of the others, and use up the descriptors that may be under way in "
        "sockets; two or three can take all file watches"
    )
    return Finding(name, False, "shared", text, knobs.for_own_ids(host.ids, facts))


def _users(host: HostFacts, facts: Facts) -> Finding:
    if host.ids is None:
        text = "one per box: grading uses a fresh box; commands of root and grader are refused"
        return Finding("users", False, "one", text, knobs.for_users(host.lack, facts) if host.lack else "")
    users, groups = host.ids.subordinate or (host.ids.first, host.ids.first)
    place = f"from {users}" if users == groups else f"from {users}, of groups from {groups}"
    text = f"root, agent, grader and those of an image, apart from each other; on the host {host.ids.count} ids {place}"
    whole = host.ids.count > MAX_ID or host.mode != Mode.SUBUID
    return Finding("users", True, "many", text, "" if whole else knobs.for_users(MissingSubids("range"), facts))
