"""Images by content, snapshots and forks."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.sandbox.support import (
    FILES,
    in_a_box,
    ok,
    processes_in,
)

from etude.sandbox import (
    Box,
    BoxBusy,
    BoxSpec,
    Limits,
    Sandboxes,
)


class ForkCases:
    listing = "ls -la --time-style=full-iso"
    """Lists what a copy must keep. A backend that copies by tar keeps only whole seconds, and not the time of the
    folder itself, so it overrides this."""
    generations = 100
    """How often a fork is forked: more than a chain may have layers. Lower in backends where each fork takes long."""

    @in_a_box()
    async def test_images_are_named_by_content(self, sandboxes: Sandboxes, image: str) -> None:
        assert await sandboxes.add_image(dict(reversed(FILES.items()))) == image
        assert await sandboxes.add_image({**FILES, "x": b""}) != image
        assert await sandboxes.add_image(FILES, workdir="/home/agent/w") != image
        over = await sandboxes.add_image({"calc.py": b"new"}, base=image)
        box = await sandboxes.create(BoxSpec(over))
        assert await box.read_file("calc.py") == b"new"
        assert await box.read_file("run.sh") == FILES["run.sh"]
        await box.exec("rm -rf *", timeout=5)
        again = await sandboxes.create(BoxSpec(image))
        assert await again.list_files() == sorted(FILES)

    @in_a_box(Limits())
    async def test_snapshot_and_fork_see_the_same_files(self, sandboxes: Sandboxes, box: Box) -> None:
        change = (
            "rm run.sh; mkdir -p d/e; echo new >d/e/f; ln d/e/f hard; ln -s d/e link; chmod 751 d; chmod 600 hard;"
            "rm -rf pkg; mkdir pkg; echo x >pkg/other; head -c 300000 /dev/urandom >blob;"
            "touch -d 2001-02-03 old; echo t >/tmp/t"
        )
        look = "find . /tmp -printf '%p %m %u %l %y\\n' | sort; find . -type f -exec md5sum {} + | sort; stat -c %Y old"
        ok(await box.exec(change, timeout=5))
        expected = ok(await box.exec(look, timeout=5))
        children = await box.fork(3)
        saved = await sandboxes.create(BoxSpec(await box.snapshot()))
        grandchild = (await children[0].fork())[0]
        kept = await sandboxes.create(BoxSpec(await grandchild.snapshot()))
        for copy in (*children, saved, grandchild, kept):
            assert ok(await copy.exec(look, timeout=5)) == expected
        await children[0].exec("rm -rf *; echo mine >own", timeout=5)
        await box.destroy()
        await children[1].exec("ln hard harder && mv d/e d/moved || mv d/e/f d/", timeout=5)
        for copy in (children[2], saved, grandchild, kept):
            assert ok(await copy.exec(look, timeout=5)) == expected

    @in_a_box()
    async def test_same_snapshot_has_the_same_id(self, sandboxes: Sandboxes, image: str) -> None:
        boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
        for box in boxes:
            await box.write_file("same", b"same")
        first, second = [await box.snapshot() for box in boxes]
        assert first == second != image
        await boxes[0].write_file("same", b"other")
        assert await boxes[0].snapshot() != first

    @in_a_box()
    async def test_fork_of_a_box_being_written_to(self, box: Box) -> None:
        writer = asyncio.create_task(box.exec("exec 3>held; echo part >&3; sleep 60", timeout=60))
        reader = asyncio.create_task(box.exec("exec 3<calc.py; sleep 0.6; echo read", timeout=60))
        ok(await box.exec("until test -s held; do sleep 0.01; done", timeout=20))
        with pytest.raises(BoxBusy, match="held"):
            await box.fork()
        with pytest.raises(BoxBusy, match="sh"):
            await box.snapshot()
        assert (await reader).stdout == b"read\n"
        (child,) = await box.fork(kill=True)
        assert (await writer).code == 137
        assert await child.read_file("held") == b"part\n"
        assert await processes_in(child) == []

    @in_a_box(Limits())
    async def test_requests_during_a_fork_wait_and_forks_may_overlap(self, box: Box) -> None:
        await box.write_file("blob", bytes(30 << 20))
        forks = [asyncio.create_task(box.fork()) for _ in range(3)]
        writes = [asyncio.create_task(box.write_file(f"w{n}", b"x" * 1000)) for n in range(20)]
        await asyncio.sleep(0)  # The forks have been asked for. What comes now opens no file: that would be "busy".
        late = await box.exec("mkdir late; ls -d late", timeout=20)
        assert late.stdout == b"late\n"
        await asyncio.gather(*writes)
        for (child,) in await asyncio.gather(*forks):
            for name in await child.list_files():
                assert len(await child.read_file(name, max_bytes=1 << 26)) > 0 or name == "pkg/__init__.py"
        assert len(await box.list_files()) == 3 + 1 + 20

    @in_a_box(Limits())
    async def test_children_are_equal_to_a_stopped_box_while_it_writes(self, box: Box) -> None:
        """The writer never has two files open at a time, and always counts after it has written."""
        writer = "n=0; while :; do n=$((n+1)); echo $n >n$n; mv n$n f$n; echo $n >count.new; mv count.new count; done"
        look = "ls f* | wc -l; cat count; cat $(ls f*) | sort -n | tail -1; "
        look += f"{self.listing} | md5sum"
        running = asyncio.create_task(box.exec(writer, timeout=60))
        ok(await box.exec("until test -e count; do sleep 0.01; done", timeout=20))
        seen = []
        for kill in (False, False, True):
            await asyncio.sleep(0.05)
            children = await fork_between_writes(box, 3, kill=kill)
            looks = [ok(await child.exec(look, timeout=10)).split() for child in children]
            assert looks[0] == looks[1] == looks[2]
            files, count, last = (int(value) for value in looks[0][:3])
            assert files == last
            assert files in (count, count + 1)
            seen.append(files)
            for child in children:
                await child.destroy()
        assert seen == sorted(seen)
        assert (await running).code == 137
        (after,) = await box.fork()
        assert ok(await after.exec(look, timeout=10)) == ok(await box.exec(look, timeout=10))

    @in_a_box()
    async def test_a_fork_of_a_box_that_wrote_nothing_since_the_last(self, box: Box) -> None:
        await box.write_file("once", b"1")
        first = await box.fork(2)
        second = await box.fork(2)
        (third,) = await second[0].fork()
        ok(await box.exec("chmod 700 /tmp/. ; rm once; touch -d 2001-02-03 .", timeout=5))
        (fourth,) = await box.fork()
        for child in (*first, *second, third):
            assert await child.read_file("once") == b"1"
        assert "once" not in await fourth.list_files()
        assert ok(await fourth.exec("stat -c %Y .", timeout=5)) == ok(await box.exec("stat -c %Y .", timeout=5))

    @in_a_box()
    async def test_parents_and_children_go_their_own_ways(self, box: Box) -> None:
        ok(await box.exec("mkdir -p d/e; echo old >d/e/f; echo keep >d/k", timeout=5))
        (child,) = await box.fork()
        ok(await box.exec("rm -r d; mkdir d; echo parent >d/p", timeout=5))
        ok(await child.exec("mv d/k d/e/; echo child >>d/e/f; ln d/e/f same", timeout=5))
        (grandchild,), (sister,) = await child.fork(), await box.fork()
        await box.destroy()
        assert await sister.list_files("d") == ["p"]
        assert await grandchild.list_files("d") == ["e/f", "e/k"]
        assert await grandchild.read_file("same") == b"old\nchild\n"
        ok(await grandchild.exec("rm -r d same", timeout=5))
        assert await child.read_file("d/e/k") == b"keep\n"

    @pytest.mark.slow
    @in_a_box(Limits())
    async def test_many_generations(self, box: Box) -> None:
        """Each deletes, renames and adds; the files of the last are what a plain folder would hold."""
        look = "find . -type f -exec md5sum {} + | sort; find . | sort"
        for generation in range(self.generations):
            change = f"rm -f f{generation - 3}; mkdir -p d{generation % 7}; echo {generation} >f{generation};"
            change += f"mv f{generation - 1} d{generation % 7}/ 2>/dev/null; rm -rf d{(generation + 3) % 7}; true"
            ok(await box.exec(change, timeout=10))
            (child,) = await box.fork()
            if generation % 10 == 9:
                assert ok(await child.exec(look, timeout=10)) == ok(await box.exec(look, timeout=10))
            await box.destroy()
            box = child
        left = {name: await box.read_file(name) for name in await box.list_files()}
        assert left == {**FILES, **plain_generations(self.generations)}


async def fork_between_writes(box: Box, count: int, *, kill: bool) -> list[Box]:
    """Fork, and try again while a file is open for writing, which raises BoxBusy."""
    for _ in range(200):
        try:
            return await box.fork(count, kill=kill)
        except BoxBusy:
            await asyncio.sleep(0.005)
    raise AssertionError("the writer always had a file open")


def plain_generations(count: int) -> dict[str, bytes]:
    """The files that the shell commands of test_many_generations leave, computed on a dictionary."""
    files: dict[str, bytes] = {}
    for generation in range(count):
        files.pop(f"f{generation - 3}", None)
        files[f"f{generation}"] = f"{generation}\n".encode()
        if f"f{generation - 1}" in files:
            files[f"d{generation % 7}/f{generation - 1}"] = files.pop(f"f{generation - 1}")
        gone = f"d{(generation + 3) % 7}/"
        files = {name: content for name, content in files.items() if not name.startswith(gone)}
    return files
