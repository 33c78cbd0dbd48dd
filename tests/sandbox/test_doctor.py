"""The doctor says what is so here, and for every host that can be made up the one knob that helps."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from etude.sandbox import Capability, Feature
from etude.sandbox.doctor import Finding, HostFacts, as_json, doctor, judge, report
from etude.sandbox.embedded import knobs
from etude.sandbox.embedded.knobs import Facts, for_cgroups, for_failure, for_users
from etude.sandbox.embedded.probe import Mode, advice
from etude.sandbox.embedded.subuids import MissingSubids
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside.network import has_ipv6
from etude.sandbox.modes import ModeOption

GOOD = HostFacts(
    mode=Mode.ROOT,
    ids=IdRange(2_000_000_000),
    features=frozenset(Feature),
    capabilities=frozenset({Capability.BUFFER_MEMORY}),
    controllers=frozenset({"memory", "pids"}),
    python="3.11.9",
    status="Seccomp:\t2\nNoNewPrivs:\t1\n",
    devices=("lo",),
)
BWRAP = ModeOption("bubblewrap", True, True, "namespaces")
LANDLOCK = ModeOption("landlock", True, False, "files")


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name.strip(): finding for finding in findings}


def test_doctor_finds_boxes_here_and_prints() -> None:
    findings = doctor()
    found = named(findings)
    assert found["python"].good, findings
    assert found["network"].good
    assert ("IPv4 and IPv6" in found["egress"].text) == has_ipv6()
    assert found["system calls"].good
    assert found["mode"].held_by in set(Mode)
    lines = report(findings).splitlines()
    assert len({line.index(finding.text) for line, finding in zip(_without_knobs(lines), findings, strict=True)}) == 1
    assert [record["name"] for record in json.loads(as_json(findings))] == [
        finding.name.strip() for finding in findings
    ]


def _without_knobs(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("ok", "--"))]


def test_a_good_host_has_nothing_to_better() -> None:
    findings = judge(GOOD, Facts(), [BWRAP])
    assert all(finding.good and not finding.knob for finding in findings)
    assert named(findings)["memory"].held_by == "cgroup"
    assert "IPv4 alone" in named(findings)["egress"].text


def test_what_is_missing_comes_with_its_knob() -> None:
    poor = HostFacts(mode=Mode.USER, lack=MissingSubids("range"), python="3.11.9", status="", devices=("lo", "eth0"))
    found = named(judge(poor, Facts(user="ann", kernel=(6, 1)), [LANDLOCK]))
    assert {name for name, finding in found.items() if not finding.good} == {
        "memory", "socket buffers", "kernel tables", "disk", "users", "network", "system calls"
    }  # fmt: skip
    assert found["memory"].held_by == "watch"
    assert found["disk"].held_by == "nobody"
    assert "Delegate=yes" in found["memory"].knob
    assert "Linux 6.6 or newer (this is 6.1)" in found["disk"].knob
    assert found["users"].held_by == "one"
    assert "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann" in found["users"].knob


def test_whose_ids_boxes_have_is_shown() -> None:
    def users(mode: Mode, ids: IdRange) -> Finding:
        return named(judge(HostFacts(mode, ids), Facts(next_subordinate=365_536), []))["users"]

    assert "65536 ids from 2000000000" in users(Mode.ROOT, IdRange(2_000_000_000)).text
    apart = users(Mode.SUBUID, IdRange(1, 65_536, (300_000, 500_000)))
    assert "65536 ids from 300000, of groups from 500000" in apart.text
    assert apart.knob == ""
    short = users(Mode.SUBUID, IdRange(1, 5_000, (300_000, 300_000)))
    assert "5000 ids from 300000" in short.text
    assert "--add-subuids 365536-431071" in short.knob


def test_what_boxes_share_is_said() -> None:
    def found(host: HostFacts, kernel: tuple[int, int] = (6, 12)) -> dict[str, Finding]:
        return named(judge(host, Facts(kernel=kernel), []))

    shared = replace(GOOD, features=GOOD.features - {Feature.OWN_IDS})
    assert "map more ids" in found(shared)["kernel tables"].knob
    spare = replace(shared, ids=IdRange(2_000_000_000, spare=9))
    assert "Linux 6.3 or newer (this is 5.15)" in found(spare, (5, 15))["kernel tables"].knob
    assert found(spare)["kernel tables"].knob.startswith("a store on ext4"), "a newer kernel would not help"
    lent = replace(shared, mode=Mode.SUBUID, ids=IdRange(1, 65_536, (9, 9)))
    assert "pipe-user-pages-soft" in found(lent)["kernel tables"].knob
    assert "1/4" in found(replace(GOOD, buffers_apart=True))["socket buffers"].text
    unlimited = found(replace(GOOD, capabilities=frozenset()))["socket buffers"]
    assert (unlimited.held_by, "unified_cgroup" in unlimited.knob) == ("nobody", True)
    without = replace(GOOD, controllers=frozenset())
    assert found(without)["processes"].good
    assert not found(without, (5, 13))["processes"].good
    assert "one id" in found(replace(without, ids=None), (5, 13))["processes"].text


@pytest.mark.parametrize(("others", "taken"), [([BWRAP, LANDLOCK], "bubblewrap"), ([LANDLOCK], "none"), ([], "none")])
def test_without_boxes_of_our_own_the_mode_that_is_taken_is_named(others: list[ModeOption], taken: str) -> None:
    refused = HostFacts(refusal="the sandbox cannot start (id map: EPERM (errno 1)): sudo sysctl -w a=1")
    findings = judge(refused, Facts(), others)
    assert (findings[0].good, findings[0].held_by, findings[0].knob) == (False, taken, "sudo sysctl -w a=1")
    assert len(findings) == 1 + len(others)


USERNS_KNOBS = [
    ("user namespace", Facts(apparmor_userns=1), "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("id map", Facts(apparmor_userns=1, container=True), "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("user namespace", Facts(userns_clone=0), "kernel.unprivileged_userns_clone=1"),
    ("user namespace of a box", Facts(max_namespaces=0), "user.max_user_namespaces=65536"),
    ("mount namespace", Facts(container=True, max_namespaces=90_000), "seccomp=unconfined"),
    ("private mounts", Facts(), "CONFIG_USER_NS"),
    ("namespaces", Facts(), "_namespaces"),
    ("mount proc", Facts(container=True), "systempaths=unconfined"),
    ("overlay", Facts(), "modprobe overlay"),
    ("subordinate ids", Facts(), "newuidmap"),
    ("bind /usr", Facts(), "/usr must be readable"),
    ("anything else", Facts(), "etude sandbox doctor"),
]
CGROUP_KNOBS = [
    (Facts(), "systemd-run --user --scope -p Delegate=yes"),
    (Facts(container=True), "--cgroupns=private"),
    (Facts(cgroup_versions=frozenset({1})), "systemd.unified_cgroup_hierarchy=1"),
    (Facts(cgroup_versions=frozenset()), "systemd.unified_cgroup_hierarchy=1"),
    (Facts(root=True), "remount,rw /sys/fs/cgroup"),
    (Facts(systemd=False, user="ann"), "chown -R ann /sys/fs/cgroup/ann"),
]


def test_everything_that_is_missing_has_one_line_with_its_knob() -> None:
    lacks = {"program": "install uidmap", "range": "usermod", "newuidmap: not permitted": "set-uid root"}
    lines = [
        *((for_failure(step, facts), knob) for step, facts, knob in USERNS_KNOBS),
        *((for_users(MissingSubids(lack), Facts()), knob) for lack, knob in lacks.items()),
        *((for_cgroups(facts), knob) for facts, knob in CGROUP_KNOBS),
    ]
    for line, knob in lines:
        assert knob in line
        assert "\n" not in line
    assert "EPERM" in advice("overlay", "EPERM")


def test_facts_are_read_from_the_hosts_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs, "_user_name", lambda: "ann")
    assert Facts.read(tmp_path) == Facts(
        root=os.geteuid() == 0,
        user="ann",
        kernel=Facts.read().kernel,
        systemd=False,
        cgroup_versions=frozenset(),
    )
    files = {
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
        "proc/sys/kernel/unprivileged_userns_clone": "0\n",
        "proc/sys/user/max_user_namespaces": "17\n",
        ".dockerenv": "",
        "etc/subuid": "ann:100000:65536\n",
        "etc/subgid": "ann:100000:65536\nben:200000:10\n",
        "run/systemd/system/x": "",
        "proc/self/mountinfo": "30 1 0:26 / /cg rw - cgroup2 cgroup2 rw\n31 1 0:2 / /v1 rw - cgroup cgroup rw,memory\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = Facts.read(tmp_path)
    assert (facts.apparmor_userns, facts.userns_clone, facts.max_namespaces) == (1, 0, 17)
    assert (facts.container, facts.systemd) == (True, True)
    assert facts.next_subordinate == 200_010
    assert facts.cgroup_versions == {1, 2}
