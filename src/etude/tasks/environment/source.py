"""What a task's environment is made from, with a digest that identifies it."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path

from etude.tasks.box import FORMER
from etude.tasks.directory import REPOSITORY, WORKDIR, Fields, read_files
from etude.tasks.seal import Needles, needles_of
from etude.tasks.task import Task, TaskError

_FORMAT = "etude-environment/1"
_PATCHES = frozenset(("test.patch", "eval.sh"))
"""Files of tests/ that hold the hidden tests as a patch, or apply one."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


class Kind(StrEnum):
    FILES = "files"
    """The task's files in environment/repo, over the host's system folders. For tasks whose environment needs no
    build."""
    DOCKERFILE = "dockerfile"
    PULLED = "pulled"
    """The image of a registry that `docker_image` in [environment] names."""
    ARCHIVE = "archive"
    """A root file system or saved image in the file that `archive` in [metadata.etude.environment] names."""


@dataclass(frozen=True, slots=True)
class Source:
    kind: Kind
    digest: str
    """Hash of everything that decides the image's contents. Of an image in a registry only the name is hashed: the
    registry may later give another image for a tag, but the one that was pulled first stays in use."""
    workdir: str = ""
    """The workspace's folder; empty to use the image's own working directory."""
    place: Path = Path()
    """Path of the Dockerfile's build context or of the archive, for sources of these two kinds."""
    reference: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def source_of(task: Task) -> Source:
    """Return the source of a task's environment. Raises TaskError if there is none, or if it cannot be run here.

    An image's name takes precedence over a Dockerfile, as in Harbor. A task with both a Dockerfile and repo/ can set
    `base = "host"` to use only repo/ here; other tools then use its Dockerfile.
    """
    folder = task.directory / "environment"
    fields = Fields(task.directory / "task.toml", task.config)
    workdir, image = (fields.text(f"environment.{key}", "") for key in ("workdir", "docker_image"))
    base, archive = (fields.text(f"metadata.etude.environment.{key}", "") for key in ("base", "archive"))
    if base not in ("", "host"):
        raise fields.error("metadata.etude.environment.base", '"host" or nothing', base)
    if found := next((name for name in _COMPOSE if (folder / name).is_file()), ""):
        raise TaskError(
            f"{folder / found}: environments of several containers are not run: describe one in a Dockerfile"
        )
    if base == "host" or not (image or archive or (folder / "Dockerfile").is_file()):
        files = read_files(task.directory, REPOSITORY)
        return Source(Kind.FILES, _of_files(files, workdir), workdir or WORKDIR, files=files)
    if archive:
        path = folder / archive
        if not path.resolve().is_relative_to(folder.resolve()) or not path.exists():
            raise fields.error("metadata.etude.environment.archive", "a file of environment/", archive)
        return Source(Kind.ARCHIVE, _digest("archive", workdir, _of_tree(path)), workdir, path)
    if image:
        return Source(Kind.PULLED, _digest("pulled", workdir, image), workdir, reference=image)
    return Source(Kind.DOCKERFILE, _digest("dockerfile", workdir, _of_tree(folder)), workdir, folder)


def needles_of_task(task: Task, pristine: Mapping[str, bytes]) -> Needles:
    """Return the texts that must not occur in the environment: only the solution and the hidden tests hold them."""
    patches = sorted(path for kind in ("*.diff", "*.patch") for path in (task.directory / "solution").glob(kind))
    reference = "\n".join(path.read_text(encoding="utf-8", errors="surrogateescape") for path in patches)
    tests = read_files(task.directory, "tests") if (task.directory / "tests").is_dir() else {}
    for name in tests.keys() & _PATCHES:  # Keep the added lines, as they will be in the workspace.
        tests[name] = b"\n".join(line[1:] for line in tests[name].split(b"\n") if line.startswith(b"+"))
    ours = {
        _script_digest(path.read_bytes()) for path in resources.files("etude.tasks.box").iterdir() if path.is_file()
    }
    hidden = {path: data for path, data in tests.items() if _script_digest(data) not in ours | FORMER}
    return needles_of(reference, hidden, pristine)


def _script_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _of_files(files: Mapping[str, bytes], workdir: str) -> str:
    digest = hashlib.sha256()
    for path, data in sorted(files.items()):
        digest.update(f"{path} {len(data)}\n".encode("utf-8", "surrogatepass") + data)
    return _digest("files", workdir, digest.hexdigest())


def _of_tree(top: Path) -> str:
    """Return a hash of names, kinds, modes and contents of all files below a folder, or of one file."""
    digest = hashlib.sha256()
    for path in _walk(top):
        facts = path.lstat()
        goal = str(path.readlink()) if stat.S_ISLNK(facts.st_mode) else ""
        size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
        line = f"{path.relative_to(top)} {facts.st_mode:o} {size} {goal}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
        if stat.S_ISREG(facts.st_mode):
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
    return digest.hexdigest()


def _walk(top: Path) -> Iterator[Path]:
    yield top
    if top.is_dir() and not top.is_symlink():
        for path in sorted(top.iterdir()):
            yield from _walk(path)


def _digest(kind: str, workdir: str, content: str) -> str:
    return hashlib.sha256(f"{_FORMAT} {kind} {workdir!r} {content}".encode()).hexdigest()[:32]
