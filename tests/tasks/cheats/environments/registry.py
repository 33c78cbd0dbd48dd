"""Two real packages with their own test suites, from the registry that pip uses; pinned by version and hash.

A bug is put into each, and the package's own tests are the hidden ones. They lie over the host's base, so neither may
be installed on the host's Python path: the cheat `installed-copy` would find the fix there.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.task import Task, TaskError

from .micro import diff_of, suite, write_environment


@dataclass(frozen=True, slots=True)
class Real:
    name: str
    version: str
    python: str
    """The Python tag in its wheel's name."""
    sha256: str
    """Hash of its platform-independent wheel."""
    runner: str
    target: str
    line: str
    """The line of the target that the bug changes, in its correct form."""
    bug: str
    other: str
    """Another correct form of the line."""
    tests: tuple[str, ...]
    """Its own test files; the one with the tests that find the bug comes first."""
    fails: tuple[str, ...]
    passes: tuple[str, ...]


REAL = (
    Real(
        "toolz",
        "0.12.1",
        "py3",
        "d22731364c07d72eea0a0ad45bafb2c2937ab6fd38a3507bf55eae8744aa7d85",
        "pytest",
        "toolz/itertoolz.py",
        "        d[item] += 1\n    return dict(d)\n",
        "        d[item] = 1\n    return dict(d)\n",
        "        d[item] = d[item] + 1\n    return {**d}\n",
        ("toolz/tests/test_itertoolz.py",),
        ("test_frequencies",),
        (
            "test_remove", "test_groupby", "test_merge_sorted", "test_interleave", "test_unique", "test_isdistinct",
            "test_nth", "test_take", "test_drop", "test_get", "test_concat", "test_partition_all", "test_count",
        ),
    ),
    Real(
        "pytimeparse",
        "1.1.8",
        "py2.py3",
        "04b7be6cc8bd9f5647a6325444926c3ac34ee6bc7e69da4367ba282f076036bd",
        "unittest",
        "pytimeparse/timeparse.py",
        "        ('weeks',   60 * 60 * 24 * 7),\n",
        "        ('weeks',   60 * 60 * 24 * 5),\n",
        "        ('weeks',   7 * 86400),\n",
        ("pytimeparse/tests/testtimeparse.py", "pytimeparse/tests/__init__.py"),
        tuple(f"TestTimeparse.test_timeparse_{name}" for name in ("31", "32", "33", "4", "5", "6")),
        (
            *(f"TestTimeparse.test_{name}" for name in ("mins", "hrs", "time", "timeparse_bare_seconds")),
            *(f"TestTimeparse.test_timeparse_{number}" for number in (*range(1, 4), *range(7, 31))),
        ),
    ),
)  # fmt: skip


def real_environments(folder: Path, cache: Path) -> list[Task]:
    return [_write(real, fetched(real, cache), folder) for real in REAL]


def fetched(real: Real, cache: Path) -> bytes:
    """The package's wheel. Raises TaskError if it cannot be downloaded or has another hash."""
    path = cache / f"{real.name}-{real.version}-{real.python}-none-any.whl"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", str(cache)]
        command += ["--no-deps", "--only-binary", ":all:", "--platform", "any", f"{real.name}=={real.version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not path.is_file():
            raise TaskError(f"{real.name} {real.version} cannot be fetched by pip: {done.stderr.strip()[-300:]}")
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != real.sha256:
        raise TaskError(f"{path}: expected the hash {real.sha256}, found {found}: remove it")
    return data


def _write(real: Real, wheel: bytes, folder: Path) -> Task:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        files = {name: archive.read(name).decode() for name in names}
    sound = files[real.target]
    if sound.count(real.line) != 1:
        raise TaskError(f"{real.name}: expected {real.line!r} once in {real.target}")
    damaged, other = sound.replace(real.line, real.bug), sound.replace(real.line, real.other)
    hidden = {name: files[name] for name in real.tests}
    verifier, task_files = suite(real.runner, hidden, list(real.fails), list(real.passes), seconds=20)
    before = {name: text for name, text in files.items() if "/tests/" not in name} | {real.target: damaged}
    return write_environment(
        folder / f"{real.runner}-{real.name}",
        {name: text.encode() for name, text in before.items()},
        diff_of({real.target: damaged}, {real.target: sound}).encode(),
        diff_of({real.target: damaged}, {real.target: other}).encode(),
        verifier,
        task_files,
    )
