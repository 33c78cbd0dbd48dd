"""The same Dockerfiles built here and by podman: the same files, owners, modes and settings come out."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sandbox.oci_engine import Podman, own_engine
from tests.sandbox.small_root import needs_busybox, write_root

from etude.sandbox import BoxSpec, EmbeddedSandboxes
from etude.sandbox.images.image import ImageConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(Podman.missing()), reason="needs podman and runc"),
    needs_busybox,
]

Tree = dict[str, tuple[str, int, int, int, str]]
"""Path to kind, mode, owner, group, and content or goal."""
PLACES = {"proc", "dev", "sys", "run", "tmp", "etc", "etc/hosts", "etc/hostname", "etc/resolv.conf", "var", "var/tmp"}
"""Made by whoever runs an image, where it has none."""
USUAL_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


CASES = Path(__file__).with_name("dockerfiles")
OPTIONS = {"arguments": {"arguments": {"OVER": "given"}}, "target": {"target": "b"}}
FILES = {
    "a.txt": "a",
    "b.txt": "b",
    "run.sh": "#!/bin/sh\n",
    "with space": "s",
    "dir/x": "x",
    "dir/deep/er/y": "y",
    "build/out.o": "o",
    "build/keep": "k",
    "src/one.log": "1",
    "src/two.py": "2",
    "src/sub/three.log": "3",
    "plain.gz": "\x1f no archive",
}
LINKS = {"dir/link": "x", "dir/up": "../a.txt", "dir/gone": "nowhere", "to-a": "a.txt", "to-dir": "dir"}
MODES = {"run.sh": 0o755, "dir/deep": 0o710, "dir/x": 0o604}


def write_context(folder: Path) -> None:
    (folder / "empty").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for name, goal in LINKS.items():
        (folder / name).symlink_to(goal)
    for name, mode in MODES.items():
        (folder / name).chmod(mode)
    for name, compression in (("t.tar", ""), ("t.tar.gz", "gz"), ("t.bz2", "bz2"), ("t.xz", "xz")):
        write_archive(folder / name, compression)


def write_archive(path: Path, compression: str) -> None:
    with tarfile.open(path, f"w:{compression}") as archive:
        for name, kind, goal in (
            ("./", tarfile.DIRTYPE, ""),
            ("./t/", tarfile.DIRTYPE, ""),
            ("./t/f", tarfile.REGTYPE, ""),
            ("./t/hard", tarfile.LNKTYPE, "./t/f"),
            ("./t/soft", tarfile.SYMTYPE, "f"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, goal, 0o755 if kind == tarfile.DIRTYPE else 0o640
            info.uid, info.gid, info.size = 7, 8, 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"data"))


def tree_of(data: bytes) -> Tree:
    found: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            name = info.name.removeprefix("./").rstrip("/")
            if name in ("", ".") or name.split("/")[0] in ("proc", "dev", "sys"):
                continue
            kind = "file" if info.isreg() or info.islnk() else {b"5": "folder", b"2": "link"}.get(info.type, "other")
            content = info.linkname if info.issym() else ""
            if kind == "file":
                file = archive.extractfile(info)
                assert file is not None
                content = hashlib.sha256(file.read()).hexdigest()
            mode = 0o777 if kind == "link" else info.mode & 0o1777
            owner = (info.uid, info.gid)
            if info.islnk():
                first = archive.getmember(info.linkname)
                owner, mode = (first.uid, first.gid), first.mode & 0o1777
            found[name] = (kind, mode, *owner, content)
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("base") / "base.tar")


@pytest.fixture(scope="module")
def engine(base: Path) -> Iterator[Podman]:
    with own_engine(Podman) as engine:
        engine.run("import", '--change=CMD ["/bin/sh"]', str(base), "localhost/base")
        yield engine


def by_podman(engine: Podman, context: Path, name: str) -> tuple[Tree, ImageConfig]:
    file, options = CASES / f"{name}.Dockerfile", OPTIONS.get(name, {})
    flags = ["--network=none", "--quiet", f"--file={file}", f"--target={options.get('target', '')}"]
    ignore = file.with_name(f"{file.name}.dockerignore")
    flags += [f"--ignorefile={ignore}"] if ignore.exists() else []
    for argument, value in {"BASE": "localhost/base", **options.get("arguments", {})}.items():
        flags.append(f"--build-arg={argument}={value}")
    engine.run("build", *flags, "--tag=localhost/made", str(context))
    box = engine.run("create", "localhost/made", "true").strip()
    tar = context.with_suffix(".tar")
    engine.run("export", f"--output={tar}", box)
    (facts,) = json.loads(engine.run("image", "inspect", "localhost/made"))
    engine.run("rm", box)
    config = facts["Config"]
    env = [line.partition("=") for line in config.get("Env", ()) if line != USUAL_PATH]
    return tree_of(tar.read_bytes()), ImageConfig(
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "root",
        env=tuple(sorted((variable, value) for variable, _, value in env)),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
    )


def by_us(root: Path, base: Path, context: Path, name: str) -> tuple[Tree, ImageConfig]:
    options = OPTIONS.get(name, {})

    async def build() -> tuple[Tree, ImageConfig]:
        sandboxes = EmbeddedSandboxes(root)
        try:
            arguments = {"BASE": await sandboxes.import_image(base), **options.get("arguments", {})}
            image = await sandboxes.build_image(
                context,
                dockerfile=CASES / f"{name}.Dockerfile",
                target=options.get("target", ""),
                arguments=arguments,
            )
            box = await sandboxes.create(BoxSpec(image))
            config = sandboxes.store.image(image).config
            return tree_of(await box.read_tree("/")), replace(config, env=tuple(sorted(config.env)))
        finally:
            await sandboxes.close()

    return asyncio.run(build())


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.Dockerfile")))
def test_the_same_comes_out(name: str, engine: Podman, base: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    write_context(context)
    ours, our_config = by_us(tmp_path / "store", base, context, name)
    theirs, their_config = by_podman(engine, context, name)
    for place in PLACES:
        if place not in ours or place not in theirs or place.startswith("etc/"):
            ours.pop(place, None)
            theirs.pop(place, None)
    different = [path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)]
    assert {path: ours.get(path) for path in different} == {path: theirs.get(path) for path in different}
    assert our_config == their_config
