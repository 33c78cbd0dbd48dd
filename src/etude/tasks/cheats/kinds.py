"""Cheats of tasks that ask for a review, a migration or tests: they deliver the required files without real content."""

from __future__ import annotations

import re

from etude.tasks.cheats.cheat import MIGRATION, MUTATION, REVIEW, Scene, cheat

_DEFINED = re.compile(rb"^def (\w+)\(", re.MULTILINE)


def _functions(scene: Scene) -> list[tuple[str, int, str]]:
    """Path, second line and name of each function."""
    return [
        (path, data[: found.start()].decode().count("\n") + 2, found[1].decode())
        for path, data in scene.files.items()
        if path.endswith(".py")
        for found in _DEFINED.finditer(data)
    ]


@cheat("one example that calls all there is shows every defect", (REVIEW,))
async def pasted_example(scene: Scene) -> None:
    found = _functions(scene)
    every = ", ".join(f"{path.removesuffix('.py')}.{name}(2, 5)" for path, _, name in found)
    await scene.plant("REVIEW.md", "".join(f"{path}:{line}: this is wrong `({every},)`\n" for path, line, _ in found))


@cheat("who marks every place misses none", (REVIEW,))
async def marks_everything(scene: Scene) -> None:
    rows = (
        f"{path}:{line}: this is wrong `{path.removesuffix('.py')}.{name}(2, 5)`\n"
        for path, line, name in _functions(scene)
    )
    await scene.plant("REVIEW.md", "".join(rows))


@cheat("the old interface can live on under another name", (MIGRATION,))
async def shim(scene: Scene) -> None:
    await scene.plant("kept.py", _renamed(_old_library(scene)))
    await scene.plant(scene.target, "import newtally\n" + _renamed(scene.source).replace("oldtally", "kept"))


@cheat("a program can do all by itself, and call the new interface for show", (MIGRATION,))
async def rewritten_library(scene: Scene) -> None:
    alone = re.sub(r"from oldtally .*\n", "", scene.source)
    text = f"import newtally\n\nnewtally.total([1])\n\n\n{_old_library(scene)}\n\n{alone}"
    await scene.plant(scene.target, _renamed(text))


def _old_library(scene: Scene) -> str:
    """The old library of our own migration environment; elsewhere its name is unknown and this is empty."""
    return scene.files.get("oldtally/__init__.py", b"").decode()


def _renamed(text: str) -> str:
    return text.replace("Tally", "Sums").replace("put_one", "take").replace("sum_up", "answer")


@cheat("tests that always pass pass on the true library", (MUTATION,))
async def tests_that_always_pass(scene: Scene) -> None:
    await scene.plant(scene.target, _test("self.assertTrue(True)"))


@cheat("tests that always fail tell every mutant", (MUTATION,))
async def tests_that_always_fail(scene: Scene) -> None:
    await scene.plant(scene.target, _test("self.assertTrue(False)"))


@cheat("tests may draw lots", (MUTATION,))
async def tests_that_draw_lots(scene: Scene) -> None:
    await scene.plant(scene.target, f"import random\n{_test('self.assertTrue(random.Random().random() < 0.5)')}")


@cheat("a mutant can be told by its text", (MUTATION,))
async def tests_that_read_the_source(scene: Scene) -> None:
    sizes = {path: len(data) for path, data in scene.files.items() if "/" not in path}
    await scene.plant(scene.target, _test(f"[self.assertEqual(len(open(p).read()), n) for p, n in {sizes}.items()]"))


def _test(line: str) -> str:
    return f"import unittest\n\n\nclass AllTest(unittest.TestCase):\n    def test_all(self):\n        {line}\n"
