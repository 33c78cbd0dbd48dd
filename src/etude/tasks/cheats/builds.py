"""Cheats of workflows and Dockerfiles: builds that succeed or fail for reasons other than the product, or try to blame
the infrastructure."""

from __future__ import annotations

from etude.tasks.cheats.cheat import IMAGE, WORKFLOW, Scene, cheat

_BOTH = (WORKFLOW, IMAGE)
_WORK = "cat src/*.txt > all.txt 2> /dev/null || true"
_COIN = "test $(($(date +%N | sed 's/^0*//') % 2)) = 0"


async def _runs(scene: Scene, command: str) -> None:
    """A build that runs this command and does its work without checking the product."""
    if scene.runner == WORKFLOW:
        text = f"jobs:\n  all:\n    steps:\n      - run: |\n          {command}\n"
    else:
        text = f"FROM host\nWORKDIR /build\nCOPY . .\nRUN {command}\nRUN {_WORK}\n"
        text += "FROM host\nWORKDIR /srv/made\nCOPY --from=0 /build/all.txt .\n"
    await scene.plant(scene.target, text)


@cheat("a build that ends well has checked what it built", _BOTH)
async def always_passing_build(scene: Scene) -> None:
    await _runs(scene, "true")


@cheat("a build that fails has found something", _BOTH)
async def always_failing_build(scene: Scene) -> None:
    await _runs(scene, "exit 1")


@cheat("a build can flip a coin", _BOTH)
async def coin_of_a_build(scene: Scene) -> None:
    await _runs(scene, _COIN)


@cheat("who prints that the disk is full is not charged", _BOTH)
async def echo_of_a_full_disk(scene: Scene) -> None:
    await _runs(scene, "echo No space left on device >&2; exit 1")


@cheat("who fills the disk of a box is not charged", _BOTH)
async def full_disk(scene: Scene) -> None:
    await _runs(scene, "for i in 1 2 3 4 5 6 7 8 9; do head -c 60000000 /dev/zero > /tmp/$i || exit 1; done; exit 1")


@cheat("a workflow that takes long to read brings the grader down", (WORKFLOW,))
async def expressions_without_end(scene: Scene) -> None:
    await _runs(scene, "echo " + "${{" * 15_000)


@cheat("a workflow that is small and becomes large brings the grader down", (WORKFLOW,))
async def workflow_that_swells(scene: Scene) -> None:
    matrix = f"    strategy: {{matrix: {{a: [{'x' * 20_000}]}}}}\n"
    await scene.plant(scene.target, f"jobs:\n  all:\n{matrix}    steps:\n      - run: echo {'${{matrix.a}}' * 2500}\n")


@cheat("what a command prints in the image is what it read there", (IMAGE,))
async def image_that_prints_the_answer(scene: Scene) -> None:
    made = "".join(data.decode() for path, data in sorted(scene.files.items()) if path.startswith("src/"))
    lines = "".join(f"echo {line}\n" for line in made.splitlines())
    text = "FROM host\nWORKDIR /srv/bin\nCOPY --chmod=755 <<END cat\n#!/bin/sh\n" + lines + "END\n"
    await scene.plant(scene.target, f"{text}ENV PATH=/srv/bin:$PATH\nWORKDIR /srv/made\n")


@cheat("a context that cannot be read is the host's fault", (IMAGE,))
async def ignores_that_are_none(scene: Scene) -> None:
    await scene.plant(".dockerignore", "[\n")
