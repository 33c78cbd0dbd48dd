from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.sandbox.frozen import RACE_TRIES
from tests.contract.sandbox.support import in_loop, ok

from etude.sandbox import BoxSpec, EmbeddedSandboxes, Limits, RequestRefused
from etude.sandbox.images.flatten import merge_layers
from etude.sandbox.images.owners import disk_bytes
from etude.sandbox.inside import content, seal
from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.modes.folder_backend import FolderSandboxes

DEEP = 1100
"""More than Python recurses, and less than a path can say."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: on a disk, making so many folders takes its time."""
    place = tempfile.mkdtemp(prefix="etude-", dir="/dev/shm")
    yield Path(place)
    remove_tree(place)


def facts(top: Path) -> list[tuple[str, int, int, int, bytes]]:
    found = []
    todo = [top]
    while todo:
        for path in todo.pop().iterdir():
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found.append((str(path.relative_to(top)), info.st_mode, info.st_mtime_ns, info.st_nlink, content))
            if path.is_dir() and not path.is_symlink():
                todo.append(path)
    return sorted(found)


def written(top: Path) -> Path:
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_bytes(bytes(3 << 20) + b"end")
    (top / "a" / "empty").touch(mode=0o640)
    (top / "hard").hardlink_to(top / "a" / "empty")
    (top / "link").symlink_to("nowhere")
    os.mkfifo(top / "pipe", 0o622)
    (top / "closed").mkdir(mode=0o500)
    (top / "a").chmod(0o1777)
    for path in (top / "a" / "b" / "file", top / "a", top / "closed"):
        os.utime(path, ns=(1, 1_000_000_007))
    return top


def test_a_copy_has_the_same_facts_and_its_name_depends_on_them_alone(tmp_path: Path) -> None:
    source = written(tmp_path / "source")
    digests = {seal.copy_layers([str(source)], str(tmp_path / name)) for name in ("one", "two")}
    digests.add(seal.copy_layers([str(tmp_path / "one")], str(tmp_path / "three")))
    assert len(digests) == 1
    seal.copy_layers([str(source)], str(tmp_path / "unnamed"), named=False)
    assert facts(tmp_path / "unnamed") == facts(source)
    assert facts(tmp_path / "three") == facts(source)
    (source / "a" / "empty").chmod(0o600)
    assert seal.copy_layers([str(source)], str(tmp_path / "four")) not in digests


def test_attributes_of_programs_are_kept_and_those_of_overlayfs_are_made_anew(tmp_path: Path) -> None:
    source = written(tmp_path / "source")
    try:
        os.setxattr(source / "hard", "user.mine", b"1")
        os.setxattr(source / "a", "user.overlay.origin", b"x")
    except OSError:
        pytest.skip("this file system keeps no user attributes")
    plain = seal.copy_layers([str(source)], str(tmp_path / "one"))
    assert os.getxattr(tmp_path / "one" / "a" / "empty", "user.mine") == b"1"
    assert os.listxattr(tmp_path / "one" / "a") == []
    os.setxattr(source / "a", "user.overlay.opaque", b"y")
    assert seal.copy_layers([str(source)], str(tmp_path / "two")) != plain
    assert os.listxattr(tmp_path / "two" / "a") == ["user.overlay.opaque"]


SWAP = """
import ctypes, os
libc = ctypes.CDLL(None)
print("ready", flush=True)
while True:
    for one, other in ((b"d", b"link"), (b"file", b"pipe"), (b"e/f", b"e/link")):
        libc.renameat2(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def swapped(top: Path, host: Path) -> Iterator[Path]:
    """A tree in which somebody swaps folders and files for links and pipes all the time."""
    for folder in ("a/b", "d/into", "e/f/into"):
        (top / folder).mkdir(parents=True)
    for number in range(100):
        (top / "a" / "b" / str(number)).touch()
    for name in ("d/mine", "e/f/into/mine", "file"):
        (top / name).write_text("mine")
    os.mkfifo(top / "pipe")
    for name in ("link", "e/link"):
        (top / name).symlink_to(host)
    (host / "into").mkdir(parents=True)
    for name in ("secret", "into/secret", "mine"):
        (host / name).write_text("of the host")
    with subprocess.Popen([sys.executable, "-c", SWAP], cwd=top, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            yield top
        finally:
            swapper.kill()
    assert sorted(path.name for path in host.rglob("*")) == ["into", "mine", "secret", "secret"]


def test_a_tree_that_changes_leads_no_copy_out(tmp_path: Path) -> None:
    with swapped(tmp_path / "source", tmp_path / "host") as source:
        for turn in range(RACE_TRIES * 40):
            target = tmp_path / f"copy{turn}"
            with contextlib.suppress(content.Changed):
                seal.copy_layers([str(source)], str(target), named=turn % 2 == 0)
            assert not [path for path in target.rglob("*") if path.name == "secret"]
            remove_tree(str(target))


def test_a_tree_that_changes_leads_no_removal_out(tmp_path: Path) -> None:
    for turn in range(RACE_TRIES):
        top = tmp_path / str(turn)
        with swapped(top / "tree", top / "host") as tree:
            remove_tree(str(tree))
            assert not tree.exists()


def test_holes_stay_holes_and_do_not_change_a_name(tmp_path: Path) -> None:
    for name, holes in (("full", False), ("hollow", True)):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "file").open("wb") as file:
            for place in (5 << 20, 9 << 20):
                file.seek(place) if holes else file.write(bytes(place - file.tell()))
                file.write(b"data")
            file.truncate(20 << 20) if holes else file.write(bytes((20 << 20) - file.tell()))
        os.utime(tmp_path / name, ns=(1, 1))
    names = {seal.copy_layers([str(tmp_path / name)], str(tmp_path / f"{name}2")) for name in ("full", "hollow")}
    assert len(names) == 1
    seal.copy_layers([str(tmp_path / "hollow")], str(tmp_path / "unnamed"), named=False)
    for copy in ("full2", "hollow2", "unnamed"):
        path = tmp_path / copy / "file"
        assert path.read_bytes() == (tmp_path / "full" / "file").read_bytes()
        assert path.stat().st_blocks * 512 < 1 << 20


def chain(top: Path, depth: int) -> Path:
    top.mkdir()
    place = top
    for number in range(depth):
        place /= str(number % 10)
        place.mkdir()
    (place / "end").write_text("deep")
    return top


def test_layers_are_copied_and_merged_whatever_their_depth(tmp_path: Path) -> None:
    one, two = chain(tmp_path / "one", DEEP), chain(tmp_path / "two", DEEP - 100)
    answer = seal.copy_and_report([str(one), str(two)], str(tmp_path / "copied"))
    merge_layers([one, two], tmp_path / "merged")
    for top in (tmp_path / "copied", tmp_path / "merged"):
        found = subprocess.run(["find", top, "-mindepth", "1"], capture_output=True, text=True, check=True).stdout
        assert len(found.splitlines()) == DEEP + 2
    assert "digest" in answer
    assert FolderSandboxes.size(FolderSandboxes.__new__(FolderSandboxes), tmp_path / "merged") == 2 * len("deep")
    assert disk_bytes(tmp_path / "merged") >= 2 * len("deep")


def test_what_is_deeper_than_a_path_can_say_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    answer = seal.copy_and_report([str(chain(tmp_path / "source", 1600))], str(tmp_path / "copied"))
    assert answer["kind"] == "refused"
    assert "nested too deep" in answer["error"]
    assert not (tmp_path / "copied").exists()


@in_loop
async def test_a_box_of_nested_folders(sandboxes: EmbeddedSandboxes) -> None:
    dig = "import os\nfor n in range({}): os.mkdir('d'); os.chdir('d')\nopen('end', 'w')"
    box = await sandboxes.create(BoxSpec("host", limits=Limits()))
    ok(await box.exec(["python", "-c", dig.format(DEEP)], timeout=20))
    saved = await sandboxes.create(BoxSpec(await box.snapshot()))
    count = "find . -name end | tr -dc / | wc -c"
    assert int(ok(await saved.exec(count, timeout=20))) == DEEP + 1
    ok(await box.exec(["python", "-c", "import os; os.mkdir('x'); os.chdir('x')\n" + dig.format(1700)], timeout=30))
    with pytest.raises(RequestRefused, match="nested too deep") as refusal:
        await box.snapshot()
    assert "\n" not in str(refusal.value)
    (child,) = await box.fork()  # Nothing is copied, so there is nothing to refuse.
    assert (await child.exec("test -d x/d/d/d", timeout=5)).code == 0
