from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import py_compile
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.seal import needles_of, scan_files
from etude.tasks.seal import nested_archives as peel_module
from etude.tasks.seal.git_packs import pack_objects
from etude.tasks.seal.nested_archives import UnpackLimit, unpack_nested
from etude.tasks.seal.scan import Scanner

from .leaky import FIXED, HIDDEN, LINE, PATCH

PRISTINE = {"rides/fares.py": FIXED.replace(" + minutes // 15 * 25", "").encode()}
NEEDLES = needles_of(PATCH, {"tests/test_fares.py": HIDDEN.encode()}, PRISTINE)
AROUND = ("def other():\n    pass\n\n", "\n\n# the end\n")


def zipped(data: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", data)
    return target.getvalue()


def tar_of(files: dict[str, tuple[bytes, int]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, (data, modified) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), modified
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def git_object(data: bytes) -> bytes:
    return zlib.compress(b"blob %d\0" % len(data) + data)


def packed(data: bytes) -> bytes:
    """A pack of one blob."""
    size = len(data)
    head, rest = bytearray([3 << 4 | size & 15]), size >> 4
    while rest:
        head[-1] |= 128
        head.append(rest & 127)
        rest >>= 7
    return b"PACK" + bytes([0, 0, 0, 2, 0, 0, 0, 1]) + bytes(head) + zlib.compress(data) + bytes(20)


WRAPS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "zip": zipped,
    "tar": lambda data: tar_of({"inner": (data, 0)}),
    "git": git_object,
    "pack": packed,
}
WRITINGS: dict[str, Callable[[str], bytes]] = {
    "as it is": str.encode,
    "indented": lambda text: text.replace("\n", "\n        ").encode(),
    "with tabs": lambda text: text.replace("    ", "\t").encode(),
    "from another system": lambda text: text.replace("\n", "\r\n").encode(),
    "as a patch": lambda text: text.replace("\n", "\n+").encode(),
    "as JSON": lambda text: json.dumps(text.split("\n")).encode(),
    "among bytes": lambda text: b"\0\xff\x01" + text.encode() + b"\xfe\0",
    "reformatted": lambda text: text.replace("minutes //", "minutes //\n   ").encode(),
}
LINES = st.sampled_from([LINE, *HIDDEN.split("\n")[3:6:2]])


@settings(deadline=None)
@given(
    st.sampled_from(list(WRITINGS)),
    st.lists(st.sampled_from(list(WRAPS)), max_size=4),
    st.tuples(st.text("abc \n", max_size=40), st.text("abc \n", max_size=40)),
)
def test_a_line_of_the_solution_is_found_however_it_is_wrapped(
    writing: str, wraps: list[str], around: tuple[str, str]
) -> None:
    for planted in (True, False):
        data = WRITINGS[writing](f"{around[0]}\n    {LINE if planted else ''}\n{around[1]}")
        for name in wraps:
            data = WRAPS[name](data)
        report = scan_files({"some/file": data}, NEEDLES)
        assert bool(report.findings) is planted
        assert all(finding.file.startswith("some/file") for finding in report.findings)
        assert report.unread == ()


def test_a_hidden_test_is_found_by_two_of_its_lines() -> None:
    one, both = HIDDEN.split("\n")[4], HIDDEN
    assert scan_files({"a": both.encode()}, NEEDLES).findings
    assert not scan_files({"a": one.encode()}, NEEDLES).findings


def test_short_lines_are_looked_for_with_their_neighbours() -> None:
    diff = (
        "--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n def sub(first, second):\n-    return 0\n+    return a - b\n # end\n"
    )
    needles = needles_of(diff, {}, {"m.py": b"def sub(first, second):\n    return 0\n# end\n"})
    (needle,) = needles.items
    assert needle.text == b"defsub(first,second):returna-b#end"
    assert not scan_files({"x": b"    return a - b\n"}, needles).findings
    assert scan_files({"x": b"def sub(first, second):\n    return a - b\n# end\n"}, needles).findings


@pytest.mark.parametrize(
    "line",
    [
        "from __future__ import annotations",
        "import collections.abc, functools, itertools",
        "def __init__(self, *args, **kwargs):",
        'if __name__ == "__main__":',
        "const { readFile, writeFile } = require('node:fs')",
        "def fare(zone, minutes):",
        "x = 1",
    ],
)
def test_what_others_say_too_is_no_sign_of_the_solution(line: str) -> None:
    diff = f"--- a/rides/fares.py\n+++ b/rides/fares.py\n@@ -1,0 +1,1 @@\n+{line}\n"
    assert needles_of(diff, {}, PRISTINE).items == ()


def test_quoted_texts_are_found_in_bytecode(tmp_path: Path) -> None:
    line = 'raise ValueError("a ride needs at least one zone to go through")'
    diff = f"--- a/rides/fares.py\n+++ b/rides/fares.py\n@@ -1,0 +1,1 @@\n+    {line}\n"
    (tmp_path / "f.py").write_text(f"def f():\n    {line}\n")
    compiled = Path(py_compile.compile(str(tmp_path / "f.py"), doraise=True) or "").read_bytes()
    assert LINE.encode() not in compiled
    assert scan_files({"x": compiled}, needles_of(diff, {}, PRISTINE)).findings


@pytest.mark.parametrize(
    ("modified", "source", "found"), [(100, b"twelve bytes", False), (101, b"twelve bytes", True), (100, b"else", True)]
)
def test_bytecode_of_a_changed_module_must_be_of_the_source_beside_it(
    modified: int, source: bytes, found: bool
) -> None:
    compiled = b"\xa7\r\r\n" + b"".join(number.to_bytes(4, "little") for number in (0, 100, 12)) + b"code"
    scanner = Scanner(NEEDLES)
    scanner.add_tar("/a", tar_of({"__pycache__/fares.cpython-311.pyc": (compiled, 1)}))
    scanner.add_tar("/a", tar_of({"__pycache__/other.cpython-311.pyc": (compiled, 1)}))
    scanner.add_tar("/a", tar_of({"fares.py": (source, modified)}))
    assert [finding.file for finding in scanner.report().findings] == (
        ["/a/__pycache__/fares.cpython-311.pyc"] if found else []
    )


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peel_module, "LARGEST", 1000)
    assert scan_files({"bomb.gz": gzip.compress(bytes(2000))}, NEEDLES).unread == ("bomb.gz",)
    monkeypatch.setattr(peel_module, "LARGEST", 10_000)
    monkeypatch.setattr(peel_module, "MOST", 3000)
    with pytest.raises(UnpackLimit):
        list(unpack_nested("a", zipped(bytes(4000))))


@settings(deadline=None)
@given(st.sampled_from(list(WRAPS)), st.binary(max_size=200), st.data())
def test_damaged_archives_end_no_scan(wrap: str, content: bytes, draw: st.DataObject) -> None:
    data = bytearray(WRAPS[wrap](content))
    for _ in range(draw.draw(st.integers(0, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    with contextlib.suppress(UnpackLimit):
        assert next(iter(unpack_nested("a", cut))) == ("a", cut)
        list(unpack_nested("a", cut))


@pytest.mark.skipif(not shutil.which("git"), reason="needs git: see scripts/test-tools.sh")
def test_packs_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """With long chains of deltas, by offset and by name."""

    def git(*words: str, stdin: bytes = b"") -> bytes:
        person = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        return subprocess.run(
            ["git", *person, *words], cwd=tmp_path, input=stdin, capture_output=True, check=True
        ).stdout

    git("init", "-q", ".")
    lines = [f"line {number} of a file that grows and changes\n" for number in range(400)]
    for version in range(12):
        lines[version * 7 % 400] = f"version {version} of this line\n"
        (tmp_path / "file").write_text("".join(lines))
        git("add", "file")
        git("commit", "-q", "-m", f"version {version}")
    names = git("rev-list", "--objects", "--all", "--no-object-names").split()
    kinds = git("cat-file", "--batch-check=%(objecttype)", stdin=b"\n".join(names)).decode().split()
    wanted = {
        git("cat-file", kind, name.decode()): kind for name, kind in zip(names, kinds, strict=True) if kind != "tree"
    }
    for options in (["--delta-base-offset"], []):
        pack = git("pack-objects", "--stdout", "--depth=50", *options, stdin=b"\n".join(names) + b"\n")
        found = {content: name.split()[0] for name, content in pack_objects(pack)}
        assert found == wanted
