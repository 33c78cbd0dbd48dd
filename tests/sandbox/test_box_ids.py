"""Each box has ids of its own, whichever zygote makes it; files keep their owners wherever they are seen."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop, ok
from tests.sandbox.as_nobody import for_root

from etude.sandbox import Box, BoxSpec, EmbeddedSandboxes, Feature
from etude.sandbox.inside import box_ids
from etude.sandbox.inside.box_ids import BoxIds, IdPool
from etude.sandbox.inside.kernel import StepFailed
from etude.sandbox.inside.zygote_root import ZygoteSettings

BASE = 2_000_000_000


def pool(*, spare: int = 0, count: int = 6, subordinate: tuple[int, int] | None = None) -> IdPool:
    return IdPool(
        ZygoteSettings(
            store="",
            stage="",
            skeletons={},
            binds=[],
            range_base=BASE,
            range_count=count,
            spare_ranges=spare,
            subordinate=subordinate,
            memory=True,
        )
    )


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_ids, "_FOLDERS", (str(tmp_path / "missing"), str(tmp_path)))


@pytest.mark.parametrize("spare", [0, 5])
def test_two_zygotes_never_give_the_same(spare: int) -> None:
    first, second = pool(spare=spare), pool(spare=spare)
    taken = [one.take() for _ in range(2) for one in (first, second)]
    creators = {ids.creator for ids in taken}
    assert len(creators) == 4
    assert creators <= {BASE + n * (6 if spare else 1) for n in range(1, 6)}
    assert first.take().creator not in creators, "the last number"
    assert second.take().creator == -1, "there is none left: as it was before boxes had numbers"
    first.give_back(taken[0])
    assert first.take() is taken[0]


def test_numbers_that_are_not_needed_any_more_are_free_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_ids, "_MAX_UNUSED", 1)
    first, second = pool(), pool()
    for ids in [first.take() for _ in range(5)]:
        first.give_back(ids)
    assert [second.take().creator >= 0 for _ in range(5)] == [True] * 4 + [False]


def test_ids_that_cannot_be_made_take_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(rows: object) -> int:
        raise StepFailed("namespaces", errno.ENOSPC)

    first, second = pool(spare=5), pool(spare=5)
    first.own_ranges = True
    monkeypatch.setattr(box_ids, "make_id_namespace", no_room)
    for _ in range(6):
        with pytest.raises(StepFailed):
            first.take()
    assert all(second.take().creator >= 0 for _ in range(5))


CROWDED = """
import asyncio, fcntl, os
from pathlib import Path
from etude.sandbox import BoxSpec, EmbeddedSandboxes
from etude.sandbox.inside.box_ids import LOCKS, _LOCK
locks = os.open(f"/run/{LOCKS}", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.fcntl(locks, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

async def main():
    sandboxes = EmbeddedSandboxes(Path("store"))
    box = await sandboxes.create(BoxSpec("host"))
    print((await box.exec("cat /proc/sys/user/max_inotify_watches", timeout=20)).stdout.decode())
    await sandboxes.close()

asyncio.run(main())
"""


@for_root
def test_boxes_beyond_the_last_number_leave_each_other_file_watches(tmp_path: Path) -> None:
    apart = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs locks /run && exec "$@"', "sh"]
    done = subprocess.run([*apart, sys.executable, "-c", CROWDED], capture_output=True, check=True, cwd=tmp_path)
    assert int(done.stdout) <= int(Path("/proc/sys/fs/inotify/max_user_watches").read_text()) // 4


def test_a_zygote_of_subordinate_ids_needs_no_locks(tmp_path: Path) -> None:
    assert pool(subordinate=(9, 9)).take().creator > BASE
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_user_holds_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / box_ids.LOCKS).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(box_ids, "_FOLDERS", (str(tmp_path / "one"), str(tmp_path)))
    assert pool().take().creator > BASE
    assert not (tmp_path / "elsewhere").exists()


def test_boxes_of_one_id_have_none() -> None:
    ids = BoxIds()
    assert (ids.first, ids.creator, ids.namespace) == (-1, -1, -1)


OWNERS = """
import os, struct
os.chdir("/work")
open("f", "w").write("x")
os.chown("f", 65000, 12)
os.link("f", "again")
entries = ((1, 6, 0xffffffff), (2, 4, 1000), (4, 4, 0xffffffff), (16, 4, 0xffffffff), (32, 0, 0xffffffff))
os.setxattr("f", "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries))
os.setxattr("f", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
os.mkdir("d")
os.chown("d", 0, 5)
os.chmod("d", 0o3777)
os.symlink("x", "l")
os.lchown("l", 7, 8)
"""
LOOK = """
import os
for name in sorted(os.listdir("/work")):
    info = os.lstat("/work/" + name)
    print(name, oct(info.st_mode), info.st_uid, info.st_gid, info.st_nlink)
print(os.getxattr("/work/f", "security.capability"))
"""


@for_root
@in_loop
async def test_owners_stay_the_same_from_range_to_range(sandboxes: EmbeddedSandboxes, tmp_path: Path) -> None:
    if Feature.OWN_IDS not in sandboxes.features:
        pytest.skip("this kernel cannot show files under other ids")

    async def look(box: Box) -> str:
        return ok(await box.exec(["python", "-c", LOOK], timeout=20, user="root"))

    async def first_id(box: Box) -> int:
        inner, outer, count = map(int, ok(await box.exec("cat /proc/self/uid_map", timeout=5)).split())
        assert (inner, count) == (0, 65_536)
        return outer

    box = await sandboxes.create(BoxSpec("host"))
    ok(await box.exec(["python", "-c", OWNERS], timeout=20, user="root"))
    before = await look(box)
    assert "d 0o43777 0 5 2" in before
    assert "f 0o100640 65000 12 2" in before
    (child,) = await box.fork()
    grandchild = await sandboxes.create(BoxSpec(await child.snapshot()))
    boxes = [box, child, grandchild]
    assert [await look(each) for each in boxes] == [before] * 3
    assert len({await first_id(each) for each in boxes}) == 3
    assert (await child.exec("cat f", timeout=5)).stdout == b"x", "by the access list"
    layers = Path(sandboxes.store.layers)
    owners = {os.lstat(path).st_uid for path in layers.rglob("*") if path.parent.name == "work"}
    assert owners <= {BASE, BASE + 7, BASE + 65_000}, "on the disk, files do not tell which box wrote them"


@for_root
@in_loop
async def test_boxes_are_made_while_others_are_removed(tmp_path: Path) -> None:
    """In folders, where a removed box's views are in the way of the next until the zygote is idle."""
    sandboxes = EmbeddedSandboxes(tmp_path / "folders", memory_cells=False)

    async def live() -> None:
        for _ in range(10):
            box = await sandboxes.create(BoxSpec("host"))
            await box.destroy()

    try:
        await asyncio.gather(*(live() for _ in range(4)))
    finally:
        await sandboxes.close()
