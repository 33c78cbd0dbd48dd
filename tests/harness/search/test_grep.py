"""What an index leads to is what ripgrep finds: in any folder, for any pattern, after any change."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.harness.search.trees import (
    FILES,
    GLOBS,
    IN_MEMORY,
    NAMES,
    RIPGREP,
    RULES,
    TEXTS,
    same,
    write,
)

from etude.harness.search import BadPattern, Grep, NoRipgrep, Pattern, Ripgrep, SearchFailed
from etude.harness.search import grep as front
from etude.harness.search.store import load, place_of

PROBE = Pattern("probe", ignore_case=True)
ASKED = [PROBE, Pattern("static"), Pattern("mask|device"), Pattern(r"0x80\d+")]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@contextmanager
def laid_out(files: dict[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        root = Path(place) / "tree"
        root.mkdir()
        write(root, files)
        yield root


def opened(root: Path, **options) -> Grep:
    grep = Grep(root, cache=root.parent / "cache", least_files=0, **options)
    grep.build()
    return grep


NAME = st.sampled_from(NAMES)
CHANGES = st.one_of(
    st.tuples(st.just("write"), NAME, TEXTS),
    st.tuples(st.just("append"), NAME, TEXTS),
    st.tuples(st.just("patch"), NAME, TEXTS),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.just("link"), NAME, NAME),
    st.tuples(st.just("point"), NAME, NAME),
    st.tuples(st.just("copy"), NAME, NAME),
    st.tuples(st.just("folder"), st.sampled_from(["sub", "build", "new", "new/er"]), NAME),
    st.tuples(st.just("rules"), st.sampled_from([".gitignore", "sub/.ignore", "new/.rgignore"]), RULES),
    st.tuples(st.just("git")),
)


def change(root: Path, what: str, *how) -> None:
    """One change; what cannot be done is left."""
    target = root / how[0] if how else root / ".git"
    try:
        match what:
            case "write" | "rules":
                write(root, {how[0]: how[1]})
            case "append":
                with target.open("ab") as file:
                    file.write(how[1])
            case "patch":
                with target.open("r+b") as file:
                    times = os.fstat(file.fileno())
                    file.write(how[1])
                # As tools do that keep a file's times.
                os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
            case "delete":
                target.unlink()
            case "rename":
                target.rename(root / how[1])
            case "link":
                (root / how[1]).hardlink_to(target)
            case "point":
                (root / how[1]).symlink_to(target)
            case "copy":
                shutil.copy2(target, root / how[1])
            case "folder":
                if target.is_dir():
                    target.rename(root / "moved") if not (root / "moved").exists() else shutil.rmtree(target)
                else:
                    write(target, {how[1]: b"static probe\n"})
            case "git":
                target.rmdir() if target.exists() else target.mkdir()
    except OSError:
        pass


def signatures(grep: Grep) -> dict[bytes, bytes]:
    """By path, of every file that is known and has one."""
    index = grep.index
    assert index is not None
    index.compact()
    assert not index.loose
    return {
        index.paths[file]: column.tobytes()
        for shard in index.shards
        for file, column in zip(shard.files.tolist(), shard.columns(), strict=True)
    }


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES, st.lists(st.lists(CHANGES, max_size=4), max_size=5), st.booleans(), GLOBS)
@example({"é.c": b"probe", "a.c": b"probe"}, [[]], False, ["!a.c"])
def test_changes_are_seen_at_once(files, rounds, watching, globs):
    with laid_out(files) as root, opened(root, watching=watching) as grep:
        for changes in rounds:
            for each in changes:
                change(root, *each)
            for pattern in ASKED:
                same(grep, pattern)
            same(grep, PROBE, globs)
        grep._refresh()
        kept = signatures(grep)
        with Grep(root, cache=root.parent / "other", least_files=0) as fresh:
            fresh.build()
            listed = set(RIPGREP.files(grep.root))
            assert {path: bits for path, bits in kept.items() if path in listed} == signatures(fresh)


@settings(max_examples=8, deadline=None)
@given(FILES, st.lists(CHANGES, max_size=6))
def test_an_index_of_yesterday_serves_today(files, changes):
    with laid_out(files) as root:
        opened(root).close()
        for each in changes:
            change(root, *each)
        with Grep(root, cache=root.parent / "cache", least_files=10**9) as grep:
            for pattern in ASKED:
                same(grep, pattern)
            assert grep.index is not None


def test_more_changes_than_the_kernel_keeps(folder):
    write(folder, {"a": b"none\n", "b": b"none\n", "c": b"none\n"})
    with opened(folder) as grep:
        with (folder / "a").open("ab", 0) as a, (folder / "b").open("ab", 0) as b:
            for _ in range(9_000):
                a.write(b"x\n")
                b.write(b"x\n")
        write(folder, {"c": b"probe\n"})
        same(grep, PROBE)
        assert [path for path, _ in grep.search(PROBE).files] == [b"c"]


def test_many_changed_files_are_read_by_and_by(folder, monkeypatch):
    monkeypatch.setattr(front, "READ_AT_ONCE", 3)
    write(folder, {f"{number}": b"none\n" for number in range(40)})
    with opened(folder) as grep:
        write(folder, {f"{number}": b"probe\n" for number in range(10)})
        left = []
        for _ in range(4):
            same(grep, PROBE)
            left.append(len(grep._stale))
    assert left == [7, 4, 1, 0]


def test_a_store_through_a_memory_map_is_seen_when_it_is_closed(folder):
    write(folder, {"a": b"none \n" * 100})
    with opened(folder) as grep:
        with (folder / "a").open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            view[:5] = b"probe"
        same(grep, PROBE)
        assert grep.search(PROBE).files


def test_a_file_with_another_name_elsewhere_is_looked_at_each_time(folder):
    write(folder, {"a": b"none\n"})
    (folder.parent / "b").hardlink_to(folder / "a")
    with opened(folder) as grep:
        (folder.parent / "b").write_bytes(b"probe\n")
        assert [path for path, _ in grep.search(PROBE).files] == [b"a"]


def test_rules_outside_of_the_folder_count(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    write(folder, {"a.c": b"probe\n", "b.c": b"probe\n", ".git/info/exclude": b"", "in/.git/info/exclude": b"a.c\n"})
    write(folder, {"in/a.c": b"probe\n", "worktree/.git": b"gitdir: ../wt\n", "worktree/a.c": b"probe\n"})
    write(folder, {"wt/commondir": b"../common\n", "common/info/exclude": b"a.c\n"})
    with opened(folder) as grep:
        seen = []
        for where, rules in (
            (".git/info/exclude", b"a.c\n"),
            (".git/info/exclude", b""),
            ("in/.git/info/exclude", b""),
            ("common/info/exclude", b"b.c\n"),
            ("../.ignore", b"b.c\n"),
            ("../.ignore", b""),
            ("../home/.config/git/ignore", b"b.c\n"),
            ("../home/mine", b"a.c\n"),
            ("../home/.gitconfig", b"[core]\nexcludesFile = ~/mine\n"),
        ):
            write(folder, {where: rules})
            same(grep, PROBE)
            seen.append(len(grep.search(PROBE).files))
    assert len(set(seen)) > 2


def test_names_that_rules_cannot_say(folder):
    names = [b"a\nb", b"a\n\nb", b"\xff\xfe", b"tab\t", b"end ", b"back\\slash", b"star*?[x]{y}", b"!not", b"#no"]
    names += [b"\r"]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(b"probe\n")
        (folder / os.fsdecode(b"in" + name)).mkdir()
        (folder / os.fsdecode(b"in" + name) / "file").write_bytes(b"probe\n")
    with opened(folder) as grep:
        same(grep, PROBE)
        same(grep, PROBE, ["**/file"])
        assert len(grep.search(PROBE).files) == 2 * len(names)


def test_large_and_closed_files_and_pipes(folder, monkeypatch):
    monkeypatch.setattr("etude.harness.search.index.MOST_BYTES", 10)
    write(folder, {"large": b"x" * 20 + b"probe\n", "small": b"probe\n", "closed": b"probe\n"})
    os.mkfifo(folder / "pipe")
    (folder / "closed").chmod(0)
    with opened(folder) as grep:
        same(grep, PROBE)
        write(folder, {"large": b"y" * 30 + b"none\n", "small": b"none" * 9 + b"probe\n"})
        (folder / "closed").chmod(0o600)
        same(grep, PROBE)


def test_a_pattern_that_ripgrep_cannot_read_is_told(folder):
    write(folder, {"a": b"probe\n"})
    with opened(folder) as grep:
        for text in ("probe(", "probe{2", "a\nb", "a\0b", "\ud800", "x" * 10**6):
            with pytest.raises(BadPattern, match=r"."):
                grep.search(Pattern(text))
        with pytest.raises(BadPattern):
            grep.search(PROBE, globs=["[a"])
        assert grep.search(Pattern("-e")).files == []


def test_an_index_is_built_beside_us_in_place_of_a_torn_one_and_used_when_it_is_there(folder, monkeypatch):
    write(folder, {f"{number}": b"none\n" for number in range(30)})
    write(folder, {"numpy.py": b"raise SystemExit('the folder was searched, not asked to run')\n"})
    monkeypatch.chdir(folder)
    torn = place_of(os.fsencode(folder), folder.parent / "cache")
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"etude grep index 1\n torn")
    with Grep(folder, cache=folder.parent / "cache", least_files=20) as grep:
        same(grep, PROBE)
        assert grep.index is None
        assert grep.place == torn
        write(folder, {"new": b"probe\n"})
        grep.wait()
        assert grep.index is not None
        write(folder, {"newer": b"probe\n"})
        same(grep, PROBE)
    assert load(os.fsencode(folder), grep.place) is not None


@pytest.mark.slow
def test_one_builder_at_a_time_and_the_next_finds_it_done(folder):
    write(folder, {f"{number}": b"none\n" for number in range(3)})
    place = folder.parent / "cache" / "index"
    place.parent.mkdir()
    command = [sys.executable, "-P", "-m", "etude.harness.search", str(folder), str(place), RIPGREP.program]
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(command, stdin=subprocess.PIPE) as builder:
            until = time.monotonic() + 60
            while not _waits_for_lock(builder.pid):
                assert time.monotonic() < until
                time.sleep(0.05)
            place.write_bytes(b"built by another")
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert builder.wait(60) == 0
    assert place.read_bytes() == b"built by another"


def _waits_for_lock(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_who_builds_an_index_ends_with_who_asked_for_it(folder):
    (program := folder / "rg").write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 60\n")
    program.chmod(0o700)
    command = [sys.executable, "-P", "-m", "etude.harness.search", str(folder), str(folder / "index"), str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as builder:
        until = time.monotonic() + 60
        while not (pid := (folder / "pid").read_text() if (folder / "pid").exists() else ""):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert builder.stdin is not None
        builder.stdin.close()
        assert builder.wait(60) == 1
    os.kill(int(pid), signal.SIGKILL)


def test_a_small_folder_needs_no_index(folder):
    write(folder, {"a": b"probe\n"})
    with Grep(folder, cache=folder.parent / "cache") as grep:
        same(grep, PROBE)
        assert grep.index is None
        assert not grep.place.exists()


def test_without_ripgrep_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr("etude.harness.search.ripgrep._installed", lambda: None)
    with pytest.raises(NoRipgrep, match=r"^searching needs ripgrep: install .*$"):
        Ripgrep()


def test_a_ripgrep_that_hangs_or_dies_is_no_answer(folder):
    program = folder / "rg"
    for script, said in (("sleep 60", "did not finish within"), ("kill -9 $$", "signal 9")):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        with pytest.raises(SearchFailed, match=said):
            Ripgrep(program).search(os.fsencode(folder), PROBE, seconds=0.3)
    with pytest.raises(SearchFailed, match="cannot search"):
        RIPGREP.search(os.fsencode(folder / "nowhere"), PROBE)
