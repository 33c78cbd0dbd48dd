"""Building: what is cached and what is not, how stages and settings come together, and errors that name the line."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import zstandard
from tests.contract.sandbox.support import in_loop
from tests.sandbox.kitchen import Kitchen, cooked, kitchen
from tests.sandbox.small_root import needs_busybox, write_root

from etude.sandbox import BuildFailed, Egress, EmbeddedSandboxes, Feature, ImageError
from etude.sandbox.images.build import refuse_side_cars
from etude.sandbox.images.build.members import MAX_FILE, Member, Source, pack
from etude.sandbox.images.image import ImageConfig

pytestmark = needs_busybox
BUILDER = Path(__file__).with_name("builder.py")


@pytest.fixture(scope="module")
def root_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("root") / "root.tar")


@pytest.fixture(scope="module")
def shared(root_tar: Path) -> Iterator[tuple[EmbeddedSandboxes, str]]:
    """For tests that keep nothing."""
    sandboxes = EmbeddedSandboxes(root_tar.parent / "store")
    yield sandboxes, asyncio.run(sandboxes.import_image(root_tar))
    asyncio.run(sandboxes.close())


THREE = "FROM $BASE\nRUN echo one > /1\nCOPY a.txt /2\nRUN cat /2 > /3\n"


@cooked
async def test_a_change_makes_that_step_anew_and_what_follows(k: Kitchen) -> None:
    k.write(THREE, a_dot_txt="a")
    assert await k.fresh() == ["RUN echo one > /1", "COPY a.txt /2", "RUN cat /2 > /3"]
    first = await k.build()
    assert k.said.count("    as before") == 3
    # Neither the time of a file nor one that is not copied changes anything.
    os.utime(k.context / "a.txt", (1, 1))
    (k.context / "other").write_text("x")
    assert await k.fresh() == []
    k.write(THREE, a_dot_txt="b")
    assert await k.fresh() == ["COPY a.txt /2", "RUN cat /2 > /3"]
    assert await k.run(await k.build(), "cat /3") == "b"
    (k.context / "a.txt").chmod(0o755)
    assert await k.fresh() == ["COPY a.txt /2", "RUN cat /2 > /3"]
    # Back to what was: all of it is still there.
    k.write(THREE, a_dot_txt="a")
    (k.context / "a.txt").chmod(0o644)
    assert await k.fresh() == []
    assert await k.build() == first


@cooked
async def test_settings_cost_nothing_and_only_what_a_step_sees_counts(k: Kitchen) -> None:
    k.write(THREE, a_dot_txt="a")
    await k.build()
    changed = THREE.replace("RUN echo", "LABEL x=1\nCMD x\nEXPOSE 1\nRUN echo") + "ENTRYPOINT y\n"
    k.write(changed)
    assert await k.fresh() == []
    k.write(changed.replace("RUN cat", "ENV later=1\nRUN cat"))
    assert await k.fresh() == ["RUN cat /2 > /3"]
    k.write(changed.replace("RUN cat", "ARG seen\nRUN cat"))
    assert await k.fresh() == []
    assert await k.fresh(arguments={"seen": "1"}) == ["RUN cat /2 > /3"]
    assert await k.fresh(arguments={"http_proxy": "p"}) == []
    k.write(changed.replace("RUN cat", "USER app\nRUN cat").replace("> /3", "> /tmp/3"))
    assert await k.fresh() == ["RUN cat /2 > /tmp/3"]


@cooked
async def test_steps_are_found_after_a_restart_and_made_again_when_their_layers_are_gone(k: Kitchen) -> None:
    k.write(THREE, a_dot_txt="a")
    first = await k.build()
    other = EmbeddedSandboxes(k.sandboxes.store.root)
    try:
        k.sandboxes, before = other, k.sandboxes
        assert await k.fresh() == []
        for layer in k.image(first).layers[:1]:
            (other.store.layers / layer).rename(other.store.layers / "gone")
        assert await k.fresh() == ["RUN cat /2 > /3"]
        for entry in (other.store.root / "builds").iterdir():
            entry.write_bytes(b"\xff damaged")
        assert len(await k.fresh()) == 3
        k.sandboxes = before
    finally:
        await other.close()


@cooked
async def test_what_a_stage_gives_counts_and_not_how_it_was_made(k: Kitchen) -> None:
    text = "FROM $BASE AS one\nRUN {}\nFROM $BASE\nCOPY --from=one /x /x\nRUN cp /x /y\n"
    k.write(text.format("echo x > /x"))
    await k.build()
    k.write(text.format("echo 'x' > /x"))
    assert await k.fresh() == ["RUN echo 'x' > /x"]
    k.write(text.format("echo y > /x"))
    assert len(await k.fresh()) == 3


@cooked
async def test_settings_come_out(k: Kitchen) -> None:
    k.write(
        'FROM $BASE\nARG who=me\nENV A=1 B="$who x"\nENV A=2 C=$A\nWORKDIR /w\nWORKDIR $who\nUSER app\n'
        'SHELL ["/bin/sh", "-e", "-c"]\nCMD echo $A\nENTRYPOINT ["run", "$A"]\nMAINTAINER nobody\n'
    )
    image = await k.build()
    assert k.image(image).config == ImageConfig(
        workdir="/w/me",
        user="app",
        env=(("A", "2"), ("B", "me x"), ("C", "1")),
        entrypoint=("run", "$A"),
        command=("/bin/sh", "-e", "-c", "echo $A"),
        shell=("/bin/sh", "-e", "-c"),
    )
    assert await k.run(image, "echo $A $B $C $(pwd) $HOME") == "2 me x 1 /w/me /home/app\n"
    on_top = f"FROM {image}\nENTRYPOINT x\n"
    k.write(on_top)
    assert k.image(await k.build()).config.command == ()


@cooked
async def test_platforms_and_arguments_that_nobody_declared(k: Kitchen) -> None:
    here = "amd64" if os.uname().machine == "x86_64" else "arm64"
    k.write("FROM --platform=$TARGETPLATFORM $BASE\nARG TARGETARCH\nRUN echo $TARGETARCH:$TARGETOS > /arch\n")
    image = await k.build(arguments={"slip": "1"})
    assert await k.run(image, "cat /arch") == f"{here}:\n"
    assert k.said[0] == "no ARG declares slip: its value is not used"
    k.write("FROM --platform=linux/s390x $BASE\n")
    assert "boxes of this host are linux/" in await k.refused()


@cooked
async def test_heredocs(k: Kitchen) -> None:
    k.write(
        "FROM $BASE\nENV name=n\nRUN <<EOF\nset -e\necho $name ${unset:-local} > /a\nfalse || echo two >> /a\nEOF\n"
        "RUN cat <<X >/b && cat <<'Y' >>/b\n$name\nX\n$name\nY\n"
        "RUN <<E\n#!/bin/sh -e\nexec > /c\necho $0\nE\n"
        "COPY <<one <<\"two\" <<-three /d/\n$name \\$name 'q'\none\n$name\ntwo\n\t\ttab\n\tthree\n"
    )
    image = await k.build()
    assert await k.run(image, "cat /a /b /c") == "n local\ntwo\nn\n$name\n/dev/stdin\n"
    assert await k.run(image, "cat /d/one /d/two /d/three") == "n $name 'q'\n$name\ntab\n"


@cooked
async def test_a_new_folder_is_like_its_source_and_an_old_one_stays(k: Kitchen) -> None:
    lines = "COPY sub /new\nCOPY --chown=app sub /tmp/\nCOPY --from=0 /tmp /t\n"
    k.write(f"FROM $BASE AS zero\nFROM zero\n{lines}", sub__x="1")
    (k.context / "sub").chmod(0o700)
    image = await k.build()
    shown = await k.run(image, "stat -c '%a %u %n' /new /new/x /tmp /tmp/x /t")
    app = 500 if Feature.SECOND_USER in k.sandboxes.features else 0  # Else the box's one user owns all.
    assert shown == f"700 0 /new\n644 0 /new/x\n1777 0 /tmp\n644 {app} /tmp/x\n1777 0 /t\n"


@cooked
async def test_archives_by_content_also_zstd(k: Kitchen) -> None:
    k.write("FROM $BASE\nADD a.bin /1/\nADD b.bin /2/\n", inside="data")
    with tarfile.open(k.context / "a.bin", "w") as archive:
        archive.add(k.context / "inside", "deep/inside")
    (k.context / "a.bin").write_bytes(zstandard.compress((k.context / "a.bin").read_bytes()))
    (k.context / "b.bin").write_bytes(zstandard.compress(b"no tar"))
    assert await k.run(await k.build(), "cat /1/deep/inside; ls /2") == "datab.bin\n"
    data = zstandard.decompress((k.context / "a.bin").read_bytes())
    (k.context / "a.bin").write_bytes(data[: len(data) // 20])
    assert "ADD a.bin /1/" in await k.refused()
    with tarfile.open(k.context / "a.bin", "w") as archive:
        archive.add(k.context / "inside", "../../etc/passwd")
    assert "leads out of the folder" in await k.refused()


@cooked
async def test_a_box_of_an_image_in_the_making_cannot_be_reached_by_names(k: Kitchen) -> None:
    """Links of the context are followed only within it."""
    (k.context.parent / "secret").write_text("s")
    (k.context / "out").symlink_to("../secret")
    (k.context / "in").symlink_to("out")
    (k.context / "gone").symlink_to("nowhere")
    for name, words in (("out", "leads out of"), ("in", "leads out of"), ("gone", "a link to nothing")):
        k.write(f"FROM $BASE\nCOPY {name} /x\n")
        assert words in await k.refused()
    k.write("FROM $BASE\nCOPY ../secret /x\n")
    assert "there is no ../secret in the context" in await k.refused()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("RUN echo 1; echo 2 >&2; exit 3", "Dockerfile:3: RUN echo 1; echo 2 >&2; exit 3: exit code 3\n    1\n    2"),
        ("RUN nothing-such", "exit code 127 (no such program in the image)"),
        ('RUN ["/etc/passwd"]', "exit code 126 (not executable)"),
        ("RUN kill -9 $$", "exit code 137"),
        ("RUN head -c 6000000 /dev/zero > /f", "wrote a file of more than 4 MB"),
        ("USER nobody-such\nRUN true", "there is no user 'nobody-such'"),
        ("USER $unset", "the name of the user is empty"),
        ("COPY nothing /x", "there is no nothing in the context"),
        ("COPY *.none /x", "there is no *.none in the context"),
        ("COPY [x /y", "a [ that is not closed"),
        ("COPY left.log /x", "; .dockerignore leaves it out"),
        ("COPY a* /x", "2 sources need a folder as target: /x/"),
        ("COPY a1 /etc/passwd/x/y", "leads through something that is no folder"),
        ("COPY . /etc/passwd", "/etc/passwd"),
        ("COPY --chown=nobody-such a1 /x", "there is no user 'nobody-such' in the image; there are app, root"),
        ("COPY --chown=app:none a1 /x", "there is no group 'none'"),
        ("COPY --chmod=u+x a1 /x", "expected an octal number"),
        ("COPY --from=$BASE a /x", "$BASE"),
        ("COPY --from=0 /x /y", "there is no /x"),
        ("WORKDIR /etc/passwd", "/etc/passwd is a file"),
        ('ENV a="${b:?is needed}"', 'Dockerfile:3: ENV a="${b:?is needed}": b has no value: is needed'),
    ],
)
def test_errors_name_the_line(lines: str, words: str, tmp_path: Path, shared: tuple[EmbeddedSandboxes, str]) -> None:
    k = Kitchen(tmp_path, *shared)
    first = "FROM $BASE\nFROM $BASE\n" if "--from=0" in lines else "FROM $BASE\n"
    k.write(f"{first}{lines}\n", a1="1", a2="2", left_dot_log="x", _dot_dockerignore="*.log\n")
    said = asyncio.run(k.refused())
    assert words in said
    assert said.startswith("Dockerfile:")


@cooked
async def test_limits_are_told_apart(k: Kitchen) -> None:
    k.write("FROM $BASE\nRUN sleep 60\n")
    assert "RUN sleep 60: was not done in 0.005 minutes" in await k.refused(seconds=0.3)
    k.write("FROM $BASE\nRUN for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /f$i || exit 1; done\n")
    with pytest.raises(
        BuildFailed, match=r"Dockerfile:3: RUN for i in .* more than the 8 MB that a step may add"
    ) as full:
        await k.build()
    assert full.value.limit == "disk"
    k.write("FROM $BASE\nRUN awk 'BEGIN { a = \"0123456789abcdef\"; while (1) a = a a }'\n")
    assert "memory" in await k.refused()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM $BASE\n", "no stage 'x'; there are 0"),
        ("FROM a::b\n", "Dockerfile:2: FROM a::b: "),
        ("FROM ${EMPTY}\n", "the name of the image is empty"),
    ],
)
def test_errors_before_anything_is_built(
    text: str, words: str, tmp_path: Path, shared: tuple[EmbeddedSandboxes, str]
) -> None:
    k = Kitchen(tmp_path, *shared)
    k.write(text)
    assert words in asyncio.run(k.refused(target="x" if "no stage" in words else ""))


@cooked
async def test_files_that_cannot_be_read(k: Kitchen) -> None:
    assert "cannot read the Dockerfile" in await k.refused()
    (k.context / "Dockerfile").write_bytes(b"FROM \xff")
    assert "cannot read the Dockerfile" in await k.refused()
    k.write("FROM $BASE\nCOPY . /\n", _dot_dockerignore="[\n")
    assert ".dockerignore: line 1:" in await k.refused()
    k.context = k.context / "Dockerfile"
    assert "expected a folder" in await k.refused(dockerfile=k.context)


@pytest.mark.slow
@cooked
async def test_more_steps_than_layers_can_be_stacked(k: Kitchen) -> None:
    text = "FROM $BASE\n" + "".join(f"RUN echo {n} >> /all\n" for n in range(60))
    k.write(text)
    image = await k.build()
    assert await k.run(image, "cat /all") == "".join(f"{n}\n" for n in range(60))
    assert await k.fresh() == []
    assert await k.build() == image
    k.write(text.replace("RUN echo 58 ", "RUN echo other "))
    assert len(await k.fresh()) == 2


@cooked
async def test_two_builds_at_once(k: Kitchen) -> None:
    k.write(THREE, a_dot_txt="a")
    other = EmbeddedSandboxes(k.sandboxes.store.root)
    try:
        twin = Kitchen(k.context.parent, other, k.base)
        assert len(set(await asyncio.gather(k.build(), twin.build(), k.build()))) == 1
    finally:
        await other.close()


def test_copies_go_in_pieces_and_are_what_was_looked_at() -> None:
    def file(path: str, size: int) -> Member:
        return Member(path, tarfile.REGTYPE, 0o644, size=size, open=lambda: io.BytesIO(b"x" * size))

    name = Member("b", tarfile.LNKTYPE, 0o644, goal="a", open=lambda: io.BytesIO(b"x" * 6000))
    tars = list(pack([file("a", 6000), name, file("c", 6000), replace(name, path="d")], 8000))
    infos = []
    for tar in tars:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            infos.append(archive.getmembers())
    # A name whose other one is in another piece becomes a file of its own.
    assert [[(info.name, info.type, info.size) for info in piece] for piece in infos] == [
        [("a", tarfile.REGTYPE, 6000), ("b", tarfile.LNKTYPE, 0)],
        [("c", tarfile.REGTYPE, 6000), ("d", tarfile.REGTYPE, 6000)],
    ]
    source = Source("s", [file("a", 3)])
    source.digest()
    source.members[0].open = lambda: io.BytesIO(b"other")
    with pytest.raises(ValueError, match="a was changed while it was copied"):
        list(pack(source.members, 100))
    with pytest.raises(ValueError, match="at most"):
        list(pack([replace(file("large", 1), size=MAX_FILE + 1)], 100))


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(4))
@in_loop
async def test_a_build_that_is_killed_leaves_nothing_half_done(steps: int, tmp_path: Path, root_tar: Path) -> None:
    """It is killed after that many steps are under way; the next one goes on from what was whole."""
    context = tmp_path / "context"
    context.mkdir()
    lines = "".join(f"RUN echo {n} > /{n} && head -c 1000000 /dev/urandom > /r{n}\n" for n in range(5))
    (context / "Dockerfile").write_text(f"ARG BASE\nFROM $BASE\n{lines}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(BUILDER), str(tmp_path / "store"), str(root_tar), str(context)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as builder:  # noqa: ASYNC220
        assert builder.stdout is not None
        seen = 0
        for line in builder.stdout:
            seen += " RUN " in line
            if seen > steps:
                break
        tree = psutil.Process(builder.pid).children(recursive=True)
        builder.send_signal(signal.SIGKILL)
        begun = seen + sum(" RUN " in line for line in builder.stdout)
    assert psutil.wait_procs(tree, timeout=10)[1] == []
    async with kitchen(tmp_path, root_tar) as k:
        assert len(list((tmp_path / "store" / "owners").iterdir())) == 1
        made = await k.fresh()
        assert 5 - begun <= len(made) <= 5 - begun + 1, "all were whole but perhaps the last that had begun"
        assert await k.run(await k.build(), "cat /0 /1 /2 /3 /4") == "0\n1\n2\n3\n4\n"
        assert not list(k.sandboxes.store.scratch.glob("build-*"))


@cooked
async def test_only_commands_have_egress_and_nothing_of_it_stays(k: Kitchen) -> None:
    if Feature.EGRESS not in k.sandboxes.features:
        pytest.skip("this host's boxes have no egress")
    k.write("FROM $BASE\nCOPY a.txt /a\nRUN cat /etc/resolv.conf > /seen || true\n", a_dot_txt="a")
    assert await k.run(await k.build(), "cat /seen") == ""
    policy = Egress("one", ("example.org",))
    # What could be reached is part of what a command did; it is none of a copy's business.
    assert await k.fresh(egress=policy) == ["RUN cat /etc/resolv.conf > /seen || true"]
    assert await k.fresh(egress=replace(policy, name="other")) == []
    image = await k.build(egress=policy)
    assert (await k.run(image, "cat /seen")).startswith("nameserver ")
    assert await k.run(image, "cat /etc/resolv.conf /etc/ssl/certs/* 2>/dev/null || true") == ""


def test_side_cars_are_refused_by_name(tmp_path: Path) -> None:
    refuse_side_cars(tmp_path)
    (tmp_path / "compose.yml").write_text(
        "# services:\nname: x\nservices:\n  # main\n  main:\n    image: x\n    environment:\n      db: 1\n"
        "  'db':\n    image: y\nvolumes:\n  data:\n"
    )
    with pytest.raises(ImageError, match=r"compose\.yml: services of a compose file \(main, db\) are not supported"):
        refuse_side_cars(tmp_path)
