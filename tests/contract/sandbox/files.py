"""Files: reading, writing, listing, and which requests are refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.contract.sandbox.support import FILES, in_a_box, ok

from etude.sandbox import Box, RequestRefused, SandboxError

OF_THE_PATH = (RequestRefused, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class FileCases:
    @in_a_box()
    async def test_files_in_and_out(self, box: Box) -> None:
        assert await box.read_file("calc.py") == FILES["calc.py"]
        assert await box.list_files() == ["calc.py", "pkg/__init__.py", "run.sh"]
        data = bytes(range(256)) * 4000
        await box.write_file("a/b/c.bin", data)
        assert await box.read_file("/work/a/b/c.bin", max_bytes=len(data)) == data
        await box.write_file("a/b/c.bin", b"short")
        assert await box.read_file("a/b/../b/c.bin") == b"short"
        await box.write_file("tool", b"#!/bin/sh\necho tool\n", executable=True)
        assert ok(await box.exec(["./tool"], timeout=5)) == "tool\n"
        assert ok(await box.exec("echo more >>a/b/c.bin; stat -c %U a/b/c.bin", timeout=5)) == "agent\n"
        assert await box.list_files("a") == ["b/c.bin"]
        await box.exec("touch \"$(printf 'odd\\377 name')\"; ln -s /etc etc", timeout=5)
        assert "odd\udcff name" in await box.list_files()
        assert not any(name.startswith("etc/") for name in await box.list_files())

    @in_a_box()
    async def test_no_path_in_a_box_is_a_failure_of_the_sandbox(self, box: Box) -> None:
        """Whatever a process makes of a path, who asks for it is told about the path, and the box lives on."""
        long = "x" * 300
        made = (
            f"ln -s {long} long; ln -s loop loop; ln -s long chain; ln -s calc.py/x through; mkfifo pipe; "
            "mkdir locked; echo x >locked/file; echo x >shut; chmod 0 shut locked; "
            "ln -s /proc/self/mem mem; ln -s /dev/null null"
        )
        ok(await box.exec(made, timeout=5))
        paths = ["long", "loop", "chain", "through", "pipe", "locked/file", "shut", "mem", "null", "calc.py/x", long]
        paths += [
            "x/" * 3000,
            f"pkg/{long}",
            "/proc/1/mem",
            "/dev/zero",
            "\ud800",
            "a\0b",
            ".",
            "pkg",
            "run.sh/../long",
        ]
        for path in paths:
            for ask in (box.read_file, box.list_files, box.read_tree):
                with contextlib.suppress(*OF_THE_PATH):
                    await ask(path)
            with contextlib.suppress(*OF_THE_PATH):
                await box.write_file(f"{path}/below", b"")
        assert await box.read_file("calc.py") == FILES["calc.py"]

    @in_a_box()
    async def test_a_workdir_that_becomes_a_link_leads_nowhere(self, box: Box, tmp_path: Path) -> None:
        """Only where the box's user may replace it."""
        host = tmp_path / "host"
        host.mkdir()
        for name in ("secret", "calc.py"):
            (host / name).write_text("of the host")
        host.chmod(0o777)
        await box.exec(f"mv work moved && ln -s {host} work", timeout=5, cwd="/")
        for look in (box.list_files, box.read_tree, lambda: box.layout(["."])):
            with contextlib.suppress(SandboxError, OSError):
                assert b"secret" not in repr(await look()).encode()
        for name in ("calc.py", "secret"):
            with contextlib.suppress(SandboxError, OSError):
                assert await box.read_file(name) == FILES[name]
            with contextlib.suppress(SandboxError, OSError):
                await box.write_file(name, b"of a box")
        assert {path.read_text() for path in host.iterdir()} == {"of the host"}

    @in_a_box()
    async def test_a_layout_tells_names_kinds_modes_and_links_and_nothing_else(self, box: Box) -> None:
        places = (".", "/tmp", "/nothing")
        seen = {await box.layout(places)}
        assert await box.layout(["/nothing"]) == b""
        await box.write_file("calc.py", b"other\n")
        ok(await box.exec("touch -d 2001-01-01 calc.py; cat run.sh >/dev/null", timeout=5))
        assert {await box.layout(places)} == seen, "contents and times do not count"
        changes = (
            "touch /tmp/new",
            "mkdir pkg/sub",
            "rmdir pkg/sub; touch pkg/sub",
            "chmod 600 calc.py",
            "ln -s calc.py link",
            "ln -sfn run.sh link",
            "touch 'link 120777 x'",
            "mv pkg gkp",
        )
        for change in changes:
            ok(await box.exec(change, timeout=5))
            now = await box.layout(places)
            assert now not in seen, change
            assert now == await box.layout(places)
            seen.add(now)

    @in_a_box()
    async def test_the_whole_box_is_listed_without_what_is_mounted_in_it(self, box: Box) -> None:
        ok(await box.exec("echo x >/tmp/own; ln /tmp/own /tmp/again; mkdir /tmp/empty", timeout=5))
        listed = await box.list_files("/")
        assert {"work/calc.py", "tmp/own", "tmp/again", "etc/passwd"} <= set(listed)
        assert not [name for name in listed if name.startswith(("proc/", "dev/", "usr/", "opt/python/"))]
        assert listed == sorted(listed)
        assert "env" in await box.list_files("/usr/bin"), "a folder that the host lends can be asked for by name"

    @in_a_box()
    async def test_file_refusals(self, box: Box) -> None:
        setup = "ln -s /etc/passwd out; ln -s .. up; mkfifo pipe; ln -s /proc/self/fd/0 fd; ln -s loop loop; "
        setup += "mkdir ~/o d; echo outside >~/o/f; ln -s ~/o abs; ln -s /proc/1/root root; ln -s ../x d/x; "
        await box.exec(f"{setup} ln -s /proc/self/cwd/.. magic", timeout=5)
        with pytest.raises(FileNotFoundError):
            await box.read_file("nothing")
        with pytest.raises(IsADirectoryError):
            await box.read_file("pkg")
        with pytest.raises(NotADirectoryError):
            await box.read_file("calc.py/x")
        for path in (
            "../etc/passwd",
            "out",
            "up/etc/passwd",
            "pipe",
            "fd",
            "loop",
            "",
            "a\0b",
            "/proc/self/status",
        ):
            with pytest.raises(RequestRefused):
                await box.read_file(path)
        around = ("abs/f", "up/home/agent/o/f", "root/etc/hostname", "magic/etc/hostname", "d/../../etc/hostname")
        for path in around:
            with pytest.raises((RequestRefused, OSError)):
                await box.read_file(path)
            with pytest.raises((RequestRefused, OSError)):
                await box.write_file(path, b"in")
        with pytest.raises((RequestRefused, OSError)):
            await box.list_files("abs")
        assert ok(await box.exec("cat ~/o/f", timeout=5)) == "outside\n"
        for path in ("../x", "out", "up/x", "pipe", "up/new/deep/x", "/dev/null"):
            with pytest.raises((RequestRefused, PermissionError)):
                await box.write_file(path, b"x")
        with pytest.raises(RequestRefused):
            await box.read_file("calc.py", max_bytes=5)
        with pytest.raises((SandboxError, PermissionError)):
            await box.write_file("/usr/bin/env", b"x")
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            await box.list_files("nothing")
        assert await box.read_file("/etc/hostname")
