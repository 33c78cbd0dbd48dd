from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.editing.diff import unified_diff
from etude.recipe import Recipe
from etude.rollout import RolloutSetup, subject_of
from etude.sandbox.contract import BoxSpec, SandboxError, Sandboxes
from etude.sandbox.images import registry
from etude.tasks import Grader, reference_diff
from etude.tasks.environment import Environments, prepared
from etude.tasks.environment.source import Kind, source_of
from etude.tasks.task import Split, Task, TaskError

from .leaky import leaky_task

RECIPE = Recipe.model_validate({"name": "environments"})


class Counted:
    """Sandboxes that count what is asked of them."""

    def __init__(self, inner: Sandboxes) -> None:
        self._inner = inner
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def asked(*args: Any, **named: Any) -> Any:
            self.asked.append(name)
            return await found(*args, **named)

        return asked


@pytest.fixture
def sandboxes(sandboxes: Sandboxes) -> Counted:
    return Counted(sandboxes)


def task_of(folder: Path, files: dict[str, str], **config: Any) -> Task:
    for name, text in files.items():
        path = folder / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Task("t", "fix it", "debugging", Split.TRAIN, "family", "", folder, config=config)


async def test_files_alone_need_no_box_and_are_made_once(sandboxes: Counted, train_tasks: list[Task]) -> None:
    environments = Environments(sandboxes)
    first, second = await asyncio.gather(*(environments.prepare(train_tasks[0]) for _ in range(2)))
    assert first is second
    assert first.bare
    assert sandboxes.asked == ["add_image"]
    for _ in range(2):
        assert (await environments.prove(train_tasks[0])).findings == ()
    assert sandboxes.asked == ["add_image", "create"], "one to look at the host's base"


async def test_files_that_hold_caches_and_history_are_sealed(sandboxes: Counted, tmp_path: Path) -> None:
    task = task_of(tmp_path, {"repo/a.py": "a = 1\n", "repo/__pycache__/a.cpython-311.pyc": "x", "repo/.hg/x": "x"})
    found = await Environments(sandboxes).prepare(task)
    assert found.files == {"a.py": b"a = 1\n"}
    assert [item.path for item in found.removed] == ["/work/.hg", "/work/__pycache__"]
    assert found.folders == frozenset()
    assert not found.bare


async def test_the_next_process_finds_what_was_built(sandboxes: Counted, tmp_path: Path) -> None:
    task = leaky_task(tmp_path)
    folder = tmp_path / "known"
    first, same = await asyncio.gather(*(Environments(sandboxes, folder).prepare(task) for _ in range(2)))
    assert first.files == same.files
    sandboxes.asked.clear()
    again = await Environments(sandboxes, folder).prepare(task)
    assert again in (first, same)
    assert sandboxes.asked == ["create"]
    # What is written down may be damaged, or name an image that is gone: it is made again, and is the same.
    (record,) = folder.glob("*.json")
    for text in ("{", json.dumps({**json.loads(record.read_text()), "image": "f" * 32})):
        record.write_text(text)
        sandboxes.asked.clear()
        made = await Environments(sandboxes, folder).prepare(task)
        assert (made.files, made.removed) == (first.files, first.removed)
        assert "build_image" in sandboxes.asked
    assert [path.name for path in folder.iterdir()] == [record.name]


def test_which_environment_a_task_has(tmp_path: Path) -> None:
    both = {"repo/a": "a", "Dockerfile": "FROM host\n"}
    ours: dict[str, Any] = {"metadata": {"etude": {"environment": {"base": "host"}}}}
    assert source_of(task_of(tmp_path / "1", both)).kind is Kind.DOCKERFILE
    assert source_of(task_of(tmp_path / "2", both, **ours)).kind is Kind.FILES
    assert source_of(task_of(tmp_path / "3", {"repo/a": "a"})).kind is Kind.FILES
    named = source_of(task_of(tmp_path / "4", both, environment={"docker_image": "a.example/b:1", "workdir": "/w"}))
    assert (named.kind, named.reference, named.workdir) == (Kind.PULLED, "a.example/b:1", "/w")


@pytest.mark.parametrize(
    ("files", "config", "problem"),
    [
        ({}, {}, "environment/repo: expected a folder"),
        ({"docker-compose.yaml": ""}, {}, "docker-compose.yaml: environments of several containers are not run"),
        ({"Dockerfile": "FROM host\nRUN exit 3\n"}, {}, "Dockerfile:2: RUN exit 3"),
        ({"Dockerfile": "FROM host\nVOLUME /x\n"}, {}, "Dockerfile:2"),
        ({"Dockerfile": "FROM host\nWORKDIR /\n"}, {}, "set environment.workdir"),
        ({"repo/a": ""}, {"environment": {"workdir": "/usr/work"}}, "outside the system's folders"),
        ({"repo/a": ""}, {"environment": {"workdir": 3}}, "environment.workdir: expected text, found 3"),
        ({"repo/a": ""}, {"environment": 3}, "environment: expected a table, found 3"),
        ({}, {"metadata": {"etude": {"environment": {"archive": "../x"}}}}, "archive: expected a file of environment/"),
        ({"a.tar": "no tar"}, {"metadata": {"etude": {"environment": {"archive": "a.tar"}}}}, "a.tar"),
        ({"repo/a": ""}, {"metadata": {"etude": {"environment": {"base": "else"}}}}, 'base: expected "host"'),
    ],
)
async def test_what_a_task_s_author_did_wrong_is_named(
    sandboxes: Counted, tmp_path: Path, files: dict[str, str], config: dict[str, Any], problem: str
) -> None:
    task = task_of(tmp_path, files, **config)
    with pytest.raises(TaskError) as caught:
        await Environments(sandboxes).prepare(task)
    assert problem in str(caught.value)
    assert "\n    " not in str(caught.value).partition(problem)[0]


async def test_an_image_that_cannot_be_fetched_is_no_mistake_of_the_author(
    sandboxes: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_WAIT_SECONDS", 0.0)  # Between its attempts.
    built = task_of(tmp_path / "built", {"Dockerfile": "FROM 127.0.0.1:9/none:1\n"})
    named = task_of(tmp_path / "named", {}, environment={"docker_image": "127.0.0.1:9/none:1"})
    for task in (built, named):
        with pytest.raises(SandboxError, match=r"127\.0\.0\.1:9/none:1"):
            await Environments(sandboxes).prepare(task)


async def test_a_workspace_too_large_to_hold_is_refused(
    sandboxes: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MAX_FILES", 2)
    task = task_of(tmp_path, {"Dockerfile": "FROM host\nWORKDIR /srv/w\nRUN touch a b c\n"})
    with pytest.raises(TaskError, match="the workspace has more than 2 files"):
        await Environments(sandboxes).prepare(task)


TREES = st.dictionaries(
    st.sampled_from(["a", "b/c", "b/d"]), st.tuples(st.binary(max_size=3), st.booleans()), min_size=1
)


@given(TREES, TREES)
def test_a_digest_tells_any_two_environments_apart(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, tuple[bytes, bool]], other: dict[str, tuple[bytes, bool]]
) -> None:
    digests = []
    for tree in (one, other):
        folder = tmp_path_factory.mktemp("tree")
        for name, (data, executable) in tree.items():
            path = folder / "environment" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if executable else 0o644)
        digests.append(source_of(task_of(folder, {"Dockerfile": "FROM host\n"})).digest)
    assert (digests[0] == digests[1]) == (one == other)


# -- what the agent sees, through a rollout's own workspace


async def test_the_agent_works_in_a_checkout_without_network(sandboxes: Counted, tmp_path: Path) -> None:
    task = leaky_task(tmp_path)
    environments = Environments(sandboxes)
    grader = Grader(sandboxes, environments=environments)
    setup = RolloutSetup(sandboxes, grader, RECIPE.harness, RECIPE.sandbox, environments)
    subject = await subject_of(task, environments)
    workspace = setup.workspace(subject, "agent")
    try:
        said = await workspace.exec("pwd && git status --short && git log --format=%s", timeout=30)
        assert said.stdout == b"/srv/rides\nInitial commit\n"
        reach = (
            "import socket, sys\n"
            "for family, place in ((socket.AF_INET, ('192.0.2.1', 443)), (socket.AF_INET, ('198.51.100.1', 53)),\n"
            "                      (socket.AF_INET6, ('2001:db8::1', 443))):\n"
            "    s = socket.socket(family); s.settimeout(5)\n"
            "    print(s.connect_ex(place))\n"
        )
        await workspace.write("/srv/rides/reach.py", reach.encode())
        tried = (await workspace.exec("python3 reach.py; ls /sys/class/net 2>/dev/null", timeout=60)).stdout
        codes = tried.decode().split()[:3]
        assert all(code in ("101", "99", "97", "113") for code in codes), tried  # No route, no address.
        text = (await workspace.read("rides/fares.py")).decode()
        fixed = text.replace("zone * 120", "zone * 120 + minutes // 15 * 25")
        await workspace.write("/srv/rides/rides/fares.py", fixed.encode())
        diff = await workspace.diff()
        assert diff.count("+++") == 2
        change = (await environments.prepare(task)).change(diff, lambda path: False)
        assert change.files["rides/fares.py"] == fixed.encode()
        assert reference_diff(task).splitlines()[-1] in diff
    finally:
        await workspace.close()


@pytest.mark.slow
async def test_a_large_repository_is_read_whole_and_its_diff_is_small(sandboxes: Counted, tmp_path: Path) -> None:
    make = (
        "import os, pathlib\n"
        "for n in range(5000):\n"
        "    p = pathlib.Path(f'pkg{n % 50}/m{n}.py'); p.parent.mkdir(exist_ok=True)\n"
        "    p.write_text(f'x = {n}\\n' * 20)\n"
        "os.symlink('/etc/passwd', 'out'); os.symlink('/', 'root'); os.symlink('nowhere', 'dangling')\n"
        "os.mkfifo('pipe'); open('big.bin', 'wb').write(bytes(3_000_000))\n"
        "open('closed', 'w').write('x'); os.chmod('closed', 0)\n"
        "open(b'caf\\xe9', 'w').write('x'); open(b'caf\\xe9.pyc', 'w').write('x')\n"
    )
    dockerfile = "FROM host\nWORKDIR /srv/large\nCOPY --chown=agent make.py /srv/make.py\nRUN python3 /srv/make.py\n"
    task = task_of(tmp_path, {"Dockerfile": dockerfile, "make.py": make})
    found = await Environments(sandboxes).prepare(task)
    assert len([path for path in found.files if path.endswith(".py")]) == 5000
    assert len(found.files["big.bin"]) == 3_000_000
    assert {"out", "root", "dangling"} == found.links
    assert "pipe" not in found.files
    assert [path for path in found.files if path.startswith("caf")] == ["caf\udce9"]
    box = await sandboxes.create(BoxSpec(found.image, workdir=found.workdir))
    await box.write_file("pkg7/m7.py", b"x = 0\n")
    after = {**found.files, "pkg7/m7.py": await box.read_file("pkg7/m7.py")}
    diff = unified_diff(found.files, after)
    assert found.change(diff, lambda path: False).files == {"pkg7/m7.py": b"x = 0\n"}
