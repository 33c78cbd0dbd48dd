from __future__ import annotations

import asyncio
import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.small_root import needs_busybox, write_root

from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.tasks.environment import Environments, Prepared, source
from etude.tasks.environment.prepared import read_prepared
from etude.tasks.environment.source import needles_of_task
from etude.tasks.seal import Sealed, root, scan, scan_image
from etude.tasks.seal.leftovers import find_leftovers, is_below, is_leftover
from etude.tasks.task import Split, Task, TaskError

from .leaky import FIXED, LEAKS, LINE, PATCH, leaky_task
from .test_environment import task_of


async def say(box: Box, command: str) -> str:
    done = await box.exec(command, timeout=30)
    assert done.code == 0, done
    return done.stdout.decode()


async def sealed_box(sandboxes: Sandboxes, prepared: Prepared) -> Box:
    return await sandboxes.create(BoxSpec(prepared.image, workdir=prepared.workdir))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return leaky_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def environments(sandboxes: Sandboxes) -> Environments:
    return Environments(sandboxes)


# -- the whole, on a real build


async def test_the_scan_finds_every_leak_before_sealing_and_none_after(
    sandboxes: Sandboxes, task: Task, environments: Environments
) -> None:
    prepared = await environments.prepare(task)
    needles = needles_of_task(task, prepared.files)
    built = await sandboxes.build_image(task.directory / "environment")
    before = await scan_image(sandboxes, built, needles)
    found = [finding.file for finding in before.findings]
    assert [leak for leak in LEAKS if not any(file.startswith(leak) for file in found)] == []
    assert [file for file in found if not file.startswith(LEAKS)] == []
    after = await environments.prove(task)
    assert after.findings == ()
    assert after.unread == ()
    assert after.lines >= 4
    assert after.removed == prepared.removed
    assert after.scanned_files > 20


def test_a_copy_of_an_earlier_script_of_ours_is_no_hidden_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = leaky_task(tmp_path)
    before = needles_of_task(task, {})
    script = b"def an_earlier_script_of_ours():\n    return 'that task folders hold a copy of'\n"
    (task.directory / "tests" / "run_cases.py").write_bytes(script)
    assert needles_of_task(task, {}) != before
    monkeypatch.setattr(source, "FORMER", {hashlib.sha256(script).hexdigest()[:32]})
    assert needles_of_task(task, {}) == before


async def test_a_root_too_large_for_one_answer_is_read_in_pieces(
    sandboxes: Sandboxes, task: Task, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = await environments.prepare(task)
    needles = needles_of_task(task, prepared.files)
    built = await sandboxes.build_image(task.directory / "environment")
    whole = await scan_image(sandboxes, built, needles)
    monkeypatch.setattr(root, "PIECE_FILES", 4)
    monkeypatch.setattr(root, "PIECE_BYTES", 3000)
    parts = await scan_image(sandboxes, built, needles)
    assert sorted(map(str, parts.findings)) == sorted(map(str, whole.findings))
    assert parts.scanned_files == whole.scanned_files
    assert await read_prepared(sandboxes, Sealed(prepared.image, prepared.workdir, prepared.removed)) == prepared
    monkeypatch.setattr(scan, "LARGEST", 100)
    unread = (await scan_image(sandboxes, built, needles)).unread
    assert "/etc/passwd" in unread


async def test_the_sealed_box_is_a_checkout_as_a_person_has_it(
    sandboxes: Sandboxes, task: Task, environments: Environments
) -> None:
    prepared = await environments.prepare(task)
    box = await sealed_box(sandboxes, prepared)
    assert await say(box, "git status --porcelain") == ""
    assert await say(box, "git diff --stat HEAD") == ""
    assert await say(box, "git log --all --format='%an %s'") == "Developer Initial commit\n"
    assert await say(box, "git rev-parse --abbrev-ref HEAD") == "trunk\n"
    assert await say(box, "git tag; git remote; git stash list; git notes list; git branch -a") == "* trunk\n"
    assert await say(box, "git reflog | wc -l") == "1\n"
    assert await say(box, "git fsck --unreachable --no-reflogs 2>&1") == ""
    assert await say(box, "find .git -name '*.pack' -o -name alternates -o -name modules") == ""
    assert await say(box, "find .git/hooks -type f ! -name '*.sample'; ls") == "docs\ngo\nlink.py\nnotes\nrides\n"
    await say(box, "echo >> rides/fares.py && git commit -q -a -m next && git log --format=%an")
    # Nothing that the old repository would have run has run.
    assert not {"hooked", "monitored"} & prepared.files.keys()
    assert prepared.workdir == "/srv/rides"
    assert prepared.executable == {"go"}
    assert prepared.links == {"link.py"}
    assert prepared.files["docs/notes.bat"] == b"one\r\ntwo\r\n"
    assert sorted(prepared.files) == [
        ".gitattributes",
        ".gitignore",
        "docs/notes.bat",
        "go",
        "notes/seen",
        "rides/__init__.py",
        "rides/fares.py",
    ]


_FAMILY = """
set -eu
export HOME=/home/agent GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.example
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.example
commit() { git add -A && git commit -q -m x; }
mkdir /srv/lib && cd /srv/lib && git init -q . && echo part > part && commit
cd /srv/main && git init -q -b trunk . && mkdir docs && echo page > docs/page
echo 'ignored' > .gitignore && echo kept > ignored
git -c protocol.file.allow=always submodule --quiet add /srv/lib vendor/lib && git add -f ignored && commit
git worktree add -q -b other /srv/tree && cd /srv/tree && echo more > docs/more && commit && echo news > docs/news
"""


@pytest.mark.parametrize(
    ("workdir", "gone", "files"),
    [
        (
            "/srv/main",
            ["/srv/main/.git", "/srv/main/vendor/lib/.git"],
            [".gitignore", ".gitmodules", "docs/page", "ignored", "vendor/lib/part"],
        ),
        ("/srv/tree/docs", ["/srv/tree/.git", "/srv/main/.git"], ["more", "news", "page"]),
    ],
)
async def test_submodules_worktrees_and_folders_of_a_repository_lose_their_stores(
    sandboxes: Sandboxes, tmp_path: Path, workdir: str, gone: list[str], files: list[str]
) -> None:
    dockerfile = "FROM host\nWORKDIR /srv/main\nCOPY make.sh /srv/make.sh\nRUN sh /srv/make.sh\n"
    build = {"make.sh": _FAMILY, "Dockerfile": dockerfile}
    task = task_of(tmp_path, build, environment={"workdir": workdir})
    prepared = await Environments(sandboxes).prepare(task)
    assert set(gone) <= {item.path for item in prepared.removed}
    assert sorted(prepared.files) == files
    box = await sealed_box(sandboxes, prepared)
    assert await say(box, "git status --porcelain --ignored") == ("!! docs/news\n" if "news" in files else ""), (
        await say(box, "git status --ignored")
    )
    assert await say(box, "git log --all --format=%s; git worktree list | wc -l") == "Initial commit\n1\n"
    tracked = [path for path in files if path != "news"]
    assert (await say(box, "git ls-files")).split() == tracked
    assert await say(box, "find $(git rev-parse --show-toplevel) -name modules -o -name worktrees") == ""


async def test_a_copy_that_sealing_does_not_know_is_found_and_named(
    sandboxes: Sandboxes, tmp_path: Path, environments: Environments
) -> None:
    task = leaky_task(tmp_path, "COPY --chown=agent fixed /srv/vendored/elsewhere.txt\n")
    (finding,) = (await environments.prove(task)).findings
    assert str(finding) == f"/srv/vendored/elsewhere.txt holds rides/fares.py:5: {LINE}"


@needs_busybox
def test_where_the_image_has_no_git_the_history_is_squashed_elsewhere(
    sandboxes: Sandboxes, environments: Environments, loop: asyncio.Runner, tmp_path: Path
) -> None:
    directory = tmp_path / "small"
    tar = directory / "environment/root.tar"
    tar.parent.mkdir(parents=True)
    write_root(tar)
    work = tmp_path / "root/srv/rides"
    (work / "rides").mkdir(parents=True)
    for text in (FIXED, FIXED.replace("minutes // 15 * 25", "0")):
        (work / "rides/fares.py").write_text(text)
        _git(work, "init", "-q", ".")
        _git(work, "add", "-A")
        _git(work, "commit", "-q", "-m", "x")
    subprocess.run(["tar", "-rf", tar, "--owner=0", "--group=0", "-C", tmp_path / "root", "srv"], check=True)
    (directory / "solution").mkdir()
    (directory / "solution/patch.diff").write_text(PATCH)
    config = {"environment": {"workdir": "/srv/rides"}, "metadata": {"etude": {"environment": {"archive": "root.tar"}}}}
    task = Task("small", "", "", Split.TRAIN, "rides", "", directory, config=config)

    async def run() -> bytes:
        prepared = await environments.prepare(task)
        assert [item.path for item in prepared.removed] == ["/srv/rides/.git"]
        assert (await environments.prove(task)).findings == ()
        return await (await sealed_box(sandboxes, prepared)).read_tree(".")

    copy = loop.run(run())
    (tmp_path / "copy").mkdir()
    subprocess.run(["tar", "-xf", "-", "--no-same-owner", "-C", tmp_path / "copy"], input=copy, check=True)
    assert _git(tmp_path / "copy", "log", "--all", "--format=%an %s") == "Developer Initial commit\n"
    assert _git(tmp_path / "copy", "status", "--porcelain") == ""


def _git(folder: Path, *words: str) -> str:
    person = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    done = subprocess.run(["git", *person, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


# -- what goes

NAMES = st.sampled_from(
    ["__pycache__", "a.pyc", "build", "src", "x.py", ".mypy_cache", "node_modules", ".cache", ".git"]
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(st.sets(PATHS, max_size=12), st.sets(PATHS, max_size=4), st.booleans())
def test_what_is_tracked_stays_and_what_is_named_goes(paths: set[str], kept: set[str], repository: bool) -> None:
    files = sorted(
        f"/w/{path}" for path in paths if not any(is_below(other, path) and other != path for other in paths)
    )
    tracked = {f"/w/{path}" for path in kept} if repository else None
    gone = [item.path for item in find_leftovers(files, "/w", tracked)]
    left = [file for file in files if not any(is_below(file, place) for place in gone)]
    assert all(file in left for file in files if tracked and file in tracked)
    for file in left:
        steps = file.split("/")
        assert (tracked and file in tracked) or not {"__pycache__", ".mypy_cache"} & set(steps)
        assert (tracked and file in tracked) or tracked is None or "build" not in steps
    assert all(any(is_below(file, place) for file in files) for place in gone)


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("a/__pycache__/x.pyc", True),
        ("a/.git/HEAD", True),
        ("build/x.py", False),
        ("a/builder.py", False),
        (".coverage.host", True),
        ("node_modules/.cache/x", True),
        ("targets/x", False),
    ],
)
def test_leftovers_of_a_workspace_without_a_repository(path: str, goes: bool) -> None:
    assert is_leftover(path) is goes


def test_caches_outside_of_the_workspace_go_and_programs_stay() -> None:
    paths = ["/root/.cache/pip/a/b", "/home/me/.python_history", "/var/lib/apt/lists/x", "/tmp/a/b", "/usr/bin/build"]
    gone = [item.path for item in find_leftovers(paths, "/w", None)]
    assert gone == ["/home/me/.python_history", "/root/.cache/pip", "/tmp/a", "/var/lib/apt/lists"]


async def test_an_editable_install_keeps_what_it_is_loaded_from(
    sandboxes: Sandboxes, tmp_path: Path, environments: Environments
) -> None:
    lines = (
        "RUN mkdir -p rides.egg-info && echo rides > rides.egg-info/top_level.txt && "
        "echo /srv/rides > /srv/lib/site-packages/easy-install.pth && echo ignored >> .git/info/exclude\n"
    )
    prepared = await environments.prepare(leaky_task(tmp_path, lines))
    assert "rides.egg-info/top_level.txt" in prepared.files
    box = await sealed_box(sandboxes, prepared)
    assert await say(box, "git status --porcelain") == ""


_COPIES = """
set -eu
mkdir -p /srv/a/site-packages /srv/b/dist-packages/rides-1.0.dist-info /srv/c/node_modules/@we/rides-js vendor
rm rides/fares.py.orig && cp -r rides /srv/a/site-packages/ && cp -r rides /srv/b/dist-packages/
echo 'more = 1' > /srv/b/dist-packages/rides/more.py && touch /srv/b/dist-packages/rides-1.0.dist-info/RECORD
echo '{"name": "@we/rides-js"}' > package.json && echo 'new()' > /srv/c/node_modules/@we/rides-js/index.js
cp /srv/wheels/*.whl vendor/rides-1.0-py3-none-any.whl && git add package.json vendor
"""


async def test_copies_of_equal_bytes_stay_and_others_go(
    sandboxes: Sandboxes, tmp_path: Path, environments: Environments
) -> None:
    task = leaky_task(tmp_path, f"RUN <<end\n{_COPIES}end\n")
    prepared = await environments.prepare(task)
    gone = [item.path for item in prepared.removed]
    assert "/srv/a/site-packages/rides" not in gone
    assert "/srv/a/site-packages/rides/__pycache__" in gone
    assert {"/srv/b/dist-packages/rides", "/srv/b/dist-packages/rides-1.0.dist-info"} <= set(gone)
    assert "/srv/c/node_modules/@we/rides-js" in gone
    assert "vendor/rides-1.0-py3-none-any.whl" in prepared.files
    # What the repository itself tracks is not removed, but found.
    blob, wheel = [finding.file for finding in (await environments.prove(task)).findings]
    assert wheel == "/srv/rides/vendor/rides-1.0-py3-none-any.whl!rides/fares.py"
    assert blob.startswith("/srv/rides/.git/objects/")


async def test_an_image_without_a_shell_is_refused_by_name(sandboxes: Sandboxes, tmp_path: Path) -> None:
    config = {"environment": {"workdir": "/srv/work"}, "metadata": {"etude": {"environment": {"archive": "root"}}}}
    task = task_of(tmp_path / "bare", {"root/srv/work/a.txt": "a"}, **config)
    with pytest.raises(TaskError, match="bare/environment: the image cannot be sealed"):
        await Environments(sandboxes).prepare(task)
